// Row and column groups of every length against the scalar evaluator: a row per warp, per block, in shared memory, or in parts.
#include "backend/gpu/tile_plan.h"
#include "tile_harness.h"

namespace ridge::cuda::tile_test {
namespace {

class CudaTileRow : public test::CudaTest {};
class CudaTileColumn : public test::CudaTest {};

Build softmax(Shape domain, int reduced, Form form = Form::row) {
  Build b(form, domain, reduced);
  const int x = b.in(), e = b.op(Op::exp, b.op(Op::sub, x, b.reduce(Op::reduce_max, x)));
  b.out(b.op(Op::div, e, b.reduce(Op::reduce_sum, e)));
  return b;
}

Build layer_norm(int64_t rows, int64_t cols, DType t) {
  Build b(Form::row, {rows, cols}, 1);
  auto wide = [&](int v) { return t == DType::f32 ? v : b.op(Op::cast, v); };
  const int x = wide(b.in(t)), gamma = wide(b.load(b.operand(), t, {0, 1})), beta = b.load(b.operand(), DType::f32, {0, 1});
  const int scale = b.literal(1.0 / double(cols)), mean = b.op(Op::mul, b.reduce(Op::reduce_sum, x), scale), centred = b.op(Op::sub, x, mean);
  const int var = b.op(Op::mul, b.reduce(Op::reduce_sum, b.op(Op::mul, centred, centred)), scale);
  const int rstd = b.op(Op::rsqrt, b.op(Op::add, var, b.literal(1e-5)));
  const int y = b.op(Op::add, b.op(Op::mul, b.op(Op::mul, centred, rstd), gamma), beta);
  b.out(t == DType::f32 ? y : b.op(Op::cast, t, y));
  b.store(mean, {1, 0});
  b.store(rstd, {1, 0});
  return b;
}

struct Job {
  Build b;
  std::vector<Memory> memory;
  double tolerance;
};

void check_all(std::vector<Job>& jobs) {
  for (Job& j : jobs) ask({&j.b.g, 1});
  for (Job& j : jobs) {
    check(j.b.g, j.memory, j.tolerance, int(&j - jobs.data()) % 2);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_F(CudaTileRow, SoftmaxOfEveryLength) {
  std::vector<Job> jobs;
  for (Shape s : {Shape{3, 7}, Shape{31, 33}, Shape{5, 768}, Shape{2, 5003}, Shape{3, 8192}, Shape{2, 20000}, Shape{1, 120001}, Shape{70, 3}, Shape{3, 0}}) {
    std::vector<Memory> m(2, Memory(DType::f32, s.numel()));
    m[0].fill(1, -20, 20);
    jobs.push_back({softmax(s, 1), m, 2e-6});
  }
  check_all(jobs);
}

TEST_F(CudaTileRow, LayerNormReadsOnceAndStoresItsStatistics) {
  std::vector<Job> jobs;
  for (auto [rows, cols, t] :
       {std::tuple<int64_t, int64_t, DType>{7, 31, DType::f32}, {33, 768, DType::bf16}, {3, 4096, DType::f16}, {2, 100003, DType::f32}}) {
    std::vector<Memory> m{{t, rows * cols}, {t, cols}, {DType::f32, cols}, {t, rows * cols}, {DType::f32, rows}, {DType::f32, rows}};
    for (size_t k = 0; k < 3; ++k) m[k].fill(uint32_t(k));
    jobs.push_back({layer_norm(rows, cols, t), m, 3e-5});
  }
  check_all(jobs);
}

// All reductions of one type in one group, within one thread and in parts, with several axes and any layout.
Build every_reduction(Form form, Shape s, int reduced, DType t, Shape kept, std::vector<Memory>& m, int64_t results) {
  Build b(form, s, reduced);
  const int x = b.in(t), near_one = b.in(t);
  m.emplace_back(t, s.numel()).fill(1, -50, 50);
  m.emplace_back(t, s.numel()).fill(2, 1, is_float(t) ? 1.0001 : 2);
  for (Op op : {Op::reduce_sum, Op::reduce_max, Op::reduce_min, Op::reduce_prod, Op::arg_max, Op::arg_min}) {
    const bool arg = op == Op::arg_max || op == Op::arg_min;
    b.store(b.reduce(op, op == Op::reduce_prod ? near_one : x, arg ? DType::i64 : t), kept);
    m.emplace_back(arg ? DType::i64 : t, results);
  }
  return b;
}

TEST_F(CudaTileRow, EveryReduction) {
  std::vector<Job> jobs;
  for (DType t : {DType::f32, DType::i32, DType::i64})
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{5, 3}, {40, 17}, {3, 1008}, {1, 100003}}) {
      if (t != DType::f32 && cols == 1008) continue;
      std::vector<Memory> m;
      Build b = every_reduction(Form::row, {rows, cols}, 1, t, {1, 0}, m, rows);
      jobs.push_back({b, m, 1e-5 * std::sqrt(double(cols))});
    }
  check_all(jobs);
}

TEST_F(CudaTileColumn, EveryReduction) {
  std::vector<Job> jobs;
  for (DType t : {DType::f32, DType::i32})
    for (Shape s : {Shape{2, 3, 5}, Shape{1, 5003, 8}, Shape{3, 31, 1009}}) {
      std::vector<Memory> m;
      Build b = every_reduction(Form::column, s, 1, t, {s[2], 0, 1}, m, s[0] * s[2]);
      jobs.push_back({b, m, 1e-5 * std::sqrt(double(s[1]))});
    }
  check_all(jobs);
}

TEST_F(CudaTileRow, NanWinsAndTiesGoToTheFirst) {
  for (int64_t cols : {5, 5003, 100001}) {
    Build b(Form::row, {4, cols}, 1);
    const int x = b.in();
    for (Op op : {Op::reduce_max, Op::reduce_min}) b.store(b.reduce(op, x), {1, 0});
    for (Op op : {Op::arg_max, Op::arg_min}) b.store(b.reduce(op, x, DType::i64), {1, 0});
    std::vector<Memory> m{{DType::f32, 4 * cols}, {DType::f32, 4}, {DType::f32, 4}, {DType::i64, 4}, {DType::i64, 4}};
    m[0].fill(1);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    m[0].at<float>(cols - 1) = nan, m[0].at<float>(cols + 2) = nan, m[0].at<float>(cols + 4) = nan;
    for (int64_t i = 0; i < cols; ++i) m[0].at<float>(2 * cols + i) = 1.f;
    for (int64_t i = 0; i < cols; ++i) m[0].at<float>(3 * cols + i) = -std::numeric_limits<float>::infinity();
    check(b.g, m, 0);
    if (HasFatalFailure()) return;
  }
}

// Loss and gradient in one pass; the gradient overwrites the logits.
TEST_F(CudaTileRow, CrossEntropyInPlace) {
  std::vector<Job> jobs;
  for (int64_t vocabulary : {11, 5008, 40000}) {
    const int64_t rows = 3;
    Build b(Form::row, {rows, vocabulary}, 1);
    const int target = b.load(b.operand(), DType::i64, {1, 0}), x = b.op(Op::cast, b.in(DType::bf16));
    const int top = b.reduce(Op::reduce_max, x), e = b.op(Op::exp, b.op(Op::sub, x, top)), sum = b.reduce(Op::reduce_sum, e);
    b.store(b.op(Op::add, b.op(Op::log, sum), top), {1, 0});
    const int hot = b.op(Op::cast, b.op(Op::equal, DType::boolean, b.index(DType::i64, {0, 1}), target));
    b.store(b.op(Op::cast, DType::bf16, b.op(Op::sub, b.op(Op::div, e, sum), hot)), {vocabulary, 1}, 0, 1);
    std::vector<Memory> m{{DType::i64, rows}, {DType::bf16, rows * vocabulary}, {DType::f32, rows}};
    m[0].fill(5, 0, double(vocabulary)), m[1].fill(1, -9, 9);
    jobs.push_back({b, m, 4e-6});
  }
  check_all(jobs);
}

// Rows of 16-bit numbers, since those of 32 bits do not fit in the shared memory of every chip and are then split in another way.
TEST_F(CudaTileRow, FewLongRowsInParts) {
  std::vector<Job> jobs;
  for (auto [rows, classes] : {std::pair<int64_t, int64_t>{1, 40001}, {4, 32768}, {32, 32771}}) {
    Build b(Form::row, {rows, classes}, 1);
    const int x = b.op(Op::cast, b.in(DType::bf16)), top = b.reduce(Op::reduce_max, x), e = b.op(Op::exp, b.op(Op::sub, x, top));
    b.store(b.reduce(Op::arg_max, x, DType::i64), {1, 0});
    b.out(b.op(Op::div, e, b.reduce(Op::reduce_sum, e)));
    std::vector<Memory> m{{DType::bf16, rows * classes}, {DType::i64, rows}, {DType::f32, rows * classes}};
    m[0].fill(1, -9, 9);
    if (rows > 2) {
      m[0].set(2 * classes - 1, std::numeric_limits<double>::quiet_NaN());
      for (int64_t i = 2 * classes; i < 3 * classes - 3; ++i) m[0].set(i, -std::numeric_limits<double>::infinity());
    }
    EXPECT_EQ(make_tile_kernel({&b.g, 1}, test::CudaDevice::the().chip())->launches(), 3) << "one for each phase";
    jobs.push_back({b, m, 4e-6});
  }
  check_all(jobs);
}

// A number per row is stored over one that all parts of the row read.
TEST_F(CudaTileRow, PartsReadARowsNumberBeforeItIsOverwritten) {
  const int64_t rows = 3, length = 33001;
  Build b(Form::row, {rows, length}, 1);
  const int factor = b.load(b.operand(), DType::f32, {1, 0}), top = b.reduce(Op::reduce_max, b.in());
  b.store(b.op(Op::add, factor, top), {1, 0}, 0, 0);
  b.out(b.op(Op::add, b.op(Op::mul, b.in(), factor), top));
  std::vector<Memory> m{{DType::f32, rows}, {DType::f32, rows * length}, {DType::f32, rows * length}, {DType::f32, rows * length}};
  m[0].fill(1, 1, 2), m[1].fill(2, 5, 9), m[2].fill(3, 1, 2);
  check(b.g, m, 4e-6);
}

TEST_F(CudaTileRow, ReadsAtTheIndexOfAReduction) {
  const int64_t rows = 37, cols = 96;
  Build b(Form::row, {rows, cols}, 1);
  const int x = b.in(), best = b.reduce(Op::arg_max, x, DType::i64), picked = b.load(b.operand(), DType::f32, {0, 1});
  TileAccess& a = b.g.accesses.back();
  a.gather = best, a.gather_stride = cols, a.gather_size = cols;
  b.out(b.op(Op::add, x, picked));
  std::vector<Memory> m{{DType::f32, rows * cols}, {DType::f32, cols * cols}, {DType::f32, rows * cols}};
  m[0].fill(1), m[1].fill(2);
  check(b.g, m, 0);
}

// Too long for registers: a row is kept in shared memory. The result overwrites the input.
TEST_F(CudaTileRow, LongRowsInSharedMemory) {
  const int64_t rows = 21, cols = 16384;
  for (int sums : {1, 2}) {
    Build b(Form::row, {rows, cols}, 1);
    const int x = b.op(Op::cast, b.in(DType::bf16)), bias = b.load(b.operand(), DType::f32, {1, 0}), part = b.literal(1.0 / double(cols));
    int y = -1;
    for (Op op : {Op::tanh, Op::sigmoid, Op::abs}) {
      const int v = b.op(op, x), mean = b.op(Op::mul, b.reduce(Op::reduce_sum, v), part), term = b.op(Op::mul, v, b.op(Op::add, mean, bias));
      y = y < 0 ? term : b.op(Op::add, y, term);
    }
    if (sums == 2) y = b.op(Op::sub, y, b.reduce(Op::reduce_max, y));
    b.store(b.op(Op::cast, DType::bf16, y), {cols, 1}, 0, 0);
    std::vector<Memory> m{{DType::bf16, rows * cols}, {DType::f32, rows}};
    m[0].fill(1), m[1].fill(2);
    EXPECT_GT(make_tile_kernel({&b.g, 1}, test::CudaDevice::the().chip())->texts().at(0).shared, 0) << sums;
    check(b.g, m, 1e-5);
    if (HasFatalFailure()) return;
    check(b.g, m, 1e-5, 3);
    if (HasFatalFailure()) return;
    if (sums == 1) continue;
    // Many rows for each block, which copies the next one ahead.
    Chip small = test::CudaDevice::the().chip();
    small.multiprocessors = 2;
    const gpu::TilePlan plan = gpu::plan_tile(b.g, small, {});
    EXPECT_EQ(plan.launches.at(0).blocks, 4);
    for (int shift : {0, 3}) {
      std::vector<Memory> want = m, got = m;
      evaluate(b.g, want);
      run(*make_tile_kernel({&b.g, 1}, small), got, shift);
      compare(b.g, got, want, 1e-5);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaTileColumn, NormGradientsInParts) {
  std::vector<Job> jobs;
  for (auto [rows, cols] : {std::pair<int64_t, int64_t>{3, 5}, {2049, 768}, {30, 3001}}) {
    Build b(Form::column, {rows, cols}, 1);
    const int x = b.in(), dy = b.in(DType::bf16), mean = b.load(b.operand(), DType::f32, {1, 0}), old = b.load(b.operand(), DType::f32, {0, 1});
    const int wide = b.op(Op::cast, dy), product = b.op(Op::mul, b.op(Op::sub, x, mean), wide);
    b.store(b.op(Op::add, b.reduce(Op::reduce_sum, product), old), {0, 1});
    b.store(b.reduce(Op::reduce_sum, wide), {0, 1});
    b.out(product);
    std::vector<Memory> m{{DType::f32, rows * cols}, {DType::bf16, rows * cols}, {DType::f32, rows},       {DType::f32, cols},
                          {DType::f32, cols},        {DType::f32, cols},         {DType::f32, rows * cols}};
    for (size_t k = 0; k < 4; ++k) m[k].fill(uint32_t(k));
    jobs.push_back({b, m, 1e-4});
  }
  check_all(jobs);
}

TEST_F(CudaTileColumn, SoftmaxInSeveralPhases) {
  std::vector<Job> jobs;
  for (Shape s : {Shape{1, 1}, Shape{31, 33}, Shape{9001, 3}, Shape{5, 1, 40, 4}, Shape{2, 3000, 40}, Shape{3, 0}})
    for (int reduced : {1, s.rank() - 1}) {
      std::vector<Memory> m(2, Memory(DType::f32, s.numel()));
      m[0].fill(1, -20, 20);
      jobs.push_back({softmax(s, reduced, Form::column), m, 2e-6});
      if (s.rank() == 2) break;
    }
  check_all(jobs);
}

TEST_F(CudaTileColumn, SeveralReducedAxesInAnyLayout) {
  const Shape s{3, 4, 5, 6, 35};
  for (Shape strides : {contiguous_strides(s), Shape{1, 3, 12, 60, 360}, Shape{4200, 35, 140, 700, 1}}) {
    Build b(Form::column, s, 3);
    const int x = b.load(b.operand(), DType::f32, strides), w = b.load(b.operand(), DType::f32, {0, 1, 0, 4, 0}), y = b.op(Op::mul, x, w);
    b.store(b.op(Op::neg, b.reduce(Op::reduce_sum, y)), {35, 0, 0, 0, 1});
    b.store(b.reduce(Op::arg_min, y, DType::i64), {35, 0, 0, 0, 1});
    std::vector<Memory> m{{DType::f32, s.numel()}, {DType::f32, 40}, {DType::f32, 105}, {DType::i64, 105}};
    m[0].fill(1), m[1].fill(2);
    check(b.g, m, 2e-5);
    if (HasFatalFailure()) return;
  }
}

// A sum's bits do not depend on its operands' addresses.
TEST_F(CudaTileRow, BitsDoNotDependOnAlignment) {
  for (int64_t cols : {768, 4096, 65536}) {
    Build b = layer_norm(3, cols, DType::bf16);
    std::vector<Memory> m{{DType::bf16, 3 * cols}, {DType::bf16, cols}, {DType::f32, cols}, {DType::bf16, 3 * cols}, {DType::f32, 3}, {DType::f32, 3}};
    for (size_t k = 0; k < 3; ++k) m[k].fill(uint32_t(k));
    std::vector<Memory> one = m, other = m;
    run(b.g, one), run(b.g, other, 3);
    for (size_t k = 0; k < m.size(); ++k) EXPECT_EQ(one[k].bytes, other[k].bytes) << k;
  }
}

}  // namespace
}  // namespace ridge::cuda::tile_test
