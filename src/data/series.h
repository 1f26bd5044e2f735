// Sequences for recurrent models: numbers at regular or irregular times, with targets for some or all steps.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batch_source.h"

namespace ridge {

enum class SeriesPart { train, validation, test };
std::string_view name(SeriesPart part);

// What the sequences of a data set look like.
struct SeriesForm {
  std::string name;                  // "xor", "weather.csv"
  std::string what;                  // one line: what is predicted from what
  int64_t length = 0;                // steps of the longest sequence; shorter ones are padded
  std::vector<std::string> inputs;   // names, one per number of a step
  std::vector<std::string> outputs;  // predicted numbers or, if `classes`, the classes
  bool classes = false;
  bool timed = false;                 // steps cover different times
  std::vector<int64_t> feedback;      // for each output the input that it predicts for the next step; -1, or empty: none
  bool dates = false;                 // times are dates
  std::vector<int64_t> masks = {};    // for each input the input that says whether its value is known; -1, or empty: none
  bool feeds_back() const;            // some output predicts an input
  std::string about() const;          // `what` for people: of many columns, the first ones and their number
  std::vector<size_t> given() const;  // inputs that are neither predicted nor masks: a forecast must get them from elsewhere
  std::vector<std::string> named(const std::vector<size_t>& numbers) const;  // the names of these inputs
};

// One sequence in the caller's memory. Steps beyond its end are 0 and have no target.
struct SeriesSample {
  explicit SeriesSample(const SeriesForm& form);
  void clear();
  std::vector<float> x;        // [length, inputs]
  std::vector<float> dt;       // [length]: the time that a step covers, 1 on average or in total
  std::vector<float> y;        // [length, outputs]: targets; empty for classes
  std::vector<float> weight;   // [length, outputs]: 1 where there is a target, else 0; empty for classes
  std::vector<int64_t> label;  // [length]: the class, -1: no target; empty for numbers
  std::vector<float> last;     // [length, outputs], for classes [length]: what the last known value predicts
  int64_t steps() const;       // up to the last one with a target
};

class Series {
 public:
  virtual ~Series() = default;
  const SeriesForm& form() const { return form_; }
  virtual int64_t count(SeriesPart part) const = 0;                                    // sequences
  virtual void fill(SeriesPart part, int64_t number, SeriesSample& sample) const = 0;  // depends on the number only; thread-safe
  virtual std::optional<double> best() const { return {}; }    // smallest mean squared error, or largest accuracy, that any model can have on the test part
  virtual std::string best_reason() const { return {}; }       // how that is known
  virtual std::string identity() const { return form_.name; }  // changes when the sequences do
  virtual std::string fitted() const { return {}; }            // what was derived from the training part and new data must reuse, as JSON
  virtual double original(int64_t output, double value) const { return (void)output, value; }  // in the units of the source
  // When the targets of a sequence's steps are due, how much of that a dt of 1 is, and how such a time is written.
  virtual std::vector<double> times(SeriesPart part, int64_t number, const SeriesSample& sample) const;
  virtual double interval() const { return 1; }
  virtual std::string time_text(double time) const;
  std::function<std::string(double)> time_labels() const;               // of pictures: dates; empty for numbers
  const std::vector<std::string>& notices() const { return notices_; }  // decisions that its user should know about

 protected:
  SeriesForm form_;
  std::vector<std::string> notices_;
};

// Of an identity, "weather.csv (0123456789abcdef)", the part that depends on the content only; empty: none.
std::string_view checksum_in(std::string_view identity);

// Made on the spot: sequence n is a function of (seed, n). `length` 0: the default. ErrorCode::usage for a length that the data set cannot have.
bool is_generated(const std::string& name);
std::vector<std::string> generated_names();
std::unique_ptr<Series> generate_series(const std::string& name, int64_t length = 0, uint64_t seed = 1);

// A user's tables: several files joined by "+", or a folder; each file is at least one sequence.
struct TableOptions {
  std::vector<std::string> inputs = {}, targets = {};  // columns; empty: all numbers, and the same as inputs
  std::string time_column = {}, sequence_column = {}, class_column = {};
  int64_t window = 64, stride = 0;       // steps of a sequence, and between the starts of two; 0: a quarter of a window
  int64_t horizon = 1;                   // steps ahead that a forecast is for
  std::string split = "auto";            // time: the last rows of each sequence are kept for tests; sequence: whole sequences are
  double validation = 0.1, test = 0.15;  // shares
  std::string decimal = "auto";          // point or comma
  std::string date_order = "auto";       // dmy or mdy, of dates that end with the year
  std::string fitted = {};  // of the data set that a model was trained with: columns, windows, parts and scale are the same, and given ones do not count
  bool all_test = false;    // no row is for training, except in the table with this checksum: rows that a model was trained on are no test of it
  std::string trained_on = {};
};
// ErrorCode::io with file, line and column, or with the generated data set that was probably meant.
std::unique_ptr<Series> read_tables(const std::string& source, const TableOptions& options);
std::string table_paths(const std::string& source);  // the same source, independent of the working folder

// Batches: x [B, T, inputs], dt [B, T], then y and weight [B, T, outputs], or label [B, T]. For training, endless and in an order that depends on the seed.
std::unique_ptr<BatchSource> training_series(const Series& series, int64_t batch, uint64_t seed);
std::unique_ptr<BatchSource> ordered_series(const Series& series, SeriesPart part, int64_t batch, int64_t most = 0);  // the first `most`; 0: all

// How well simple predictors do on a part: mean squared error, or for classes the share that is right.
struct SeriesBaselines {
  double last = 0;               // the last known value
  std::optional<double> linear;  // least squares from the last steps, fitted to the training part; none: there is no such part, or too many columns
};
SeriesBaselines series_baselines(const Series& series, SeriesPart part = SeriesPart::test, int64_t most = 0);  // on its first `most` sequences; 0: all

}  // namespace ridge
