// Named tokens that are matched literally in text before it is split into words.
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

  // Removes the text up to the first special token, and that token, from the front; the token is null if there is none.
  std::string_view take_ordinary(std::string_view& text, const SpecialToken*& special) const;

 private:
  std::vector<SpecialToken> tokens_;        // longest first: if two match, the longer one wins
  std::array<bool, 256> begins_with_ = {};  // by first byte
};

}  // namespace ridge
