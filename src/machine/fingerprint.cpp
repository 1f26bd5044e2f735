#include "machine/fingerprint.h"

#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "machine/features.h"

namespace ridge {
namespace {

// Incremented when the measuring loops change so much that old figures would mislead.
constexpr int kMeasuringLoops = 1;

// Kinds of cores may be distinguished by a measurement, which can vary; their caches cannot.
std::string describe_cores(const Topology& topology) {
  std::map<std::string, int> groups;
  for (const Core& core : topology.cores) {
    std::string text = fmt::format("{} threads", core.cpus.size());
    for (const Cache& cache : core.caches) text += fmt::format(", L{} {} KiB for {}", cache.level, cache.bytes >> 10, cache.cores);
    ++groups[text];
  }
  std::string text;
  for (const auto& [group, count] : groups) text += fmt::format("{}{} x ({})", text.empty() ? "" : " + ", count, group);
  return text;
}

std::string describe_build() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const char* form = "sanitized";
#elif defined(__OPTIMIZE__)
  const char* form = "optimised";
#else
  const char* form = "plain";
#endif
  return fmt::format("ridge {}, {}, compiler {}, loops {}", RIDGE_VERSION, form, __VERSION__, kMeasuringLoops);
}

int64_t whole_gib(int64_t bytes) { return (bytes + (int64_t(1) << 29)) >> 30; }

}  // namespace

Fingerprint fingerprint(const Machine& machine) {
  const Topology& topology = machine.topology;
  const Limits& limits = machine.limits;
  nlohmann::ordered_json parts;
  parts["cpu"] = topology.cpu_name;
  parts["architecture"] = topology.architecture;
  parts["cores"] = describe_cores(topology);
  parts["packages"] = topology.packages;
  parts["numa_nodes"] = topology.numa_nodes;
  parts["memory_gib"] = whole_gib(topology.memory_bytes);
  parts["cpus"] = format_cpu_list(limits.cpus);
  parts["cpu_quota"] = limits.cpu_quota;
  parts["memory_limit_mib"] = limits.memory_limit >> 20;
  parts["vector_instructions"] = std::string(name(isa_tier()));
  parts["build"] = describe_build();
  // Names come from firmware; the text must be valid whatever bytes they contain.
  std::string text = parts.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return {fmt::format("{:016x}", XXH3_64bits(text.data(), text.size())), text};
}

}  // namespace ridge
