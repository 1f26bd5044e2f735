#include "tasks/gpt/task.h"

#include <functional>

#include "base/error.h"
#include "base/text.h"
#include "machine/memory_budget.h"

namespace ridge {
namespace {

template <class T>
T required(const config::Resolved& settings, const char* key) {
  return ridge::required<T>(settings, key, kGptName, "shakespeare-cpu");
}

}  // namespace

int64_t required_size(const config::Resolved& settings, const char* key) { return required<int64_t>(settings, key); }

int64_t host_memory(const config::Resolved& settings, bool on_device) {
  BudgetFacts facts = budget_facts(read_limits(), resident_bytes());
  if (!on_device) facts.requested = settings.get<std::optional<int64_t>>("memory").value_or(0), facts.fraction = settings.get<double>("memory_fraction");
  return memory_budget(facts).bytes;
}

GptConfig gpt_config(const config::Resolved& settings, int64_t vocab) {
  GptConfig c;
  constexpr int64_t kRows = 64;  // divisible by the widest matmul tiles of any device
  c.vocab = vocab, c.padded_vocab = (vocab + kRows - 1) / kRows * kRows;
  c.block = required<int64_t>(settings, "block"), c.layers = required<int64_t>(settings, "layers");
  c.heads = required<int64_t>(settings, "heads"), c.width = required<int64_t>(settings, "width");
  c.kv_heads = settings.get<std::optional<int64_t>>("kv_heads").value_or(0);
  c.bias = settings.get<bool>("bias");
  c.dropout = settings.get<std::optional<double>>("dropout").value_or(0);
  if (settings.get<std::string>("norm") == "rms") c.norm = GptConfig::Norm::rms;
  if (settings.get<std::string>("pos") == "rope") c.position = GptConfig::Position::rope;
  if (settings.get<std::string>("mlp") == "swiglu") c.mlp = GptConfig::Mlp::swiglu;
  return c;
}

std::vector<std::pair<std::string, std::string>> size_words(const GptConfig& c) {
  return {{"layers", std::to_string(c.layers)},
          {"heads", std::to_string(c.heads)},
          {"kv_heads", c.kv_heads && c.kv_heads != c.heads ? std::to_string(c.kv_heads) : "auto"},
          {"width", std::to_string(c.width)},
          {"block", std::to_string(c.block)},
          {"bias", c.bias ? "true" : "false"},
          {"norm", c.norm == GptConfig::Norm::rms ? "rms" : "layer"},
          {"pos", c.position == GptConfig::Position::rope ? "rope" : "learned"},
          {"mlp", c.mlp == GptConfig::Mlp::swiglu ? "swiglu" : "gelu"}};
}

namespace {

std::string text_of(const GptConfig& c, const std::function<std::string(int64_t, std::string_view)>& count) {
  std::string text = fmt::format("{}, {}, {} wide, block {}", count(c.layers, "layer"), count(c.heads, "head"), c.width, c.block);
  if (c.kv_heads && c.kv_heads != c.heads) text += ", " + count(c.kv_heads, "kv head");
  if (c.bias) text += ", biases";
  if (c.norm == GptConfig::Norm::rms) text += ", rms norm";
  if (c.position == GptConfig::Position::rope) text += ", rope";
  if (c.mlp == GptConfig::Mlp::swiglu) text += ", swiglu";
  return text;
}

}  // namespace

std::string model_text(const GptConfig& c) { return text_of(c, counted); }

std::string model_identity(const GptConfig& c) {
  return text_of(c, [](int64_t count, std::string_view noun) { return fmt::format("{} {}s", count, noun); });
}

std::string parameters_text(int64_t count) {
  constexpr int64_t kExact = 100'000;  // below this, two decimals of millions are too coarse
  return count < kExact ? counted(count, "parameter") : fmt::format("{:.2f} M parameters", double(count) / 1e6);
}

StepModel gpt_step_model(const GptConfig& config, int64_t batch) {
  StepModel model;
  model.parameters = gpt_parameters(config);
  model.batch = {{DType::i64, {batch, config.block}}, {DType::i64, {batch, config.block}}};
  auto losses = [config](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const std::optional<RandomOperands>& random) {
    return gpt_losses(b, config, p, in[0], in[1], random);
  };
  model.loss = losses;
  if (config.dropout > 0)
    model.evaluate = [losses](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands&) { return losses(b, p, in, {}); };
  return model;
}

StepWork gpt_work(const GptConfig& c, int64_t batch) {
  double parameters = 0;
  for (const Parameter& p : gpt_parameters(c)) parameters += double(p.shape.numel());
  const double tokens = double(batch * c.block), layers = double(c.layers), width = double(c.width);
  StepWork work;
  work.flops = 6 * parameters * tokens + 6 * layers * width * double(c.block) * tokens;
  // Weights, gradients and moments once or twice each, plus activations between layers, forward and backward.
  work.bytes = 40 * parameters + 100 * layers * width * tokens;
  work.launches = 20 * layers + 20;
  work.transfer_bytes = 16 * tokens;
  return work;
}

StepWork gpt_reading_work(const GptConfig& c, int64_t tokens) {
  double parameters = 0;
  for (const Parameter& p : gpt_parameters(c)) parameters += double(p.shape.numel());
  StepWork work;
  work.flops = 2 * parameters * double(tokens), work.bytes = 4 * parameters + 60 * double(c.layers * c.width) * double(tokens);
  work.launches = 12 * double(c.layers) + 10, work.transfer_bytes = 16 * double(tokens);
  return work;
}

StepOptions gpt_step_options(const config::Resolved& settings) {
  required<double>(settings, "lr"), required<double>(settings, "beta2");
  return step_options(settings);
}

}  // namespace ridge
