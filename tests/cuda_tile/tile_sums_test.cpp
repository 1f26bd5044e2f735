// A norm's gradient in one pass: rows, and sums over rows of the same inputs.
#include "backend/gpu/tile_kernel.h"
#include "tile_harness.h"

namespace ridge::cuda::tile_test {
namespace {

class CudaTileSums : public test::CudaTest {};

struct NormGradient {
  Build row{Form::row, {}}, column{Form::column, {}};
  std::vector<int> same;
  std::vector<Memory> memory;  // of the row group, then of the column group

  NormGradient(Shape s, DType t) {
    const int64_t cols = s.back(), rows = s.numel() / cols;
    const int rank = s.rank();
    Shape full = contiguous_strides(s), kept = full, along = Shape::filled(rank, 0);
    for (int i = 0; i < rank; ++i) kept[i] = i + 1 < rank ? full[i] / cols : 0;
    along[rank - 1] = 1;
    row = Build(Form::row, s, 1), column = Build(Form::column, s, rank - 1);
    auto centred = [&](Build& b, int& dy) {
      dy = b.op(Op::cast, b.load(b.operand(), t, full));
      const int x = b.load(b.operand(), DType::f32, full), mean = b.load(b.operand(), DType::f32, kept), scale = b.load(b.operand(), DType::f32, kept);
      return b.op(Op::mul, b.op(Op::sub, x, mean), scale);
    };
    int dy;
    const int hat = centred(row, dy), gamma = row.load(row.operand(), DType::f32, along), g = row.op(Op::mul, dy, gamma),
              part = row.literal(1.0 / double(cols));
    const int first = row.op(Op::mul, row.reduce(Op::reduce_sum, g), part), second = row.op(Op::mul, row.reduce(Op::reduce_sum, row.op(Op::mul, g, hat)), part);
    row.out(row.op(Op::cast, t, row.op(Op::sub, row.op(Op::sub, g, first), row.op(Op::mul, hat, second))));
    row.store(first, kept);
    const int there = centred(column, dy);
    column.store(column.reduce(Op::reduce_sum, dy), along);
    column.store(column.op(Op::mul, column.reduce(Op::reduce_sum, column.op(Op::mul, dy, there)), column.literal(0.5)), along);
    same = {0, 1, 2, 3, -1, -1};
    memory = {{t, rows * cols}, {DType::f32, rows * cols}, {DType::f32, rows}, {DType::f32, rows}, {DType::f32, cols}, {t, rows * cols}, {DType::f32, rows}};
    for (size_t k = 0; k < 5; ++k) memory[k].fill(uint32_t(k), -1, 1);
    for (size_t k = 0; k < 4; ++k) memory.push_back(memory[k]);
    memory.insert(memory.end(), 2, Memory(DType::f32, cols));
  }
};

TEST_F(CudaTileSums, NormGradientWithWeightGradients) {
  for (auto [s, t] : {std::pair<Shape, DType>{{8449, 136}, DType::bf16}, {{2, 4224, 128}, DType::f32}}) {
    NormGradient c(s, t);
    std::vector<Memory> want = c.memory, got = c.memory, shifted = c.memory;
    std::vector<Memory> first(want.begin(), want.begin() + 7), second(want.begin() + 7, want.end());
    evaluate(c.row.g, first), evaluate(c.column.g, second);
    first.insert(first.end(), second.begin(), second.end());
    auto kernel = make_row_kernel_with_sums(c.row.g, c.column.g, c.same, test::CudaDevice::the().chip());
    ASSERT_TRUE(kernel);
    EXPECT_EQ(run(*kernel, got).launches, 2);
    compare(c.row.g, got, first, 2e-4);
    run(*kernel, shifted, 1);
    for (size_t m = 0; m < got.size(); ++m) EXPECT_EQ(got[m].bytes, shifted[m].bytes) << m;
  }
}

// Memory that the rows do not read would need an extra pass; short and long rows have better kernels.
TEST_F(CudaTileSums, OnlyWhereAPassIsSaved) {
  const Chip chip = chip_for(9, 0);
  NormGradient c({16384, 256}, DType::bf16);
  EXPECT_TRUE(make_row_kernel_with_sums(c.row.g, c.column.g, c.same, chip));
  const std::vector<int> apart = {0, -1, 2, 3, -1, -1};
  EXPECT_FALSE(make_row_kernel_with_sums(c.row.g, c.column.g, apart, chip));
  NormGradient few({64, 256}, DType::bf16), narrow({16384, 32}, DType::bf16);
  EXPECT_FALSE(make_row_kernel_with_sums(few.row.g, few.column.g, few.same, chip));
  EXPECT_FALSE(make_row_kernel_with_sums(narrow.row.g, narrow.column.g, narrow.same, chip));
}

}  // namespace
}  // namespace ridge::cuda::tile_test
