// Trained agents: their description in files, and ridge eval.
#include <bit>
#include <cstdio>
#include <cstring>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "measure/default_team.h"
#include "ridge/trainer.h"
#include "tasks/ppo/task.h"
#include "train/command_settings.h"
#include "train/model_folder.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
constexpr const char* kAgentFile = "agent.json";

}  // namespace

bool is_agent(const fs::path& model) { return has_description(model, kAgentFile); }

std::string agent_json(const Policy& policy, const Instances& instances, const PpoArgs& args, const RunningMoments* observations,
                       const RunningMoments* values) {
  const EnvOptions& o = instances.options();
  nlohmann::ordered_json j{
      {"environment", instances.spec().name},
      {"rules", instances.spec().parameters},
      {"options", {{"frame_skip", o.frame_skip}, {"time_limit", o.time_limit}, {"stack", o.stack}, {"sticky", o.sticky}, {"noops", o.noops}}},
      {"policy", nlohmann::ordered_json::parse(policy.args().json())},
      {"normalize_observations", args.normalize_observations},
      {"seed", args.seed}};
  for (const auto& [name, moments] : {std::pair("values", values), {"observations", observations}})
    if (moments) j[name] = {{"mean", moments->mean}, {"variance", moments->variance}, {"count", moments->count}};
  return j.dump(1);
}

namespace {

void read_agent(TrainedAgent& t, const fs::path& folder, const nlohmann::json& j) {
  t.folder = folder;
  EnvOptions o;
  const nlohmann::json& options = j.at("options");
  o.frame_skip = options.at("frame_skip"), o.time_limit = options.at("time_limit"), o.stack = options.at("stack");
  o.sticky = options.at("sticky"), o.noops = options.at("noops");
  t.instances = std::make_unique<Instances>(make_environment(j.at("environment")), o);
  if (const std::string rules = j.at("rules"); rules != t.instances->spec().parameters)
    fail(ErrorCode::io, "[ppo] the agent was trained with other rules of {} ({}) than this program has ({})", t.instances->spec().name, rules,
         t.instances->spec().parameters);
  PolicyArgs p = PolicyArgs::from_json(j.at("policy").dump());
  p.observation = t.instances->observation_shape(), p.dtype = t.instances->spec().dtype, p.actions = t.instances->spec().actions;
  t.policy = std::make_shared<Policy>(p);
  load_weights(*t.policy, (folder / "model.safetensors").string());
  t.args.seed = j.at("seed"), t.args.normalize_observations = j.at("normalize_observations");
  t.args.instances = t.args.horizon = t.args.minibatch = t.args.epochs = 1;
  t.observations = RunningMoments(size_t(t.instances->spec().observation.numel()));
  if (j.contains("observations")) {
    for (const auto& [name, moments] : {std::pair("observations", &t.observations), {"values", &t.values}})
      if (j.contains(name)) {
        moments->mean = j.at(name).at("mean").get<std::vector<double>>();
        moments->variance = j.at(name).at("variance").get<std::vector<double>>();
        moments->count = j.at(name).at("count");
      }
  } else {  // a checkpoint
    const SafetensorsFile state((folder / "task.safetensors").string());
    for (const auto& [name, values] : {std::pair("observations.mean", &t.observations.mean),
                                       {"observations.variance", &t.observations.variance},
                                       {"values.mean", &t.values.mean},
                                       {"values.variance", &t.values.variance}}) {
      const SafetensorView& view = state.at(name);
      if (view.data.size() != values->size() * sizeof(double)) fail(ErrorCode::io, "[ppo] {} in {} has another size than expected", name, folder.string());
      std::memcpy(values->data(), view.data.data(), view.data.size());
    }
    double counts[2];  // the first of the saved numbers
    const SafetensorView& numbers = state.at("numbers");
    if (numbers.data.size() < sizeof counts) fail(ErrorCode::io, "[ppo] numbers in {} has another size than expected", folder.string());
    std::memcpy(counts, numbers.data.data(), sizeof counts);
    t.observations.count = counts[0], t.values.count = counts[1];
  }
}

}  // namespace

TrainedAgent load_agent(const fs::path& model) {
  TrainedAgent t;
  load_described(model, kAgentFile, kPpoName, t.notices,
                 [&](const fs::path& folder, const std::string& text) { read_agent(t, folder, nlohmann::json::parse(text)); });
  return t;
}

std::vector<Tensor> TrainedAgent::tensors() const {
  std::vector<Tensor> all;
  for (const NamedTensor& w : parameters(*policy)) all.push_back(*w.tensor);
  return all;
}

std::shared_ptr<CompiledStep::State> TrainedAgent::hold(const std::string& device) const {
  const std::vector<NamedTensor> weights = parameters(*policy);
  const Step learnt(weights, adamw(), [this](const std::vector<Tensor>& batch) { return ppo_loss(*policy, args, batch); });
  StepOptions options;
  options.evaluation = false;
  const std::shared_ptr<CompiledStep::State> held = compile_step(learnt, ppo_batch(*policy, args), options, step_device(device == "auto" ? "cpu" : device));
  for (size_t i = 0; i < weights.size(); ++i)
    held->step.write(TrainStep::Held::parameter, i, {static_cast<const float*>(weights[i].tensor->data()), size_t(weights[i].tensor->size())});
  return held;
}

namespace {

int run_agent_eval(const std::string& model, bool json, const config::Resolved& s) {
  note_unused(s, "eval");
  request_default_threads(thread_request(s));
  const TrainedAgent agent = load_agent(model);
  for (const std::string& notice : agent.notices) fmt::print(stderr, "ridge: {}\n", notice);
  const std::shared_ptr<CompiledStep::State> held = agent.hold(s.get<std::string>("device"));
  PpoArgs fresh = agent.args;
  fresh.seed = ~fresh.seed;  // other episodes than those that decided which weights are best
  Collector collector(held->step, agent.policy, agent.tensors(), *agent.instances, fresh);
  collector.begin();
  collector.use_statistics_of(agent.observations, agent.values);
  const int64_t episodes = s.get<int64_t>("episodes");
  nlohmann::ordered_json j{{"model", agent.folder.string()}, {"environment", agent.instances->describe()}};
  if (!json) fmt::print("{:<10}{}\n{:<10}{}\n", "model", agent.folder.string(), "env", agent.instances->describe());
  for (const bool sampled : {true, false}) {
    const std::optional<PlayedEpisodes> played = collector.play(episodes, sampled);
    const char* how = sampled ? "sampled" : "greedy";
    j[how] = {{"episodes", played->returns.size()}, {"score", played->mean()}, {"length", played->mean_length()}, {"cut_off", played->capped}};
    if (played->returns.size() > 1) j[how]["interval"] = played->interval();
    if (!json)
      fmt::print("{:<10}{:.2f}{}, {} of {:.0f} decisions on average{}\n", how, played->mean(),
                 played->returns.size() > 1 ? fmt::format(" ± {:.2f} (95 %)", played->interval()) : "", counted(int64_t(played->returns.size()), "episode"),
                 played->mean_length(), played->capped ? fmt::format(", {} cut off by the time limit", played->capped) : "");
  }
  if (json) std::puts(j.dump().c_str());
  return 0;
}

}  // namespace

Verb ppo_eval_verb() {
  const auto model = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false);
  return {.name = "eval",
          .summary = "scores of a trained agent",
          .options = {{Verb::Option::Kind::word, "model", model.get(), "a run of ridge train ppo, one of its checkpoints or its model folder"},
                      {Verb::Option::Kind::flag, "--json", json.get(), "print JSON"}},
          .footer = "Settings: episodes=N device=cpu|cuda threads=N.",
          .run = [model, json](config::Sources sources) { return run_agent_eval(*model, *json, config::resolve(sources)); }};
}

}  // namespace ridge
