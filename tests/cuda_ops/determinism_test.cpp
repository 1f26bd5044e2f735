// Two processes, each with empty caches, train to the same bits once they choose the same: candidates for products are chosen by
// measurement, so the second process is given the choices of the first, as a checkpoint would give them.
#include <cstdlib>
#include <fstream>
#include <map>

#include "support/gpu_runner.h"
#include "support/steps.h"

namespace ridge::test {
namespace {

class GpuDeterminism : public CudaTest {};

// What a process does that is told where to put its bits; on its own it is nothing.
TEST_F(GpuDeterminism, WritesBits) {
  const char* file = std::getenv("TEST_BITS");
  if (!file) return;
  std::ofstream out(file, std::ios::binary);
  const std::string choices = std::string(file) + ".choices";
  cuda::CudaBackend& backend = Gpu::the().backend();
  if (const char* given = std::getenv("TEST_CHOICES")) {
    std::map<std::string, std::string> all;
    std::ifstream in(given);
    for (std::string key, value; std::getline(in, key) && std::getline(in, value);) all[key] = value;
    backend.use_choices(all);
  }
  std::vector<StepModel> models = {engine::mlp_model(9)};
  if (tests_real_gpu()) models.push_back(engine::conv_model(4)), models.push_back(engine::gpt_model(engine::small_gpt(), 4, 64));
  for (const StepModel& model : models) {
    const engine::Step step = engine::make_step(model);
    CompileOptions options;
    options.backend = &backend;
    engine::Training training(step, 10, options);
    for (int i = 0; i < 3; ++i) training.run(1e-2f);
    for (const Bytes& bytes : training.state()) out.write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
  }
  std::ofstream list(choices);
  for (const auto& [key, value] : backend.choices()) list << key << "\n" << value << "\n";
}

TEST_F(GpuDeterminism, TwoProcessesGiveTheSameBits) {
  TempFolder folder;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string bits[2];
  for (int i = 0; i < 2; ++i) {
    const std::string file = folder / ("bits" + std::to_string(i)), cache = folder / ("cache" + std::to_string(i));
    std::string command = "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX TEST_BITS='" + file + "' RIDGE_CACHE='" + cache + "'";
    if (i == 1) command += " TEST_CHOICES='" + (folder / "bits0.choices") + "'";
    command += " '" + self + "' --gtest_filter=GpuDeterminism.WritesBits >/dev/null 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    std::ifstream in(file, std::ios::binary);
    bits[i].assign(std::istreambuf_iterator<char>(in), {});
  }
  EXPECT_GT(bits[0].size(), 10000u);
  EXPECT_TRUE(bits[0] == bits[1]);
}

}  // namespace
}  // namespace ridge::test
