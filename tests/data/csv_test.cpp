// Tables as programs write them, and errors that name file, line and column; random damage never crashes the reader.
#include "data/csv.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/series.h"
#include "machine/expect_error.h"
#include "support/mutate.h"
#include "support/rounds.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

using test::TempFolder;
using test::write_text;

std::vector<std::vector<std::string>> rows_of(const std::string& text) {
  const TempFolder folder;
  write_text(folder / "t.csv", text);
  CsvReader table(folder / "t.csv");
  std::vector<std::vector<std::string>> rows = {table.names()};
  while (table.next()) {
    rows.emplace_back();
    for (size_t c = 0; c < table.names().size(); ++c) rows.back().push_back(table.field(c));
  }
  return rows;
}

TEST(Csv, ReadsWhatProgramsWrite) {
  using Table = std::vector<std::vector<std::string>>;
  const Table plain = {{"a", "b"}, {"1", "x"}, {"2", "y"}};
  for (const char* text : {"a,b\n1,x\n2,y\n", "a;b\n1;x\n2;y", "a\tb\r\n1\tx\r\n2\ty\r\n",
                           "\xef\xbb\xbf"
                           "a,b\r1,x\r2,y\r",
                           "\n\na,b\n\n1,x\n\n2,y\n\n", "\"a\",\"b\"\n\"1\",\"x\"\n2,y\n", " a ,b\n1,x\n2,y\n"})
    EXPECT_EQ(rows_of(text), plain) << text;
  EXPECT_EQ(rows_of("a,b\n\"x,\"\"y\"\"\r\nz\",\n"), (Table{{"a", "b"}, {"x,\"y\"\r\nz", ""}}));
  EXPECT_EQ(rows_of("1;2,5\n3;4\n"), (Table{{"1", "2"}, {"1", "2,5"}, {"3", "4"}})) << "no header: columns are numbered";
  EXPECT_EQ(rows_of("a,,b\n1,2,3\n")[0], (std::vector<std::string>{"a", "2", "b"}));
  EXPECT_EQ(rows_of("a\n\n1\n\n\n2\n\n"), (Table{{"a"}, {""}, {"1"}, {""}, {""}, {"2"}})) << "the value of a single column is missing";
  EXPECT_EQ(rows_of("\"a;b\",c\n1,2\n")[0], (std::vector<std::string>{"a;b", "c"})) << "separators in quotes do not count";
}

TEST(Csv, ErrorsNameThePlace) {
  auto error = [](const std::string& text) { return std::string(error_of([&] { rows_of(text); }).what()); };
  EXPECT_TRUE(mentions(error("a,b\n1,2\n1,2,3\n"), "t.csv:3: 3 fields, but the first line has 2"));
  EXPECT_TRUE(mentions(error("a,b\n1,2\n\"x\ny,1\n"), "t.csv:3: a quoted field is not closed"));
  EXPECT_TRUE(mentions(error("a,Temp \xb0"
                             "C\n1,2\n"),
                       "t.csv:1: field 2: byte 0xb0 is not UTF-8"));
  EXPECT_TRUE(mentions(error("a,b\n1,\"x\"y\n"), "t.csv:2: field 2: text follows the closing quote"));
  EXPECT_TRUE(mentions(error("a,b,a\n"), "t.csv:1: columns 1 and 3 are both named 'a'"));
  EXPECT_TRUE(mentions(error("\xff\xfe"
                             "a\0"),
                       "UTF-16"));
  EXPECT_TRUE(mentions(error(std::string("a\0,\0b\0\n\0", 8)), "UTF-16"));
  EXPECT_TRUE(mentions(error(""), "is empty"));
  EXPECT_TRUE(mentions(error("a,b\n" + std::string(70'000, 'x') + ",1\n"), "t.csv:2: field 1 is longer than"));
  const TempFolder folder;
  write_text(folder / "t.csv", "when,temp\n1,2\n2,warm\n");
  CsvReader table(folder / "t.csv");
  table.next(), table.next();
  EXPECT_TRUE(mentions(error_of([&] { table.number(1); }).what(), "t.csv:3: column 2 (temp): 'warm' is not a number"));
  EXPECT_TRUE(mentions(error_of([&] { table.column("tmp"); }).what(), "did you mean 'temp'"));
  EXPECT_EQ(error_of([&] { CsvReader missing(folder / "none.csv"); }).code(), ErrorCode::io);
}

TEST(Csv, ReadsNumbersAndTimes) {
  for (const auto& [text, value] : {std::pair("1.5", 1.5), {" -2e3 ", -2000}, {"+7", 7}, {".5", 0.5}, {"0", 0}}) {
    const CsvNumber n = parse_csv_number(text, false);
    EXPECT_TRUE(n.valid && !n.missing) << text;
    EXPECT_EQ(n.value, value);
  }
  EXPECT_EQ(parse_csv_number("1,5", true).value, 1.5);
  for (const char* text : {"", " ", "NA", "nan", "N/A", "null", "?", "-"}) EXPECT_TRUE(parse_csv_number(text, false).missing) << text;
  for (const char* text : {"1,5", "x", "1 2", "inf", "1e39", "0x1f", "++1", "--1", "1.2.3"}) EXPECT_FALSE(parse_csv_number(text, false).valid) << text;
  EXPECT_EQ(parse_time("1970-01-02"), 86400);
  EXPECT_EQ(parse_time("1970-01-01 01:00"), 3600);
  EXPECT_EQ(parse_time("1970-01-01T00:00:01.5Z"), 1.5);
  EXPECT_EQ(parse_time("1970-01-01T02:00:00+02:00"), 0);
  EXPECT_EQ(parse_time("2024-02-29").value(), 19782 * 86400.0);
  for (const char* text : {"2023-02-29", "1970-13-01", "1970-01-01 25:00", "1970-01-01x", "1.5", "", "12:00"}) EXPECT_FALSE(parse_time(text)) << text;
}

// A table of a sine at irregular times, with a hole, a constant column and two sequences.
std::string sine_table(int rows) {
  std::string text = "trip,when,height,label\n";
  for (int i = 0; i < rows; ++i)
    text += fmt::format("{},{},{},{}\n", i < rows / 2 ? "one" : "two", 3 * (i % (rows / 2)) + i % 2,
                        i == 3 ? std::string("") : fmt::format("{:.4f}", 5 + std::sin(0.3 * i)), std::sin(0.3 * i) > 0.5 ? "high" : "low");
  return text;
}

TableOptions sine_options() {
  TableOptions o;
  o.time_column = "when", o.sequence_column = "trip", o.window = 16, o.inputs = {"height"};
  return o;
}

TEST(Tables, BecomeWindowsOfScaledValues) {
  const TempFolder folder;
  write_text(folder / "t.csv", sine_table(200));
  const auto series = read_tables(folder / "t.csv", sine_options());
  const SeriesForm& f = series->form();
  EXPECT_EQ(f.length, 16);
  EXPECT_EQ(f.inputs, (std::vector<std::string>{"height", "height known"}));
  EXPECT_EQ(f.outputs, std::vector<std::string>{"height"});
  EXPECT_EQ(f.feedback, std::vector<int64_t>{0});
  SeriesSample s(f);
  series->fill(SeriesPart::train, 0, s);
  EXPECT_EQ(s.x[2 * 3 + 1], 0) << "the hole is marked";
  EXPECT_EQ(s.x[2 * 3], s.x[2 * 2]) << "and holds the value before it";
  EXPECT_EQ(s.weight[2], 0) << "and is not a target";
  EXPECT_NEAR(series->original(0, s.y[0]), 5 + std::sin(0.3), 1e-4);
  EXPECT_NEAR(s.dt[0], 4.0 / 3, 0.05) << "times are in units of the mean interval";
  double sum = 0, squares = 0, n = 0;
  for (int64_t i = 0; i < series->count(SeriesPart::train); ++i) {
    series->fill(SeriesPart::train, i, s);
    for (size_t t = 0; t < 16; ++t) sum += s.x[2 * t], squares += s.x[2 * t] * s.x[2 * t], n += 1;
  }
  EXPECT_NEAR(sum / n, 0, 0.15);
  EXPECT_NEAR(squares / n, 1, 0.15);
  // The parts do not share rows: of each trip's 100 rows, 75 are for training, 10 for validation, 15 for tests.
  series->fill(SeriesPart::test, 0, s);
  EXPECT_NEAR(series->original(0, s.x[0]), 5 + std::sin(0.3 * 85), 1e-3);
}

TEST(Tables, NewDataIsScaledLikeTheTrainingData) {
  const TempFolder folder;
  write_text(folder / "t.csv", sine_table(200));
  const auto series = read_tables(folder / "t.csv", sine_options());
  write_text(folder / "new.csv", "height,when,trip\n5,0,a\n6,4,a\n105,8,a\n");
  TableOptions o;
  o.fitted = series->fitted(), o.all_test = true;
  const auto fresh = read_tables(folder / "new.csv", o);
  EXPECT_EQ(fresh->form().inputs, series->form().inputs);
  EXPECT_EQ(fresh->count(SeriesPart::train), 0);
  EXPECT_EQ(fresh->count(SeriesPart::test), 1);
  SeriesSample s(fresh->form());
  fresh->fill(SeriesPart::test, 0, s);
  EXPECT_NEAR(series->original(0, s.y[1]), 105, 1e-3);
  EXPECT_NEAR(s.dt[0], 4.0 / 3, 0.05);
  EXPECT_FALSE(series_baselines(*fresh).linear) << "nothing to fit it to";
  o.all_test = false;
  const auto again = read_tables(folder / "t.csv", o);
  EXPECT_EQ(again->count(SeriesPart::test), series->count(SeriesPart::test)) << "the same data has the same parts";
  EXPECT_EQ(again->identity(), series->identity());
}

// A quiet beginning and a loud end: the fit and the errors are of all sequences, and a table too wide for a fit has none.
TEST(Tables, BaselinesCoverThePart) {
  const TempFolder folder;
  std::string text = "v\n";
  for (int i = 0; i < 4000; ++i) text += std::to_string((i > 2000 ? 5 : 0.1) * std::sin(0.9 * i)) + "\n";
  write_text(folder / "t.csv", text);
  const auto series = read_tables(folder / "t.csv", {.window = 16});
  SeriesSample s(series->form());
  double last = 0, n = 0;
  for (int64_t i = 0; i < series->count(SeriesPart::test); ++i) {
    series->fill(SeriesPart::test, i, s);
    for (size_t t = 0; t < s.y.size(); ++t)
      if (s.weight[t] > 0) last += std::pow(double(s.y[t]) - s.x[t], 2), ++n;
  }
  const SeriesBaselines b = series_baselines(*series);
  EXPECT_NEAR(b.last, last / n, 1e-6 * b.last);
  EXPECT_LT(b.linear.value(), 0.1 * b.last) << "two values determine a sine, after the first step";
  EXPECT_NE(series_baselines(*series, SeriesPart::validation).last, b.last);
  std::string head, row;
  for (int i = 0; i < 300; ++i) head += "c" + std::to_string(i) + (i < 299 ? "," : "\n"), row += std::string(i % 7 ? "1" : "2") + (i < 299 ? "," : "\n");
  for (int i = 0; i < 40; ++i) head += row, row[0] = char('1' + i % 3);
  write_text(folder / "wide.csv", head);
  EXPECT_FALSE(series_baselines(*read_tables(folder / "wide.csv", {.window = 4})).linear);
}

TEST(Tables, ClassesOfRowsAndOfSequences) {
  const TempFolder folder;
  write_text(folder / "t.csv", sine_table(200));
  TableOptions o = sine_options();
  o.class_column = "label";
  const auto rows = read_tables(folder / "t.csv", o);
  EXPECT_EQ(rows->form().outputs, (std::vector<std::string>{"low", "high"})) << "the most frequent class first";
  SeriesSample s(rows->form());
  rows->fill(SeriesPart::train, 0, s);
  EXPECT_EQ(s.label[1], 0);
  EXPECT_EQ(s.label[2], 1);
  std::filesystem::create_directory(folder / "set");
  for (int i = 0; i < 12; ++i) write_text(folder / fmt::format("set/{}.csv", i), fmt::format("v,kind\n{0},{1}\n{0},{1}\n{0},{1}\n", i, i % 3 == 0 ? "b" : "a"));
  TableOptions whole;
  whole.class_column = "kind";
  const auto sequences = read_tables(folder / "set", whole);
  EXPECT_EQ(sequences->form().length, 3);
  EXPECT_EQ(sequences->count(SeriesPart::train) + sequences->count(SeriesPart::validation) + sequences->count(SeriesPart::test), 12);
  SeriesSample one(sequences->form());
  sequences->fill(SeriesPart::train, 0, one);
  EXPECT_EQ(std::vector<int64_t>(one.label.begin(), one.label.end() - 1), std::vector<int64_t>({-1, -1}));
  EXPECT_GE(one.label.back(), 0);
  EXPECT_EQ(read_tables(folder / "set/1.csv+" + (folder / "set/3.csv") + "+" + (folder / "set/2.csv"),
                        {.class_column = "kind", .split = "sequence", .validation = 0.34, .test = 0.34})
                ->form()
                .length,
            3);
}

TEST(Tables, MistakesAreExplained) {
  const TempFolder folder;
  auto error = [&](const std::string& text, TableOptions o = {}) {
    write_text(folder / "t.csv", text);
    return std::string(error_of([&] { read_tables(folder / "t.csv", o); }).what());
  };
  EXPECT_TRUE(mentions(error("a,b\nx,y\n"), "no column of numbers"));
  EXPECT_TRUE(mentions(error("a\n1\n2\n3\n"), "too few rows"));
  TableOptions timed;
  timed.time_column = "t";
  EXPECT_TRUE(mentions(error("t,a\n2,1\n1,1\n", timed), "t.csv:3: column 1 (t): '1' is earlier"));
  EXPECT_TRUE(mentions(error("t,a\n,1\n", timed), "t.csv:2: column 1 (t): '' is missing"));
  EXPECT_TRUE(mentions(error("x,a\n1,1\n", timed), "no column 't'"));
  TableOptions named;
  named.sequence_column = "s";
  EXPECT_TRUE(mentions(error("s,a\np,1\nq,1\np,1\n", named), "t.csv:4: column 1 (s): 'p' names a sequence that has ended"));
  TableOptions classes;
  classes.class_column = "k";
  EXPECT_TRUE(mentions(error("k,a\np,1\np,2\np,3\np,3\np,3\np,3\np,3\np,3\np,3\np,3\np,3\np,3\n", classes), "1 class"));
}

TEST(Tables, SurviveRandomDamage) {
  const TempFolder folder;
  const std::string good = sine_table(60);
  std::mt19937 random(7);
  int read = 0;
  for (int i = 0; i < test::rounds(300); ++i) {
    write_text(folder / "t.csv", test::mutated(good, random));
    try {
      const auto series = read_tables(folder / "t.csv", sine_options());
      SeriesSample s(series->form());
      for (const SeriesPart part : {SeriesPart::train, SeriesPart::validation, SeriesPart::test})
        for (int64_t n = 0; n < series->count(part); ++n) {
          series->fill(part, n, s);
          for (const float v : s.x) ASSERT_TRUE(std::isfinite(v));
        }
      ++read;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io) << e.what();
    }
  }
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace ridge
