#include "tasks/ppo/spec.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "base/nearest.h"

namespace ridge {
namespace {

constexpr double kAtariSticky = 0.25;
constexpr int64_t kMostInstances = 1 << 24, kLongestHorizon = 1 << 20;

// Environments by their names there. Pong and Breakout are Ridge's own games, not the Atari programs.
struct KnownGame {
  const char *theirs, *ours;
  double sticky;
  const char* note;
};
constexpr const char* kOwnGame = "is Ridge's own game, not the Atari program: scores are not comparable";
constexpr KnownGame kGames[] = {{"ALE/Pong-v5", "pong-pixels", kAtariSticky, kOwnGame},
                                {"PongNoFrameskip-v4", "pong-pixels", 0, kOwnGame},
                                {"CartPole-v0", "cartpole", 0, "is CartPole-v1"},
                                {"CartPole-v1", "cartpole", 0, ""},
                                {"Acrobot-v1", "acrobot", 0, ""},
                                {"Pendulum-v1", "pendulum", 0, ""},
                                {"MountainCar-v0", "mountain-car", 0, ""},
                                {"MountainCarContinuous-v0", "mountain-car-continuous", 0, ""}};

// YAML does not allow braces in words inside {…} and […], so variables are marked otherwise before a text is parsed.
constexpr std::string_view kOpen = "$<";
constexpr char kClose = '>';

std::string with_marked_variables(std::string text) {
  auto in_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.'; };
  for (size_t at = 0; (at = text.find("${", at)) != text.npos; at += 2) {
    const size_t end = size_t(std::find_if_not(text.begin() + long(at) + 2, text.end(), in_name) - text.begin());
    if (end < text.size() && text[end] == '}' && end > at + 2) text[at + 1] = kOpen[1], text[end] = kClose;
  }
  return text;
}

// Reads one spec. An unknown key is an error; what is known but cannot be done is refused or noted.
class SpecReader {
 public:
  SpecReader(const std::string& file, const std::vector<std::string>& variables) : file_(file) {
    for (const std::string& v : variables) {
      const size_t at = v.find('=');
      if (at == v.npos || at == 0) fail(ErrorCode::usage, "[spec] '{}' is not of the form name=value", v);
      variables_[v.substr(0, at)] = v.substr(at + 1);
    }
  }

  SpecSettings read(const YAML::Node& spec) {
    const YAML::Node agent = single(spec["agent"], "agent"), env = single(spec["env"], "env"), meta = spec["meta"];
    known(spec, "", {"agent", "env", "meta", "body", "search", "spec_params", "name", "git_sha"});
    known(agent, "agent", {"name", "algorithm", "memory", "net"});
    if (spec["search"]) note("search is not done: its ranges are ignored");
    if (spec["spec_params"]) note("spec_params is not used: name one value, as spec_variables=NAME=VALUE");
    read_environment(env);
    recurrent_ = text(part(agent, "agent", "net"), "agent.net", "type") == "RecurrentNet";
    read_algorithm(part(agent, "agent", "algorithm"));
    read_net(part(agent, "agent", "net"));
    if (agent["memory"]) read_memory(part(agent, "agent", "memory"));
    if (spec["body"]) read_body(part(spec, "", "body"));
    if (meta) read_meta(meta);
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const { fail(ErrorCode::usage, "[spec] {}: {}: {}", file_, key, why); }
  void set(const char* key, std::string value) { out_.settings.emplace_back(key, std::move(value)); }
  void note(std::string line) { out_.notes.push_back(std::move(line)); }

  // Older specs wrap agent and env in lists of one.
  YAML::Node single(const YAML::Node& node, const std::string& name) const {
    if (!node) refuse(name, "is missing");
    const YAML::Node inner = node.IsSequence() && node.size() == 1 ? node[0] : node;
    if (!inner.IsMap()) refuse(name, node.IsSequence() ? "has several entries; one agent in one environment is possible" : "is not a map");
    return inner;
  }
  YAML::Node part(const YAML::Node& node, const std::string& path, const char* key) const {
    if (!node[key] || !node[key].IsMap()) refuse(below(path, key), "is missing, or not a map");
    return node[key];
  }
  static std::string below(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

  void known(const YAML::Node& node, const std::string& path, const std::set<std::string>& names) const {
    for (const auto& entry : node) {
      const std::string key = entry.first.as<std::string>();
      if (names.contains(key)) continue;
      const std::vector<std::string_view> all(names.begin(), names.end());
      refuse(below(path, key), fmt::format("unknown key; {}", nearest_hint(key, all)));
    }
  }

  void known_below(const YAML::Node& node, const std::string& path, const char* key, const std::set<std::string>& names) const {
    if (node[key] && node[key].IsMap()) known(node[key], below(path, key), names);
  }

  // Keys without an equivalent.
  void unused(const YAML::Node& node, const std::string& path, std::initializer_list<const char*> keys) {
    for (const char* key : keys)
      if (node[key] && !node[key].IsNull()) note(fmt::format("{}.{} is not used", path, key));
  }

  std::string filled(std::string value, const std::string& key) const {
    if (value.find("${") != value.npos) refuse(key, fmt::format("'{}' is not of the form ${{name}}", value));
    for (size_t at = 0; (at = value.find(kOpen, at)) != value.npos;) {
      const size_t end = value.find(kClose, at);
      if (end == value.npos) refuse(key, fmt::format("'{}' is not of the form ${{name}}", value));
      const std::string name = value.substr(at + 2, end - at - 2);
      const auto it = variables_.find(name);
      if (it == variables_.end()) refuse(key, fmt::format("needs a value for ${{{0}}}: spec_variables={0}=VALUE", name));
      value.replace(at, end - at + 1, it->second), at += it->second.size();
    }
    return value;
  }
  std::string text(const YAML::Node& node, const std::string& path, const char* key) const {
    if (!node[key] || !node[key].IsScalar()) refuse(path + "." + key, "is missing, or not a word");
    return filled(node[key].as<std::string>(), path + "." + key);
  }
  std::optional<double> number(const YAML::Node& node, const std::string& path, const char* key) const {
    if (!node[key] || node[key].IsNull()) return {};
    return number_in(text(node, path, key), path + "." + key);
  }
  double number_in(const std::string& word, const std::string& key) const {
    char* end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    if (word.empty() || *end || !std::isfinite(value)) refuse(key, fmt::format("'{}' is not a number", word));
    return value;
  }
  std::optional<int64_t> count(const YAML::Node& node, const std::string& path, const char* key) const {  // 1e7 is allowed
    const std::optional<double> value = number(node, path, key);
    if (!value) return {};
    if (*value != std::floor(*value) || std::abs(*value) > 1e15) refuse(path + "." + key, fmt::format("{} is not a whole number", *value));
    return int64_t(*value);
  }
  bool flag(const YAML::Node& node, const std::string& path, const char* key, bool otherwise) const {
    if (!node[key] || node[key].IsNull()) return otherwise;
    const std::string word = text(node, path, key);
    if (word == "true" || word == "True") return true;
    if (word == "false" || word == "False") return false;
    refuse(path + "." + key, fmt::format("'{}' is neither true nor false", word));
  }
  int64_t needed(const YAML::Node& node, const std::string& path, const char* key) const {
    if (const std::optional<int64_t> value = count(node, path, key)) return *value;
    refuse(path + "." + key, "is missing");
  }
  void set_number(const char* key, std::optional<double> value) {
    if (value) set(key, fmt::format("{}", *value));
  }
  void set_count(const char* key, std::optional<int64_t> value) {
    if (value) set(key, fmt::format("{}", *value));
  }

  void read_environment(const YAML::Node& env) {
    known(env, "env",
          {"name", "num_envs", "max_t", "max_frame", "normalize_obs", "normalize_reward", "clip_obs", "clip_reward", "device", "reward_scale", "life_loss_info",
           "repeat_action_probability", "frame_op", "frame_op_len", "full_action_space"});
    const std::string name = text(env, "env", "name");
    const KnownGame* game = nullptr;
    std::vector<std::string_view> names;
    for (const KnownGame& g : kGames) {
      names.emplace_back(g.theirs);
      if (name == g.theirs) game = &g;
    }
    if (!game) refuse("env.name", fmt::format("there is no environment '{}'; {}", name, nearest_hint(name, names)));
    set("env", game->ours);
    if (*game->note) note(fmt::format("{} {}", name, game->note));
    const double sticky = number(env, "env", "repeat_action_probability").value_or(game->sticky);
    set("sticky", fmt::format("{}", sticky));
    if (sticky > 0) note(fmt::format("actions are repeated with a probability of {}, as in {}", sticky, name));
    instances_ = count(env, "env", "num_envs").value_or(1);
    if (instances_ < 1 || instances_ > kMostInstances) refuse("env.num_envs", fmt::format("{} is not between 1 and {}", instances_, kMostInstances));
    set("instances", fmt::format("{}", instances_));
    frames_ = needed(env, "env", "max_frame");
    set("decisions", fmt::format("{}", frames_));
    set_count("time_limit", count(env, "env", "max_t"));
    set("normalize_observations", flag(env, "env", "normalize_obs", false) ? "true" : "false");
    read_rewards(env, *game);
    unused(env, "env", {"device", "full_action_space"});
    if (number(env, "env", "clip_obs").value_or(10) != 10) note("env.clip_obs: normalised observations are clipped to 10");
    if (flag(env, "env", "life_loss_info", false)) note("env.life_loss_info has no effect: there are no lives");
    if (env["frame_op"] || env["frame_op_len"]) note("env.frame_op: pictures are stacks of four frames");
  }

  // SLM-Lab clips after it has normalised rewards, and those of Atari games always to one.
  void read_rewards(const YAML::Node& env, const KnownGame& game) {
    const bool scaled = flag(env, "env", "normalize_reward", false), points = std::string_view(game.ours).starts_with("pong");
    set("scale_rewards", scaled ? "true" : "false");
    if (env["reward_scale"] && !env["reward_scale"].IsNull() && text(env, "env", "reward_scale") == "sign") {
      if (!points) refuse("env.reward_scale", "'sign' is only for games whose rewards are -1, 0 and 1; use clip_reward");
    } else if (number(env, "env", "reward_scale").value_or(1) != 1) {
      refuse("env.reward_scale", "rewards are not scaled by a fixed factor; use normalize_reward");
    }
    const double clip = number(env, "env", "clip_reward").value_or(0);
    if (clip < 0) refuse("env.clip_reward", "must not be negative: rewards are clipped to ± this");
    if (scaled && clip > 0) note("env.clip_reward is not used: rewards are divided by the deviation of returns, and are not clipped after that");
    set_number("reward_clip", scaled ? 0 : clip);
  }

  // A schedule's value at the start, and at the end if it falls linearly.
  std::pair<double, std::optional<double>> schedule(const YAML::Node& algorithm, const char* key) {
    const std::string path = fmt::format("agent.algorithm.{}", key);
    const YAML::Node s = part(algorithm, "agent.algorithm", key);
    known(s, path, {"name", "start_val", "end_val", "start_step", "end_step"});
    const std::optional<double> start = number(s, path, "start_val"), end = number(s, path, "end_val");
    if (!start) refuse(path + ".start_val", "is missing");
    const std::string name = text(s, path, "name");
    if (name == "no_decay") return {*start, {}};
    if (name != "linear_decay") refuse(path + ".name", fmt::format("'{}' is not available; use no_decay or linear_decay", name));
    if (count(s, path, "start_step").value_or(0) != 0 || count(s, path, "end_step").value_or(frames_) != frames_)
      note(fmt::format("{}: the value falls over the whole run", path));
    return {*start, end};
  }

  void read_algorithm(const YAML::Node& a) {
    const std::string path = "agent.algorithm";
    known(a, path,
          {"name", "action_pdtype", "action_policy", "explore_var_spec", "gamma", "lam", "clip_eps_spec", "entropy_coef_spec", "val_loss_coef", "time_horizon",
           "minibatch_size", "training_epoch", "training_frequency", "normalize_v_targets", "clip_vloss", "clip_val_loss", "symlog", "normalize_advantages"});
    if (const std::string name = text(a, path, "name"); name != "PPO") refuse(path + ".name", fmt::format("'{}' is not available, only PPO", name));
    for (const char* key : {"gamma", "lam"})
      if (!number(a, path, key)) refuse(fmt::format("{}.{}", path, key), "is missing");
    set_number("gamma", number(a, path, "gamma")), set_number("lambda", number(a, path, "lam"));
    set_number("value_weight", number(a, path, "val_loss_coef").value_or(1));
    const auto [clip, final_clip] = schedule(a, "clip_eps_spec");
    set("clip_range", fmt::format("{}", clip));
    if (final_clip && *final_clip != clip) note("agent.algorithm.clip_eps_spec: the clip range stays at its first value");
    const auto [entropy, final_entropy] = schedule(a, "entropy_coef_spec");
    set("entropy", fmt::format("{}", entropy));
    set("final_entropy", final_entropy ? fmt::format("{}", *final_entropy) : "none");
    const bool clips_values = flag(a, path, "clip_val_loss", false) || flag(a, path, "clip_vloss", false);  // some specs have one name, some the other
    set("value_clip", fmt::format("{}", clips_values ? clip : 0));
    set("normalize_values", flag(a, path, "normalize_v_targets", false) ? "true" : "false");
    unused(a, path, {"training_frequency", "explore_var_spec"});
    known_below(a, path, "explore_var_spec", {"name", "start_val", "end_val", "start_step", "end_step"});
    for (const char* key : {"action_pdtype", "action_policy"})
      if (a[key] && text(a, path, key) != "default") note(fmt::format("{}.{} is not used: actions are drawn from the policy's own distribution", path, key));
    if (flag(a, path, "symlog", false)) refuse(path + ".symlog", "is not available");
    if (a["normalize_advantages"])
      if (const std::string how = text(a, path, "normalize_advantages"); how != "standardize" && how != "true" && how != "True")
        refuse(path + ".normalize_advantages", fmt::format("'{}' is not available, only standardize", how));
    const int64_t horizon = needed(a, path, "time_horizon"), epochs = needed(a, path, "training_epoch");
    int64_t minibatch = needed(a, path, "minibatch_size");
    if (minibatch < 1 || horizon < 1) refuse(path, "time_horizon and minibatch_size must be at least 1");
    if (horizon > kLongestHorizon) refuse(path + ".time_horizon", fmt::format("{} is more than {}", horizon, kLongestHorizon));
    // Minibatches are whole decisions of all instances, or with a memory, whole sequences of some.
    const int64_t all = instances_ * horizon, unit = recurrent_ ? horizon : instances_;
    minibatch = std::min(all, (std::min(minibatch, all) + unit - 1) / unit * unit);
    while (all % minibatch != 0) minibatch += unit;
    if (minibatch != needed(a, path, "minibatch_size"))
      note(fmt::format("{}.minibatch_size becomes {}, so that it divides a rollout of {}{}", path, minibatch, all,
                       recurrent_ ? fmt::format(" into whole sequences of {}", horizon) : ""));
    updates_ = all / minibatch * epochs, rollout_ = all;
    set("horizon", fmt::format("{}", horizon)), set("minibatch", fmt::format("{}", minibatch)), set("update_epochs", fmt::format("{}", epochs));
  }

  void read_net(const YAML::Node& net) {
    const std::string path = "agent.net", type = text(net, path, "type");
    known(net, path,
          {"type",
           "shared",
           "conv_hid_layers",
           "fc_hid_layers",
           "hid_layers",
           "hid_layers_activation",
           "out_layer_activation",
           "init_fn",
           "normalize",
           "batch_norm",
           "layer_norm",
           "clip_grad_val",
           "use_same_optim",
           "loss_spec",
           "optim_spec",
           "actor_optim_spec",
           "critic_optim_spec",
           "lr_scheduler_spec",
           "gpu",
           "cell_type",
           "rnn_hidden_size",
           "rnn_num_layers",
           "seq_len",
           "log_std_init",
           "actor_init_std",
           "critic_init_std"});
    for (const char* key : {"batch_norm", "layer_norm"})
      if (flag(net, path, key, false)) refuse(fmt::format("{}.{}", path, key), "is not available");
    if (type == "ConvNet") {
      set("network", "nature");
      std::string layers;
      for (const auto& layer : part_list(net, path, "conv_hid_layers"))
        for (size_t i = 0; i < 3 && i < layer.size(); ++i) layers += filled(layer[i].as<std::string>(), path) + (i < 2 ? "," : " ");
      const std::vector<int64_t> rest = counts(net, path, "fc_hid_layers");
      if (layers != "32,8,4 64,4,2 64,3,1 " || rest != std::vector<int64_t>{512})
        note(fmt::format("{}: the network is nature's (32, 64, 64 filters, 512 units), not {}", path, layers));
    } else if (type == "MLPNet" || type == "RecurrentNet") {
      set("network", "mlp");
      const std::vector<int64_t> sizes = counts(net, path, type == "MLPNet" ? "hid_layers" : "fc_hid_layers");
      for (int64_t n : sizes)
        if (n != sizes[0]) refuse(path, "layers of different sizes are not available");
      set("units", fmt::format("{}", sizes.at(0))), set("layers", fmt::format("{}", sizes.size()));
      set("separate", flag(net, path, "shared", false) || type == "RecurrentNet" ? "false" : "true");
      if (net["hid_layers_activation"]) {
        const std::string activation = text(net, path, "hid_layers_activation");
        if (activation != "tanh" && activation != "relu")
          refuse(path + ".hid_layers_activation", fmt::format("'{}' is not available; use tanh or relu", activation));
        set("activation", activation);
      }
      if (type == "RecurrentNet") {
        const std::string cell = net["cell_type"] ? text(net, path, "cell_type") : "GRU";
        if (cell != "LSTM" && cell != "GRU") refuse(path + ".cell_type", fmt::format("'{}' is not available; use LSTM or GRU", cell));
        set("recurrent", cell == "LSTM" ? "lstm" : "gru"), set_count("recurrent_units", count(net, path, "rnn_hidden_size"));
        if (count(net, path, "rnn_num_layers").value_or(1) != 1) refuse(path + ".rnn_num_layers", "only 1 is available");
      }
    } else {
      refuse(path + ".type", fmt::format("'{}' is not available; use ConvNet, MLPNet or RecurrentNet", type));
    }
    if (type == "ConvNet" && net["shared"] && !flag(net, path, "shared", true)) note(path + ".shared: actor and critic share the convolutions");
    if (type == "ConvNet" && net["hid_layers_activation"] && text(net, path, "hid_layers_activation") != "relu")
      note(path + ".hid_layers_activation: the network's activation is relu");
    if (type != "RecurrentNet") set("recurrent", "none");
    unused(net, path, {"log_std_init", "actor_init_std", "critic_init_std", "out_layer_activation", "loss_spec", "seq_len"});
    set_number("clip", number(net, path, "clip_grad_val").value_or(0));
    if (net["init_fn"] && !net["init_fn"].IsNull() && text(net, path, "init_fn") != "orthogonal_") note(path + ".init_fn: weights start orthogonal");
    const char* optimizer = net["optim_spec"] ? "optim_spec" : "actor_optim_spec";
    if (net["actor_optim_spec"] || net["critic_optim_spec"]) note(fmt::format("{}: actor and critic share one optimizer, that of {}", path, optimizer));
    const YAML::Node o = part(net, path, optimizer);
    const std::string o_path = path + "." + optimizer;
    for (const char* key : {"optim_spec", "actor_optim_spec", "critic_optim_spec"}) known_below(net, path, key, {"name", "lr", "eps", "betas", "weight_decay"});
    known_below(net, path, "loss_spec", {"name"});
    if (const std::string name = text(o, o_path, "name"); name != "Adam" && name != "AdamW")
      refuse(o_path + ".name", fmt::format("'{}' is not available; use Adam or AdamW", name));
    set_number("lr", number(o, o_path, "lr")), set_number("adam_epsilon", number(o, o_path, "eps").value_or(1e-8));
    set_number("weight_decay", number(o, o_path, "weight_decay").value_or(0));
    std::vector<double> betas = {0.9, 0.999};
    if (o["betas"]) {
      if (!o["betas"].IsSequence() || o["betas"].size() != 2) refuse(o_path + ".betas", "is not a list of two numbers");
      for (size_t i = 0; i < 2; ++i) betas[i] = number_in(filled(o["betas"][i].as<std::string>(), o_path + ".betas"), o_path + ".betas");
    }
    set_number("beta1", betas[0]), set_number("beta2", betas[1]);
    if (const YAML::Node s = net["lr_scheduler_spec"]; s && !s.IsNull()) {
      if (!s.IsMap()) refuse(path + ".lr_scheduler_spec", "is neither a map nor null");
      const std::string s_path = path + ".lr_scheduler_spec";
      known(s, s_path, {"name", "frame"});
      if (const std::string name = text(s, s_path, "name"); name != "LinearToZero")
        refuse(s_path + ".name", fmt::format("'{}' is not available; use LinearToZero, or none", name));
      if (count(s, s_path, "frame").value_or(frames_) != frames_) note(s_path + ".frame: the rate reaches 0 at the end of the run");
      set("schedule", "linear"), set("min_lr", "0");
    } else {
      set("schedule", "constant");
    }
    set("warmup", "0"), set("adaptive_kl", "none"), set("target_kl", "none"), set("target_score", "none");
    if (net["gpu"]) {
      const std::string gpu = text(net, path, "gpu");
      if (gpu != "auto") set("device", gpu == "true" || gpu == "True" ? "cuda" : "cpu");
    }
  }

  YAML::Node part_list(const YAML::Node& node, const std::string& path, const char* key) const {
    if (!node[key] || !node[key].IsSequence() || node[key].size() == 0) refuse(path + "." + key, "is missing, or not a list");
    return node[key];
  }
  std::vector<int64_t> counts(const YAML::Node& node, const std::string& path, const char* key) const {
    std::vector<int64_t> values;
    for (const auto& n : part_list(node, path, key)) {
      const std::string word = n.IsScalar() ? filled(n.as<std::string>(), path + "." + key) : "";
      char* end = nullptr;
      const double value = std::strtod(word.c_str(), &end);
      if (word.empty() || *end || value != std::floor(value) || value < 1 || value > 1e6)
        refuse(path + "." + key, fmt::format("'{}' is not a layer's size", word));
      values.push_back(int64_t(value));
    }
    return values;
  }

  void read_memory(const YAML::Node& memory) {
    const std::string path = "agent.memory";
    known(memory, path, {"name", "batch_size", "max_size", "use_cer"});
    if (const std::string name = text(memory, path, "name"); name != "OnPolicyBatchReplay")
      note(fmt::format("{} {} is not used: PPO keeps one rollout", path, name));
    unused(memory, path, {"batch_size", "max_size", "use_cer"});
  }

  // How agents and environments are combined: here, one with one.
  void read_body(const YAML::Node& body) {
    known(body, "body", {"product", "num"});
    if (body["product"])
      if (const std::string product = text(body, "body", "product"); product != "outer" && product != "inner")
        refuse("body.product", fmt::format("'{}' is not available; one agent plays one environment, outer or inner", product));
    if (count(body, "body", "num").value_or(1) != 1) refuse("body.num", "only 1 is available");
  }

  void read_meta(const YAML::Node& meta) {
    known(meta, "meta",
          {"distributed", "log_frequency", "eval_frequency", "max_session", "max_trial", "rigorous_eval", "search_resources", "search_scheduler", "search",
           "param_spec_process", "resume"});
    known_below(meta, "meta", "search_resources", {"cpu", "gpu"});
    known_below(meta, "meta", "search_scheduler", {"name", "grace_period", "reduction_factor"});
    set_count("seeds", count(meta, "meta", "max_session"));
    if (const std::optional<int64_t> frames = count(meta, "meta", "eval_frequency"); frames && *frames > 0)
      set("eval_interval", fmt::format("{}", (*frames + rollout_ - 1) / rollout_ * updates_));
    if (meta["distributed"] && text(meta, "meta", "distributed") != "false" && text(meta, "meta", "distributed") != "False")
      note("meta.distributed: sessions run one after another");
    if (count(meta, "meta", "max_trial").value_or(1) > 1) note("meta.max_trial: one trial is run; without a search, trials do not differ");
  }

  const std::string& file_;
  std::map<std::string, std::string> variables_;
  SpecSettings out_;
  int64_t instances_ = 1, frames_ = 0, rollout_ = 1, updates_ = 1;
  bool recurrent_ = false;
};

}  // namespace

SpecSettings read_spec(const std::string& text, const std::string& name, const std::vector<std::string>& variables, const std::string& file) try {
  const YAML::Node all = YAML::Load(with_marked_variables(text));  // JSON is YAML
  if (!all.IsMap() || all.size() == 0) fail(ErrorCode::usage, "[spec] {} has no specs: it must be a map of names to specs", file);
  std::vector<std::string> names;
  for (const auto& entry : all) names.push_back(entry.first.as<std::string>());
  if (name.empty() && names.size() > 1) fail(ErrorCode::usage, "[spec] {} has {} specs; name one: --spec {}:{}", file, names.size(), file, names[0]);
  const std::string wanted = name.empty() ? names[0] : name;
  if (!all[wanted]) {
    const std::vector<std::string_view> views(names.begin(), names.end());
    fail(ErrorCode::usage, "[spec] {} has no spec '{}'; {}", file, wanted, nearest_hint(wanted, views));
  }
  if (!all[wanted].IsMap()) fail(ErrorCode::usage, "[spec] {}: {} is not a map", file, wanted);
  SpecSettings read = SpecReader(file, variables).read(all[wanted]);
  read.name = wanted;
  return read;
} catch (const YAML::Exception& e) {
  fail(ErrorCode::usage, "[spec] {}:{}: {}", file, e.mark.line + 1, e.msg);
}

}  // namespace ridge
