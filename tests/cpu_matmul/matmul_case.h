// A matmul case for the CPU kernels, with a runner that distributes units as specified.
#pragma once
#include <array>
#include <limits>

#include "backend/cpu/matmul_kernels.h"
#include "machine/features.h"
#include "support/matmul_case.h"

namespace ridge::cpu {
inline namespace matmul_test {  // lets all tests be linked into one program

using namespace test::matmul_case;

inline std::vector<IsaTier> tiers() {
#if defined(__x86_64__)
  std::vector<IsaTier> all = {IsaTier::sse4};
  for (IsaTier tier : {IsaTier::avx2, IsaTier::avx512, IsaTier::avx512bf16})
    if (isa_tier() >= tier) all.push_back(tier);
  if (has_bf16(isa_tier())) all.push_back(IsaTier::amx);  // simulated where the CPU has no matrix units
  return all;
#else
  return {isa_tier()};
#endif
}

// How units are distributed: `threads` scratch areas filled with junk, units in an order drawn from the seed, in runs of up to `run`.
struct Dealing {
  int threads = 1;
  int64_t run = 1 << 30;
  uint32_t seed = 0;  // 0: in order
};

struct EpilogueLog {
  Operand* c = nullptr;
  const MatmulDesc* desc = nullptr;
  std::vector<int> seen;
  bool scratch_ok = true;
};

// Stores relu(sum) and fills its scratch with junk, to show that the kernel keeps nothing there.
inline void relu_epilogue(const void* context, Worker& worker, int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols, const float* acc,
                          int64_t ld) {
  auto& log = *static_cast<EpilogueLog*>(const_cast<void*>(context));
  const MatmulDesc& d = *log.desc;
  const int64_t m = size_of_loops(d.m), n = size_of_loops(d.n);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      const int64_t at = offset_of(d.batch, &MatmulLoop::c, batch) + offset_of(d.m, &MatmulLoop::c, row + i) + offset_of(d.n, &MatmulLoop::c, col + j);
      save(log.c->bytes, d.c_type, log.c->origin + at, std::max(0.f, acc[i * ld + j]));
      ++log.seen[size_t((batch * m + row + i) * n + col + j)];
    }
  log.scratch_ok = log.scratch_ok && reinterpret_cast<uintptr_t>(worker.scratch) % 64 == 0;
  if (d.epilogue_scratch > 0) std::memset(worker.scratch, 0xCD, size_t(d.epilogue_scratch));
}

struct Case : MatmulCase {
  MatmulModel model;
  KernelVariant variant = {};

  explicit Case(MatmulDesc d, uint32_t seed = 1, MatmulModel m = {}) : MatmulCase(std::move(d), seed), model(m) {}

  // C's bytes after a run with one tier's kernels.
  std::vector<std::byte> run(IsaTier tier, Dealing deal = {}) const {
    auto kernel = make_matmul_for(desc, tier, model, variant);
    Operand out = c;
    EpilogueLog log{&out, &desc, {}, true};
    const bool epilogue = desc.epilogue_scratch >= 0;
    if (epilogue) {
      log.seen.assign(size_t(size_of_loops(desc.batch) * size_of_loops(desc.m) * size_of_loops(desc.n)), 0);
      kernel->set_epilogue({relu_epilogue, &log});
    }
    auto aligned = [](std::vector<std::byte>& v) { return v.data() + (64 - reinterpret_cast<uintptr_t>(v.data()) % 64) % 64; };
    const size_t guard = 256;
    std::vector<std::byte> workspace(size_t(kernel->workspace_bytes()) + 64 + guard, std::byte{0xFF});
    std::vector<std::vector<std::byte>> scratch(size_t(deal.threads), std::vector<std::byte>(size_t(kernel->scratch_bytes()) + 64 + guard, std::byte{0xFF}));
    auto base = [](const Operand& o) { return const_cast<std::byte*>(o.bytes.data()) + o.origin * size_of(o.type); };
    std::byte* bases[4] = {base(a), base(b), base(out), aligned(workspace)};
    std::vector<Ref> refs = {{0, 0}, {1, 0}};
    if (!epilogue) refs.push_back({2, 0});
    std::vector<Task> tasks;
    kernel->bind(refs, {3, 0}, tasks);
    Fault fault;
    std::mt19937 rng(deal.seed);
    for (const Task& task : tasks) {
      std::vector<std::pair<int64_t, int64_t>> runs;
      for (int64_t u = 0; u < task.units;) {
        int64_t n = deal.seed ? 1 + int64_t(rng() % uint32_t(std::min<int64_t>(deal.run, 1 << 20))) : deal.run;
        runs.emplace_back(u, std::min(task.units, u + n));
        u += n;
      }
      if (deal.seed) std::shuffle(runs.begin(), runs.end(), rng);
      for (auto [begin, end] : runs) {
        Worker worker;
        worker.id = int(rng() % uint32_t(deal.threads));
        worker.bases = bases;
        worker.scratch = aligned(scratch[size_t(worker.id)]);
        worker.fault = &fault;
        task.run(task.args, begin, end, worker);
      }
      EXPECT_GT(task.unit_ns, 0);
    }
    auto untouched = [&](std::vector<std::byte>& v, int64_t bytes) {
      const std::byte* end = aligned(v) + bytes;
      return std::all_of(end, end + guard, [](std::byte x) { return x == std::byte{0xFF}; });
    };
    EXPECT_TRUE(untouched(workspace, kernel->workspace_bytes())) << "workspace overrun";
    for (auto& s : scratch) EXPECT_TRUE(untouched(s, kernel->scratch_bytes())) << "scratch overrun";
    EXPECT_TRUE(log.scratch_ok);
    for (int seen : log.seen) EXPECT_EQ(seen, 1) << "every element reaches the epilogue once";
    return out.bytes;
  }

  // Checks every tier against the double-precision loop.
  void check(Dealing deal = {}) const {
    const std::vector<Truth> truth = double_loop();
    for (IsaTier tier : tiers()) {
      SCOPED_TRACE(name(tier));
      compare(run(tier, deal), truth);
    }
  }
};

}  // namespace matmul_test
}  // namespace ridge::cpu
