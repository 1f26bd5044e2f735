// How long the last steps took: their own time, and wall-clock time.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>

#include "train/training_loop.h"

namespace ridge {

// Median of the last steps' times, so that one slow step has no effect.
class RunningMedian {
 public:
  void add(double value) {
    double& oldest = ring_[count_ % kSize];
    double* end = sorted_.data() + std::min(count_, kSize);
    if (count_++ >= kSize) {
      double* const gone = std::lower_bound(sorted_.data(), end, oldest);
      end = std::copy(gone + 1, end, gone);
    }
    oldest = value;
    double* const place = std::upper_bound(sorted_.data(), end, value);
    std::copy_backward(place, end, end + 1);
    *place = value;
  }
  double value() const { return sorted_[std::min(count_, kSize) / 2]; }

 private:
  static constexpr size_t kSize = kMedianSteps;
  std::array<double, kSize> ring_ = {}, sorted_ = {};
  size_t count_ = 0;
};

// Wall-clock seconds per step, including everything between steps: a mean over the last steps.
class WallPace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void start(Time now) { times_[0] = now, count_ = 1; }
  double add(Time now) {
    times_[count_++ % times_.size()] = now;
    const size_t known = std::min(count_, times_.size());
    return std::chrono::duration<double>(now - times_[(count_ - known) % times_.size()]).count() / double(known - 1);
  }

 private:
  std::array<Time, kMedianSteps + 1> times_ = {};
  size_t count_ = 0;
};

}  // namespace ridge
