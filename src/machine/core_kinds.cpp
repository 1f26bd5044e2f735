#include "machine/core_kinds.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <fmt/core.h>

namespace ridge {
namespace {

constexpr int kMaxMeasurements = 64, kMaxVisits = 48;  // the rest is for retries
constexpr size_t kAllClusters = 8, kSomeClusters = 4;  // up to this many clusters of cores that look alike are all measured; beyond that, only some
constexpr int kRetries = 4;

// Cores that look alike in the system's report, by cluster.
using Cluster = std::vector<int>;                         // indices of cores
using ReportedKind = std::pair<int, std::vector<Cache>>;  // reported kind, caches

std::vector<std::vector<Cluster>> group_similar(const Topology& t) {
  std::map<ReportedKind, std::map<int, Cluster>> found;
  for (size_t i = 0; i < t.cores.size(); ++i) {
    const Core& core = t.cores[i];
    found[ReportedKind(core.reported, core.caches)][core.cluster].push_back(int(i));
  }
  std::vector<std::vector<Cluster>> out;
  for (auto& [key, clusters] : found) {
    out.emplace_back();
    for (auto& [number, cores] : clusters) out.back().push_back(std::move(cores));
  }
  return out;
}

class Measurer {
 public:
  Measurer(const Topology& t, const MeasureCpu& measure, const std::vector<int>& allowed) : measure_(measure), speed_(t.cores.size()) {
    const std::set<int> set(allowed.begin(), allowed.end());
    for (const Core& core : t.cores) {
      auto at = std::find_if(core.cpus.begin(), core.cpus.end(), [&](int cpu) { return set.empty() || set.count(cpu); });
      cpu_.push_back(at == core.cpus.end() ? -1 : *at);
    }
  }

  bool can(int core) const { return cpu_[core] >= 0; }

  void visit(int core) {
    if (can(core) && speed_[core] == 0 && visits_++ < kMaxVisits) again(core);
  }

  void again(int core) {
    if (left_ <= 0) return;
    --left_;
    const double s = measure_(cpu_[core]);
    if (std::isfinite(s) && s > speed_[core]) speed_[core] = s;
  }

  // A core that measures far below others that look like it may only have been disturbed, so it is measured again. If it is still slow the difference is real,
  // and other cores of that speed are believed too.
  bool differ(const std::vector<int>& cores) {
    double best = 0;
    for (int i : cores) best = std::max(best, speed_[i]);
    std::vector<double> levels;
    for (int i : cores) {
      if (speed_[i] == 0) continue;
      auto known = [&] { return std::any_of(levels.begin(), levels.end(), [&](double s) { return std::abs(s - speed_[i]) < 0.5 * kSameKind * s; }); };
      for (int n = 0; n < kRetries && below(speed_[i], best) && !known(); ++n) again(i);
      if (below(speed_[i], best)) levels.push_back(speed_[i]);
    }
    return !levels.empty();
  }

  void measure_similar(const std::vector<Cluster>& clusters) {
    std::vector<Cluster> open;  // the measurable cores of each cluster
    for (const Cluster& c : clusters) {
      Cluster cores;
      std::copy_if(c.begin(), c.end(), std::back_inserter(cores), [&](int i) { return can(i); });
      if (!cores.empty()) open.push_back(std::move(cores));
    }
    if (open.empty()) return;
    const size_t some = open.size() <= kAllClusters ? open.size() : kSomeClusters;
    std::vector<int> sample;
    for (size_t i = 0; i < some; ++i) {
      const Cluster& c = open[some > 1 ? i * (open.size() - 1) / (some - 1) : 0];
      sample.push_back(c.front());
      if (c.size() > 1) sample.push_back(c.back());
    }
    for (int i : sample) visit(i);
    if (!differ(sample)) return;
    std::vector<int> all;  // one of each cluster first, in case not all can be measured
    for (const Cluster& c : open) all.push_back(c.front());
    for (const Cluster& c : open) all.insert(all.end(), c.begin() + 1, c.end());
    for (int i : all) visit(i);
    differ(all);
  }

  // A core that was not measured is assumed to match the nearest one of its cluster, or else of the cores that look like it.
  void fill(const std::vector<Cluster>& clusters) {
    const std::vector<double> known = speed_;
    std::vector<int> all;
    for (const Cluster& c : clusters) all.insert(all.end(), c.begin(), c.end());
    for (const Cluster& c : clusters)
      for (int i : c)
        if (known[i] == 0) {
          const int like = nearest(known, c, i) >= 0 ? nearest(known, c, i) : nearest(known, all, i);
          if (like >= 0) speed_[i] = known[like];
        }
  }

  std::vector<double>& speed() { return speed_; }

 private:
  static bool below(double s, double best) { return s < best * (1 - kSameKind); }

  static int nearest(const std::vector<double>& known, const std::vector<int>& cores, int i) {
    int best = -1;
    for (int j : cores)
      if (known[j] > 0 && (best < 0 || std::abs(j - i) < std::abs(best - i))) best = j;
    return best;
  }

  const MeasureCpu& measure_;
  std::vector<double> speed_;  // of each core; 0: unknown
  std::vector<int> cpu_;       // the CPU to measure each core on; -1: not allowed
  int visits_ = 0, left_ = kMaxMeasurements;
};

// For cores that could not be measured: what the hints suggest, in the unit of the measured ones.
bool fill_by_hints(const Topology& t, std::vector<double>& speed) {
  double known = 0, hinted = 0;
  for (size_t i = 0; i < speed.size(); ++i)
    if (speed[i] > 0) known += speed[i], hinted += t.kinds[t.cores[i].kind].speed;
  if (known == 0) return false;
  for (size_t i = 0; i < speed.size(); ++i)
    if (speed[i] == 0) speed[i] = known / hinted * t.kinds[t.cores[i].kind].speed;
  return true;
}

}  // namespace

void confirm_kinds(Topology& topology, const MeasureCpu& measure, const std::vector<int>& allowed) {
  if (!measure || topology.cores.empty()) return;
  if (topology.kinds.empty()) set_kinds_by_hints(topology);
  Measurer measurer(topology, measure, allowed);
  const auto groups = group_similar(topology);
  for (const auto& clusters : groups) measurer.measure_similar(clusters);
  const std::vector<double> measured = measurer.speed();
  for (const auto& clusters : groups) measurer.fill(clusters);
  if (!fill_by_hints(topology, measurer.speed())) {
    topology.remarks.push_back("the kinds of cores could not be measured; those that the system reports are used");
    return;
  }
  std::set<int> reported;
  for (const Core& core : topology.cores)
    if (core.reported >= 0) reported.insert(core.reported);
  set_kinds(topology, measurer.speed(), true);
  for (size_t k = 0; k < topology.kinds.size(); ++k) {
    bool any = false;
    for (size_t i = 0; i < topology.cores.size(); ++i) any |= topology.cores[i].kind == int(k) && measured[i] > 0;
    topology.kinds[k].measured = any;
  }
  // One measured kind where the system reports none is not a difference.
  if (reported.size() != topology.kinds.size() && (reported.size() > 1 || topology.kinds.size() > 1))
    topology.remarks.push_back(fmt::format("the system reports {} kind{} of cores; measured, there {} {}", reported.size(), reported.size() == 1 ? "" : "s",
                                           topology.kinds.size() == 1 ? "is" : "are", topology.kinds.size()));
}

}  // namespace ridge
