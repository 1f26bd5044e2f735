// The trainer for a user's own model: it learns, stops and resumes with the same bits, and rejects what does not fit together.
#include "ridge/trainer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/rng.h"
#include "io/safetensors.h"
#include "ridge/ridge.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"
#include "tasks/user/data.h"
#include "train/run_state.h"
#include "train/training_loop.h"

namespace ridge {
namespace {

struct Mlp {
  Linear up{3, 16}, down{16, 1};
  Tensor operator()(const Tensor& x) const { return down(tanh(up(x))); }
  void visit(Visitor& v) { v("up", up)("down", down); }
};

struct Points {
  std::vector<float> x, y;
  explicit Points(int64_t n, uint64_t seed = 5) {
    for (int64_t i = 0; i < n; ++i) {
      float sum = 0;
      for (uint32_t k = 0; k < 3; ++k) x.push_back(uniform_from(random_word({seed, 0, k}, uint64_t(i)))), sum += x.back() * float(k + 1);
      y.push_back(std::sin(sum));
    }
  }
  int64_t size() const { return int64_t(y.size()); }
  Data data() const { return {Tensor({size(), 3}, x), Tensor({size(), 1}, y)}; }
};

Step learner(Mlp& net, double lr = 1e-2) {
  return step(net, adamw({.lr = lr}), [&net](Tensor x, Tensor t) { return mse(net(x), t); });
}

std::vector<float> weights(Mlp& net) {
  std::vector<float> all;
  for (const NamedTensor& p : parameters(net))
    for (float v : p.tensor->to_floats()) all.push_back(v);
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Batches from a function that records when it is called; each depends only on its number.
Data function_data(std::function<void(int64_t)> asked) {
  return Data({{{8, 3}}, {{8, 1}}}, [asked](int64_t number, std::span<const BatchTensor> batch) {
    asked(number);
    for (size_t i = 0; i < 24; ++i) batch[0].floats()[i] = uniform_from(random_word({1, uint32_t(number), 0}, i));
    for (size_t i = 0; i < 8; ++i) batch[1].floats()[i] = std::sin(batch[0].floats()[3 * i]);
  });
}

TEST(UserTrainer, TrainsOnTensorsWithoutAFolder) {
  seed(1);
  Mlp net;
  const Points train(500), test(77, 6);
  Trainer trainer(learner(net, 3e-2), train.data(), {.steps = 400, .batch = 64, .show = false}, test.data());
  EXPECT_NE(trainer.plan().find("micro-batch"), std::string::npos);
  const TrainingResult r = trainer.run();
  EXPECT_TRUE(r.finished()) << r.reason;
  EXPECT_EQ(r.steps, 400);
  EXPECT_LT(r.train_loss, 0.05);  // the values' variance is 0.4
  ASSERT_TRUE(r.best_val_loss && r.val_loss);
  // The last validation is the loss over all 77 samples, of which the last batch holds 13, with the current weights.
  const double now = Tensor(mse(net(Tensor({77, 3}, test.x)), Tensor({77, 1}, test.y))).item();
  EXPECT_NEAR(*r.val_loss, now, 1e-5 * std::max(now, 1e-3));
  EXPECT_GT(r.planned_bytes, 0);
}

TEST(UserTrainer, ResumesAfterAnInterruptBitForBit) {
  test::TempFolder folder;
  const TrainerArgs args{.steps = 60, .warmup = 5, .clip = 1, .checkpoint_interval = 20, .show = false};
  auto with_out = [&](const char* name) {
    TrainerArgs a = args;
    a.out = folder / name;
    return a;
  };
  seed(2);
  Mlp whole, parts;
  for (size_t i = 0; i < parameters(whole).size(); ++i) {
    const Tensor& from = *parameters(whole)[i].tensor;
    *parameters(parts)[i].tensor = Tensor::from_bytes(from.shape(), from.dtype(), from.data());
  }
  Trainer(learner(whole), function_data([](int64_t) {}), with_out("whole")).run();
  {
    bool asked = false;
    Trainer first(learner(parts), function_data([&](int64_t number) {
                    if (number == 33 && !asked) asked = true, ::kill(::getpid(), SIGINT);
                  }),
                  with_out("parts"));
    const TrainingResult r = first.run();
    EXPECT_EQ(r.end, TrainingResult::End::interrupted);
    EXPECT_LT(r.steps, 60);
    EXPECT_GT(r.steps, 0);  // batches are made ahead of the steps that use them
  }
  Mlp again;  // with other weights, so that the run's are read
  Trainer second(learner(again), function_data([](int64_t) {}), with_out("parts"));
  const TrainingResult r = second.run();
  EXPECT_TRUE(r.finished() && r.resumed);
  EXPECT_EQ(r.steps, 60);
  EXPECT_TRUE(same_bits(weights(whole), weights(again)));

  // A complete run loads its weights and trains nothing. Its files stay as they are.
  const std::string summary = test::read_text(folder / "parts/summary.json");
  Mlp once_more;
  Trainer third(learner(once_more), function_data([](int64_t) {}), with_out("parts"));
  const TrainingResult known = third.run();
  EXPECT_TRUE(known.finished() && known.resumed);
  EXPECT_EQ(known.steps, 60);
  EXPECT_EQ(known.train_loss, r.train_loss);
  EXPECT_TRUE(same_bits(weights(whole), weights(once_more)));
  EXPECT_EQ(test::read_text(folder / "parts/summary.json"), summary);

  // Its files use the user's names, and weights from other programs can be loaded by those names.
  Mlp reader;
  load_weights(reader, folder / "parts");
  EXPECT_TRUE(same_bits(weights(whole), weights(reader)));

  // The folder has what every run's has.
  for (const char* name : {"config.yaml", "log.txt", "machine.json", "metrics.jsonl", "plan.json", "summary.json", "train_loss.svg"})
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(folder / "parts") / name)) << name;
  const std::string settings = test::read_text(folder / "parts/config.yaml"), log = test::read_text(folder / "parts/log.txt");
  for (const char* line :
       {"steps: 60  # the program", "warmup: 5  # the program", "checkpoint_interval: 20  # the program", "data: [\"function\"]  # the program"})
    EXPECT_NE(settings.find(line), std::string::npos) << line;
  for (const char* line : {"micro-batch", "interrupted", "resumed at step", "all 60 steps done"}) EXPECT_NE(log.find(line), std::string::npos) << line;
}

TEST(UserTrainer, RejectsInconsistentArguments) {
  test::TempFolder folder;
  const Points points(64), others(64, 9);
  const TrainerArgs args{.steps = 5, .batch = 16, .out = folder / "run", .show = false};
  auto code_of = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  Mlp net;
  Trainer(learner(net), points.data(), args).run();
  TrainerArgs longer = args;
  longer.steps = 8;
  TrainerArgs anew = args;
  anew.resume = false;
  for (const auto& [data, with] : {std::pair(&others, longer), {&points, anew}}) try {  // other data; a folder that already has a run
      Trainer(learner(net), data->data(), with).run();
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      EXPECT_NE(std::string(error.what()).find("with .out"), std::string::npos) << "there is no command line here: " << error.what();
    }
  std::filesystem::create_directories(folder / "mine");
  test::write_text(folder / "mine/log.txt", "my diary");
  EXPECT_EQ(code_of([&] { Trainer(learner(net), points.data(), {.steps = 5, .out = folder / "mine", .show = false}); }), ErrorCode::usage);
  EXPECT_EQ(test::read_text(folder / "mine/log.txt"), "my diary");
  EXPECT_EQ(code_of([&] { Trainer(learner(net), Data(), {.show = false}); }), ErrorCode::value);
  EXPECT_EQ(code_of([&] { Trainer(learner(net), points.data(), {.steps = 0, .show = false}); }), ErrorCode::usage);
  EXPECT_EQ(code_of([&] { Trainer(learner(net), points.data(), {.memory = "1MiB", .show = false}); }), ErrorCode::memory);
  EXPECT_EQ(code_of([&] { Trainer(learner(net), points.data(), {.memory = "a lot", .show = false}); }), ErrorCode::usage);
  EXPECT_EQ(code_of([&] { Trainer(learner(net), points.data(), {.show = false}, Data({Tensor({4, 3}, std::vector<float>(12))})); }), ErrorCode::shape);
  EXPECT_EQ(code_of([&] { Data({Tensor({4, 1}, std::vector<float>(4)), Tensor({5, 1}, std::vector<float>(5))}); }), ErrorCode::shape);
  EXPECT_EQ(code_of([&] { load_weights(net, folder / "nothing"); }), ErrorCode::io);
  // With the same data, more steps continue the run, and fewer find it finished.
  EXPECT_EQ(Trainer(learner(net), points.data(), longer).run().steps, 8);
  const TrainingResult done = Trainer(learner(net), points.data(), args).run();
  EXPECT_EQ(done.steps, 8);
  EXPECT_EQ(done.reason, "8 steps are done, 5 are requested");
}

TEST(UserTrainer, KeepsEverySeedInItsSettings) {
  test::TempFolder folder;
  Mlp net;
  for (const uint64_t seed : {uint64_t(1) << 53, (uint64_t(1) << 53) + 1, ~uint64_t(0)}) {
    const std::string out = folder / std::to_string(seed);
    Trainer(learner(net), Points(16).data(), {.steps = 1, .batch = 8, .seed = seed, .out = out, .show = false}).run();
    const std::string settings = test::read_text(out + "/config.yaml");
    EXPECT_NE(settings.find("\nseed: " + std::to_string(seed) + "  # the program\n"), std::string::npos) << settings;
  }
}

TEST(UserTrainer, ReportsAChangedOptimizerOnResume) {
  test::TempFolder folder;
  const Points points(64);
  const std::string out = folder / "run";
  Mlp net;
  auto train = [&](const Optimizer& optimizer, int64_t steps) {
    const Step learn = step(net, optimizer, [&net](Tensor x, Tensor t) { return mse(net(x), t); });
    Trainer(learn, points.data(), {.steps = steps, .rate = RateKind::constant, .out = out, .show = false}).run();
    return test::read_text(out + "/log.txt");
  };
  train(adamw({.lr = 1e-2}), 3);
  const std::string log = train(adamw({.lr = 1e-2, .beta1 = 0.8, .eps = 1e-6, .decay = 0.5}), 5);
  for (const char* difference : {"not bit-exact", "beta1 was 0.9, is now 0.8", "eps was 1e-08, is now 1e-06", "weight_decay was 0, is now 0.5"})
    EXPECT_NE(log.find(difference), std::string::npos) << difference << "\n" << log;
  try {
    train(sgd({.lr = 1e-2, .momentum = 0.9}), 7);
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(std::string(error.what()).find("adamw, but optimizer sgd was requested"), std::string::npos) << error.what();
  }
}

// A mean over the batch cannot be computed in parts: reported when the trainer is created, not at the first validation.
TEST(UserTrainer, RejectsAValidationSetThatCannotBeSplit) {
  const Points points(60), rest(40, 6), whole(36, 6);
  Mlp net;
  const Step mean_loss = step(net, adamw({.lr = 1e-2}), [&](Tensor x, Tensor t) { return Loss{mean(square(net(x) - t)), full({}, 1)}; });
  const TrainerArgs args{.steps = 3, .batch = 12, .show = false};
  try {
    Trainer(mean_loss, points.data(), args, rest.data());
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("evaluate whole batches of 12"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(Trainer(mean_loss, points.data(), args, whole.data()).run().finished());
}

// The numbers would be the same in every step, but differ between programs.
TEST(UserTrainer, RejectsDrawsInGradientFunctions) {
  const Points points(24);
  Mlp net;
  auto noisy = [](const Tensor& y) {
    return custom(
        [](const std::vector<Tensor>& in) { return in[0] * 1.0; },
        [](const std::vector<Tensor>&, const Tensor&, const Tensor& cotangent) { return std::vector<Tensor>{cotangent * uniform(cotangent.shape())}; }, {y});
  };
  const Step learn = step(net, adamw({.lr = 1e-2}), [&](Tensor x, Tensor t) { return mse(noisy(net(x)), t); });
  EXPECT_THROW(Trainer(learn, points.data(), {.steps = 3, .batch = 12, .show = false}), Error);
}

// A file size limit acts like a disk that is full from the first batch on: the process survives, and the result reports what was lost.
TEST(UserTrainer, ReportsLostState) {
  test::TempFolder folder;
  rlimit old = {};
  getrlimit(RLIMIT_FSIZE, &old);
  ASSERT_EQ(std::signal(SIGXFSZ, SIG_DFL), SIG_DFL) << "a test before this one changed it";
  auto train = [&](rlim_t most) {
    Mlp net;
    const Data data = function_data([=](int64_t) {
      const rlimit tight = {std::min(most, old.rlim_max), old.rlim_max};
      setrlimit(RLIMIT_FSIZE, &tight);
    });
    Trainer trainer(learner(net), data, {.steps = 20, .out = folder / "run", .checkpoint_interval = 5, .show = false});
    const TrainingResult result = trainer.run();
    setrlimit(RLIMIT_FSIZE, &old);
    return result;
  };
  const TrainingResult lost = train(100);
  EXPECT_EQ(lost.end, TrainingResult::End::unsaved);
  EXPECT_EQ(lost.steps, 15);
  EXPECT_EQ(lost.state_lost_since, 0);
  EXPECT_EQ(std::signal(SIGXFSZ, SIG_DFL), SIG_DFL) << "it is as it was";
  const TrainingResult kept = train(old.rlim_max);
  EXPECT_TRUE(kept.finished());
  EXPECT_EQ(kept.steps, 20);
  EXPECT_FALSE(kept.state_lost_since);
}

TEST(UserTrainer, RejectsInvalidRates) {
  Mlp net;
  const Points p(16);
  const std::vector<BatchSpec> batch = {{{16, 3}}, {{16, 1}}};
  for (const double bad : {double(NAN), double(INFINITY), -1e-3}) {
    EXPECT_THROW(learner(net, bad).compile(batch), Error) << bad;
    EXPECT_THROW(Trainer(learner(net, bad), p.data(), {.steps = 3, .show = false}), Error) << bad;
    EXPECT_THROW(Trainer(learner(net), p.data(), {.steps = 3, .min_lr = bad, .show = false}), Error) << bad;
  }
  CompiledStep compiled = learner(net).compile(batch);
  const std::vector<float> before = weights(net);
  const std::vector<Tensor> tensors = {Tensor({16, 3}, p.x), Tensor({16, 1}, p.y)};
  for (const double bad : {double(NAN), double(INFINITY), -1e-3}) EXPECT_THROW(compiled.run(tensors, bad), Error) << bad;
  EXPECT_TRUE(same_bits(weights(net), before));
  EXPECT_TRUE(compiled.run(tensors).applied);
  EXPECT_FALSE(same_bits(weights(net), before));
}

TEST(UserTrainer, SkipsNonFiniteBatches) {
  test::TempFolder folder;
  Mlp net;
  Data data({{{8, 3}}, {{8, 1}}}, [](int64_t number, std::span<const BatchTensor> batch) {
    for (float& v : batch[0].floats()) v = number == 7 ? NAN : 0.5f;
    for (float& v : batch[1].floats()) v = 0.25f;
  });
  const TrainingResult r = Trainer(learner(net), data, {.steps = 20, .out = folder / "run", .show = false}).run();
  EXPECT_TRUE(r.finished());
  EXPECT_EQ(r.skipped, 1);
  for (float w : weights(net)) EXPECT_TRUE(std::isfinite(w));
}

TEST(UserTrainer, ValidatesWithItsOwnLoss) {
  Mlp net;
  const Points points(40);
  auto loss = [&](Tensor x, Tensor t) { return mse(dropout(net(x), 0.9), t); };
  auto evaluate = [&](Tensor x, Tensor t) { return mse(net(x), t); };
  Trainer trainer(step(net, sgd({.lr = 1e-3}), loss, evaluate), points.data(), {.steps = 3, .batch = 8, .show = false}, points.data());
  const TrainingResult r = trainer.run();
  const double now = Tensor(mse(net(Tensor({40, 3}, points.x)), Tensor({40, 1}, points.y))).item();
  EXPECT_NEAR(r.val_loss.value(), now, 1e-5 * now);
}

struct Wide {
  Linear up{3, 2048}, down{2048, 1};
  Tensor operator()(const Tensor& x) const { return down(tanh(up(x))); }
  void visit(Visitor& v) { v("up", up)("down", down); }
};

// The memory that the whole process takes stays below its plan, also if the batch is split.
TEST(UserTrainer, SplitsABatchThatDoesNotFit) {
  const int64_t rows = 8192, hidden = rows * 2048 * 4;
  const Points points(rows);
  TrainerArgs options{.steps = 2, .batch = rows, .show = false};
  auto planned = [&](bool tight, int64_t budget, double& loss) {
    seed(4);
    Wide net;
    if (tight) options.memory = std::to_string(budget);
    Trainer trainer(step(net, adamw({.lr = 1e-3}), [&net](Tensor x, Tensor t) { return mse(net(x), t); }), points.data(), options);
    EXPECT_EQ(trainer.plan().find("1 x 8192") == std::string::npos, tight) << trainer.plan();
    const bool own_peak = bool(std::ofstream("/proc/self/clear_refs") << 5 << std::flush);  // otherwise the peak may be an earlier one
    const TrainingResult r = trainer.run();
    const int64_t plan = own_peak ? trainer.planned_bytes() : r.planned_bytes;
    EXPECT_TRUE(test::sanitized() || r.peak_bytes < plan) << r.peak_bytes << " of " << plan << " bytes: " << trainer.plan();
    EXPECT_GT(r.peak_bytes, hidden / 2);
    loss = r.train_loss;
    return trainer.planned_bytes();
  };
  // The first run on a machine measures it, which may take more memory than the step; and the process's own memory varies by less than half a hidden layer.
  double loss, split;
  planned(false, 0, loss);
  const int64_t budget = planned(false, 0, loss) - hidden / 2;
  EXPECT_LE(planned(true, budget, split), budget);
  EXPECT_NEAR(loss, split, 1e-5 * loss);
}

struct Square {
  Tensor w = Tensor::zeros({4096, 5120});
  void visit(Visitor& v) { v("w", w); }
};

// Weights, gradients and moments are counted once, and allocated when the run starts.
TEST(UserTrainer, TakesThePlannedMemoryForLargeWeights) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  const Data data = {full({1, 4096}, 0.5) + 0.0};
  auto trainer = [&](Square& net, const std::string& memory) {
    const Step learn = step(net, adamw({.lr = 1e-3}), [&net](Tensor x) { return mse(matmul(x, net.w), full({x.shape()[0], 5120}, 1)); });
    return Trainer(learn, data, {.steps = 2, .memory = memory, .show = false});
  };
  int64_t planned = 0;
  {
    Square net;
    trainer(net, "auto");  // the first one on a machine measures it
    Trainer second = trainer(net, "auto");
    const bool own_peak = bool(std::ofstream("/proc/self/clear_refs") << 5 << std::flush);
    const TrainingResult r = second.run();
    planned = second.planned_bytes();
    ASSERT_GT(planned, int64_t(320) << 20);
    const double used = double(r.peak_bytes) / double(own_peak ? planned : r.planned_bytes);
    EXPECT_GE(used, 0.97) << second.plan();
    EXPECT_LE(used, 1.0) << second.plan();
  }
  Square again;
  EXPECT_NO_THROW(trainer(again, std::to_string(planned + (int64_t(100) << 20))));  // the process still holds the first weights
}

// An error in the data ends the run, but keeps the steps before it, and reaches the program as it was thrown.
TEST(UserTrainer, KeepsTheStepsBeforeABatchThatFails) {
  struct Unreadable {};
  const test::TempFolder folder;
  const TrainerArgs args{.steps = 12, .out = folder / "run", .show = false};
  auto run = [&](const TrainerArgs& args, int64_t bad) {
    seed(1);
    Mlp net;
    Trainer trainer(learner(net), function_data([bad](int64_t number) {
                      if (number == bad) throw Unreadable();
                    }),
                    args);
    trainer.run();
    return weights(net);
  };
  EXPECT_THROW(run(args, 7), Unreadable);
  const std::optional<RunState> kept = newest_state(folder / "run");
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->step.attempted, 7);
  EXPECT_TRUE(same_bits(run(args, -1), run({.steps = 12, .show = false}, -1)));
}

TEST(UserData, VisitsEverySampleOncePerEpoch) {
  for (int64_t n : {1, 5, 31, 64})
    for (int64_t batch : {1, 4, 7, 70}) {
      std::vector<int64_t> values;
      for (int64_t i = 0; i < n; ++i) values.push_back(i);
      const Data data({Tensor({n}, std::span<const int64_t>(values))});
      const std::vector<BatchSpec> specs = batch_specs(data, batch);
      const auto source = training_batches(data, specs, 3);
      std::vector<int64_t> seen, out(static_cast<size_t>(batch));
      std::byte* to[] = {reinterpret_cast<std::byte*>(out.data())};
      for (int64_t number = 0; int64_t(seen.size()) < 3 * n; ++number) {
        source->fill(number, to);
        seen.insert(seen.end(), out.begin(), out.end());
      }
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<int64_t> sorted(seen.begin() + epoch * n, seen.begin() + (epoch + 1) * n);
        std::sort(sorted.begin(), sorted.end());
        EXPECT_EQ(sorted, values) << n << " samples in batches of " << batch;
      }
      EXPECT_TRUE(n <= 30 || !std::equal(seen.begin(), seen.begin() + n, seen.begin() + n));
      const auto ordered = validation_batches(data, specs);
      int64_t counted = 0;
      for (int64_t number = 0; number < ordered->batches(); ++number) {
        ordered->fill(number, to);
        for (int64_t i = 0; i < ordered->samples(number); ++i) EXPECT_EQ(out[size_t(i)], counted++);
      }
      EXPECT_EQ(counted, n);
    }
}

}  // namespace
}  // namespace ridge
