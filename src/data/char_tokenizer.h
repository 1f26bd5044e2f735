// One token for every character in a text, in code point order. The text must be UTF-8.
#pragma once
#include <unordered_map>

#include "data/tokenizer.h"

namespace ridge {

// A character as shown in messages: 'x' (U+0078), or just U+000A if it is not visible.
std::string character_text(char32_t value);

class CharTokenizer final : public Tokenizer {
 public:
  // Each token's character. ErrorCode::value: not a single character, or a duplicate.
  explicit CharTokenizer(std::vector<std::string> characters);
  static CharTokenizer of_text(std::string_view text);

  std::string_view name() const override { return "char"; }
  int64_t vocab_size() const override { return int64_t(characters_.size()); }
  std::optional<Token> end_of_text() const override { return {}; }
  // ErrorCode::value names the character that the vocabulary lacks.
  void encode_to(std::vector<Token>& out, std::string_view text) const override;
  std::string_view bytes_of(Token token) const override;
  std::string json() const override;

 private:
  std::vector<std::string> characters_;
  std::unordered_map<char32_t, Token> tokens_;
};

}  // namespace ridge
