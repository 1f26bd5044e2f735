#include "data/pre_tokenize.h"

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "data/byte_alphabet.h"
#include "data/texts.h"

namespace ridge {
namespace {

using Words = std::vector<std::string>;

Words words_of(std::string_view text) {
  Words out;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    end = word_end(text, begin);
    EXPECT_GT(end, begin);
    EXPECT_LE(end, text.size());
    if (end <= begin) break;
    out.emplace_back(text.substr(begin, end - begin));
  }
  return out;
}

// Split as by Python's regex module with GPT-2's pattern.
const Words kExamples[] = {
    {"Hello", " world"},
    {"I", "'ve", " ", " won", "'t", "  ", " they", "'ll", " he", "'d", " I", "'m", " we", "'re", " it", "'s"},
    {" ", " two"},
    {"tail", "  "},
    {"a", "\n", "\n", "b"},
    {"a", " \n", " b"},
    {"\n"},
    {"x", "\t", "\t", "y"},
    {"can", "''", "t", " '", "S", " '", "s", "'"},
    {"'t", "is", " '", "ll", "3"},
    {"abc", "123", "def", " 4", " 5", ".", "6"},
    {"$", "10", ",", "000", "!!!", " ..."},
    {"naïve", " café"},
    {"Привет", ",", " мир"},
    {"你好", " 世界"},
    {"ⅷ½", " ²"},
    {"e", "\u0301"},
    {"a", "\u00a0", "b"},
    {"a", "\u00a0", "\u00a0", "b"},
    {" ", "\u3000", "x"},
    {"🙂🙂", " ok"},
    {"12\u0663", "x"},
    {"don", "'t", ".", "I", "'d"},
    {"   "},
    {"'", " s"},
    {"_", "a", "_", " b", "_"},
    {"l", "'", "été", " d", "'", "or"},
    {"\u200b", "x"},
    {"\x1c", "y", " z"},
};

TEST(PreTokenize, SplitsLikeGpt2) {
  for (const Words& words : kExamples) {
    std::string text;
    for (const std::string& word : words) text += word;
    EXPECT_EQ(words_of(text), words) << text;
  }
}

TEST(PreTokenize, TreatsInvalidUtf8AsPunctuation) {
  EXPECT_EQ(words_of("a\xff\xfe b"), (Words{"a", "\xff\xfe", " b"}));
  EXPECT_EQ(words_of("\xe4\xbd"), (Words{"\xe4\xbd"}));                    // a truncated letter
  EXPECT_EQ(words_of("a\xc0\xa0z"), (Words{"a", "\xc0\xa0", "z"}));        // an overlong blank is not a blank
  EXPECT_EQ(words_of("\xed\xa0\x80!"), (Words{"\xed\xa0\x80!"}));          // a surrogate
  EXPECT_EQ(words_of(" \xf5\x80\x80\x80"), (Words{" \xf5\x80\x80\x80"}));  // beyond the last code point
}

TEST(PreTokenize, WordsCoverTheText) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const std::string text = round % 2 ? random_bytes(random, random() % 200) : random_text(random, random() % 100);
    std::string joined;
    for (const std::string& word : words_of(text)) joined += word;
    EXPECT_EQ(joined, text);
  }
}

TEST(PreTokenize, PiecesSplitLikeTheWhole) {
  std::mt19937 random(4);
  size_t parts = 0;
  for (int round = 0; round < 500; ++round) {
    const std::string text = random_text(random, random() % 120);
    Words words;
    for (std::string_view part : cut_between_words(text, random() % 40)) {
      ++parts;
      for (const std::string& word : words_of(part)) words.push_back(word);
    }
    EXPECT_EQ(words, words_of(text)) << text;
  }
  EXPECT_GT(parts, 1000u);  // the test was not vacuous
}

TEST(PreTokenize, PiecesSplitLikeTheWholeInEveryScript) {
  std::mt19937 random(5);
  for (const std::vector<std::string>& script : foreign_scripts()) {
    size_t parts = 0;
    for (int round = 0; round < 60; ++round) {
      const std::string text = text_in(script, random, 300);
      Words words;
      for (std::string_view part : cut_between_words(text, 1 + random() % 30)) {
        ++parts;
        for (const std::string& word : words_of(part)) words.push_back(word);
      }
      EXPECT_EQ(words, words_of(text)) << text;
    }
    EXPECT_GT(parts, 300u) << script[0];  // cuts were found
  }
  for (int round = 0; round < 300; ++round) {
    const std::string text = random_bytes(random, random() % 200);
    Words words;
    for (std::string_view part : cut_between_words(text, 1 + random() % 30))
      for (const std::string& word : words_of(part)) words.push_back(word);
    EXPECT_EQ(words, words_of(text));
  }
}

TEST(PreTokenize, NeverSplitsASpecialToken) {
  const SpecialTokens special({{1, "<|end of text|>"}, {2, "你 好"}, {3, "ab a"}, {4, " "}});
  const std::vector<std::string> script = {"<|end of text|>", "你 好", "你", "ab a", "ab", " a", "好", ".", "\n", "<|end"};
  // A text's words, including the special tokens.
  const auto pieces_of = [&](std::string_view text) {
    Words out;
    while (!text.empty()) {
      const SpecialToken* found = nullptr;
      for (const std::string& word : words_of(special.take_ordinary(text, found))) out.push_back(word);
      if (found) out.push_back("special " + found->text);
    }
    return out;
  };
  std::mt19937 random(6);
  size_t parts = 0;
  for (int round = 0; round < 500; ++round) {
    const std::string text = text_in(script, random, 200);
    Words got;
    for (std::string_view part : cut_between_words(text, 1 + random() % 30, special)) {
      ++parts;
      for (const std::string& piece : pieces_of(part)) got.push_back(piece);
    }
    EXPECT_EQ(got, pieces_of(text)) << text;
  }
  EXPECT_GT(parts, 3000u);
  std::string only;
  for (int i = 0; i < 10; ++i) only += "<|end of text|>";
  EXPECT_EQ(cut_between_words(only, 20, special).size(), 5u);
}

TEST(ByteAlphabet, SpellsBytesLikeGpt2) {
  EXPECT_EQ(spell_bytes(" the\n"), "ĠtheĊ");
  EXPECT_EQ(spell_bytes("\xad\x7f\xa0"), "Ńġł");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += char(byte);
  EXPECT_EQ(read_spelling(spell_bytes(all)), all);
  EXPECT_FALSE(read_spelling("a b"));
  EXPECT_FALSE(read_spelling("\u0144"));
  EXPECT_FALSE(read_spelling("\xff"));
}

TEST(CodePoint, RoundTrips) {
  for (char32_t value = 0; value <= 0x10ffff; value += value < 0x3000 ? 1 : 61) {
    if (value >= 0xd800 && value < 0xe000) continue;
    std::string text;
    append_utf8(text, value);
    EXPECT_EQ(code_point_at(text, 0).value, value);
    EXPECT_EQ(code_point_at(text, 0).bytes, text.size());
    EXPECT_TRUE(text.size() == 1 || code_point_at(text.substr(0, text.size() - 1), 0).value == kNotUtf8);
  }
}

}  // namespace
}  // namespace ridge
