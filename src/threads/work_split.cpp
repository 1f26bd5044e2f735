#include "threads/work_split.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace ridge {
namespace {

// Grains are at least this long: claiming one costs up to 0.1 µs if another core wrote its counter last.
constexpr double kGrainNs = 1000;
// Chunks are at least this long, if the grains allow it.
constexpr double kMinNs = 2000;
// An owner takes 1/16 of what is left of its part at a time: work it holds cannot be taken over if it turns out to be slower than assumed. So the others
// wait less than 5 % of the task for a core at a third of its speed.
constexpr int64_t kOwnerShare = 16;
// All helpers together take about half of what is left. More helpers than this would contend for the counter.
constexpr int64_t kMaxHelperShare = 32;

}  // namespace

WorkSplit::WorkSplit(std::span<const double> speeds) : parts_(speeds.size()) {
  for (size_t i = 0; i < speeds.size(); ++i) {
    const double speed = speeds[i];
    if (!(speed > 0 && std::isfinite(speed))) fail(ErrorCode::value, "[work_split] thread {} has speed {}; speeds are above 0", i, speed);
    parts_[i].speed = speed;
  }
  helper_share_ = std::min<int64_t>(2 * int64_t(speeds.size()), kMaxHelperShare);
  use(int(speeds.size()), 1);
}

void WorkSplit::use(int threads, int64_t coarseness) {
  used_ = std::clamp(threads, 1, std::max(size(), 1)), coarseness_ = std::max<int64_t>(coarseness, 1);
  runs_.clear(), total_speed_ = 0;
  for (int i = 0; i < std::min(used_, size()); ++i) {
    const double speed = parts_[size_t(i)].speed;
    if (runs_.empty() || runs_.back().speed != speed) runs_.push_back({i, 0, speed});
    ++runs_.back().count;
    total_speed_ += speed;
  }
}

int64_t WorkSplit::cut(int64_t units, double unit_ns) {
  units_ = units;
  grain_ = std::max<int64_t>(1, int64_t(std::min(kGrainNs * double(coarseness_) / unit_ns, double(units))));
  least_ = double(grain_) * unit_ns < kMinNs ? 2 : 1;
  return grains_ = units / grain_ + (units % grain_ != 0);
}

// Each thread gets the grains that it can finish in the shortest time in which all can be finished, so that with few large grains a slow thread gets none
// rather than one too many.
void WorkSplit::deal() {
  int64_t end = 0;
  if (runs_.size() == 1) {
    runs_[0].each = grains_ / runs_[0].count;
    fill(runs_[0], grains_ % runs_[0].count, end);
    return;
  }
  const double time = double(grains_) / total_speed_;  // in grains on a thread of speed 1
  int64_t rest = grains_;
  for (Run& run : runs_) {
    run.each = int64_t(time * run.speed * (1 - 1e-12));
    rest -= run.each * run.count;
  }
  // The remainder from rounding goes to the threads that finish it first, one whole run at a time.
  Run* next = nullptr;
  while (rest > 0) {
    next =
        &*std::min_element(runs_.begin(), runs_.end(), [](const Run& a, const Run& b) { return double(a.each + 1) * b.speed < double(b.each + 1) * a.speed; });
    if (rest < next->count) break;
    ++next->each;
    rest -= next->count;
  }
  for (const Run& run : runs_) fill(run, &run == next ? rest : 0, end);
}

// The first `extra` threads of a run get one extra grain.
void WorkSplit::fill(const Run& run, int64_t extra, int64_t& end) {
  const int dealt = run.each ? run.count : int(extra);
  for (int i = 0; i < dealt; ++i) {
    Part& part = parts_[size_t(run.first + i)];
    const int64_t have = run.each + (i < extra);
    part.end = end += have;
    part.least.store(least_, std::memory_order_relaxed);
    part.left.store(have, std::memory_order_release);
  }
}

WorkSplit::Chunk WorkSplit::claim(int thread, int distance) {
  Part& part = parts_[size_t(thread + distance < size() ? thread + distance : thread + distance - size())];
  const int64_t share = distance ? helper_share_ : kOwnerShare;
  int64_t have = part.left.load(std::memory_order_relaxed), take;
  do {
    if (have == 0) return {};
    // The owner would finish everything that is left before a much slower helper could finish one grain.
    if (distance && double(have) * parts_[size_t(thread)].speed < part.speed) return {};
    take = std::min(std::max((have + share - 1) / share, part.least.load(std::memory_order_relaxed)), have);
  } while (!part.left.compare_exchange_weak(have, have - take, std::memory_order_acq_rel, std::memory_order_relaxed));
  const int64_t begin = (part.end - have) * grain_;
  return {begin, std::min(begin + take * grain_, units_), take};
}

}  // namespace ridge
