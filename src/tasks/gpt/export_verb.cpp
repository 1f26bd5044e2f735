// ridge export RUN: writes a trained GPT as a folder that other programs can load.
#include <algorithm>
#include <fstream>
#include <iterator>

#include <fmt/core.h>

#include "base/error.h"
#include "base/nearest.h"
#include "config/words.h"
#include "tasks/gpt/parameters.h"
#include "tasks/gpt/verbs.h"
#include "train/checkpoint.h"

namespace ridge {
namespace {

constexpr std::string_view kForms[] = {"auto", "gpt2", "llama", "ridge"};

std::optional<GptForm> form_named(const std::string& word) {
  if (word == "auto") return {};
  if (word == "gpt2") return GptForm::gpt2;
  if (word == "llama") return GptForm::llama;
  if (word == "ridge") return GptForm::own;
  fail(ErrorCode::usage, "[export] --form {} is not auto, gpt2, llama or ridge; {}", word, nearest_hint(word, kForms));
}

namespace fs = std::filesystem;

// A checkpoint is also a model folder; overwriting it would make the run impossible to resume. Follows links.
void refuse_checkpoints(const fs::path& out) {
  for (fs::path at = fs::weakly_canonical(fs::absolute(out)); at.has_relative_path(); at = at.parent_path())
    if (at.filename() == "checkpoints" && (fs::exists(at.parent_path() / "config.yaml") || !CheckpointStore(at).steps().empty()))
      fail(ErrorCode::usage, "[export] {} is among the checkpoints of the run {}; choose another folder with --out DIR", out.string(),
           at.parent_path().string());
  if (fs::exists(out / "manifest.json"))
    fail(ErrorCode::usage, "[export] {} is a checkpoint (it contains manifest.json); choose another folder with --out DIR", out.string());
}

// Refuses to overwrite anything except an earlier export of the same model and form. `config`: the new config.json.
void refuse_others(const fs::path& out, const std::string& config) {
  if (!fs::exists(out)) return;
  if (!fs::is_directory(out)) fail(ErrorCode::usage, "[export] {} is not a folder; choose another with --out DIR", out.string());
  if (fs::is_empty(out)) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(out))
    if (const std::string name = entry.path().filename().string();
        std::find(std::begin(kExportedFiles), std::end(kExportedFiles), name) == std::end(kExportedFiles))
      fail(ErrorCode::usage, "[export] {} contains {}, which no export writes; choose an empty folder with --out DIR", out.string(), name);
  std::ifstream in(out / "config.json", std::ios::binary);
  if (std::string(std::istreambuf_iterator<char>(in), {}) != config)
    fail(ErrorCode::usage, "[export] {} contains another model; remove it, or choose an empty folder with --out DIR", out.string());
}

int run_export(const std::string& model, std::string out, const std::string& form_word) {
  const std::optional<GptForm> wanted = form_named(form_word);
  const GptWeights weights = load_gpt_weights(model);
  for (const std::string& notice : weights.notices) fmt::print(stderr, "ridge: {}\n", notice);
  const GptParameters memory(weights);
  std::vector<std::span<const float>> values;
  const std::vector<Parameter> parameters = weights.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) values.emplace_back(static_cast<const float*>(memory.data()[i]), size_t(parameters[i].shape.numel()));
  const bool of_run = out.empty() && fs::is_directory(fs::path(model) / "checkpoints");  // the run's own model/ folder
  if (out.empty()) out = (fs::path(model) / "model").string();
  if (fs::is_directory(fs::path(out) / "checkpoints"))
    fail(ErrorCode::usage, "[export] {0} is a run, and would be read as this model from then on; --out {0}/model keeps both", out);
  refuse_checkpoints(out);
  if (const GptForm next = wanted.value_or(form_for(weights.config)); !of_run && not_in_form(weights.config, next).empty())
    refuse_others(out, gpt_config_json(weights.config, next, weights.tokenizer ? weights.tokenizer->end_of_text() : std::nullopt));
  const GptForm form = export_gpt(out, weights.config, values, weights.tokenizer.get(), wanted);
  if (form != GptForm::own)
    fmt::print("{0} contains the model in {1}'s form: transformers' {2}.from_pretrained(\"{0}\") loads it\n", out, form == GptForm::gpt2 ? "GPT-2" : "Llama",
               form == GptForm::gpt2 ? "GPT2LMHeadModel" : "LlamaForCausalLM");
  else if (wanted)
    fmt::print("{} contains the model in Ridge's own form\n", out);
  else
    fmt::print("{} contains the model in Ridge's own form: GPT-2's cannot express {}, and Llama's cannot express {}\n", out,
               config::join(not_in_form(weights.config, GptForm::gpt2), ", "), config::join(not_in_form(weights.config, GptForm::llama), ", "));
  return 0;
}

}  // namespace

Verb export_verb() {
  struct Arguments {
    std::string model, out, form = "auto";
  };
  auto arguments = std::make_shared<Arguments>();
  using Kind = Verb::Option::Kind;
  Verb verb{"export", "write a trained GPT as safetensors, config.json and tokenizer.json, in Hugging Face's form of GPT-2 or Llama"};
  verb.options = {{Kind::word, "model", &arguments->model, "a run, a checkpoint, or a folder with a GPT-2 or a Llama"},
                  {Kind::text, "--out", &arguments->out, "output folder; default: model in the run's folder"},
                  {Kind::text, "--form", &arguments->form, "gpt2, llama or ridge; auto: the first of them that can express the model"}};
  verb.has_settings = false;
  verb.run = [arguments](const config::Sources&) { return run_export(arguments->model, arguments->out, arguments->form); };
  return verb;
}

}  // namespace ridge
