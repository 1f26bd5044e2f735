// Products of one row: dot products that stream the weights.
#include "backend/cuda/thin_matmul.h"

#include "product.h"
#include "support/nvrtc.h"

namespace ridge::cuda {
namespace {

cpu::MatmulDesc row(int64_t columns, int64_t depth, DType a, DType b, DType c, int64_t pad = 0) {
  cpu::MatmulDesc d;
  d.n = {{columns, 0, depth + pad, 1}}, d.k = {{depth, 1, 1, 0}};
  d.a_type = a, d.b_type = b, d.c_type = c;
  return d;
}

MatmulDesc description(const cpu::MatmulDesc& d) {
  MatmulDesc desc;
  desc.loops = loops_of(d), desc.a = d.a_type, desc.b = d.b_type, desc.result = d.c_type;
  return desc;
}

class CudaThinMatmul : public test::CudaTest {
 protected:
  static void compare(const cpu::MatmulDesc& d, bool constant) {
    const MatmulCase c(d, 3);
    Products products(false);
    Memory memory;
    auto add = [&](const Operand& o) { return memory.add(o.bytes, o.origin * size_of(o.type)); };
    const Place operands[] = {add(c.a), add(c.b), add(c.c)};
    const std::unique_ptr<Kernel> kernel = make_thin_matmul(description(d), {}, constant, products.chip());
    ASSERT_TRUE(kernel);
    EXPECT_EQ(kernel->launches(), 1);
    run(*kernel, products, memory, operands);
    c.compare(memory.read(operands[2]), c.double_loop());
  }
};

// Columns that do not fill a block, depths that do not fill a warp or take more than is fetched ahead, rows of weights with gaps.
TEST_F(CudaThinMatmul, AnyShape) {
  for (const auto& [columns, depth, pad] : {std::array<int64_t, 3>{2, 8, 0}, {65, 384, 0}, {7, 264, 8}, {33, 2056, 0}, {9, 4360, 16}})
    for (DType t : {DType::bf16, DType::f16, DType::f32}) {
      SCOPED_TRACE(testing::Message() << columns << " columns, depth " << depth << ", " << name(t));
      if (t == DType::f32 && depth >= 512) continue;  // split along the depth instead
      compare(row(columns, depth, t, t, t, pad), true);
    }
  compare(row(40, 96, DType::f32, DType::bf16, DType::f32), false);
  compare(row(40, 96, DType::bf16, DType::f32, DType::f16), false);
}

TEST_F(CudaThinMatmul, LeavesOtherFormsToOthers) {
  const Chip chip;
  auto made = [&](const cpu::MatmulDesc& d) { return make_thin_matmul(description(d), {}, true, chip) != nullptr; };
  EXPECT_TRUE(made(row(16, 64, DType::bf16, DType::bf16, DType::bf16)));
  EXPECT_FALSE(made(row(16, 60, DType::bf16, DType::bf16, DType::bf16))) << "pieces of 16 bytes do not divide the depth";
  EXPECT_FALSE(made(row(16, 64, DType::bf16, DType::bf16, DType::bf16, 4))) << "rows are not aligned";
  EXPECT_FALSE(made(plain(1, 16, 64))) << "weights are contiguous along the columns";
  cpu::MatmulDesc two = row(16, 64, DType::bf16, DType::bf16, DType::bf16);
  two.m = {{2, 64, 0, 16}};
  EXPECT_FALSE(made(two)) << "two rows";
  MatmulDesc moved = description(row(16, 64, DType::bf16, DType::bf16, DType::bf16));
  moved.alignments = {64, 8, 64};
  EXPECT_FALSE(make_thin_matmul(moved, {}, true, chip));
}

class ThinTexts : public test::NvrtcTest {};

// A kernel that overlaps begins the next one at once and waits for the one in front: with constant weights after it has fetched them, else before.
TEST_F(ThinTexts, WaitWhereTheyMay) {
  std::vector<Job> jobs;
  for (bool constant : {true, false}) {
    KernelText text = make_thin_matmul(description(row(384, 1536, DType::bf16, DType::bf16, DType::f32)), {}, constant, Chip())->texts()[0];
    EXPECT_EQ(source_of(text).find("griddepcontrol"), std::string::npos);
    text.overlaps = true;
    const std::string source = source_of(text);
    const size_t entry = source.find("thin_matmul("), begins = source.find("RIDGE_BEGIN_NEXT;", entry), waits = source.find("RIDGE_AFTER_PREVIOUS;", entry),
                 fetches = source.find("read_words<true>(ahead", entry), reads = source.find("args.a", entry);
    ASSERT_NE(fetches, std::string::npos);
    EXPECT_LT(begins, std::min(waits, fetches));
    EXPECT_EQ(fetches < waits, constant);
    EXPECT_LT(waits, reads);
    EXPECT_EQ(source.find("RIDGE_AFTER_PREVIOUS;", waits + 1), std::string::npos);
    jobs.push_back({text, "sm_90a"});
  }
  KernelText other{"plain", "extern \"C\" __global__ void __launch_bounds__(32) plain(float* x) { x[threadIdx.x] = 1.f; }\n", 0, true};
  EXPECT_NE(source_of(other).find("{\n  RIDGE_BEGIN_NEXT;\n  RIDGE_AFTER_PREVIOUS; x["), std::string::npos) << "a text that does not say where waits first";
  const std::string two =
      "extern \"C\" __global__ void plain_too(float* x) { x[1] = 1.f; }\n" + other.body + "extern \"C\" __global__ void last(float* x) { x[2] = 1.f; }\n";
  const std::string among = source_of({"plain", two, 0, true});
  EXPECT_NE(among.find("plain_too(float* x) { x[1]"), std::string::npos) << "another entry of the text is as it was";
  EXPECT_NE(among.find("plain(float* x) {\n  RIDGE_BEGIN_NEXT;"), std::string::npos);
  jobs.push_back({other, "sm_90a"});
  for (const test::Cubin::Use& use : compile(jobs)) EXPECT_EQ(use.frame, 0);
}

}  // namespace
}  // namespace ridge::cuda
