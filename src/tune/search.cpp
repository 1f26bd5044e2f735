#include "tune/search.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace ridge {
namespace {

constexpr int kBusyRepeats = 3;        // of a sample on a busy machine
constexpr int kFewest = 5, kMost = 9;  // pairs of a comparison
constexpr double kConfidence = 0.8;    // of each median's interval; that two intervals are apart is much surer
constexpr double kBehind = 1.2;        // a value this much slower is not tried again in another place
constexpr double kFarBehind = 4;       // the same after a single sample, which may be an outlier
constexpr int kRounds = 3;             // before the slower half drops out
constexpr double kClose = 1.02;        // by the least of these samples: worth a comparison
constexpr double kStep = 0.005;        // a change that gains less is not followed; the start is only left for kTuneGain
constexpr double kAtRoof = 1.05;

double median_of(const std::vector<double>& seconds) { return summary_of(seconds).median; }
double least_of(const std::vector<double>& seconds) { return *std::min_element(seconds.begin(), seconds.end()); }

// Two sets of samples taken in turns.
struct Duel {
  std::vector<double> a, b;
  bool busy = false;

  double ratio() const { return median_of(b) / median_of(a); }
  bool separated() const {
    const Interval x = median_interval(a, kConfidence), y = median_interval(b, kConfidence);
    return x.high < y.low || y.high < x.low;
  }
};

class Search {
 public:
  Search(const TuneSpace& space, TuneTarget& target, const TuneLimits& limits)
      : space_(space), target_(target), limits_(limits), begun_(target.now()), most_points_(limits.points) {
    if (most_points_ <= 0) most_points_ = std::max<int64_t>(12, space.points() / 5);
  }

  TuneResult run() {
    TunePoint at = space_.start();
    result_.best = at;
    if (usable(at)) {
      descend(at);
      conclude(at);
    } else {
      result_.ended = "the step without tuning cannot be measured: " + trial(at).refused;
    }
    result_.seconds = target_.now() - begun_;
    for (const TunePoint& point : order_) result_.trials.push_back(trials_.at(point));
    result_.points = int64_t(std::count_if(result_.trials.begin(), result_.trials.end(), [](const TuneTrial& t) { return t.refused.empty(); }));
    result_.refused = int64_t(result_.trials.size()) - result_.points;
    return result_;
  }

 private:
  TuneTrial& trial(const TunePoint& point) {
    const auto [at, fresh] = trials_.try_emplace(point, TuneTrial{point});
    if (fresh) order_.push_back(point), at->second.refused = target_.check(point);
    return at->second;
  }
  bool known(const TunePoint& point) const { return trials_.contains(point); }
  bool usable(const TunePoint& point) { return trial(point).refused.empty(); }
  bool time_is_up() const { return target_.now() - begun_ >= limits_.seconds; }

  // On a busy machine it is repeated a few times.
  TuneSample sample(const TunePoint& point) {
    TuneTrial& t = trial(point);
    TuneSample s;
    for (int turn = 0; turn == 0 || (s.busy && turn <= kBusyRepeats && !time_is_up()); ++turn) {
      s = target_.measure(point), ++result_.samples;
      (s.busy ? t.busy : t.quiet).push_back(s.seconds);
    }
    return s;
  }

  // Until their medians are apart, or the second is no faster.
  Duel duel(const TunePoint& a, const TunePoint& b) {
    Duel d;
    while (int(d.a.size()) < kMost && !(int(d.a.size()) >= kFewest && (d.separated() || d.ratio() > 1 - kStep || time_is_up()))) {
      const TuneSample x = sample(a), y = sample(b);
      d.a.push_back(x.seconds), d.b.push_back(y.seconds);
      d.busy = d.busy || x.busy || y.busy;
    }
    return d;
  }

  // The most promising value of a dimension: in turns, and the slower half drops out each time.
  std::vector<TunePoint> rivals(const TunePoint& at, size_t dimension) {
    std::vector<TunePoint> in;
    for (size_t v = 0; v < space_.dimensions[dimension].values.size(); ++v) {
      TunePoint other = at;
      other[dimension] = v;
      if (other == at || (behind_.contains({dimension, v}) && !known(other))) continue;
      if (!known(other) && points_left() <= 0) {
        result_.ended = "the allowed number of points is measured";
        continue;
      }
      if (time_is_up()) break;
      if (usable(other)) in.push_back(other);
    }
    return in;
  }
  int64_t points_left() const { return most_points_ - int64_t(trials_.size()); }

  // Moves to the best value of a dimension; whether there is a better one.
  bool improve(TunePoint& at, size_t dimension) {
    std::vector<TunePoint> in = rivals(at, dimension);
    if (in.empty()) return false;
    std::map<TunePoint, std::vector<double>> times;
    for (int round = 0; round < kRounds || in.size() > 1; ++round) {
      times[at].push_back(sample(at).seconds);
      for (const TunePoint& p : in) times[p].push_back(sample(p).seconds);
      // The least of few samples: other programs only ever add time.
      std::sort(in.begin(), in.end(), [&](const TunePoint& a, const TunePoint& b) { return least_of(times[a]) < least_of(times[b]); });
      const double limit = (round == 0 ? kFarBehind : kBehind) * least_of(times[at]);
      for (const TunePoint& p : in)
        if (least_of(times[p]) > limit) behind_.insert({dimension, p[dimension]});
      std::erase_if(in, [&](const TunePoint& p) { return least_of(times[p]) > limit; });
      if (in.empty()) return false;
      if (round + 1 >= kRounds) in.resize((in.size() + 1) / 2);
      if (time_is_up()) break;
    }
    if (least_of(times[in[0]]) > kClose * least_of(times[at])) return false;
    const Duel d = duel(at, in[0]);
    if (!(d.ratio() < 1 - kStep && d.separated())) return false;
    at = in[0];
    return true;
  }

  bool at_roof(const TunePoint& at) {
    if (limits_.roof_seconds <= 0) return false;
    for (size_t had = trial(at).seconds().size(); had < size_t(kRounds); ++had) sample(at);
    return median_of(trial(at).seconds()) <= kAtRoof * limits_.roof_seconds;
  }

  void descend(TunePoint& at) {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t d = 0; d < space_.dimensions.size(); ++d) {
        if (at_roof(at)) return void(result_.ended = "it runs at the measured roof");
        if (time_is_up()) return void(result_.ended = "the time was up");
        if (improve(at, d)) moved = true;
      }
    }
    if (result_.ended.empty()) result_.ended = "no single change is faster";
  }

  // Fresh repeats of the best and the start decide; what was measured on the way chose them, so it would flatter the winner.
  void conclude(const TunePoint& at) {
    const TunePoint start = space_.start();
    if (at != start) {
      const Duel d = duel(start, at);
      result_.start_seconds = median_of(d.a), result_.best_seconds = median_of(d.b);
      result_.start_interval = median_interval(d.a, kConfidence), result_.best_interval = median_interval(d.b, kConfidence);
      result_.busy = d.busy;
      if (d.ratio() <= 1 - kTuneGain && d.separated()) result_.best = at, result_.adopted = true;
    } else if (trial(start).seconds().empty()) {
      sample(start);
    }
    if (!result_.adopted) {
      // A point that was never measured in quiet may have lost only for that.
      result_.busy = result_.busy || std::ranges::any_of(trials_, [](const auto& t) { return t.second.quiet.empty() && !t.second.busy.empty(); });
      const std::vector<double>& seconds = trial(start).seconds();
      result_.best = start, result_.start_seconds = result_.best_seconds = median_of(seconds);
      result_.start_interval = result_.best_interval = median_interval(seconds, kConfidence);
    }
    for (const TunePoint& point : order_) {
      const TuneTrial& t = trials_.at(point);
      if (point == result_.best || !t.refused.empty() || t.seconds().empty()) continue;
      const double seconds = median_of(t.seconds());
      if (result_.other_seconds == 0 || seconds < result_.other_seconds) result_.other = point, result_.other_seconds = seconds;
    }
  }

  const TuneSpace& space_;
  TuneTarget& target_;
  const TuneLimits limits_;
  const double begun_;
  int64_t most_points_;
  std::map<TunePoint, TuneTrial> trials_;
  std::vector<TunePoint> order_;
  std::set<std::pair<size_t, size_t>> behind_;  // values that were far behind wherever they were tried
  TuneResult result_;
};

}  // namespace

int64_t TuneSpace::points() const {
  int64_t all = 1;
  for (const TuneDimension& d : dimensions) all *= int64_t(d.values.size());
  return all;
}

std::vector<TunePoint> TuneSpace::all() const {
  std::vector<TunePoint> points;
  TunePoint at = start();
  for (int64_t i = 0; i < this->points(); ++i) {
    points.push_back(at);
    for (size_t d = 0; d < at.size() && ++at[d] == dimensions[d].values.size(); ++d) at[d] = 0;
  }
  return points;
}

std::string TuneSpace::text(const TunePoint& point) const {
  std::string text;
  for (size_t d = 0; d < point.size(); ++d)
    if (point[d] > 0) text += fmt::format("{}{}={}", text.empty() ? "" : " ", dimensions[d].name, dimensions[d].values[point[d]]);
  return text.empty() ? "as planned" : text;
}

TuneResult search(const TuneSpace& space, TuneTarget& target, const TuneLimits& limits) { return Search(space, target, limits).run(); }

ExhaustiveResult measure_all(const TuneSpace& space, TuneTarget& target, const TunePoint& chosen) {
  constexpr int kTurns = 3, kFresh = 9;
  constexpr size_t kFinalists = 4;
  ExhaustiveResult r;
  std::vector<TunePoint> points = space.all();
  std::erase_if(points, [&](const TunePoint& p) { return !target.check(p).empty(); });
  std::map<TunePoint, std::vector<double>> times;
  bool busy = false;
  auto sample = [&](const TunePoint& p) {
    TuneSample s;
    for (int turn = 0; turn == 0 || (s.busy && turn <= kBusyRepeats); ++turn) s = target.measure(p), ++r.samples;
    times[p].push_back(s.seconds), busy |= s.busy;
  };
  for (int round = 0; round < kTurns; ++round)
    for (const TunePoint& p : points) sample(p);
  r.points = int64_t(points.size());
  std::vector<double> medians;
  for (const TunePoint& p : points) medians.push_back(median_of(times[p]));
  r.median_seconds = median_of(medians);
  std::sort(points.begin(), points.end(), [&](const TunePoint& a, const TunePoint& b) { return median_of(times[a]) < median_of(times[b]); });
  points.resize(std::min(points.size(), kFinalists));
  if (std::find(points.begin(), points.end(), chosen) == points.end()) points.push_back(chosen);
  times.clear(), busy = false;
  const int64_t before = r.samples;
  for (int round = 0; round < kFresh; ++round)
    for (const TunePoint& p : points) sample(p);
  r.samples = before, r.busy = busy;  // samples: of the exhaustive search, without its proof
  r.best = *std::min_element(points.begin(), points.end(), [&](const TunePoint& a, const TunePoint& b) { return median_of(times[a]) < median_of(times[b]); });
  r.best_seconds = median_of(times[r.best]), r.chosen_seconds = median_of(times[chosen]);
  return r;
}

}  // namespace ridge
