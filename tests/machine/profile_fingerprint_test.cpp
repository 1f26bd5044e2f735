#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "machine/features.h"
#include "machine/fingerprint.h"
#include "machine/sizes.h"

namespace ridge {
namespace {

Machine example_machine() {
  Machine m;
  m.topology.cpu_name = "a CPU";
  m.topology.architecture = "x86-64";
  m.topology.memory_bytes = 64 * kGiB;
  for (int i = 0; i < 4; ++i) m.topology.cores.push_back({.cpus = {i}, .caches = {{1, 32 << 10, 1}, {2, 1 << 20, 1}}});
  set_kinds(m.topology, {1.0}, true);
  m.limits.cpus = {0, 1, 2, 3};
  m.limits.memory_total = 64 * kGiB;
  return m;
}

TEST(Fingerprint, IsTheSameForTheSameMachine) {
  const Fingerprint print = fingerprint(example_machine());
  EXPECT_EQ(print.id.size(), 16u);
  EXPECT_EQ(print.id, fingerprint(example_machine()).id);
  EXPECT_TRUE(nlohmann::json::accept(print.description));
  // What is measured depends on the kernels that run.
  EXPECT_EQ(nlohmann::json::parse(print.description).value("vector_instructions", ""), name(isa_tier()));
  // Nothing that is measured or varies counts.
  const std::function<void(Machine&)> same[] = {
      [](Machine& m) { m.topology.memory_bytes += 100 << 20; },     [](Machine& m) { m.limits.memory_available = 3 * kGiB; },
      [](Machine& m) { m.topology.kinds[0].speed = 0.9; },          [](Machine& m) { m.topology.cores[3].kind = 1, set_kinds(m.topology, {1.0, 0.5}, true); },
      [](Machine& m) { m.topology.remarks.push_back("a remark"); },
  };
  for (const auto& change : same) {
    Machine m = example_machine();
    change(m);
    EXPECT_EQ(fingerprint(m).id, print.id);
  }
}

TEST(Fingerprint, DiffersWithHardwareAndLimits) {
  const std::function<void(Machine&)> other[] = {
      [](Machine& m) { m.topology.cpu_name = "another CPU"; },
      [](Machine& m) { m.topology.cores.pop_back(); },
      [](Machine& m) { m.topology.cores[0].cpus.push_back(4); },
      [](Machine& m) { m.topology.cores[3].caches[1].bytes /= 2; },
      [](Machine& m) { m.topology.memory_bytes /= 2; },
      [](Machine& m) {
        m.limits.cpus = {0, 1};
      },
      [](Machine& m) { m.limits.cpu_quota = 1.5; },
      [](Machine& m) { m.limits.memory_limit = kGiB; },
      [](Machine& m) { m.topology.cpu_name = "bytes \xff\xfe of no text"; },
  };
  std::set<std::string> seen = {fingerprint(example_machine()).id};
  for (const auto& change : other) {
    Machine m = example_machine();
    change(m);
    const Fingerprint print = fingerprint(m);
    EXPECT_TRUE(seen.insert(print.id).second) << print.description;
    EXPECT_TRUE(nlohmann::json::accept(print.description));
  }
}

}  // namespace
}  // namespace ridge
