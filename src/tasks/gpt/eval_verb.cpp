// ridge eval RUN: measures how well a trained GPT predicts a text.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "data/dataset.h"
#include "measure/default_team.h"
#include "tasks/gpt/evaluate.h"
#include "tasks/gpt/task.h"
#include "tasks/gpt/verbs.h"
#include "train/command_settings.h"
#include "train/run_device.h"

namespace ridge {
namespace {

struct EvalArguments {
  std::string model, split = "validation";
  int64_t windows = 0;
  bool json = false;
};

// By default, the data that the run was trained on. An exported model does not record it.
std::vector<std::string> data_of(const config::Resolved& settings, const std::filesystem::path& model) {
  if (const std::vector<std::string> named = named_data(settings); !named.empty()) return named;
  for (const std::filesystem::path& folder : {model, model.parent_path(), model.parent_path().parent_path()}) {
    std::error_code ignored;
    if (folder.empty() || !std::filesystem::exists(folder / "config.yaml", ignored)) continue;
    config::Sources run;
    run.task = config::task_bit(kGptName), run.working_folder.reset(), run.files = {folder / "config.yaml"};
    return config::resolve(run).get<std::vector<std::string>>("data");
  }
  fail(ErrorCode::usage, "[eval] {} does not say what text it was trained on; name one: data=FILE, or data=builtin for the built-in stories", model.string());
}

// The model on the device that reads it, chosen once the amount of text is known.
struct Reader {
  RunDevice device;
  std::unique_ptr<GptParameters> parameters;
};

Reader open_reader(const GptWeights& weights, const config::Resolved& settings, int64_t windows) {
  const GptConfig& c = weights.config;
  const int64_t batch = evaluation_batch(c);
  Reader reader;
  reader.device = choose_reading_device(settings, gpt_reading_work(c, batch * c.block), double(windows) / double(batch));
  for (const std::string& notice : reader.device.notices) fmt::print(stderr, "ridge: {}\n", notice);
  reader.parameters = std::make_unique<GptParameters>(weights, weight_storage(reader.device.precision), *reader.device.backend);
  return reader;
}

nlohmann::ordered_json evaluate_source(const EvalArguments& arguments, const GptWeights& weights, Reader& reader, const std::string& source,
                                       const config::Resolved& settings) {
  const GptConfig& c = weights.config;
  DatasetOptions options;
  options.block = c.block, options.given = weights.tokenizer, options.tokenizer = settings.get<std::string>("tokenizer");
  options.model = weights.folder.string();
  Dataset data = open_dataset(source, options);
  if (data.vocab > c.vocab)
    fail(ErrorCode::io, "[eval] {} has {} different tokens, the model knows {}: it was trained with another tokenizer", data.name, data.vocab, c.vocab);
  if (arguments.split == "train")
    data.validation = data.train, data.window_starts.clear(), data.possible.reset();
  else if (arguments.windows > 0 && data.possible)
    data.possible = possible_loss(data, arguments.windows);
  int64_t count = data.window_starts.empty() ? data.validation.size() / c.block : int64_t(data.window_starts.size());
  count = std::max<int64_t>(1, arguments.windows > 0 ? std::min(arguments.windows, count) : count);
  const auto begin = std::chrono::steady_clock::now();
  const bool first = !reader.parameters;
  if (first) reader = open_reader(weights, settings, count);
  Backend& backend = *reader.device.backend;
  const std::unique_ptr<BatchSource> windows = validation_windows(data, std::min(count, evaluation_batch(c, backend)), c.block, arguments.windows);
  const GptEvaluation e = evaluate_gpt(*reader.parameters, *windows, data.tokenizer.get(), backend);
  if (first) keep_start_time(backend, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() - e.seconds);
  nlohmann::ordered_json j;
  j["model"] = weights.folder.string(), j["device"] = reader.device.device.value, j["precision"] = reader.device.number_format.value;
  j["data"] = data.name, j["split"] = arguments.split;
  j["windows"] = e.windows, j["tokens"] = e.tokens, j["loss"] = e.loss(), j["perplexity"] = std::exp(e.loss());
  if (e.bytes > 0) j["bits_per_byte"] = e.bits_per_byte(), j["nats_per_character"] = e.nats / e.characters;
  if (data.possible) j["possible_nats_per_character"] = *data.possible;
  j["seconds"] = e.seconds, j["tokens_s"] = double(e.tokens) / e.seconds;
  return j;
}

void print_evaluation(const nlohmann::ordered_json& j, int64_t block, const std::string& why) {
  auto number = [&](const char* key) { return j[key].get<double>(); };
  fmt::print("{:<12}{}\n", "model", j["model"].get<std::string>());
  fmt::print("{:<12}{}, {}: {}\n", "device", j["device"].get<std::string>(), j["precision"].get<std::string>(), why);
  fmt::print("{:<12}{}, {}: {} of {} tokens\n", "data", j["data"].get<std::string>(), j["split"].get<std::string>(),
             counted(j["windows"].get<int64_t>(), "window"), block);
  fmt::print("{:<12}{} nats/token\n", "loss", figure_text(number("loss")));
  fmt::print("{:<12}{:.3f}\n", "perplexity", number("perplexity"));
  if (j.contains("bits_per_byte")) {
    fmt::print("{:<12}{} bits/byte\n", "", figure_text(number("bits_per_byte")));
    fmt::print("{:<12}{} nats/character", "", figure_text(number("nats_per_character")));
    if (j.contains("possible_nats_per_character")) fmt::print(", possible {}", figure_text(number("possible_nats_per_character")));
    fmt::print("\n");
  }
  fmt::print("{:<12}{:.2f} s, {:.0f} tokens/s\n", "time", number("seconds"), number("tokens_s"));
}

int run_eval(const EvalArguments& arguments, const config::Resolved& settings) {
  if (arguments.split != "validation" && arguments.split != "train")
    fail(ErrorCode::usage, "[eval] --split {} is not known; valid: validation, train", arguments.split);
  note_unused(settings, "eval");
  note_cache();
  request_default_threads(thread_request(settings));
  const GptWeights weights = load_gpt_weights(arguments.model);
  for (const std::string& notice : weights.notices) fmt::print(stderr, "ridge: {}\n", notice);
  Reader reader;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const std::string& source : data_of(settings, arguments.model)) {
    all.push_back(evaluate_source(arguments, weights, reader, source, settings));
    if (!arguments.json) print_evaluation(all.back(), weights.config.block, reader.device.device.why);
  }
  if (arguments.json) std::puts((all.size() == 1 ? all[0] : all).dump().c_str());
  return 0;
}

}  // namespace

Verb eval_verb() {
  auto arguments = std::make_shared<EvalArguments>();
  using Kind = Verb::Option::Kind;
  Verb verb{"eval", "measure how well a trained GPT predicts a text"};
  verb.options = {{Kind::word, "model", &arguments->model, "a run, a checkpoint, or a folder with a GPT-2 or a Llama (config.json, model.safetensors)"},
                  {Kind::text, "--split", &arguments->split, "validation or train"},
                  {Kind::positive, "--windows", &arguments->windows, "maximum number, spread evenly; default: all"},
                  {Kind::flag, "--json", &arguments->json, "print one JSON document"}};
  verb.footer =
      "Settings: data=FILE|FOLDER|builtin (default for a run: what it was trained on), device=auto|cpu|cuda, precision=fp32|tf32|bf16|fp16, threads=N; see "
      "ridge config "
      "keys.";
  verb.run = [arguments](const config::Sources& sources) { return run_eval(*arguments, config::resolve(sources)); };
  return verb;
}

}  // namespace ridge
