// A GPT run before it starts: what it decides, plans and refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "machine/memory_budget.h"
#include "ridge/tensor.h"
#include "support/gpt_run.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"
#include "tasks/gpt/run.h"
#include "tasks/gpt/task.h"
#include "train/checkpoint.h"
#include "train/plan_report.h"
#include "train/run_state.h"

namespace ridge {
namespace {

constexpr int64_t kMiB = int64_t(1) << 20;

class GptRunTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("RIDGE_CACHE", (folder_ / "cache").c_str(), 1);
    text_ = folder_ / "text.txt";
    std::ofstream file(text_);
    for (int i = 0; i < 400; ++i) file << "line " << i << " of a text that is long enough to be cut into windows\n";
  }
  void TearDown() override { unsetenv("RIDGE_CACHE"); }

  config::Resolved settings(std::vector<std::string> words) const {
    config::Sources sources;
    sources.task = config::task_bit("gpt"), sources.working_folder.reset(), sources.words = std::move(words);
    return config::resolve(sources);
  }
  // A budget of this much more than the process, which may have run other tests, already holds.
  [[maybe_unused]] static int64_t beyond(int64_t mib) { return resident_bytes() + mib * kMiB; }
  [[maybe_unused]] static std::string memory(int64_t mib) { return "memory=" + std::to_string(beyond(mib)); }

  RunOptions options() const {
    RunOptions o;
    o.data = text_, o.measure = false;
    return o;
  }

  test::TempFolder folder_;
  std::string text_;
};

// A sanitizer's memory is in no plan.
TEST_F(GptRunTest, PlansGpt2WithoutTakingItsMemory) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  const int64_t before = peak_resident_bytes();
  const GptRun run = plan_gpt_run(settings({"preset=gpt2", "batch=1", "block=256", "tokenizer=byte", "memory=8GiB"}), options());
  EXPECT_GT(run.planned_bytes, 1400 * kMiB);  // 85 M parameters with gradient and two moments
  EXPECT_LT(peak_resident_bytes() - before, 100 * kMiB);
  int64_t sum = 0;
  for (const MemoryItem& item : run.memory) sum += item.bytes;
  EXPECT_EQ(sum, run.planned_bytes);
  EXPECT_NE(plan_text(run, {}).find("mlp.c_fc.weight"), std::string::npos);
}

// The preset is named after its size with GPT-2's vocabulary.
TEST_F(GptRunTest, ExplainsWhyGpt2IsSmallerThanItsName) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  const auto why = [&](const GptRun& run) { return run.decisions.front().why; };
  const GptRun bytes = plan_gpt_run(settings({"preset=gpt2", "batch=1", "block=64", "tokenizer=byte", "memory=8GiB"}), options());
  EXPECT_NE(why(bytes).find("; 124 M with GPT-2's vocabulary of 50257, but this tokenizer has 257 tokens"), std::string::npos) << why(bytes);
  EXPECT_EQ(why(plan_gpt_run(settings({"preset=tiny"}), options())).find("50257"), std::string::npos);
}

TEST_F(GptRunTest, AnyBatchFitsABudgetThatFitsOneSample) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  for (const char* batch : {"batch=4", "batch=64", "batch=1000"}) {
    const int64_t budget = beyond(84);
    const GptRun run = plan_gpt_run(settings({"preset=shakespeare-cpu", batch, "memory=" + std::to_string(budget)}), options());
    EXPECT_LE(run.planned_bytes - run.passed_bytes, budget) << batch;
    EXPECT_EQ(run.step->plan().micro * run.step->plan().repeats + run.step->plan().remainder, run.step->plan().batch);
  }
}

TEST_F(GptRunTest, MillionsOfSamplesAreNotLoadedAtOnce) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  const int64_t budget = beyond(200);
  const GptRun run = plan_gpt_run(settings({"preset=tiny", "batch=3000000", "memory=" + std::to_string(budget)}), options());
  EXPECT_LE(run.planned_bytes - run.passed_bytes, budget);
  EXPECT_TRUE(run.trainer.load_parts);
  EXPECT_EQ(run.step->plan().batch, 3000000);
}

TEST_F(GptRunTest, ErrorsQuoteABudgetThatFits) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  // A process that has planned once holds more memory than before; after that it does not grow.
  EXPECT_THROW(plan_gpt_run(settings({"preset=shakespeare-char", memory(90)}), options()), Error);
  try {
    plan_gpt_run(settings({"preset=shakespeare-char", memory(90)}), options());
    FAIL() << "it fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::memory);
    // The quoted amount is valid as a setting and sufficient; much less is not.
    const std::string text = error.what(), word = "the smallest budget that works is ";
    const size_t at = text.find(word);
    ASSERT_NE(at, std::string::npos) << text;
    const std::string enough = text.substr(at + word.size());
    EXPECT_NO_THROW(plan_gpt_run(settings({"preset=shakespeare-char", enough}), options())) << enough;
    const int64_t mib = std::stoll(enough.substr(enough.find('=') + 1));
    EXPECT_THROW(plan_gpt_run(settings({"preset=shakespeare-char", fmt::format("memory={}MiB", mib * 9 / 10)}), options()), Error);
    EXPECT_THROW(plan_gpt_run(settings({"preset=shakespeare-char", "memory=1MiB"}), options()), Error);
  }
}

TEST_F(GptRunTest, TheQuotedBudgetIsTheSmallest) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  const std::vector<std::vector<std::string>> cases = {{"preset=tiny", "batch=24"},       // loaded in parts if there is almost no memory
                                                       {"preset=tiny", "batch=200000"}};  // so large that it always is
  for (std::vector<std::string> words : cases) {
    words.push_back("memory=1");
    int64_t planned = 0;
    auto refused = [&](int64_t bytes) -> int64_t {  // the quoted amount; 0: it works
      words.back() = fmt::format("memory={}", bytes);
      try {
        const GptRun run = plan_gpt_run(settings(words), options());
        planned = run.planned_bytes - run.passed_bytes;
        return 0;
      } catch (const Error& error) {
        const std::string text = error.what(), word = "the smallest budget that works is memory=";
        const size_t at = text.find(word);
        EXPECT_NE(at, std::string::npos) << text;
        return at == std::string::npos ? 0 : std::stoll(text.substr(at + word.size())) * kMiB;
      }
    };
    // The process grows by a little from one plan to the next, so the second and third quote may be a little larger.
    constexpr int64_t kDrift = 4 * kMiB;
    refused(kMiB);
    const int64_t first = refused(kMiB);
    ASSERT_GT(first, 0) << words[1];
    int64_t quoted = first;
    for (int64_t more = 0; (more = refused(quoted)) > 0 && quoted < first + kDrift;) quoted = more;
    ASSERT_LE(quoted, first + kDrift) << words[1];
    ASSERT_EQ(refused(quoted), 0) << words[1];
    EXPECT_GE(double(planned), 0.85 * double(quoted)) << words[1];  // up to a sixteenth of a budget may be reserved for batches
    int64_t low = quoted / 2, high = quoted;
    while (high - low > quoted / 50) {
      const int64_t middle = (low + high) / 2;
      (refused(middle) ? low : high) = middle;
    }
    EXPECT_LE(double(quoted), 1.05 * double(high) + double(kDrift)) << words[1];
  }
}

TEST_F(GptRunTest, RejectsSettingsThatOverflow) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  auto refusal = [&](std::vector<std::string> words) {
    try {
      plan_gpt_run(settings(std::move(words)), options());
      return std::string("it was planned");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage) << error.what();
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refusal({"preset=tiny", "steps=1000000000000", "batch=1000000000"}).find("[gpt] steps=1000000000000 x batch=1000000000 x block="), 0u);
  EXPECT_EQ(refusal({"preset=tiny", "steps=1000000000000", "batch=500000", "block=64"}).find("[gpt] steps=1000000000000 x batch=500000 x block=64 tokens"), 0u);
  EXPECT_NE(refusal({"preset=tiny", "batch=1000000000", "width=1048576", "heads=1", "layers=1024"}).find("bytes of activations"), std::string::npos);
}

TEST_F(GptRunTest, PlansAgainWhenOthersTookTheMemory) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  int asked = 0;
  const int64_t most = beyond(150);
  RunOptions o = options();
  o.free_memory = [&] { return ++asked == 1 ? 2000 * kMiB : 130 * kMiB; };  // memory disappears between plan and start
  const GptRun run = start_gpt_run(settings({"preset=shakespeare-cpu", "batch=600"}), o);
  EXPECT_LE(run.planned_bytes - run.passed_bytes, most);
  ASSERT_FALSE(run.notices.empty());
  EXPECT_NE(run.notices.front().find("planned again"), std::string::npos) << run.notices.front();
  EXPECT_GT(run.step->plan().repeats, 1);
}

// The process's earlier peak is counted and reported, but that much need not be free again.
TEST_F(GptRunTest, EarlierMemoryIsCountedButNotNeeded) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  { std::vector<char>(size_t(peak_resident_bytes() + 300 * kMiB), 'x'); }
  int asked = 0;
  RunOptions o = options();
  o.free_memory = [&] { return ++asked == 1 ? 2000 * kMiB : 200 * kMiB; };
  const GptRun run = start_gpt_run(settings({"preset=tiny"}), o);
  EXPECT_GE(run.planned_bytes, peak_resident_bytes());
  EXPECT_EQ(run.memory.back().what, "more, used before");
  EXPECT_EQ(run.memory.back().bytes, run.passed_bytes);
  for (const std::string& notice : run.notices) EXPECT_EQ(notice.find("planned again"), std::string::npos) << notice;
}

TEST_F(GptRunTest, GradientAccumulationSplitsTheBatch) {
  const GptRun run = plan_gpt_run(settings({"preset=tiny", "batch=10", "accumulation=3"}), options());
  EXPECT_EQ(run.step->plan().micro, 4);
  EXPECT_EQ(run.step->plan().repeats, 2);
  EXPECT_EQ(run.step->plan().remainder, 2);
}

TEST_F(GptRunTest, EveryDecisionSaysWhoMadeIt) {
  const GptRun run = plan_gpt_run(settings({"preset=tiny", "batch=8", "lr=0.01"}), options());
  for (const Decision& d : run.decisions) {
    EXPECT_FALSE(d.value.empty()) << d.setting;
    EXPECT_FALSE(d.decided_by.empty()) << d.setting;
    if (d.setting == "batch" || d.setting == "rate") {
      EXPECT_EQ(d.decided_by, "command line") << d.setting;
    }
  }
}

TEST_F(GptRunTest, ValidatesAllWindowsIfTheyAreCheap) {
  const GptRun cheap = plan_gpt_run(settings({"preset=tiny", "steps=100000"}), options());
  EXPECT_EQ(cheap.validation_windows, cheap.all_validation_windows);
  const GptRun dear = plan_gpt_run(settings({"preset=tiny", "steps=2", "batch=1"}), options());
  EXPECT_LT(dear.validation_windows, dear.all_validation_windows);
  EXPECT_GE(dear.validation_windows, 8);
}

const Decision& decision(const GptRun& run, const char* setting) {
  return *std::find_if(run.decisions.begin(), run.decisions.end(), [&](const Decision& d) { return d.setting == setting; });
}

TEST_F(GptRunTest, TheTableReportsUnmetRequests) {
  const GptRun run = plan_gpt_run(settings({"preset=tiny", "batch=4", "accumulation=3", "steps=20", "eval_interval=none"}), options());
  EXPECT_NE(decision(run, "micro-batch").why.find("3 parts asked for; 4 samples make 2"), std::string::npos) << decision(run, "micro-batch").why;
  EXPECT_NE(decision(run, "rate").why.find("the run ends before that"), std::string::npos) << decision(run, "rate").why;
  EXPECT_EQ(decision(run, "validation").value, "none");
}

TEST_F(GptRunTest, TheLearningRateNeverRisesToItsEnd) {
  EXPECT_THROW(plan_gpt_run(settings({"preset=tiny", "batch=4", "min_lr=1"}), options()), Error);
  const GptRun run = plan_gpt_run(settings({"preset=shakespeare-cpu", "batch=4", "lr=1e-5"}), options());  // the preset's own final rate is 1e-4
  EXPECT_DOUBLE_EQ(run.trainer.schedule.min_lr, 1e-6);
}

TEST_F(GptRunTest, WeightsDetermineSizesAndTokens) {
  const std::vector<std::string> words = {"preset=tiny", "layers=1", "width=16", "heads=2", "block=16", "batch=4", "threads=1", "sample_interval=none"};
  GptRun made = start_gpt_run(settings(words), options());
  const std::filesystem::path model = folder_ / "model";
  made.write_artifact(model);
  auto from = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"preset=tiny", "batch=4", "init_from=" + model.string()});
    return settings(more);
  };
  auto refusal = [&](std::vector<std::string> more) -> std::string {
    try {
      plan_gpt_run(from(more), options());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage) << error.what();
      return error.what();
    }
    return "none";
  };
  EXPECT_NE(refusal({"width=64"}).find("has width 16, not 64; leave width out"), std::string::npos) << refusal({"width=64"});
  EXPECT_NE(refusal({"block=8"}).find("leave block out"), std::string::npos);
  EXPECT_NE(refusal({"norm=rms"}).find("leave norm out"), std::string::npos);
  EXPECT_NE(refusal({"tokenizer=byte"}).find("leave tokenizer out"), std::string::npos);
  EXPECT_EQ(refusal({"width=16", "tokenizer=char"}), "none");

  config::Resolved kept = from({});
  const GptRun run = plan_gpt_run(kept, options());
  EXPECT_EQ(decision(run, "model").decided_by, "init_from");
  EXPECT_EQ(decision(run, "tokenizer").decided_by, "init_from");
  run.add_found_settings(kept);
  EXPECT_NE(kept.to_yaml().find("width: 16  # init_from"), std::string::npos) << kept.to_yaml();

  // A vocabulary built from the text would have different tokens than the model's.
  std::filesystem::copy_file(model / "tokenizer.json", folder_ / "kept.json");
  std::filesystem::remove(model / "tokenizer.json");
  try {
    plan_gpt_run(from({}), options());
    ADD_FAILURE() << "it learnt a vocabulary";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_NE(std::string(error.what()).find("has no tokenizer.json: copy the model's there, or name it with tokenizer=FILE"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(plan_gpt_run(from({"tokenizer=" + (folder_ / "kept.json")}), options()).model.width, 16);
}

TEST_F(GptRunTest, TheRemedyAfterDivergenceIsACommand) {
  RunOptions o = options();
  o.folder = folder_ / "my run";
  const GptRun run = plan_gpt_run(settings({"preset=tiny", "batch=4", "lr=0.3"}), o);
  Outcome outcome;
  outcome.end = Outcome::End::diverged;
  const RunSummary summary = summary_of(run, outcome, "");
  ASSERT_EQ(summary.next.size(), 1u);
  const std::string line = summary.next[0].first, folder = o.folder.string();
  EXPECT_EQ(line, "ridge train gpt --config '" + folder + "/config.yaml' --no-resume --out '" + folder + "_slower' lr=0.1 min_lr=auto");
}

// Complete runs of a very small model.
class GptResumeTest : public GptRunTest {
 protected:
  struct Notices : TrainerView {
    void on_notice(const std::string& line) override { all += line + "\n"; }
    std::string all;
  };
  struct Result {
    StepPlan plan;
    Outcome outcome;
    std::string notices;
    std::vector<float> weights;
  };
  Result train(std::vector<std::string> words, bool resume, bool parts = false, bool keep = true) const {
    words.insert(words.begin(), {"preset=tiny", "layers=1", "width=16", "heads=2", "block=16", "sample_interval=none", "threads=1"});
    const config::Resolved s = settings(words);
    RunOptions o = options();
    if (keep) o.folder = folder_ / "run";
    o.resume = resume;
    GptRun run = start_gpt_run(s, o);
    run.trainer.handle_signals = false, run.trainer.load_parts = parts, run.trainer.before = before_;
    Notices notices;
    Result r;
    r.outcome = train_run(run, s, {&notices});
    r.plan = run.step->plan(), r.notices = notices.all;
    const std::span<const float> weights = run.step->parameter(0);
    r.weights.assign(weights.begin(), weights.end());
    return r;
  }
  std::function<void(Phase, int64_t)> before_;
  static bool says(const Result& r, const char* what) { return r.notices.find(what) != std::string::npos; }
};

TEST_F(GptResumeTest, SplitBatchesTrainToTheSameBits) {
  const std::vector<std::string> words = {"steps=5", "batch=10", "accumulation=4"};
  const Result whole = train(words, false, false, false), parts = train(words, false, true, false);
  EXPECT_EQ(parts.plan.remainder, 1);
  EXPECT_EQ(whole.weights, parts.weights);
  EXPECT_EQ(whole.outcome.final_val_loss, parts.outcome.final_val_loss);
}

TEST_F(GptResumeTest, TrimsThePoolsAtIntervals) {
  auto trimmed_after = [&](const char* frequency) {
    std::vector<int64_t> steps;
    int64_t left = 0;
    auto look = [&](int64_t step) {
      if (eager_statistics().pool_bytes < left) steps.push_back(step);
      (void)Tensor({1000}, std::vector<float>(1000));  // a block that is free from here on
      left = eager_statistics().pool_bytes;
    };
    before_ = [&](Phase phase, int64_t step) {
      if (phase == Phase::data) look(step);
    };
    const Result r = train({"steps=7", "batch=4", frequency}, false, false, false);
    look(r.outcome.steps);
    return steps;
  };
  EXPECT_EQ(trimmed_after("empty_cache_frequency=0"), std::vector<int64_t>{});
  EXPECT_EQ(trimmed_after("empty_cache_frequency=3"), (std::vector<int64_t>{3, 6}));
  EXPECT_EQ(trimmed_after("empty_cache_frequency=1"), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(GptResumeTest, KeepsItsChoicesUnlessOverridden) {
  EXPECT_EQ(train({"steps=4", "batch=8", "accumulation=2"}, false).plan.repeats, 2);
  const Result same = train({"steps=6", "batch=8"}, true);
  EXPECT_EQ(same.plan.repeats, 2);
  const Result split = train({"steps=8", "batch=8", "accumulation=4"}, true);
  EXPECT_EQ(split.plan.repeats, 4);
  EXPECT_FALSE(split.outcome.bit_exact);
  EXPECT_TRUE(says(split, "micro was 4, is now 2")) << split.notices;
  const Result narrow = train({"steps=10", "batch=8", "precision=bf16"}, true);
  EXPECT_EQ(narrow.plan.choices.precision, Precision::bf16);
  EXPECT_EQ(narrow.plan.repeats, 4);
  const Result smaller = train({"steps=12", "batch=4"}, true);
  const size_t batch = smaller.notices.find("batch was 8, is now 4");
  EXPECT_NE(batch, std::string::npos) << smaller.notices;
  EXPECT_EQ(smaller.notices.find("batch was", batch + 1), std::string::npos) << "a difference is listed once: " << smaller.notices;
  EXPECT_TRUE(says(narrow, "resumed, not bit-exact") && says(narrow, "precision was fp32, is now bf16")) << narrow.notices;
}

TEST_F(GptResumeTest, DoesNotCompareLossesOfDifferentWindows) {
  const Result few = train({"steps=2", "batch=8"}, false);
  const Result all = train({"steps=3", "batch=8", "eval_interval=1"}, true);
  EXPECT_TRUE(says(all, "no longer counts")) << all.notices;
  EXPECT_EQ(all.outcome.best_step, 3);
  EXPECT_EQ(all.outcome.best_val_loss, all.outcome.final_val_loss);
  EXPECT_FALSE(says(train({"steps=4", "batch=8", "eval_interval=1"}, true), "no longer counts"));
}

TEST_F(GptResumeTest, RemembersWindowsThroughAPartWithoutValidation) {
  EXPECT_EQ(train({"steps=2", "batch=8"}, false).outcome.own_steps, 2);
  const Result without = train({"steps=3", "batch=8", "eval_interval=none"}, true);
  EXPECT_EQ(without.outcome.steps, 3);
  EXPECT_EQ(without.outcome.own_steps, 1) << "steps of earlier parts are not of this one";
  const Result all = train({"steps=4", "batch=8", "eval_interval=1"}, true);
  EXPECT_TRUE(says(all, "no longer counts")) << all.notices;
}

TEST_F(GptResumeTest, AConfigFileNamedNowOverridesTheRun) {
  train({"steps=4", "batch=8", "accumulation=2"}, false);
  auto repeats = [&](const std::filesystem::path& file) {
    config::Sources sources;
    sources.task = config::task_bit("gpt"), sources.working_folder.reset(), sources.files = {file};
    sources.words = {"preset=tiny", "layers=1", "width=16", "heads=2", "block=16", "sample_interval=none", "threads=1", "steps=6", "batch=8"};
    RunOptions o = options();
    o.folder = folder_ / "run", o.resume = true;
    const GptRun run = plan_gpt_run(config::resolve(sources), o);
    return std::pair(run.step->plan().repeats, run.step->plan().choices.precision);
  };
  std::ofstream(folder_ / "more.yaml") << "accumulation: 4\nprecision: bf16\n";
  EXPECT_EQ(repeats(folder_ / "more.yaml"), std::pair(int64_t(4), Precision::bf16));
  // Settings the run was started with are not reported as changes.
  std::ofstream(folder_ / "run/config.yaml") << "accumulation: 4\nprecision: bf16\n";
  EXPECT_EQ(repeats(folder_ / "run/config.yaml"), std::pair(int64_t(2), Precision::fp32));
}

TEST_F(GptRunTest, ComparesSplittingWithRecomputingByMeasuredRates) {
  const StepModel model =
      gpt_step_model(gpt_config(settings({"preset=shakespeare-char", "layers=2", "block=32", "dropout=0"}), 65), 8);  // weights outweigh activations
  StepOptions o;
  const StepPlan whole = TrainStep(model, o).plan();
  o.recompute = Recompute::elementwise;
  const StepPlan twice = TrainStep(model, o).plan();
  ASSERT_LT(twice.planned_bytes, whole.planned_bytes);
  o.recompute.reset(), o.memory = twice.planned_bytes;
  auto said = [&](const char* part) {
    const std::vector<std::string> lines = TrainStep(model, o).plan().decisions;
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.find(part) != std::string::npos; });
  };
  EXPECT_TRUE(said("2 operations in the time of one byte: a guess"));
  o.balance = [] { return 0.0; };
  EXPECT_TRUE(said("a guess"));
  o.balance = [] { return 7.0; };
  EXPECT_TRUE(said("7 operations in the time of one byte: measured"));
  // If memory is fast enough, nothing is recomputed; if only bytes matter, weights are not read twice.
  o.balance = [] { return 4.0; };
  const StepPlan parts = TrainStep(model, o).plan();
  EXPECT_GT(parts.repeats, 1);
  EXPECT_EQ(parts.recompute, Recompute::free);
  o.balance = [] { return 1e9; };
  const StepPlan at_once = TrainStep(model, o).plan();
  EXPECT_EQ(at_once.repeats, 1);
  EXPECT_EQ(at_once.recompute, Recompute::elementwise);
}

// A folder of an earlier Ridge does not record the cut: its tokens stay as they were.
TEST_F(GptRunTest, AResumedRunKeepsItsSplitOfTexts) {
  text_ = folder_ / "chinese.txt";
  std::ofstream file(text_);
  for (int i = 0; i < 40000; ++i) file << (i % 7 ? "你好世界中文" : " 。");
  file.close();
  const config::Resolved s = settings({"preset=tiny", "layers=1", "width=16", "heads=2", "block=8", "batch=2", "steps=4", "threads=1", "tokenizer=bpe"});
  std::string fingerprints[3];
  for (int version : {1, 2}) {
    DatasetOptions with;
    with.tokenizer = "bpe", with.cut = version;
    fingerprints[version] = open_dataset(text_, with).fingerprint;
  }
  ASSERT_NE(fingerprints[1], fingerprints[2]);
  EXPECT_EQ(plan_gpt_run(s, options()).data.fingerprint, fingerprints[2]);

  RunState state;
  state.step.attempted = 2;
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(to_json(state));
  EXPECT_EQ(json["cut"], 2);
  RunOptions resumed = options();
  resumed.resume = true;
  for (const int version : {0, 1, 2, 3}) {  // 0: not recorded
    version ? void(json["cut"] = version) : void(json.erase("cut"));
    resumed.folder = folder_ / ("run" + std::to_string(version));
    CheckpointContent content;
    content.step = 2, content.texts["state.json"] = json.dump();
    CheckpointStore(resumed.folder / "checkpoints").save(content);
    if (version == 3) {
      EXPECT_THROW(plan_gpt_run(s, resumed), Error);
    } else {
      EXPECT_EQ(plan_gpt_run(s, resumed).data.fingerprint, fingerprints[std::max(version, 1)]) << version;
    }
  }
}

}  // namespace
}  // namespace ridge
