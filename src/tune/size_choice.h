// The smallest size (a batch, a number of instances) that is nearly as fast as the fastest, from short measurements of growing sizes.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ridge {

constexpr double kNearlyAsFast = 0.02;
// The first of these rates, in the order of growing sizes, that is within kNearlyAsFast of the highest.
size_t smallest_of_the_fastest(std::span<const double> rates);

struct SizePoint {
  int64_t size = 0;
  std::vector<double> rates = {};  // units per second, one per measurement
  double step_seconds = 0;
  int64_t planned_bytes = 0;
  bool busy = false;  // other programs used the machine during one of the measurements

  double rate() const;  // the median
};
struct SizeCurve {
  std::vector<SizePoint> points;  // at least one
  size_t chosen = 0;
  std::string ended;  // why no larger size was measured: "256 do not fit into memory whole"
};

// A measurement of a size. `missing`: why there is none and will be none of larger sizes.
struct SizeMeasurement {
  double rate = 0, step_seconds = 0;
  int64_t planned_bytes = 0;
  std::string missing = {};
  bool busy = false;
};
// Doubles from `first` until two doublings in a row gain nothing, a step takes longer than `longest_step` or there is no measurement. Sizes close to the
// fastest are then measured again in turns. ErrorCode::memory if not even the first can be measured.
SizeCurve choose_size(int64_t first, double longest_step, const std::function<SizeMeasurement(int64_t size)>& measure);

}  // namespace ridge
