// Small GPTs of every form, with weights large enough to matter.
#pragma once
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "measure/default_team.h"
#include "nn/gpt.h"
#include "runtime/executable.h"
#include "tasks/gpt/parameters.h"

namespace ridge::test {

struct NamedConfig {
  std::string name;
  GptConfig config;
};

inline GptConfig small_gpt() {
  GptConfig c;
  c.vocab = 37, c.block = 24, c.layers = 2, c.heads = 2, c.width = 32;
  return c;
}

inline std::vector<NamedConfig> gpt_forms() {
  std::vector<NamedConfig> out;
  auto add = [&](const std::string& name, auto change) {
    out.push_back({name, small_gpt()});
    change(out.back().config);
  };
  add("plain", [](GptConfig&) {});
  add("bias", [](GptConfig& c) { c.bias = true; });
  add("untied", [](GptConfig& c) { c.tied = false; });
  add("rope", [](GptConfig& c) { c.position = GptConfig::Position::rope; });
  add("rms", [](GptConfig& c) { c.norm = GptConfig::Norm::rms; });
  add("swiglu", [](GptConfig& c) { c.mlp = GptConfig::Mlp::swiglu; });
  add("kv_heads", [](GptConfig& c) { c.kv_heads = 1; });
  add("odd head", [](GptConfig& c) { c.heads = 4, c.width = 28; });
  add("all", [](GptConfig& c) {
    c.bias = true, c.position = GptConfig::Position::rope, c.norm = GptConfig::Norm::rms, c.mlp = GptConfig::Mlp::swiglu, c.heads = 4, c.kv_heads = 2,
    c.width = 64;
  });
  return out;
}

// Values for all parameters, including biases and norms, larger than at the start of training so that each one affects the logits.
struct Model {
  GptConfig config;
  std::vector<std::vector<float>> values;
  std::vector<std::span<float>> spans;

  explicit Model(const GptConfig& c, uint64_t seed = 5) : config(c) {
    const std::vector<Parameter> parameters = gpt_parameters(c);
    for (size_t i = 0; i < parameters.size(); ++i) {
      Parameter p = parameters[i];
      p.deviation = p.shape.rank() > 1 ? 0.15 : 0.1;
      values.emplace_back(size_t(p.shape.numel()));
      initialize(p, seed, uint32_t(i), values.back());
    }
    for (auto& v : values) spans.push_back(v);
  }
  std::vector<std::span<const float>> views() const { return {values.begin(), values.end()}; }
  std::shared_ptr<GptParameters> in_place() { return std::make_shared<GptParameters>(config, spans); }
};

// Logits after each token, from one forward pass over all of them: [tokens, vocab].
inline std::vector<float> full_logits(const GptParameters& parameters, std::span<const Token> tokens) {
  Graph g;
  Builder b(g);
  GptParameters::Nodes nodes = parameters.trace(g);
  NodeId in = g.input({DType::i64, {1, int64_t(tokens.size())}}, "tokens");
  NodeId out = gpt_forward(b, parameters.config(), nodes.values, in);
  std::vector<NodeId> inputs = nodes.inputs;
  inputs.push_back(in);
  Executable exe(g, inputs, {out}, default_backend());
  std::vector<int64_t> wide(tokens.begin(), tokens.end());
  std::vector<const void*> data = parameters.data();
  data.push_back(wide.data());
  std::vector<float> logits(tokens.size() * size_t(parameters.config().vocab));
  void* to[] = {logits.data()};
  exe.run(data, to);
  return logits;
}

inline double largest_difference(std::span<const float> a, std::span<const float> b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::isfinite(a[i]) && std::isfinite(b[i]) ? std::abs(double(a[i]) - double(b[i])) : INFINITY);
  return a.size() == b.size() ? most : INFINITY;
}

}  // namespace ridge::test
