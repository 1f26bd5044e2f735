// A complete run of a small GPT: batches that can be poisoned, the files it writes, and their comparison.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "support/temp_folder.h"
#include "threads/thread_team.h"
#include "train/run_planner.h"
#include "train/small_gpt.h"
#include "train/training_loop.h"

namespace ridge::test {

constexpr int64_t kSamples = 4;

// Tokens, targets, and a factor on each sample's logits, which is 1 in good data.
class SmallBatches : public BatchSource {
 public:
  using Factor = std::function<float(int64_t batch)>;
  SmallBatches(const GptConfig& c, uint64_t seed, int64_t batches, Factor factor = {}, std::vector<int64_t> left_out = {})
      : vocab_(c.vocab), seed_(seed), batches_(batches), factor_(std::move(factor)), left_out_(std::move(left_out)) {
    types_ = {{DType::i64, {kSamples, c.block}}, {DType::i64, {kSamples, c.block}}, {DType::f32, {kSamples}}};
  }
  const std::vector<Type>& types() const override { return types_; }
  int64_t batches() const override { return batches_; }
  void fill(int64_t number, std::span<std::byte* const> tensors) const override {
    for (const int64_t gone : left_out_) number += number >= gone;
    const TokenBatch batch(kSamples, types_[0].shape[1], vocab_, seed_ + uint64_t(number));
    std::memcpy(tensors[0], batch.in.data(), size_t(types_[0].bytes()));
    std::memcpy(tensors[1], batch.out.data(), size_t(types_[1].bytes()));
    const float factor = factor_ ? factor_(number) : 1;
    for (int64_t i = 0; i < kSamples; ++i) std::memcpy(tensors[2] + 4 * i, &factor, 4);
  }

 private:
  int64_t vocab_;
  uint64_t seed_;
  int64_t batches_;
  Factor factor_;
  std::vector<int64_t> left_out_;  // sorted; later batches move up
  std::vector<Type> types_;
};

inline StepModel small_model(const GptConfig& c) {
  StepModel model = ridge::gpt_step_model(c, kSamples);
  model.batch.push_back({DType::f32, {kSamples}});
  auto losses = [c](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const std::optional<RandomOperands>& random) {
    const NodeId factor = b.reshape(in[2], {-1, 1, 1});
    return b.cross_entropy(b.mul(gpt_forward(b, c, p, in[0], random), factor), in[1]);
  };
  model.loss = [=](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands& r) {
    return losses(b, p, in, c.dropout > 0 ? std::optional(r) : std::nullopt);
  };
  model.evaluate = [=](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) { return losses(b, p, in, std::nullopt); };
  return model;
}

struct SmallRun {
  std::filesystem::path folder;
  int64_t steps = 30;
  bool resume = false;
  int threads = 0;  // 0: the process's default team
  int64_t vocab = 19;
  SmallBatches::Factor factor = {};
  std::vector<int64_t> left_out = {};
  Precision precision = Precision::fp32;
  LossScaleOptions loss_scale = {};
  const FileCalls* files = &kSystemFileCalls;
  std::function<void(Phase, int64_t)> before = {};
  bool handle_signals = false;
  Backend* backend = &default_backend();
  std::vector<std::string> notices = {};  // of the run
  std::function<void(int64_t step)> on_checkpoint = {};
  std::optional<int64_t> checkpoint_interval = 5, validation_interval = 10;
  int64_t validation_batches = 2;
  double checkpoint_rest = 20, expected_step_seconds = 0, min_seconds = 0;
  int64_t pinned_bytes = int64_t(1) << 30;
  TrainerView* watcher = nullptr;
  std::function<std::string()> sample = [] { return std::string("a sample"); };
  double max_minutes = 0;
  int64_t micro = 0;  // 0: as planned
  std::optional<double> target_loss = {};
  Optimizer::Kind optimizer = Optimizer::Kind::adamw;

  Outcome operator()() {
    GptConfig c = tiny_gpt(vocab);
    c.dropout = 0.1;
    const StepModel model = small_model(c);
    std::unique_ptr<ThreadTeam> team;
    StepOptions options;
    std::unique_ptr<Backend> on_team;
    if (threads > 0) team = std::make_unique<ThreadTeam>(TeamOptions{.threads = threads}), on_team = cpu_backend(*team);
    options.optimizer.kind = optimizer, options.optimizer.momentum = optimizer == Optimizer::Kind::muon ? 0.95 : 0;
    options.seed = 7, options.clip = 1, options.optimizer.decay = 0.1, options.precision = precision, options.loss_scale = loss_scale, options.micro = micro;
    options.backend = on_team ? on_team.get() : backend;
    TrainStep step(model, options);
    start(step, model);
    const SmallBatches train_data(c, 100, -1, factor, left_out), validation_data(c, 1'000'000, validation_batches);

    TrainerTask task;
    task.step = &step, task.parameters = model.parameters, task.validation = &validation_data;
    task.sample = sample;
    task.identity = {{"vocabulary", std::to_string(vocab)}};
    task.texts["config.json"] = "{}";
    task.settings["optimizer"] = std::string(name(optimizer));

    TrainerOptions o;
    task.feed = data_feed(train_data, step, o);
    o.folder = folder, o.resume = resume, o.schedule = {Schedule::Kind::cosine, 1e-2, 1e-3, 3, steps};
    o.validation_interval = validation_interval, o.checkpoint_interval = checkpoint_interval, o.sample_interval = 15;
    o.checkpoint_rest = checkpoint_rest, o.expected_step_seconds = expected_step_seconds, o.pinned_bytes = pinned_bytes, o.handle_signals = handle_signals,
    o.files = files, o.before = before;
    o.min_seconds = min_seconds, o.max_minutes = max_minutes, o.target = target_loss;
    struct Notices : TrainerView {
      std::vector<std::string>* lines;
      std::function<void(int64_t)> saved;
      void on_notice(const std::string& line) override { lines->push_back(line); }
      void on_checkpoint(int64_t step, const std::string&, double) override {
        if (saved) saved(step);
      }
    } view;
    view.lines = &notices, view.saved = on_checkpoint;
    std::vector<TrainerView*> views = {&view};
    if (watcher) views.push_back(watcher);
    return train(task, o, views);
  }
};

inline bool mentions(const std::vector<std::string>& lines, std::string_view part) {
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

// A run's results without timings.
struct Trace {
  std::map<std::string, std::string> files;  // the newest checkpoint's weights and moments
  nlohmann::json state;
  int64_t best = -1;  // step of the best checkpoint
  std::vector<nlohmann::json> metrics;

  explicit Trace(const std::filesystem::path& folder) {
    std::vector<std::string> damage;
    const CheckpointStore store(folder / "checkpoints");
    const auto newest = store.newest(damage), best_one = store.best(damage);
    EXPECT_TRUE(newest && damage.empty());
    if (best_one) best = best_one->step;
    if (!newest) return;
    for (const auto& [name, file] : newest->tensors) files[name] = read_text((newest->folder / name).string());
    state = nlohmann::json::parse(newest->texts.at("state.json"));
    state.erase("seconds");
    std::ifstream in(folder / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      metrics.push_back(nlohmann::json::parse(line));
      for (const char* timed : {"ms", "tokens_s", "compute_tokens_s", "roof", "data_wait_s"}) metrics.back().erase(timed);
    }
  }
};

inline void expect_same(const Trace& a, const Trace& b) {
  ASSERT_EQ(a.files.size(), b.files.size());
  for (const auto& [name, bytes] : a.files) EXPECT_TRUE(bytes == b.files.at(name)) << name << " differs";
  EXPECT_EQ(a.best, b.best);
  EXPECT_EQ(a.state, b.state);
  EXPECT_EQ(a.metrics, b.metrics);
}

// Checks that no file of a run, however it ended, contains a number that is not finite.
inline void expect_finite(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (path.ends_with(".safetensors")) {
      const SafetensorsFile file(path);
      for (const SafetensorView& t : file.tensors())
        for (size_t i = 0; i < t.data.size(); i += 4) {
          float value = 0;
          std::memcpy(&value, t.data.data() + i, 4);
          ASSERT_TRUE(std::isfinite(value)) << path << ", " << t.name << " at " << i / 4;
        }
    } else if (path.ends_with(".json") || path.ends_with(".jsonl")) {
      std::ifstream in(path);
      if (path.ends_with(".json"))
        EXPECT_TRUE(nlohmann::json::accept(in)) << path;  // JSON has no NaN or infinity
      else
        for (std::string line; std::getline(in, line);) EXPECT_TRUE(nlohmann::json::accept(line)) << path << ": " << line;
    }
  }
}

}  // namespace ridge::test
