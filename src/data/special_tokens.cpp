#include "data/special_tokens.h"

#include <algorithm>
#include <utility>

namespace ridge {

SpecialTokens::SpecialTokens(std::vector<SpecialToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const SpecialToken& a, const SpecialToken& b) { return a.text.size() != b.text.size() ? a.text.size() > b.text.size() : a.token < b.token; });
  for (const SpecialToken& token : tokens_) begins_with_[uint8_t(token.text.at(0))] = true;
}

std::optional<Token> SpecialTokens::find(std::string_view text) const {
  for (const SpecialToken& token : tokens_)
    if (token.text == text) return token.token;
  return {};
}

std::string_view SpecialTokens::take_ordinary(std::string_view& text, const SpecialToken*& special) const {
  for (size_t at = 0; at < text.size(); ++at) {
    if (!begins_with_[uint8_t(text[at])]) continue;
    for (const SpecialToken& token : tokens_) {
      if (!text.substr(at).starts_with(token.text)) continue;
      special = &token;
      const std::string_view before = text.substr(0, at);
      text.remove_prefix(at + token.text.size());
      return before;
    }
  }
  special = nullptr;
  return std::exchange(text, {});
}

}  // namespace ridge
