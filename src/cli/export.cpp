// ridge export RUN: a trained GPT as a folder that other programs load.
#include <fmt/core.h>

#include "base/error.h"
#include "cli/command.h"
#include "train/gpt_parameters.h"

namespace ridge::cli {
namespace {

int run_export(const std::string& model, std::string out) {
  const GptWeights weights = load_gpt_weights(model);
  for (const std::string& notice : weights.notices) fmt::print(stderr, "ridge: {}\n", notice);
  const GptParameters memory(weights);
  std::vector<std::span<const float>> values;
  const std::vector<Parameter> parameters = weights.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) values.emplace_back(static_cast<const float*>(memory.data()[i]), size_t(parameters[i].shape.numel()));
  if (out.empty()) out = (std::filesystem::path(model) / "model").string();
  if (std::filesystem::is_directory(std::filesystem::path(out) / "checkpoints"))
    fail(ErrorCode::usage, "[export] {0} is a run, and would be read as this model for ever; --out {0}/model keeps both", out);
  const GptForm form = export_gpt(out, weights.config, values, weights.tokenizer.get());
  if (form == GptForm::gpt2)
    fmt::print("{} holds it in GPT-2's form: transformers' GPT2LMHeadModel.from_pretrained(\"{}\") loads it\n", out, out);
  else
    fmt::print("{} holds it in Ridge's own form, as GPT-2 has no such model\n", out);
  return kOk;
}

const Command export_command("export", "write a trained GPT as safetensors, config.json and tokenizer.json", [](Line line) {
  auto model = std::make_shared<std::string>(), out = std::make_shared<std::string>();
  line.word("model", *model, "a run, a checkpoint, or a folder with a GPT-2");
  line.option("--out", *out, "the folder to write; else model in the run's folder");
  return [=] { return run_export(*model, *out); };
});

}  // namespace
}  // namespace ridge::cli
