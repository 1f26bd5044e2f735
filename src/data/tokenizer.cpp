#include "data/tokenizer.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "data/special_tokens.h"
#include "io/atomic_file.h"

namespace ridge {
namespace {

// The largest known vocabularies take about 35 MB as JSON.
constexpr size_t kLargestFile = size_t(1) << 28;
constexpr const char *kFile = "tokenizer.json", *kVocab = "vocab.json", *kMerges = "merges.txt";

std::string read_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) fail(ErrorCode::io, "[tokenizer] {}: {}", path, std::strerror(errno));
  std::string text;
  char part[1 << 14];
  while (const size_t got = std::fread(part, 1, sizeof part, file.get())) {
    text.append(part, got);
    if (text.size() > kLargestFile) fail(ErrorCode::io, "[tokenizer] {}: longer than {}; is it a tokenizer's?", path, size_text(int64_t(kLargestFile)));
  }
  if (std::ferror(file.get())) fail(ErrorCode::io, "[tokenizer] {}: reading failed: {}", path, std::strerror(errno));
  return text;
}

}  // namespace

const SpecialTokens& Tokenizer::special() const {
  static const SpecialTokens none;
  return none;
}

std::vector<Token> Tokenizer::encode(std::string_view text) const {
  std::vector<Token> out;
  encode_to(out, text);
  return out;
}

std::string Tokenizer::decode(std::span<const Token> tokens) const {
  std::string out;
  for (Token token : tokens) out += bytes_of(token);
  return out;
}

bool has_tokenizer(const std::filesystem::path& folder) {
  std::error_code ignored;
  const auto there = [&](const char* name) { return std::filesystem::exists(folder / name, ignored); };
  return there(kFile) || (there(kVocab) && there(kMerges));
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path given = path;
  if (std::filesystem::is_directory(given, ignored)) {
    if (!has_tokenizer(given)) fail(ErrorCode::io, "[tokenizer] {}: neither {} nor {} with {} is in this folder", path, kFile, kVocab, kMerges);
    return load_tokenizer((given / (std::filesystem::exists(given / kFile, ignored) ? kFile : kVocab)).string());
  }
  // Both files share the prefix before these names: gpt2-vocab.json, gpt2-merges.txt.
  for (const std::string_view name : {kVocab, kMerges})
    if (path.ends_with(name)) {
      const std::string front = path.substr(0, path.size() - name.size()), vocab = front + kVocab, merges = front + kMerges;
      return parse_vocab_and_merges(read_file(vocab), read_file(merges), vocab, merges);
    }
  return parse_tokenizer(read_file(path), path);
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& path) {
  const std::string text = tokenizer.json();
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace ridge
