// Random steps that keep rows apart, as one kernel: values and gradients against the reference.
#include <gtest/gtest.h>

#include "compile/autocast.h"
#include "cuda_loops/loop_cases.h"
#include "support/gpu_runner.h"
#include "support/plan_backend.h"

namespace ridge::test {
namespace {

// A step of random nodes. Without products, values have few columns and a thread takes a row; with them, rows are wide. A smooth step compares nothing, so
// factors with fewer bits change its results little.
class RandomStep {
 public:
  RandomStep(uint64_t seed, bool products, bool smooth = false) : random_(seed), products_(products), smooth_(smooth) {
    c.name = "seed " + std::to_string(seed);
    c.steps = std::array<int64_t, 4>{1, 2, 5, 6}[size_t(random_.below(4))];
    c.reverse = random_.below(2), c.entered = random_.below(3) == 0;
    batch_ = 1 + random_.below(6), width_ = products ? 9 + random_.below(12) : 1 + random_.below(5);
    const int64_t carries = 1 + random_.below(3);
    for (int64_t i = 0; i < carries; ++i) c.carry.push_back(floats({batch_, i == 2 ? wide() : width_}));
    c.sequences = {floats({batch_, width_}), floats({batch_, 1}), {DType::boolean, {batch_}}, floats({batch_, wide()})};
    c.constants = {floats({width_}), floats({batch_, width_}), {DType::i64, {}}, floats({width_, width_}), floats({width_, wide()}), floats({wide(), width_})};
    c.step = [this](Builder& b, const auto& carry, const auto& x, const auto& w) { return step(b, carry, x, w); };
  }

  LoopCase c;

 private:
  using Nodes = LoopCase::Nodes;
  int64_t wide() const { return 2 * width_; }

  LoopCase::Next step(Builder& b, const Nodes& carry, const Nodes& x, const Nodes& w) {
    b_ = &b, x_ = x, w_ = w;
    pool_ = {carry[0], x[0], b.stop_gradient(w[1])};
    if (carry.size() > 1) pool_.push_back(carry[1]);
    wide_pool_ = {x[3]};
    if (carry.size() > 2) wide_pool_.push_back(carry[2]);
    for (int64_t i = 4 + random_.below(10); i > 0; --i) grow();
    LoopCase::Next next;
    for (const NodeId in : carry) next.carry.push_back(b.unary(Op::tanh, b.shape(in)[1] == width_ ? recent(pool_) : recent(wide_pool_)));
    for (int64_t i = 1 + random_.below(2); i > 0; --i) next.out.push_back(random_.below(3) ? recent(pool_) : recent(wide_pool_));
    return next;
  }

  NodeId any(const Nodes& pool) { return pool[size_t(random_.below(int64_t(pool.size())))]; }
  NodeId recent(const Nodes& pool) {
    return random_.below(3) ? pool[pool.size() - 1 - size_t(random_.below(std::min<int64_t>(3, int64_t(pool.size()))))] : any(pool);
  }

  void grow() {
    Builder& b = *b_;
    const int64_t last[] = {1};
    Nodes& pool = random_.below(3) ? pool_ : wide_pool_;
    int64_t kind = random_.below(products_ ? 13 : 10);
    if (smooth_ && kind == 4) kind = 1;
    switch (kind) {
      case 0: return pool.push_back(b.unary(Op::sigmoid, recent(pool)));
      case 1: return pool.push_back(b.add(recent(pool), any(pool)));
      case 2: return pool.push_back(b.mul(b.unary(Op::tanh, recent(pool)), any(pool)));
      case 3: return pool.push_back(b.select(b.reshape(x_[2], {batch_, 1}), b.mul(recent(pool), 0.5), any(pool)));
      case 4: return pool.push_back(b.select(b.binary(Op::greater, any(pool), 0.1), recent(pool), b.add(any(pool), x_[1])));
      case 5: {
        const NodeId both[] = {any(pool_), recent(pool_)};
        return wide_pool_.push_back(b.concat(both, 1));
      }
      case 6: {
        const int64_t from = random_.below(width_ + 1);
        return pool_.push_back(b.slice(recent(wide_pool_), 1, from, from + width_));
      }
      case 7: return pool.push_back(b.sub(recent(pool), b.mean(any(pool), last, true)));
      case 8: return pool.push_back(b.flip(recent(pool), last));
      case 9: return pool_.push_back(b.dropout(recent(pool_), 0.3, {w_[2], w_[2], w_[2], uint32_t(random_.below(5))}));
      case 10: return pool_.push_back(b.unary(Op::tanh, b.matmul(recent(pool_), w_[3])));
      case 11: return wide_pool_.push_back(b.unary(Op::tanh, b.matmul(recent(pool_), w_[4])));
      default: return pool_.push_back(b.unary(Op::tanh, b.matmul(recent(wide_pool_), w_[5])));
    }
  }

  Random random_;
  bool products_, smooth_;
  int64_t batch_ = 1, width_ = 1;
  Builder* b_ = nullptr;
  Nodes x_, w_, pool_, wide_pool_;
};

class GpuRandomLoops : public OnGpu<::testing::TestWithParam<int>> {};

TEST_P(GpuRandomLoops, MatchTheReference) {
  const uint64_t seed = uint64_t(GetParam()) + 1;
  // Every fourth step multiplies on matrix units: f32 numbers as tf32 or as bf16, or bf16 numbers.
  const int units = GetParam() % 4 == 1 ? 1 + GetParam() / 4 % 3 : 0;
  RandomStep random(seed, GetParam() % 2, units > 0);
  Loop loop = make_case_loop(random.c, GetParam() % 4 < 2, seed);
  if (units == 3) loop.results = autocast(loop.graph, loop.results, DType::bf16);
  const std::vector<reference::Array> want = reference::evaluate(loop.graph, loop.results, loop.values);
  Gpu::the().backend().use_f32_products(units == 1 ? Precision::tf32 : units == 2 ? Precision::bf16 : Precision::fp32);
  const std::vector<Bytes> got = run_compiled(loop.graph, loop.inputs, loop.results, loop.values, "", 1);
  Gpu::the().backend().use_f32_products(Precision::fp32);
  const double tolerance = units == 0 ? 2e-5 : units == 1 ? 2e-2 : 0.1;
  for (size_t k = 0; k < want.size(); ++k) {
    double largest = 1;
    for (double v : want[k].f) largest = std::max(largest, std::fabs(v));
    EXPECT_TRUE(close(reference::from_bytes(want[k].type, got[k].data()), want[k], {tolerance, tolerance * largest})) << random.c.name << ", result " << k;
  }
}
// RIDGE_FUZZ: how many; the simulated GPU's compiler is slow.
int random_loops() {
  const char* asked = std::getenv("RIDGE_FUZZ");
  return asked ? std::atoi(asked) : tests_real_gpu() ? 64 : 4;
}
INSTANTIATE_TEST_SUITE_P(Gpu, GpuRandomLoops, ::testing::Range(0, random_loops()));

// Nearly all of these steps keep rows apart, whatever they compute: every forward loop of them is one kernel.
TEST(CudaRandomLoops, AreOneKernel) {
  PlanBackend backend(cuda::chip_for(9, 0));
  CompileOptions options(backend);
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    RandomStep random(seed, seed % 2);
    const Loop loop = make_case_loop(random.c, false, seed);
    const std::string dump = Executable(loop.graph, loop.inputs, loop.results, options).dump();
    EXPECT_EQ(dump.find("steps, unrolled"), std::string::npos) << random.c.name << dump.substr(std::min(dump.size(), dump.find("steps, unrolled")), 200);
  }
}

}  // namespace
}  // namespace ridge::test
