// Our own matmul kernel compiles for every chip from compute capability 7.5 up.
#include "product.h"

#include "backend/cuda/matmul_text.h"
#include "backend/cuda/matmul_tune.h"
#include "support/nvrtc.h"

namespace ridge::cuda {
namespace {

using Function = MatmulEpilogue::Function;

class CudaMatmulTexts : public test::NvrtcTest {};

TEST_F(CudaMatmulTexts, CompileForEveryChip) {
  std::vector<Job> jobs;
  for (const Chip& chip : test::all_chips())
    for (KernelText& text : tuning_texts()) jobs.push_back({std::move(text), chip.target()});
  for (const Chip& chip : test::all_chips())
    for (DType type : {DType::f32, DType::bf16, DType::f16})
      for (int form = 0; form < 3; ++form) {
        if (chip.major < 9 && form != (chip.minor + int(type)) % 3) continue;  // all for the newest, one for each other
        ContractionLoops loops = loops_of(plain(1024, 512, 256, form & 1, form & 2));
        if (form == 2) loops.k = {{4, 64 * 1024, 64, 0}, {8, 8 * 1024, 8, 0}, {8, 1024, 1, 0}};
        MatmulEpilogue e;
        e.result = {0, type, 0, 0, 512, 1};
        if (form == 0) e.bias = {1, DType::f32, 0, 0, 0, 1}, e.function = Function::gelu, e.aux = {2, type, 0, 0, 512, 1};
        if (form == 1) e.addend = {1, DType::f32, 0, 0, 512, 1}, e.function = Function::relu, e.alpha = 0.5;
        if (form == 2) e.function = Function::gelu_grad, e.aux = {1, type, 0, 0, 512, 1};
        for (KernelText& text : OwnMatmul(make_problem(loops, type, type), e, chip, 64, 64).texts()) jobs.push_back({std::move(text), chip.target()});
      }
  // A long sum in parts, and factors of different types.
  const Chip chip = chip_for(8, 6);
  MatmulEpilogue plain_result;
  plain_result.result.operand = 0;
  for (DType b : {DType::bf16, DType::f32})
    for (KernelText& text : OwnMatmul(make_problem(loops_of(plain(64, 64, 4096)), DType::bf16, b), plain_result, chip, 64, 64).texts())
      jobs.push_back({std::move(text), chip.target()});
  // Two of them in a list: a matrix, and a row that takes its text.
  for (const Chip& each : test::all_chips()) {
    const OwnMatmul square(make_problem(loops_of(plain(64, 64, 4096)), DType::f32, DType::f32), plain_result, each, 64, 64),
        line(make_problem(loops_of(plain(1, 64, 4096)), DType::f32, DType::f32), plain_result, each, 64, 64);
    EXPECT_EQ(square.list_key(), line.list_key());
    EXPECT_FALSE(square.list_key().empty());
    const OwnMatmulList list({&square, &line});
    for (const KernelText& text : list.texts()) jobs.push_back({text, each.target()});
  }
  EXPECT_GE(jobs.size(), 20u);
  compile(jobs);
}

}  // namespace
}  // namespace ridge::cuda
