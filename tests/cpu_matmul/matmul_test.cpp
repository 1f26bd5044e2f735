#include "matmul_case.h"

#include <sys/mman.h>

#include "base/error.h"
#include "support/rounds.h"

namespace ridge::cpu {
namespace {

TEST(Matmul, MatchesDoubleLoopForOddShapes) {
  const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 13, 16, 31, 33, 65};
  for (int64_t m : sizes)
    for (int64_t n : sizes)
      for (int64_t k : {0, 1, 2, 3, 7, 16, 31, 67}) {
        SCOPED_TRACE(testing::Message() << m << "x" << n << "x" << k);
        const int form = int((m * 7 + n * 3 + k) % 8);
        Case(plain(m, n, k, form & 1, form & 2, form & 4, k % 3)).check();
        if (HasFailure()) return;
      }
}

TEST(Matmul, EveryTranspositionAcrossBlockBoundaries) {
  const int64_t shapes[][3] = {{129, 65, 131}, {61, 129, 513}, {29, 301, 77},  {1, 257, 129}, {3, 1031, 65},
                               {251, 1, 67},   {197, 4, 130},  {14, 32, 1025}, {4, 64, 64}};
  for (const auto& s : shapes)
    for (int form = 0; form < 8; ++form) {
      SCOPED_TRACE(testing::Message() << s[0] << "x" << s[1] << "x" << s[2] << " form " << form);
      Case(plain(s[0], s[1], s[2], form & 1, form & 2, form & 4)).check({.threads = 3, .run = 2, .seed = 5});
      if (HasFailure()) return;
    }
}

TEST(Matmul, FewRowsOrColumns) {
  for (int64_t few : {1, 2, 3, 4, 5, 6, 7, 9, 15, 16, 17})
    for (int form = 0; form < 8; ++form) {
      SCOPED_TRACE(testing::Message() << few << " rows or columns, form " << form);
      Case(plain(few, 301, 67, form & 1, form & 2, form & 4)).check({.threads = 2, .run = 2, .seed = 6});
      Case(plain(301, few, 67, form & 1, form & 2, form & 4)).check({.threads = 2, .run = 2, .seed = 6});
    }
}

// The wider operand of a long sum is packed by the units, whichever side it is on; scattered rows are packed by row.
TEST(Matmul, LongSumsAndScatteredRows) {
  for (bool left : {true, false}) Case(plain(left ? 257 : 64, left ? 64 : 257, 1025, true)).check({.threads = 3, .seed = 8});
  for (int64_t few : {3, 15}) {
    MatmulDesc d;
    d.m = {{3, 31, 0, 41 * few}, {41, 3 * 31, 0, few}}, d.n = {{few, 0, 1, 1}}, d.k = {{31, 1, few, 0}};
    SCOPED_TRACE(testing::Message() << few << " columns");
    Case(d).check({.threads = 2, .run = 2, .seed = 9});
  }
}

// Blocks of a few elements: small products cross every boundary between tiles, K blocks, units and chunks.
TEST(Matmul, AnyBlocking) {
  std::mt19937 rng(11);
  const auto pick = [&](int64_t low, int64_t high) { return low + int64_t(rng() % uint64_t(high - low + 1)); };
  const DType types[] = {DType::f32, DType::f32, DType::bf16, DType::f16};
  for (int round = 0; round < test::rounds(150); ++round) {
    MatmulModel model;
    model.depth = pick(3, 70), model.l2 = int64_t(1) << pick(9, 20), model.shared_bytes = int64_t(1) << pick(8, 20);
    model.tiny_flops = pick(0, 3) ? 0 : 1e6, model.unit_ns = pick(0, 1) ? 1 : 5000, model.few_rows = pick(0, 16);
    // Each operand has its own axis order, including split loops.
    MatmulDesc d;
    d.batch.resize(size_t(pick(0, 2))), d.m.resize(size_t(pick(1, 2))), d.n.resize(size_t(pick(1, 2))), d.k.resize(size_t(pick(1, 2)));
    const int64_t most = pick(0, 3) ? 60 : 9;
    for (MatmulLoop& l : d.batch) l.size = pick(1, 3);
    for (auto* loops : {&d.m, &d.n, &d.k})
      for (MatmulLoop& l : *loops) l.size = pick(1, loops->size() == 1 ? 2 * most : most / 4 + 2);
    if (!pick(0, 7) && d.m.size() == 1) d.m[0].size = pick(130, 400);  // units of more tiles than usual
    const auto lay_out = [&](int64_t MatmulLoop::*stride, std::vector<std::vector<MatmulLoop>*> dims) {
      std::shuffle(dims.begin(), dims.end(), rng);
      int64_t step = 1;
      for (auto* loops : dims)
        for (auto l = loops->rbegin(); l != loops->rend(); ++l) {
          (*l).*stride = step;
          step = step * l->size + (pick(0, 5) ? 0 : 3);
        }
    };
    lay_out(&MatmulLoop::a, {&d.m, &d.k, &d.batch});
    lay_out(&MatmulLoop::b, {&d.k, &d.n, &d.batch});
    lay_out(&MatmulLoop::c, {&d.m, &d.n, &d.batch});
    if (!pick(0, 4))
      for (MatmulLoop& l : d.batch) l.b = 0;
    if (!pick(0, 3)) d.m.back().a = -d.m.back().a;
    d.a_type = types[pick(0, 3)], d.b_type = types[pick(0, 3)], d.c_type = types[pick(0, 3)];
    if (!pick(0, 3))
      d.epilogue_scratch = pick(0, 1) * 192;
    else if (!pick(0, 2))
      d.c_type = DType::f32, d.accumulate = true;
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << size_of_loops(d.m) << "x" << size_of_loops(d.n) << "x" << size_of_loops(d.k) << " batch "
                                    << size_of_loops(d.batch));
    Case(d, uint32_t(round), model).check({.threads = 3, .run = 2, .seed = uint32_t(round) + 1});
    if (HasFailure()) return;
  }
}

TEST(Matmul, LargerThanEveryBlock) {
  for (int form = 0; form < 4; ++form) {
    SCOPED_TRACE(testing::Message() << "form " << form);
    Case(plain(211, 307, 541, form & 1, form & 2)).check({.threads = 2, .run = 3, .seed = 9});
  }
}

TEST(Matmul, StorageTypesSumInFloat) {
  const DType types[] = {DType::f32, DType::bf16, DType::f16};
  for (DType a : types)
    for (DType b : types)
      for (DType c : types)
        for (int form = 0; form < 4; ++form)
          for (const auto& s : {std::array<int64_t, 3>{37, 45, 70}, {1, 50, 33}, {70, 2, 20}, {70, 75, 530}}) {
            if (s[0] == 70 && s[2] == 530 && form != int(a) % 4) continue;
            SCOPED_TRACE(testing::Message() << name(a) << " " << name(b) << " " << name(c) << " form " << form << " m " << s[0]);
            MatmulDesc d = plain(s[0], s[1], s[2], form & 1, form & 2);
            d.a_type = a, d.b_type = b, d.c_type = c;
            Case(d).check();
            if (HasFailure()) return;
          }
}

TEST(Matmul, AccumulatesIntoC) {
  for (const auto& s : {std::array<int64_t, 3>{1, 64, 64}, {33, 17, 0}, {5, 7, 3}, {130, 70, 600}, {64, 3, 40}})
    for (int form = 0; form < 8; ++form) {
      SCOPED_TRACE(testing::Message() << s[0] << "x" << s[1] << "x" << s[2] << " form " << form);
      MatmulDesc d = plain(s[0], s[1], s[2], form & 1, form & 2, form & 4);
      d.accumulate = true;
      Case(d).check();
    }
}

TEST(Matmul, EmptySumsKeepTheAccumulator) {
  MatmulDesc d = plain(9, 11, 0);
  d.accumulate = true;
  Case c(d);
  save(c.c.bytes, DType::f32, c.c.origin, -0.f);
  for (IsaTier tier : tiers()) EXPECT_EQ(c.run(tier), c.c.bytes);
}

TEST(Matmul, EpilogueSeesEveryFinishedElementOnce) {
  for (const auto& s : {std::array<int64_t, 3>{1, 1, 1}, {1, 64, 64}, {64, 1, 64}, {7, 9, 0}, {50, 40, 30}, {200, 150, 100}, {70, 90, 1100}})
    for (int form = 0; form < 4; ++form)
      for (int64_t scratch : {0, 100}) {
        SCOPED_TRACE(testing::Message() << s[0] << "x" << s[1] << "x" << s[2] << " form " << form);
        MatmulDesc d = plain(s[0], s[1], s[2], form & 1, form & 2);
        d.epilogue_scratch = scratch;
        d.c_type = scratch ? DType::bf16 : DType::f32;
        d.batch = {{2, s[0] * s[2], 0, s[0] * s[1]}};
        Case(d).check({.threads = 2, .run = 2, .seed = 3});
      }
}

TEST(Matmul, BatchesBroadcastAndSplitHeads) {
  {
    // [batch][head] over packed qkv rows: scores = q kT, heads interleaved in memory.
    const int64_t batch = 3, heads = 4, time = 19, width = 8, row = 3 * heads * width;
    MatmulDesc d;
    d.batch = {{batch, time * row, time * row, heads * time * time}, {heads, width, width, time * time}};
    d.m = {{time, row, 0, time}}, d.n = {{time, 0, row, 1}}, d.k = {{width, 1, 1, 0}};
    Case(d).check({.threads = 2, .run = 3, .seed = 4});
    // The result merged back: C rows strided by heads.
    MatmulDesc o;
    o.batch = {{batch, heads * time * time, time * row, time * heads * width}, {heads, time * time, width, width}};
    o.m = {{time, time, 0, heads * width}}, o.n = {{width, 0, 1, 1}}, o.k = {{time, 1, row, 0}};
    Case(o).check({.threads = 2, .run = 3, .seed = 4});
    for (int shared = 0; shared < 4; ++shared) {  // A, B, both or none broadcast over the batch
      MatmulDesc e = plain(45, 37, 29);
      e.batch = {{5, shared & 1 ? 0 : 45 * 29, shared & 2 ? 0 : 37 * 29, 45 * 37}, {1, 0, 7, 0}};
      Case(e).check();
      MatmulDesc big = plain(150, 130, 120);
      big.batch = {{3, shared & 1 ? 0 : 150 * 120, shared & 2 ? 0 : 130 * 120, 150 * 130}};
      Case(big).check({.threads = 3, .run = 2, .seed = 8});
    }
  }
}

// y[b, co, oh, ow] = sum over (ci, kh, kw) of w[co, ci, kh, kw] * x[b, ci, oh * s + kh * d, ow * s + kw * d]
TEST(Matmul, ConvolutionWindowsNeedNoCopy) {
  for (int64_t stride : {1, 2})
    for (int64_t dilation : {1, 2}) {
      SCOPED_TRACE(testing::Message() << "stride " << stride << " dilation " << dilation);
      const int64_t images = 2, ci = 3, co = 17, in = 15, kernel = 3, out = (in - dilation * (kernel - 1) - 1) / stride + 1;
      MatmulDesc d;
      d.batch = {{images, 0, ci * in * in, co * out * out}};
      d.m = {{co, ci * kernel * kernel, 0, out * out}};
      d.n = {{out, 0, in * stride, out}, {out, 0, stride, 1}};
      d.k = {{ci, kernel * kernel, in * in, 0}, {kernel, kernel, in * dilation, 0}, {kernel, 1, dilation, 0}};
      Case(d).check();
      // The weight gradient sums over images and windows.
      MatmulDesc g;
      g.m = {{co, out * out, 0, ci * kernel * kernel}};
      g.n = {{ci, 0, in * in, kernel * kernel}, {kernel, 0, in * dilation, kernel}, {kernel, 0, dilation, 1}};
      g.k = {{images, co * out * out, ci * in * in, 0}, {out, out, in * stride, 0}, {out, 1, stride, 0}};
      g.accumulate = stride == 2;
      Case(g).check();
    }
}

TEST(Matmul, ZeroNegativeAndOverlappingStrides) {
  {
    for (int64_t size : {3, 40, 150}) {
      MatmulDesc d = plain(size, size + 3, 41);
      d.m[0].a = -41, d.k[0].b = -(size + 3);  // flipped rows
      Case(d).check();
      d = plain(size, size + 3, 41);
      d.n[0].b = -1, d.n[0].c = -1, d.k[0].a = -1;  // flipped columns
      Case(d).check();
      d = plain(size, size + 3, 41);
      d.m[0].a = 1, d.n[0].b = 0;  // sliding windows, a repeated column
      Case(d).check();
      d = plain(size, size + 3, 41);
      d.k[0].a = 0, d.m[0].a = 3;
      Case(d).check();
      d = plain(size, 1, 41);
      d.m[0].c = 5;
      Case(d).check();
      d = plain(2, size, 41);
      d.n[0].c = 3, d.m[0].c = 1;  // interleaved C
      Case(d).check();
    }
  }
}

TEST(Matmul, SameBitsForAnyOrderOfUnits) {
  for (IsaTier tier : tiers())
    for (const auto& s : {std::array<int64_t, 3>{100, 150, 90}, {60, 260, 230}, {2, 1500, 70}, {300, 3, 100}, {40, 40, 1000}})
      for (int form = 0; form < 4; ++form) {
        MatmulDesc d = plain(s[0], s[1], s[2], form & 1, form & 2);
        if (form == 3) d.c_type = DType::bf16;
        Case c(d, 1, {.depth = 100, .tiny_flops = 0});
        const auto once = c.run(tier);
        for (uint32_t seed : {1u, 2u, 3u})
          EXPECT_TRUE(c.run(tier, {.threads = int(seed) + 1, .run = int64_t(seed), .seed = seed}) == once) << name(tier) << " " << form;
      }
}

// Rows of A and C, and depths of B, more than 2^32 elements apart, in memory that is reserved and hardly touched.
TEST(Matmul, OffsetsBeyond32Bits) {
  const int64_t far = (int64_t(1) << 32) + 64, bytes = far * 4 * 3;
  void* space = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(space, MAP_FAILED);
  float* base = static_cast<float*>(space);
  for (int64_t m : {2, 3}) {
    MatmulDesc d = plain(m, 40, 2);
    d.m[0].a = far / 2, d.m[0].c = far / 2, d.k[0].b = far;  // A at 0, B at 128, C at 512
    for (int64_t i = 0; i < m; ++i) base[i * (far / 2)] = float(i + 1), base[i * (far / 2) + 1] = 10;
    for (int64_t j = 0; j < 40; ++j) base[128 + j] = float(j), base[128 + far + j] = 3;
    auto kernel = make_matmul(d);
    std::vector<std::byte> workspace(size_t(kernel->workspace_bytes()) + 64), scratch(size_t(kernel->scratch_bytes()) + 64);
    std::byte* bases[] = {reinterpret_cast<std::byte*>(base), workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64)};
    std::vector<Task> tasks;
    std::vector<Ref> refs = {{0, 0}, {0, 128 * 4}, {0, 512 * 4}};
    kernel->bind(refs, {1, 0}, tasks);
    Worker worker{0, bases, scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64), nullptr};
    for (const Task& t : tasks) t.run(t.args, 0, t.units, worker);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < 40; ++j) EXPECT_EQ(base[512 + i * (far / 2) + j], float(i + 1) * float(j) + 30);
  }
  munmap(space, size_t(bytes));
}

TEST(Matmul, RejectsInvalidDescriptions) {
  MatmulDesc d = plain(3, 3, 3);
  d.m[0].b = 1;
  EXPECT_THROW(make_matmul(d), Error);
  d = plain(3, 3, 3);
  d.a_type = DType::i32;
  EXPECT_THROW(make_matmul(d), Error);
  d = plain(3, 3, 3);
  d.c_type = DType::bf16, d.accumulate = true;
  EXPECT_THROW(make_matmul(d), Error);
  d = plain(3, 3, 3);
  d.k[0].size = -1;
  EXPECT_THROW(make_matmul(d), Error);
  auto kernel = make_matmul(plain(3, 3, 3));
  std::vector<Task> tasks;
  std::vector<Ref> refs = {{0, 0}};
  EXPECT_THROW(kernel->bind(refs, {}, tasks), Error);
}

}  // namespace
}  // namespace ridge::cpu
