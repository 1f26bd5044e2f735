// Tokens with names that are found in text as they are, before it is cut into words.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace ridge {

struct SpecialToken {
  Token token = 0;
  std::string text;
  bool operator==(const SpecialToken&) const = default;
};

class SpecialTokens {
 public:
  explicit SpecialTokens(std::vector<SpecialToken> tokens = {});

  std::optional<Token> find(std::string_view text) const;
  const std::vector<SpecialToken>& all() const { return tokens_; }
  size_t longest() const { return tokens_.empty() ? 0 : tokens_.front().text.size(); }  // in bytes

  // Takes the text up to the first special token off its front, and that token too; it is null when there is none.
  std::string_view take_ordinary(std::string_view& text, const SpecialToken*& special) const;

 private:
  std::vector<SpecialToken> tokens_;        // longest first: of two that fit, the longer one is meant
  std::array<bool, 256> begins_with_ = {};  // by first byte
};

}  // namespace ridge
