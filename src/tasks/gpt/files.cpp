#include "tasks/gpt/files.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/half.h"
#include "base/nearest.h"
#include "config/words.h"
#include "io/mapped_file.h"
#include "train/experiment.h"
#include "train/model_folder.h"

namespace ridge {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char *kWeightsFile = kExportedFiles[0], *kConfigFile = kExportedFiles[1], *kTokenizerFile = kExportedFiles[2],
                     *kTokenizerConfigFile = kExportedFiles[3];

// ---- names

bool ends_with_any(std::string_view name, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](const char* e) { return name.ends_with(e); });
}

// GPT-2's linear layers hold [in, out].
bool is_linear(std::string_view name) { return ends_with_any(name, {".c_attn.weight", ".c_proj.weight", ".c_fc.weight"}); }

// Buffers that older files store in addition to the weights: masks, rotary frequencies.
bool is_buffer(std::string_view name, GptForm form) {
  return form == GptForm::llama ? name.ends_with(".rotary_emb.inv_freq") : ends_with_any(name, {".attn.bias", ".attn.masked_bias"});
}

std::string_view without_prefix(std::string_view name) {
  constexpr std::string_view kPrefix = "transformer.";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

// A tensor in a file that stores a parameter or some of its rows.
struct StoredTensor {
  std::string name;
  Shape shape;
  bool transposed = false;
  int64_t first = 0;  // offset of its values in the parameter
};

// Llama stores queries, keys and values separately, and also the two halves of the MLP's first layer: each is a range of rows of Ridge's tensor.
std::vector<StoredTensor> llama_tensors(const Parameter& p, const GptConfig& c) {
  const std::string_view name = without_prefix(p.name);
  if (name == "wte.weight") return {{"model.embed_tokens.weight", p.shape}};
  if (name == "ln_f.weight") return {{"model.norm.weight", p.shape}};
  if (name == "lm_head.weight") return {{p.name, p.shape}};
  struct Part {
    const char* name;
    int64_t rows;
  };
  struct Module {
    std::string_view name;
    std::vector<Part> parts;
  };
  const int64_t dim = c.width / c.heads, keys = (c.kv_heads ? c.kv_heads : c.heads) * dim, hidden = gpt_mlp_size(c);
  const Module kModules[] = {{"ln_1", {{"input_layernorm", c.width}}},
                             {"attn.c_attn", {{"self_attn.q_proj", c.width}, {"self_attn.k_proj", keys}, {"self_attn.v_proj", keys}}},
                             {"attn.c_proj", {{"self_attn.o_proj", c.width}}},
                             {"ln_2", {{"post_attention_layernorm", c.width}}},
                             {"mlp.c_fc", {{"mlp.gate_proj", hidden}, {"mlp.up_proj", hidden}}},
                             {"mlp.c_proj", {{"mlp.down_proj", c.width}}}};
  // "h.3.attn.c_attn.weight"
  const size_t layer_end = name.find('.', 2), module_end = name.rfind('.');
  const std::string_view layer = name.substr(2, layer_end - 2), module = name.substr(layer_end + 1, module_end - layer_end - 1), kind = name.substr(module_end);
  const Module* found = std::find_if(std::begin(kModules), std::end(kModules), [&](const Module& m) { return m.name == module; });
  if (found == std::end(kModules)) fail(ErrorCode::internal, "[gpt] Llama's form has no place for {}", p.name);
  std::vector<StoredTensor> out;
  int64_t first = 0;
  for (const Part& part : found->parts) {
    const Shape shape = p.shape.rank() == 2 ? Shape{part.rows, p.shape[1]} : Shape{part.rows};
    out.push_back({fmt::format("model.layers.{}.{}{}", layer, part.name, kind), shape, false, first});
    first += shape.numel();
  }
  return out;
}

std::vector<StoredTensor> stored_tensors(const Parameter& p, const GptConfig& config, GptForm form) {
  if (form == GptForm::llama) return llama_tensors(p, config);
  if (form == GptForm::gpt2 && is_linear(p.name)) return {{p.name, {p.shape[1], p.shape[0]}, true}};
  return {{p.name, p.shape}};
}

// The configuration as stored in a file: no rows beyond the vocabulary, and biases everywhere in GPT-2's form.
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

// Without this file transformers guesses the tokenizer class from the model, and drops the spaces of a character vocabulary.
std::string tokenizer_config_json(const Tokenizer& tokenizer, int64_t block) {
  Json json;
  json["tokenizer_class"] = "PreTrainedTokenizerFast", json["model_max_length"] = block, json["clean_up_tokenization_spaces"] = false;
  if (tokenizer.end_of_text())
    for (const char* key : {"bos_token", "eos_token"}) json[key] = kEndOfText;
  return json.dump(2) + "\n";
}

// Matches every parameter with tensors in the file, and every tensor in the file with a parameter.
void bind(GptWeights& w, GptForm form) {
  const std::string name = (w.folder / kWeightsFile).string();
  std::unordered_map<std::string_view, const SafetensorView*> there;
  for (const SafetensorView& t : w.file.tensors())
    if (!there.emplace(without_prefix(t.name), &t).second) fail(ErrorCode::io, "[gpt] {} has {} twice, with and without \"transformer.\"", name, t.name);
  auto take = [&](const StoredTensor& wanted) -> const SafetensorView& {
    const auto it = there.find(without_prefix(wanted.name));
    if (it == there.end()) fail(ErrorCode::io, "[gpt] {} has no tensor {}; {} has {} layers", name, wanted.name, kConfigFile, w.config.layers);
    const SafetensorView& t = *it->second;
    if (!(t.shape == wanted.shape))
      fail(ErrorCode::io, "[gpt] {}: {} is {}, {} requires {}", name, t.name, to_string(t.shape), kConfigFile, to_string(wanted.shape));
    if (t.dtype != DType::f32 && t.dtype != DType::bf16 && t.dtype != DType::f16)
      fail(ErrorCode::io, "[gpt] {}: {} is {}; Ridge reads weights in f32, bf16 and f16", name, t.name, ridge::name(t.dtype));
    there.erase(it);
    return t;
  };
  for (const Parameter& p : w.parameters()) {
    std::vector<GptWeights::Source>& parts = w.sources.emplace_back();
    for (const StoredTensor& wanted : stored_tensors(p, w.config, form)) parts.push_back({&take(wanted), wanted.transposed, wanted.first});
  }
  // A model without biases in a form that requires them.
  if (form == GptForm::gpt2 && !w.config.bias)
    for (const Parameter& p : gpt_parameters(file_config(w.config, form)))
      if (p.name.ends_with(".bias") && !all_zero(take({p.name, p.shape})))
        fail(ErrorCode::io, "[gpt] {}: {} is not zero, but {} says that the model has no biases", name, p.name, kConfigFile);
  std::erase_if(there, [&](const auto& entry) { return is_buffer(entry.first, form) || (w.config.tied && entry.first == "lm_head.weight"); });
  if (!there.empty()) {
    const auto first = std::min_element(there.begin(), there.end(), [](auto& a, auto& b) { return a.first < b.first; });
    fail(ErrorCode::io, "[gpt] {} has {} tensor{} that {} does not describe: {}{}", name, there.size(), there.size() > 1 ? "s" : "", kConfigFile, first->first,
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
    fail(ErrorCode::io, "[gpt] {} stores its weights in several files; save it as one {}", folder.string(), kWeightsFile);
  const StoredGptConfig read = parse_gpt_config(read_text(folder / kConfigFile), (folder / kConfigFile).string());
  GptWeights w{
      .config = read.config, .tokenizer = nullptr, .folder = folder, .notices = {}, .file = SafetensorsFile((folder / kWeightsFile).string()), .sources = {}};
  bind(w, read.form);
  if (has_tokenizer(folder)) w.tokenizer = checked_tokenizer(load_tokenizer(folder.string()), w.config, folder);
  return w;
}

std::optional<GptWeights> read_run(const fs::path& run) {
  std::vector<std::string> notices;
  const std::optional<StoredCheckpoint> stored = best_or_newest(run, notices);
  if (!stored) return {};
  const auto config = stored->texts.find(kConfigFile);
  const auto tensors = stored->tensors.find(kWeightsFile);
  if (config == stored->texts.end() || tensors == stored->tensors.end())
    fail(ErrorCode::io, "[gpt] {} does not contain a GPT: it lacks {} or {}", stored->folder.string(), kConfigFile, kWeightsFile);
  const StoredGptConfig read = parse_gpt_config(config->second, (stored->folder / kConfigFile).string());
  GptWeights w{.config = read.config, .tokenizer = nullptr, .folder = stored->folder, .notices = std::move(notices), .file = tensors->second, .sources = {}};
  bind(w, read.form);
  if (const auto it = stored->texts.find(kTokenizerFile); it != stored->texts.end())
    w.tokenizer = checked_tokenizer(parse_tokenizer(it->second, (stored->folder / kTokenizerFile).string()), w.config, w.folder);
  return w;
}

}  // namespace

void GptWeights::copy(size_t index, std::span<float> values) const {
  for (const Source& source : sources[index]) {
    const SafetensorView& t = *source.tensor;
    const int64_t n = t.shape.numel();
    if (int64_t(values.size()) < source.first + n)
      fail(ErrorCode::shape, "[gpt] {} has {} values, there is room for {}", t.name, n, int64_t(values.size()) - source.first);
    const std::byte* data = t.data.data();
    float* const to = values.data() + source.first;
    if (!source.transposed) {
      if (t.dtype == DType::f32)
        std::memcpy(to, data, size_t(n) * sizeof(float));
      else
        for (int64_t i = 0; i < n; ++i) to[i] = element(data, t.dtype, i);
      continue;
    }
    // Transpose in square tiles, so that source and target stay in the cache.
    constexpr int64_t kSide = 32;
    const int64_t in = t.shape[0], out = t.shape[1];
    for (int64_t i0 = 0; i0 < in; i0 += kSide)
      for (int64_t o0 = 0; o0 < out; o0 += kSide)
        for (int64_t i = i0; i < std::min(i0 + kSide, in); ++i)
          for (int64_t o = o0; o < std::min(o0 + kSide, out); ++o) to[o * in + i] = element(data, t.dtype, i * out + o);
  }
}

void GptWeights::drop(size_t index) const {
  for (const Source& source : sources[index]) drop_pages(source.tensor->data);
}

GptWeights load_gpt_weights(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) fail(ErrorCode::io, "[gpt] {} does not exist; {}", path.string(), runs_instead_of(path, "gpt"));
  if (!fs::is_directory(path, ignored))
    fail(ErrorCode::io, "[gpt] {} is not a folder; give a run, a checkpoint, or a folder with {} and {}", path.string(), kConfigFile, kWeightsFile);
  if (fs::exists(path / kConfigFile, ignored)) return read_folder(path);
  if (fs::is_directory(path / "checkpoints", ignored)) {
    if (std::optional<GptWeights> w = read_run(path)) return std::move(*w);
    if (fs::exists(path / "model" / kConfigFile, ignored)) return read_folder(path / "model");
    fail(ErrorCode::io, "[gpt] {} has no intact checkpoint; {}", path.string(), runs_instead_of(path, "gpt"));
  }
  if (fs::exists(path / "model" / kConfigFile, ignored)) return read_folder(path / "model");
  fail(ErrorCode::io, "[gpt] {} is neither a run (checkpoints/) nor a model ({}, {}); {}", path.string(), kConfigFile, kWeightsFile,
       runs_instead_of(path, "gpt"));
}

GptForm export_gpt(const fs::path& folder, const GptConfig& config, std::span<const std::span<const float>> parameters, const Tokenizer* tokenizer,
                   std::optional<GptForm> wanted) {
  const GptForm form = wanted.value_or(form_for(config));
  if (const std::vector<std::string> missing = not_in_form(config, form); !missing.empty())
    fail(ErrorCode::usage, "[gpt] {}'s form cannot express {}; leave the form out, and the model is written in one that can",
         form == GptForm::llama ? "Llama" : "GPT-2", config::join(missing, ", "));
  const std::vector<Parameter> own = gpt_parameters(config);
  if (own.size() != parameters.size()) fail(ErrorCode::value, "[gpt] {} parameters given, this configuration has {}", parameters.size(), own.size());
  std::unordered_map<std::string, size_t> index;
  for (size_t i = 0; i < own.size(); ++i) index[own[i].name] = i;
  struct From {
    StoredTensor tensor;
    std::optional<size_t> parameter;  // none: a bias that the model does not have
  };
  std::unordered_map<std::string, From> from;
  std::vector<SafetensorSpec> specs;
  for (const Parameter& p : gpt_parameters(file_config(config, form)))
    for (const StoredTensor& t : stored_tensors(p, config, form)) {
      const auto it = index.find(p.name);
      from[t.name] = {t, it == index.end() ? std::nullopt : std::optional(it->second)};
      specs.push_back({t.name, DType::f32, t.shape});
    }

  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem) fail(ErrorCode::io, "[gpt] {} cannot be created: {}; choose another folder with --out DIR", folder.string(), problem.message());
  SafetensorsWriter writer((folder / kWeightsFile).string(), std::move(specs), {{"format", "pt"}});
  constexpr int64_t kPiece = int64_t(1) << 16;  // values
  std::vector<float> piece;
  for (const SafetensorSpec& spec : writer.order()) {
    const From& source = from.at(spec.name);
    const int64_t n = spec.shape.numel();
    if (!source.parameter) {
      piece.assign(size_t(n), 0);
      writer.write(std::as_bytes(std::span(piece)));
      continue;
    }
    const std::span<const float> values = parameters[*source.parameter];
    if (int64_t(values.size()) < source.tensor.first + n)
      fail(ErrorCode::shape, "[gpt] {} has {} values, {} needs {}", own[*source.parameter].name, values.size(), spec.name, source.tensor.first + n);
    if (!source.tensor.transposed) {
      writer.write(std::as_bytes(values.subspan(size_t(source.tensor.first), size_t(n))));
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
  write_atomically((folder / kConfigFile).string(), gpt_config_json(config, form, end));
  if (tokenizer) {
    save_tokenizer(*tokenizer, (folder / kTokenizerFile).string());
    write_atomically((folder / kTokenizerConfigFile).string(), tokenizer_config_json(*tokenizer, config.block));
  }
  return form;
}

}  // namespace ridge
