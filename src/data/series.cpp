#include "data/series.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "data/permutation.h"

namespace ridge {
namespace {

constexpr uint32_t kSeriesOrder = 0xda7a0004;  // a stream of its own

class SeriesBatches : public BatchSource {
 public:
  SeriesBatches(const Series& series, SeriesPart part, int64_t batch) : series_(series), part_(part), batch_(batch) {
    const SeriesForm& f = series.form();
    const auto inputs = int64_t(f.inputs.size()), outputs = int64_t(f.outputs.size());
    types_ = {{DType::f32, {batch, f.length, inputs}}, {DType::f32, {batch, f.length}}};
    if (f.classes)
      types_.push_back({DType::i64, {batch, f.length}});
    else
      types_.insert(types_.end(), 2, {DType::f32, {batch, f.length, outputs}});
  }
  const std::vector<Type>& types() const override { return types_; }
  bool has_parts() const override { return true; }
  void fill(int64_t number, std::span<std::byte* const> tensors) const override { fill_part(number, 0, batch_, tensors); }
  void fill_part(int64_t number, int64_t first, int64_t count, std::span<std::byte* const> tensors) const override {
    SeriesSample s(series_.form());
    for (int64_t i = 0; i < count; ++i) {
      series_.fill(part_, sample_of(number * batch_ + first + i), s);
      auto put = [&](size_t tensor, const auto& values) {
        const size_t bytes = values.size() * sizeof(values[0]);
        std::memcpy(tensors[tensor] + size_t(i) * bytes, values.data(), bytes);
      };
      put(0, s.x), put(1, s.dt);
      if (series_.form().classes)
        put(2, s.label);
      else
        put(2, s.y), put(3, s.weight);
    }
  }

 protected:
  virtual int64_t sample_of(int64_t taken) const = 0;

  const Series& series_;
  SeriesPart part_;
  int64_t batch_;
  std::vector<Type> types_;
};

class TrainingSeries final : public SeriesBatches {
 public:
  TrainingSeries(const Series& series, int64_t batch, uint64_t seed) : SeriesBatches(series, SeriesPart::train, batch), seed_(seed) {}

 private:
  int64_t sample_of(int64_t taken) const override {
    const auto n = uint64_t(series_.count(part_));
    return int64_t(permuted(uint64_t(taken) % n, n, RandomKey{seed_, uint32_t(uint64_t(taken) / n), kSeriesOrder}));
  }
  uint64_t seed_;
};

class OrderedSeries final : public SeriesBatches {
 public:
  OrderedSeries(const Series& series, SeriesPart part, int64_t batch, int64_t most)
      : SeriesBatches(series, part, batch), count_(most > 0 ? std::min(most, series.count(part)) : series.count(part)) {}
  int64_t batches() const override { return (count_ + batch_ - 1) / batch_; }
  int64_t samples(int64_t number) const override { return std::min(batch_, count_ - number * batch_); }

 private:
  int64_t sample_of(int64_t taken) const override { return std::min(taken, count_ - 1); }  // those beyond the end are not counted, but must be valid
  int64_t count_;
};

// Least squares with a small penalty, by the normal equations in double precision.
class LinearFit {
 public:
  LinearFit(size_t features, size_t outputs) : n_(features), m_(outputs), gram_(n_ * n_), moment_(n_ * m_) {}
  void add(std::span<const double> features, size_t output, double target, bool shared) {
    if (!shared)  // outputs of one step have the same features
      for (size_t i = 0; i < n_; ++i)
        if (features[i] != 0)
          for (size_t j = 0; j <= i; ++j) gram_[i * n_ + j] += features[i] * features[j];
    for (size_t i = 0; i < n_; ++i) moment_[i * m_ + output] += features[i] * target;
  }
  void solve() {  // Cholesky's factor replaces the lower triangle, then the weights replace the moments
    double trace = 0;
    for (size_t i = 0; i < n_; ++i) trace += gram_[i * n_ + i];
    for (size_t i = 0; i < n_; ++i) {
      gram_[i * n_ + i] += 1e-7 * trace / double(n_) + 1e-12;
      for (size_t j = 0; j <= i; ++j) {
        double sum = gram_[i * n_ + j];
        for (size_t k = 0; k < j; ++k) sum -= gram_[i * n_ + k] * gram_[j * n_ + k];
        gram_[i * n_ + j] = i == j ? std::sqrt(std::max(sum, 1e-300)) : sum / gram_[j * n_ + j];
      }
    }
    for (size_t o = 0; o < m_; ++o) {
      for (size_t i = 0; i < n_; ++i) {
        for (size_t k = 0; k < i; ++k) moment_[i * m_ + o] -= gram_[i * n_ + k] * moment_[k * m_ + o];
        moment_[i * m_ + o] /= gram_[i * n_ + i];
      }
      for (size_t i = n_; i-- > 0;) {
        for (size_t k = i + 1; k < n_; ++k) moment_[i * m_ + o] -= gram_[k * n_ + i] * moment_[k * m_ + o];
        moment_[i * m_ + o] /= gram_[i * n_ + i];
      }
    }
  }
  double predict(std::span<const double> features, size_t output) const {
    double sum = 0;
    for (size_t i = 0; i < n_; ++i) sum += features[i] * moment_[i * m_ + output];
    return sum;
  }

 private:
  size_t n_, m_;
  std::vector<double> gram_, moment_;
};

}  // namespace

SeriesSample::SeriesSample(const SeriesForm& f) {
  const auto length = size_t(f.length), outputs = f.outputs.size();
  x.resize(length * f.inputs.size()), dt.resize(length), last.resize(length * (f.classes ? 1 : outputs));
  if (f.classes)
    label.resize(length);
  else
    y.resize(length * outputs), weight.resize(length * outputs);
  clear();
}

void SeriesSample::clear() {
  for (std::vector<float>* values : {&x, &dt, &y, &weight, &last}) std::fill(values->begin(), values->end(), 0.0f);
  std::fill(label.begin(), label.end(), -1);
}

int64_t SeriesSample::steps() const {
  auto n = int64_t(dt.size());
  const size_t outputs = weight.size() / std::max<size_t>(1, dt.size());
  auto target = [&](size_t t) {
    if (weight.empty()) return label[t] >= 0;
    return std::any_of(weight.begin() + int64_t(t * outputs), weight.begin() + int64_t((t + 1) * outputs), [](float w) { return w > 0; });
  };
  while (n > 1 && !target(size_t(n - 1))) --n;
  return n;
}

std::vector<double> Series::times(SeriesPart, int64_t, const SeriesSample& sample) const {
  std::vector<double> out;
  for (const float dt : sample.dt) out.push_back((out.empty() ? 0 : out.back()) + double(dt));
  return out;
}

std::string Series::time_text(double time) const { return fmt::format("{:g}", time); }

std::unique_ptr<BatchSource> training_series(const Series& series, int64_t batch, uint64_t seed) {
  return std::make_unique<TrainingSeries>(series, batch, seed);
}

std::unique_ptr<BatchSource> ordered_series(const Series& series, SeriesPart part, int64_t batch, int64_t most) {
  return std::make_unique<OrderedSeries>(series, part, batch, most);
}

SeriesBaselines series_baselines(const Series& series, SeriesPart part, int64_t most) {
  constexpr size_t kFeatures = 256;  // keeps the fit below a second
  constexpr int64_t kRows = 10'000;  // steps that it uses
  const SeriesForm& f = series.form();
  const size_t inputs = f.inputs.size(), outputs = f.outputs.size();
  const size_t seen = std::clamp<size_t>(kFeatures / (inputs + 1), 1, size_t(f.length));  // steps, the newest first, each with its time
  const bool fits = inputs < kFeatures && outputs < kFeatures;
  LinearFit fit(fits ? 1 + seen * (inputs + 1) : 1, fits ? outputs : 1);
  std::vector<double> features(1 + seen * (inputs + 1));
  SeriesSample s(f);
  auto read = [&](size_t t) {
    std::fill(features.begin(), features.end(), 0.0);
    features[0] = 1;
    for (size_t k = 0; k < seen && k <= t; ++k) {
      double* row = features.data() + 1 + k * (inputs + 1);
      for (size_t i = 0; i < inputs; ++i) row[i] = s.x[(t - k) * inputs + i];
      row[inputs] = s.dt[t - k];
    }
  };
  int64_t rows = 0;
  const int64_t all = series.count(SeriesPart::train), spread = std::min<int64_t>(all, kRows);  // sequences from the whole part
  for (int64_t i = 0; fits && i < spread && rows < kRows; ++i) {
    series.fill(SeriesPart::train, int64_t(permuted(uint64_t(i), uint64_t(all), RandomKey{1, 0, kSeriesOrder})), s);
    for (size_t t = 0; t < size_t(f.length); ++t) {
      bool begun = false;
      for (size_t o = 0; o < outputs; ++o) {
        const bool target = f.classes ? s.label[t] >= 0 : s.weight[t * outputs + o] > 0;
        if (!target) continue;
        if (!begun) read(t), ++rows;
        fit.add(features, o, f.classes ? double(s.label[t] == int64_t(o)) : double(s.y[t * outputs + o]), std::exchange(begun, true));
      }
    }
  }
  fit.solve();
  double last = 0, linear = 0, targets = 0;
  for (int64_t n = 0; n < (most > 0 ? std::min(most, series.count(part)) : series.count(part)); ++n) {
    series.fill(part, n, s);
    for (size_t t = 0; t < size_t(f.length); ++t) {
      if (f.classes) {
        if (s.label[t] < 0) continue;
        size_t chosen = 0;
        if (fits) read(t);
        for (size_t o = 1; o < outputs && fits; ++o)
          if (fit.predict(features, o) > fit.predict(features, chosen)) chosen = o;
        targets += 1, last += int64_t(s.last[t]) == s.label[t], linear += int64_t(chosen) == s.label[t];
        continue;
      }
      bool begun = false;
      for (size_t o = 0; o < outputs; ++o) {
        const size_t at = t * outputs + o;
        if (s.weight[at] <= 0) continue;
        if (!std::exchange(begun, true) && fits) read(t);
        const double a = s.last[at] - s.y[at], b = fits ? fit.predict(features, o) - s.y[at] : 0;
        targets += 1, last += a * a, linear += b * b;
      }
    }
  }
  return {last / targets, rows > 0 ? std::optional(linear / targets) : std::nullopt};
}

std::string_view name(SeriesPart part) {
  constexpr std::string_view names[] = {"train", "validation", "test"};
  return names[size_t(part)];
}

bool SeriesForm::feeds_back() const {
  return std::any_of(feedback.begin(), feedback.end(), [](int64_t i) { return i >= 0; });
}

std::string SeriesForm::about() const {
  std::string all;
  for (const std::string& name : outputs) all += (all.empty() ? "" : ", ") + name;
  return what.starts_with(all) ? listed(outputs) + what.substr(all.size()) : what;
}

std::vector<std::string> SeriesForm::named(const std::vector<size_t>& numbers) const {
  std::vector<std::string> names;
  for (const size_t i : numbers) names.push_back(inputs[i]);
  return names;
}

std::vector<size_t> SeriesForm::given() const {
  std::vector<size_t> out;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (std::find(feedback.begin(), feedback.end(), int64_t(i)) == feedback.end() && std::find(masks.begin(), masks.end(), int64_t(i)) == masks.end())
      out.push_back(i);
  return out;
}

std::function<std::string(double)> Series::time_labels() const {
  if (!form_.dates) return {};
  return [this](double time) { return time_text(time); };
}

std::string_view checksum_in(std::string_view identity) {
  const size_t open = identity.rfind('(');
  return open == identity.npos || !identity.ends_with(')') ? std::string_view() : identity.substr(open);
}

}  // namespace ridge
