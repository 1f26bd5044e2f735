#include "tune/size_choice.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "measure/statistics.h"

namespace ridge {

size_t smallest_of_the_fastest(std::span<const double> rates) {
  const double best = *std::ranges::max_element(rates);
  return size_t(std::ranges::find_if(rates, [&](double rate) { return rate >= (1 - kNearlyAsFast) * best; }) - rates.begin());
}

double SizePoint::rate() const { return summary_of(rates).median; }

SizeCurve choose_size(int64_t first, double longest_step, const std::function<SizeMeasurement(int64_t size)>& measure) {
  constexpr size_t kWithoutGain = 2;  // doublings
  constexpr int kAgain = 2;           // times
  constexpr double kClose = 0.06;
  SizeCurve curve;
  auto best = [&] {
    std::vector<double> rates;
    for (const SizePoint& p : curve.points) rates.push_back(p.rate());
    return smallest_of_the_fastest(rates);
  };
  for (int64_t size = first; curve.ended.empty(); size *= 2) {
    const SizeMeasurement m = measure(size);
    if (!m.missing.empty()) {
      if (curve.points.empty()) fail(ErrorCode::memory, "[tune] not even a size of {} can be measured: {}", size, m.missing);
      curve.ended = m.missing;
      break;
    }
    curve.points.push_back({size, {m.rate}, m.step_seconds, m.planned_bytes, m.busy});
    curve.chosen = best();
    if (m.step_seconds > longest_step) curve.ended = fmt::format("a step of {} takes {:.2g} s", grouped(size), m.step_seconds);
    if (curve.points.size() > curve.chosen + kWithoutGain) curve.ended = "more are not faster";
  }
  const double close = (1 - kClose) * curve.points[curve.chosen].rate();
  std::vector<SizePoint*> again;
  for (SizePoint& p : curve.points)
    if (p.rate() >= close) again.push_back(&p);
  for (int turn = 0; turn < kAgain && again.size() > 1; ++turn)
    for (SizePoint* p : again)
      if (const SizeMeasurement m = measure(p->size); m.missing.empty()) p->rates.push_back(m.rate), p->busy |= m.busy;
  curve.chosen = best();
  return curve;
}

}  // namespace ridge
