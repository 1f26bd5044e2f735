// The shared attention problem, run on the CPU kernels.
#pragma once
#include "backend/cpu/attention_kernels.h"
#include "support/attention_case.h"

namespace ridge::cpu {
inline namespace attention_test {  // lets all tests be linked into one program

using namespace test::attention_case;

struct Case : test::AttentionCase {
  // Runs all units of all tasks. `order` 0: in one call; 1: one by one, backwards; 2: in threes, odd ones first.
  void run(bool backward, IsaTier tier, int order = 0, const KernelVariant& variant = {});
};

inline void Case::run(bool backward, IsaTier tier, int order, const KernelVariant& variant) {
  std::vector<std::byte*> bases;
  std::vector<Ref> refs;
  auto add = [&](void* p, int64_t offset) { refs.push_back({int32_t(bases.size()), offset}), bases.push_back(static_cast<std::byte*>(p)); };
  const int64_t margin = kMargin * size_of(d.dtype);
  add(q.data(), margin), add(k.data(), margin), add(v.data(), margin);
  if (d.mask != Mask::none) add(mask.data(), 0);
  if (d.has_length) add(&length, 0);
  if (d.dropout > 0) add(&seed, 0), add(&step, 0), add(&base, 0);
  add(out.data(), margin), add(lse.data(), kMargin * 4);
  if (backward) add(dout.data(), margin), add(dq.data(), margin), add(dk.data(), margin), add(dv.data(), margin);
  auto kernel = backward ? make_attention_grad(d, tier, variant) : make_attention(d, tier, variant);
  auto aligned = [](std::vector<std::byte>& x, int64_t bytes) {
    x.assign(size_t(bytes) + 128, std::byte{0xff});  // NaN, to catch reads before writes
    return x.data() + (64 - reinterpret_cast<uintptr_t>(x.data()) % 64) % 64;
  };
  std::vector<std::byte> workspace, scratch;
  std::byte* work = aligned(workspace, kernel->workspace_bytes());
  bases.push_back(work);
  std::vector<Task> tasks;
  kernel->bind(refs, {int32_t(bases.size()) - 1, 0}, tasks);
  Worker worker{.id = 0, .bases = bases.data(), .scratch = aligned(scratch, kernel->scratch_bytes())};
  for (const Task& task : tasks) {
    if (order == 0) task.run(task.args, 0, task.units, worker);
    if (order == 1)
      for (int64_t u = task.units; u-- > 0;) task.run(task.args, u, u + 1, worker);
    if (order == 2)
      for (int64_t odd : {1, 0})
        for (int64_t u = 3 * odd; u < task.units; u += 6) task.run(task.args, u, std::min(u + 3, task.units), worker);
  }
}

}  // namespace attention_test
}  // namespace ridge::cpu
