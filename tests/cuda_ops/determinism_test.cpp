// Processes with empty caches train to the same bits: measurements choose only between algorithms with the same results.
#include <cstdlib>
#include <fstream>

#include "autograd/gradients.h"
#include "support/gpu_runner.h"
#include "support/steps.h"

namespace ridge::test {
namespace {

class GpuDeterminism : public CudaTest {};

// The child process: writes its bits to TEST_BITS; does nothing without it.
TEST_F(GpuDeterminism, WritesBits) {
  const char* file = std::getenv("TEST_BITS");
  if (!file) return;
  std::ofstream out(file, std::ios::binary);
  cuda::CudaBackend& backend = Gpu::the().backend();
  std::vector<StepModel> models = {engine::mlp_model(9)};
  if (tests_real_gpu()) models.push_back(engine::conv_model(4)), models.push_back(engine::gpt_model(engine::small_gpt(), 4, 64));
  for (const StepModel& model : models) {
    const engine::Step step = engine::make_step(model);
    CompileOptions options(backend);
    engine::Training training(step, 10, options);
    for (int i = 0; i < 3; ++i) training.run(1e-2f);
    for (const Bytes& bytes : training.state()) out.write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
  }
  if (!tests_real_gpu()) return;
  // Convolutions of a size that a library may run.
  for (DType t : {DType::bf16, DType::f32}) {
    backend.use_f32_products(Precision::tf32);
    Graph g;
    Builder b(g);
    const NodeId x = g.input({t, {8, 16, 28, 28}}, "x"), w = g.input({t, {32, 16, 3, 3}}, "w"), y = b.conv(x, w, {}),
                 cotangent = g.input(g.type(y), "cotangent");
    std::vector<NodeId> outputs = vector_jacobian(g, std::vector{y}, std::vector{cotangent}, std::vector{x, w});
    outputs.push_back(y);
    Values values;
    Random random(7);
    for (NodeId in : {x, w, cotangent}) values[in] = draw(g.type(in), random);
    for (const Bytes& bytes : Gpu::the().run(g, {x, w, cotangent}, outputs, values, ""))
      out.write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
  }
  backend.use_f32_products(Precision::fp32);
}

TEST_F(GpuDeterminism, ProcessesGiveTheSameBits) {
  TempFolder folder;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string first;
  const int processes = tests_real_gpu() ? 4 : 2;
  for (int i = 0; i < processes; ++i) {
    const std::string file = folder / ("bits" + std::to_string(i)), cache = folder / ("cache" + std::to_string(i));
    std::string command = "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX TEST_BITS='" + file + "' RIDGE_CACHE='" + cache + "'";
    // The simulated library's algorithms have configurable speeds, so a later process measures different times.
    if (i > 0) command += " SIMULATED_LT_SLOWNESS='4 1 3 2'";
    command += " '" + self + "' --gtest_filter=GpuDeterminism.WritesBits >/dev/null 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    std::ifstream in(file, std::ios::binary);
    const std::string bits(std::istreambuf_iterator<char>(in), {});
    EXPECT_GT(bits.size(), 10000u);
    if (i == 0) first = bits;
    EXPECT_TRUE(bits == first) << "process " << i;
  }
}

}  // namespace
}  // namespace ridge::test
