// A norm's gradient in one pass: rows, and sums over rows of the same inputs and of the stored results.
#include "backend/gpu/tile_kernel.h"
#include "tile_harness.h"

namespace ridge::cuda::tile_test {
namespace {

class CudaTileSums : public test::CudaTest {};

struct NormGradient {
  Build row{Form::row, {}}, column{Form::column, {}}, bias{Form::column, {}};
  std::vector<int> same, unread;
  std::vector<Memory> memory;  // of the row group, then of the column group

  // chained: the second reduction needs the first
  NormGradient(Shape s, DType t, bool chained = false) {
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
    const int first = row.op(Op::mul, row.reduce(Op::reduce_sum, g), part), centre = chained ? row.op(Op::sub, g, first) : g;
    const int second = row.op(Op::mul, row.reduce(Op::reduce_sum, row.op(Op::mul, centre, hat)), part);
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
    bias = Build(Form::column, s, rank - 1);
    bias.store(bias.reduce(Op::reduce_sum, bias.op(Op::cast, bias.load(bias.operand(), t, full))), along);
  }
  // The second column group, whose input is the row group's first result.
  void with_bias() {
    same.insert(same.end(), {5, -1});
    memory.push_back(memory[5]);
    memory.emplace_back(DType::f32, bias.g.domain.back());
  }
  std::vector<Memory> expected() const {
    std::vector<Memory> rows(memory.begin(), memory.begin() + 7), sums(memory.begin() + 7, memory.begin() + 13);
    evaluate(row.g, rows), evaluate(column.g, sums);
    std::vector<Memory> all = rows;
    all.insert(all.end(), sums.begin(), sums.end());
    if (memory.size() == 13) return all;
    std::vector<Memory> last(memory.begin() + 13, memory.end());
    last[0] = rows[5];
    evaluate(bias.g, last);
    all.push_back(memory[13]);  // the kernel reads what it stores elsewhere
    all.push_back(last[1]);
    return all;
  }
};

std::unique_ptr<Kernel> sums_kernel(const NormGradient& c, std::vector<const TileGroup*> columns, const Chip& chip) {
  return make_row_kernel_with_sums(c.row.g, columns, c.same, c.unread, chip);
}

TEST_F(CudaTileSums, NormGradientWithWeightGradients) {
  for (auto [s, t] : {std::pair<Shape, DType>{{8449, 136}, DType::bf16}, {{2, 4224, 128}, DType::f32}}) {
    NormGradient c(s, t);
    std::vector<Memory> got = c.memory, shifted = c.memory;
    auto kernel = sums_kernel(c, {&c.column.g}, test::CudaDevice::the().chip());
    ASSERT_TRUE(kernel);
    EXPECT_EQ(run(*kernel, got).launches, 2);
    compare(c.row.g, got, c.expected(), 2e-4);
    run(*kernel, shifted, 1);
    for (size_t m = 0; m < got.size(); ++m) EXPECT_EQ(got[m].bytes, shifted[m].bytes) << m;
  }
}

// The sums of what the rows store are of the rounded values. For wide rows, some sums are in shared memory, or two warps share a row.
TEST_F(CudaTileSums, SumsOfStoredRows) {
  Chip chip = test::CudaDevice::the().chip();
  chip.multiprocessors = 3;  // so that few rows are enough
  chip.shared_bytes_per_multiprocessor = chip_for(9, 0).shared_bytes_per_multiprocessor;
  std::vector<int64_t> shared;
  for (auto [s, t] : {std::pair<Shape, DType>{{211, 264}, DType::bf16}, {{5, 41, 768}, DType::bf16}, {{199, 1024}, DType::f32}, {{601, 1024}, DType::bf16}}) {
    NormGradient c(s, t, s[0] == 601);
    c.with_bias();
    auto kernel = sums_kernel(c, {&c.column.g, &c.bias.g}, chip);
    ASSERT_TRUE(kernel) << to_string(s);
    shared.push_back(kernel->texts().at(0).shared / (4 * s.back() * int64_t(sizeof(float))));
    std::vector<Memory> got = c.memory, shifted = c.memory;
    EXPECT_EQ(run(*kernel, got).launches, 2);
    compare(c.row.g, got, c.expected(), t == DType::f32 ? 2e-4 : 2e-2);
    run(*kernel, shifted, 1);
    for (size_t m = 0; m < got.size(); ++m) EXPECT_EQ(got[m].bytes, shifted[m].bytes) << m;
    double first = 0;
    for (int64_t i = 0; i < got[5].size; i += s.back()) first += got[5].get(i);
    EXPECT_NEAR(got[14].get(0), first, 1e-4);
  }
  EXPECT_EQ(shared, (std::vector<int64_t>{1, 2, 3, 0}));  // regions of a row for each warp: one serves all sums in registers, and two warps need none
}

TEST_F(CudaTileSums, RowsThatNobodyReadsAreNotStored) {
  Chip chip = test::CudaDevice::the().chip();
  chip.multiprocessors = 3;
  NormGradient c({211, 264}, DType::bf16);
  c.with_bias();
  std::vector<Memory> stored = c.memory, summed = c.memory;
  run(*sums_kernel(c, {&c.column.g, &c.bias.g}, chip), stored);
  c.unread = {5};
  run(*sums_kernel(c, {&c.column.g, &c.bias.g}, chip), summed);
  EXPECT_EQ(summed[5].bytes, c.memory[5].bytes);
  EXPECT_NE(stored[5].bytes, c.memory[5].bytes);
  for (size_t m = 6; m < stored.size(); ++m) EXPECT_EQ(summed[m].bytes, stored[m].bytes) << m;
}

// Memory that the rows do not read would need an extra pass; short and long rows have better kernels.
TEST_F(CudaTileSums, OnlyWhereAPassIsSaved) {
  const Chip chip = chip_for(9, 0);
  NormGradient c({16384, 256}, DType::bf16);
  EXPECT_TRUE(sums_kernel(c, {&c.column.g}, chip));
  const std::vector<int> apart = {0, -1, 2, 3, -1, -1};
  const TileGroup* const column = &c.column.g;
  EXPECT_FALSE(make_row_kernel_with_sums(c.row.g, {&column, 1}, apart, {}, chip));
  NormGradient few({64, 256}, DType::bf16), narrow({16384, 32}, DType::bf16);
  EXPECT_FALSE(sums_kernel(few, {&few.column.g}, chip));
  EXPECT_FALSE(sums_kernel(narrow, {&narrow.column.g}, chip));
}

}  // namespace
}  // namespace ridge::cuda::tile_test
