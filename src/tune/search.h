// Finds the fastest point of a space of named choices by measuring few of its points. What a measurement is, and what time it is, are functions, so the search
// can be tested without a machine.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "measure/statistics.h"

namespace ridge {

struct TuneDimension {
  std::string name;                 // "threads"
  std::vector<std::string> values;  // "2", "1": the first one is used without tuning
  bool changes_bits = true;         // of results
};
using TunePoint = std::vector<size_t>;  // the index of a value in each dimension; all 0: as without tuning

struct TuneSpace {
  std::vector<TuneDimension> dimensions;

  int64_t points() const;
  TunePoint start() const { return TunePoint(dimensions.size(), 0); }
  std::vector<TunePoint> all() const;
  std::string text(const TunePoint& point) const;  // what differs from the start: "threads=1 passes=-streaming"; "as planned"
};

struct TuneSample {
  double seconds = 0;
  bool busy = false;  // other programs used the machine meanwhile
};

class TuneTarget {
 public:
  virtual ~TuneTarget() = default;
  // Makes a point ready. Returns why it must not be used (a wrong result, too little memory); empty: it can be measured.
  virtual std::string check(const TunePoint& point) = 0;
  virtual TuneSample measure(const TunePoint& point) = 0;
  virtual double now() = 0;  // seconds
};

struct TuneLimits {
  double seconds = 20;
  int64_t points = 0;       // measured at most; 0: a fifth of the space, and at least 12
  double roof_seconds = 0;  // no point can be faster; the search stops within 5 % of it. 0: unknown
};

constexpr double kTuneGain = 0.02;  // less than this is not worth another choice

struct TuneTrial {
  TunePoint point;
  std::string refused = {};                   // by check(); empty: measured
  std::vector<double> quiet = {}, busy = {};  // samples, by whether other programs used the machine

  const std::vector<double>& seconds() const { return quiet.empty() ? busy : quiet; }
};

struct TuneResult {
  TunePoint best;                              // the start, unless another one is at least kTuneGain faster with separated medians
  bool adopted = false;                        // it is another one
  double start_seconds = 0, best_seconds = 0;  // medians of the last, interleaved repeats
  Interval start_interval, best_interval;
  TunePoint other;           // the runner-up, and its median
  double other_seconds = 0;  // 0: nothing else was measured
  bool busy = false;         // other programs used the machine in these repeats or, if the start is kept, whenever a certain point was measured
  int64_t samples = 0, points = 0, refused = 0;
  double seconds = 0;
  std::string ended;              // "no single change is faster", "the time was up", …
  std::vector<TuneTrial> trials;  // in the order of their first measurement

  double gain() const { return best_seconds > 0 ? start_seconds / best_seconds : 1; }
};

// Line by line: all values of a dimension are measured in turns, those far behind drop out, and the best one must beat the present point in interleaved
// repeats. Dimensions are repeated until none gains. In the end the result is compared with the start once more.
TuneResult search(const TuneSpace& space, TuneTarget& target, const TuneLimits& limits = {});

// For proof on small spaces: measures every point in turns, then the fastest few and `chosen` on fresh interleaved repeats.
struct ExhaustiveResult {
  TunePoint best;
  double best_seconds = 0, chosen_seconds = 0;  // medians of the fresh repeats
  double median_seconds = 0;                    // of all points
  int64_t samples = 0, points = 0;
  bool busy = false;  // other programs used the machine during the fresh repeats, which were repeated a few times
};
ExhaustiveResult measure_all(const TuneSpace& space, TuneTarget& target, const TunePoint& chosen);

}  // namespace ridge
