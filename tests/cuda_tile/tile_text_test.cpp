// Texts without a device: they compile for every chip, contain no unnecessary sizes, and the hot ones stay within their registers.
#include <set>

#include "backend/cuda/make.h"
#include "backend/gpu/tile_plan.h"
#include "support/nvrtc.h"
#include "support/tile_case.h"

namespace ridge::cuda::tile_test {
namespace {

using namespace ridge::tile_test;

class CudaTileText : public test::NvrtcTest {};

Build gelu(int64_t n, DType t) {
  Build b(Form::map, {n});
  b.out(b.op(Op::gelu_tanh, t, b.in(t)));
  return b;
}

Build every_node(DType t) {
  Build b(Form::row, {6, 5, 33}, 2);
  const Op ops[] = {
#define RIDGE_OP(name, arity, ...) Op::name,
      RIDGE_ELEMENTWISE_OPS(RIDGE_OP)
#undef RIDGE_OP
  };
  const int x = b.op(Op::cast, b.in(t)), seed = b.literal(3, DType::i64), row = b.load(b.operand(), DType::f32, {1, 0, 0});
  int y = b.op(Op::add, x, row);
  for (Op op : ops) {
    if (op == Op::cast || op == Op::select || op >= Op::equal || op == Op::is_finite || op == Op::logical_not) continue;
    y = op < Op::add ? b.op(op, y) : b.op(op, y, row);
  }
  TileNode random;
  random.kind = Kind::random, random.op = Op::random_uniform, random.in = {seed, seed, -1}, random.access = b.access(-1, DType::i64, {165, 33, 1});
  y = b.op(Op::select, b.op(Op::less, DType::boolean, b.push(random), b.literal(0.5)), y, b.literal(0));
  const int ids = b.op(Op::cast, DType::i64, x), picked = b.load(b.operand(), DType::f32, {0, 0, 0});
  TileAccess& a = b.g.accesses.back();
  a.gather = ids, a.gather_stride = 1, a.gather_size = 9;
  y = b.op(Op::add, y, picked);
  b.store(b.reduce(Op::arg_max, y, DType::i64), {1, 0, 0});
  b.out(b.op(Op::cast, t, b.op(Op::div, y, b.reduce(Op::reduce_sum, y))));
  return b;
}

TEST_F(CudaTileText, CompilesForEveryChip) {
  std::vector<TileGroup> groups;
  groups.push_back(every_node(DType::f16).g);
  groups.push_back(gelu((int64_t(1) << 31) + 8, DType::bf16).g);
  Build norm(Form::row, {64, 256}, 1);
  const int x = norm.op(Op::cast, norm.in(DType::bf16)), e = norm.op(Op::sub, x, norm.reduce(Op::reduce_max, x));
  norm.out(norm.op(Op::cast, DType::f16, norm.op(Op::div, e, norm.reduce(Op::reduce_sum, e))));
  groups.push_back(norm.g);
  Build column(Form::column, {4096, 64}, 1);
  column.store(column.reduce(Op::arg_max, column.in(DType::i64), DType::i64), {0, 1});
  groups.push_back(column.g);
  std::vector<Job> jobs;
  for (const Chip& chip : test::all_chips())
    for (const TileGroup& g : groups)
      for (const KernelText& text : make_tile_kernel({&g, 1}, chip)->texts()) jobs.push_back({text, chip.target()});
  compile(jobs);
}

// A text contains a size only if an index is divided by it.
TEST(CudaTilePlan, SizesShareTexts) {
  const Chip chip = chip_for(9, 0);
  auto text = [&](const Build& b) { return plan_tile(b.g, chip, {}).launches.at(0).text.body; };
  EXPECT_EQ(text(gelu(1 << 20, DType::bf16)), text(gelu((1 << 24) + 3, DType::bf16)));
  EXPECT_NE(text(gelu(1 << 20, DType::bf16)), text(gelu(int64_t(1) << 31, DType::bf16)));  // 64-bit indices
  auto rows = [&](int64_t n) {
    Build b(Form::row, {n, 768}, 1);
    b.store(b.reduce(Op::reduce_sum, b.in()), {1, 0});
    return text(b);
  };
  EXPECT_EQ(rows(512), rows(65536));
}

TEST(CudaTilePlan, LaunchesAreFew) {
  const Chip chip = chip_for(9, 0);
  auto launches = [&](const Build& b) { return plan_tile(b.g, chip, {}).launches.size(); };
  EXPECT_EQ(launches(gelu(1 << 28, DType::f32)), 1u);
  Build sum(Form::row, {int64_t(1) << 28}, 1);
  sum.store(sum.reduce(Op::reduce_sum, sum.in()), {0});
  EXPECT_EQ(launches(sum), 2u);
  Build bias(Form::column, {65536, 768}, 1);
  bias.store(bias.reduce(Op::reduce_sum, bias.op(Op::cast, bias.in(DType::bf16))), {0, 1});
  EXPECT_EQ(launches(bias), 2u);
  Build loss(Form::row, {65536, 50304}, 1);  // logits are read once, however long the row
  const int x = loss.op(Op::cast, loss.in(DType::bf16)), e = loss.op(Op::exp, loss.op(Op::sub, x, loss.reduce(Op::reduce_max, x)));
  loss.store(loss.op(Op::cast, DType::bf16, loss.op(Op::div, e, loss.reduce(Op::reduce_sum, e))), {50304, 1}, 0, 0);
  const TilePlan plan = plan_tile(loss.g, chip, {});
  ASSERT_EQ(plan.launches.size(), 1u);
  EXPECT_EQ(plan.launches[0].text.shared, 50304 * 2);
  EXPECT_LE(2 * plan.launches[0].text.shared, chip.shared_bytes_per_multiprocessor);  // two blocks at a time
}

// Fewer long rows than multiprocessors are shared by many blocks: a launch for each phase, of which each combines the parts of the ones before.
TEST(CudaTilePlan, FewLongRowsTakeManyBlocks) {
  const Chip chip = chip_for(9, 0);
  for (auto [rows, blocks] : {std::array<int64_t, 2>{1, 25}, {16, 16 * 13}, {32, 32 * 7}, {33, 33}}) {
    const TilePlan plan = plan_tile(cross_entropy(rows, 50257).g, chip, {});
    ASSERT_EQ(plan.launches.size(), rows > 32 ? 1u : 3u) << rows;
    for (const TileLaunch& launch : plan.launches) EXPECT_EQ(launch.blocks, blocks) << rows;
  }
}

}  // namespace
}  // namespace ridge::cuda::tile_test
