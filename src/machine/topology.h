// What the machine is made of: cores by kind, hardware threads, caches, packages, NUMA nodes, memory. Whether the process may
// use all of it is another question: see limits.h, and machine.h for both together.
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
  int cores = 1;  // so many cores share it
  auto operator<=>(const Cache&) const = default;
};

// One physical core.
struct Core {
  std::vector<int> cpus;  // the system's numbers of its hardware threads, the first one first
  int kind = 0;           // index into Topology::kinds
  int package = 0, numa_node = 0;
  int cluster = 0;            // cores of one number share the nearest thing that several share: a cache, a cluster, a package
  int reported = 0;           // the kind that the system reports, before any measurement; -1: it reports none
  double guess = 0;           // the speed that the system suggests (capacity or highest frequency), in any unit; 0: none
  std::vector<Cache> caches;  // nearest first
};

struct CoreKind {
  std::string name;           // performance, efficiency, low-power: by rank
  std::vector<int> cpus;      // the first hardware thread of each core
  std::vector<int> siblings;  // their further hardware threads
  std::vector<Cache> caches;  // nearest first
  double speed = 1;           // relative to the fastest kind
  bool measured = false;      // else speed is a guess

  int cores() const { return int(cpus.size()); }
  int threads() const { return int(cpus.size() + siblings.size()); }
  int64_t cache_bytes(int level) const;  // 0: no such cache
};

struct Topology {
  std::string cpu_name;         // as the vendor writes it; may be empty
  std::string architecture;     // x86-64, arm64, …
  std::vector<Core> cores;      // in the system's order
  std::vector<CoreKind> kinds;  // fastest first; never empty, and no kind is
  int packages = 1, numa_nodes = 1;
  int64_t memory_bytes = 0;  // 0: unknown
  bool can_pin = false;      // threads can be bound to CPUs
  std::vector<std::string> remarks;

  int core_count() const;
  int thread_count() const;
  bool has_smt() const { return thread_count() > core_count(); }
  int64_t last_level_bytes() const;        // all last-level caches together
  const CoreKind* kind_of(int cpu) const;  // null: no such CPU
};

Topology read_topology();                          // hwloc on Linux, sysctl on macOS; one core of unknown kind when nothing can be read
Topology topology_from_xml(std::string_view xml);  // as hwloc exports it; can_pin is false

// Kinds whose speeds differ by less than this are one.
constexpr double kSameKind = 0.15;

// Fills kinds from the speed of each core, in any unit: near ones are merged, the rest sorted and named. For those who make a topology.
void set_kinds(Topology& topology, const std::vector<double>& speed, bool measured);
void set_kinds_by_hints(Topology& topology);  // from what the cores' reported kinds and guesses suggest

std::string_view build_architecture();  // of this program

}  // namespace ridge
