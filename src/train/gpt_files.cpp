#include "train/gpt_files.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/half.h"
#include "base/nearest.h"
#include "train/checkpoint.h"
#include "train/experiment.h"

namespace ridge {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr double kEpsilon = 1e-5;  // of all norms
constexpr const char *kWeightsFile = "model.safetensors", *kConfigFile = "config.json", *kTokenizerFile = "tokenizer.json";
constexpr const char *kOwnType = "ridge_gpt", *kGpt2Type = "gpt2";

// ---- config.json

const Json& member(const Json& json, const char* key, const std::string& name) {
  const auto it = json.find(key);
  if (it == json.end()) fail(ErrorCode::io, "[gpt] {} has no \"{}\"; is it the config.json of a GPT-2?", name, key);
  return *it;
}

int64_t size_member(const Json& json, const char* key, const std::string& name) {
  const Json& value = member(json, key, name);
  constexpr int64_t kMost = int64_t(1) << 31;
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kMost)
    fail(ErrorCode::io, "[gpt] {}: \"{}\" is {}, which is no size", name, key, value.dump());
  return value.get<int64_t>();
}

bool bool_member(const Json& json, const char* key, bool otherwise, const std::string& name) {
  const auto it = json.find(key);
  if (it == json.end() || it->is_null()) return otherwise;
  if (!it->is_boolean()) fail(ErrorCode::io, "[gpt] {}: \"{}\" is {}, which is neither true nor false", name, key, it->dump());
  return it->get<bool>();
}

std::string word_member(const Json& json, const char* key, const char* otherwise, const std::string& name) {
  const auto it = json.find(key);
  if (it == json.end() || it->is_null()) return otherwise;
  if (!it->is_string()) fail(ErrorCode::io, "[gpt] {}: \"{}\" is {}, which is no word", name, key, it->dump());
  return it->get<std::string>();
}

// Whether `key` has the second of two words.
bool second_of(const Json& json, const char* key, const char* first, const char* second, const std::string& name) {
  const std::string word = word_member(json, key, first, name);
  if (word != first && word != second) fail(ErrorCode::unsupported, "[gpt] {}: {} is {}; Ridge has {} and {}", name, key, word, first, second);
  return word == second;
}

// What GPT-2's form can ask for and Ridge's GPT does not do.
void check_gpt2(const Json& json, const std::string& name) {
  const std::string activation = word_member(json, "activation_function", "gelu_new", name);
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh")
    fail(ErrorCode::unsupported, "[gpt] {}: activation_function is {}; Ridge has gelu_new", name, activation);
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    if (bool_member(json, key, false, name)) fail(ErrorCode::unsupported, "[gpt] {}: {} is true, which Ridge's GPT does not do", name, key);
  if (!bool_member(json, "scale_attn_weights", true, name))
    fail(ErrorCode::unsupported, "[gpt] {}: scale_attn_weights is false, which Ridge's GPT does not do", name);
  if (const auto it = json.find("layer_norm_epsilon"); it != json.end() && (!it->is_number() || std::abs(it->get<double>() - kEpsilon) > 1e-9))
    fail(ErrorCode::unsupported, "[gpt] {}: layer_norm_epsilon is {}; Ridge has {}", name, it->dump(), kEpsilon);
}

struct ReadConfig {
  GptConfig config;
  GptForm form;
};

ReadConfig read_config(const std::string& text, const std::string& name) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) fail(ErrorCode::io, "[gpt] {} is not a JSON object", name);
  const std::string type = word_member(json, "model_type", "", name);
  if (type != kOwnType && type != kGpt2Type)
    fail(ErrorCode::unsupported, "[gpt] {}: model_type is {}; Ridge reads {} and {}", name, type.empty() ? "missing" : type, kGpt2Type, kOwnType);
  ReadConfig out{{}, type == kGpt2Type ? GptForm::gpt2 : GptForm::own};
  GptConfig& c = out.config;
  c.layers = size_member(json, "n_layer", name), c.heads = size_member(json, "n_head", name), c.width = size_member(json, "n_embd", name);
  constexpr int64_t kMostLayers = 65536;
  if (c.layers > kMostLayers) fail(ErrorCode::io, "[gpt] {}: \"n_layer\" is {}; Ridge reads up to {}", name, c.layers, kMostLayers);
  c.vocab = size_member(json, "vocab_size", name), c.block = size_member(json, "n_positions", name);
  if (const auto it = json.find("n_inner"); it != json.end() && !it->is_null()) c.hidden = size_member(json, "n_inner", name);
  c.tied = bool_member(json, "tie_word_embeddings", true, name);
  const auto own = json.find("ridge");
  c.bias = out.form == GptForm::gpt2;
  if (own != json.end() && own->is_object()) {
    c.bias = bool_member(*own, "bias", c.bias, name);
    if (own->contains("dropout") && (*own)["dropout"].is_number()) c.dropout = (*own)["dropout"].get<double>();
  }
  if (out.form == GptForm::gpt2) {
    check_gpt2(json, name);
  } else {
    const Json& options = member(json, "ridge", name);
    if (second_of(options, "norm", "layer", "rms", name)) c.norm = GptConfig::Norm::rms;
    if (second_of(options, "pos", "learned", "rope", name)) c.position = GptConfig::Position::rope;
    if (second_of(options, "mlp", "gelu", "swiglu", name)) c.mlp = GptConfig::Mlp::swiglu;
    c.kv_heads = size_member(options, "kv_heads", name);
  }
  try {
    gpt_parameters(c);
  } catch (const Error& e) {
    fail(ErrorCode::io, "[gpt] {} describes no model: {}", name, e.what());
  }
  return out;
}

// ---- names

bool ends_with_any(std::string_view name, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](const char* e) { return name.ends_with(e); });
}

// GPT-2's linear layers hold [in, out].
bool is_linear(std::string_view name) { return ends_with_any(name, {".c_attn.weight", ".c_proj.weight", ".c_fc.weight"}); }

// Masks that older files keep beside the weights.
bool is_buffer(std::string_view name) { return ends_with_any(name, {".attn.bias", ".attn.masked_bias"}); }

std::string_view without_prefix(std::string_view name) {
  constexpr std::string_view kPrefix = "transformer.";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

Shape stored_shape(const Parameter& p, GptForm form) { return form == GptForm::gpt2 && is_linear(p.name) ? Shape{p.shape[1], p.shape[0]} : p.shape; }

// The configuration of what a file holds: no rows beyond the vocabulary, and GPT-2's form has biases everywhere.
GptConfig file_config(GptConfig config, GptForm form) {
  config.padded_vocab = 0;
  if (form == GptForm::gpt2) config.bias = true;
  return config;
}

float element(const std::byte* data, DType type, int64_t index) {
  if (type == DType::f32) {
    float x;
    std::memcpy(&x, data + index * 4, 4);
    return x;
  }
  uint16_t x;
  std::memcpy(&x, data + index * 2, 2);
  return type == DType::bf16 ? bf16_to_f32(x) : f16_to_f32(x);
}

bool all_zero(const SafetensorView& t) {
  for (int64_t i = 0; i < t.shape.numel(); ++i)
    if (element(t.data.data(), t.dtype, i) != 0) return false;
  return true;
}

// ---- reading

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  if (!in) fail(ErrorCode::io, "[gpt] {} cannot be read", path.string());
  return text;
}

// Finds every parameter in the file, and for everything in the file a parameter.
void bind(GptWeights& w, GptForm form) {
  const std::string name = (w.folder / kWeightsFile).string();
  std::unordered_map<std::string_view, const SafetensorView*> there;
  for (const SafetensorView& t : w.file.tensors())
    if (!there.emplace(without_prefix(t.name), &t).second) fail(ErrorCode::io, "[gpt] {} has {} twice, with and without \"transformer.\"", name, t.name);
  auto take = [&](const Parameter& p) -> const SafetensorView& {
    const auto it = there.find(without_prefix(p.name));
    if (it == there.end()) fail(ErrorCode::io, "[gpt] {} has no tensor {}; {} has {} layers", name, p.name, kConfigFile, w.config.layers);
    const SafetensorView& t = *it->second;
    const Shape wanted = stored_shape(p, form);
    if (!(t.shape == wanted)) fail(ErrorCode::io, "[gpt] {}: {} is {}, {} asks for {}", name, t.name, to_string(t.shape), kConfigFile, to_string(wanted));
    if (t.dtype != DType::f32 && t.dtype != DType::bf16 && t.dtype != DType::f16)
      fail(ErrorCode::unsupported, "[gpt] {}: {} is {}; Ridge reads weights in f32, bf16 and f16", name, t.name, ridge::name(t.dtype));
    there.erase(it);
    return t;
  };
  for (const Parameter& p : w.parameters()) w.sources.push_back({&take(p), form == GptForm::gpt2 && is_linear(p.name)});
  // A model without biases in a form that has them.
  if (form == GptForm::gpt2 && !w.config.bias)
    for (const Parameter& p : gpt_parameters(file_config(w.config, form)))
      if (p.name.ends_with(".bias") && !all_zero(take(p)))
        fail(ErrorCode::io, "[gpt] {}: {} is not zero, but {} says that the model has no biases", name, p.name, kConfigFile);
  std::erase_if(there, [&](const auto& entry) { return is_buffer(entry.first) || (w.config.tied && entry.first == "lm_head.weight"); });
  if (!there.empty()) {
    const auto first = std::min_element(there.begin(), there.end(), [](auto& a, auto& b) { return a.first < b.first; });
    fail(ErrorCode::io, "[gpt] {} has {} tensor{} that {} does not ask for: {}{}", name, there.size(), there.size() > 1 ? "s" : "", kConfigFile, first->first,
         there.size() > 1 ? ", …" : "");
  }
}

std::shared_ptr<const Tokenizer> checked_tokenizer(std::unique_ptr<Tokenizer> tokenizer, const GptConfig& config, const fs::path& folder) {
  if (tokenizer->vocab_size() > config.vocab)
    fail(ErrorCode::io, "[gpt] {}: the tokenizer has {} tokens, the model only {}", folder.string(), tokenizer->vocab_size(), config.vocab);
  return tokenizer;
}

GptWeights read_folder(const fs::path& folder) {
  if (!fs::exists(folder / kWeightsFile) && fs::exists(folder / "model.safetensors.index.json"))
    fail(ErrorCode::unsupported, "[gpt] {} holds its weights in several files; save it as one {}", folder.string(), kWeightsFile);
  const ReadConfig read = read_config(read_text(folder / kConfigFile), (folder / kConfigFile).string());
  GptWeights w{
      .config = read.config, .tokenizer = nullptr, .folder = folder, .notices = {}, .file = SafetensorsFile((folder / kWeightsFile).string()), .sources = {}};
  bind(w, read.form);
  if (fs::exists(folder / kTokenizerFile)) w.tokenizer = checked_tokenizer(load_tokenizer((folder / kTokenizerFile).string()), w.config, folder);
  return w;
}

std::optional<GptWeights> read_run(const fs::path& run) {
  const CheckpointStore store(run / "checkpoints");
  std::vector<std::string> notices;
  std::optional<StoredCheckpoint> stored = store.best(notices);
  if (!stored) {
    std::vector<std::string> newest;
    stored = store.newest(newest);
    for (std::string& notice : newest)
      if (std::find(notices.begin(), notices.end(), notice) == notices.end()) notices.push_back(std::move(notice));
  }
  if (!stored) return {};
  const auto config = stored->texts.find(kConfigFile);
  const auto tensors = stored->tensors.find(kWeightsFile);
  if (config == stored->texts.end() || tensors == stored->tensors.end())
    fail(ErrorCode::io, "[gpt] {} holds no GPT: it lacks {} or {}", stored->folder.string(), kConfigFile, kWeightsFile);
  const ReadConfig read = read_config(config->second, (stored->folder / kConfigFile).string());
  GptWeights w{.config = read.config, .tokenizer = nullptr, .folder = stored->folder, .notices = std::move(notices), .file = tensors->second, .sources = {}};
  bind(w, read.form);
  if (const auto it = stored->texts.find(kTokenizerFile); it != stored->texts.end())
    w.tokenizer = checked_tokenizer(parse_tokenizer(it->second, (stored->folder / kTokenizerFile).string()), w.config, w.folder);
  return w;
}

// Runs that can be read: below this folder, beside it, or where new ones are made; the nearest by name first.
std::string runs_instead_of(fs::path path) {
  path = path.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // a "/" at its end
  constexpr size_t kNamed = 3;
  std::vector<std::string> runs;
  std::error_code ignored;
  for (const fs::path& folder : {path, path.has_parent_path() ? path.parent_path() : fs::path("."), fs::path("runs")}) {
    auto look = [&](const fs::path& run) {
      const std::string name = run.lexically_normal().string();
      if (run != path && fs::is_directory(run / "checkpoints", ignored) && std::find(runs.begin(), runs.end(), name) == runs.end()) runs.push_back(name);
    };
    if (!fs::is_directory(folder, ignored)) continue;
    if (folder != ".") look(folder);
    for (auto entry = fs::directory_iterator(folder, ignored); entry != fs::directory_iterator(); entry.increment(ignored)) look(entry->path());
    if (folder == path)  // an experiment has data sets, and they have seeds
      for (const fs::path& run : find_runs(path)) look(run);
    if (folder == path && !runs.empty()) break;
  }
  if (runs.empty()) return fs::exists(path, ignored) ? "ridge train gpt makes a run" : fmt::format("ridge train gpt --out {} makes a run there", path.string());
  auto distance = [&](const std::string& run) { return edit_distance(fs::path(run).filename().string(), path.filename().string()); };
  std::sort(runs.begin(), runs.end());
  std::stable_sort(runs.begin(), runs.end(), [&](const std::string& a, const std::string& b) { return distance(a) < distance(b); });
  std::string text = runs.size() == 1 ? "there is " : "there are ";
  for (size_t i = 0; i < std::min(runs.size(), kNamed); ++i) text += (i == 0 ? "" : ", ") + runs[i];
  if (runs.size() > kNamed) text += fmt::format(" and {} more", runs.size() - kNamed);
  return text;
}

}  // namespace

bool fits_gpt2(const GptConfig& c) {
  return c.norm == GptConfig::Norm::layer && c.position == GptConfig::Position::learned && c.mlp == GptConfig::Mlp::gelu &&
         (c.kv_heads == 0 || c.kv_heads == c.heads);
}

std::string gpt_config_json(const GptConfig& c, GptForm form, std::optional<Token> end_of_text) {
  Json json;
  if (form == GptForm::gpt2) {
    json["architectures"] = {"GPT2LMHeadModel"}, json["model_type"] = kGpt2Type;
    json["activation_function"] = "gelu_new", json["layer_norm_epsilon"] = kEpsilon;
    for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) json[key] = c.dropout;
  } else {
    json["model_type"] = kOwnType;
  }
  json["n_layer"] = c.layers, json["n_head"] = c.heads, json["n_embd"] = c.width, json["n_positions"] = c.block, json["vocab_size"] = c.vocab;
  json["n_inner"] = c.hidden ? Json(c.hidden) : Json();
  json["tie_word_embeddings"] = c.tied;
  if (form == GptForm::gpt2) {
    for (const char* key : {"bos_token_id", "eos_token_id"}) json[key] = end_of_text ? Json(*end_of_text) : Json();
    json["torch_dtype"] = "float32";
  }
  Json& own = json["ridge"];
  own["bias"] = c.bias, own["dropout"] = c.dropout;
  if (form == GptForm::own) {
    own["norm"] = c.norm == GptConfig::Norm::rms ? "rms" : "layer";
    own["pos"] = c.position == GptConfig::Position::rope ? "rope" : "learned";
    own["mlp"] = c.mlp == GptConfig::Mlp::swiglu ? "swiglu" : "gelu";
    own["kv_heads"] = c.kv_heads;
    own["note"] = "linear weights are [out, in]; GELU is the tanh form; ridge export writes GPT-2's form where it can express the model";
  }
  return json.dump(2) + "\n";
}

void GptWeights::copy(size_t index, std::span<float> values) const {
  const SafetensorView& t = *sources[index].tensor;
  const int64_t n = t.shape.numel();
  if (int64_t(values.size()) < n) fail(ErrorCode::shape, "[gpt] {} has {} values, there is room for {}", t.name, n, values.size());
  const std::byte* data = t.data.data();
  if (!sources[index].transposed) {
    if (t.dtype == DType::f32)
      std::memcpy(values.data(), data, size_t(n) * sizeof(float));
    else
      for (int64_t i = 0; i < n; ++i) values[size_t(i)] = element(data, t.dtype, i);
    return;
  }
  // Squares of both stay in the cache.
  constexpr int64_t kSide = 32;
  const int64_t in = t.shape[0], out = t.shape[1];
  for (int64_t i0 = 0; i0 < in; i0 += kSide)
    for (int64_t o0 = 0; o0 < out; o0 += kSide)
      for (int64_t i = i0; i < std::min(i0 + kSide, in); ++i)
        for (int64_t o = o0; o < std::min(o0 + kSide, out); ++o) values[size_t(o * in + i)] = element(data, t.dtype, i * out + o);
}

GptWeights load_gpt_weights(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) fail(ErrorCode::io, "[gpt] {} does not exist; {}", path.string(), runs_instead_of(path));
  if (!fs::is_directory(path, ignored))
    fail(ErrorCode::io, "[gpt] {} is no folder; give a run, a checkpoint, or a folder with {} and {}", path.string(), kConfigFile, kWeightsFile);
  if (fs::exists(path / kConfigFile, ignored)) return read_folder(path);
  if (fs::is_directory(path / "checkpoints", ignored)) {
    if (std::optional<GptWeights> w = read_run(path)) return std::move(*w);
    if (fs::exists(path / "model" / kConfigFile, ignored)) return read_folder(path / "model");
    fail(ErrorCode::io, "[gpt] {} has no checkpoint that is whole; {}", path.string(), runs_instead_of(path));
  }
  if (fs::exists(path / "model" / kConfigFile, ignored)) return read_folder(path / "model");
  fail(ErrorCode::io, "[gpt] {} is neither a run (checkpoints/) nor a model ({}, {}); {}", path.string(), kConfigFile, kWeightsFile, runs_instead_of(path));
}

GptForm export_gpt(const fs::path& folder, const GptConfig& config, std::span<const std::span<const float>> parameters, const Tokenizer* tokenizer) {
  const GptForm form = fits_gpt2(config) ? GptForm::gpt2 : GptForm::own;
  const std::vector<Parameter> own = gpt_parameters(config);
  if (own.size() != parameters.size()) fail(ErrorCode::value, "[gpt] {} parameters given, this configuration has {}", parameters.size(), own.size());
  std::unordered_map<std::string, size_t> index;
  for (size_t i = 0; i < own.size(); ++i) index[own[i].name] = i;
  std::vector<SafetensorSpec> specs;
  for (const Parameter& p : gpt_parameters(file_config(config, form))) specs.push_back({p.name, DType::f32, stored_shape(p, form)});

  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem) fail(ErrorCode::io, "[gpt] {} cannot be made: {}; choose another folder with --out DIR", folder.string(), problem.message());
  SafetensorsWriter writer((folder / kWeightsFile).string(), std::move(specs), {{"format", "pt"}});
  constexpr int64_t kPiece = int64_t(1) << 16;  // values
  std::vector<float> piece;
  for (const SafetensorSpec& spec : writer.order()) {
    const auto it = index.find(spec.name);
    const int64_t n = spec.shape.numel();
    if (it == index.end()) {  // a bias that the model does not have
      piece.assign(size_t(n), 0);
      writer.write(std::as_bytes(std::span(piece)));
      continue;
    }
    const std::span<const float> values = parameters[it->second];
    if (int64_t(values.size()) < n) fail(ErrorCode::shape, "[gpt] {} has {} values, its shape is {}", spec.name, values.size(), to_string(spec.shape));
    if (form != GptForm::gpt2 || !is_linear(spec.name)) {
      writer.write(std::as_bytes(values.first(size_t(n))));
      continue;
    }
    const int64_t in = spec.shape[0], out = spec.shape[1], rows = std::max<int64_t>(1, kPiece / std::max<int64_t>(out, 1));
    for (int64_t i0 = 0; i0 < in; i0 += rows) {
      const int64_t count = std::min(rows, in - i0);
      piece.resize(size_t(count * out));
      for (int64_t o = 0; o < out; ++o)
        for (int64_t i = 0; i < count; ++i) piece[size_t(i * out + o)] = values[size_t(o * in + i0 + i)];
      writer.write(std::as_bytes(std::span(piece)));
    }
  }
  writer.commit();
  const std::optional<Token> end = tokenizer ? tokenizer->end_of_text() : std::nullopt;
  AtomicFile file((folder / kConfigFile).string());
  const std::string text = gpt_config_json(config, form, end);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
  if (tokenizer) save_tokenizer(*tokenizer, (folder / kTokenizerFile).string());
  return form;
}

}  // namespace ridge
