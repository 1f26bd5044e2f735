// ridge data: `prepare` tokenizes texts of any size once, so that training starts immediately; `batches` writes the batches that a training will see.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "base/terminal.h"
#include "data/dataset.h"
#include "tasks/gpt/task.h"
#include "tasks/gpt/verbs.h"
#include "train/command_settings.h"

namespace ridge {
namespace {

constexpr int64_t kMinVocab = 257, kMaxVocab = 1 << 24;  // always includes all bytes and the end-of-text token

constexpr std::string_view kCommandLine = "command line";  // the name of this source in settings

struct PrepareArguments {
  std::string source, out;
  int64_t vocab = 0;
  bool json = false;
};

// A live line on a terminal, at most ten times a second.
class ProgressLine {
 public:
  ProgressLine() : live_(isatty(STDERR_FILENO) != 0) {}
  ~ProgressLine() { clear(); }
  void clear() const {
    if (live_) fmt::print(stderr, "\r\033[K");
  }
  void operator()(const std::string& what, double done) {
    const auto now = std::chrono::steady_clock::now();
    if (!live_ || now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now;
    fmt::print(stderr, "\r\033[K{} {:3.0f} %", what, 100 * done);
    std::fflush(stderr);
  }

 private:
  bool live_;
  std::chrono::steady_clock::time_point shown_ = {};
};

int64_t bytes_of_tokens(const Dataset& data) {
  const bool shared = data.train.mapped_bytes() == data.validation.mapped_bytes() && data.folder.empty();  // both are parts of the same files
  return data.train.mapped_bytes() + (shared ? 0 : data.validation.mapped_bytes());
}

// Average characters per token over all text of known length; 0: unknown.
double characters_per_token(const Dataset& data) {
  const double tokens = (data.train_characters > 0 ? double(data.train.size()) : 0) + (data.validation_characters > 0 ? double(data.validation.size()) : 0);
  return tokens > 0 ? (data.train_characters + data.validation_characters) / tokens : 0;
}

void print_dataset_json(const Dataset& data, const std::string& source, double seconds) {
  const nlohmann::ordered_json out = {{"source", source},
                                      {"folder", data.folder.string()},
                                      {"cached", data.cached},
                                      {"tokenizer", data.tokenizer ? std::string(data.tokenizer->name()) : ""},
                                      {"vocab", data.vocab},
                                      {"train_tokens", data.train.size()},
                                      {"validation_tokens", data.validation.size()},
                                      {"characters", std::llround(data.train_characters + data.validation_characters)},
                                      {"text_bytes", std::llround(data.train_bytes + data.validation_bytes)},
                                      {"token_bytes", bytes_of_tokens(data)},
                                      {"characters_per_token", characters_per_token(data)},
                                      {"fingerprint", data.fingerprint},
                                      {"seconds", seconds},
                                      {"notes", data.notes}};
  fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void print_dataset(const Dataset& data, const std::string& use, double seconds) {
  const int width = terminal_width();
  fmt::print("{}\n", bold(data.name));
  for (const std::string& note : data.notes) fmt::print("  {}\n", wrap(note, width - 2, 2));
  fmt::print("  {} training and {} validation tokens, {}", data.train.size(), data.validation.size(), size_text(bytes_of_tokens(data)));
  if (const double each = characters_per_token(data); each > 0) fmt::print("; {:.2f} characters a token", each);
  fmt::print("\n  {} {:.2f} s\n", data.cached ? "nothing to do, it was already there:" : "done in", seconds);
  fmt::print("Train on it with {}\n", bold("ridge train gpt data=" + use));
}

// vocab=N is not a key, because training does not need it, but this command accepts it in the same form.
int64_t take_vocab(std::vector<std::string>& words, int64_t otherwise) {
  constexpr std::string_view kName = "vocab=";
  const auto found = std::find_if(words.begin(), words.end(), [&](const std::string& word) { return word.starts_with(kName); });
  if (found == words.end()) return otherwise;
  const std::string_view digits = std::string_view(*found).substr(kName.size());
  int64_t vocab = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), vocab);
  if (error != std::errc() || end != digits.data() + digits.size() || vocab < kMinVocab || vocab > kMaxVocab)
    fail(ErrorCode::usage, "[data] {}: a vocabulary has {} to {} tokens", *found, kMinVocab, kMaxVocab);
  words.erase(found);
  return vocab;
}

int prepare(PrepareArguments arguments, config::Sources sources) {
  arguments.vocab = take_vocab(sources.words, arguments.vocab);
  const config::Resolved settings = config::resolve(sources);
  note_cache();
  if (settings.setting("out").source == kCommandLine) arguments.out = settings.get<std::string>("out");
  DatasetOptions options;
  options.tokenizer = settings.get<std::string>("tokenizer");
  if (arguments.vocab > 0 && options.tokenizer != "bpe")
    fail(ErrorCode::usage, "[data] --vocab is for tokenizer=bpe, and the tokenizer is {}", options.tokenizer);
  options.vocab = arguments.vocab, options.memory = host_memory(settings);
  // For texts, a preset's block is ignored; for the built-in data it determines the stories.
  if (arguments.source == "builtin" || settings.setting("block").source == kCommandLine)
    options.block = settings.get<std::optional<int64_t>>("block").value_or(0);
  // Training uses the same stories for every seed; other stories can only be found by their folder.
  if (arguments.source == "builtin" && settings.setting("seed").source == kCommandLine) {
    if (arguments.out.empty()) fail(ErrorCode::usage, "[data] other stories with seed={} need a folder: add --out FOLDER", settings.get<int64_t>("seed"));
    options.seed = uint64_t(settings.get<int64_t>("seed"));
  }
  ProgressLine line;
  options.progress = [&](const std::string& what, double done) { line(what, done); };
  const auto begin = std::chrono::steady_clock::now();
  const Dataset data = arguments.out.empty() ? open_dataset(arguments.source, options) : prepare_dataset(arguments.source, arguments.out, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  line.clear();
  // Cached tokens are looked up by text and tokenizer.
  const std::string asked = options.tokenizer == "auto" ? "" : " tokenizer=" + options.tokenizer;
  if (arguments.json)
    print_dataset_json(data, arguments.source, seconds);
  else
    print_dataset(data, arguments.out.empty() ? arguments.source + asked : arguments.out, seconds);
  return 0;
}

struct BatchArguments {
  std::string source, out;
  int64_t batches = 1;
};

// Writes a training's batches in order, so that other programs can train on the same data: i32, for each batch its tokens, then its targets.
int write_batches(const BatchArguments& arguments, const config::Sources& sources) {
  if (arguments.out.empty()) fail(ErrorCode::usage, "[data] --out is missing: ridge data batches SOURCE --out FILE --batches N");
  const config::Resolved settings = config::resolve(sources);
  DatasetOptions options;
  options.tokenizer = settings.get<std::string>("tokenizer"), options.block = required_size(settings, "block");
  options.memory = host_memory(settings);
  const Dataset data = open_dataset(arguments.source, options);
  const int64_t batch = required_size(settings, "batch");
  const std::unique_ptr<BatchSource> windows = training_windows(data, batch, options.block, uint64_t(settings.get<int64_t>("seed")));
  std::ofstream file(arguments.out, std::ios::binary);
  checked_product("data", "bytes of a batch", {{"batch", batch}, {"block", options.block}, {"", 16}});
  checked_product("data", "tokens", {{"batches", arguments.batches}, {"batch", batch}, {"block", options.block}});
  std::vector<int64_t> tokens(size_t(batch * options.block)), targets(tokens.size());
  std::byte* const places[] = {reinterpret_cast<std::byte*>(tokens.data()), reinterpret_cast<std::byte*>(targets.data())};
  std::vector<int32_t> narrow;
  for (int64_t i = 0; i < arguments.batches; ++i) {
    windows->fill(i, places);
    narrow.assign(tokens.begin(), tokens.end());
    narrow.insert(narrow.end(), targets.begin(), targets.end());
    file.write(reinterpret_cast<const char*>(narrow.data()), std::streamsize(narrow.size() * sizeof(int32_t)));
  }
  if (!file.flush()) fail(ErrorCode::io, "[data] {} cannot be written", arguments.out);
  fmt::print("{} batch{} of {} x {} tokens in {}\n", arguments.batches, arguments.batches == 1 ? "" : "es", batch, options.block, arguments.out);
  return 0;
}

}  // namespace

Verb data_verb() {
  using Kind = Verb::Option::Kind;
  auto arguments = std::make_shared<PrepareArguments>();
  Verb prepare_verb{"prepare", "ridge data prepare SOURCE [tokenizer=auto|char|byte|bpe|FILE] [--vocab N] [--out FOLDER]"};
  prepare_verb.options = {
      {Kind::word, "source", &arguments->source, "a text file, a folder of text files, or builtin"},
      {Kind::text, "--out", &arguments->out, "new folder for the tokens, to be used as data=FOLDER; default: the cache"},
      {Kind::range, "--vocab", &arguments->vocab, "size of the bpe vocabulary to learn; default: depends on the size of the text", kMinVocab, kMaxVocab},
      {Kind::flag, "--json", &arguments->json, "print one JSON document"}};
  prepare_verb.run = [arguments](const config::Sources& sources) { return prepare(*arguments, sources); };

  auto batches = std::make_shared<BatchArguments>();
  Verb batches_verb{"batches", "ridge data batches SOURCE --out FILE [--batches N] preset=… batch=… seed=…: the batches that a training run will see"};
  batches_verb.options = {{Kind::word, "source", &batches->source, "a data source, as for data="},
                          {Kind::text, "--out", &batches->out, "output file: i32, for each batch its tokens, then its targets"},
                          {Kind::positive, "--batches", &batches->batches, "number of batches, starting with the first"}};
  batches_verb.run = [batches](const config::Sources& sources) { return write_batches(*batches, sources); };

  Verb verb{"data", "tokenize texts once, for many training runs"};
  verb.below = {prepare_verb, batches_verb}, verb.example = "ridge data prepare SOURCE";
  return verb;
}

}  // namespace ridge
