#include "data/token_files.h"

#include <glob.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "data/char_tokenizer.h"
#include "data/file_facts.h"
#include "data/pickle.h"
#include "data/text_tokens.h"
#include "io/mapped_file.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGpt2Vocab = 50257, kLlama3Vocab = 128256;
constexpr uintmax_t kLargestMeta = uintmax_t(1) << 24;
constexpr int64_t kHeaderBytes = 256 * 4;

struct Shards {
  std::vector<TokenArray::Shard> train, validation;
  int width = 2;
  int64_t vocab = 0;
  std::string whose;  // the vocabulary's name for messages
  std::shared_ptr<const Tokenizer> tokenizer;
};

int64_t size_of_file(const fs::path& path) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) fail(ErrorCode::io, "[data] {}: {}; check the path and its permissions", path.string(), error.message());
  if (bytes == 0) fail(ErrorCode::io, "[data] {}: the file is empty; create or copy it again", path.string());
  return int64_t(bytes);
}

// How many bytes and characters each token represents; the end of a text represents none.
struct TextOfTokens {
  explicit TextOfTokens(const Tokenizer& tokenizer) {
    for (Token token = 0; token < tokenizer.vocab_size(); ++token) {
      const std::string_view text = token == tokenizer.end_of_text() ? std::string_view() : tokenizer.bytes_of(token);
      bytes.push_back(double(text.size()));
      characters.push_back(double(std::count_if(text.begin(), text.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; })));
    }
  }
  void add(const TokenArray& tokens, double& character_sum, double& byte_sum) const {
    std::vector<int64_t> some(1 << 16);
    for (int64_t at = 0; at < tokens.size(); at += int64_t(some.size())) {
      const auto part = std::span(some).first(size_t(std::min<int64_t>(int64_t(some.size()), tokens.size() - at)));
      tokens.copy(at, part);
      for (int64_t token : part) character_sum += characters[size_t(token)], byte_sum += bytes[size_t(token)];
    }
  }
  std::vector<double> bytes, characters;
};

Dataset open_shards(Shards shards, const DatasetOptions& options) {
  Dataset out;
  if (options.given || options.tokenizer != "auto") {
    const std::shared_ptr<const Tokenizer> asked = ready_tokenizer(options);
    if (!asked && !(shards.tokenizer && shards.tokenizer->name() == options.tokenizer))
      fail(ErrorCode::usage, "[data] {}: these are already tokens, so tokenizer={} has no effect; leave it at auto, or name their tokenizer.json",
           shards.train[0].path, options.tokenizer);
    if (asked && !shards.tokenizer) shards.tokenizer = asked;
  }
  out.tokenizer = shards.tokenizer;
  out.vocab = out.tokenizer ? out.tokenizer->vocab_size() : shards.vocab;

  const fs::path cache = token_cache(options);
  std::string content = "token files 1";
  for (const auto* part : {&shards.train, &shards.validation})
    for (const TokenArray::Shard& shard : *part) {
      const FileFacts facts = facts_of(shard.path, shards.width, shard.offset, cache.empty() ? cache : cache / "known");
      if (facts.largest_token >= out.vocab)
        fail(ErrorCode::io, "[data] {}: token {} is not in {} of {}; name the right tokenizer.json with tokenizer=FILE", shard.path, facts.largest_token,
             out.tokenizer ? "the vocabulary" : shards.whose, out.vocab);
      content += fmt::format(" {} {}", part == &shards.train ? "train" : "validation", facts.checksum);
    }
  out.fingerprint = checksum_of(fmt::format("{} {} {}", content, out.vocab, out.tokenizer ? out.tokenizer->json() : ""));

  out.train = TokenArray(shards.train, shards.width, out.vocab);
  if (shards.validation.empty()) {
    const int64_t train = int64_t(double(out.train.size()) * 0.9);
    out.validation = out.train.part(train, out.train.size() - train);
    out.train = out.train.part(0, train);
  } else {
    out.validation = TokenArray(shards.validation, shards.width, out.vocab);
  }
  if (out.tokenizer) TextOfTokens(*out.tokenizer).add(out.validation, out.validation_characters, out.validation_bytes);
  out.notes.push_back(fmt::format("{} tokens for training, {} for validation{}", out.train.size(), out.validation.size(),
                                  shards.validation.empty() ? " (no file for it, so the last 10 %)" : ""));
  out.notes.push_back(out.tokenizer ? fmt::format("{} tokenizer, {} tokens", out.tokenizer->name(), out.vocab)
                                    : fmt::format("no tokenizer came with them: {} of {} is assumed", shards.whose, out.vocab));
  return out;
}

// Magic and version determine the width of the tokens.
struct LlmcHeader {
  int width;
  int64_t vocab, tokens;
  const char* whose;
};

LlmcHeader read_llmc_header(const std::string& path) {
  int32_t header[256] = {};
  const int64_t bytes = size_of_file(path);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(header), sizeof header);
  if (!file) fail(ErrorCode::io, "[data] {}: {} bytes, but the header of a shard has {}; create or copy it again", path, bytes, kHeaderBytes);
  LlmcHeader out = {};
  if (header[0] == 20240520 && header[1] == 1)
    out = {2, kGpt2Vocab, header[2], "GPT-2's vocabulary"};
  else if (header[0] == 20240801 && header[1] == 7)
    out = {4, kLlama3Vocab, header[2], "Llama 3's vocabulary"};
  else
    fail(ErrorCode::io, "[data] {}: begins with {} {}, but a shard of tokens with 20240520 1 or 20240801 7; is it one of llm.c's?", path, header[0], header[1]);
  if (out.tokens < 1 || kHeaderBytes + out.tokens * out.width != bytes)
    fail(ErrorCode::io, "[data] {}: {} bytes, but {} tokens of {} bytes after a header of {} make {}; it was truncated: create or copy it again", path, bytes,
         out.tokens, out.width, kHeaderBytes, kHeaderBytes + out.tokens * out.width);
  return out;
}

bool named(const std::string& path, std::string_view part) {
  const std::string name = fs::path(path).filename().string();
  return name.find(fmt::format("_{}_", part)) != std::string::npos || name.ends_with(fmt::format("_{}.bin", part));
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_of_meta(const std::string& path) {
  if (uintmax_t(size_of_file(path)) > kLargestMeta) fail(ErrorCode::io, "[data] {}: longer than {}; is it nanoGPT's?", path, size_text(int64_t(kLargestMeta)));
  const MappedFile file(path);
  const Pickle pickle = parse_pickle(file.bytes(), path);
  const PickleValue* const table = pickle.find(pickle.root(), "itos");
  if (!table || table->items.empty())
    fail(ErrorCode::io, "[data] {}: no dictionary 'itos' of characters; nanoGPT's data/shakespeare_char/prepare.py writes one", path);
  std::vector<std::string> characters(table->items.size());
  for (const auto& [key, value] : table->items) {
    const PickleValue &id = pickle.values[key], &text = pickle.values[value];
    if (id.kind != PickleValue::Kind::whole || text.kind != PickleValue::Kind::text || id.whole < 0 || id.whole >= int64_t(characters.size()))
      fail(ErrorCode::io, "[data] {}: 'itos' is not a table from 0 .. {} to characters; create it again", path, characters.size() - 1);
    characters[size_t(id.whole)] = text.text;
  }
  try {
    return std::make_unique<CharTokenizer>(std::move(characters));
  } catch (const Error& error) {
    fail(ErrorCode::io, "[data] {}: {}", path, error.what());
  }
}

bool has_nanogpt_files(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / "train.bin", error);
}

Dataset open_nanogpt_files(const fs::path& folder, const DatasetOptions& options) {
  Shards shards;
  shards.vocab = kGpt2Vocab;
  shards.whose = "GPT-2's vocabulary";
  std::error_code error;
  for (const char* name : {"train.bin", "val.bin"}) {
    const fs::path path = folder / name;
    if (!fs::exists(path, error) && name == std::string_view("val.bin")) continue;
    const int64_t bytes = size_of_file(path);
    if (bytes % 2 != 0) fail(ErrorCode::io, "[data] {}: {} bytes are not a whole number of tokens of 2 bytes; create or copy it again", path.string(), bytes);
    (name == std::string_view("train.bin") ? shards.train : shards.validation).push_back({path.string(), 0, bytes / 2});
  }
  if (fs::exists(folder / "meta.pkl", error))
    shards.tokenizer = tokenizer_of_meta((folder / "meta.pkl").string());
  else if (has_tokenizer(folder))
    shards.tokenizer = load_tokenizer(folder.string());
  return open_shards(std::move(shards), options);
}

std::vector<std::string> find_llmc_shards(const std::string& folder_or_pattern) {
  std::vector<std::string> out;
  std::error_code error;
  if (fs::is_directory(folder_or_pattern, error)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_or_pattern, error)) {
      const std::string path = entry.path().string();
      if (path.ends_with(".bin") && (named(path, "train") || named(path, "val"))) out.push_back(path);
    }
  } else {
    glob_t found = {};
    if (::glob(folder_or_pattern.c_str(), 0, nullptr, &found) == 0) out.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Dataset open_llmc_shards(const std::vector<std::string>& files, const DatasetOptions& options) {
  Shards shards;
  for (const std::string& path : files) {
    const LlmcHeader header = read_llmc_header(path);
    if (shards.vocab != 0 && header.width != shards.width)
      fail(ErrorCode::io, "[data] {}: tokens of {} bytes mixed with others of {}; use shards of one vocabulary", path, header.width, shards.width);
    shards.width = header.width;
    shards.vocab = header.vocab;
    shards.whose = header.whose;
    (named(path, "val") ? shards.validation : shards.train).push_back({path, kHeaderBytes, header.tokens});
  }
  if (shards.train.empty()) fail(ErrorCode::io, "[data] {}: shards for validation only; name those for training too, as with data/name_*.bin", files[0]);
  return open_shards(std::move(shards), options);
}

}  // namespace ridge
