#include "data/token_text.h"

#include <utility>

namespace ridge {
namespace {

// Where an incomplete character at the end of the text begins; the text's size if there is none.
size_t cut_character(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const uint8_t byte = uint8_t(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t bytes = byte >= 0xf0 && byte <= 0xf4 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc2 ? 2 : 1;
    return byte <= 0xf4 && bytes > back ? text.size() - back : text.size();
  }
  return text.size();
}

}  // namespace

std::string TokenText::add(Token token) {
  held_ += tokenizer_->bytes_of(token);
  const size_t whole = cut_character(held_);
  std::string out = held_.substr(0, whole);
  held_.erase(0, whole);
  return out;
}

std::string TokenText::rest() { return std::exchange(held_, {}); }

}  // namespace ridge
