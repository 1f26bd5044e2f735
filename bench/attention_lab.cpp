// Attention alone, on the thread team: time and rate of forward, backward and both, compared with the machine's FMA rate.
//   bench_attention_lab [threads] [BATCHxHEADSxLENGTHxDIM ...]   causal, f32; without shapes, other layouts and options too; RIDGE_ISA picks the tier
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "backend/cpu/attention.h"
#include "machine/features.h"
#include "threads/thread_team.h"

namespace {

using ridge::AttentionDesc;
using ridge::cpu::Ref;
using ridge::cpu::Task;
using ridge::cpu::Worker;

// A single thread is timed by its CPU time, so that a busy machine disturbs less.
bool cpu_time = false;
double now_us() {
  if (cpu_time) {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) * 1e6 + double(t.tv_nsec) / 1e3;
  }
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + long(x.size() / 2), x.end());
  return x[x.size() / 2];
}

#if defined(__x86_64__)
// Twelve independent chains of 16-wide FMA: 4,000 steps per unit.
__attribute__((target("avx512f,fma"))) void fma_unit(const void*, int64_t begin, int64_t end, Worker& worker) {
  using V = float __attribute__((vector_size(64)));
  V acc[12], x = V{} + 1.000001f, y = V{} + 1e-9f;
  for (V& a : acc) a = V{} + 1.0f;
  for (int64_t u = begin; u < end; ++u)
    for (int i = 0; i < 4000; ++i)
#pragma GCC unroll 12
      for (V& a : acc) {
        a = __builtin_ia32_vfmaddps512_mask(a, x, y, 0xffff, 4);
      }
  V sum{};
  for (V& a : acc) sum += a;
  *reinterpret_cast<float*>(worker.scratch) = sum[0];
}
constexpr double kFmaUnitFlops = 4000.0 * 12 * 32;
#endif

struct Lab {
  ridge::ThreadTeam team;
  ridge::cpu::Fault fault;
  explicit Lab(int threads) : team({.threads = threads}) {}

  double fma_rate() {  // GFLOP/s of the team, 0 if this tier has no FMA loop
#if defined(__x86_64__)
    if (!ridge::has_avx512(ridge::isa_tier())) return 0;
    Task task{fma_unit, nullptr, 4 * team.size(), 30'000};
    team.reserve_scratch(64);
    const double t0 = now_us();
    team.run({&task, 1}, nullptr, fault);
    return kFmaUnitFlops * double(task.units) / (now_us() - t0) / 1e3;
#else
    return 0;
#endif
  }

  void row(const AttentionDesc& desc, const char* variant) {
    const int64_t size = 3 * desc.batch * desc.heads * desc.queries * desc.dim;  // enough for every layout
    const size_t each = (size_t(size) * 4 + 4095) / 4096 * 4096 + 64, whole = (9 * each + (2 << 20)) >> 21 << 21;
    std::byte* arena = static_cast<std::byte*>(std::aligned_alloc(2 << 20, whole));
    madvise(arena, whole, MADV_HUGEPAGE);
    std::vector<std::byte*> bases;
    for (size_t b = 0; b < 9; ++b) {
      bases.push_back(arena + b * each);
      for (size_t i = 0; i < size_t(size); ++i) reinterpret_cast<float*>(bases[b])[i] = float((i * 2654435761u + b * 977) % 2001) / 1000 - 1;
    }
    auto forward = ridge::cpu::make_attention(desc), backward = ridge::cpu::make_attention_grad(desc);
    std::vector<float> workspace(size_t(backward->workspace_bytes() / 4 + 16));
    bases.push_back(reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64));
    team.reserve_scratch(std::max(forward->scratch_bytes(), backward->scratch_bytes()));
    enum { q, k, v, out, lse, dout, dq, dk, dv, work, random };
    std::vector<int64_t> scalars{12345, 1, 0};  // seed, step, base
    bases.push_back(reinterpret_cast<std::byte*>(scalars.data()));
    std::vector<Task> f, b, both;
    auto ref = [](int i) { return Ref{i, 0}; };
    std::vector<Ref> in{ref(q), ref(k), ref(v)};
    if (desc.mask != AttentionDesc::Mask::none) in.push_back(ref(dq));  // the values do not matter
    if (desc.dropout > 0)
      for (int i = 0; i < 3; ++i) in.push_back({random, 8 * i});
    in.push_back(ref(out)), in.push_back(ref(lse));
    std::vector<Ref> grad = in;
    for (int i : {dout, dq, dk, dv}) grad.push_back(ref(i));
    forward->bind(in, {}, f), backward->bind(grad, ref(work), b);
    both = f, both.insert(both.end(), b.begin(), b.end());
    auto run = [&](const std::vector<Task>& tasks) {
      const double t0 = now_us();
      team.run(tasks, bases.data(), fault);
      return now_us() - t0;
    };
    const double pairs = double(desc.batch * desc.heads) * double(desc.queries) * double(desc.queries + 1) / 2;
    const double gflop = 7 * 2 * pairs * double(desc.dim) / 1e9;
    std::vector<double> tf, tb, t2, roof;
    run(both);
    const double one = std::max(20.0, run(both));
    for (int i = 0; i < std::clamp(int(600'000 / one), 7, 300); ++i) {
      tf.push_back(run(f)), tb.push_back(run(b));
      const double before = fma_rate(), t = run(both), after = fma_rate();
      t2.push_back(t), roof.push_back(before + after > 0 ? gflop / t * 1e6 / ((before + after) / 2) : 0);
    }
    double planned = 0;
    for (const Task& t : both) planned += double(t.units) * t.unit_ns / 1e3;
    std::printf("attention/%ldx%ldx%ldx%ld%s  threads %d  forward %.1f us  backward %.1f us  both %.1f us  %.1f GFLOP/s  roof %.3f  units x unit_ns %.1f us\n",
                long(desc.batch), long(desc.heads), long(desc.queries), long(desc.dim), variant, team.size(), median(tf), median(tb), median(t2),
                gflop / median(t2) * 1e6, median(roof), planned);
    std::free(arena);
  }
};

}  // namespace

int main(int argc, char** argv) {
  cpu_time = argc > 1 && std::atoi(argv[1]) == 1;
  Lab lab(argc > 1 ? std::atoi(argv[1]) : 0);
  std::vector<std::string> shapes(argv + std::min(argc, 2), argv + argc);
  if (shapes.empty()) shapes = {"12x4x64x32", "12x4x256x32", "12x6x256x64", "2x4x1024x64"};
  std::printf("isa %s, FMA %.1f GFLOP/s\n", std::string(ridge::name(ridge::isa_tier())).c_str(), lab.fma_rate());
  for (const std::string& shape : shapes) {
    long batch, heads, length, dim;
    if (std::sscanf(shape.c_str(), "%ldx%ldx%ldx%ld", &batch, &heads, &length, &dim) != 4) {
      std::fprintf(stderr, "%s is not BATCHxHEADSxLENGTHxDIM\n", shape.c_str());
      return 2;
    }
    AttentionDesc desc{.batch = batch, .heads = heads, .kv_heads = heads, .queries = length, .keys = length, .dim = dim};
    desc.causal = true, desc.scale = 1 / __builtin_sqrt(double(dim));
    const AttentionDesc::Strides s{heads * length * dim, length * dim, dim, 1};
    desc.q = desc.k = desc.v = desc.out = desc.dout = desc.dq = desc.dk = desc.dv = s;
    lab.row(desc, "");
    if (argc > 2) continue;
    AttentionDesc other = desc;
    const int64_t row = 3 * heads * dim;
    other.q = other.k = other.v = other.dq = other.dk = other.dv = {length * row, dim, row, 1};
    lab.row(other, " qkv slices");
    other = desc, other.dtype = ridge::DType::bf16;
    lab.row(other, " bf16");
    other = desc, other.dropout = 0.1;
    lab.row(other, " dropout");
    other = desc, other.mask = AttentionDesc::Mask::additive, other.mask_strides = {0, 0, length, 1};
    lab.row(other, " additive mask");
  }
}
