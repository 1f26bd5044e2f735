#include "tasks/gpt/config_file.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace ridge {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char *kOwnType = "ridge_gpt", *kGpt2Type = "gpt2", *kLlamaType = "llama";

// Reads one file; every error message names it.
class ConfigReader {
 public:
  ConfigReader(const Json& json, const std::string& name) : json_(json), name_(name) {}

  StoredGptConfig read() {
    const std::string type = word(json_, "model_type", "");
    if (type == kGpt2Type)
      read_gpt2();
    else if (type == kLlamaType)
      read_llama();
    else if (type == kOwnType)
      read_own();
    else
      fail(ErrorCode::io, "[gpt] {}: model_type is {}; Ridge reads {}, {} and {}", name_, type.empty() ? "missing" : type, kGpt2Type, kLlamaType, kOwnType);
    constexpr int64_t kMaxLayers = 65536;
    if (c_.layers > kMaxLayers) fail(ErrorCode::io, "[gpt] {}: {} layers; Ridge reads up to {}", name_, c_.layers, kMaxLayers);
    try {
      gpt_parameters(c_);
    } catch (const Error& e) {
      fail(ErrorCode::io, "[gpt] {} does not describe a model: {}", name_, e.what());
    }
    return {c_, form_};
  }

 private:
  // Null: absent. Programs write null for unset values.
  static const Json* find(const Json& json, const char* key) {
    const auto it = json.find(key);
    return it == json.end() || it->is_null() ? nullptr : &*it;
  }

  // Never prints nested values: a malicious file can be nested deeper than the stack allows.
  static std::string brief(const Json& value) { return value.is_structured() ? value.type_name() : value.dump(); }

  const Json& member(const Json& json, const char* key) const {
    const Json* value = find(json, key);
    if (!value) fail(ErrorCode::io, "[gpt] {} has no \"{}\"; is it the config.json of a GPT-2 or a Llama?", name_, key);
    return *value;
  }

  int64_t size(const Json& json, const char* key) const {
    const Json& value = member(json, key);
    constexpr int64_t kMax = int64_t(1) << 31;
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kMax)
      fail(ErrorCode::io, "[gpt] {}: \"{}\" is {}, which is not a size", name_, key, brief(value));
    return value.get<int64_t>();
  }

  int64_t size(const Json& json, const char* key, int64_t otherwise) const { return find(json, key) ? size(json, key) : otherwise; }

  bool flag(const Json& json, const char* key, bool otherwise) const {
    const Json* value = find(json, key);
    if (!value) return otherwise;
    if (!value->is_boolean()) fail(ErrorCode::io, "[gpt] {}: \"{}\" is {}, which is neither true nor false", name_, key, brief(*value));
    return value->get<bool>();
  }

  std::string word(const Json& json, const char* key, const char* otherwise) const {
    const Json* value = find(json, key);
    if (!value) return otherwise;
    if (!value->is_string()) fail(ErrorCode::io, "[gpt] {}: \"{}\" is {}, which is not a string", name_, key, brief(*value));
    return value->get<std::string>();
  }

  double positive(const Json& json, const char* key, double otherwise) const {
    const Json* value = find(json, key);
    if (!value) return otherwise;
    const double x = value->is_number() ? value->get<double>() : 0;
    if (!std::isfinite(x) || x <= 0) fail(ErrorCode::io, "[gpt] {}: \"{}\" is {}, which is not a number above 0", name_, key, brief(*value));
    return x;
  }

  // Whether `key` has the second of two allowed values.
  bool second_of(const Json& json, const char* key, const char* first, const char* second) const {
    const std::string value = word(json, key, first);
    if (value != first && value != second) fail(ErrorCode::io, "[gpt] {}: {} is {}; Ridge supports {} and {}", name_, key, value, first, second);
    return value == second;
  }

  void require_word(const char* key, const char* first, const char* second) const {
    if (const std::string value = word(json_, key, first); value != first && value != second)
      fail(ErrorCode::io, "[gpt] {}: {} is {}; Ridge supports {}", name_, key, value, first);
  }

  void require_flag(const char* key, bool wanted) const {
    if (flag(json_, key, wanted) != wanted) fail(ErrorCode::io, "[gpt] {}: {} is {}, which Ridge's GPT does not support", name_, key, !wanted);
  }

  // Ridge's additions to every form, so that its own models are restored exactly.
  const Json* ridge() const {
    const Json* own = find(json_, "ridge");
    return own && own->is_object() ? own : nullptr;
  }

  void read_gpt2_sizes() {
    c_.layers = size(json_, "n_layer"), c_.heads = size(json_, "n_head"), c_.width = size(json_, "n_embd");
    c_.vocab = size(json_, "vocab_size"), c_.block = size(json_, "n_positions"), c_.hidden = size(json_, "n_inner", 0);
    c_.tied = flag(json_, "tie_word_embeddings", true);
  }

  void read_dropout() {
    if (const Json* own = ridge())
      if (const Json* dropout = find(*own, "dropout"); dropout && dropout->is_number()) c_.dropout = dropout->get<double>();
  }

  void read_gpt2() {
    form_ = GptForm::gpt2;
    read_gpt2_sizes(), read_dropout();
    require_word("activation_function", "gelu_new", "gelu_pytorch_tanh");
    require_flag("scale_attn_by_inverse_layer_idx", false), require_flag("add_cross_attention", false), require_flag("scale_attn_weights", true);
    c_.epsilon = positive(json_, "layer_norm_epsilon", c_.epsilon);
    c_.bias = ridge() ? flag(*ridge(), "bias", true) : true;
  }

  void read_own() {
    read_gpt2_sizes(), read_dropout();
    const Json& own = member(json_, "ridge");
    if (!own.is_object()) fail(ErrorCode::io, "[gpt] {}: \"ridge\" is not an object", name_);
    if (second_of(own, "norm", "layer", "rms")) c_.norm = GptConfig::Norm::rms;
    if (second_of(own, "pos", "learned", "rope")) c_.position = GptConfig::Position::rope;
    if (second_of(own, "mlp", "gelu", "swiglu")) c_.mlp = GptConfig::Mlp::swiglu;
    c_.bias = flag(own, "bias", false), c_.kv_heads = size(own, "kv_heads");
    c_.epsilon = positive(own, "epsilon", c_.epsilon), c_.rope_theta = positive(own, "rope_theta", c_.rope_theta);
  }

  // Defaults for missing keys are those of transformers' LlamaConfig.
  void read_llama() {
    form_ = GptForm::llama;
    c_.norm = GptConfig::Norm::rms, c_.position = GptConfig::Position::rope, c_.mlp = GptConfig::Mlp::swiglu;
    c_.layers = size(json_, "num_hidden_layers"), c_.heads = size(json_, "num_attention_heads"), c_.width = size(json_, "hidden_size");
    c_.vocab = size(json_, "vocab_size"), c_.block = size(json_, "max_position_embeddings", 2048);
    if (const int64_t kv = size(json_, "num_key_value_heads", c_.heads); kv != c_.heads) {
      if (kv == 0) fail(ErrorCode::io, "[gpt] {}: \"num_key_value_heads\" is 0, and a model has at least one", name_);
      c_.kv_heads = kv;
    }
    c_.tied = flag(json_, "tie_word_embeddings", false);
    c_.epsilon = positive(json_, "rms_norm_eps", 1e-6);
    read_dropout();
    require_word("hidden_act", "silu", "swish");
    c_.bias = flag(json_, "attention_bias", false);
    if (const bool mlp = flag(json_, "mlp_bias", false); mlp != c_.bias)
      fail(ErrorCode::io, "[gpt] {}: attention_bias is {} and mlp_bias is {}; Ridge's GPT has biases everywhere or nowhere", name_, c_.bias, mlp);
    if (c_.heads > 0)
      if (const int64_t dim = size(json_, "head_dim", c_.width / c_.heads); dim * c_.heads != c_.width)
        fail(ErrorCode::io, "[gpt] {}: head_dim is {}; Ridge's GPT has hidden_size ÷ num_attention_heads, {} ÷ {}", name_, dim, c_.width, c_.heads);
    read_rope();
    const int64_t hidden = size(json_, "intermediate_size");
    if (c_.width > 0 && gpt_mlp_size(c_) != hidden) c_.hidden = hidden;
    if (hidden == 0) fail(ErrorCode::io, "[gpt] {}: \"intermediate_size\" is 0, and the MLP needs at least one", name_);
  }

  // Older files have rope_theta and rope_scaling, newer ones rope_parameters with both.
  void read_rope() {
    c_.rope_theta = positive(json_, "rope_theta", c_.rope_theta);
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      const Json* rope = find(json_, key);
      if (!rope) continue;
      if (!rope->is_object()) fail(ErrorCode::io, "[gpt] {}: \"{}\" is {}, which is not an object", name_, key, brief(*rope));
      const std::string type = word(*rope, find(*rope, "rope_type") ? "rope_type" : "type", "default");
      if (type != "default") fail(ErrorCode::io, "[gpt] {}: {} is of type {}; Ridge supports RoPE without scaling (default)", name_, key, type);
      if (positive(*rope, "partial_rotary_factor", 1) != 1)
        fail(ErrorCode::io, "[gpt] {}: {} rotates a part of each head; Ridge rotates all of it", name_, key);
      c_.rope_theta = positive(*rope, "rope_theta", c_.rope_theta);
    }
  }

  const Json& json_;
  const std::string& name_;
  GptConfig c_;
  GptForm form_ = GptForm::own;
};

void write_gpt2_sizes(Json& json, const GptConfig& c) {
  json["n_layer"] = c.layers, json["n_head"] = c.heads, json["n_embd"] = c.width, json["n_positions"] = c.block, json["vocab_size"] = c.vocab;
  json["n_inner"] = c.hidden ? Json(c.hidden) : Json();
  json["tie_word_embeddings"] = c.tied;
}

void write_own(Json& json, const GptConfig& c) {
  json["model_type"] = kOwnType;
  write_gpt2_sizes(json, c);
  Json& own = json["ridge"];
  own["bias"] = c.bias, own["dropout"] = c.dropout;
  own["norm"] = c.norm == GptConfig::Norm::rms ? "rms" : "layer";
  own["pos"] = c.position == GptConfig::Position::rope ? "rope" : "learned";
  own["mlp"] = c.mlp == GptConfig::Mlp::swiglu ? "swiglu" : "gelu";
  own["kv_heads"] = c.kv_heads;
  if (c.epsilon != GptConfig().epsilon) own["epsilon"] = c.epsilon;
  if (c.rope_theta != GptConfig().rope_theta) own["rope_theta"] = c.rope_theta;
  own["note"] = "linear weights are [out, in]; GELU is the tanh form; ridge export writes GPT-2's or Llama's form where it can express the model";
}

void write_gpt2(Json& json, const GptConfig& c) {
  json["architectures"] = {"GPT2LMHeadModel"}, json["model_type"] = kGpt2Type;
  json["activation_function"] = "gelu_new", json["layer_norm_epsilon"] = c.epsilon;
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) json[key] = c.dropout;
  write_gpt2_sizes(json, c);
}

void write_llama(Json& json, const GptConfig& c) {
  json["architectures"] = {"LlamaForCausalLM"}, json["model_type"] = kLlamaType;
  json["num_hidden_layers"] = c.layers, json["num_attention_heads"] = c.heads, json["num_key_value_heads"] = c.kv_heads ? c.kv_heads : c.heads;
  json["hidden_size"] = c.width, json["intermediate_size"] = gpt_mlp_size(c), json["head_dim"] = c.width / c.heads;
  json["max_position_embeddings"] = c.block, json["vocab_size"] = c.vocab;
  json["hidden_act"] = "silu", json["rms_norm_eps"] = c.epsilon;
  json["rope_theta"] = c.rope_theta, json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", c.rope_theta}};
  json["attention_bias"] = c.bias, json["mlp_bias"] = c.bias, json["attention_dropout"] = c.dropout;
  json["tie_word_embeddings"] = c.tied;
}

}  // namespace

std::vector<std::string> not_in_form(const GptConfig& c, GptForm form) {
  std::vector<std::string> out;
  if (form == GptForm::own) return out;
  const bool llama = form == GptForm::llama;
  if ((c.norm == GptConfig::Norm::rms) != llama) out.push_back(llama ? "norm=layer" : "norm=rms");
  if ((c.position == GptConfig::Position::rope) != llama) out.push_back(llama ? "pos=learned" : "pos=rope");
  if ((c.mlp == GptConfig::Mlp::swiglu) != llama) out.push_back(llama ? "mlp=gelu" : "mlp=swiglu");
  if (!llama && c.kv_heads && c.kv_heads != c.heads) out.push_back(fmt::format("kv_heads={}", c.kv_heads));
  return out;
}

GptForm form_for(const GptConfig& config) {
  for (GptForm form : {GptForm::gpt2, GptForm::llama})
    if (not_in_form(config, form).empty()) return form;
  return GptForm::own;
}

std::string gpt_config_json(const GptConfig& c, GptForm form, std::optional<Token> end_of_text) {
  Json json;
  form == GptForm::gpt2 ? write_gpt2(json, c) : form == GptForm::llama ? write_llama(json, c) : write_own(json, c);
  if (form != GptForm::own) {
    for (const char* key : {"bos_token_id", "eos_token_id"}) json[key] = end_of_text ? Json(*end_of_text) : Json();
    json["torch_dtype"] = "float32";
    json["ridge"] = {{"bias", c.bias}, {"dropout", c.dropout}};
  }
  return json.dump(2) + "\n";
}

StoredGptConfig parse_gpt_config(const std::string& text, const std::string& name) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) fail(ErrorCode::io, "[gpt] {} is not a JSON object", name);
  try {
    return ConfigReader(json, name).read();
  } catch (const Json::exception& e) {  // for example when a message contains invalid UTF-8
    fail(ErrorCode::io, "[gpt] {}: {}", name, e.what());
  }
}

}  // namespace ridge
