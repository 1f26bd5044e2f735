// Texts for testing tokenizers.
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

// Words from few letters, so that pairs repeat, with several kinds of whitespace, punctuation, non-ASCII letters and invalid UTF-8.
inline std::string random_text(std::mt19937& random, size_t pieces) {
  const std::vector<std::string> all = {"a",  "b", "ab", "th", "e",  "the", "ing", " ",  " ",      " ",      "\n",   "\t",
                                        "  ", "1", "23", "!",  "'s", "'",   "é",   "你", "\u00a0", "\u3000", "\xff", "\xc3"};
  std::string out;
  for (size_t i = 0; i < pieces; ++i) out += all[random() % all.size()];
  return out;
}

// Words, punctuation and whitespace of scripts in which no blank follows an ASCII character: Chinese, Japanese, Thai, Arabic, Devanagari, Russian, Korean,
// emoji.
inline const std::vector<std::vector<std::string>>& foreign_scripts() {
  static const std::vector<std::vector<std::string>> scripts = {
      {"你好", "世界", "中文", "。", "，", " ", "\u3000", "\n", "二〇"},
      {"日本語", "カタカナ", "ひらがな", "、", "「", "」", " ", "\n\n"},
      {"ภาษาไทย", "สวัสดี", "น้ำ", " ", "๑๒", "ๆ"},
      {"مرحبا", "بالعالم", "،", " ", "؟", "٤٢", "\u00a0"},
      {"नमस्ते", "दुनिया", "।", " ", "हिन्दी", "१२"},
      {"Привет", "мир", " ", "…", "—", "\n"},
      {"안녕하세요", "세계", " ", "·", "  "},
      {"🙂", "👍🏽", "👨‍👩‍👧", " ", "é", "½", "’"},
  };
  return scripts;
}

inline std::string text_in(const std::vector<std::string>& script, std::mt19937& random, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += script[random() % script.size()];
  return out;
}

}  // namespace ridge
