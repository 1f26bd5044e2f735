#include "machine/topology.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include <fmt/core.h>

#include "machine/hwloc_source.h"
#include "machine/limits.h"
#include "machine/macos.h"

namespace ridge {
namespace {

std::string kind_name(size_t rank) {
  constexpr std::string_view kNames[] = {"performance", "efficiency", "low-power"};
  return rank < std::size(kNames) ? std::string(kNames[rank]) : fmt::format("low-power {}", rank - 1);
}

struct SpeedGroup {
  double mean = 0;  // speed
  std::vector<int> cores;
};

// Merges the closest neighbours, weighted by their number of cores, until all differ enough.
std::vector<SpeedGroup> group_by_speed(const std::vector<double>& speed) {
  std::map<double, std::vector<int>, std::greater<>> by_speed;
  for (size_t i = 0; i < speed.size(); ++i) by_speed[speed[i]].push_back(int(i));
  std::vector<SpeedGroup> groups;
  for (auto& [s, cores] : by_speed) groups.push_back({s, std::move(cores)});
  while (groups.size() > 1) {
    size_t nearest = 0;
    double least = 1;
    for (size_t i = 0; i + 1 < groups.size(); ++i) {
      const double difference = 1 - groups[i + 1].mean / groups[i].mean;
      if (difference < least) least = difference, nearest = i;
    }
    if (least >= kSameKind) break;
    SpeedGroup &a = groups[nearest], &b = groups[nearest + 1];
    const double na = double(a.cores.size()), nb = double(b.cores.size());
    a.mean = (a.mean * na + b.mean * nb) / (na + nb);
    a.cores.insert(a.cores.end(), b.cores.begin(), b.cores.end());
    groups.erase(groups.begin() + std::ptrdiff_t(nearest) + 1);
  }
  return groups;
}

std::vector<Cache> most_common_caches(const Topology& topology, const std::vector<int>& cores) {
  std::map<std::vector<Cache>, int> count;
  for (int i : cores) ++count[topology.cores[i].caches];
  return std::max_element(count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
}

// One core per online CPU, when nothing else is known.
void add_plain_cores(Topology& t) {
  for (int cpu : read_limits().online) {
    Core& core = t.cores.emplace_back();
    core.cpus = {cpu};
    core.reported = -1;
  }
  t.remarks.push_back("the system does not report its CPU topology; each CPU is treated as a core");
  set_kinds_by_hints(t);
}

}  // namespace

int64_t CoreKind::cache_bytes(int level) const {
  for (const Cache& c : caches)
    if (c.level == level) return c.bytes;
  return 0;
}

int Topology::core_count() const { return int(cores.size()); }

int Topology::thread_count() const {
  return std::accumulate(cores.begin(), cores.end(), 0, [](int n, const Core& c) { return n + int(c.cpus.size()); });
}

int64_t Topology::last_level_bytes() const {
  int level = 0;
  double bytes = 0;  // each core's share of its cache
  for (const Core& c : cores)
    if (!c.caches.empty()) level = std::max(level, c.caches.back().level);
  for (const Core& c : cores)
    for (const Cache& cache : c.caches)
      if (cache.level == level) bytes += double(cache.bytes) / cache.cores;
  return int64_t(std::llround(bytes));
}

const CoreKind* Topology::kind_of(int cpu) const {
  for (const Core& c : cores)
    if (std::find(c.cpus.begin(), c.cpus.end(), cpu) != c.cpus.end()) return &kinds[c.kind];
  return nullptr;
}

void set_kinds(Topology& topology, const std::vector<double>& speed, bool measured) {
  std::vector<SpeedGroup> groups = group_by_speed(speed);
  const double fastest = groups.empty() ? 1 : groups.front().mean;
  topology.kinds.clear();
  for (SpeedGroup& group : groups) {
    const int index = int(topology.kinds.size());
    std::sort(group.cores.begin(), group.cores.end());
    CoreKind& kind = topology.kinds.emplace_back();
    kind.name = kind_name(index);
    kind.caches = most_common_caches(topology, group.cores);
    kind.speed = group.mean / fastest;
    kind.measured = measured;
    for (int i : group.cores) {
      Core& core = topology.cores[i];
      core.kind = index;
      kind.cpus.push_back(core.cpus.front());
      kind.siblings.insert(kind.siblings.end(), core.cpus.begin() + 1, core.cpus.end());
    }
  }
}

void set_kinds_by_hints(Topology& topology) {
  int highest = -1;
  bool guessed = true;
  for (const Core& c : topology.cores) highest = std::max(highest, c.reported), guessed &= c.guess > 0;
  std::vector<double> speed;
  // A kind reported only as slower is assumed to have 0.6 of the speed of the next faster one, a typical measured value.
  for (const Core& c : topology.cores) speed.push_back(guessed ? c.guess : std::pow(0.6, highest - std::max(c.reported, 0)));
  set_kinds(topology, speed, false);
}

Topology read_topology() {
#if defined(__APPLE__)
  Topology t = topology_from_sysctl(read_sysctl());
#else
  Topology t = topology_from_hwloc();
#endif
  if (t.cores.empty()) add_plain_cores(t);
  if (t.architecture.empty()) t.architecture = build_architecture();
  return t;
}

std::string_view build_architecture() {
#if defined(__x86_64__)
  return "x86-64";
#elif defined(__aarch64__)
  return "arm64";
#else
  return "unknown";
#endif
}

}  // namespace ridge
