#include "tile_harness.h"

namespace ridge::cpu::tile_test {

Outcome run(std::span<const TileGroup> groups, std::vector<Memory>& memory, Split split, int threads, const KernelVariant& variant) {
  auto kernel = make_tile_kernel(groups, threads, variant);
  std::vector<std::byte*> bases;
  std::vector<Ref> refs;
  for (auto& m : memory) {
    bases.push_back(m.data());
    refs.push_back({int32_t(refs.size()), 0});
  }
  std::vector<std::byte> workspace(size_t(kernel->workspace_bytes()) + 64, std::byte(0xFF)), scratch(size_t(kernel->scratch_bytes()) + 128, std::byte(0xFF));
  auto aligned = [](std::vector<std::byte>& v) { return v.data() + (64 - reinterpret_cast<uintptr_t>(v.data()) % 64) % 64; };
  bases.push_back(aligned(workspace));
  std::vector<Task> tasks;
  kernel->bind(refs, {int32_t(bases.size()) - 1, 0}, tasks);
  Fault fault;
  Worker worker;
  worker.bases = bases.data(), worker.scratch = aligned(scratch), worker.fault = &fault;
  for (const Task& t : tasks) {
    EXPECT_GT(t.unit_ns, 0);
    switch (split) {
      case Split::whole: t.run(t.args, 0, t.units, worker); break;
      case Split::single_backwards:
        for (int64_t u = t.units; u-- > 0;) {
          std::fill(scratch.begin(), scratch.end(), std::byte(0xFF));
          t.run(t.args, u, u + 1, worker);
        }
        break;
      case Split::thirds:
        for (int k : {1, 2, 0})
          if (t.units * k / 3 < t.units * (k + 1) / 3) t.run(t.args, t.units * k / 3, t.units * (k + 1) / 3, worker);
        break;
    }
  }
  int64_t units = 0;
  for (const Task& t : tasks) units = std::max(units, t.units);
  return {fault.raised.load(), fault.value, fault.limit, tasks.size(), units};
}

void check(const TileGroup& group, const std::vector<Memory>& memory, double tolerance) {
  std::vector<Memory> want = memory, got = memory, again = memory, shared = memory;
  evaluate(group, want);
  run(group, got);
  run(group, again, Split::single_backwards);
  run(group, shared, Split::whole, 64);
  for (size_t m = 0; m < got.size(); ++m) ASSERT_EQ(got[m].bytes, again[m].bytes) << "operand " << m << " depends on the partition\n" << to_string(group);
  for (size_t m = 0; m < got.size(); ++m) ASSERT_EQ(got[m].bytes, shared[m].bytes) << "operand " << m << " depends on the threads\n" << to_string(group);
  compare(group, got, want, tolerance);
}

}  // namespace ridge::cpu::tile_test
