// The task of agents: a run is planned, trained, resumed with the same bits in the middle of episodes, evaluated, and learns.
#include <gtest/gtest.h>

#include <csignal>
#include <limits>
#include <set>

#include "machine/expect_error.h"
#include "ppo/agent_runs.h"
#include "support/sanitized.h"

namespace ridge {
namespace {

RunOptions unmeasured() {
  RunOptions o;
  o.measure = false;
  return o;
}

TEST_F(AgentTask, ResumesWithTheSameBits) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"adaptive_kl=0.01", "normalize_observations=true", "normalize_values=true", "scale_rewards=true"},
        {"recurrent=lstm", "recurrent_units=6", "segment=8", "target_kl=1e-4"},
        {"optimizer=muon", "separate=true", "final_entropy=0"}}) {
    SCOPED_TRACE(more.back());
    const std::string name = more[0].substr(0, 5);
    RunSummary whole, first, rest;
    const std::vector<float> expected = weights(*train(with(kTiny, more), whole, "whole" + name));
    EXPECT_EQ(whole.outcome.steps, 32);
    // Stopped by a time limit that is over at once: at the end of the first rollout, in the middle of episodes.
    train(with(with(kTiny, more), {"max_minutes=1e-9"}), first, "parts" + name);
    EXPECT_EQ(first.outcome.steps, 8) << "a run ends where a rollout does";
    const auto run = train(with(kTiny, more), rest, "parts" + name, true);
    EXPECT_EQ(rest.outcome.steps, 32);
    EXPECT_TRUE(rest.outcome.resumed && rest.outcome.bit_exact);
    EXPECT_EQ(weights(*run), expected);
  }
}

// SIGTERM in the middle of a rollout's updates: they are all made, the checkpoint is that of their end, and nothing is lost.
TEST_F(AgentTask, ASignalEndsTheRunAfterTheRolloutsLastUpdate) {
  RunSummary whole, rest;
  const std::vector<float> expected = weights(*train(kTiny, whole, "whole"));
  const config::Resolved s = settings(kTiny);
  RunOptions o = unmeasured();
  o.seed = 3, o.folder = folder_ / "parts";
  const auto run = start_run(find_task(kPpoName), s, o);
  run->trainer.before = [](Phase phase, int64_t step) {
    if (phase == Phase::step && step == 11) std::raise(SIGTERM);
  };
  const Outcome stopped = train_in_folder(*run, s, {.show = false, .config = config_text(s, o.folder)}).outcome;
  EXPECT_EQ(stopped.end, Outcome::End::terminated) << stopped.reason;
  EXPECT_EQ(stopped.steps, 16) << "the second of four rollouts of 8 updates";
  EXPECT_EQ(weights(*train(kTiny, rest, "parts", true)), expected);
  EXPECT_TRUE(rest.outcome.resumed && rest.outcome.bit_exact);
}

TEST_F(AgentTask, PicturesAndMemoriesLearnTheSameForAnyNumberOfThreads) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"preset=pong", "instances=16", "horizon=16", "minibatch=128", "update_epochs=1", "decisions=512"},
        {"preset=cartpole", "instances=64", "horizon=32", "minibatch=1024", "update_epochs=1", "decisions=4096", "recurrent=lstm", "recurrent_units=32"},
        {"preset=cartpole", "instances=64", "horizon=32", "minibatch=1024", "update_epochs=1", "decisions=4096", "recurrent=cfc", "recurrent_units=32"}}) {
    SCOPED_TRACE(testing::PrintToString(words));
    RunSummary s;
    auto learnt = [&](const char* threads) { return weights(*train(with(words, {"seed=3", "eval_interval=none", "target_score=none", threads}), s)); };
    const std::vector<float> one = learnt("threads=1");
    EXPECT_EQ(learnt("threads=2"), one);
  }
}

// Enough instances and decisions per update for several threads.
TEST_F(AgentTask, LearnsTheSameForAnyNumberOfThreads) {
  RunSummary s;
  auto learnt = [&](const char* threads) {
    return weights(*train({"preset=pong-state", "instances=256", "horizon=64", "minibatch=4096", "update_epochs=2", "decisions=49152", "seed=3",
                           "normalize_observations=true", "scale_rewards=true", "eval_interval=none", "target_score=none", threads},
                          s));
  };
  const std::vector<float> one = learnt("threads=1");
  EXPECT_EQ(s.outcome.steps, 24);
  EXPECT_EQ(learnt("threads=2"), one);
}

// Advantages are normalised over the whole minibatch, whatever parts it is computed in.
TEST_F(AgentTask, MicroBatchesLearnTheSame) {
  RunSummary s;
  const std::vector<float> whole = weights(*train(with(kTiny, {"accumulation=1"}), s)), parts = weights(*train(with(kTiny, {"accumulation=4"}), s)),
                           less = weights(*train(with(kTiny, {"minibatch=8"}), s));
  double apart = 0, most = 0;
  for (size_t i = 0; i < whole.size(); ++i)
    apart = std::max(apart, double(std::abs(whole[i] - parts[i]))), most = std::max(most, double(std::abs(whole[i] - less[i])));
  EXPECT_LT(apart, 1e-4) << "rounding";
  EXPECT_GT(most, 1e-2) << "minibatches as small as the parts learn otherwise";
}

// Trials of made-up speeds: whole minibatches only, each twice the one before, and the fewest within 2 % of the best.
TEST(ChosenInstances, AreTheFewestOfTheFastest) {
  PpoArgs args;
  args.horizon = 24, args.minibatch = 64;  // 8 instances make 3 minibatches
  std::vector<int64_t> tried;
  auto choose = [&](int64_t decisions, const std::function<std::optional<double>(int64_t)>& rate) {
    tried.clear();
    return choose_instances(args, decisions, [&](int64_t n) -> std::optional<double> {
      tried.push_back(n);
      EXPECT_EQ(n * args.horizon % args.minibatch, 0);
      const std::optional<double> r = rate(n);
      return r ? std::optional(double(n * args.horizon) / *r) : std::nullopt;
    });
  };
  const InstanceChoice flat = choose(1 << 30, [](int64_t n) { return n < 32 ? 1e5 : n < 64 ? 1.985e5 : 2e5; });
  EXPECT_EQ(flat.instances, 32);
  EXPECT_EQ(tried, (std::vector<int64_t>{8, 16, 32, 64, 128}));
  EXPECT_NE(flat.why.find("more are not faster"), std::string::npos) << flat.why;
  EXPECT_NE(flat.runner_up.find("64: 200k steps/s"), std::string::npos) << flat.runner_up;
  EXPECT_EQ(choose(1 << 30, [](int64_t n) { return n < 32 ? 1e5 : n < 64 ? 1.95e5 : 2e5; }).instances, 64);
  EXPECT_EQ(choose(1 << 30, [](int64_t n) { return n > 32 ? std::nullopt : std::optional(1e5 * double(n)); }).instances, 32);
  EXPECT_EQ(choose(24 * 16 * 10, [](int64_t n) { return 1e5 * double(n); }).instances, 16) << "ten rollouts";
  EXPECT_EQ(choose(1 << 30, [](int64_t n) { return 10 * double(n); }).instances, 8) << "a rollout takes longer than a second";
  EXPECT_TRUE(mentions(error_of([&] { choose(1 << 30, [](int64_t) { return std::nullopt; }); }).what(), "not even 8 instances"));
  args.horizon = 7, args.minibatch = 100;
  EXPECT_EQ(choose(1, [](int64_t) { return 1e5; }).instances, 100);
}

TEST_F(AgentTask, KeepsTheMeasuredInstances) {
  const std::vector<std::string> automatic = with(kTiny, {"instances=auto", "decisions=5120", "optimizer=muon"});
  RunSummary first, rest;
  EXPECT_TRUE(mentions(error_of([&] { train(automatic, first); }).what(), "optimize_perf=false"));
  EXPECT_TRUE(mentions(error_of([&] { find_task(kPpoName).check_data(settings(automatic), {}); }).what(), "instances=auto is measured for each run"));
  RunOptions o;
  o.seed = 3;
  const auto planned = find_task(kPpoName).plan(settings(automatic), o);
  config::Resolved found = settings(automatic);
  planned->add_found_settings(found);
  const int64_t instances = found.get<int64_t>("instances");
  EXPECT_TRUE(instances == 8 || instances == 16 || instances == 32) << instances;
  const auto decision = std::ranges::find(planned->decisions, "instances", &Decision::setting);
  EXPECT_EQ(decision->decided_by, "measured");
  EXPECT_NE(decision->why.find("fewest within 2 %"), std::string::npos) << decision->why;

  // Whatever this machine would choose: a run keeps its number, which is in the checkpoint.
  const std::vector<std::string> odd = with(kTiny, {"instances=6", "minibatch=48", "decisions=480", "optimizer=muon"});
  train(with(odd, {"max_minutes=1e-9"}), first, "kept");
  const auto run = train(with(odd, {"instances=auto"}), rest, "kept", true);
  EXPECT_TRUE(rest.outcome.resumed && rest.outcome.bit_exact);
  EXPECT_EQ(run->decided("instances"), "6 x 16 decisions");
}

TEST_F(AgentTask, AnExperimentGoesOnWithItsInterruptedRuns) {
  RunSummary s;
  train(with(kTiny, {"seed=3"}), s, "many/seed_3");
  train(with(kTiny, {"seed=4", "max_minutes=1e-9"}), s, "many/seed_4");
  ASSERT_EQ(s.outcome.end, Outcome::End::time);
  auto finished = [&](const std::vector<std::string>& more) {
    const config::Resolved now = settings(with(with(kTiny, {"seeds=3"}), more));
    std::vector<Part> parts = parts_of(now, folder_ / "many", "cartpole");
    find_progress(parts, now, folder_ / "many");
    std::vector<bool> all;
    for (const Part& part : parts) all.push_back(part.finished);
    EXPECT_TRUE(parts[1].begun && !parts[2].begun);
    EXPECT_EQ(parts[0].name, "cartpole");
    return all;
  };
  EXPECT_EQ(finished({}), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(finished({"decisions=1024"}), (std::vector<bool>{false, false, false})) << "a longer run was asked for";
}

TEST_F(AgentTask, ARunThatReachedItsTargetHasNothingLeftToDo) {
  const std::vector<std::string> words = with(kTiny, {"decisions=8192", "eval_interval=8", "target_score=5"});
  RunSummary s;
  train(words, s, "many/seed_3");
  ASSERT_EQ(s.outcome.end, Outcome::End::target);
  const int64_t done = s.outcome.steps;
  EXPECT_EQ(s.next.back().first, "ridge train ppo --resume " + (folder_ / "many/seed_3") + " target_score=none");
  for (const char* more : {"target_score=4", "decisions=16384"}) {
    const Error error = error_of([&] { train(with(words, {more}), s, "many/seed_3", true); });
    EXPECT_EQ(error.code(), ErrorCode::usage) << error.what();
    EXPECT_TRUE(mentions(error.what(), "has reached its target: validation score")) << error.what();
    EXPECT_TRUE(mentions(error.what(), "set a higher one or target_score=none")) << error.what();
  }
  for (const auto& [more, finished] : {std::pair("decisions=16384", true), {"target_score=none", false}}) {
    const config::Resolved now = settings(with(words, {"seeds=2", more}));
    std::vector<Part> parts = parts_of(now, folder_ / "many", "cartpole");
    find_progress(parts, now, folder_ / "many");
    EXPECT_EQ(parts[0].finished, finished) << more;
  }
  train(with(words, {"target_score=none", fmt::format("decisions={}", (done / 8 + 1) * 128)}), s, "many/seed_3", true);
  EXPECT_TRUE(s.outcome.end == Outcome::End::finished && s.outcome.steps == done + 8) << s.outcome.steps;
}

TEST_F(AgentTask, FoldersAreNamedAfterTheEnvironmentAlone) {
  const Task& task = find_task(kPpoName);
  EXPECT_FALSE(task.has_data);
  const std::string name = new_run_folder(folder_ / "runs", task.run_name(settings(kTiny)), "").filename();
  EXPECT_TRUE(name.ends_with("_cartpole")) << name;
  EXPECT_EQ(std::ranges::count(name, '_'), 2) << name;  // day, time, environment
}

TEST_F(AgentTask, LeavesAnAgentThatCanBeEvaluated) {
  RunSummary s;
  train(with(kTiny, {"normalize_observations=true"}), s, "run");
  const std::string run = folder_ / "run";
  for (const char* name : {"model/model.safetensors", "model/agent.json", "summary.json", "metrics.jsonl"})
    EXPECT_TRUE(std::filesystem::exists(run + "/" + name)) << name;
  EXPECT_TRUE(is_agent(run) && is_agent(run + "/model"));
  EXPECT_FALSE(is_agent(folder_.path()) || is_agent("no such folder") || is_agent(""));
  const TrainedAgent agent = load_agent(run + "/model");
  EXPECT_EQ(agent.instances->spec().name, "cartpole");
  EXPECT_NE(agent.observations.mean[0], 0) << "statistics of the observations belong to the agent";
}

TEST_F(AgentTask, TheSummaryListsFilesThatExist) {
  for (const char* evaluations : {"eval_interval=none", "eval_interval=8"}) {
    RunSummary s;
    const std::string folder = evaluations;
    train(with(kTiny, {"decisions=128", evaluations}), s, folder);
    std::set<std::string> listed;
    for (const auto& [name, what] : s.files) {
      listed.insert(name);
      EXPECT_TRUE(std::filesystem::exists((folder_ / folder) + "/" + name)) << name << " with " << evaluations;
    }
    EXPECT_EQ(listed.contains("score.svg"), folder == "eval_interval=8");
  }
}

TEST_F(AgentTask, RecordsTheBestAndTheLastWeights) {
  RunSummary s;
  const std::vector<std::string> words = with(kTiny, {"env=pong", "lr=0.05", "update_epochs=1"});
  const std::vector<float> expected = weights(*train(words, s));
  const auto run = train(words, s, "run");
  EXPECT_EQ(weights(*run), expected) << "recording the best weights leaves the last ones in place";
  for (const char* name : {"best.gif", "last.gif"}) {
    EXPECT_TRUE(std::ranges::any_of(s.files, [&](const auto& file) { return file.first == name; })) << name;
    ASSERT_TRUE(std::filesystem::exists((folder_ / "run") + "/" + name)) << name;
    EXPECT_LT(std::filesystem::file_size((folder_ / "run") + "/" + name), 500'000u);
  }
}

TEST_F(AgentTask, StartsFromAnAgentWithItsScales) {
  RunSummary first, second;
  const std::vector<std::string> words = with(kTiny, {"normalize_observations=true", "normalize_values=true"});
  train(words, first, "first");
  train(with(words, {"init_from=" + (folder_ / "first"), "lr=1e-12", "decisions=128"}), second, "second");
  const TrainedAgent before = load_agent(folder_ / "first"), after = load_agent((folder_ / "second") + "/model");
  EXPECT_NEAR(after.observations.count, before.observations.count + 128, 1e-6) << "statistics continue";
  EXPECT_NEAR(after.values.count, before.values.count + 128, 1e-6);
  // At so low a rate, the weights of the new run are those it started from.
  const std::vector<Tensor> from = before.tensors(), to = after.tensors();
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    const std::vector<float> a = from[i].to_floats(), b = to[i].to_floats();
    for (size_t k = 0; k < a.size(); ++k) ASSERT_NEAR(a[k], b[k], 1e-6) << i << " " << k;
  }
}

TEST_F(AgentTask, ARunIsNotResumedWithAnotherNumberOfUpdates) {
  RunSummary s;
  train(with(kTiny, {"max_minutes=1e-9"}), s, "run");
  const Error error = error_of([&] { train(with(kTiny, {"update_epochs=3", "decisions=1024"}), s, "run", true); });
  EXPECT_EQ(error.code(), ErrorCode::usage) << error.what();
  EXPECT_TRUE(mentions(error.what(), "8 updates")) << error.what();
}

TEST_F(AgentTask, AStoppedEpochChangesNothing) {
  RunSummary all, stopped;
  // A limit that every first epoch exceeds: only the first of two passes over the rollout counts, as if there were one.
  for (const char* optimizer : {"optimizer=adamw", "optimizer=muon"}) {
    const std::vector<std::string> words = with(kTiny, {"decisions=128", "schedule=constant", optimizer});
    const auto left_out = train(with(words, {"target_kl=1e-12"}), stopped), one_pass = train(with(words, {"update_epochs=1"}), all);
    EXPECT_EQ(stopped.outcome.steps, 8);
    EXPECT_EQ(all.outcome.steps, 4);
    EXPECT_EQ(weights(*left_out), weights(*one_pass));
    EXPECT_NE(weights(*train(words, all)), weights(*one_pass)) << "the second pass would have changed them";
  }
}

// Updates that target_kl leaves out count in the speed: their decisions were played.
TEST_F(AgentTask, RatesCountUpdatesThatWereLeftOut) {
  struct Rates : TrainerView {
    void on_step(const Progress& p) override { all.push_back(p); }
    std::vector<Progress> all;
  } rates;
  // 6 rollouts of 32 updates each, of which the first 4 are made.
  const config::Resolved s = settings(with(kTiny, {"target_kl=1e-12", "update_epochs=8", "decisions=768", "eval_interval=none"}));
  train_run(*start_run(find_task(kPpoName), s, unmeasured()), s, {&rates});
  ASSERT_EQ(rates.all.size(), 6u * 4);
  size_t compared = 0;
  for (const Progress& now : rates.all)
    for (const Progress& before : rates.all)
      if (now.step - before.step == int64_t(kMedianSteps)) {
        EXPECT_NEAR(now.wall_ms, 1e3 * (now.elapsed_s - before.elapsed_s) / double(kMedianSteps), 1e-6 * now.wall_ms) << now.step;
        EXPECT_NEAR(now.tokens_s * now.wall_ms, 1e3 * 32 / 8, 1e-6) << "decisions of a minibatch, shared by 8 passes";
        ++compared;
      }
  EXPECT_EQ(compared, 5u * 3);
}

// The budget that an error quotes has room for the rollouts too.
TEST_F(AgentTask, TheQuotedBudgetIsEnough) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  auto refusal = [&](const std::string& memory) -> std::string {
    const config::Resolved s = settings(with(kTiny, {"instances=4096", "horizon=256", "minibatch=4096", "decisions=2000000", memory}));
    try {
      find_task(kPpoName).plan(s, unmeasured());
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::memory) << error.what();
      return error.what();
    }
  };
  refusal("memory=1MiB");  // a process that has planned once holds more memory than before
  const std::string text = refusal("memory=1MiB"), word = "the smallest budget that works is ";
  ASSERT_NE(text.find(word), std::string::npos) << text;
  const std::string enough = text.substr(text.find(word) + word.size());
  EXPECT_EQ(refusal(enough), "") << enough;
  EXPECT_NE(refusal(fmt::format("memory={}MiB", std::stoll(enough.substr(enough.find('=') + 1)) * 8 / 10)), "") << enough;
}

TEST_F(AgentTask, RefusesSettingsThatMakeNoSense) {
  for (const auto& [word, text] : {std::pair("minibatch=50", "minibatch=50 does not divide"),
                                   {"env=pogn", "pong"},
                                   {"steps=10", "decisions=N"},
                                   {"data=my.txt", "env=NAME"},
                                   {"network=nature", "does not fit observations"},
                                   {"segment=4", "needs a recurrent layer"},
                                   {"recurrent_units=32", "no effect without a recurrent layer"},
                                   {"muon_momentum=0.9", "no effect on optimizer=adamw"},
                                   {"spec_variables=a=1", "no effect without a spec file"},
                                   {"env_timeout=5", "no effect on cartpole, which is compiled with the policy"},
                                   {"target_loss=0.1", "target_score=X"},
                                   {"prefetch_factor=7", "no effect on agents"},
                                   {"target_score=501", "an episode of cartpole scores at most 500"}}) {
    const config::Resolved s = settings(with(kTiny, {word}));
    const Error error = error_of([&] { find_task(kPpoName).plan(s, {}); });
    EXPECT_EQ(error.code(), ErrorCode::usage) << word;
    EXPECT_TRUE(mentions(error.what(), text)) << error.what();
  }
  for (const auto& [first, second, text] : {std::tuple("optimizer=sgd", "beta2=0.5", "beta2=0.5 (command line) has no effect on optimizer=sgd"),
                                            {"schedule=constant", "min_lr=1e-4", "no effect on schedule=constant"},
                                            {"update_epochs=1", "target_kl=0.1", "no effect with update_epochs=1"},
                                            {"eval_interval=none", "target_score=100", "no effect with eval_interval=none"}}) {
    const Error error = error_of([&] { find_task(kPpoName).plan(settings(with(kTiny, {first, second})), {}); });
    EXPECT_TRUE(mentions(error.what(), text)) << error.what();
  }
  const Error cnn = error_of([&] { find_task(kPpoName).plan(settings({"preset=pong-classic", "units=32"}), {}); });
  EXPECT_TRUE(mentions(cnn.what(), "no effect on network=nature")) << cnn.what();
}

// No episode can score more than the bound that targets are checked against; some bounds depend on the options.
TEST_F(AgentTask, TargetsAreBoundedByTheEnvironment) {
  auto bound = [&](const std::vector<std::string>& words) { return make_instances(settings(words)).highest_return(); };
  EXPECT_EQ(bound({"env=cartpole"}), 500);
  EXPECT_EQ(bound({"env=cartpole", "time_limit=1000"}), 1000);
  EXPECT_EQ(bound({"env=cartpole", "frame_skip=2"}), 1000);
  EXPECT_EQ(bound({"env=cartpole", "time_limit=0"}), std::numeric_limits<double>::infinity());
  EXPECT_EQ(bound({"env=pong"}), 21);
  EXPECT_EQ(bound({"env=breakout"}), 384);
  for (const char* env : {"env=acrobot", "env=pendulum", "env=mountain-car"}) EXPECT_EQ(bound({env}), 0) << env;
  EXPECT_EQ(bound({"env=mountain-car-continuous"}), 100);
}

// A benchmark's result says what was measured: figures of other games, recipes or networks are not comparable.
TEST_F(AgentTask, BenchmarkRowsSayWhatTheyMeasure) {
  for (const bool gpu : {false, true})
    for (const BenchRow& row : ppo_bench_rows(gpu)) {
      EXPECT_NE(row.rival.find(gpu ? "--modes eager compile capture" : "--modes eager compile"), std::string::npos) << row.rival;
      EXPECT_EQ(row.rival_option, row.name == "ppo/pong-classic" ? "--channels-last" : "");
      ASSERT_EQ(row.rival_flags.size(), 1u);
      EXPECT_EQ(row.rival_flags[0], std::pair(std::string("bf16"), std::string("--dtype bfloat16")));
    }
  const BenchStep bench = ppo_bench_step({}, settings(with(kTiny, {"env=pong", "sticky=0.25", "recurrent=lstm", "recurrent_units=6"})));
  TrainStep step(bench.model, bench.options);
  const std::string text = bench.collect(step).environment;
  EXPECT_TRUE(text.starts_with("pong 00e7ed94, [8], frame skip 4, sticky 0.25")) << text;
  EXPECT_TRUE(mentions(text, "; 8 instances x 16 decisions, minibatch 32, 2 epochs; mlp 8x2 tanh, lstm of 6 units, 532 parameters")) << text;
}

TEST_F(AgentTask, TrainingHasNoInstanceOfAnEvaluation) {
  const config::Key* const key = config::find_key("instances", config::task_bit(kPpoName));
  ASSERT_TRUE(key);
  EXPECT_LE(key->high, double(kFirstEvaluated)) << "instances of training are numbered from 0";
}

TEST_F(AgentTask, LearnsToBalanceAPole) {
  if (test::sanitized()) GTEST_SKIP() << "takes too long";
  RunSummary s;
  train({"preset=cartpole", "seed=1", "decisions=300000", "threads=1"}, s);
  EXPECT_EQ(s.outcome.end, Outcome::End::target) << s.outcome.reason;
}

TEST_F(AgentTask, LearnsPong) {
  if (test::sanitized()) GTEST_SKIP() << "takes too long";
  RunSummary s;  // fewer instances than the preset's learn less in the end, but sooner
  train({"preset=pong-state", "seed=1", "instances=64", "minibatch=4096", "lr=7e-3", "decisions=2000000", "target_score=15", "threads=1"}, s);
  EXPECT_EQ(s.outcome.end, Outcome::End::target) << s.outcome.reason;
}

}  // namespace
}  // namespace ridge
