// Settings on the command line: their position, their names, and the message if they are invalid.
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

namespace fs = std::filesystem;

size_t times_in(const std::string& text, std::string_view words) {
  size_t count = 0;
  for (size_t at = text.find(words); at != text.npos; at = text.find(words, at + 1)) ++count;
  return count;
}

class Settings : public ::testing::Test {
 protected:
  Settings() {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "a line of text, number " + std::to_string(i) + ".\n";
    write_text(ridge / "t.txt", text);
    ridge.set("RIDGE_CUDA_LIBRARY", "libno_such_driver.so");
    ridge.set("RIDGE_THREADS", "1");
  }
  // A command on a tiny model that measures nothing.
  static std::vector<std::string> tiny(std::vector<std::string> words, std::vector<std::string> more = {}) {
    for (const char* word : {"data=t.txt", "layers=1", "heads=1", "width=8", "block=8", "batch=2", "warmup=0", "optimize_perf=false", "eval_interval=none"})
      words.emplace_back(word);
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  RidgeProgram ridge;
};

TEST_F(Settings, MayPrecedeTheCommand) {
  Answer answer = ridge({"--optimize-perf=false", "--seed", "7", "--bias", "lr=0.5", "config", "show", "gpt", "--json"});
  EXPECT_EQ(answer.code, 0) << answer.all();
  for (const char* row : {"\"key\": \"optimize_perf\",\n      \"value\": false", "\"key\": \"seed\",\n      \"value\": 7",
                          "\"key\": \"bias\",\n      \"value\": true", "\"key\": \"lr\",\n      \"value\": 0.5"})
    EXPECT_TRUE(answer.says(row)) << row << answer.all();
  answer = ridge({"--json", "config", "keys"});
  EXPECT_EQ(answer.out.substr(0, 1), "[") << answer.all();
  // A value may have the name of a command.
  answer = ridge({"--prompt", "train", "sample", "nowhere"});
  EXPECT_EQ(answer.code, 4) << answer.all();
  EXPECT_TRUE(answer.says("nowhere")) << answer.all();
  answer = ridge({"--frobnicate", "train", "gpt"});
  EXPECT_EQ(answer.code, 2);
  EXPECT_TRUE(answer.says("unknown key 'frobnicate'")) << answer.all();
  EXPECT_TRUE(ridge({"--version"}).says("ridge ")) << "flags of the program itself stay";
}

TEST_F(Settings, FromTheEnvironmentAreChecked) {
  const std::vector<std::string> show = {"config", "show"}, demo = {"demo", "--steps", "1"}, doctor = {"doctor"};
  auto expect_refusal = [](const char* name, const char* value, const std::vector<std::string>& command) {
    RidgeProgram other;
    other.set(name, value);
    const Answer answer = other(command);
    EXPECT_EQ(answer.code, 2) << name << command[0] << answer.all();
    EXPECT_TRUE(answer.says(std::string("'") + value + "'")) << name << command[0] << answer.all();
  };
  for (const auto& command : {show, demo}) {
    expect_refusal("OPTIMIZE_PERF", "banana", command);
    expect_refusal("OMP_NUM_THREADS", "abc", command);
    expect_refusal("RIDGE_THREADS", "banana", command);
  }
  expect_refusal("RIDGE_THREADS", "banana", doctor);
  RidgeProgram other;
  other.set("OMP_NUM_THREADS", "4,2");
  EXPECT_EQ(other({"config", "show"}).code, 0);
  // Other programs' environment variables matter only if they decide something.
  other.set("OMP_NUM_THREADS", "foo");
  other.set("OPTIMIZE_PERF", "foo");
  const Answer answer = other({"demo", "--steps", "1", "threads=1", "optimize_perf=false"});
  EXPECT_EQ(answer.code, 0) << answer.all();
}

TEST_F(Settings, ThatLimitMemoryAreNamedInErrors) {
  Answer answer = ridge(tiny({"plan", "gpt", "memory_fraction=0.0001"}));
  EXPECT_EQ(answer.code, 3) << answer.all();
  EXPECT_TRUE(answer.says(": set memory_fraction=0.")) << answer.all();
  EXPECT_FALSE(answer.says("memory=")) << answer.all();
  answer = ridge(tiny({"plan", "gpt", "memory_fraction=0.0001", "memory=64KiB"}));
  EXPECT_TRUE(answer.says(": set memory_fraction=0.") && answer.says(" and memory=")) << answer.all();
  answer = ridge(tiny({"plan", "gpt"}, {"width=400000"}));
  EXPECT_EQ(answer.code, 3) << answer.all();
  EXPECT_TRUE(answer.says("this machine is too small for it: it needs ")) << answer.all();
  EXPECT_FALSE(answer.says("memory=") || answer.says("memory_fraction=")) << answer.all();
}

TEST_F(Settings, ReportAnInvalidCacheFolder) {
  ridge.set("RIDGE_CACHE", "/dev/null");
  const Answer answer = ridge(tiny({"train", "gpt", "steps=1", "--out", "run"}));
  EXPECT_EQ(answer.code, 0) << answer.all();
  EXPECT_TRUE(answer.says("/dev/null is not a folder; set RIDGE_CACHE to a folder")) << answer.all();
  EXPECT_FALSE(answer.says("chmod") || answer.says("chown") || answer.says("others may have written")) << answer.all();
}

TEST_F(Settings, SuggestOnlySimilarNames) {
  EXPECT_TRUE(ridge({"sample", "nowhere", "--promt", "x"}).says("unknown key 'promt'; did you mean '--prompt'?"));
  const Answer flag = ridge({"runs", "--jsn"});
  EXPECT_EQ(flag.code, 2);
  EXPECT_TRUE(flag.says("did you mean '--json'?")) << flag.all();
  const Answer unrelated = ridge({"plan", "gpt", "zebra=1"});
  EXPECT_TRUE(unrelated.says("unknown key 'zebra'; ridge config keys lists all")) << unrelated.all();
  EXPECT_FALSE(unrelated.says("did you mean"));
  const Answer twice = ridge({"plan", "gpt", "lr=1e-3", "learning_rate=2e-3"});
  EXPECT_EQ(twice.code, 2);
  EXPECT_TRUE(twice.says("'lr' is set twice: as lr and as learning_rate")) << twice.all();
}

TEST_F(Settings, ReportTheFallbackDeviceFirst) {
  const std::string why = "cuda is not available here: no NVIDIA driver (libno_such_driver.so was not found); cpu runs instead of cuda";
  const Answer fits = ridge(tiny({"plan", "gpt", "device=cuda"}));
  EXPECT_EQ(fits.code, 0) << fits.all();
  EXPECT_EQ(fits.out.substr(0, fits.out.find("setting ")).find("cuda is not available here: no NVIDIA driver"), 0u) << fits.all();
  const Answer too_large = ridge(tiny({"plan", "gpt", "device=cuda"}, {"width=4096", "memory=64MiB"}));
  EXPECT_EQ(too_large.code, 3) << too_large.all();
  EXPECT_EQ(too_large.err.find("ridge: [device] " + why + "\n"), 0u) << too_large.all();
  EXPECT_TRUE(too_large.says("is too small")) << too_large.all();
  const Answer refused = ridge(tiny({"plan", "gpt", "device=cuda", "--no-fallback"}, {"width=4096", "memory=64MiB"}));
  EXPECT_EQ(refused.code, 1) << refused.all();
  EXPECT_EQ(refused.err.find("ridge: [device] cuda is not available here: no NVIDIA driver"), 0u) << refused.all();
}

TEST_F(Settings, WithoutEffectAreNamedInThePlan) {
  const Answer plan =
      ridge(tiny({"plan", "gpt", "device=cpu", "matmul_precision=medium", "offload_optimizer=true", "precision.cuda=bf16", "precision.cpu=fp32", "--json"}));
  EXPECT_EQ(plan.code, 0) << plan.all();
  EXPECT_TRUE(plan.says("matmul_precision=medium (command line): no effect here")) << plan.all();
  EXPECT_TRUE(plan.says("offload_optimizer=true (command line): no effect here")) << plan.all();
  EXPECT_TRUE(plan.says("asked for by name (fp32), set by precision.cpu")) << plan.all();
  EXPECT_FALSE(plan.says("enable_pinned_memory")) << "nobody asked for it";
}

TEST_F(Settings, TakeEffectInARun) {
  fs::create_directory(ridge / "open");
  fs::permissions(ridge / "open", fs::perms::all);
  ridge.set("RIDGE_CACHE", ridge / "open");
  const Answer run = ridge(tiny({"--out_dir", "run_x", "train", "gpt"}, {"steps=1", "matmul_precision=high", "empty_cache_frequency=1"}));
  EXPECT_EQ(run.code, 0) << run.all();
  EXPECT_TRUE(fs::exists(ridge / "run_x/model/model.safetensors"));
  EXPECT_TRUE(run.says("matmul_precision=high (command line): no effect here")) << run.all();
  EXPECT_TRUE(run.says("step 1: trimmed the memory pools, ")) << run.all();
  EXPECT_NE(read_text(ridge / "run_x/log.txt").find("step 1: trimmed the memory pools, "), std::string::npos);
  EXPECT_TRUE(run.says("its only step is done")) << run.all();
  EXPECT_FALSE(run.says(" 1 steps")) << run.all();
  // The cache is writable by everyone: it is neither read nor written, which is reported once, with the remedy.
  EXPECT_EQ(times_in(run.out + run.err, "chmod o-w " + (ridge / "open")), 1u) << run.all();
  EXPECT_TRUE(fs::is_empty(ridge / "open"));

  // A model that has lost its tokenizer: an experiment with it is rejected before its folder is created.
  fs::remove(ridge / "run_x/model/tokenizer.json");
  const Answer refused = ridge({"train", "gpt", "init_from=run_x/model", "data=t.txt", "seeds=2", "steps=1", "optimize_perf=false", "runs_dir=others"});
  EXPECT_EQ(refused.code, 4) << refused.all();
  EXPECT_TRUE(refused.says("has no tokenizer.json")) << refused.all();
  EXPECT_FALSE(fs::exists(ridge / "others"));
}

}  // namespace
}  // namespace ridge::test
