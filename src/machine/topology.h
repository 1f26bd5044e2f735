// The machine's hardware: cores by kind, hardware threads, caches, packages, NUMA nodes, memory. limits.h covers what the process may use of it; machine.h
// combines both.
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ridge {

struct Cache {
  int level = 1;  // data or unified
  int64_t bytes = 0;
  int cores = 1;  // number of cores that share it
  auto operator<=>(const Cache&) const = default;
};

// One physical core.
struct Core {
  std::vector<int> cpus;  // the system's numbers for its hardware threads, the primary one first
  int kind = 0;           // index into Topology::kinds
  int package = 0, numa_node = 0;
  int cluster = 0;            // cores with the same number share the closest common resource: a cache, a cluster or a package
  int reported = 0;           // the kind that the system reports, before any measurement; -1: none
  double guess = 0;           // the speed that the system suggests (capacity or maximum frequency), in any unit; 0: none
  std::vector<Cache> caches;  // nearest first
};

struct CoreKind {
  std::string name;           // performance, efficiency, low-power: by rank
  std::vector<int> cpus;      // the first hardware thread of each core
  std::vector<int> siblings;  // their other hardware threads
  std::vector<Cache> caches;  // nearest first
  double speed = 1;           // relative to the fastest kind
  bool measured = false;      // false: speed is a guess

  int cores() const { return int(cpus.size()); }
  int threads() const { return int(cpus.size() + siblings.size()); }
  int64_t cache_bytes(int level) const;  // 0: no such cache
};

struct Topology {
  std::string cpu_name;         // as spelled by the vendor; may be empty
  std::string architecture;     // x86-64, arm64, …
  std::vector<Core> cores;      // in the system's order
  std::vector<CoreKind> kinds;  // fastest first; never empty, and neither is any kind
  int packages = 1, numa_nodes = 1;
  int64_t memory_bytes = 0;  // 0: unknown
  bool can_pin = false;      // threads can be bound to CPUs
  std::vector<std::string> remarks;

  int core_count() const;
  int thread_count() const;
  bool has_smt() const { return thread_count() > core_count(); }
  int64_t last_level_bytes() const;        // sum of all last-level caches
  const CoreKind* kind_of(int cpu) const;  // null: no such CPU
};

Topology read_topology();                          // hwloc on Linux, sysctl on macOS; one core of unknown kind if nothing can be read
Topology topology_from_xml(std::string_view xml);  // hwloc's export format; can_pin is false

// Kinds whose speeds differ by less than this are merged.
constexpr double kSameKind = 0.15;

// Fills kinds from each core's speed, in any unit: similar ones are merged, the rest sorted and named. For code that builds a topology.
void set_kinds(Topology& topology, const std::vector<double>& speed, bool measured);
void set_kinds_by_hints(Topology& topology);  // from the cores' reported kinds and guesses

std::string_view build_architecture();  // of this program

}  // namespace ridge
