// ridge sample RUN: prints text from a trained GPT as it is generated.
#include <chrono>
#include <cstdio>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "backend/backend.h"
#include "base/error.h"
#include "base/terminal.h"
#include "base/text.h"
#include "data/dataset.h"
#include "data/token_text.h"
#include "measure/default_team.h"
#include "tasks/gpt/sampler.h"
#include "tasks/gpt/task.h"
#include "tasks/gpt/verbs.h"
#include "train/command_settings.h"
#include "train/run_device.h"

namespace ridge {
namespace {

struct SampleArguments {
  std::string model, prompt;
  bool json = false;
};

// An empty prompt means the beginning of a text: after an end-of-text token, or after a newline.
std::vector<Token> prompt_tokens(const Tokenizer& tokenizer, const std::string& prompt) {
  if (!prompt.empty()) {
    try {
      return tokenizer.encode(prompt);
    } catch (const Error& e) {
      fail(ErrorCode::usage, "[sample] the model cannot read the prompt: {}", e.what());
    }
  }
  if (const std::optional<Token> end = tokenizer.end_of_text()) return {*end};
  try {
    return tokenizer.encode("\n");
  } catch (const Error&) {
    return {0};
  }
}

// The model's own tokenizer. One named on the command line must be the same, unless the model has none; settings files may refer to other models.
std::shared_ptr<const Tokenizer> tokenizer_of(const GptWeights& weights, const config::Resolved& settings) {
  const std::string& source = settings.setting("tokenizer").source;
  DatasetOptions options;
  options.given = weights.tokenizer, options.model = weights.folder.string();
  if (!weights.tokenizer || source == "command line" || source.starts_with("environment ")) options.tokenizer = settings.get<std::string>("tokenizer");
  std::shared_ptr<const Tokenizer> tokenizer = model_tokenizer(options);
  if (tokenizer->vocab_size() > weights.config.vocab)
    fail(ErrorCode::io, "[sample] {} has {} tokens, the model knows {}: it was trained with another tokenizer", options.tokenizer, tokenizer->vocab_size(),
         weights.config.vocab);
  return tokenizer;
}

void write_out(const std::string& text) {
  const std::string out = on_terminal() ? printable(text) : text;
  std::fwrite(out.data(), 1, out.size(), stdout);
  std::fflush(stdout);
}

int run_sample(const SampleArguments& arguments, const config::Resolved& settings) {
  note_unused(settings, "sample");
  note_cache();
  request_default_threads(thread_request(settings));
  const GptWeights weights = load_gpt_weights(arguments.model);
  for (const std::string& notice : weights.notices) fmt::print(stderr, "ridge: {}\n", notice);
  const std::shared_ptr<const Tokenizer> tokenizer = tokenizer_of(weights, settings);
  SampleOptions options;
  options.temperature = settings.get<double>("temperature"), options.top_p = settings.get<double>("top_p");
  options.top_k = settings.get<std::optional<int64_t>>("top_k").value_or(0);
  options.seed = uint64_t(settings.get<int64_t>("seed"));
  options.tokens = tokenizer->vocab_size();
  const int64_t count = settings.get<int64_t>("tokens");
  const std::vector<Token> prompt = prompt_tokens(*tokenizer, arguments.prompt);

  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const RunDevice device = choose_reading_device(settings, gpt_reading_work(weights.config, 1), double(count));
  for (const std::string& notice : device.notices) fmt::print(stderr, "ridge: {}\n", notice);
  Backend& backend = *device.backend;
  const DType storage = weight_storage(device.precision);
  const Precision kept = kept_precision(storage, backend, settings.get<std::string>("kv_precision"));
  GptSampler sampler(std::make_shared<GptParameters>(weights, storage, backend), backend, weight_storage(kept));
  if (!backend.host_memory()) {
    sampler.prepare();
    keep_start_time(backend, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  TokenText stream(tokenizer);
  std::string text;
  int64_t made = 0;
  bool ended = false;
  auto put = [&](const std::string& piece) {
    text += piece;
    if (!arguments.json && !piece.empty()) write_out(piece);
  };
  if (!arguments.json) write_out(arguments.prompt);
  Clock::time_point first;
  auto take = [&](Token token) {
    if (made++ == 0) first = Clock::now();
    ended = token == tokenizer->end_of_text();
    if (!ended) put(stream.add(token));
    return !ended;
  };
  try {
    sampler.generate(prompt, count, options, take);
  } catch (const Error& e) {
    if (kept != Precision::fp16 || e.code() != ErrorCode::value) throw;
    fail(ErrorCode::value, "{}; or its keys and values are too large for fp16: try kv_precision=fp32", e.what());
  }
  put(stream.rest());
  const double seconds = std::chrono::duration<double>(Clock::now() - first).count();
  const double rate = made > 1 && seconds > 0 ? double(made - 1) / seconds : 0;  // excludes the time for the prompt
  if (arguments.json) {
    nlohmann::ordered_json j;
    j["model"] = weights.folder.string(), j["prompt"] = arguments.prompt, j["text"] = text;
    j["tokens"] = made, j["ended"] = ended, j["device"] = device.device.value, j["precision"] = device.number_format.value;
    j["kv_precision"] = name(kept);
    if (rate > 0) j["tokens_s"] = rate;
    j["temperature"] = options.temperature, j["top_k"] = options.top_k ? nlohmann::ordered_json(options.top_k) : nlohmann::ordered_json();
    j["top_p"] = options.top_p, j["seed"] = options.seed;
    std::puts(j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    return 0;
  }
  if (text.empty() || text.back() != '\n') std::puts("");
  if (on_terminal()) {
    const std::string speed = rate > 0 ? fmt::format(", {:.0f} a second", rate) : "";
    std::puts(dim(fmt::format("{}{} on {}: {}; weights {}, keys and values {}", counted(made, "token"), speed, device.device.value, device.device.why,
                              device.number_format.value, name(kept)))
                  .c_str());
  }
  return 0;
}

}  // namespace

Verb sample_verb() {
  auto arguments = std::make_shared<SampleArguments>();
  using Kind = Verb::Option::Kind;
  Verb verb{"sample", "write text with a trained GPT"};
  verb.options = {
      {Kind::word, "model", &arguments->model, "a run, a checkpoint, or a folder with a GPT-2 or a Llama (config.json, model.safetensors, tokenizer.json)"},
      {Kind::text, "--prompt", &arguments->prompt, "start of the text; empty: a new text"},
      {Kind::flag, "--json", &arguments->json, "print one JSON document when done"}};
  verb.footer =
      "Settings: tokens=500 temperature=0.8 top_k=K top_p=P seed=N device=auto|cpu|cuda precision=fp32|tf32|bf16|fp16\n"
      "kv_precision=fp32|bf16|fp16 threads=N; see ridge config keys.";
  verb.run = [arguments](const config::Sources& sources) { return run_sample(*arguments, config::resolve(sources)); };
  return verb;
}

}  // namespace ridge
