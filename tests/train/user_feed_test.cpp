// A user's feed collects its batches with the current weights: walkers in a corridor learn by policy gradients where the exit is, through ridge::Trainer alone.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "base/text.h"
#include "ridge/ridge.h"
#include "support/temp_folder.h"
#include "train/checkpoint.h"

namespace ridge {
namespace {

using test::read_text;
using test::TempFolder;

constexpr int64_t kSeats = 8, kTurns = 4, kPlaces = 5, kMiddle = 2, kChoices = kSeats * kTurns;

struct Table {
  Tensor logits = Tensor::zeros({kPlaces, 2});
  void visit(Visitor& v) { v("logits", logits); }
};

Step policy_gradient(Table& table) {
  return step(table, adam({.lr = 5e-2}), [&](const std::vector<Tensor>& batch) {
    const Tensor log_p = log_softmax(take(table.logits, batch[0]));
    return Loss{-sum(sum(log_p * one_hot(batch[1], 2), {1}) * batch[2]), full({}, double(batch[0].shape()[0]))};
  });
}

// Places 0 and 4 are exits; the right one is worth 1. Walkers continue from their place in the previous batch.
class Walkers : public Feed {
 public:
  explicit Walkers(Table& table) : table_(table), at_(kSeats, kMiddle) {}

  std::vector<Tensor> next(int64_t step) override {
    if (step == crash_at) throw std::runtime_error("power cut");
    std::vector<int64_t> places, moves;
    std::vector<float> advantage(size_t(kChoices), 0);
    for (int64_t turn = 0; turn < kTurns; ++turn) {
      const std::vector<float> p = softmax(take(table_.logits, here())).to_floats();
      for (int64_t i = 0; i < kSeats; ++i) {
        const bool right = uniform_from(random_word({7, uint32_t(step * kTurns + turn), 0}, uint64_t(i))) < p[size_t(2 * i + 1)];
        places.push_back(at_[size_t(i)]), moves.push_back(right);
        at_[size_t(i)] += right ? 1 : -1;
        if (at_[size_t(i)] > 0 && at_[size_t(i)] < kPlaces - 1) continue;
        for (int64_t past = turn; past >= 0 && advantage[size_t(past * kSeats + i)] == 0; --past) advantage[size_t(past * kSeats + i)] = right ? 0.5f : -0.5f;
        at_[size_t(i)] = kMiddle;
      }
    }
    position_ = step + 1;
    return {Tensor({kChoices}, std::span<const int64_t>(places)), Tensor({kChoices}, std::span<const int64_t>(moves)), Tensor({kChoices - missing}, advantage)};
  }
  int64_t position() const override { return position_; }
  void seek(int64_t position) override { position_ = position; }
  std::map<std::string, Tensor> save() const override { return {{"at", here()}}; }
  void restore(const std::map<std::string, Tensor>& state) override { at_ = state.at("at").to_ints(); }

  // The percentage of walkers that find the right exit if each takes its most likely move.
  double play() const {
    const std::vector<int64_t> best = argmax(table_.logits, -1).to_ints();
    int64_t place = kMiddle;
    for (int turn = 0; turn < 10 && place > 0 && place < kPlaces - 1; ++turn) place += best[size_t(place)] ? 1 : -1;
    return place == kPlaces - 1 ? 100 : 0;
  }

  int64_t crash_at = -1, missing = 0;

 private:
  Tensor here() const { return Tensor({kSeats}, std::span<const int64_t>(at_)); }

  Table& table_;
  std::vector<int64_t> at_;
  int64_t position_ = 0;
};

TrainingResult learn(Table& table, const std::shared_ptr<Walkers>& walkers, const std::string& out, int64_t steps = 40) {
  const Data data({{{kChoices}, DType::i64}, {{kChoices}, DType::i64}, {{kChoices}}}, walkers);
  TrainerArgs args{.steps = steps, .rate = RateKind::constant, .out = out, .validation_interval = 10, .checkpoint_interval = 8, .show = false};
  args.score = {.name = "exits", .unit = "%", .higher_is_better = true}, args.validate = [walkers] { return walkers->play(); };
  return Trainer(policy_gradient(table), data, args).run();
}

TEST(UserFeed, LearnsWithTheCurrentWeights) {
  TempFolder folder;
  Table table;
  const TrainingResult r = learn(table, std::make_shared<Walkers>(table), folder / "run");
  EXPECT_EQ(r.steps, 40);
  EXPECT_EQ(r.best_score, 100);
  EXPECT_FALSE(r.best_val_loss) << "episodes have no loss";
  std::vector<std::string> notices;
  const auto stored = CheckpointStore((folder / "run") + "/checkpoints").newest(notices);
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->tensors.at("task.safetensors").at("at").shape, Shape({kSeats}));
  EXPECT_EQ(nlohmann::json::parse(stored->texts.at("state.json"))["next_batch"], 40);
  EXPECT_NE(read_text((folder / "run") + "/score.svg").find("exits [%]"), std::string::npos);
  EXPECT_NE(read_text((folder / "run") + "/log.txt").find("exits 100.0000 %"), std::string::npos);
  EXPECT_EQ(read_text((folder / "run") + "/log.txt").find("val loss"), std::string::npos);
  const nlohmann::json summary = nlohmann::json::parse(read_text((folder / "run") + "/summary.json"));
  EXPECT_GT(summary["data_wait_seconds"], 0) << "steps wait while the feed collects";
  EXPECT_EQ(summary["unit"], "samples");
}

TEST(UserFeed, ResumesBitForBit) {
  TempFolder folder;
  Table whole;
  learn(whole, std::make_shared<Walkers>(whole), folder / "whole");
  for (const int64_t cut : {1, 19, 39}) {
    const std::string out = folder / ("cut" + std::to_string(cut));
    Table first, second;
    const auto crashing = std::make_shared<Walkers>(first);
    crashing->crash_at = cut;
    EXPECT_THROW(learn(first, crashing, out), std::runtime_error);
    EXPECT_TRUE(learn(second, std::make_shared<Walkers>(second), out).resumed);
    EXPECT_EQ(second.logits.to_floats(), whole.logits.to_floats());
  }
}

// As a policy does that is improved several times on what it collected: the outputs that it remembers are those of the weights that collected.
class Rollouts : public Feed {
 public:
  Rollouts(Linear& net, bool evaluates) : net_(net), evaluates_(evaluates) {}
  std::vector<Tensor> next(int64_t step) override {
    if (step % 3 == 0) {
      observed_ = full({2, 1}, 1), old_ = net_(observed_);
      if (evaluates_) old_.eval();
    }
    ++position_;
    return {observed_, old_ * 1.0f};
  }
  int64_t position() const override { return position_; }
  void seek(int64_t position) override { position_ = position; }

 private:
  Linear& net_;
  bool evaluates_;
  Tensor observed_, old_;
  int64_t position_ = 0;
};

struct OneWeight {
  OneWeight() { weight.weight = Tensor({1, 1}, {0.25f}); }
  Linear weight{1, 1, false};
  void visit(Visitor& v) { v("net", weight); }
};

TEST(UserFeed, RemembersOutputsOfEarlierWeights) {
  auto trained = [](bool evaluates) {
    OneWeight net;
    const Step learner = step(net, sgd({.lr = 0.25}), [&](Tensor x, Tensor old) { return mse(net.weight(x), old + 1.0f); });
    Trainer(learner, Data({{{2, 1}}, {{2, 1}}}, std::make_shared<Rollouts>(net.weight, evaluates)), {.steps = 6, .rate = RateKind::constant, .show = false})
        .run();
    return net.weight.weight.item();
  };
  // Each step goes half of the way to one more than what the weight was: 7/8 in three steps.
  EXPECT_FLOAT_EQ(float(trained(true)), 0.25f + 2 * 0.875f);
  EXPECT_EQ(trained(false), trained(true));
}

// Batches, scores and samples that are drawn by Ridge's own functions.
class Draws : public Feed {
 public:
  std::vector<Tensor> next(int64_t step) override {
    if (step == crash_at) throw std::runtime_error("power cut");
    position_ = step + 1;
    return {uniform({2, 1}), dropout(normal({2, 1}), 0.5)};
  }
  int64_t position() const override { return position_; }
  void seek(int64_t position) override { position_ = position; }
  int64_t crash_at = -1;

 private:
  int64_t position_ = 0;
};

TEST(UserFeed, DrawsTheSameWhenResumed) {
  struct Seen {
    double weight, score;
    std::vector<std::string> samples;
    bool operator==(const Seen&) const = default;
  };
  std::vector<std::string> samples;
  auto train = [&](const std::string& out, int64_t crash_at) {
    OneWeight net;
    const auto feed = std::make_shared<Draws>();
    feed->crash_at = crash_at;
    TrainerArgs args{.steps = 8, .rate = RateKind::constant, .out = out, .validation_interval = 2, .checkpoint_interval = 2, .show = false};
    args.validate = [] { return uniform({}).item(); };
    args.sample = [&] { return samples.push_back(to_string(uniform({}))), samples.back(); }, args.sample_interval = 2;
    const Step learner = step(net, sgd({.lr = 0.25}), [&](Tensor x, Tensor t) { return mse(net.weight(x), t); });
    const TrainingResult r = Trainer(learner, Data({{{2, 1}}, {{2, 1}}}, feed), args).run();
    return Seen{net.weight.weight.item(), r.score.value(), samples};
  };
  TempFolder folder;
  const Seen whole = train(folder / "whole", -1);
  EXPECT_EQ(std::set(samples.begin(), samples.end()).size(), 4u) << "every sample draws other numbers";
  samples.clear();
  EXPECT_THROW(train(folder / "cut", 4), std::runtime_error);
  uniform({}).eval();  // the process has drawn something else since
  EXPECT_EQ(train(folder / "cut", -1), whole);
}

TEST(UserFeed, RejectsInvalidFeeds) {
  Table table;
  const auto walkers = std::make_shared<Walkers>(table);
  walkers->missing = 1;
  try {
    learn(table, walkers, "");
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::shape) << error.what();
  }
  const Data data({{{kChoices}, DType::i64}, {{kChoices}, DType::i64}, {{kChoices}}}, walkers);
  EXPECT_THROW(Trainer(policy_gradient(table), data, {.steps = 3, .show = false}, data), Error) << "a feed is no validation data";
  TrainerArgs both{.steps = 3, .show = false};
  both.validate = [] { return 1.0; };
  EXPECT_THROW(Trainer(policy_gradient(table), data, both, data), Error);
  EXPECT_THROW(Data({{{kChoices}}}, std::shared_ptr<Feed>()), Error);
}

// Its state appears with the first batch; each batch depends on it.
class Counting : public Feed {
 public:
  std::vector<Tensor> next(int64_t step) override {
    count += float(step + 1), position_ = step + 1;
    if (step == crash_at) throw std::runtime_error("power cut");
    return {Tensor({2, 1}, std::vector<float>{count, 1})};
  }
  int64_t position() const override { return position_; }
  void seek(int64_t position) override { position_ = position; }
  std::map<std::string, Tensor> save() const override {
    return count > 0 && !silent ? std::map<std::string, Tensor>{{"count", Tensor({1}, std::vector<float>{count})}} : std::map<std::string, Tensor>{};
  }
  void restore(const std::map<std::string, Tensor>& state) override {
    ++(state.empty() ? restored_nothing : restored);
    if (!state.empty()) count = state.at("count").to_floats()[0];
  }

  float count = 0;
  int64_t crash_at = -1, restored = 0, restored_nothing = 0;
  bool silent = false;

 private:
  int64_t position_ = 0;
};

TEST(UserFeed, KeepsAStateThatAppearsLater) {
  TempFolder folder;
  auto train = [&](const std::shared_ptr<Counting>& feed, const std::string& out, int64_t steps) {
    struct One {
      Tensor w = Tensor::zeros({1, 1});
      void visit(Visitor& v) { v("w", w); }
    } net;
    const Step learn = step(net, sgd({.lr = 1e-3}), [&](Tensor x) { return mse(matmul(x, net.w), x); });
    Trainer(learn, Data({{{2, 1}}}, feed), {.steps = steps, .out = folder / out, .checkpoint_interval = 2, .show = false}).run();
    return net.w.to_floats()[0];
  };
  const float whole = train(std::make_shared<Counting>(), "whole", 6);
  const auto first = std::make_shared<Counting>(), second = std::make_shared<Counting>();
  first->crash_at = 5;
  EXPECT_THROW(train(first, "cut", 6), std::runtime_error);
  EXPECT_EQ(train(second, "cut", 6), whole);
  EXPECT_EQ(second->restored, 1);
  EXPECT_EQ(second->count, 1 + 2 + 3 + 4 + 5 + 6);
  // A folder without such a state.
  const auto silent = std::make_shared<Counting>(), heard = std::make_shared<Counting>();
  silent->silent = true;
  train(silent, "silent", 3), train(heard, "silent", 4);
  EXPECT_EQ(heard->restored_nothing, 1);
  EXPECT_EQ(heard->restored, 0);
}

TEST(UserFeed, CountsTheBatchInUseAndTheNextOne) {
  Table table;
  const Data data({{{kChoices}, DType::i64}, {{kChoices}, DType::i64}, {{kChoices, 1 << 18}}}, std::make_shared<Walkers>(table));
  const Step learn = step(table, adam({.lr = 5e-2}), [&](const std::vector<Tensor>& batch) {
    return Loss{sum(take(table.logits, batch[0])) + sum(batch[2]) * 1e-9, full({}, double(batch[0].shape()[0]))};
  });
  const std::string plan = Trainer(learn, data, {.steps = 1, .show = false}).plan();
  const size_t line = plan.find("batches ahead");
  ASSERT_NE(line, std::string::npos) << plan;
  EXPECT_NE(plan.substr(line, 50).find(size_text(2 * kChoices * (int64_t(4) << 18))), std::string::npos) << plan;
}

}  // namespace
}  // namespace ridge
