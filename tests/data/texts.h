// Texts to try tokenizers on.
#pragma once
#include <random>
#include <string>
#include <vector>

namespace ridge {

inline std::string random_bytes(std::mt19937& random, size_t size) {
  std::string out(size, '\0');
  for (char& c : out) c = char(random());
  return out;
}

// Words of few letters, so that pairs repeat, with blanks of several kinds, signs, letters beyond ASCII and bytes that are not UTF-8.
inline std::string random_text(std::mt19937& random, size_t pieces) {
  const std::vector<std::string> all = {"a",  "b", "ab", "th", "e",  "the", "ing", " ",  " ",      " ",      "\n",   "\t",
                                        "  ", "1", "23", "!",  "'s", "'",   "é",   "你", "\u00a0", "\u3000", "\xff", "\xc3"};
  std::string out;
  for (size_t i = 0; i < pieces; ++i) out += all[random() % all.size()];
  return out;
}

}  // namespace ridge
