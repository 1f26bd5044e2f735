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
#include "base/text.h"
#include "config/words.h"
#include "data/csv.h"
#include "data/find_source.h"
#include "data/permutation.h"
#include "data/series.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

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
    if (!o_.fitted.empty()) take_fitted();
    for (const std::string& file : tables_in(source)) read(file);
    end_sequence();
    if (rows() < 2) fail(ErrorCode::io, "[data] {} has {}; at least 2 are needed", source, counted(rows(), "row"));
    cut();
    if (o_.fitted.empty()) fit();
    scale();
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

  std::string identity() const override { return fmt::format("{} ({:016x})", form_.name, hash_); }
  double original(int64_t output, double value) const override {
    if (form_.classes) return value;
    const Column& c = columns_[targets_[size_t(output)]];
    return c.mean + c.deviation * value;
  }

  std::string fitted() const override {
    nlohmann::ordered_json j;
    j["inputs"] = o_.inputs, j["targets"] = o_.targets, j["time_column"] = o_.time_column, j["sequence_column"] = o_.sequence_column;
    j["class_column"] = o_.class_column, j["classes"] = classes_, j["class_at_end"] = class_at_end_;
    j["window"] = o_.window, j["stride"] = o_.stride, j["horizon"] = o_.horizon, j["interval"] = interval_;
    j["split"] = o_.split, j["validation"] = o_.validation, j["test"] = o_.test;
    for (const Column& c : columns_) j["columns"][c.name] = {{"mean", c.mean}, {"deviation", c.deviation}};
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
  };
  using Rows = std::pair<int64_t, int64_t>;  // first, and after the last

  int64_t rows() const { return columns_.empty() ? 0 : int64_t(columns_[0].raw.size()); }
  float span(size_t from, size_t to) const { return times_.empty() ? float(to - from) : float((times_[to] - times_[from]) / interval_); }

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
    for (Column& c : columns_) c.mean = j.at("columns").at(c.name).at("mean"), c.deviation = j.at("columns").at(c.name).at("deviation");
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

  // All columns that contain numbers in the first rows and serve no other purpose.
  void find_inputs(const std::string& file) {
    constexpr int kLooked = 1000;
    CsvReader table(file);
    std::vector<bool> numbers(table.names().size(), true);
    for (int i = 0; i < kLooked && table.next(); ++i)
      for (size_t c = 0; c < numbers.size(); ++c) numbers[c] = numbers[c] && parse_csv_number(table.field(c), true).valid;
    for (size_t c = 0; c < numbers.size(); ++c)
      if (const std::string& name = table.names()[c]; numbers[c] && name != o_.time_column && name != o_.sequence_column && name != o_.class_column)
        o_.inputs.push_back(name);
    if (o_.inputs.empty()) fail(ErrorCode::io, "[data] {} has no column of numbers; name some with inputs=A,B", file);
  }

  void read(const std::string& file) {
    if (o_.inputs.empty()) find_inputs(file);
    if (columns_.empty()) {
      if (o_.targets.empty()) o_.targets = o_.inputs;
      choose_columns();
    }
    end_sequence();
    CsvReader table(file);
    std::vector<size_t> from;
    for (const Column& c : columns_) from.push_back(table.column(c.name));
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
        const std::optional<double> now = table.time(time);
        if (!now) table.reject(time, "is missing, but every row needs a time");
        if (begun_ < rows() && *now < times_.back())
          table.reject(time, fmt::format("is earlier than the row before it in the sequence; sort the rows, or name the sequences with sequence_column"));
        times_.push_back(*now);
      }
      if (label != std::string::npos) labels_.push_back(class_of(table, label));
      for (size_t c = 0; c < columns_.size(); ++c) columns_[c].raw.push_back(table.number(from[c]).value_or(kMissing));
    }
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

  // Which rows are for training, validation and tests; then windows within each of these.
  void cut() {
    const auto n = int64_t(sequences_.size());
    const bool apart = o_.split == "sequence" || (o_.split == "auto" && n >= 10);
    if (o_.split == "sequence" && n < 3) fail(ErrorCode::usage, "[data] split=sequence needs at least 3 sequences, and there are {}; use split=time", n);
    if (o_.stride == 0) o_.stride = std::max<int64_t>(1, o_.window / 4);
    const double shares[] = {1 - o_.validation - o_.test, 1 - o_.test};
    for (int64_t i = 0; i < n; ++i) {
      const auto [first, end] = sequences_[size_t(i)];
      if (o_.all_test) {
        add_windows(SeriesPart::test, {first, end});
      } else if (apart) {
        const double place = (double(permuted(uint64_t(i), uint64_t(n), RandomKey{1, 0, 0x5e9})) + 0.5) / double(n);
        add_windows(place < shares[0] ? SeriesPart::train : place < shares[1] ? SeriesPart::validation : SeriesPart::test, {first, end});
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
    class_at_end_ = std::all_of(sequences_.begin(), sequences_.end(), [&](const Rows& s) {
      return std::all_of(labels_.begin() + s.first, labels_.begin() + s.second, [&](int32_t label) { return label == labels_[size_t(s.first)]; });
    });
    // The most frequent class comes first: it is what a model without any information would answer.
    std::vector<int64_t> counts(classes_.size(), 0), order(classes_.size()), place(classes_.size());
    for (const auto& [first, end] : training_)
      for (int64_t r = first; r < end; ++r)
        if (labels_[size_t(r)] >= 0) ++counts[size_t(labels_[size_t(r)])];
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
    form_.inputs = o_.inputs, form_.classes = !o_.class_column.empty(), form_.timed = !times_.empty();
    for (const size_t c : masked_) form_.inputs.push_back(columns_[c].name + " known");
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
  bool class_at_end_ = false;
  uint64_t hash_ = 0;
};

}  // namespace

std::string table_paths(const std::string& source) {
  std::string out;
  for (const std::string& place : places_of(source)) out += (out.empty() ? "" : "+") + fs::absolute(place).lexically_normal().string();
  return out;
}

std::unique_ptr<Series> read_tables(const std::string& source, const TableOptions& options) { return std::make_unique<TableSeries>(source, options); }

}  // namespace ridge
