#include "compile/plan_memory.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace ridge {
namespace {

// A plan this close to the bound is not worth more search.
constexpr double kCloseEnough = 1.004;
// Thresholds above which the bounded search continues, crowded plans also get the slow greedy pass, and every method is tried.
constexpr double kTight = 1.01, kAcceptable = 1.02, kLoose = 1.05;
// Total budget of the searches, in units of Problem::pass_cost, 1 to 2 ns each.
constexpr int64_t kSearchBudget = 4'000'000;

using Order = std::vector<int32_t>;

struct Placement {
  std::vector<int64_t> offsets;
  int64_t arena = std::numeric_limits<int64_t>::max();
};

enum class Fit { first, best };

// Finds the gap for `bytes` between occupied intervals, which are passed in order of their offsets.
class GapSearch {
 public:
  GapSearch(int64_t bytes, Fit fit) : bytes_(bytes), fit_(fit) {}
  // Returns true when the search is finished.
  bool pass(int64_t begin, int64_t end) {
    if (int64_t gap = begin - top_; gap >= bytes_ && gap < best_gap_) {
      best_gap_ = gap, best_ = top_;
      if (fit_ == Fit::first || gap == bytes_) return true;
    }
    top_ = std::max(top_, end);
    return false;
  }
  int64_t offset() const { return best_ >= 0 ? best_ : top_; }

 private:
  int64_t bytes_;
  Fit fit_;
  int64_t top_ = 0, best_ = -1, best_gap_ = std::numeric_limits<int64_t>::max();
};

struct Problem {
  std::vector<LiveRange> ranges;  // sizes are rounded up and positive
  int64_t max_live = 0;
  int64_t pairs = 0;                                 // pairs of ranges that are live at the same time
  std::vector<int32_t> neighbour_begin, neighbours;  // both directions; empty unless link() was called

  int64_t length(int32_t i) const { return int64_t(ranges[i].last) - ranges[i].first + 1; }

  // The cost of placing every range once: each collects and sorts its neighbours.
  int64_t pass_cost() const {
    const double n = double(ranges.size()), visits = 2 * double(pairs);
    return int64_t(visits * std::log2(visits / n + 2) + 8 * n);
  }

  void count_pairs() {
    std::vector<int32_t> firsts, lasts;
    for (const LiveRange& r : ranges) firsts.push_back(r.first), lasts.push_back(r.last);
    std::sort(firsts.begin(), firsts.end());
    std::sort(lasts.begin(), lasts.end());
    for (size_t i = 0, gone = 0; i < firsts.size(); ++i) {
      while (lasts[gone] < firsts[i]) ++gone;
      pairs += int64_t(i - gone);
    }
  }

  // Calls see(i, j) for every pair, by a sweep over time.
  template <class See>
  void each_pair(const Order& by_start, See see) const {
    std::vector<int32_t> live;
    for (int32_t i : by_start) {
      std::erase_if(live, [&](int32_t j) { return ranges[j].last < ranges[i].first; });
      for (int32_t j : live) see(i, j);
      live.push_back(i);
    }
  }

  void link() {
    Order by_start(ranges.size());
    std::iota(by_start.begin(), by_start.end(), 0);
    std::sort(by_start.begin(), by_start.end(), [&](int32_t a, int32_t b) { return ranges[a].first < ranges[b].first; });
    neighbour_begin.assign(ranges.size() + 1, 0);
    each_pair(by_start, [&](int32_t i, int32_t j) { ++neighbour_begin[i + 1], ++neighbour_begin[j + 1]; });
    std::partial_sum(neighbour_begin.begin(), neighbour_begin.end(), neighbour_begin.begin());
    neighbours.resize(size_t(2 * pairs));
    std::vector<int32_t> next(neighbour_begin.begin(), neighbour_begin.end() - 1);
    each_pair(by_start, [&](int32_t i, int32_t j) { neighbours[next[i]++] = j, neighbours[next[j]++] = i; });
  }
};

// Time-ordered best fit, forwards or backwards: what an allocator would do that handles the longest-lived request first.
Placement place_by_time(const Problem& problem, bool backwards) {
  const int32_t n = int32_t(problem.ranges.size());
  auto first = [&](int32_t i) { return backwards ? -int64_t(problem.ranges[i].last) : problem.ranges[i].first; };
  auto last = [&](int32_t i) { return backwards ? -int64_t(problem.ranges[i].first) : problem.ranges[i].last; };
  Order order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (first(a) != first(b)) return first(a) < first(b);
    if (last(a) != last(b)) return last(a) > last(b);
    return a < b;
  });
  struct Taken {
    int64_t begin, end, last;
  };
  std::vector<Taken> live;  // by offset
  Placement result{std::vector<int64_t>(n), 0};
  int64_t next_end = std::numeric_limits<int64_t>::max();
  for (int32_t i : order) {
    if (next_end < first(i)) {
      std::erase_if(live, [&](const Taken& t) { return t.last < first(i); });
      next_end = std::numeric_limits<int64_t>::max();
      for (const Taken& t : live) next_end = std::min(next_end, t.last);
    }
    const int64_t bytes = problem.ranges[i].bytes;
    GapSearch search(bytes, Fit::best);
    for (const Taken& t : live)
      if (search.pass(t.begin, t.end)) break;
    const int64_t at = result.offsets[i] = search.offset();
    result.arena = std::max(result.arena, at + bytes);
    live.insert(std::upper_bound(live.begin(), live.end(), at, [](int64_t a, const Taken& t) { return a < t.begin; }), {at, at + bytes, last(i)});
    next_end = std::min(next_end, last(i));
  }
  return result;
}

// Places ranges in the given order, each among its already placed neighbours.
Placement place_in_order(const Problem& problem, const Order& order, Fit fit) {
  Placement result{std::vector<int64_t>(problem.ranges.size(), -1), 0};
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (int32_t i : order) {
    taken.clear();
    for (int32_t k = problem.neighbour_begin[i]; k < problem.neighbour_begin[i + 1]; ++k) {
      int32_t j = problem.neighbours[k];
      if (int64_t at = result.offsets[j]; at >= 0) taken.emplace_back(at, at + problem.ranges[j].bytes);
    }
    std::sort(taken.begin(), taken.end());
    const int64_t bytes = problem.ranges[i].bytes;
    GapSearch search(bytes, fit);
    for (auto [begin, end] : taken)
      if (search.pass(begin, end)) break;
    result.offsets[i] = search.offset();
    result.arena = std::max(result.arena, result.offsets[i] + bytes);
  }
  return result;
}

// The same for plans with too many pairs to list: examines all placed ranges in order of their offsets.
Placement place_in_order_unlinked(const Problem& problem, const Order& order) {
  Placement result{std::vector<int64_t>(problem.ranges.size(), -1), 0};
  Order placed;
  placed.reserve(order.size());
  for (int32_t i : order) {
    const LiveRange& r = problem.ranges[i];
    GapSearch search(r.bytes, Fit::first);
    for (int32_t j : placed) {
      const LiveRange& p = problem.ranges[j];
      if (p.first <= r.last && r.first <= p.last && search.pass(result.offsets[j], result.offsets[j] + p.bytes)) break;
    }
    const int64_t at = result.offsets[i] = search.offset();
    result.arena = std::max(result.arena, at + r.bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), at, [&](int64_t a, int32_t j) { return a < result.offsets[j]; }), i);
  }
  return result;
}

template <class Key>
Order sorted_down(const Problem& problem, Key key) {
  Order order(problem.ranges.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) > key(b); });
  return order;
}

// Fills the arena from the bottom up to a given height, over all times simultaneously. For the lowest interval of time, either a range that
// fits is placed there, leaving the space to its left empty up to the next edge, or the whole interval stays empty up to there. Every plan
// that cannot be pushed down further is found this way, so a search that finishes within its budget is also a proof.
class Filling {
 public:
  explicit Filling(const Problem& problem) : problem_(problem) {
    for (const LiveRange& r : problem.ranges) times_.push_back(r.first);
    std::sort(times_.begin(), times_.end());
    times_.erase(std::unique(times_.begin(), times_.end()), times_.end());
    auto slot = [&](int32_t step) { return int32_t(std::upper_bound(times_.begin(), times_.end(), step) - times_.begin()) - 1; };
    for (const LiveRange& r : problem.ranges) spans_.push_back({slot(r.first), slot(r.last) + 1});
  }

  int64_t steps() const { return int64_t(times_.size()) + int64_t(spans_.size()); }  // examined per search node

  // Finds a placement below `limit` bytes within `nodes` trials that take ranges in this order.
  bool fill(const Order& order, int64_t limit, int64_t nodes, Placement& result) {
    order_ = &order, limit_ = limit, nodes_ = nodes, left_ = spans_.size();
    height_.assign(times_.size(), 0), rest_.assign(times_.size(), 0), offset_.assign(spans_.size(), -1);
    for (size_t i = 0; i < spans_.size(); ++i)
      for (int32_t t = spans_[i].begin; t < spans_[i].end; ++t) rest_[t] += problem_.ranges[i].bytes;
    if (!descend()) return false;
    result.offsets = offset_, result.arena = 0;
    for (size_t i = 0; i < spans_.size(); ++i) result.arena = std::max(result.arena, offset_[i] + problem_.ranges[i].bytes);
    return true;
  }

 private:
  static constexpr int64_t kWall = std::numeric_limits<int64_t>::max();
  struct Span {
    int32_t begin, end;
  };

  bool descend() {
    if (left_ == 0) return true;
    if (--nodes_ < 0) return false;
    const int32_t count = int32_t(times_.size());
    int32_t begin = -1;
    for (int32_t t = 0; t < count; ++t)
      if (rest_[t] > 0 && (begin < 0 || height_[t] < height_[begin])) begin = t;
    const int64_t low = height_[begin];
    int32_t end = begin;
    while (end < count && rest_[end] > 0 && height_[end] == low) ++end;
    auto edge = [&](int32_t t) { return t < 0 || t >= count || rest_[t] == 0 ? kWall : height_[t]; };
    const int64_t left_edge = edge(begin - 1), right_edge = edge(end);
    for (int32_t i : *order_) {
      const Span s = spans_[i];
      if (offset_[i] >= 0 || s.begin < begin || s.end > end) continue;
      const int64_t bytes = problem_.ranges[i].bytes, top = low + bytes, skipped = std::min(left_edge, top);
      for (int32_t t = s.begin; t < s.end; ++t) rest_[t] -= bytes;
      std::fill(height_.begin() + begin, height_.begin() + s.begin, skipped);
      std::fill(height_.begin() + s.begin, height_.begin() + s.end, top);
      offset_[i] = low, --left_;
      if (fits(begin, s.end) && descend()) return true;
      offset_[i] = -1, ++left_;
      std::fill(height_.begin() + begin, height_.begin() + s.end, low);
      for (int32_t t = s.begin; t < s.end; ++t) rest_[t] += bytes;
      if (nodes_ < 0) return false;
    }
    const int64_t up = std::min(left_edge, right_edge);
    if (up == kWall) return false;
    std::fill(height_.begin() + begin, height_.begin() + end, up);
    if (fits(begin, end) && descend()) return true;
    std::fill(height_.begin() + begin, height_.begin() + end, low);
    return false;
  }

  bool fits(int32_t begin, int32_t end) const {
    for (int32_t t = begin; t < end; ++t)
      if (height_[t] + rest_[t] > limit_) return false;
    return true;
  }

  const Problem& problem_;
  std::vector<int32_t> times_;  // start times of ranges: between two of them no new collision is possible
  std::vector<Span> spans_;     // of each range, as indices into times_
  const Order* order_ = nullptr;
  int64_t limit_ = 0, nodes_ = 0;
  size_t left_ = 0;
  std::vector<int64_t> height_, rest_, offset_;  // filled so far and bytes still to place, per time; offset per range, -1 if not placed
};

Placement search(Problem& problem) {
  Placement best;
  auto close = [&](double ratio) { return double(best.arena) <= ratio * double(problem.max_live); };
  auto consider = [&](const Placement& p) {
    if (p.arena < best.arena) best = p;
  };
  for (bool backwards : {true, false}) {
    consider(place_by_time(problem, backwards));
    if (close(kCloseEnough)) return best;
  }
  auto by_size = [&](int32_t i) { return std::pair(problem.ranges[i].bytes, problem.length(i)); };
  auto by_area = [&](int32_t i) { return double(problem.ranges[i].bytes) * double(problem.length(i)); };
  auto by_start = [&](int32_t i) { return std::pair(-int64_t(problem.ranges[i].first), by_area(i)); };
  Filling filling(problem);
  const int64_t trials = kSearchBudget / filling.steps() / 8;
  const bool fillable = trials > int64_t(problem.ranges.size());
  auto fill = [&](const Order& order, double ratio) {
    Placement p;
    bool found = filling.fill(order, int64_t(ratio * double(problem.max_live)), trials, p);
    if (found) best = p;
    return found;
  };
  if (fillable) {
    const Order orders[] = {sorted_down(problem, by_start), sorted_down(problem, by_area), sorted_down(problem, by_size)};
    for (double ratio : {1.0, kTight, kAcceptable})
      for (const Order& order : orders)
        if (close(ratio) || fill(order, ratio)) return best;
  }

  const int64_t pass_cost = problem.pass_cost();
  if (pass_cost > kSearchBudget) {
    if (!close(kAcceptable)) consider(place_in_order_unlinked(problem, sorted_down(problem, by_size)));
    return best;
  }

  problem.link();
  Order start;
  int64_t start_arena = std::numeric_limits<int64_t>::max(), spent = 0;
  Fit start_fit = Fit::first;
  for (const Order& order : {sorted_down(problem, by_size), sorted_down(problem, by_area)}) {
    for (Fit fit : {Fit::first, Fit::best}) {
      Placement p = place_in_order(problem, order, fit);
      spent += pass_cost;
      if (p.arena < start_arena) start_arena = p.arena, start = order, start_fit = fit;
      consider(p);
      if (close(kCloseEnough) || spent > kSearchBudget) return best;
    }
  }

  if (close(kTight)) return best;

  // The ranges that reach above the target height were placed too late: move them forward by a random amount and retry, starting from the best order so
  // far. The generator always has the same seed, so the plan is a function of the ranges.
  std::vector<int64_t> position(start.size());
  std::minstd_rand random(1);
  Order order = start;
  std::vector<int64_t> ends;
  for (Fit fit = start_fit; spent < (close(kLoose) ? 1 : 4) * kSearchBudget; fit = random() % 4 ? start_fit : Fit(random() % 2)) {
    Placement p = place_in_order(problem, order, fit);
    spent += pass_cost;
    consider(p);
    if (close(kTight)) return best;
    const int64_t slack = random() % 16 ? 0 : (start_arena - problem.max_live) / 2;  // occasionally accept a worse order, to leave a dead end
    if (p.arena <= start_arena + slack) {
      start_arena = p.arena, start = order, start_fit = fit;
      ends = p.offsets;
      for (size_t i = 0; i < ends.size(); ++i) ends[i] += problem.ranges[i].bytes;
    }
    const int64_t target = std::max(problem.max_live, start_arena - 1 - int64_t(random() % 16) * (start_arena - problem.max_live) / 16);
    order = start;
    for (int64_t k = 0; k < int64_t(order.size()); ++k) position[order[k]] = k * 16 * (ends[order[k]] > target ? int64_t(random() % 16) : 16) / 16;
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return position[a] < position[b]; });
  }
  // Finally, filling in other orders: by area with random perturbations.
  for (int round = 0; fillable && round < 64 && !close(kLoose); ++round) {
    std::vector<double> bent;
    for (size_t i = 0; i < problem.ranges.size(); ++i) bent.push_back(by_area(int32_t(i)) * double(1 + random() % 64));
    if (fill(sorted_down(problem, [&](int32_t i) { return bent[size_t(i)]; }), kLoose)) break;
  }
  return best;
}

int64_t rounded(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace

MemoryPlan plan_memory(std::span<const LiveRange> ranges, int64_t alignment) {
  if (alignment <= 0) fail(ErrorCode::internal, "[plan_memory] alignment is {}", alignment);
  MemoryPlan plan;
  plan.offsets.assign(ranges.size(), 0);
  Problem problem;
  std::vector<int32_t> index;  // the ranges that need memory
  int64_t total = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    LiveRange r = ranges[i];
    if (r.bytes < 0 || r.last < r.first) fail(ErrorCode::internal, "[plan_memory] range {}: {} bytes, live from step {} to {}", i, r.bytes, r.first, r.last);
    if (r.bytes == 0) continue;
    if (r.bytes > std::numeric_limits<int64_t>::max() / 2 || __builtin_add_overflow(total, r.bytes = rounded(r.bytes, alignment), &total))
      fail(ErrorCode::memory, "[plan_memory] values add up to more than 2^63 bytes at range {}; use a smaller batch", i);
    problem.ranges.push_back(r);
    index.push_back(int32_t(i));
  }
  if (problem.ranges.empty()) return plan;

  std::vector<std::pair<int64_t, int64_t>> changes;  // step, bytes; ends sort before starts of the same step
  for (const LiveRange& r : problem.ranges) changes.emplace_back(r.first, r.bytes), changes.emplace_back(int64_t(r.last) + 1, -r.bytes);
  std::sort(changes.begin(), changes.end());
  int64_t live = 0;
  for (auto [step, bytes] : changes) {
    live += bytes;
    if (live > plan.max_live_bytes) plan.max_live_bytes = live, plan.peak_step = int32_t(step);
  }
  problem.max_live = plan.max_live_bytes;
  problem.count_pairs();

  Placement best = search(problem);
  plan.arena_bytes = best.arena;
  for (size_t k = 0; k < index.size(); ++k) plan.offsets[index[k]] = best.offsets[k];
  verify_plan(ranges, plan, alignment);
  return plan;
}

void verify_plan(std::span<const LiveRange> ranges, const MemoryPlan& plan, int64_t alignment) {
  if (plan.offsets.size() != ranges.size()) fail(ErrorCode::internal, "[verify_plan] {} offsets for {} ranges", plan.offsets.size(), ranges.size());
  // A sweep over starts and ends: at any time, the live intervals ordered by offset must not overlap, so comparing neighbours is enough.
  struct Event {
    int64_t step;
    bool starts;
    int32_t range;
  };
  std::vector<Event> events;
  for (int32_t i = 0; i < int32_t(ranges.size()); ++i) {
    const LiveRange& r = ranges[i];
    const int64_t at = plan.offsets[i];
    if (at < 0 || at % alignment) fail(ErrorCode::internal, "[verify_plan] range {} has offset {}, not a multiple of {}", i, at, alignment);
    if (r.bytes > plan.arena_bytes || at > plan.arena_bytes - r.bytes)
      fail(ErrorCode::internal, "[verify_plan] range {} at {} with {} bytes leaves the arena of {}", i, at, r.bytes, plan.arena_bytes);
    if (r.bytes == 0) continue;
    events.push_back({r.first, true, i});
    events.push_back({int64_t(r.last) + 1, false, i});
  }
  std::sort(events.begin(), events.end(),
            [](const Event& a, const Event& b) { return std::tuple(a.step, a.starts, a.range) < std::tuple(b.step, b.starts, b.range); });
  std::set<std::pair<int64_t, int32_t>> live;  // offset, range
  auto check = [&](int32_t below, int32_t above) {
    if (plan.offsets[below] + ranges[below].bytes > plan.offsets[above])
      fail(ErrorCode::internal, "[verify_plan] ranges {} (at {}, {} bytes, steps {} to {}) and {} (at {}, {} bytes, steps {} to {}) share memory", below,
           plan.offsets[below], ranges[below].bytes, ranges[below].first, ranges[below].last, above, plan.offsets[above], ranges[above].bytes,
           ranges[above].first, ranges[above].last);
  };
  for (const Event& e : events) {
    std::pair<int64_t, int32_t> key{plan.offsets[e.range], e.range};
    if (!e.starts) {
      live.erase(key);
      continue;
    }
    auto it = live.insert(key).first;
    if (it != live.begin()) check(std::prev(it)->second, e.range);
    if (auto next = std::next(it); next != live.end()) check(e.range, next->second);
  }
}

}  // namespace ridge
