// Laws that only a complete GPT run shows: what its numbers refer to, where its weights come from, and how much time and memory it uses.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <tuple>

#include "data/stories.h"
#include "machine/memory_budget.h"
#include "support/gpt_run.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"
#include "tasks/gpt/files.h"
#include "tasks/gpt/run.h"
#include "tasks/gpt/sampler.h"
#include "tasks/gpt/task.h"
#include "train/plan_report.h"

namespace ridge {
namespace {

class GptLaws : public testing::Test {
 protected:
  void SetUp() override {
    use_cache("cache");
    text_ = folder_ / "text.txt";
    std::ofstream file(text_);
    for (int i = 0; i < 400; ++i) file << "line " << i << " of a text that is long enough to be cut into windows\n";
  }
  void TearDown() override { unsetenv("RIDGE_CACHE"); }
  void use_cache(const std::string& name) const { setenv("RIDGE_CACHE", (folder_ / name).c_str(), 1); }

  static config::Resolved settings(std::vector<std::string> words) {
    config::Sources sources;
    sources.task = config::task_bit("gpt"), sources.working_folder.reset(), sources.words = std::move(words);
    return config::resolve(sources);
  }
  // Settings of a very small model.
  static config::Resolved small(std::vector<std::string> words) {
    words.insert(words.begin(), {"preset=tiny", "layers=1", "width=16", "heads=2", "block=16", "batch=4", "threads=1", "sample_interval=none"});
    return settings(words);
  }
  RunOptions options() const {
    RunOptions o;
    o.data = text_, o.measure = false;
    return o;
  }
  static std::vector<std::vector<float>> weights_of(const GptRun& run) {
    std::vector<std::vector<float>> all;
    for (size_t i = 0; i < run.parameters.size(); ++i) {
      const std::span<const float> values = run.step->parameter(i);
      all.emplace_back(values.begin(), values.begin() + run.parameters[i].shape.numel());
    }
    return all;
  }

  test::TempFolder folder_;
  std::string text_;
};

// The targets of all validation batches, as the trainer uses them.
std::vector<std::vector<Token>> targets_of(const GptRun& run) {
  std::vector<std::vector<Token>> all;
  const Type& type = run.validation->types()[0];
  std::vector<int64_t> inputs(size_t(type.shape.numel())), targets(inputs.size());
  std::byte* const tensors[] = {reinterpret_cast<std::byte*>(inputs.data()), reinterpret_cast<std::byte*>(targets.data())};
  for (int64_t i = 0; i < run.validation->batches(); ++i) {
    run.validation->fill(i, tensors);
    for (int64_t s = 0; s < run.validation->samples(i); ++s) all.emplace_back(targets.begin() + s * type.shape[1], targets.begin() + (s + 1) * type.shape[1]);
  }
  return all;
}

// The loss in nats per character and the corpus's limit cover the same characters: those of the validation windows, all or some of them.
TEST_F(GptLaws, LossAndLowerBoundCountTheSameCharacters) {
  for (const char* tokenizer : {"tokenizer=char", "tokenizer=byte", "tokenizer=bpe"})
    for (const char* steps : {"steps=20", "steps=1000000"}) {
      SCOPED_TRACE(testing::Message() << tokenizer << " " << steps);
      RunOptions o = options();
      o.data = "builtin";
      const GptRun run = plan_gpt_run(settings({"preset=tiny", "layers=1", "width=16", "heads=2", "block=64", "batch=4", "threads=1", tokenizer, steps}), o);
      EXPECT_EQ(run.validation_windows < run.all_validation_windows, std::string(steps) == "steps=20");
      const Stories stories(64);
      double nats = 0, characters = 0, tokens = 0;
      for (const std::vector<Token>& window : targets_of(run)) {
        const std::string text = run.data.tokenizer->decode(window);
        const std::vector<double> each = stories.nats(text);  // must start at a story's beginning, or it would be rejected
        nats += std::accumulate(each.begin(), each.end(), 0.0);
        characters += double(text.size()), tokens += double(window.size());
      }
      ASSERT_TRUE(run.data.possible);
      EXPECT_NEAR(*run.data.possible, nats / characters, 1e-12);
      EXPECT_NEAR(*nats_per_character(run, 1), tokens / characters, 1e-12);
      Outcome outcome;
      outcome.best_val_loss = nats / tokens;  // the best possible
      const RunSummary summary = summary_of(run, outcome, "");
      EXPECT_NEAR(summary.nats_per_character, *summary.possible, 1e-12);
    }
}

// Whatever the padding rows of the vocabulary contain, they appear in no sample and no file.
TEST_F(GptLaws, PaddingIsNeitherSampledNorWritten) {
  config::Resolved s = settings({"preset=tiny", "layers=1", "width=24", "heads=2", "block=16", "batch=4", "threads=1", "steps=2"});
  RunOptions o = options();
  o.folder = folder_ / "run";
  GptRun run = start_gpt_run(s, o);
  ASSERT_GT(run.model.padded_vocab, run.data.vocab);
  EXPECT_EQ(run.model.padded_vocab % 64, 0);
  run.trainer.handle_signals = false;
  train_run(run, s, {});
  const size_t used = size_t(run.data.vocab * run.model.width);
  std::span<float> embedding = run.step->parameter(0);
  ASSERT_EQ(int64_t(embedding.size()), run.model.padded_vocab * run.model.width);
  EXPECT_TRUE(std::all_of(embedding.begin() + std::ptrdiff_t(used), embedding.end(), [](float v) { return v == 0; })) << "padding is not trained";
  std::fill(embedding.begin() + std::ptrdiff_t(used), embedding.end(), 1e3f);
  ASSERT_TRUE(run.sampler);
  run.sampler->forget();
  int drawn = 0;
  const Token first[] = {0};
  run.sampler->generate(first, 500, {.temperature = 100}, [&](Token t) {
    EXPECT_LT(t, run.data.vocab);
    return ++drawn < 500;
  });
  EXPECT_EQ(drawn, 500);

  run.write_artifact(folder_ / "model");
  std::vector<std::string> notices;
  const auto stored = CheckpointStore(o.folder / "checkpoints").newest(notices);
  ASSERT_TRUE(stored);
  for (const std::filesystem::path& path :
       {std::filesystem::path(folder_ / "model/model.safetensors"), stored->folder / "model.safetensors", stored->folder / "optimizer.safetensors"}) {
    const SafetensorsFile file(path.string());
    for (const SafetensorView& t : file.tensors())
      for (const int64_t size : t.shape) EXPECT_NE(size, run.model.padded_vocab) << path << " " << t.name;
  }
  EXPECT_NE(test::read_text(folder_ / "model/config.json").find("\"vocab_size\": " + std::to_string(run.data.vocab)), std::string::npos);
}

// init_from starts with the given weights, from a run (its best) or from a folder; another seed starts elsewhere.
TEST_F(GptLaws, FineTuningStartsFromTheWeights) {
  RunOptions o = options();
  o.folder = folder_ / "first";
  const config::Resolved s = small({"steps=5", "eval_interval=5"});
  GptRun run = start_gpt_run(s, o);
  run.trainer.handle_signals = false;
  const Outcome first = train_run(run, s, {});
  run.write_artifact(folder_ / "model");
  const auto trained = weights_of(run);
  for (const std::string& from : {folder_ / "first", folder_ / "model"}) {
    // A rate that changes nothing: the final weights are the initial ones.
    const config::Resolved t = settings({"preset=tiny", "batch=4", "threads=1", "sample_interval=none", "steps=1", "eval_interval=1", "lr=1e-30",
                                         "min_lr=1e-30", "init_from=" + from, "seed=99"});
    GptRun tuned = start_gpt_run(t, options());
    tuned.trainer.handle_signals = false;
    const Outcome out = train_run(tuned, t, {});
    EXPECT_EQ(out.steps, 1);
    EXPECT_EQ(weights_of(tuned), trained) << from;
    if (tuned.validation_windows == run.validation_windows) {
      EXPECT_NEAR(*out.final_val_loss, *first.final_val_loss, 1e-5);  // windows may be split differently
    }
  }
  GptRun other = start_gpt_run(small({"steps=5"}), [&] {
    RunOptions another = options();
    another.seed = 7;
    return another;
  }());
  other.trainer.handle_signals = false;
  train_run(other, small({"steps=5"}), {});
  EXPECT_NE(weights_of(other), trained);
}

const Decision* row_of(const GptRun& run, const std::string& setting) {
  const auto it = std::find_if(run.decisions.begin(), run.decisions.end(), [&](const Decision& d) { return d.setting == setting; });
  return it == run.decisions.end() ? nullptr : &*it;
}

// What the plan lists as largest at the peak is really allocated then: no more than the arenas hold, including the largest parameter.
TEST_F(GptLaws, LargestTensorsAreThoseAtThePeak) {
  const GptRun run = plan_gpt_run(settings({"preset=shakespeare-cpu"}), options());
  const StepPlan& plan = run.step->plan();
  int64_t parameters = 0, activations = 0;
  for (const LargeTensor& t : plan.largest) (t.name.find("transformer.") == 0 ? parameters : activations) += t.bytes * t.count;
  EXPECT_LE(parameters, plan.parameter_bytes + plan.gradient_bytes + plan.optimizer_bytes);
  EXPECT_GT(parameters, (plan.parameter_bytes + plan.gradient_bytes + plan.optimizer_bytes) / 2);
  EXPECT_LE(activations, plan.activation_bytes);
  EXPECT_GT(activations, plan.activation_bytes / 3);
}

TEST_F(GptLaws, AFractionIsABudget) {
  const GptRun most = plan_gpt_run(settings({"preset=tiny", "memory_fraction=0.9"}), options());
  const GptRun some = plan_gpt_run(settings({"preset=tiny", "memory_fraction=0.3"}), options());
  EXPECT_LT(some.budget.bytes, most.budget.bytes);
  EXPECT_LE(double(some.budget.bytes), 0.3 * double(read_limits().memory_total));
  EXPECT_EQ(row_of(some, "memory")->decided_by, "command line");
  EXPECT_LE(some.planned_bytes, some.budget.bytes);
}

TEST_F(GptLaws, LoadingFollowsTheSettings) {
  const GptRun usual = plan_gpt_run(small({}), options()), deep = plan_gpt_run(small({"prefetch_factor=8"}), options());
  EXPECT_EQ(deep.trainer.prefetch, 8);
  EXPECT_NE(usual.trainer.prefetch, 8);
  EXPECT_TRUE(usual.trainer.async_loading);
  EXPECT_FALSE(plan_gpt_run(small({"enable_async_loading=false"}), options()).trainer.async_loading);
  auto ahead = [](const GptRun& run) {
    return std::find_if(run.memory.begin(), run.memory.end(), [](const MemoryItem& m) { return m.what == "batches ahead"; })->bytes;
  };
  EXPECT_GT(ahead(deep), ahead(usual)) << "the queue is in the plan";
}

// A deep model's programs are themselves large. This is a separate suite so that it runs in its own process: heap memory left by other tests counts towards a
// process's memory.
using GptDepth = GptLaws;
TEST_F(GptDepth, DeepModelsStayWithinTheirBudget) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  const std::string budget = "memory=" + std::to_string(resident_bytes() + (int64_t(120) << 20));
  const GptRun run = plan_gpt_run(settings({"preset=tiny", "layers=48", "heads=2", "width=64", "block=64", "batch=8", "threads=1", budget}), options());
  EXPECT_LT(run.step->plan().micro, 8) << "the budget is to bind";
  EXPECT_LE(run.planned_bytes, run.budget.bytes);
}

// Every automatic decision has a reason and, if there was a choice, the alternatives; both are in the text and in the document.
TEST_F(GptLaws, EveryDecisionHasAReason) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  const std::string budget = "memory=" + std::to_string(resident_bytes() + (int64_t(90) << 20));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"preset=shakespeare-cpu"}, {"preset=shakespeare-cpu", "batch=2000", budget}, {"preset=shakespeare-cpu", "accumulation=3"}}) {
    SCOPED_TRACE(words.back());
    const GptRun run = plan_gpt_run(settings(words), options());
    const std::string text = plan_text(run, {400, false}), json = plan_json(run);
    for (const char* setting :
         {"model", "data", "device", "precision", "threads", "kernels", "memory", "micro-batch", "recompute", "rate", "steps", "validation"}) {
      const Decision* d = row_of(run, setting);
      ASSERT_TRUE(d) << setting;
      EXPECT_FALSE(d->decided_by.empty()) << setting;
      EXPECT_FALSE(d->why.empty()) << setting;
      EXPECT_NE(text.find(d->why), std::string::npos) << d->why << "\n" << text;
      EXPECT_NE(text.find(d->decided_by), std::string::npos);
      EXPECT_TRUE(d->runner_up.empty() || text.find("otherwise " + d->runner_up) != std::string::npos) << d->runner_up << "\n" << text;
    }
    EXPECT_EQ(row_of(run, "micro-batch")->runner_up.empty(), words.back() == "accumulation=3");
    EXPECT_FALSE(row_of(run, "recompute")->runner_up.empty());
    for (const char* part : {"parameters", "gradients", "optimizer moments", "activations", "scratch of kernels", "batches ahead", "the process itself"})
      EXPECT_NE(text.find(part), std::string::npos) << part;
    for (const char* part : {"body", "update", "evaluation", "Largest at the memory peak"}) EXPECT_NE(text.find(part), std::string::npos) << part;
    for (const char* key : {"\"runner_up\"", "\"decided_by\"", "\"largest\"", "\"programs\"", "\"micro\"", "\"expected_seconds\""})
      EXPECT_NE(json.find(key), std::string::npos) << key;
  }
}

// A resumed run keeps its split; if it no longer fits, the run says so and that its bits will differ.
TEST_F(GptLaws, ChoicesThatNoLongerFitAreReported) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  auto train = [&](std::vector<std::string> words, bool resume) {
    words.insert(words.begin(), {"preset=shakespeare-cpu", "batch=64", "threads=2", "sample_interval=none", "eval_interval=none", "checkpoint_interval=1"});
    const config::Resolved s = settings(words);
    RunOptions o = options();
    o.folder = folder_ / "run", o.resume = resume;
    GptRun run = start_gpt_run(s, o);
    run.trainer.handle_signals = false;
    const Outcome out = train_run(run, s, {});
    return std::tuple(out.bit_exact, run.step->plan().repeats, run.notices);
  };
  EXPECT_EQ(std::get<1>(train({"steps=1"}, false)), 1);
  const auto [exact, repeats, notices] = train({"steps=2", "memory=" + std::to_string(resident_bytes() + (int64_t(70) << 20))}, true);
  EXPECT_FALSE(exact);
  EXPECT_GT(repeats, 1);
  EXPECT_TRUE(std::any_of(notices.begin(), notices.end(), [](const std::string& n) { return n.find("do not fit any more") != std::string::npos; }));
}

// Temporarily limits how much the process may map.
class MappingLimit {
 public:
  MappingLimit() { ::getrlimit(RLIMIT_AS, &before_); }
  ~MappingLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  void set(int64_t bytes_more) {
    std::ifstream statm("/proc/self/statm");
    int64_t pages = 0;
    statm >> pages;
    const rlimit limit{rlim_t(pages * ::sysconf(_SC_PAGESIZE) + bytes_more), before_.rlim_max};
    ::setrlimit(RLIMIT_AS, &limit);
  }

 private:
  rlimit before_{};
};

// The system refuses memory that it had reported as free: the run is planned again for what is available, in as many attempts as it reports.
TEST_F(GptLaws, PlansAgainWhenMappingFails) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  constexpr int64_t kMiB = int64_t(1) << 20;
  MappingLimit limit;
  int asked = 0;
  RunOptions o = options();
  o.free_memory = [&] {
    if (++asked == 2) limit.set(300 * kMiB);  // after planning, before allocation
    return 4000 * kMiB;
  };
  const config::Resolved s = settings({"preset=shakespeare-cpu", "batch=600", "steps=1", "sample_interval=none", "threads=2", "eval_interval=none"});
  GptRun run = start_gpt_run(s, o);
  ASSERT_FALSE(run.notices.empty());
  EXPECT_NE(run.notices.front().find("planned again for what is free"), std::string::npos) << run.notices.front();
  EXPECT_GT(run.step->plan().repeats, 1);
  run.trainer.handle_signals = false;
  EXPECT_EQ(train_run(run, s, {}).steps, 1);
}

}  // namespace
}  // namespace ridge
