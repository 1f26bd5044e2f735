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

// The largest known vocabularies take some 35 MB as JSON.
constexpr size_t kLargestFile = size_t(1) << 28;

}  // namespace

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

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
const SpecialTokens& Tokenizer::special() const {
  static const SpecialTokens none;
  return none;
}

  if (!file) fail(ErrorCode::io, "[tokenizer] {}: {}", path, std::strerror(errno));
  std::string text;
  char part[1 << 14];
  while (const size_t got = std::fread(part, 1, sizeof part, file.get())) {
    text.append(part, got);
    if (text.size() > kLargestFile) fail(ErrorCode::io, "[tokenizer] {}: longer than {}; is this a tokenizer.json?", path, size_text(int64_t(kLargestFile)));
  }
  if (std::ferror(file.get())) fail(ErrorCode::io, "[tokenizer] {}: reading failed: {}", path, std::strerror(errno));
  return parse_tokenizer(text, path);
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& path) {
  const std::string text = tokenizer.json();
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace ridge
