// A user's tables as sequences: columns by name, irregular times, missing values, windows, and a scale that is derived from the training part only.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <unordered_set>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "config/words.h"
#include "data/csv.h"
#include "data/find_source.h"
#include "data/permutation.h"
#include "data/series.h"
#include "data/table_survey.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

// A column that a list names twice would count twice in the model, and nobody asks for that.
void refuse_twice(const char* key, const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i)
    if (std::find(names.begin(), names.begin() + int64_t(i), names[i]) != names.begin() + int64_t(i))
      fail(ErrorCode::usage, "[data] {}={} names column {} twice; name each column once", key, ridge::cut(config::join(names, ","), 100),
           config::shown(names[i]));
}

// A comma in a list of columns separates names or is part of one, as in "temperature, °C": parts that together name a column are joined.
std::vector<std::string> joined_names(const std::vector<std::string>& names, const std::vector<std::string>& columns) {
  auto plain = [](std::string_view name) {  // blanks around commas do not count: a list is read without them
    std::vector<std::string> parts;
    for (const std::string_view part : config::split(name, ',')) parts.emplace_back(config::trim(part));
    return config::join(parts, ",");
  };
  std::vector<std::string> joined;
  for (size_t first = 0; first < names.size();) {
    std::string all, taken = names[first];
    size_t next = first + 1;
    for (size_t last = first; last < names.size(); ++last) {
      all += (last > first ? "," : "") + plain(names[last]);
      const auto column = last == first ? columns.end() : std::find_if(columns.begin(), columns.end(), [&](const std::string& c) { return plain(c) == all; });
      if (column != columns.end()) taken = *column, next = last + 1;
    }
    joined.push_back(taken), first = next;
  }
  return joined;
}

// Files and folders that a source names. A + may also be a part of a name.
std::vector<std::string> places_of(const std::string& source) {
  std::error_code ignored;
  if (fs::exists(source, ignored)) return {source};
  std::vector<std::string> places;
  for (const std::string_view part : config::split(source, '+')) places.push_back(find_source(std::string(part)));
  return places;
}

std::vector<std::string> tables_in(const std::string& source) {
  std::vector<std::string> files;
  for (const std::string& place : places_of(source)) {
    if (!fs::is_directory(place)) {
      files.push_back(place);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : fs::directory_iterator(place))
      if (const std::string end = lower_case(entry.path().extension().string()); entry.is_regular_file() && (end == ".csv" || end == ".tsv" || end == ".txt"))
        inside.push_back(entry.path().string());
    if (inside.empty()) fail(ErrorCode::io, "[data] {} contains no table (*.csv, *.tsv, *.txt)", place);
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  if (files.empty()) fail(ErrorCode::usage, "[data] no table is named");
  return files;
}

class TableSeries final : public Series {
 public:
  TableSeries(const std::string& source, TableOptions options) : o_(std::move(options)) {
    form_.name = fs::path(source).filename().string();
    if (form_.name.empty()) form_.name = source;
    known_as_ = form_.name;
    if (!o_.fitted.empty()) take_fitted();
    const std::vector<std::string> files = tables_in(source);
    if (files.size() > 1 && !fs::is_directory(source)) form_.name = fmt::format("{} and {} more", fs::path(files[0]).filename().string(), files.size() - 1);
    survey(files);
    for (const std::string& file : files) read(file);
    end_sequence();
    if (rows() < 2) fail(ErrorCode::io, "[data] {} has {}; at least 2 are needed", source, counted(rows(), "row"));
    if (!o_.class_column.empty()) find_sequence_classes();
    const bool fitted = !o_.fitted.empty();
    if (fitted) scale();
    cut();
    if (!fitted) fit(), scale();
    describe();
  }

  int64_t count(SeriesPart part) const override { return int64_t(windows_[size_t(part)].size()); }

  void fill(SeriesPart part, int64_t number, SeriesSample& s) const override {
    s.clear();
    const auto [start, end] = windows_[size_t(part)][size_t(number)];
    const int64_t steps = std::min(o_.window, end - start);
    const size_t inputs = form_.inputs.size(), outputs = form_.outputs.size();
    for (int64_t t = 0; t < steps; ++t) {
      const auto row = size_t(start + t), ahead = size_t(start + t + o_.horizon);
      const bool has_target = start + t + o_.horizon < end;
      float* x = s.x.data() + size_t(t) * inputs;
      for (const size_t c : inputs_) *x++ = columns_[c].values[row];
      for (const size_t c : masked_) *x++ = columns_[c].known.empty() || columns_[c].known[row] ? 1.0f : 0.0f;
      s.dt[size_t(t)] = form_.classes ? (t > 0 ? span(row - 1, row) : 1.0f) : span(row, has_target ? ahead : row);
      if (form_.classes) {
        const bool counts = !class_at_end_ || t + 1 == steps;
        s.label[size_t(t)] = counts ? labels_[row] : -1;
        s.last[size_t(t)] = !class_at_end_ && t > 0 ? float(std::max(0, labels_[row - 1])) : 0.0f;  // else the most frequent class
        continue;
      }
      for (size_t o = 0; o < outputs; ++o) {
        const Column& c = columns_[targets_[o]];
        const size_t at = size_t(t) * outputs + o;
        s.last[at] = c.values[row];
        if (!has_target || (!c.known.empty() && !c.known[ahead])) continue;
        s.y[at] = c.values[ahead], s.weight[at] = 1;
      }
    }
  }

  std::string identity() const override { return fmt::format("{} ({:016x})", known_as_, hash_); }
  double original(int64_t output, double value) const override {
    if (form_.classes) return value;
    const Column& c = columns_[targets_[size_t(output)]];
    const double original = c.mean + c.deviation * value;
    return std::abs(original) < 1e-6 * c.deviation ? 0 : original;  // values are kept in single precision, and a 0 should come back as 0
  }

  // Without a column of times, these are numbers of rows within a sequence, from 1.
  std::vector<double> times(SeriesPart part, int64_t number, const SeriesSample&) const override {
    const auto [start, end] = windows_[size_t(part)][size_t(number)];
    int64_t first = 0;  // row of the sequence
    for (const Rows& s : sequences_)
      if (s.first <= start) first = s.first;
    std::vector<double> out;
    for (int64_t t = 0; t < form_.length; ++t) {
      const int64_t row = start + t + (form_.classes ? 0 : o_.horizon);
      out.push_back(row >= end ? (out.empty() ? 0 : out.back()) + interval_ : times_.empty() ? double(row - first + 1) : times_[size_t(row)]);
    }
    return out;
  }
  double interval() const override { return interval_; }
  std::string time_text(double time) const override { return format_.text(time); }

  std::string fitted() const override {
    nlohmann::ordered_json j;
    j["inputs"] = o_.inputs, j["targets"] = o_.targets, j["time_column"] = o_.time_column, j["sequence_column"] = o_.sequence_column;
    j["class_column"] = o_.class_column, j["classes"] = classes_, j["class_at_end"] = class_at_end_;
    j["window"] = o_.window, j["stride"] = o_.stride, j["horizon"] = o_.horizon, j["interval"] = interval_;
    j["split"] = o_.split, j["validation"] = o_.validation, j["test"] = o_.test;
    j["times"] = {{"dates", format_.dates}, {"decimal", std::string(1, char(time_mark_))}};
    if (date_order_) j["times"]["day_first"] = *date_order_ == DateOrder::day_first;
    for (const Column& c : columns_) j["columns"][c.name] = {{"mean", c.mean}, {"deviation", c.deviation}, {"decimal", std::string(1, char(c.mark))}};
    j["masked"] = nlohmann::json::array();
    for (const size_t c : masked_) j["masked"].push_back(columns_[c].name);
    return j.dump();
  }

 private:
  struct Column {
    std::string name;
    std::vector<double> raw = {};     // until scaled
    std::vector<float> values = {};   // scaled; a missing one is the one before it in its sequence
    std::vector<uint8_t> known = {};  // empty: all are
    double mean = 0, deviation = 1;
    DecimalMark mark = DecimalMark::point;
  };
  using Rows = std::pair<int64_t, int64_t>;  // first, and after the last

  int64_t rows() const { return columns_.empty() ? 0 : int64_t(columns_[0].raw.size()); }
  float span(size_t from, size_t to) const { return times_.empty() ? float(to - from) : float((times_[to] - times_[from]) / interval_); }

  static DecimalMark mark_of(const nlohmann::json& j) { return j.value("decimal", ".") == "," ? DecimalMark::comma : DecimalMark::point; }

  // Everything that new data must share with the data that a model was trained on.
  void take_fitted() try {
    const nlohmann::json j = nlohmann::json::parse(o_.fitted);
    for (auto [key, text] : {std::pair("time_column", &o_.time_column), {"sequence_column", &o_.sequence_column}, {"class_column", &o_.class_column}})
      *text = j.at(key);
    o_.inputs = j.at("inputs").get<std::vector<std::string>>(), o_.targets = j.at("targets").get<std::vector<std::string>>();
    o_.window = j.at("window"), o_.stride = j.at("stride"), o_.horizon = j.at("horizon");
    o_.split = j.at("split"), o_.validation = j.at("validation"), o_.test = j.at("test");
    interval_ = j.at("interval"), class_at_end_ = j.at("class_at_end"), classes_ = j.at("classes").get<std::vector<std::string>>();
    choose_columns();
    for (Column& c : columns_) {
      const nlohmann::json& known = j.at("columns").at(c.name);
      c.mean = known.at("mean"), c.deviation = known.at("deviation"), c.mark = mark_of(known);
    }
    if (const auto times = j.find("times"); times != j.end()) {  // earlier versions did not store it
      fitted_dates_ = times->at("dates").get<bool>(), time_mark_ = mark_of(*times);
      if (times->contains("day_first")) date_order_ = times->at("day_first").get<bool>() ? DateOrder::day_first : DateOrder::month_first;
    }
    for (const auto& name : j.at("masked")) masked_.push_back(column_of(name));
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorCode::io, "[data] the description of the model's data is damaged: {}", e.what());
  }

  size_t column_of(const std::string& name) {
    size_t at = 0;
    while (at < columns_.size() && columns_[at].name != name) ++at;
    if (at == columns_.size()) columns_.emplace_back().name = name;
    return at;
  }

  void choose_columns() {
    for (const std::string& name : o_.inputs) inputs_.push_back(column_of(name));
    if (!o_.class_column.empty()) return;
    for (const std::string& name : o_.targets) targets_.push_back(column_of(name));
  }

  // Which columns are used, and how their numbers and times are written.
  void survey(const std::vector<std::string>& files) {
    const bool fresh = o_.fitted.empty();
    if (fresh && !(o_.inputs.empty() && o_.targets.empty())) {
      const std::vector<std::string> columns = CsvReader(files[0]).names();
      o_.inputs = joined_names(o_.inputs, columns), o_.targets = joined_names(o_.targets, columns);
      refuse_twice("inputs", o_.inputs), refuse_twice("targets", o_.targets);
    }
    if (fresh && !o_.class_column.empty() && std::find(o_.inputs.begin(), o_.inputs.end(), o_.class_column) != o_.inputs.end())
      fail(ErrorCode::usage, "[data] column {} is among the inputs and is the class to predict, so the model would see its answer; leave it out of inputs",
           config::shown(o_.class_column));
    std::vector<std::string> used, reserved = {o_.time_column, o_.sequence_column, o_.class_column};
    if (!o_.inputs.empty()) {
      used = o_.inputs, used.push_back(o_.time_column);
      used.insert(used.end(), o_.targets.begin(), o_.targets.end());
    }
    const TableSurvey survey(files, used, o_.time_column);
    if (o_.inputs.empty()) o_.inputs = survey.numbers(reserved, notices_);
    if (survey.rows() == 0) fail(ErrorCode::io, "[data] {} has no rows below its line of column names", files[0]);
    if (o_.inputs.empty())
      fail(ErrorCode::io, "[data] {} has no column of numbers; {}", files[0],
           survey.columns().size() == 1 ? fmt::format("its only column is {}: columns are separated by , ; | or a tab", config::shown(survey.columns()[0].name))
                                        : "name some with inputs=A,B");
    if (fresh && !survey.headless().empty())
      notices_.push_back(fmt::format("the first line of {} has only numbers, so it is data, and columns are named 1, 2, …", survey.headless()));
    several_ = fresh && used.empty() && files.size() > 1;
    if (o_.targets.empty()) o_.targets = o_.inputs;
    if (fresh) choose_columns();
    const auto set = o_.decimal == "auto" ? std::nullopt : std::optional(o_.decimal == "comma" ? DecimalMark::comma : DecimalMark::point);
    auto mark = [&](const std::string& name, DecimalMark earlier) { return survey.mark(name, set, fresh ? std::nullopt : std::optional(earlier), notices_); };
    for (Column& c : columns_) c.mark = mark(c.name, c.mark);
    if (o_.time_column.empty()) return;
    const ColumnSurvey& times = survey.column(o_.time_column);
    const auto order = o_.date_order == "auto" ? std::nullopt : std::optional(o_.date_order == "dmy" ? DateOrder::day_first : DateOrder::month_first);
    date_order_ = survey.order(o_.time_column, order, fresh ? std::nullopt : date_order_);
    format_ = times.format;
    if (!format_.dates) time_mark_ = mark(o_.time_column, time_mark_);
    if (fitted_dates_ && *fitted_dates_ != format_.dates && times.numbers + times.others > 0)
      (format_.dates          ? times.date
       : times.number.found() ? times.number
                              : times.other)
          .reject(fmt::format("is not a {}; the model was trained with {} in this column", *fitted_dates_ ? "date" : "number",
                              *fitted_dates_ ? "dates" : "numbers"));
  }

  void read(const std::string& file) {
    end_sequence();
    CsvReader table(file);
    std::vector<size_t> from;
    for (const Column& c : columns_) {
      if (several_ && std::find(table.names().begin(), table.names().end(), c.name) == table.names().end())
        fail(ErrorCode::io, "[data] the tables differ: {} has no column {}, which another one has; name columns of all with inputs=A,B, or leave tables out",
             file, config::shown(c.name));
      from.push_back(table.column(c.name));
    }
    auto optional_column = [&](const std::string& name) { return name.empty() ? std::string::npos : table.column(name); };
    const size_t time = optional_column(o_.time_column), sequence = optional_column(o_.sequence_column), label = optional_column(o_.class_column);
    std::string current;
    seen_.clear();  // files may number their sequences alike
    while (table.next()) {
      if (sequence != std::string::npos && (table.field(sequence) != current || begun_ == rows())) {
        end_sequence();
        current = table.field(sequence);
        if (!seen_.insert(XXH3_64bits(current.data(), current.size())).second)
          table.reject(sequence, "names a sequence that has ended before; sort the rows by it");
      }
      if (time != std::string::npos) {
        const std::optional<double> now = time_in(table, time);
        if (!now) table.reject(time, "is missing, but every row needs a time");
        if (begun_ < rows() && *now < times_.back())
          table.reject(time, fmt::format("is earlier than the row before it in the sequence; sort the rows, or name the sequences with sequence_column"));
        times_.push_back(*now);
      }
      if (label != std::string::npos) labels_.push_back(class_of(table, label));
      for (size_t c = 0; c < columns_.size(); ++c) columns_[c].raw.push_back(table.number(from[c], columns_[c].mark).value_or(kMissing));
    }
  }

  std::optional<double> time_in(const CsvReader& table, size_t column) const {
    if (const TableTime time = parse_time(table.field(column), date_order_); time.valid) return time.seconds;
    if (shown_mark(table.field(column)) == MarkShown::not_a_number)
      table.reject(column, "is neither a number nor a date such as 2026-12-31 14:05:00, 31.12.2026 14:05 or 12/31/2026 2:05 PM");
    return table.number(column, time_mark_);
  }

  int32_t class_of(const CsvReader& table, size_t column) {
    const std::string& text = table.field(column);
    if (text.empty()) return -1;
    const auto known = std::find(classes_.begin(), classes_.end(), text);
    if (known != classes_.end()) return int32_t(known - classes_.begin());
    constexpr size_t kMost = 1000;
    if (!o_.fitted.empty()) table.reject(column, fmt::format("is not a class that the model knows: {}", ridge::cut(config::join(classes_, ", "), 200)));
    if (classes_.size() >= kMost) table.reject(column, fmt::format("would be class {}; is this a column of classes?", kMost + 1));
    classes_.push_back(text);
    return int32_t(classes_.size() - 1);
  }

  void end_sequence() {
    if (rows() > begun_) sequences_.push_back({begun_, rows()});
    begun_ = rows();
  }

  // If no sequence has two classes, a sequence has a class as a whole, whichever of its rows says so.
  void find_sequence_classes() {
    std::vector<int32_t> classes;  // the last one of each sequence
    bool changes = false;
    for (const auto& [first, end] : sequences_) {
      classes.push_back(-1);
      for (int64_t r = first; r < end; ++r) {
        const int32_t label = labels_[size_t(r)];
        if (label < 0) continue;
        changes |= classes.back() >= 0 && classes.back() != label;
        classes.back() = label;
      }
    }
    if (o_.fitted.empty()) class_at_end_ = !changes;
    if (!class_at_end_) return;
    for (size_t i = 0; i < sequences_.size(); ++i) std::fill(labels_.begin() + sequences_[i].first, labels_.begin() + sequences_[i].second, classes[i]);
  }

  // Which sequences are for training, validation and tests: a permutation, and at least one for each. If a sequence has a class, one of each class is for
  // training where that is possible.
  std::vector<SeriesPart> parts_of_sequences() const {
    constexpr uint32_t kTries = 64;
    const auto n = int64_t(sequences_.size());
    const double shares[] = {1 - o_.validation - o_.test, 1 - o_.test};
    auto below = [&](double share) {
      int64_t count = 0;
      while (count < n && (double(count) + 0.5) / double(n) < share) ++count;
      return count;
    };
    const int64_t tests = std::min(below(shares[1]), n - 1), validation = std::min(below(shares[0]), tests - 1);
    std::vector<SeriesPart> best;
    size_t most = 0;
    for (uint32_t attempt = 0; attempt < (class_at_end_ ? kTries : 1) && most < classes_.size() + 1; ++attempt) {
      std::vector<SeriesPart> parts;
      std::unordered_set<int32_t> trained;
      for (int64_t i = 0; i < n; ++i) {
        const auto place = int64_t(permuted(uint64_t(i), uint64_t(n), RandomKey{1, attempt, 0x5e9}));
        parts.push_back(place < validation ? SeriesPart::train : place < tests ? SeriesPart::validation : SeriesPart::test);
        if (class_at_end_ && place < validation && labels_[size_t(sequences_[size_t(i)].first)] >= 0)
          trained.insert(labels_[size_t(sequences_[size_t(i)].first)]);
      }
      if (trained.size() + 1 > most) most = trained.size() + 1, best = parts;
    }
    return best;
  }

  // Which rows are for training, validation and tests; then windows within each of these.
  void cut() {
    const auto n = int64_t(sequences_.size());
    if (o_.all_test && o_.trained_on == checksum_in(identity())) {
      o_.all_test = false;
      notices_.push_back(fmt::format("{} is the table that the model was trained on: it is divided as in training", form_.name));
    }
    if (!o_.all_test && class_at_end_ && classes_.size() > 1) {  // the rest of a sequence that was seen in training has the answer that was seen
      if (o_.split == "time")
        fail(ErrorCode::usage,
             "[data] split=time would put parts of the same sequence into training and test, and {} is the same in a whole sequence, so the answers would be "
             "known; use split=sequence",
             config::shown(o_.class_column));
      if (n < 3)
        fail(ErrorCode::io,
             "[data] {} is the same in a whole sequence, so whole sequences are kept for validation and tests: at least 3 are needed, and there are {}",
             config::shown(o_.class_column), n);
      o_.split = "sequence";
    }
    const bool apart = o_.split == "sequence" || (o_.split == "auto" && n >= 10);
    if (o_.split == "sequence" && n < 3 && !o_.all_test)
      fail(ErrorCode::usage, "[data] split=sequence needs at least 3 sequences, and there are {}; use split=time", n);
    if (o_.stride == 0) o_.stride = std::max<int64_t>(1, o_.window / 4);
    const double shares[] = {1 - o_.validation - o_.test, 1 - o_.test};
    const std::vector<SeriesPart> parts = apart && !o_.all_test ? parts_of_sequences() : std::vector<SeriesPart>();
    for (int64_t i = 0; i < n; ++i) {
      const auto [first, end] = sequences_[size_t(i)];
      if (o_.all_test) {
        add_windows(SeriesPart::test, {first, end});
      } else if (apart) {
        add_windows(parts[size_t(i)], {first, end});
      } else {
        const int64_t a = first + int64_t(double(end - first) * shares[0]), b = first + int64_t(double(end - first) * shares[1]);
        add_windows(SeriesPart::train, {first, a}), add_windows(SeriesPart::validation, {a, b}), add_windows(SeriesPart::test, {b, end});
      }
    }
    constexpr const char* kNames[] = {"training", "validation", "test"};
    for (size_t p = o_.all_test ? 2 : 0; p < 3; ++p)
      if (windows_[p].empty())
        fail(ErrorCode::io,
             "[data] {} has too few rows: {} in {} leave nothing for the {} part (a window has at least {} rows); set smaller shares, another split or horizon",
             form_.name, rows(), counted(n, "sequence"), kNames[p], least_rows());
    form_.length = 0;
    for (const auto& part : windows_)
      for (const auto& [first, end] : part) form_.length = std::max(form_.length, std::min(o_.window, end - first));
    if (o_.fitted.empty() && form_.length < o_.window)
      notices_.push_back(fmt::format("window={} is more than the {} that follow each other in a part of the data: sequences have {}", o_.window,
                                     counted(form_.length, "row"), counted(form_.length, "step")));
  }

  int64_t least_rows() const { return o_.class_column.empty() ? o_.horizon + 1 : 1; }

  // The last window ends with the rows; a window's targets may lie beyond its end.
  void add_windows(SeriesPart part, const Rows& range) {
    const auto [first, end] = range;
    if (end - first < least_rows()) return;
    if (part == SeriesPart::train) training_.push_back(range);
    const int64_t ahead = o_.class_column.empty() ? o_.horizon : 0, whole = o_.window + ahead;
    auto& windows = windows_[size_t(part)];
    int64_t start = first;
    for (; start + whole <= end; start += o_.stride) windows.push_back({start, start + whole});
    if (end - first < whole)
      windows.push_back(range);
    else if (windows.back().second < end)
      windows.push_back({end - whole, end});
  }

  void fit() {
    for (Column& c : columns_) {
      double sum = 0, squares = 0, n = 0;
      auto each = [&](const auto& use) {
        for (const auto& [first, end] : training_)
          for (int64_t r = first; r < end; ++r)
            if (const double v = c.raw[size_t(r)]; !std::isnan(v)) use(v);
      };
      each([&](double v) { sum += v, n += 1; });
      if (n == 0) fail(ErrorCode::io, "[data] column {} has no value in the training part", config::shown(c.name));
      c.mean = sum / n;
      each([&](double v) { squares += (v - c.mean) * (v - c.mean); });
      c.deviation = squares > 0 ? std::sqrt(squares / n) : 1;
    }
    double total = 0, steps = 0;
    if (!times_.empty())
      for (const auto& [first, end] : training_) total += times_[size_t(end - 1)] - times_[size_t(first)], steps += double(end - 1 - first);
    interval_ = total > 0 ? total / steps : 1;
    for (const size_t c : inputs_)
      if (std::any_of(columns_[c].raw.begin(), columns_[c].raw.end(), [](double v) { return std::isnan(v); })) masked_.push_back(c);
    if (o_.class_column.empty()) return;
    if (classes_.size() < 2)
      fail(ErrorCode::io, "[data] column {} has {}; at least 2 are needed", config::shown(o_.class_column), counted(int64_t(classes_.size()), "class"));
    if (const int64_t all = std::count_if(labels_.begin(), labels_.end(), [](int32_t label) { return label >= 0; });
        !class_at_end_ && all < 2 * int64_t(classes_.size()))
      notices_.push_back(
          fmt::format("column {} has {} in {}, so most occur only once; if these are numbers to forecast, use targets={} instead of class_column",
                      config::shown(o_.class_column), counted(int64_t(classes_.size()), "class"), counted(all, "row"), o_.class_column));
    // The most frequent class comes first: it is what a model without any information would answer.
    std::vector<int64_t> counts(classes_.size(), 0), order(classes_.size()), place(classes_.size());
    for (const auto& [first, end] : training_)
      for (int64_t r = first; r < end; ++r)
        if (labels_[size_t(r)] >= 0) ++counts[size_t(labels_[size_t(r)])];
    std::vector<std::string> trained, untrained;
    for (size_t c = 0; c < counts.size(); ++c) (counts[c] > 0 ? trained : untrained).push_back(classes_[c]);
    if (trained.size() < 2)
      fail(ErrorCode::io,
           "[data] the training part of {} has {} of column {}, of {} in all; add sequences or rows, or set smaller validation_share and test_share",
           counted(int64_t(training_.size()), class_at_end_ ? "sequence" : "stretch"), counted(int64_t(trained.size()), "class"),
           config::shown(o_.class_column), classes_.size());
    if (!untrained.empty())
      notices_.push_back(
          fmt::format("classes that the training part does not have, and the model cannot learn: {}", ridge::cut(config::join(untrained, ", "), 200)));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return counts[size_t(a)] > counts[size_t(b)]; });
    std::vector<std::string> sorted;
    for (const int64_t c : order) place[size_t(c)] = int64_t(sorted.size()), sorted.push_back(classes_[size_t(c)]);
    classes_ = std::move(sorted);
    for (int32_t& label : labels_)
      if (label >= 0) label = int32_t(place[size_t(label)]);
  }

  void scale() {
    for (Column& c : columns_) {
      const size_t n = c.raw.size();
      c.values.resize(n);
      if (std::any_of(c.raw.begin(), c.raw.end(), [](double v) { return std::isnan(v); })) c.known.assign(n, 1);
      for (const auto& [first, end] : sequences_) {
        float held = 0;  // the mean, until a value is known
        for (auto r = size_t(first); r < size_t(end); ++r) {
          if (std::isnan(c.raw[r]))
            c.known[r] = 0;
          else
            held = float((c.raw[r] - c.mean) / c.deviation);
          c.values[r] = held;
        }
      }
      c.raw = {};
      hash_ = XXH3_64bits_withSeed(c.values.data(), n * sizeof(float), hash_);
    }
    hash_ = XXH3_64bits_withSeed(times_.data(), times_.size() * sizeof(double), hash_);
    hash_ = XXH3_64bits_withSeed(labels_.data(), labels_.size() * sizeof(int32_t), hash_);
  }

  void describe() {
    form_.inputs = o_.inputs, form_.classes = !o_.class_column.empty(), form_.timed = !times_.empty(), form_.dates = format_.dates;
    form_.masks.assign(o_.inputs.size() + masked_.size(), -1);
    for (const size_t c : masked_) {
      form_.masks[size_t(std::find(inputs_.begin(), inputs_.end(), c) - inputs_.begin())] = int64_t(form_.inputs.size());
      form_.inputs.push_back(columns_[c].name + " known");
    }
    form_.outputs = form_.classes ? classes_ : o_.targets;
    form_.what = form_.classes ? fmt::format("{} of {}", o_.class_column, class_at_end_ ? "a sequence" : "every row")
                               : fmt::format("{} {} ahead", config::join(o_.targets, ", "), counted(o_.horizon, "step"));
    if (form_.classes) return;
    for (const std::string& target : o_.targets) {
      const auto input = std::find(o_.inputs.begin(), o_.inputs.end(), target);
      form_.feedback.push_back(o_.horizon == 1 && input != o_.inputs.end() ? input - o_.inputs.begin() : -1);
    }
  }

  TableOptions o_;
  std::vector<Column> columns_;
  std::vector<size_t> inputs_, targets_, masked_;  // columns; masked: inputs with missing values
  std::vector<double> times_;
  std::vector<int32_t> labels_;
  std::vector<std::string> classes_;
  std::vector<Rows> sequences_, training_;
  std::array<std::vector<Rows>, 3> windows_;
  std::unordered_set<uint64_t> seen_;
  int64_t begun_ = 0;  // first row of the sequence being read
  double interval_ = 1;
  TimeFormat format_;
  DecimalMark time_mark_ = DecimalMark::point;
  std::optional<DateOrder> date_order_;
  std::optional<bool> fitted_dates_;             // whether the model was trained with dates
  bool class_at_end_ = false, several_ = false;  // several_: tables, and nobody named columns
  std::string known_as_;                         // in identities, which older runs have too
  uint64_t hash_ = 0;
};

}  // namespace

std::string table_paths(const std::string& source) {
  std::string out;
  for (const std::string& place : places_of(source)) out += (out.empty() ? "" : "+") + fs::absolute(place).lexically_normal().string();
  return out;
}

std::unique_ptr<Series> read_tables(const std::string& source, const TableOptions& options) try {
  return std::make_unique<TableSeries>(source, options);
} catch (const Error& error) {  // perhaps a generated data set was misspelt
  std::error_code ignored;
  const std::vector<std::string> names = generated_names();
  const std::string hint = close_hint(source, std::vector<std::string_view>(names.begin(), names.end()));
  if (error.code() != ErrorCode::io || hint.empty() || std::filesystem::exists(source, ignored)) throw;
  throw Error(error.code(), fmt::format("[data] {}: there is neither such a file nor such a generated data set; {}", source, hint));
}

}  // namespace ridge
