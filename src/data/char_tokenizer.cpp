#include "data/char_tokenizer.h"

#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer_file.h"

namespace ridge {
namespace {

CodePoint character_at(std::string_view text, size_t at) {
  const CodePoint point = code_point_at(text, at);
  if (point.value == kNotUtf8)
    fail(ErrorCode::value, "[tokenizer] byte {} of the text, 0x{:02x}, is not UTF-8; use the byte or bpe tokenizer", at, uint8_t(text[at]));
  return point;
}

}  // namespace

std::string character_text(char32_t value) {
  const std::string number = fmt::format("U+{:04X}", uint32_t(value));
  if (value <= ' ' || (value >= 0x7f && value <= 0xa0) || is_mark(value)) return number;
  std::string text = "'";
  append_utf8(text, value);
  return text + "' (" + number + ")";
}

CharTokenizer::CharTokenizer(std::vector<std::string> characters) : characters_(std::move(characters)) {
  for (const std::string& character : characters_) {
    const CodePoint point = character.empty() ? CodePoint{} : code_point_at(character, 0);
    const Token token = Token(tokens_.size());
    if (point.value == kNotUtf8 || point.bytes != character.size())
      fail(ErrorCode::value, "[tokenizer] token {} of a vocabulary of characters is not one character", token);
    if (!tokens_.emplace(point.value, token).second) fail(ErrorCode::value, "[tokenizer] {} is in the vocabulary twice", character_text(point.value));
  }
}

CharTokenizer CharTokenizer::of_text(std::string_view text) {
  std::vector<bool> seen(0x110000);
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = character_at(text, at);
    seen[point.value] = true;
    at += point.bytes;
  }
  std::vector<std::string> characters;
  for (char32_t value = 0; value < seen.size(); ++value)
    if (seen[value]) append_utf8(characters.emplace_back(), value);
  return CharTokenizer(std::move(characters));
}

void CharTokenizer::encode_to(std::vector<Token>& out, std::string_view text) const {
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = character_at(text, at);
    const auto found = tokens_.find(point.value);
    if (found == tokens_.end())
      fail(ErrorCode::value, "[tokenizer] byte {} of the text: {} is not among the {} characters of the vocabulary; use the byte or bpe tokenizer", at,
           character_text(point.value), characters_.size());
    out.push_back(found->second);
    at += point.bytes;
  }
}

std::string_view CharTokenizer::bytes_of(Token token) const {
  if (token < 0 || size_t(token) >= characters_.size()) fail(ErrorCode::value, "[tokenizer] token {} is not in 0 .. {}", token, vocab_size() - 1);
  return characters_[size_t(token)];
}

std::string CharTokenizer::json() const { return characters_json(characters_); }

}  // namespace ridge
