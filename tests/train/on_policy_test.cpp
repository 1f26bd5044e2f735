// A toy task that collects its batches with the current weights: walkers in a corridor learn by policy gradients where the exit is. It has its own state and
// score but no code in src/train; the training loop's laws hold for it as they do for data sets.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "step/read_program.h"
#include "train/device_like_backend.h"
#include "train/experiment.h"
#include "train/loss_plot.h"
#include "train/small_run.h"

namespace ridge {
namespace {

using test::expect_same;
using test::read_text;
using test::TempFolder;
using test::Trace;

constexpr int64_t kWalkers = 8, kMoves = 4, kCells = 5, kStart = 2, kTaken = kWalkers * kMoves;

// -advantage · log P(action | cell), with the policy's entropy.
StepModel corridor_model() {
  StepModel m;
  m.parameters = {{"policy", {kCells, 2}, 0, 0.01, false}};
  m.batch = {{DType::i64, {kTaken}}, {DType::i64, {kTaken}}, {DType::f32, {kTaken}}};
  m.loss = [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) {
    const NodeId log_p = b.log_softmax(b.take(p[0], in[0], 0)), taken = b.mul(log_p, b.one_hot(in[1], 2));
    const int64_t last[] = {1};
    const NodeId loss = b.neg(b.sum(b.mul(b.sum(taken, last), in[2]))), count = b.literal(DType::f32, double(b.shape(in[0])[0]));
    return StepLoss(Builder::SumCount{loss, count}, {{"entropy", {b.neg(b.sum(b.mul(log_p, b.unary(Op::exp, log_p)))), count}}});
  };
  return m;
}

// Cells 0 and 4 are exits; the right one is worth 1. Walkers continue from their position in the previous batch.
class Corridor : public BatchFeed {
 public:
  explicit Corridor(TrainStep& step)
      : step_(step),
        act_(step, {{DType::i64, {kWalkers}}},
             [](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands& random) {
               const NodeId logits = b.take(p[0], in[0], 0);
               return std::vector<NodeId>{b.categorical(logits, random), b.arg(Op::arg_max, logits, -1)};
             }),
        cells_(kWalkers, kStart) {}

  Batch next(int64_t step) override {
    EXPECT_EQ(step_.pending(), 0) << "the weights are not those after the last step";
    std::vector<float> reward(kTaken, 0);
    taken_cells_.clear(), actions_.clear();
    for (int64_t move = 0; move < kMoves; ++move) {
      std::vector<int64_t> action(kWalkers), best(kWalkers);
      act(action, best, step * kMoves + move);
      taken_cells_.insert(taken_cells_.end(), cells_.begin(), cells_.end());
      actions_.insert(actions_.end(), action.begin(), action.end());
      for (size_t i = 0; i < cells_.size(); ++i) {
        cells_[i] += action[i] ? 1 : -1;
        if (cells_[i] > 0 && cells_[i] < kCells - 1) continue;
        const float value = cells_[i] > 0 ? 1.0f : 0.0f;
        // All moves of this batch that led here get the exit's worth as reward, minus the average worth of exits so far.
        for (int64_t past = move; past >= 0; --past) {
          float& r = reward[size_t(past * kWalkers) + i];
          if (r != 0) break;
          r = value - baseline_;
        }
        baseline_ += 0.05f * (value - baseline_), ++episodes_;
        cells_[i] = kStart;
      }
    }
    advantage_ = reward;
    if (poison && poison(step)) advantage_[0] = NAN;
    position_ = step + 1;
    ++collected;
    return {step, tensors_};
  }
  int64_t position() const override { return position_; }
  void seek(int64_t position, const std::vector<int64_t>&) override {
    position_ = position;
    taken_cells_.reserve(kTaken), actions_.reserve(kTaken), advantage_.resize(kTaken);
    tensors_ = {taken_cells_.data(), actions_.data(), advantage_.data()};
  }
  bool on_policy() const override { return true; }

  std::vector<StateTensor> save() const {
    auto tensor = [](std::string name, DType dtype, int64_t size, const void* data) {
      const auto* bytes = static_cast<const std::byte*>(data);
      return StateTensor{std::move(name), dtype, {size}, {bytes, bytes + Type{dtype, {size}}.bytes()}};
    };
    return {tensor("cells", DType::i64, kWalkers, cells_.data()), tensor("baseline", DType::f32, 1, &baseline_), tensor("episodes", DType::i64, 1, &episodes_)};
  }
  void restore(const SafetensorsFile& file) {
    auto take = [&](const char* name, void* to) { std::memcpy(to, file.at(name).data.data(), file.at(name).data.size()); };
    take("cells", cells_.data()), take("baseline", &baseline_), take("episodes", &episodes_);
    ++restored;
  }

  // The share of walkers that find the right exit if each takes its most likely move. The loss is the number of moves that takes.
  Validation play() {
    const std::vector<int64_t> kept = cells_;
    std::vector<int64_t> action(kWalkers), best(kWalkers);
    std::fill(cells_.begin(), cells_.end(), kStart);
    double found = 0, moves = 0;
    for (int move = 0; move < 10; ++move) {
      act(action, best, 0);
      for (size_t i = 0; i < cells_.size(); ++i) {
        if (cells_[i] == 0 || cells_[i] == kCells - 1) continue;
        cells_[i] += best[i] ? 1 : -1, moves += 1, found += cells_[i] == kCells - 1;
      }
    }
    cells_ = kept;
    return {moves / kWalkers, {100 * found / kWalkers}};
  }

  double validation_seconds() const override { return expected_validation; }
  int64_t group() const override { return together; }

  std::function<bool(int64_t)> poison;
  double expected_validation = 0;
  int64_t together = 1;
  int collected = 0, restored = 0;

 private:
  void act(std::vector<int64_t>& action, std::vector<int64_t>& best, int64_t number) {
    const void* in[] = {cells_.data()};
    void* out[] = {action.data(), best.data()};
    act_.run(in, out, 11, number);
  }

  TrainStep& step_;
  ReadProgram act_;
  std::vector<int64_t> cells_, taken_cells_, actions_;
  std::vector<float> advantage_;
  std::vector<const void*> tensors_;
  float baseline_ = 0.5f;
  int64_t episodes_ = 0, position_ = 0;
};

struct CorridorRun {
  std::filesystem::path folder;
  bool resume = false;
  Backend* backend = &default_backend();
  std::function<void(Phase, int64_t)> before = {};
  std::function<bool(int64_t)> poison = {};
  std::optional<double> target = {};
  double rate = 5e-2, max_minutes = 0, expected_validation = 0;
  int64_t group = 1;
  TrainerTask::Validate validate = {};
  int restored = 0;

  Outcome operator()() {
    const StepModel model = corridor_model();
    StepOptions options;
    options.optimizer.lr = 5e-2, options.evaluation = false, options.seed = 4;
    options.backend = backend;
    TrainStep step(model, options);
    start(step, model);
    const auto corridor = std::make_shared<Corridor>(step);
    corridor->poison = poison, corridor->expected_validation = expected_validation, corridor->together = group;
    TrainerTask task;
    task.step = &step, task.parameters = model.parameters, task.feed = corridor;
    task.validate = [&](const std::function<bool()>& stop) { return validate ? validate(stop) : std::optional(corridor->play()); };
    task.validation_scalars = {"exits"}, task.score = {"exits", "%", true};
    task.save = [&] { return corridor->save(); }, task.restore = [&](const SafetensorsFile& file) { corridor->restore(file); };
    TrainerOptions o;
    o.folder = folder, o.resume = resume, o.before = before, o.handle_signals = false, o.target = target;
    o.schedule = {Schedule::Kind::constant, rate, rate, 0, 40}, o.max_minutes = max_minutes;
    o.validation_interval = 10, o.checkpoint_interval = 8;
    const Outcome outcome = train(task, o);
    restored = corridor->restored;
    return outcome;
  }
};

TEST(OnPolicy, LearnsThroughTheSameLoop) {
  TempFolder folder;
  const Outcome o = CorridorRun{.folder = folder / "run"}();
  EXPECT_EQ(o.steps, 40);
  EXPECT_EQ(o.best_score, 100);
  EXPECT_EQ(o.score.name, "exits");
  const Trace t(folder / "run");
  EXPECT_TRUE(t.files.contains("task.safetensors"));
  EXPECT_EQ(t.state["score"]["name"], "exits");
  EXPECT_EQ(t.state["best_score"], 100);
  EXPECT_EQ(t.state["next_batch"], 40);
  EXPECT_GT(t.metrics.front()["scalars"]["entropy"], t.metrics[t.metrics.size() - 2]["scalars"]["entropy"]) << "it becomes sure of the way";
  // Plots and means recognize the score from the run's files, even though it wrote no summary.
  write_loss_plots(folder / "run", {folder / "run"});
  EXPECT_NE(read_text((folder / "run") + "/score.svg").find("exits [%]"), std::string::npos);
  EXPECT_EQ(read_experiment_run(folder / "run").best_score, 100);
  EXPECT_EQ(final_info({read_experiment_run(folder / "run")})["run"]["means"]["best_exits_mean"], 100);
}

TEST(OnPolicy, ResumesBitForBit) {
  TempFolder folder;
  CorridorRun{.folder = folder / "whole"}();
  const Trace whole(folder / "whole");
  struct Crash {};
  for (const int64_t cut : {1, 8, 19, 39}) {
    const std::filesystem::path path = folder / ("cut" + std::to_string(cut));
    CorridorRun first{.folder = path}, second{.folder = path, .resume = true};
    first.before = [=](Phase phase, int64_t step) {
      if (phase == Phase::step && step == cut) throw Crash{};
    };
    EXPECT_THROW(first(), Crash);
    second();
    EXPECT_EQ(second.restored, 1);
    expect_same(Trace(path), whole);
  }
}

TEST(OnPolicy, AnAsynchronousDeviceFinishesBeforeCollecting) {
  TempFolder folder;
  DeviceLikeBackend device;
  CorridorRun{.folder = folder / "near"}();
  CorridorRun{.folder = folder / "far", .backend = &device}();
  Trace host(folder / "near"), gpu(folder / "far");
  for (Trace* t : {&host, &gpu})
    for (const char* word : {"isa", "device"}) t->state["choices"].erase(word);
  expect_same(host, gpu);
}

// A roll-back undoes the walkers' moves since the checkpoint along with the weights, and continues with half the rate.
TEST(OnPolicy, RollsBackItsState) {
  TempFolder folder;
  struct Crash {};
  CorridorRun first{.folder = folder / "whole"};
  first.before = [](Phase phase, int64_t step) {
    if (phase == Phase::step && step == 17) throw Crash{};
  };
  EXPECT_THROW(first(), Crash);
  CorridorRun{.folder = folder / "whole", .resume = true, .rate = 2.5e-2}();
  int bad = 3;
  CorridorRun rolled{.folder = folder / "rolled"};
  rolled.poison = [&](int64_t step) { return step >= 20 && bad > 0 && bad-- > 0; };
  EXPECT_EQ(rolled().roll_backs, 1);
  EXPECT_EQ(rolled.restored, 1);
  const Trace a(folder / "whole"), b(folder / "rolled");
  for (const auto& [name, bytes] : a.files) EXPECT_TRUE(bytes == b.files.at(name)) << name << " differs";
  EXPECT_TRUE(b.state["left_out"].empty()) << "a position is no batch that could be left out";
}

// The same weights play the same batches: a failure that half the rate does not avoid is not tried a third time.
TEST(OnPolicy, StopsWhenARollBackRepeats) {
  TempFolder folder;
  CorridorRun run{.folder = folder / "run"};
  run.poison = [](int64_t step) { return step >= 20; };
  const Outcome o = run();
  EXPECT_EQ(o.end, Outcome::End::diverged);
  EXPECT_EQ(run.restored, 1) << o.reason;
  EXPECT_NE(o.reason.find("step 23 was not finite again, though its batch was collected again with a lower learning rate"), std::string::npos) << o.reason;
}

// A guess about the last validation must not take all the time that was meant for training.
TEST(OnPolicy, ATimeLimitIsNotGivenToTheValidationAlone) {
  CorridorRun run{.folder = {}, .max_minutes = 0.01, .expected_validation = 1e9};
  EXPECT_GT(run().steps, 1);
}

// A group of steps that has begun is finished, so one that does not fit into the time that is left does not begin.
TEST(OnPolicy, ATimeLimitIncludesTheLastGroup) {
  CorridorRun run{.folder = {}, .max_minutes = 0.15 / 60, .group = 5};
  run.before = [](Phase phase, int64_t) {
    if (phase == Phase::step) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  EXPECT_EQ(run().steps, 5);
}

// Whatever a validation does, it learns when the time is over, and the run ends without it.
TEST(OnPolicy, ATimeLimitCutsAValidationOff) {
  TempFolder folder;
  CorridorRun run{.folder = folder / "run", .max_minutes = 1e-9};
  int asked = 0;
  run.validate = [&](const std::function<bool()>& stop) {
    for (; !stop(); ++asked)
      if (asked > 1'000'000'000) return std::optional(Validation{});
    return std::optional<Validation>();
  };
  const Outcome o = run();
  EXPECT_EQ(o.end, Outcome::End::time);
  EXPECT_EQ(o.steps, 1);
  EXPECT_FALSE(o.final_score);
  EXPECT_TRUE(Trace(folder / "run").state["validation_due"]) << "it is repeated when the run is resumed";
}

TEST(OnPolicy, StopsAtAHighTarget) {
  const Outcome o = CorridorRun{.folder = {}, .target = 100}();
  EXPECT_EQ(o.end, Outcome::End::target);
  EXPECT_EQ(o.reason, "validation exits 100.0000 has reached the target of 100");
  EXPECT_LT(o.steps, 40);
}

TEST(OnPolicy, MissingStateIsAnError) {
  TempFolder folder;
  CorridorRun run{.folder = folder / "run"};
  struct Crash {};
  run.before = [](Phase phase, int64_t step) {
    if (phase == Phase::step && step == 20) throw Crash{};
  };
  EXPECT_THROW(run(), Crash);
  // A damaged checkpoint is ignored: the previous one is used.
  std::vector<std::string> notices;
  const auto newest = CheckpointStore((folder / "run") + "/checkpoints").newest(notices);
  ASSERT_TRUE(newest);
  std::string bytes = read_text((newest->folder / "task.safetensors").string());
  bytes.back() = char(bytes.back() ^ 1);
  test::write_text((newest->folder / "task.safetensors").string(), bytes);
  const auto before = CheckpointStore((folder / "run") + "/checkpoints").newest(notices);
  ASSERT_TRUE(before);
  EXPECT_LT(before->step, newest->step);
  EXPECT_TRUE(test::mentions(notices, "task.safetensors: its checksum is not the manifest's"));
}

}  // namespace
}  // namespace ridge
