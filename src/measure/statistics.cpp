#include "measure/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ridge {
namespace {

double quantile_of(const std::vector<double>& sorted, double q) {
  const double at = q * double(sorted.size() - 1);
  const size_t i = size_t(at);
  return sorted[i] + (at - double(i)) * (sorted[std::min(i + 1, sorted.size() - 1)] - sorted[i]);
}

// The regularised incomplete beta function, by its continued fraction.
double incomplete_beta(double a, double b, double x) {
  if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - incomplete_beta(b, a, 1 - x);
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x)) / a;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  d = 1 / (std::abs(d) < 1e-300 ? 1e-300 : d);
  double value = d;
  for (int m = 1; m < 500; ++m) {
    auto turn = [&](double k) {
      d = 1 + k * d, c = 1 + k / c;
      d = 1 / (std::abs(d) < 1e-300 ? 1e-300 : d);
      if (std::abs(c) < 1e-300) c = 1e-300;
      value *= c * d;
      return std::abs(c * d - 1);
    };
    turn(m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)));
    if (turn(-(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))) < 1e-14) break;
  }
  return front * value;
}

double t_probability(double t, double degrees) {  // of a value below t
  if (degrees > 1e6) return 0.5 * std::erfc(-t / std::sqrt(2.0));
  const double tail = 0.5 * incomplete_beta(0.5 * degrees, 0.5, degrees / (degrees + t * t));
  return t > 0 ? 1 - tail : tail;
}

struct Side {
  double centre = 0, variance = 0, count = 0;  // of the logarithms
};

Side side_of(std::span<const double> times) {
  std::vector<double> logs;
  for (double t : times) logs.push_back(std::log(t));
  std::sort(logs.begin(), logs.end());
  Side side{.centre = quantile_of(logs, 0.5), .count = double(logs.size())};
  double mean = 0;
  for (double x : logs) mean += x / side.count;
  for (double x : logs) side.variance += (x - mean) * (x - mean) / std::max(1.0, side.count - 1);
  return side;
}

}  // namespace

Interval median_interval(std::vector<double> samples, double confidence) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  // The k-th smallest and largest exclude the median with probability 2 P(X < k) for X binomial(n, 1/2).
  double term = std::pow(0.5, double(n)), tail = 0;
  if (term == 0) {  // more than a thousand samples: the normal approximation
    const double width = t_quantile(0.5 + 0.5 * confidence, 1e9) * 0.5 * std::sqrt(double(n));
    const size_t k = size_t(std::max(0.0, std::floor(0.5 * double(n) - width)));
    return {samples[k], samples[n - 1 - k]};
  }
  size_t cut = 0;
  for (size_t k = 0; k < n / 2; ++k) {
    tail += term;
    if (2 * tail > 1 - confidence) break;
    cut = k;
    term *= double(n - k) / double(k + 1);
  }
  return {samples[cut], samples[n - 1 - cut]};
}

Summary summary_of(std::vector<double> samples) {
  Summary s{.samples = int(samples.size())};
  if (samples.empty()) return s;
  std::sort(samples.begin(), samples.end());
  s.min = samples.front(), s.max = samples.back(), s.median = quantile_of(samples, 0.5);
  const double low = quantile_of(samples, 0.25), high = quantile_of(samples, 0.75), far = 3 * (high - low);
  s.spread = s.median > 0 ? (high - low) / s.median : 0;
  for (double x : samples) s.outliers += x < low - far || x > high + far;
  s.interval = median_interval(std::move(samples));
  return s;
}

double t_quantile(double probability, double degrees) {
  double low = -1, high = 1;
  while (t_probability(low, degrees) > probability && low > -1e12) low *= 2;
  while (t_probability(high, degrees) < probability && high < 1e12) high *= 2;
  for (int i = 0; i < 200; ++i) {
    const double middle = 0.5 * (low + high);
    (t_probability(middle, degrees) < probability ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

double Comparison::resolution() const { return std::sqrt(interval.high / interval.low) - 1; }

Comparison compare_times(std::span<const double> before, std::span<const double> after, double confidence, double between_runs) {
  Comparison c;
  if (before.empty() || after.empty()) return c;
  Side a = side_of(before), b = side_of(after);
  c.ratio = std::exp(b.centre - a.centre);
  if (a.count < 2 && b.count < 2) {
    c.interval = {0, std::numeric_limits<double>::infinity()};
    return c;
  }
  const double degrees_a = std::max(0.0, a.count - 1), degrees_b = std::max(0.0, b.count - 1);
  if (a.count < 2) a.variance = b.variance;
  if (b.count < 2) b.variance = a.variance;
  // A median varies more than a mean, by the square root of pi / 2 at most (normal noise, many samples).
  const double va = M_PI_2 * a.variance / a.count, vb = M_PI_2 * b.variance / b.count, rounds = va + vb;
  double degrees = 0;  // Welch and Satterthwaite
  if (rounds > 0) {
    const double below = (degrees_a > 0 ? va * va / degrees_a : va * va / degrees_b) + (degrees_b > 0 ? vb * vb / degrees_b : vb * vb / degrees_a);
    degrees = rounds * rounds / below;
  }
  // The two terms are not added before the quantile is taken: the one between runs is known, the one of the rounds estimated from few of them.
  const double p = 0.5 + 0.5 * confidence;
  const double width_rounds = rounds > 0 ? t_quantile(p, degrees) * std::sqrt(rounds) : 0, width_runs = t_quantile(p, 1e9) * std::sqrt(2.0) * between_runs;
  const double width = std::hypot(width_rounds, width_runs);
  c.interval = {c.ratio * std::exp(-width), c.ratio * std::exp(width)};
  c.verdict = c.interval.low > 1 ? Change::slower : c.interval.high < 1 ? Change::faster : Change::same;
  return c;
}

}  // namespace ridge
