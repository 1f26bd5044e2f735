// Statistics of timings: medians with confidence intervals, outliers, and whether two sets of runs differ. All functions are pure.
#pragma once
#include <span>
#include <vector>

namespace ridge {

struct Interval {
  double low = 0, high = 0;
};

// The narrowest symmetric pair of order statistics that contains the median with at least this probability, whatever the distribution. With too few samples
// for that (five or fewer at 95 %), the whole range.
Interval median_interval(std::vector<double> samples, double confidence = 0.95);

struct Summary {
  double min = 0, median = 0, max = 0;
  Interval interval = {};  // of the median, at 95 %
  double spread = 0;       // between the quartiles, as a fraction of the median
  int samples = 0;
  int outliers = 0;  // more than three times the quartiles' distance outside them; they are counted, not removed: the median hardly moves
};
Summary summary_of(std::vector<double> samples);

// The value that a variable with Student's t distribution stays below with this probability. More than 1e6 degrees of freedom: the normal distribution.
double t_quantile(double probability, double degrees);

// Runs of one build differ from each other by more than their samples show: memory lies elsewhere, the clock and the neighbours of a virtual machine change.
// Two figures from different moments are taken to vary by at least this much (standard deviation of the logarithm), however small the spread of their rounds.
inline constexpr double kBetweenRuns = 0.0075;

// What a comparison finds.
enum class Change { same, faster, slower };

struct Comparison {
  Change verdict = Change::same;
  double ratio = 1;            // after ÷ before, of medians
  Interval interval = {1, 1};  // of the ratio
  double resolution() const;   // the smallest change that could have been found: 0.03 is 3 %
};

// Compares times of fresh processes, one figure for each. "slower" and "faster" are wrong together at most 1 - confidence of the time. A side with a single
// figure says nothing about its spread; the other side's is then used for both, and with one figure on each side the verdict is always "same".
Comparison compare_times(std::span<const double> before, std::span<const double> after, double confidence, double between_runs = kBetweenRuns);

}  // namespace ridge
