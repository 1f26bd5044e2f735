// Tables as programs write them, and errors that name file, line and column; random damage never crashes the reader.
#include "data/csv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <tuple>

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
  EXPECT_EQ(rows_of("a|b\n1,5|2\n"), (Table{{"a", "b"}, {"1,5", "2"}}));
  EXPECT_EQ(rows_of("a, all|b|c\n1|2|3\n"), (Table{{"a, all", "b", "c"}, {"1", "2", "3"}}));
  EXPECT_EQ(rows_of("a|low,a|high\n1,2\n"), (Table{{"a|low", "a|high"}, {"1", "2"}})) << "| is part of the names";
  EXPECT_EQ(rows_of("\r\n\r\na;b\r\n1;2\r\n"), (Table{{"a", "b"}, {"1", "2"}}));
  EXPECT_EQ(rows_of("PAR1,PAR2\n1,2\n"), (Table{{"PAR1", "PAR2"}, {"1", "2"}})) << "a Parquet file begins so too";
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
  EXPECT_TRUE(mentions(error("a,b\n1,5,2\n"), "if these are numbers with a decimal comma, separate columns with ; or put the numbers in quotes"));
  EXPECT_FALSE(mentions(error("a,b\n1,5,x\n"), "decimal comma"));
  EXPECT_TRUE(
      mentions(error("# made by a logger\na,b\n1,2\n"), "t.csv:2: 2 fields, but the first line has 1 (the separator is ','); the first line must name"));
  EXPECT_TRUE(mentions(error("PK\x03\x04 and more"), "an Excel workbook, or another zip file; export its sheet as CSV"));
  EXPECT_TRUE(mentions(error("PAR1\x15\x04"), "a Parquet file"));
  EXPECT_TRUE(mentions(error("\x1f\x8b\x08"), "is compressed; unpack it"));
  EXPECT_TRUE(mentions(error("a,b\n" + std::string(70'000, 'x') + ",1\n"), "t.csv:2: field 1 is longer than"));
  const TempFolder folder;
  write_text(folder / "t.csv", "when,temp\n1,2\n2,warm\n");
  CsvReader table(folder / "t.csv");
  table.next(), table.next();
  EXPECT_TRUE(mentions(error_of([&] { table.number(1); }).what(), "t.csv:3: column 2 (temp): 'warm' is not a number"));
  EXPECT_TRUE(mentions(error_of([&] { table.column("tmp"); }).what(), "did you mean 'temp'"));
  EXPECT_EQ(error_of([&] { CsvReader missing(folder / "none.csv"); }).code(), ErrorCode::io);
}

TEST(Csv, ReadsNumbers) {
  constexpr DecimalMark kPoint = DecimalMark::point, kComma = DecimalMark::comma;
  for (const auto& [text, mark, value] : {std::tuple("1.5", kPoint, 1.5),
                                          {" -2e3 ", kPoint, -2000},
                                          {"+7", kPoint, 7},
                                          {".5", kPoint, 0.5},
                                          {"0", kPoint, 0},
                                          {"1,234", kPoint, 1234},
                                          {"-1,234,567.5", kPoint, -1234567.5},
                                          {"1.234", kPoint, 1.234},
                                          {"1,5", kComma, 1.5},
                                          {"1.234,5", kComma, 1234.5},
                                          {"+1.234", kComma, 1234},
                                          {"1,234", kComma, 1.234},
                                          {"1e-3", kComma, 1e-3},
                                          {"1,5e2", kComma, 150},
                                          {",5", kComma, 0.5}}) {
    const TableNumber n = parse_number(text, mark);
    EXPECT_TRUE(n.valid && !n.missing) << text;
    EXPECT_EQ(n.value, value) << text;
  }
  for (const char* text : {"", " ", "NA", "nan", "N/A", "null", "?", "-"}) {
    EXPECT_TRUE(parse_number(text, kPoint).missing) << text;
    EXPECT_EQ(shown_mark(text), MarkShown::missing) << text;
  }
  for (const char* text : {"1,5", "x", "1 2", "inf", "1e39", "0x1f", "++1", "--1", "+-1", "1.2.3", "1,23,456", "12345,678", "1,2e5", ",123"})
    EXPECT_FALSE(parse_number(text, kPoint).valid) << text;
  for (const char* text : {"1.5", "1.2e5", "1,2,3", "1.23.456", "1,234.5", "++1", "31.12.2026"}) EXPECT_FALSE(parse_number(text, kComma).valid) << text;
  for (const auto& [text, shown] : {std::pair("12", MarkShown::nothing),
                                    {"1.5", MarkShown::point},
                                    {"1,5", MarkShown::comma},
                                    {"1.234,5", MarkShown::comma},
                                    {"1,234.5", MarkShown::point},
                                    {"1,234,567", MarkShown::point},
                                    {"1.234.567", MarkShown::comma},
                                    {"-0,123", MarkShown::comma},
                                    {"0.123", MarkShown::point},
                                    {"1234,567", MarkShown::comma},
                                    {"-1,234", MarkShown::open_comma},
                                    {"12.345", MarkShown::open_point},
                                    {"1.5e3", MarkShown::point},
                                    {"1,23,456", MarkShown::not_a_number},
                                    {"2026-12-31", MarkShown::not_a_number},
                                    {"31.12.2026", MarkShown::not_a_number}})
    EXPECT_EQ(shown_mark(text), shown) << text;
}

TEST(Csv, ReadsDates) {
  for (const auto& [text, seconds] : {std::pair("1970-01-02", 86400.0),
                                      {"1970-01-01 01:00", 3600},
                                      {"1970-01-01T00:00:01.5Z", 1.5},
                                      {"1970-01-01T02:00:00+02:00", 0},
                                      {"1970/1/2", 86400},
                                      {"2.1.1970", 86400},
                                      {"02.01.1970 01:00", 90000},
                                      {"31.1.1970 00:00:01", 30 * 86400 + 1},
                                      {"1/31/1970", 30 * 86400},
                                      {"31/1/1970", 30 * 86400},
                                      {"31-01-1970", 30 * 86400},
                                      {"1/1/1970 1:05 PM", 13 * 3600 + 300},
                                      {"1/1/1970 12:05 am", 300},
                                      {"1/1/1970 12:00:30 PM", 12 * 3600 + 30},
                                      {"2024-02-29", 19782 * 86400.0},
                                      {"1970-01-01 24:00", 86400}}) {
    const TableTime t = parse_time(text);
    EXPECT_TRUE(t.valid && !t.open) << text;
    EXPECT_EQ(t.seconds, seconds) << text;
  }
  EXPECT_EQ(parse_time("1/31/2026").shown, DateOrder::month_first);
  EXPECT_EQ(parse_time("31-1-2026").shown, DateOrder::day_first);
  EXPECT_TRUE(parse_time("03/04/2026").open);
  EXPECT_EQ(parse_time("03/04/2026", DateOrder::month_first).seconds, parse_time("2026-03-04").seconds);
  EXPECT_EQ(parse_time("03/04/2026", DateOrder::day_first).seconds, parse_time("2026-04-03").seconds);
  for (const char* text : {"2023-02-29", "1970-13-01", "1970-01-01 25:00", "1970-01-01 24:01", "1970-01-01x", "1.5", "", "12:00", "31.12.26", "31.12/2026",
                           "31/31/2026", "32.1.2026", "1/1/2026 13:00 PM", "1/1/2026 0:10 AM", "2026-12-31 14:05 noon"})
    EXPECT_FALSE(parse_time(text).valid) << text;
}

TEST(Csv, WritesTimesAsTheyWere) {
  auto text = [](TimeFormat f, double time) { return f.text(time); };
  EXPECT_EQ(text({}, 1700000000.25), "1700000000.25");
  EXPECT_EQ(text({}, 0.1 + 0.2), "0.3");
  EXPECT_EQ(text({.dates = true}, parse_time("2026-12-31").seconds + 40'000), "2026-12-31");
  EXPECT_EQ(text({.dates = true, .time_of_day = true}, parse_time("31.12.2026 14:05").seconds), "2026-12-31 14:05:00");
  EXPECT_EQ(text({.dates = true, .time_of_day = true, .zone = true}, parse_time("2026-12-31T23:59:59.7Z").seconds), "2027-01-01 00:00:00Z");
  EXPECT_EQ(text({.dates = true, .time_of_day = true, .fraction = true}, parse_time("1969-12-31 23:59:59.25").seconds), "1969-12-31 23:59:59.250");
}

// A table of a sine at irregular times, with a hole, a constant column and two sequences.
std::string sine_table(int rows) {
  std::string text = "trip,when,height,label\n";
  for (int i = 0; i < rows; ++i)
    text += fmt::format("{},{},{},{}\n", i < rows / 2 ? "one" : "two", 3 * (i % (rows / 2)) + i % 2,
                        i == 3 ? std::string("") : fmt::format("{:.4f}", 5 + std::sin(0.3 * i)), std::sin(0.3 * i) > 0.5 ? "high" : "low");
  return text;
}

std::string notices_of(const Series& series) {
  std::string all;
  for (const std::string& line : series.notices()) all += line + "\n";
  return all;
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
  write_text(folder / "u.csv", sine_table(100));
  EXPECT_EQ(read_tables((folder / "t.csv") + "+" + (folder / "u.csv"), sine_options())->form().name, "t.csv and 1 more");
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

// A step's target is the value that many rows later, its timespan the time until then; the last value is the forecast to beat.
TEST(Tables, ForecastsMayReachFurtherAhead) {
  const TempFolder folder;
  std::string text = "when,height,side\n";
  for (int i = 0; i < 240; ++i) text += fmt::format("{},{},{}\n", i + i / 4, i % 7, i % 5);
  write_text(folder / "t.csv", text);
  TableOptions o{.time_column = "when", .window = 12};
  o.targets = {"height"}, o.horizon = 3, o.split = "time";
  const auto series = read_tables(folder / "t.csv", o);
  EXPECT_TRUE(mentions(series->form().what, "height 3 steps ahead")) << series->form().what;
  EXPECT_FALSE(series->form().feeds_back()) << "a forecast of the third step is not the next input";
  SeriesSample s(series->form());
  for (const SeriesPart part : {SeriesPart::train, SeriesPart::validation, SeriesPart::test})
    for (const int64_t number : {int64_t(0), series->count(part) - 1}) {
      series->fill(part, number, s);
      EXPECT_EQ(s.steps(), 12) << "targets lie beyond the end of a window";
      const std::vector<double> due = series->times(part, number, s);
      for (size_t t = 0; t < 12; ++t) {
        EXPECT_EQ(s.weight[t], 1) << t;
        EXPECT_EQ(s.y[t], t + 3 < 12 ? s.x[2 * (t + 3)] : s.y[t]) << t;
        EXPECT_EQ(s.last[t], s.x[2 * t]) << t;
        const int row = int(due[t]) / 5 * 4 + int(due[t]) % 5;  // of the target; row i is at i + i / 4
        EXPECT_NEAR(s.dt[t], (due[t] - (row - 3 + (row - 3) / 4)) / series->interval(), 1e-5) << t;
        EXPECT_NEAR(series->original(0, s.y[t]), row % 7, 1e-4) << t;
      }
    }
  o.horizon = 200;
  EXPECT_TRUE(mentions(error_of([&] { read_tables(folder / "t.csv", o); }).what(), "too few rows"));
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
  std::string four;
  for (const int i : {1, 3, 2, 6}) four += (four.empty() ? "" : "+") + (folder / fmt::format("set/{}.csv", i));
  EXPECT_EQ(read_tables(four, {.class_column = "kind", .split = "sequence", .validation = 0.25, .test = 0.25})->form().length, 3);
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

// Plausible slips are named as what they are, and what is assumed is said.
TEST(Tables, SayWhatTheyAssume) {
  const TempFolder folder;
  auto error = [&](const std::string& text) {
    write_text(folder / "t.csv", text);
    return std::string(error_of([&] { read_tables(folder / "t.csv", {}); }).what());
  };
  EXPECT_TRUE(mentions(error("a,b\n"), "has no rows below its line of column names"));
  EXPECT_TRUE(mentions(error("a b\n1 2\n3 4\n"), "its only column is 'a b': columns are separated by , ; | or a tab"));
  std::string rows, classes = "a,k\n";
  for (int i = 0; i < 40; ++i) rows += fmt::format("{},{}\n", i % 7, i % 5), classes += fmt::format("{},{}\n", i % 7, 0.37 * i);
  write_text(folder / "t.csv", rows), write_text(folder / "k.csv", classes);
  EXPECT_TRUE(mentions(notices_of(*read_tables(folder / "t.csv", {.window = 4})), "t.csv has only numbers, so it is data, and columns are named 1, 2"));
  EXPECT_TRUE(mentions(notices_of(*read_tables(folder / "t.csv", {.window = 400})), "window=400 is more than the 30 rows that follow each other in a part of"));
  EXPECT_EQ(notices_of(*read_tables(folder / "k.csv", {.window = 4})), "");
  const auto labelled = read_tables(folder / "k.csv", {.class_column = "k", .window = 4});
  EXPECT_TRUE(mentions(notices_of(*labelled), "column 'k' has 40 classes in 40 rows, so most occur only once")) << notices_of(*labelled);
  std::filesystem::create_directories(folder / "set");
  write_text(folder / "set/a.csv", "a,b\n1,2\n3,4\n"), write_text(folder / "set/b.csv", "a,c\n1,2\n3,4\n");
  const std::string differ = error_of([&] { read_tables(folder / "set", {}); }).what();
  EXPECT_TRUE(mentions(differ, "the tables differ: ") && mentions(differ, "a.csv has no column 'c', which another one has")) << differ;
}

// A list of columns that repeats itself is a slip, and an input that is the answer makes every score worthless.
TEST(Tables, ListsOfColumnsAreChecked) {
  const TempFolder folder;
  std::string text = "a,b,k\n";
  for (int i = 0; i < 80; ++i) text += fmt::format("{},{},{}\n", i % 5, i % 3, i % 2);
  write_text(folder / "t.csv", text);
  auto refusal = [&](const TableOptions& o) {
    const Error e = error_of([&] { read_tables(folder / "t.csv", o); });
    EXPECT_EQ(e.code(), ErrorCode::usage) << e.what();
    return std::string(e.what());
  };
  EXPECT_TRUE(mentions(refusal({.inputs = {"a", "b", "a"}}), "inputs=a,b,a names column 'a' twice; name each column once"));
  EXPECT_TRUE(mentions(refusal({.targets = {"b", "b"}}), "targets=b,b names column 'b' twice"));
  EXPECT_TRUE(mentions(refusal({.inputs = {"a", "k"}, .class_column = "k"}), "column 'k' is among the inputs and is the class to predict"));
  EXPECT_EQ(read_tables(folder / "t.csv", {.inputs = {"a", "b"}, .targets = {"b"}, .window = 4})->form().inputs.size(), 2u);
}

// A comma in the name of a column, as spreadsheets have it before a unit.
TEST(Tables, ListsNameColumnsWithCommas) {
  const TempFolder folder;
  std::string text = "\"wind, m/s\",\"wind, gusts, m/s\",sun\n";
  for (int i = 0; i < 80; ++i) text += fmt::format("{},{},{}\n", i % 5, i % 3, i % 2);
  write_text(folder / "t.csv", text);
  using Names = std::vector<std::string>;
  const auto forms = read_tables(folder / "t.csv", {.inputs = {"wind", "m/s", "sun", "wind", "gusts", "m/s"}, .targets = {"wind, gusts, m/s"}, .window = 4});
  EXPECT_EQ(forms->form().inputs, (Names{"wind, m/s", "sun", "wind, gusts, m/s"}));
  EXPECT_EQ(forms->form().outputs, Names{"wind, gusts, m/s"});
  const std::string twice = error_of([&] { read_tables(folder / "t.csv", {.targets = {"sun", "wind", "m/s", "wind", "m/s"}}); }).what();
  EXPECT_TRUE(mentions(twice, "names column 'wind, m/s' twice")) << twice;
  EXPECT_TRUE(mentions(error_of([&] { read_tables(folder / "t.csv", {.targets = {"wind", "sun"}}); }).what(), "has no column 'wind'"));
}

TEST(Tables, ColumnsShowTheirDecimalMark) {
  const TempFolder folder;
  // The values of the first column, from a table with two columns and the given words.
  auto values = [&](const std::vector<std::string>& a, const std::vector<std::string>& b, const std::string& decimal = "auto", char separator = ';') {
    std::string text = fmt::format("a{}b\n", separator);
    for (int i = 0; i < 24; ++i) text += fmt::format("{}{}{}\n", a[size_t(i) % a.size()], separator, b[size_t(i) % b.size()]);
    write_text(folder / "t.csv", text);
    const auto series = read_tables(folder / "t.csv", {.window = 4, .decimal = decimal});
    SeriesSample s(series->form());
    series->fill(SeriesPart::train, 0, s);
    std::vector<double> out;
    for (size_t i = 0; i < a.size(); ++i) out.push_back(std::round(1e4 * series->original(0, s.x[2 * i])) / 1e4);
    return std::pair(out, notices_of(*series));
  };
  using Values = std::vector<double>;
  EXPECT_EQ(values({"1.234,5", "2,5"}, {"1"}).first, (Values{1234.5, 2.5}));
  EXPECT_EQ(values({"1,234.5", "2,345"}, {"1"}, "auto", '\t').first, (Values{1234.5, 2345}));
  EXPECT_EQ(values({"1,234", "0,5"}, {"1"}).first, (Values{1.234, 0.5})) << "another value of the column decides";
  EXPECT_EQ(values({"1.234", "2.345"}, {"1"}).first, (Values{1.234, 2.345})) << "a point is decimal unless something speaks against it";
  EXPECT_EQ(values({"1,234", "2,345"}, {"1"}, "comma").first, (Values{1.234, 2.345}));
  EXPECT_EQ(values({"1,234", "2,345"}, {"1"}, "point").first, (Values{1234, 2345}));
  const auto [by_others, notices] = values({"1.234", "2.345"}, {"0,5"});
  EXPECT_EQ(by_others, (Values{1234, 2345})) << "other columns decide";
  EXPECT_TRUE(mentions(notices, "t.csv:2: column 1 (a): '1.234' is read as 1234, since '0,5' (line 2) has a decimal comma")) << notices;
  auto error = [&](const std::vector<std::string>& a, const std::vector<std::string>& b, const std::string& decimal = "auto") {
    return std::string(error_of([&] { values(a, b, decimal); }).what());
  };
  EXPECT_TRUE(mentions(error({"1,234", "2,345"}, {"1"}), "t.csv:2: column 1 (a): '1,234' may be 1.234 or 1234"));
  EXPECT_TRUE(mentions(error({"1,234", "2,345"}, {"1"}), "set decimal=comma or decimal=point"));
  EXPECT_TRUE(mentions(error({"1.5", "2,5"}, {"1"}), "t.csv:3: column 1 (a): '2,5' has a decimal comma, but '1.5' in line 2 has a decimal point"));
  EXPECT_TRUE(mentions(error({"1.5", "2"}, {"1"}, "comma"), "t.csv:2: column 1 (a): '1.5' is not a number with a decimal comma"));
  EXPECT_EQ(error_of([&] { values({"1,234"}, {"1"}); }).code(), ErrorCode::io);
}

// A column that is text is left out with a notice; one bad value among numbers is an error, however far down it is.
TEST(Tables, NoColumnIsDroppedInSilence) {
  const TempFolder folder;
  auto table = [&](int bad_rows, const std::string& bad) {
    std::string text = "a,b,city,when,nothing\n";
    for (int i = 0; i < 2000; ++i)
      text += fmt::format("{},{},x{},2026-01-{:02},\n", i % 7, i >= 1500 && i < 1500 + bad_rows ? bad : std::to_string(i % 5), i, i % 28 + 1);
    write_text(folder / "t.csv", text);
  };
  table(0, "");
  const auto good = read_tables(folder / "t.csv", {});
  EXPECT_EQ(good->form().inputs, (std::vector<std::string>{"a", "b"}));
  const std::string notices = notices_of(*good);
  EXPECT_TRUE(mentions(notices, "city ('x0' in line 2)") && mentions(notices, "nothing (empty)") && mentions(notices, "time_column=when")) << notices;
  table(1, "warm");
  const std::string message = error_of([&] { read_tables(folder / "t.csv", {}); }).what();
  EXPECT_TRUE(mentions(message, "t.csv:1502: column 2 (b): 'warm' is not a number, but 1999 of the column's 2000 values are")) << message;
  EXPECT_TRUE(mentions(error_of([&] { read_tables(folder / "t.csv", {.inputs = {"b"}}); }).what(), "t.csv:1502: column 2 (b): 'warm'"));
  EXPECT_TRUE(mentions(error_of([&] { read_tables(folder / "t.csv", {.inputs = {"a"}, .targets = {"b"}}); }).what(), "t.csv:1502"));
  EXPECT_EQ(read_tables(folder / "t.csv", {.inputs = {"a"}})->form().inputs, std::vector<std::string>{"a"}) << "a column that is not used may be anything";
  table(1, "");
  EXPECT_EQ(read_tables(folder / "t.csv", {})->form().inputs, (std::vector<std::string>{"a", "b", "b known"})) << "missing values are allowed";
}

TEST(Tables, DatesComeBackAsDates) {
  const TempFolder folder;
  auto series = [&](const std::function<std::string(int)>& when, const std::string& order = "auto") {
    std::string text = "t;a\n";
    for (int i = 0; i < 40; ++i) text += fmt::format("{};{}\n", when(i), i % 3);
    write_text(folder / "t.csv", text);
    TableOptions o;
    o.time_column = "t", o.window = 4, o.date_order = order;
    return read_tables(folder / "t.csv", o);
  };
  auto first = [](const Series& s, int64_t step = 0) {
    SeriesSample sample(s.form());
    s.fill(SeriesPart::train, 0, sample);
    return s.time_text(s.times(SeriesPart::train, 0, sample)[size_t(step)]);
  };
  EXPECT_EQ(first(*series([](int i) { return fmt::format("{}.12.2026 14:05", i / 2 + 1); })), "2026-12-01 14:05:00");
  EXPECT_EQ(first(*series([](int i) { return fmt::format("{}.12.2026", i / 2 + 1); }), 1), "2026-12-02") << "the first target is row 2, the second row 3";
  EXPECT_EQ(first(*series([](int i) { return fmt::format("12/{}/2026", i / 2 + 1); })), "2026-12-01");
  EXPECT_EQ(first(*series([](int i) { return fmt::format("2026-12-{:02}T00:00:00Z", i / 2 + 1); }), 1), "2026-12-02 00:00:00Z");
  EXPECT_EQ(first(*series([](int i) { return fmt::format("{}", 1700000000 + 60 * i); })), "1700000060") << "seconds stay seconds";
  EXPECT_EQ(first(*series([](int i) { return fmt::format("{},5", 46000 + i); })), "46001.5") << "a spreadsheet's serial numbers too";
  EXPECT_EQ(first(*series([](int i) { return fmt::format("0{}/04/2026", i / 10 + 1); }, "mdy")), "2026-01-04");
  EXPECT_EQ(first(*series([](int i) { return fmt::format("0{}/04/2026", i / 10 + 1); }, "dmy")), "2026-04-01");
  auto error = [&](const std::function<std::string(int)>& when, const std::string& order = "auto") {
    return std::string(error_of([&] { series(when, order); }).what());
  };
  EXPECT_TRUE(
      mentions(error([](int i) { return fmt::format("0{}/04/2026", i / 10 + 1); }), "t.csv:2: column 1 (t): '01/04/2026' may have the day or the month first"));
  EXPECT_TRUE(mentions(error([](int i) { return i < 3 ? "13/04/2026" : "04/15/2026"; }),
                       "t.csv:5: column 1 (t): '04/15/2026' has the month first, but '13/04/2026' in line 2"));
  EXPECT_TRUE(mentions(error([](int) { return "13/04/2026"; }, "mdy"), "contradicts date_order=mdy"));
  EXPECT_TRUE(
      mentions(error([](int i) { return i == 5 ? "17" : "2026-01-01"; }), "t.csv:7: column 1 (t): '17' is a number, but '2026-01-01' in line 2 is a date"));
  EXPECT_TRUE(mentions(error([](int i) { return i == 5 ? "2026-01-01" : "2026-01-01T00:00Z"; }), "t.csv:7: column 1 (t): '2026-01-01' has no time zone"));
  EXPECT_TRUE(
      mentions(error([](int i) { return i == 5 ? "31.12.26" : "2026-01-01"; }), "t.csv:7: column 1 (t): '31.12.26' is neither a number nor a date such as"));
  // New data is read like the data that the model was trained on.
  const std::string fitted = series([](int i) { return fmt::format("12/{}/2026", i / 2 + 1); })->fitted();
  write_text(folder / "new.csv", "t;a\n01/02/2026;1\n01/03/2026;1\n01/04/2026;1\n");
  const auto fresh = read_tables(folder / "new.csv", {.fitted = fitted, .all_test = true});
  SeriesSample s(fresh->form());
  EXPECT_EQ(fresh->time_text(fresh->times(SeriesPart::test, 0, s)[0]), "2026-01-03");
  EXPECT_EQ(fresh->time_text(fresh->times(SeriesPart::test, 0, s)[1] + 2 * fresh->interval()), "2026-01-05")
      << "twice the mean interval, a little less than half a day, in whole days";
  write_text(folder / "new.csv", "t;a\n1;1\n2;1\n3;1\n");
  EXPECT_TRUE(
      mentions(error_of([&] { read_tables(folder / "new.csv", {.fitted = fitted, .all_test = true}); }).what(), "new.csv:2: column 1 (t): '1' is not a date"));
}

// A sequence that is seen in training tells its class, so its end must not be a test.
TEST(Tables, SequencesWithOneClassAreKeptApart) {
  const TempFolder folder;
  auto table = [&](int sequences) {
    std::string text = "trip,v,kind\n";
    for (int i = 0; i < 40 * sequences; ++i) text += fmt::format("{},{},{}\n", i / 40, i / 40, i % 40 > 0 ? "" : i / 40 % 2 ? "bus" : "car");
    write_text(folder / "t.csv", text);
  };
  TableOptions o;
  o.class_column = "kind", o.sequence_column = "trip", o.inputs = {"v"}, o.window = 8;
  for (const int n : {4, 5, 7, 9, 12}) {
    SCOPED_TRACE(n);
    table(n);
    const auto series = read_tables(folder / "t.csv", o);
    SeriesSample s(series->form());
    std::map<std::string, std::set<int>> trips, classes;  // by part
    for (const SeriesPart part : {SeriesPart::train, SeriesPart::validation, SeriesPart::test})
      for (int64_t i = 0; i < series->count(part); ++i) {
        series->fill(part, i, s);
        trips[std::to_string(int(part))].insert(int(std::lround(1e3 * s.x[0]))), classes[std::to_string(int(part))].insert(int(s.label.back()));
        EXPECT_GE(s.label.back(), 0) << "the class is known although one row says it";
      }
    EXPECT_EQ(trips.size(), 3u);
    EXPECT_EQ(trips["0"].size() + trips["1"].size() + trips["2"].size(), size_t(n)) << "no trip is in two parts";
    EXPECT_EQ(classes["0"].size(), 2u) << "both classes are trained";
    const auto again = read_tables(folder / "t.csv", {.fitted = series->fitted()});
    EXPECT_EQ(again->identity(), series->identity());
    EXPECT_EQ(again->count(SeriesPart::test), series->count(SeriesPart::test));
  }
  table(2);
  EXPECT_TRUE(mentions(error_of([&] { read_tables(folder / "t.csv", o); }).what(), "at least 3 are needed, and there are 2"));
  table(3);
  EXPECT_TRUE(
      mentions(error_of([&] { read_tables(folder / "t.csv", o); }).what(), "the training part of 1 sequence has 1 class of column 'kind', of 2 in all"));
  table(6);
  o.split = "time";
  const Error refused = error_of([&] { read_tables(folder / "t.csv", o); });
  EXPECT_EQ(refused.code(), ErrorCode::usage);
  EXPECT_TRUE(mentions(refused.what(), "use split=sequence"));
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
