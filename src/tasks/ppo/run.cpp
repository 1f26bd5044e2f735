// A run of an agent: planned, trained, and evaluated by the episodes that it plays.
#include <cstring>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "measure/default_team.h"
#include "ridge/trainer.h"
#include "rl/host_game.h"
#include "step/compiled_step.h"
#include "tasks/ppo/host_play.h"
#include "tasks/ppo/player.h"
#include "tasks/ppo/spec.h"
#include "tasks/ppo/task.h"
#include "tasks/ppo/trial.h"
#include "train/checkpoint.h"
#include "train/command_settings.h"
#include "train/module_run.h"
#include "train/parts.h"

namespace ridge {
namespace {

using config::Resolved;

constexpr int64_t kEpisodes = 100;     // of a validation
constexpr int64_t kPictured = 300;     // decisions of a recording, at most
constexpr double kSplitAfter = 5;      // seconds until the lines of a run tell acting from the environment
constexpr double kTargetMargin = 0.5;  // a run is done when the evaluation misses the target by no more than this

int64_t count_or(const Resolved& s, const char* key, int64_t otherwise) { return s.get<std::optional<int64_t>>(key).value_or(otherwise); }
double number_or(const Resolved& s, const char* key, double otherwise) { return s.get<std::optional<double>>(key).value_or(otherwise); }

}  // namespace

Instances make_instances(const Resolved& s) {
  EnvOptions o;
  o.frame_skip = count_or(s, "frame_skip", -1), o.time_limit = count_or(s, "time_limit", -1), o.stack = count_or(s, "frame_stack", -1);
  o.sticky = s.get<double>("sticky"), o.noops = s.get<int64_t>("noops"), o.reward_clip = s.get<double>("reward_clip");
  o.timeout = s.get<double>("env_timeout");
  if (s.get<bool>("scale_rewards") && !(s.get<double>("gamma") < 1))
    fail(ErrorCode::usage, "[ppo] scale_rewards=true needs gamma below 1, so that discounted returns stay finite");
  if (s.get<bool>("scale_rewards")) o.return_discount = s.get<double>("gamma");
  return Instances(make_environment(s.get<std::string>("env")), o);
}

PolicyArgs policy_args(const Resolved& s, const Instances& instances) {
  PolicyArgs a;
  a.network = s.get<std::string>("network"), a.hidden = s.get<int64_t>("units"), a.layers = s.get<int64_t>("layers");
  a.activation = s.get<std::string>("activation"), a.separate = s.get<bool>("separate");
  a.memory = s.get<std::string>("recurrent"), a.memory_units = s.get<int64_t>("recurrent_units");
  a.observation = instances.observation_shape(), a.dtype = instances.spec().dtype, a.actions = instances.spec().actions;
  return a;
}

PpoArgs ppo_args(const Resolved& s, std::optional<int64_t> instances) {
  PpoArgs a;
  a.horizon = s.get<int64_t>("horizon"), a.minibatch = s.get<int64_t>("minibatch");
  a.instances = count_or(s, "instances", instances.value_or(least_instances(a.horizon, a.minibatch)));
  a.epochs = s.get<int64_t>("update_epochs"), a.segment = count_or(s, "segment", s.get<std::string>("recurrent") == "none" ? 1 : a.horizon);
  checked_product(kPpoName, "decisions", {{"instances", a.instances}, {"horizon", a.horizon}, {"update_epochs", a.epochs}});
  a.gamma = s.get<double>("gamma"), a.lambda = s.get<double>("lambda"), a.clip_range = s.get<double>("clip_range"), a.value_clip = s.get<double>("value_clip");
  a.value_weight = s.get<double>("value_weight"), a.entropy = s.get<double>("entropy"), a.final_entropy = s.get<std::optional<double>>("final_entropy");
  a.target_kl = number_or(s, "target_kl", 0), a.adaptive_kl = number_or(s, "adaptive_kl", 0);
  a.normalize_observations = s.get<bool>("normalize_observations"), a.normalize_values = s.get<bool>("normalize_values");
  a.scale_rewards = s.get<bool>("scale_rewards");
  const std::optional<int64_t> decisions = s.get<std::optional<int64_t>>("decisions");
  if (!decisions) fail(ErrorCode::usage, "[ppo] decisions is not given: set decisions=N or a preset that has it (preset=cartpole)");
  a.iterations = (*decisions + a.decisions() - 1) / a.decisions();
  check(a);
  if (a.segment > 1 && s.get<std::string>("recurrent") == "none")
    fail(ErrorCode::usage, "[ppo] segment={} needs a recurrent layer (recurrent=lstm); without one, decisions are independent", a.segment);
  return a;
}

StepOptions ppo_step_options(const Resolved& s) {
  StepOptions o = step_options(s);
  o.optimizer.eps = s.get<double>("adam_epsilon"), o.evaluation = false;
  return o;
}

// --spec FILE:NAME; the name may be left out.
Task::Implied ppo_implied(const Resolved& s) {
  const std::string spec = s.get<std::string>("spec");
  if (spec.empty() || s.get<bool>("resume")) return {};  // a run keeps the settings that it was started with
  if (const std::string source = s.setting("preset").source; source == "command line" || is_asked(s, "preset"))  // a run's config.yaml has the default
    fail(ErrorCode::usage, "[spec] spec={} and preset={} ({}) are two recipes, and the spec's values would replace the preset's; leave one out", spec,
         s.get<std::string>("preset"), source);
  std::error_code ignored;
  const size_t colon = std::filesystem::exists(spec, ignored) ? spec.npos : spec.rfind(':');
  const std::string file = spec.substr(0, colon), name = colon == spec.npos ? "" : spec.substr(colon + 1);
  std::ifstream in(file, std::ios::binary);
  if (!in) fail(ErrorCode::io, "[spec] {} cannot be read; write --spec FILE:NAME", file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const SpecSettings read = read_spec(text, name, s.get<std::vector<std::string>>("spec_variables"), file);
  Task::Implied implied{{}, read.notes, "spec " + read.name};
  for (const auto& [key, value] : read.settings) implied.words.push_back(key + "=" + value);
  return implied;
}

namespace {

void refuse_unused_settings(const Resolved& s, const Instances& instances) {
  auto refuse = [&](std::initializer_list<const char*> keys, const std::string& why) { refuse_without_effect(s, kPpoName, keys, why); };
  if (s.get<std::string>("recurrent") == "none") refuse({"recurrent_units"}, "without a recurrent layer: set one, such as recurrent=lstm");
  if (const std::string network = s.get<std::string>("network"); network != "mlp")
    refuse({"units", "layers", "activation"}, fmt::format("on network={}, whose layers are fixed; it is for network=mlp", network));
  const std::string optimizer = s.get<std::string>("optimizer");
  if (optimizer == "sgd") refuse({"beta2", "adam_epsilon"}, "on optimizer=sgd, which has only a momentum, beta1");
  if (optimizer != "muon") refuse({"muon_momentum", "muon_scale"}, fmt::format("on optimizer={}", optimizer));
  if (s.get<std::string>("schedule") == "constant") refuse({"min_lr"}, "on schedule=constant: the rate does not fall");
  if (s.get<int64_t>("update_epochs") == 1) refuse({"target_kl"}, "with update_epochs=1: there is no later epoch to leave out");
  if (s.get<std::string>("spec").empty()) refuse({"spec_variables"}, "without a spec file: set spec=FILE:NAME");
  if (!instances.on_host())
    refuse({"env_halves", "env_timeout"}, fmt::format("on {}, which is compiled with the policy; it is for host environments", instances.spec().name));
  if (s.get<std::string>("eval_interval") == "none") refuse({"target_score"}, "with eval_interval=none: an evaluation must confirm the target");
  refuse({"target_loss"}, "on agents: the target of a run is target_score=X");
  refuse({"prefetch_factor", "enable_async_loading"}, "on agents: what they learn from is played, not loaded");
  const double highest = instances.highest_return();
  if (const std::optional<double> target = s.get<std::optional<double>>("target_score"); target && *target > highest)
    fail(ErrorCode::usage, "[ppo] target_score={:g} ({}) cannot be reached: an episode of {} scores at most {:g}", *target, s.setting("target_score").source,
         instances.spec().name, highest);
}

class PpoRun final : public ModuleRun {
 public:
  PpoRun(const Resolved& s, const RunOptions& o) : instances_(make_instances(s)), args_(ppo_args(s)), started_(o.started), measures_(o.measure) {
    for (const char* key : {"steps", "batch"})
      if (s.get<std::string>(key) != "auto")
        fail(ErrorCode::usage, "[ppo] {}={} has no meaning here: set decisions=N for the length of a run and minibatch=N for decisions per update", key,
             s.get<std::string>(key));
    if (const std::string data = s.get<std::string>("data"); data != "builtin")
      fail(ErrorCode::usage, "[ppo] data={} has no meaning here: an agent learns from what it plays, env=NAME", data);
    unit = "steps";
    RunPlanner planner(s, o, *this);
    planner.read_earlier();
    const bool automatic = s.get<std::string>("instances") == "auto";
    if (automatic && planner.earlier()) args_ = ppo_args(s, stored_instances(*planner.earlier()));
    if (automatic && !planner.earlier() && !o.measure)
      fail(ErrorCode::usage, "[ppo] instances=auto is measured, which optimize_perf=false rules out; set instances=N");
    schedule_ = schedule_of(s, updates(), kPpoName);
    if (s.get<std::string>("eval_interval") != "none") target_ = s.get<std::optional<double>>("target_score");
    if (o.resume) planner.refuse_finished_run(schedule_.steps, "decisions");
    if (o.resume && target_) planner.refuse_reached_target(schedule_.steps, "target_score", *target_);
    goes_on_ = o.resume && has_ended_at(o.folder, planner.earlier(), std::numeric_limits<double>::lowest());
    planner.choose_named_device();
    args_.seed = o.seed;
    seed(o.seed);
    policy_ = std::make_shared<Policy>(policy_args(s, instances_));
    refuse_unused_settings(s, instances_);
    weights_ = ridge::parameters(*policy_);
    for (const NamedTensor& w : weights_) tensors_.push_back(*w.tensor);
    if (const std::string from = s.get<std::string>("init_from"); !from.empty() && !o.resume) begin_from(from);

    const Step model(weights_, {}, [policy = policy_, args = args_](const std::vector<Tensor>& batch) { return ppo_loss(*policy, args, batch); });
    RunNeeds needs = module_needs(s, o, kPpoName, model, ppo_batch(*policy_, args_));
    needs.step = ppo_step_options(s), needs.step.seed = o.seed;
    needs.steps = schedule_.steps;
    needs.step.join_samples = policy_->args().network == "mlp" && !policy_->has_memory();
    needs.make_step = [&, make = needs.make_step](const StepOptions& options) {
      collector_.reset();
      return make(options);
    };
    needs.read_bytes = [&] {
      if (automatic && !planner.earlier() && !choice_.instances) choose_instances(s);
      choose_halves(s, planner.earlier(), o.measure, o.tune_seconds.has_value());
      collector_ = std::make_shared<Collector>(*own_step_, policy_, tensors_, instances_, args_);
      return collector_->bytes();
    };
    // Acting and learning on one rollout, shared out among its updates.
    const double rows = double(args_.minibatch);
    StepWork work;
    work.flops = (6 + 2.0 / double(args_.epochs)) * double(needs.parameters) * rows, work.bytes = 40 * double(needs.parameters) + 400 * rows;
    work.launches = 40 + 30 * double(args_.horizon) / double(args_.updates()), work.transfer_bytes = 100 * rows;
    planner.choose_device(work, {});
    planner.plan(needs);
    schedule_.steps = updates();
    read_intervals(s, trainer);
    trainer.schedule = schedule_;
    trainer.tokens_per_sample = double(args_.segment) / double(args_.epochs);
    if (target_) trainer.target = *target_ - kTargetMargin;
    describe(s, planner);
  }

  TrainerTask trainer_task(const Resolved& s) override {
    collector_->target = target_;
    if (goes_on_) collector_->go_on();
    if (measures_) collector_->measure_environment_after = kSplitAfter;
    collector_->schedule = [schedule = schedule_](int64_t number) { return schedule.rate(number); };
    collector_->begin();
    if (start_) collector_->use_statistics_of(start_->observations, start_->values);
    TrainerTask task;
    task.step = step, task.parameters = parameters, task.feed = collector_;
    task.score = {.name = "score", .unit = {}, .higher_is_better = true};
    task.validation_scalars = {"score", "length"};
    task.validate = [this](const std::function<bool()>& stop) -> std::optional<Validation> {
      const std::optional<PlayedEpisodes> played = collector_->play(kEpisodes, true, stop);
      if (!played) return {};
      Validation v{std::numeric_limits<double>::quiet_NaN(), {}};
      v.scalars[0] = played->mean(), v.scalars[1] = played->mean_length();
      last_played_ = *played;
      return v;
    };
    task.validation_data = instances_.describe();
    task.save = [this] { return collector_->save(); };
    if (const rl::HostGame* host = rl::host_game(instances_.environment()); host && !host->can_save())
      task.inexact = fmt::format("{} has no save(), so new episodes begin", instances_.spec().name);
    task.restore = [this](const SafetensorsFile& file) { collector_->restore(file); };
    task.texts["agent.json"] = agent_json(*policy_, instances_, args_, nullptr, nullptr);
    task.identity = {{"environment", instances_.describe()},
                     {"network", policy_->args().json()},
                     {"rollout", fmt::format("{} instances x {} decisions, {} updates, {}", args_.instances, args_.horizon, args_.updates(),
                                             args_.scale_rewards ? "rewards scaled" : "rewards as they are")}};
    task.settings = training_words(s, {"decisions", "minibatch", "update_epochs", "gamma", "lambda", "clip_range", "value_clip", "value_weight", "entropy",
                                       "final_entropy", "target_kl", "adaptive_kl", "normalize_observations", "normalize_values", "scale_rewards"});
    task.settings["instances"] = fmt::format("{}", args_.instances);
    if (instances_.on_host()) task.settings["env_halves"] = args_.halves ? "true" : "false";
    return task;
  }

  void add_to_summary(RunSummary& summary) const override {
    const EnvSpec& spec = instances_.spec();
    summary.what = fmt::format("PPO of {} on {}", counted(parameter_count(), "parameter"), spec.name);
    const Outcome& o = summary.outcome;
    if (collector_ && o.own_steps > 0) {
      const int64_t done = o.steps / args_.updates() * args_.decisions(), skip = instances_.options().frame_skip;
      summary.results.push_back(skip > 1 ? fmt::format("{} decisions of {} frames", grouped(done), skip) : fmt::format("{} decisions", grouped(done)));
      add_times(summary);
    }
    if (target_ && o.own_steps > 0) {
      TargetResult& t = summary.target.emplace();
      t.score = *target_, t.reached = o.end == Outcome::End::target, t.units = o.steps / args_.updates() * args_.decisions(), t.evaluation = o.final_score;
      t.seconds = o.earlier_seconds + std::chrono::duration<double>(o.ended_at - started_).count();
      if (t.reached)
        summary.results.push_back(fmt::format("reached {:g} after {} decisions and {} from the start", t.score, grouped(t.units), duration_text(t.seconds)));
    }
    if (last_played_.returns.size() > 1) {
      summary.results.push_back(fmt::format("score {:.2f} ± {:.2f} in {} episodes of {:.0f} decisions{}", last_played_.mean(), last_played_.interval(),
                                            last_played_.returns.size(), last_played_.mean_length(),
                                            last_played_.capped ? fmt::format(", {} cut off by the time limit", last_played_.capped) : ""));
      summary.test = {{"score", last_played_.mean()}, {"score_interval", last_played_.interval()}, {"episode_length", last_played_.mean_length()}};
    }
    summary.results.push_back(instances_.describe());
    if (summary.folder.empty()) return;
    const std::string folder = shell_word(summary.folder.string());
    add_files(summary, "play");
    if (o.final_score) summary.files.emplace_back("score.svg", "the learning curve");
    const bool recorded = has_picture() && o.end != Outcome::End::diverged;
    if (recorded && o.best_score) summary.files.emplace_back("best.gif", "the best weights play");
    if (recorded) summary.files.emplace_back("last.gif", "the last weights play");
    if (has_picture()) summary.next.push_back({fmt::format("ridge watch {}", folder), "plays in the terminal"});
    summary.next.push_back({fmt::format("ridge eval {}", folder), "scores of the best weights, sampled and most likely actions"});
    summary.next.push_back(resume_command(summary, "decisions", 2 * args_.iterations * args_.decisions(), "target_score"));
  }

  void add_found_settings(Resolved& settings) const override { settings.replace("instances", fmt::format("{}", args_.instances), instances_source(settings)); }
  void write_artifact(const std::filesystem::path& folder) override {
    std::filesystem::create_directories(folder);
    read_weights();
    std::vector<SafetensorView> views;
    for (const NamedTensor& w : weights_)
      views.push_back({w.name, DType::f32, w.tensor->shape(), {static_cast<const std::byte*>(w.tensor->data()), size_t(w.tensor->size()) * sizeof(float)}});
    write_safetensors((folder / "model.safetensors").string(), views);
    write_atomically((folder / "agent.json").string(), agent_json(*policy_, instances_, args_, &collector_->observations(), &collector_->values()));
  }

  // The beginning of an episode of the last weights, and one of the best.
  void write_pictures(const std::filesystem::path& folder) override {
    if (!has_picture()) return;
    AgentPlayer player(*step, policy_, tensors_, instances_, args_, {.decisions = kPictured / 4});
    auto write = [&](const char* name, int64_t instance) {
      write_atomically((folder / name).string(), record_episodes(player, instances_, instance, 1, kPictured).gif);
    };
    player.use_statistics(collector_->observations(), collector_->values());
    write("last.gif", kFirstShown);
    std::vector<std::string> notices;
    const std::optional<StoredCheckpoint> best = CheckpointStore(folder / "checkpoints").best(notices);
    if (!best) return;
    const TrainedAgent agent = load_agent(best->folder);
    player.use_statistics(agent.observations, agent.values);
    std::vector<std::vector<float>> last;
    const std::vector<NamedTensor> weights = ridge::parameters(*agent.policy);
    for (size_t i = 0; i < weights.size(); ++i) {
      step->read(TrainStep::Held::parameter, i, last.emplace_back(size_t(weights[i].tensor->size())));
      step->write(TrainStep::Held::parameter, i, {static_cast<const float*>(weights[i].tensor->data()), last.back().size()});
    }
    write("best.gif", kFirstShown + 1);
    for (size_t i = 0; i < weights.size(); ++i) step->write(TrainStep::Held::parameter, i, last[i]);
  }

 private:
  // What the time between updates was spent on, and what to do about the largest part of all.
  void add_times(RunSummary& summary) const {
    const Collector::Times& t = collector_->times();
    const Outcome& o = summary.outcome;
    std::optional<double> known = t.environment;
    if (!known && t.rollouts > 0)
      if (const std::optional<double> each = environment_seconds(*step, instances_, args_)) known = std::min(t.playing, *each * double(t.rollouts));
    const double environment = known.value_or(0);
    summary.data_parts = {{known ? "acting" : "playing", t.playing - environment}};
    if (known) summary.data_parts.emplace_back("environment", environment);
    summary.data_parts.insert(summary.data_parts.end(), {{"advantages", t.advantages}, {"minibatches", t.preparing}});
    struct Part {
      const char* what;
      double seconds;
      const char* remedy;
    };
    const Part parts[] = {
        {"learning", o.phase_seconds[size_t(Phase::step)], "larger minibatches or fewer update_epochs would make it shorter"},
        {known ? "acting" : "playing", t.playing - environment, "more instances with a shorter horizon, or a smaller network, would make it shorter"},
        {"the environment", environment, "more update_epochs would cost little"},
        {"preparing minibatches", t.advantages + t.preparing, "fewer update_epochs would make it shorter"},
        {"evaluation", o.phase_seconds[size_t(Phase::validation)], "eval_interval=N with a larger N makes it rarer"},
        {"saving", o.phase_seconds[size_t(Phase::checkpoint)], "checkpoint_interval=N with a larger N makes it rarer"}};
    const Part& most = *std::ranges::max_element(parts, {}, &Part::seconds);
    if (const double whole = o.seconds - o.earlier_seconds; whole > 0)
      summary.results.push_back(fmt::format("{} takes the most time, {:.0f} %: {}", most.what, 100 * most.seconds / whole, most.remedy));
  }

  // Whether a host environment steps for one half of the instances while the network acts for the other.
  void choose_halves(const Resolved& s, const std::optional<RunState>& earlier, bool measure, bool search_again) {
    if (!instances_.on_host() || !halves_.setting.empty()) return;
    const char* obstacle = nullptr;
    if (!HostPlay::can_have_halves(instances_, args_.instances))
      obstacle = "halves need an even number of instances, and an environment that other threads may step";
    halves_ = as_set(s, "env_halves", {});
    if (const std::string asked = s.get<std::string>("env_halves"); asked != "auto") {
      args_.halves = asked == "true";
      if (args_.halves && obstacle) fail(ErrorCode::usage, "[ppo] env_halves=true is not possible: {}; leave it out", obstacle);
    } else if (obstacle) {
      halves_.why = obstacle;
    } else if (earlier) {
      const auto stored = earlier->settings.find("env_halves");
      args_.halves = stored != earlier->settings.end() && stored->second == "true", halves_.decided_by = kRunSoFar;
    } else if (own_step_->in_place() && default_team().size() == 1) {
      halves_.why = "one thread cannot step the environment and act at the same time";
    } else if (measure) {
      const auto trial = trial_step();
      HostPlay play(*trial, policy_, tensors_, instances_, args_.normalize_observations, args_.instances, true, true);
      halves_ = ridge::choose_halves(play, args_, instances_.spec().name, search_again);
      args_.halves = halves_.value == "true";
    }
    halves_.value = args_.halves ? "true" : "false";
  }

  // Of the same kind as the run's, for measurements.
  std::unique_ptr<TrainStep> trial_step() const {
    auto trial = std::make_unique<TrainStep>(own_step_->model(), own_step_->options());
    for (size_t i = 0; i < weights_.size(); ++i)
      trial->write(TrainStep::Held::parameter, i, {static_cast<const float*>(weights_[i].tensor->data()), size_t(weights_[i].tensor->size())});
    return trial;
  }

  // Of the whole run.
  int64_t updates() const { return checked_product(kPpoName, "updates", {{"rollouts", args_.iterations}, {"updates", args_.updates()}}); }

  std::string instances_source(const Resolved& s) const {
    return choice_.instances ? "measured" : s.get<std::string>("instances") == "auto" ? kRunSoFar : s.setting("instances").source;
  }

  // A number that was measured when the run began stays, also on another machine.
  static int64_t stored_instances(const RunState& earlier) {
    const auto stored = earlier.settings.find("instances");
    if (stored == earlier.settings.end()) fail(ErrorCode::usage, "[resume] the run does not say how many instances it has; set instances=N instead of auto");
    return std::stoll(stored->second);
  }

  // Plays with as many instances as the memory that the step leaves allows.
  void choose_instances(const Resolved& s) {
    const auto trial = trial_step();
    int64_t left = budget.bytes;
    for (const MemoryItem& item : memory) left -= item.bytes;
    choice_ = ridge::choose_instances(args_, s.get<int64_t>("decisions"), [&](int64_t instances) -> std::optional<double> {
      PpoArgs args = ppo_args(s, instances);
      args.seed = args_.seed;
      Collector collector(*trial, policy_, tensors_, instances_, args);
      if (collector.bytes() > left) return {};
      return collector.rollout_seconds();
    });
    const uint64_t seed = args_.seed;
    args_ = ppo_args(s, choice_.instances), args_.seed = seed;
  }

  bool has_picture() const { return picture_of(instances_).rank() == 3; }

  // An agent's weights mean something only together with the scales of what it sees and predicts.
  void begin_from(const std::string& from) {
    const bool agent = is_agent(from);
    if (agent) start_ = load_agent(from);
    load_weights(*policy_, agent ? start_->folder.string() : from);
    if (!agent) {
      if (args_.normalize_observations || args_.normalize_values)
        notices.push_back(fmt::format("init_from={}: these are weights without the scales of observations and values, which start afresh", from));
      return;
    }
    notices.insert(notices.end(), start_->notices.begin(), start_->notices.end());
    if (start_->observations.mean.size() != size_t(instances_.spec().observation.numel()))
      fail(ErrorCode::usage, "[ppo] the agent of init_from={} sees {} numbers, {} has {}", from, start_->observations.mean.size(), instances_.spec().name,
           instances_.spec().observation.numel());
  }

  void describe(const Resolved& s, RunPlanner& planner) {
    std::vector<Decision> first = {as_set(s, "network", counted(parameter_count(), "parameter"), policy_->args().describe()),
                                   as_set(s, "env", instances_.spec().name, instances_.describe())};
    first.push_back({"instances", fmt::format("{} x {} decisions", args_.instances, args_.horizon), instances_source(s),
                     fmt::format("{} per rollout, {} passes", grouped(args_.decisions()), args_.epochs), choice_.runner_up});
    if (choice_.instances) first.back().why = choice_.why;
    if (instances_.on_host()) first.push_back(halves_);
    std::vector<Decision> last = {rate_decision(schedule_, s.setting("lr").source)};
    if (args_.adaptive_kl > 0) last[0].why = fmt::format("and follows the KL divergence, which should be {:g} per epoch", args_.adaptive_kl);
    last.push_back(as_set(s, "decisions", grouped(args_.iterations * args_.decisions()),
                          fmt::format("{} rollouts, {} updates", grouped(args_.iterations), grouped(schedule_.steps))));
    if (target_) last.push_back(as_set(s, "target_score", fmt::format("{:g}", *target_), fmt::format("the run ends when {} episodes confirm it", kEpisodes)));
    planner.describe(std::move(first), as_set(s, "minibatch", fmt::format("{} decisions", args_.minibatch)), last);
  }

  Instances instances_;
  PpoArgs args_;
  std::chrono::steady_clock::time_point started_;
  bool measures_, goes_on_ = false;  // goes_on_: resumed after it reached a lower target
  std::shared_ptr<Policy> policy_;
  std::vector<Tensor> tensors_;
  std::shared_ptr<Collector> collector_;
  Schedule schedule_;
  std::optional<double> target_;
  InstanceChoice choice_;  // 0 instances: as set
  Decision halves_;
  std::optional<TrainedAgent> start_;  // the agent that a new run starts from
  PlayedEpisodes last_played_;
};

// Called before the first of several runs.
void check_experiment(const Resolved& s, const RunOptions&) {
  make_instances(s);
  if (s.get<std::string>("instances") == "auto")
    fail(ErrorCode::usage,
         "[ppo] instances=auto is measured for each run, and runs that are compared must be alike; ridge plan ppo instances=auto measures it once, then set "
         "instances=N");
}

}  // namespace

Task ppo_task() {
  return {.name = kPpoName,
          .summary = "an agent that learns a game by playing it (PPO)",
          .keys = config::task_bit(kPpoName),
          .example = "preset=cartpole",
          .register_keys = register_ppo_keys,
          .verbs =
              [] {
                return std::vector<Verb>{ppo_eval_verb(), ppo_watch_verb()};
              },
          .plan = [](const Resolved& settings, const RunOptions& options) -> std::unique_ptr<TaskRun> { return std::make_unique<PpoRun>(settings, options); },
          .check_data = check_experiment,
          .run_name = [](const Resolved& settings) { return settings.get<std::string>("env"); },
          .bench_rows = ppo_bench_rows,
          .bench_step = ppo_bench_step,
          .implied = ppo_implied,
          .owns = is_agent,
          .report = report_agents,
          .sizes = {{"instances", {}}},
          .kept = {"env", "network", "units", "layers", "activation", "separate", "recurrent", "recurrent_units"},
          .has_data = false};
}

}  // namespace ridge
