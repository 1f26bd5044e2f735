// Runs from the command line: their files, how they end, how they are resumed, and what is rejected before it would damage one.
#include <gtest/gtest.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

namespace fs = std::filesystem;

// "run" is a run of twelve steps; tests work on copies of it.
class Runs : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    program_ = std::make_unique<RidgeProgram>();
    write_plays(*program_);
    expect_words(*program_, 0, "all 12 steps done", "train gpt" + kSmall + "sample_interval=6 steps=12 data=plays.txt tensorboard=true --out run");
  }
  static void TearDownTestSuite() { program_.reset(); }
  std::string copy_of_run(const std::string& name) const {
    fs::copy(ridge / "run", ridge / name, fs::copy_options::recursive);
    return name;
  }
  nlohmann::json summary_of(const std::string& run) const { return nlohmann::json::parse(read_text(ridge / (run + "/summary.json"))); }
  std::string newest_of(const std::string& run) const {
    const std::string name = read_text(ridge / (run + "/checkpoints/LATEST"));
    return run + "/checkpoints/" + name.substr(0, name.find('\n'));
  }
  // Changes one byte, which every checksum detects.
  void damage(const std::string& file) const {
    std::string bytes = read_text(ridge / file);
    bytes.at(400) = char(bytes.at(400) ^ 1);
    write_text(ridge / file, bytes);
  }

  static inline std::unique_ptr<RidgeProgram> program_;
  const RidgeProgram& ridge = *program_;
};

TEST_F(Runs, WriteAllTheirFiles) {
  for (const char* name : {"config.yaml", "machine.json", "plan.json", "metrics.jsonl", "log.txt", "summary.json", "final_info.json", "train_loss.svg",
                           "val_loss.svg", "model/model.safetensors", "model/config.json", "model/tokenizer.json", "checkpoints/LATEST"})
    EXPECT_GT(fs::file_size(ridge / (std::string("run/") + name)), 0u) << name;
  EXPECT_FALSE(fs::is_empty(ridge / "run/tensorboard"));
  const nlohmann::json summary = summary_of("run");
  for (const char* key : {"best_val_loss", "final_train_loss", "steps", "seconds", "tokens_s", "planned_bytes", "peak_bytes", "device", "threads", "precision"})
    EXPECT_TRUE(summary.contains(key)) << key;
  const std::string rows = read_text(ridge / "run/metrics.jsonl");
  EXPECT_GE(std::count(rows.begin(), rows.end(), '\n'), 12);
  expect_words(ridge, 0, "all valid", "config check run/config.yaml");
  expect_words(ridge, 0, "perplexity", "eval run data=plays.txt");
  expect_words(ridge, 0, "run", "report run --svg compare.svg");
  EXPECT_TRUE(fs::exists(ridge / "compare.svg"));
}

TEST_F(Runs, ContinueToMoreSteps) {
  copy_of_run("longer");
  expect_refusal(ridge, 2, "already contains a run", "train gpt" + kSmall + "steps=12 data=plays.txt --out longer");
  expect_refusal(ridge, 2, "is finished: all 12 steps are done", "train gpt --out longer --resume");
  expect_words(ridge, 0, "all 14 steps done", "train gpt --out longer --resume steps=14 sample_interval=none eval_interval=none");
  expect_refusal(ridge, 2, "all 14 steps are done", "train gpt --out longer --resume");  // the latest setting holds
  expect_words(ridge, 2, "is finished: 14 steps are done, 12 are requested", "plan gpt --resume longer steps=12");
  // Killed after its last step: it is completed.
  nlohmann::json summary = summary_of("longer");
  summary["steps"] = 12;
  write_text(ridge / "longer/summary.json", summary.dump());
  fs::remove_all(ridge / "longer/model");
  expect_words(ridge, 0, "all 14 steps done", "train gpt --out longer --resume");
  EXPECT_TRUE(fs::exists(ridge / "longer/model/model.safetensors"));
  expect_words(ridge, 0, "from step 14 of 20", "plan gpt --resume longer steps=20");
}

TEST_F(Runs, ResumeWithRenamedDataAndWithoutRemarksOnDefaults) {
  copy_of_run("renamed");
  fs::copy_file(ridge / "plays.txt", ridge / "other.txt");
  const Answer answer =
      expect_words(ridge, 0, "all 13 steps done", "train gpt --resume renamed steps=13 data=other.txt sample_interval=none eval_interval=none");
  EXPECT_EQ((answer.out + answer.err).find("no effect"), std::string::npos) << answer.out << answer.err;
}

TEST_F(Runs, AreReportedOnceAndReplaceNoText) {
  const Answer answer = expect_words(ridge, 0, "run", "report run ./run run/ --json");
  const nlohmann::json report = nlohmann::json::parse(answer.out);
  EXPECT_EQ(answer.out.find("\"seeds\":3"), std::string::npos) << answer.out;
  EXPECT_EQ((report.is_array() ? report : report.at("runs")).size(), 1u) << answer.out;
  const std::string before = read_text(ridge / "plays.txt");
  expect_refusal(ridge, 2, "is not a picture", "report run --svg plays.txt");
  EXPECT_EQ(read_text(ridge / "plays.txt"), before);
}

TEST_F(Runs, AreWrittenToTheHomeFolderOfATilde) {
  expect_words(ridge, 0, "step 1", "train gpt" + kSmall + "steps=1 data=plays.txt --out=~/at_home");
  EXPECT_FALSE(fs::exists(ridge / "~"));
}

TEST_F(Runs, ResumeFromTheirFolderAlone) {
  fs::create_directory(ridge / "nothing");
  expect_refusal(ridge, 2, "no run folder", "train gpt --out missing --resume");
  expect_refusal(ridge, 2, "is not a run folder", "train gpt --out nothing --resume");
  expect_refusal(ridge, 2, "which run", "train gpt --resume");
  expect_refusal(ridge, 2, "name the run: --resume run", "train gpt --resume run/checkpoints");
  expect_refusal(ridge, 2, "name the run: --resume run", "train gpt --resume " + newest_of("run"));
  expect_refusal(ridge, 2, "plays.txt is not a folder", "train gpt --resume plays.txt");
  expect_refusal(ridge, 4, "is neither a run (checkpoints/) nor a model (config.json, model.safetensors); there is run", "sample run/checkpoints");
  expect_refusal(ridge, 2, "run is a run", "export run --out run");
  expect_refusal(ridge, 4, "is a run, not a text; init_from=run", "train gpt" + kSmall + "data=run --out bad");
  EXPECT_FALSE(fs::exists(ridge / "bad"));
}

TEST_F(Runs, KeepTheirVocabularyAndTheirModel) {
  const std::string before = read_text(ridge / "run/config.yaml");
  expect_refusal(ridge, 2, "vocabulary", "train gpt --out run --resume steps=20 tokenizer=byte");
  EXPECT_EQ(read_text(ridge / "run/config.yaml"), before) << "a refused resume changed it";
  expect_words(ridge, 0, "all 4 steps done", "train gpt" + kSmall + "width=32 steps=4 data=plays.txt --out wide");
  copy_of_run("wrong");
  fs::remove_all(ridge / "wrong/checkpoints");
  fs::copy(ridge / "wide/checkpoints", ridge / "wrong/checkpoints", fs::copy_options::recursive);
  expect_refusal(ridge, 2, "was trained with model", "train gpt --out wrong --resume steps=20");
}

TEST_F(Runs, SkipDamagedCheckpoints) {
  copy_of_run("damaged");
  damage(newest_of("damaged") + "/model.safetensors");
  expect_words(ridge, 0, "skipped", "train gpt --out damaged --resume steps=16");
  copy_of_run("broken");
  for (const auto& step : fs::directory_iterator(ridge / "broken/checkpoints"))
    if (step.is_directory()) damage("broken/checkpoints/" + step.path().filename().string() + "/model.safetensors");
  expect_refusal(ridge, 2, "no intact checkpoint", "train gpt --out broken --resume steps=16");
}

// Starting over would overwrite the trained weights.
TEST_F(Runs, WithoutCheckpointsAreNotOverwritten) {
  const Answer unkept =
      expect_words(ridge, 0, "ridge train gpt init_from=unkept", "train gpt" + kSmall + "steps=4 data=plays.txt checkpoint_interval=none --out unkept");
  EXPECT_FALSE(unkept.says("--resume")) << unkept.all();
  copy_of_run("bare"), copy_of_run("metrics_only");
  for (const auto& step : fs::directory_iterator(ridge / "bare/checkpoints"))
    if (step.is_directory()) fs::remove_all(step);
  fs::remove_all(ridge / "metrics_only/checkpoints"), fs::remove(ridge / "metrics_only/summary.json");
  for (const std::string gone : {"unkept", "bare", "metrics_only"}) {
    const std::string weights = ridge / (gone + "/model/model.safetensors"), before = read_text(weights);
    expect_refusal(ridge, 2, gone + " was trained, but has no checkpoint to resume from; init_from=" + gone, "train gpt lr=0.1 steps=30 --resume " + gone);
    expect_words(ridge, 2, "has no checkpoint to resume from", "plan gpt steps=30 --resume " + gone);
    EXPECT_TRUE(read_text(weights) == before) << gone << " lost its weights";
  }
}

TEST_F(Runs, StartFromTheWeightsOfOthers) {
  expect_words(ridge, 0, "init_from", "train gpt" + kSmall + "steps=2 data=plays.txt init_from=run --out tuned");
  expect_refusal(ridge, 2, "leave width out", "train gpt" + kSmall + "width=32 seeds=2 data=plays.txt init_from=run --out bad");
  fs::create_directory(ridge / "mute");
  for (const char* name : {"model.safetensors", "config.json"}) fs::copy(ridge / ("run/model/" + std::string(name)), ridge / "mute");
  expect_refusal(ridge, 4, "mute has no tokenizer.json", "train gpt" + kSmall + "seeds=2 data=plays.txt init_from=mute --out bad");
  EXPECT_FALSE(fs::exists(ridge / "bad"));
}

// A run that reached its target is finished, until another target is set.
TEST_F(Runs, StopAtTheirTarget) {
  const Answer reached =
      expect_words(ridge, 0, "has reached the target of 100", "train gpt" + kSmall + "steps=9 eval_interval=3 target_loss=100 data=plays.txt --out target");
  EXPECT_TRUE(reached.says("--resume target target_loss=none")) << reached.all();
  EXPECT_EQ(summary_of("target").at("steps"), 3);
  expect_refusal(ridge, 2, "has reached its target", "train gpt --resume target");
  expect_words(ridge, 2, "has reached its target", "plan gpt --resume target steps=20");
  fs::remove(ridge / "target/summary.json");  // killed just before it was written
  expect_words(ridge, 0, "has reached the target of 100", "train gpt --resume target");
  EXPECT_EQ(summary_of("target").at("steps"), 3) << "a run that was killed at its target went on";
  expect_words(ridge, 0, "all 9 steps done", "train gpt --resume target target_loss=0.1");
}

TEST_F(Runs, StopAtTheirTimeLimit) {
  expect_words(ridge, 0, "minutes is reached", "train gpt" + kSmall + "steps=100000000 data=plays.txt max_minutes=0.003 --out timed");
  EXPECT_TRUE(summary_of("timed").at("best_val_loss").is_number()) << "a time-limited run still ends with a validation loss";
  RidgeProgram wide;
  wide.set("COLUMNS", "300");
  expect_words(wide, 0, "steps that are left", "plan gpt optimize_perf=true --resume " + (ridge / "timed"));
}

TEST_F(Runs, ThatDivergeSuggestARemedy) {
  const Answer answer = expect_words(
      ridge, 5, "", "train gpt" + kSmall + "steps=60 lr=1000 min_lr=1000 weight_decay=1 warmup=0 checkpoint_interval=5 data=plays.txt --out diverged");
  EXPECT_TRUE(answer.says("not finite") && answer.says("lower lr")) << answer.all();
  EXPECT_TRUE(fs::exists(ridge / "diverged/checkpoints/LATEST"));
}

TEST_F(Runs, AcceptAConfigFileAndOverrides) {
  write_text(ridge / "settings.yaml", "steps: 9\ndata: plays.txt\n");
  expect_words(ridge, 0, "all 3 steps done", "train gpt" + kSmall + "--config settings.yaml steps=3 --out configured");
}

TEST_F(Runs, AreNotTrainedOnAsTexts) {
  fs::create_directories(ridge / "texts/runs");
  write_plays(ridge, "texts/a.txt");
  copy_of_run("texts/runs/first");
  RidgeProgram wide;
  wide.set("COLUMNS", "300");
  const Answer plan = expect_words(wide, 0, "1 text, ", "plan gpt" + kSmall + "data=" + (ridge / "texts"));
  EXPECT_TRUE(plan.says("1 run folder skipped")) << plan.all();
}

TEST_F(Runs, WithADamagedSummaryAreListed) {
  fs::create_directory(ridge / "listed");
  copy_of_run("listed/whole"), copy_of_run("listed/cut_off");
  write_text(ridge / "listed/cut_off/summary.json", read_text(ridge / "run/summary.json").substr(0, 30));
  RidgeProgram wide;
  wide.set("COLUMNS", "300");
  for (const char* command : {"runs ", "report "}) {
    const Answer list = expect_words(wide, 0, "", command + (ridge / "listed"));
    EXPECT_NE(list.err.find("listed/cut_off/summary.json is damaged"), std::string::npos) << list.all();
    auto row_of = [&](const std::string& name) {
      const size_t at = ("\n" + list.out).find("\n" + name + " ");
      return at == std::string::npos ? std::string() : list.out.substr(at, list.out.find('\n', at) - at);
    };
    EXPECT_NE(row_of("whole").find(" finished"), std::string::npos) << list.all();
    EXPECT_NE(row_of("cut_off").find(" 12 "), std::string::npos) << list.all();
    EXPECT_NE(row_of("cut_off").find(" damaged"), std::string::npos) << list.all();
  }
  expect_words(ridge, 0, "\"state\": \"damaged\"", "runs listed --json");
  expect_words(ridge, 0, "all 15 steps done", "train gpt --resume listed/cut_off steps=15");
}

TEST_F(Runs, PrintOnlyJsonWithJsonFlag) {
  const Answer run = expect_words(ridge, 0, "{", "train gpt" + kSmall + "steps=2 data=plays.txt --out json --json");
  for (size_t at = 0; at < run.out.size(); at = run.out.find('\n', at) + 1) EXPECT_EQ(run.out[at], '{') << run.out.substr(at, 80);
  const Answer plan = expect_words(ridge, 0, "{", "plan gpt" + kSmall + "data=plays.txt --json --out planned");
  EXPECT_TRUE(nlohmann::json::accept(plan.out)) << plan.all();
  EXPECT_FALSE(fs::exists(ridge / "planned")) << "a plan wrote something";
}

}  // namespace
}  // namespace ridge::test
