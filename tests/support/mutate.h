// Random edits of a text, for testing that parsers survive them.
#pragma once
#include <random>
#include <string>
#include <string_view>

namespace ridge::test {

// Applies one to three edits: flip a bit, insert or overwrite a byte with one significant in JSON, delete or duplicate a range, truncate.
inline std::string mutated(std::string text, std::mt19937& random) {
  using namespace std::string_view_literals;
  constexpr std::string_view kTokens = "{}[]:,\"\\0123456789-.eFUIB \n\0\xff"sv;
  for (int edits = 1 + int(random() % 3); edits > 0 && !text.empty(); --edits) {
    const size_t at = random() % text.size();
    switch (random() % 6) {
      case 0: text[at] = char(text[at] ^ 1 << random() % 8); break;
      case 1: text[at] = kTokens[random() % kTokens.size()]; break;
      case 2: text.insert(at, 1, kTokens[random() % kTokens.size()]); break;
      case 3: text.erase(at, 1 + random() % 4); break;
      case 4: text.insert(at, text.substr(random() % text.size(), random() % 70)); break;
      case 5: text.resize(random() % 8 ? text.size() : at); break;
    }
  }
  return text;
}

}  // namespace ridge::test
