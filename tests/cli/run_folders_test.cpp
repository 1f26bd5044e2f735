// Run folders of an earlier build, in tests/fixtures/run_folders: resumed, they end with the same losses and bits as that build gave them. Their bits are from
// the AVX2 tier, which every x86-64 machine of the last ten years supports. tools/make_run_folders makes them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "cli/ridge_program.h"
#include "ridge/ridge.h"
#include "support/source_dir.h"

namespace ridge::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path fixtures() { return fs::path(source_dir()) / "tests/fixtures/run_folders"; }

// The contents of a run folder after its last step that no build may change: losses, gradient norms and rates by step, and the checksums of parameters and
// moments. `after`: only rows after this step count.
json outcome(const fs::path& run, int64_t after) {
  json rows = json::array();
  std::istringstream lines(read_text(run / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json all = json::parse(line);
    if (all.at("step") <= after) continue;
    json row;
    for (const char* key : {"step", "loss", "gradient_norm", "lr", "val_loss"})
      if (all.contains(key)) row[key] = all[key];
    rows.push_back(row);
  }
  const std::string newest = read_text(run / "checkpoints/LATEST");
  const json files = json::parse(read_text(run / "checkpoints" / newest.substr(0, newest.find('\n')) / "manifest.json")).at("files");
  return {{"rows", rows}, {"model", files.at("model.safetensors").at("xxh3_128")}, {"optimizer", files.at("optimizer.safetensors").at("xxh3_128")}};
}

bool runs_avx2() {
  RidgeProgram ridge;
  ridge.set("RIDGE_ISA", "avx2");
  return ridge({"--version"}).code == 0;
}

void expect_as_stored(const std::string& name, const RidgeProgram& program) {
  const json expected = json::parse(read_text(fixtures() / "expected.json")).at(name);
  const json got = outcome(program / name, expected.at("after"));
  ASSERT_EQ(got.at("rows").size(), expected.at("rows").size());
  for (size_t i = 0; i < got.at("rows").size(); ++i) EXPECT_EQ(got["rows"][i], expected["rows"][i]);
  EXPECT_EQ(got.at("model"), expected.at("model"));
  EXPECT_EQ(got.at("optimizer"), expected.at("optimizer"));
}

class GptFolders : public testing::TestWithParam<const char*> {};

TEST_P(GptFolders, ResumeBitForBit) {
  if (!runs_avx2()) GTEST_SKIP() << "this CPU does not run AVX2";
  RidgeProgram ridge;
  ridge.set("RIDGE_ISA", "avx2");
  fs::copy(fixtures() / GetParam(), ridge / GetParam(), fs::copy_options::recursive);
  fs::copy(fixtures() / "text.txt", ridge / "text.txt");
  const Answer answer = ridge({"train", "gpt", "--resume", GetParam(), "--out", GetParam()});
  ASSERT_EQ(answer.code, 0) << answer.all();
  EXPECT_FALSE(answer.says("not bit-exact")) << answer.all();
  expect_as_stored(GetParam(), ridge);
}
INSTANTIATE_TEST_SUITE_P(RunFolders, GptFolders, testing::Values("gpt_f32", "gpt_bf16"));

// A user's model, with dropout.
struct OwnModel {
  Linear up{6, 24}, down{24, 3};
  Tensor operator()(const Tensor& x) const { return down(dropout(gelu(up(x)), 0.25)); }
  void visit(Visitor& v) { v("up", up)("down", down); }
};

constexpr const char* kOut = "RUN_FOLDERS_TEST_OUT";  // the folder that the child below trains in

// The child process: trains, or resumes the run in the folder.
TEST(RunFoldersChild, TrainsAUserModel) {
  const char* out = std::getenv(kOut);
  if (!out) return;
  seed(11);
  OwnModel net;
  const Data data({{{10, 6}}, {{10}, DType::i64}}, [](int64_t number, std::span<const BatchTensor> batch) {
    for (size_t i = 0; i < 60; ++i) batch[0].floats()[i] = uniform_from(random_word({3, uint32_t(number), 0}, i)) * 2 - 1;
    for (size_t i = 0; i < 10; ++i) batch[1].ints()[i] = int64_t(std::abs(batch[0].floats()[6 * i] + batch[0].floats()[6 * i + 1]) * 1.4f) % 3;
  });
  const Step learn = step(net, adamw({.lr = 2e-2, .decay = 0.05}), [&](Tensor x, Tensor t) { return cross_entropy(net(x), t); });
  Trainer trainer(learn, data, {.steps = 24, .warmup = 4, .clip = 0.5, .seed = 5, .out = out, .checkpoint_interval = 8, .show = false});
  EXPECT_TRUE(trainer.run().finished());
}

Answer train_own(RidgeProgram& self, const std::string& out) {
  self.set("RIDGE_ISA", "avx2");
  self.set(kOut, out);
  return self({"--gtest_filter=RunFoldersChild.*", "--gtest_brief=1"});
}

TEST(RunFolders, OfUserModelsResumeBitForBit) {
  if (!runs_avx2()) GTEST_SKIP() << "this CPU does not run AVX2";
  RidgeProgram self("/proc/self/exe");
  fs::copy(fixtures() / "trainer", self / "trainer", fs::copy_options::recursive);
  const Answer answer = train_own(self, self / "trainer");
  ASSERT_EQ(answer.code, 0) << answer.all();
  EXPECT_FALSE(answer.says("not bit-exact")) << answer.all();
  EXPECT_EQ(read_text(self / "trainer/log.txt").find("not bit-exact"), std::string::npos) << "settings that it did not store yet are unknown, not changed";
  expect_as_stored("trainer", self);
}

}  // namespace
}  // namespace ridge::test
