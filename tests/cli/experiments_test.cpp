// Experiments of several runs: seeds and data sets, how they are resumed, and what is rejected before it would damage them.
#include <gtest/gtest.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

namespace fs = std::filesystem;

int64_t steps_entry(const std::string& run) { return nlohmann::json::parse(read_text(run + "/summary.json")).at("steps"); }

// "many" is an experiment with two data sets and two seeds, three steps each; tests work on copies of it.
class Experiments : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    program_ = std::make_unique<RidgeProgram>();
    write_plays(*program_);
    std::string other = read_text(*program_ / "plays.txt");
    for (size_t at = other.find("question"); at != other.npos; at = other.find("question", at)) other.replace(at, 8, "answer");
    write_text(*program_ / "other.txt", other);
    first_ = expect_words(*program_, 0, "seed", "train gpt" + kSmall + "steps=3 seeds=2 data=plays.txt,other.txt --out_dir many");
  }
  static void TearDownTestSuite() { program_.reset(); }
  void copy_many(const std::string& name) const { fs::copy(ridge / "many", ridge / name, fs::copy_options::recursive); }
  void expect_absent(const std::string& path) const { EXPECT_FALSE(fs::exists(ridge / path)) << path; }
  void expect_file(const std::string& path) const { EXPECT_TRUE(fs::exists(ridge / path) && fs::file_size(ridge / path) > 0) << path; }

  static inline std::unique_ptr<RidgeProgram> program_;
  static inline Answer first_;
  const RidgeProgram& ridge = *program_;
};

TEST_F(Experiments, HaveAFolderPerRunAndMeansOverSeeds) {
  EXPECT_TRUE(first_.says("means ± standard errors over the seeds")) << first_.all();
  const size_t row = first_.out.find("\nplays.txt ");
  ASSERT_NE(row, std::string::npos) << first_.all();
  const std::string line = first_.out.substr(row + 1, first_.out.find('\n', row + 1) - row - 1);
  EXPECT_TRUE(line.find(" ± ") != line.npos && line.find(" 2  finished") != line.npos) << line;
  for (const char* name : {"plays.txt/seed_1337/summary.json", "other.txt/seed_1338/summary.json", "final_info.json", "train_loss.svg"})
    expect_file(std::string("many/") + name);
  EXPECT_NE(read_text(ridge / "many/final_info.json").find("best_val_loss_stderr"), std::string::npos);
  expect_words(ridge, 0, "for 4 runs together", "plan gpt" + kSmall + "optimize_perf=true seeds=2 data=plays.txt,other.txt");
}

TEST_F(Experiments, AreNotResumedWithOtherSettings) {
  copy_many("kept");
  fs::remove_all(ridge / "kept/other.txt/seed_1338");
  const std::string before = read_text(ridge / "kept/config.yaml");
  for (const char* command : {"train gpt --resume kept ", "plan gpt --resume kept "})
    for (const char* others : {"seeds=1", "data=other.txt", "data=plays.txt seeds=1", "seed=5"})
      expect_words(ridge, 2, "leave data, seed and seeds as they were", std::string(command) + others);
  expect_words(ridge, 2, "kept already contains a run", "train gpt" + kSmall + "steps=2 data=plays.txt --out kept");
  fs::copy(ridge / "many/plays.txt/seed_1337", ridge / "single", fs::copy_options::recursive);
  expect_words(ridge, 2, "single already contains a run", "train gpt" + kSmall + "steps=2 seeds=2 data=plays.txt --out single");
  expect_words(ridge, 2, "single exists, but single/seed_1337 was requested and does not", "train gpt --resume single seeds=2");
  expect_absent("single/seed_1337"), expect_absent("kept/metrics.jsonl");
  EXPECT_EQ(read_text(ridge / "kept/config.yaml"), before) << "a refused resume changed the experiment";
  expect_words(ridge, 0, "all 3 steps done", "train gpt --out kept --resume");
  expect_file("kept/other.txt/seed_1338/summary.json");
}

TEST_F(Experiments, ResumeAsAWhole) {
  copy_many("longer");
  expect_words(ridge, 2, "is finished", "train gpt --out longer/plays.txt/seed_1337 --resume");
  expect_words(ridge, 2, "preset=gpt2 was requested; leave it out", "train gpt --resume longer preset=gpt2");
  expect_words(ridge, 2, "all 4 runs in longer are finished", "train gpt --out longer --resume");
  expect_words(ridge, 2, "all 4 runs in longer are finished", "plan gpt --resume longer");
  const Answer plan = expect_words(ridge, 0, "from step 3 of 4", "plan gpt --resume longer steps=4 optimize_perf=true");
  EXPECT_TRUE(plan.says("for 4 runs together")) << plan.all();
  expect_words(ridge, 0, "all 4 steps done", "train gpt --out longer --resume steps=4");
  for (const char* run : {"plays.txt/seed_1337", "plays.txt/seed_1338", "other.txt/seed_1337", "other.txt/seed_1338"})
    EXPECT_EQ(steps_entry(ridge / ("longer/" + std::string(run))), 4) << run;
}

TEST_F(Experiments, PlanTheRemainingRuns) {
  copy_many("left");
  fs::remove_all(ridge / "left/other.txt");
  const Answer plan = expect_words(ridge, 0, "other.txt, seeds 1337 to 1338, each", "plan gpt --resume left");
  EXPECT_NE(plan.err.find("left/plays.txt/seed_1338 is finished"), std::string::npos) << plan.all();
  expect_words(ridge, 0, "\"seeds\"", "plan gpt --resume left --json");
  fs::create_directories(ridge / "left/other.txt/seed_1338/checkpoints/step_00000001");
  expect_words(ridge, 2, "left/other.txt/seed_1338 has no checkpoint to resume from", "plan gpt --resume left");
}

TEST_F(Experiments, NameRunsAfterTheirData) {
  write_plays(ridge, "plays, other.txt");  // a name that looks like two
  auto train = [&](const std::string& data, const std::string& more, const char* expected) {
    std::vector<std::string> words = {
        "train",   "gpt",          "layers=1", "heads=1", "width=8", "block=8", "batch=2", "threads=1", "optimize_perf=false", "sample_interval=none",
        "steps=2", "data=" + data, "--out"};
    words.push_back(more.substr(0, more.find(' ')));
    if (const size_t blank = more.find(' '); blank != more.npos) words.push_back(more.substr(blank + 1));
    return expect_words(ridge, 0, expected, words);
  };
  train("plays, other.txt", "comma seeds=2", "means");
  expect_words(ridge, 0, "perplexity", "eval comma/seed_1338");
  train("other.txt,plays, other.txt", "commas", "all 2 steps done");
  expect_file("commas/other.txt/summary.json"), expect_file("commas/plays__other.txt/summary.json");
  expect_words(ridge, 0, "all 3 steps done", "train gpt --resume commas steps=3");
  fs::create_directory(ridge / "same");
  write_plays(ridge, "same/plays.txt");
  const Answer twins = train("plays.txt,same/plays.txt", "twins", "All runs");
  EXPECT_FALSE(twins.says("over the seeds")) << "there is one" << twins.all();
  expect_file("twins/plays.txt/summary.json"), expect_file("twins/plays.txt_2/summary.json");
}

// A run killed after its last step, before it could report its end, is completed: its summary covers fewer steps.
TEST_F(Experiments, FinishARunKilledAfterItsLastStep) {
  copy_many("killed");
  const std::string summary = ridge / "killed/plays.txt/seed_1337/summary.json", before = read_text(summary);
  expect_words(ridge, 0, "means", "train gpt --resume killed steps=6");
  write_text(summary, before);
  expect_words(ridge, 0, "all 6 steps done", "train gpt --resume killed steps=6");
  EXPECT_EQ(steps_entry(ridge / "killed/plays.txt/seed_1337"), 6);
}

// A run that has already reached the requested target does not hold up the others.
TEST_F(Experiments, WithATargetTrainMissingRuns) {
  copy_many("aimed");
  fs::remove_all(ridge / "aimed/other.txt/seed_1338");
  const Answer answer = expect_words(ridge, 0, "has reached the target of 99", "train gpt --resume aimed steps=12 eval_interval=3 target_loss=99");
  EXPECT_NE(answer.err.find("seed_1337 is finished"), std::string::npos) << answer.all();
  EXPECT_EQ(steps_entry(ridge / "aimed/other.txt/seed_1338"), 3);
  expect_words(ridge, 2, "or another target_loss if one was reached", "train gpt --resume aimed");
  expect_words(ridge, 0, "all 4 steps done", "train gpt --resume aimed target_loss=none steps=4");
}

TEST_F(Experiments, WithoutCheckpointsAreNotOverwritten) {
  expect_words(ridge, 0, "means", "train gpt" + kSmall + "steps=2 seeds=2 data=plays.txt checkpoint_interval=none --out unkept");
  expect_words(ridge, 2, "all 2 runs in unkept are finished", "train gpt --resume unkept");
  expect_words(ridge, 2, "seed_1337 was trained, but has no checkpoint", "train gpt --resume unkept steps=3");
}

TEST_F(Experiments, AreDistinguishedFromRunsAndOtherFolders) {
  fs::create_directories(ridge / "above");
  fs::copy(ridge / "many", ridge / "above/one", fs::copy_options::recursive);
  expect_words(ridge, 2, "is not a run, but contains some; name one: --resume above/one/", "train gpt --resume above");
  fs::create_directories(ridge / "others/program");
  write_text(ridge / "others/program/config.yaml", "servers: 3\n");
  expect_words(ridge, 2, "others is not a run folder: it has no config.yaml", "train gpt --resume others");
  expect_words(ridge, 4, "is an experiment, not a text", "train gpt" + kSmall + "data=many --out bad");
  expect_absent("bad");
  expect_words(ridge, 4, "there are many/other.txt/seed_1337, many/other.txt/seed_1338", "sample many");
}

// Not among the texts themselves: the second seed would read the first one's output. In a folder below, all read the same texts.
TEST_F(Experiments, AreNotWrittenIntoTheirTextFolder) {
  fs::create_directories(ridge / "own");
  write_plays(ridge, "own/a.txt"), write_plays(ridge, "own/b.txt");
  for (const char* seeds : {"1", "2"})
    expect_words(ridge, 2, "own/ is the data itself", "train gpt" + kSmall + "data=own --out ./own/ seeds=" + std::string(seeds));
  expect_words(ridge, 0, "means", "train gpt" + kSmall + "steps=2 seeds=2 data=own checkpoint_interval=none --out own/unkept");
  expect_words(ridge, 0, "means", "train gpt" + kSmall + "steps=2 seeds=2 data=own --out own/seeds");
  expect_words(ridge, 0, "all 3 steps done", "train gpt --resume own/seeds steps=3");
  for (const char* seed : {"unkept/seed_1337", "unkept/seed_1338", "seeds/seed_1337", "seeds/seed_1338"})
    EXPECT_NE(read_text(ridge / ("own/" + std::string(seed) + "/log.txt")).find("2 texts, "), std::string::npos) << seed << " has read other texts";
  expect_words(ridge, 0, "all 2 steps done", "train gpt" + kSmall + "steps=2 data=own,own/a.txt --out own/pair");
  expect_words(ridge, 0, "all 3 steps done", "train gpt --resume own/pair steps=3");
}

}  // namespace
}  // namespace ridge::test
