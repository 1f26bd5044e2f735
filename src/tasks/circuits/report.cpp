// What a trained model can do: errors on test data next to the best possible one and to simple predictors, a picture or a confusion table.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/text.h"
#include "data/series_picture.h"
#include "tasks/circuits/task.h"

namespace ridge {
namespace {

std::string figure(double value, bool classes) { return classes ? fmt::format("{:.2f} %", 100 * value) : fmt::format("{:.4g}", value); }

// [B, T, outputs] of a batch.
std::vector<float> predict(const CircuitNet& net, const BatchSource& source, int64_t number) {
  std::vector<Tensor> in;
  std::vector<std::byte*> places;
  for (const Type& t : source.types()) places.push_back(static_cast<std::byte*>(in.emplace_back(Tensor::zeros(t.shape, t.dtype)).mutable_data()));
  source.fill(number, places);
  return net(in[0], in[1], false).to_floats();
}

}  // namespace

CircuitReport report_circuit(const CircuitNet& net, const Series& series, SeriesPart part) {
  constexpr int64_t kHidden = int64_t(1) << 22;  // states of a batch, of 4 bytes each
  const SeriesForm& f = series.form();
  const CircuitArgs& a = net.rnn.args();
  const int64_t units = std::max<int64_t>(a.wiring.empty() ? a.units : a.wiring[0].units(), 1), n = series.count(part);
  const int64_t batch = std::clamp<int64_t>(kHidden / (f.length * units), 1, n);
  const std::unique_ptr<BatchSource> source = ordered_series(series, part, batch);
  const size_t outputs = f.outputs.size(), length = size_t(f.length);
  CircuitReport r;
  r.part = part, r.classes = f.classes, r.sequences = n, r.outputs = f.outputs;
  r.confusion.assign(f.classes ? outputs * outputs : 0, 0);
  SeriesSample s(f);
  double sum = 0, count = 0;
  std::vector<SeriesPanel> panels = series_panels(f);
  for (int64_t b = 0; b < source->batches(); ++b) {
    const std::vector<float> out = predict(net, *source, b);
    for (int64_t i = 0; i < source->samples(b); ++i) {
      series.fill(part, b * batch + i, s);
      const float* row = out.data() + size_t(i) * length * outputs;
      for (size_t t = 0; t < length; ++t, row += outputs) {
        if (f.classes && s.label[t] >= 0) {
          const auto chosen = std::max_element(row, row + outputs) - row;
          ++r.confusion[size_t(s.label[t]) * outputs + size_t(chosen)], sum += chosen == s.label[t], count += 1;
        }
        for (size_t o = 0; o < outputs && !f.classes; ++o)
          if (s.weight[t * outputs + o] > 0) sum += std::pow(double(row[o]) - s.y[t * outputs + o], 2), count += 1;
      }
      if (b > 0 || i > 0 || f.classes) continue;
      const std::vector<double> times = series.times(part, 0, s);
      for (size_t t = 0; t < size_t(s.steps()); ++t) add_step(panels, series, s, t, times[t], out.data() + t * outputs);
    }
  }
  r.error = sum / count, r.baselines = series_baselines(series, part);
  if (part == SeriesPart::test && (net.span || net.input || !f.timed)) r.best = series.best(), r.best_reason = series.best_reason();
  if (!f.classes)
    r.picture =
        series_svg(fmt::format("{}: prediction and truth", f.name),
                   fmt::format("{}; the first {} sequence, mean squared error over all {:.4g}", f.about(), name(part), r.error), panels, series.time_labels());
  return r;
}

std::vector<std::string> CircuitReport::lines() const {
  const std::string first = fmt::format("{} {} on {}", classes ? "accuracy" : "MSE", figure(error, classes), counted(sequences, "sequence"));
  std::vector<std::string> out = {other_data.empty() ? fmt::format("{} {}", name(part), first) : fmt::format("{} of {}", first, other_data)};
  if (best) {
    out[0] += fmt::format("; best possible {}", figure(*best, classes));
    if (!classes && *best > 0) out[0] += fmt::format(", reached within {:.3f} x", error / *best);
    out[0] += fmt::format(" ({})", best_reason);
  }
  out.push_back(fmt::format("last value {}", figure(baselines.last, classes)));
  if (baselines.linear) out.back() += fmt::format(", linear {}", figure(*baselines.linear, classes));
  if (classes) std::ranges::move(confusion_table(outputs, confusion), std::back_inserter(out));
  return out;
}

std::vector<std::pair<std::string, double>> CircuitReport::figures() const {
  std::vector<std::pair<std::string, double>> out = {{classes ? "accuracy" : "mse", error}, {"last_value", baselines.last}};
  if (baselines.linear) out.emplace_back("linear", *baselines.linear);
  if (best) out.emplace_back("best_possible", *best);
  return out;
}

}  // namespace ridge
