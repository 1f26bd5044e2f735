#include "data/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/utf8.h"
#include "data/bpe_training.h"
#include "data/pre_tokenize.h"
#include "data/texts.h"
#include "data/word_counts.h"

namespace ridge {
namespace {

using Tokens = std::vector<Token>;

BpeVocabulary train(std::string_view text, int64_t vocab_size, int threads = 1, int64_t least = 2) {
  const std::string_view texts[] = {text};
  return train_bpe(texts, {vocab_size, least, threads});
}

std::vector<Tokens> words_as_bytes(std::string_view text) {
  std::vector<Tokens> out;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    end = word_end(text, begin);
    Tokens word;
    for (char c : text.substr(begin, end - begin)) word.push_back(uint8_t(c));
    out.push_back(word);
  }
  return out;
}

void join(Tokens& word, const BpeRule& rule) {
  for (size_t i = 0; i + 1 < word.size(); ++i) {
    if (word[i] != rule.left || word[i + 1] != rule.right) continue;
    word[i] = rule.joined;
    word.erase(word.begin() + int64_t(i) + 1);
  }
}

// The definition taken literally: recounts everything for each rule.
std::vector<BpeRule> rules_by_definition(std::string_view text, int64_t vocab_size) {
  std::vector<Tokens> words = words_as_bytes(text);
  std::map<std::string, Token> ids;
  BpeVocabulary out = byte_vocabulary();
  out.tokens.pop_back();
  while (int64_t(out.tokens.size()) + 1 < vocab_size) {
    std::map<std::pair<Token, Token>, int64_t> counts;
    for (const Tokens& word : words)
      for (size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    BpeRule best;
    int64_t most = 1;
    for (const auto& [pair, count] : counts)
      if (count > most) most = count, best = {pair.first, pair.second, 0};
    if (most < 2) break;
    const std::string bytes = out.tokens[size_t(best.left)] + out.tokens[size_t(best.right)];
    const auto [place, is_new] = ids.emplace(bytes, Token(out.tokens.size()));
    if (is_new) out.tokens.push_back(bytes);
    best.joined = place->second;
    if (std::find(out.rules.begin(), out.rules.end(), best) == out.rules.end()) out.rules.push_back(best);
    for (Tokens& word : words) join(word, best);
  }
  return out.rules;
}

// Repeatedly applies the earliest rule that fits, at its first position.
Tokens encode_by_definition(const BpeVocabulary& vocabulary, std::string_view text) {
  Tokens out;
  for (Tokens word : words_as_bytes(text)) {
    for (bool joined = true; joined;) {
      joined = false;
      for (const BpeRule& rule : vocabulary.rules) {
        for (size_t i = 0; i + 1 < word.size() && !joined; ++i) {
          if (word[i] != rule.left || word[i + 1] != rule.right) continue;
          word[i] = rule.joined;
          word.erase(word.begin() + int64_t(i) + 1);
          joined = true;
        }
        if (joined) break;
      }
    }
    out.insert(out.end(), word.begin(), word.end());
  }
  return out;
}

void expect_value_error(BpeVocabulary vocabulary, const std::string& part) {
  try {
    BpeTokenizer tokenizer(std::move(vocabulary));
    ADD_FAILURE() << "accepted; expected: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::value);
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(BpeTraining, LearnsTheMostFrequentPairFirst) {
  const BpeVocabulary v = train("aaab aaab ab", 260);
  // "aa" occurs 4 times, "ab" 3, " a" 2.
  ASSERT_EQ(v.rules.size(), 3u);
  EXPECT_EQ(v.rules[0], (BpeRule{'a', 'a', 256}));
  EXPECT_EQ(v.tokens.size(), 260u);
  EXPECT_EQ(v.tokens[256], "aa");
  EXPECT_EQ(v.tokens.back(), kEndOfText);
  EXPECT_EQ(v.special, (std::vector<SpecialToken>{{259, std::string(kEndOfText)}}));
}

TEST(BpeTraining, SmallestOfEquallyFrequentPairsWins) {
  const BpeVocabulary v = train("zy xw ba zy xw ba", 259, 1, 1);
  // " b", " x", "ba", "xw" and "zy" occur twice, " z" once.
  EXPECT_EQ(v.rules[0], (BpeRule{' ', 'b', 256}));
  EXPECT_EQ(v.rules[1], (BpeRule{' ', 'x', 257}));
}

TEST(BpeTraining, MatchesTheDefinition) {
  std::mt19937 random(5);
  for (int round = 0; round < 25; ++round) {
    const std::string text = random_text(random, 50 + random() % 600);
    const int64_t size = 257 + int64_t(random() % 80);
    EXPECT_EQ(train(text, size).rules, rules_by_definition(text, size)) << "round " << round;
  }
  for (const char* text : {"aaaa aaaa aaaaa aaaaaaa", "abababab ababab", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"})
    EXPECT_EQ(train(text, 300).rules, rules_by_definition(text, 300)) << text;
}

TEST(BpeTraining, DoesNotDependOnThreads) {
  std::mt19937 random(6);
  std::vector<std::string> words;
  for (int i = 0; i < 1000; ++i) words.push_back(random_text(random, 1 + random() % 12));
  std::string text;
  while (text.size() < (5u << 20)) text += words[random() % words.size()] + " ";
  const BpeVocabulary one = train(text, 600);
  EXPECT_EQ(one.tokens.size(), 600u);
  for (int threads = 2; threads <= 4; ++threads) EXPECT_EQ(train(text, 600, threads), one) << threads;
}

// The limit is kept with any number of threads, more memory never hurts, and with enough of it the vocabulary is the same as without a limit.
TEST(BpeTraining, MemoryLimitsAreKeptOrRejected) {
  std::mt19937 random(11);
  std::string text;
  while (text.size() < (1u << 20)) text += random_text(random, 1 + random() % 12) + " ";
  const std::vector<std::string_view> parts = cut_between_words(text, 1 << 14);
  auto learn = [&](int64_t room, int threads) {
    return train_bpe(parts.size(), [&](size_t i, std::string&) { return parts[i]; }, {.vocab_size = 700, .threads = threads, .room = room});
  };
  const BpeVocabulary whole = *learn(0, 1);
  bool before = false;
  int kept = 0, refused = 0;
  for (int64_t room = 1; room < int64_t(1) << 28; room += room / 3 + 1) {
    const std::optional<BpeVocabulary> one = learn(room, 1), three = learn(room, 3);
    EXPECT_EQ(one.has_value(), three.has_value()) << room;
    EXPECT_TRUE(one || !before) << room;
    EXPECT_TRUE(!one || *one == whole) << room;
    EXPECT_TRUE(!three || *three == whole) << room;
    before = one.has_value();
    ++(one ? kept : refused);
  }
  EXPECT_GT(kept, 3);
  EXPECT_GT(refused, 30);
}

// If the lists of pairs are what is large, memory may run out in the middle of a merge.
TEST(BpeTraining, MemoryThatRunsOutInAMergeIsAnError) {
  std::mt19937 random(14);
  std::string text;
  while (text.size() < (1u << 17)) {
    for (size_t i = 0, letters = 2 + random() % 8; i < letters; ++i) append_utf8(text, 0x4e00 + char32_t(random() % 20000));
    text += ' ';
  }
  const std::vector<std::string_view> parts = cut_between_words(text, 1 << 14);
  auto learn = [&](int64_t room) {
    return train_bpe(parts.size(), [&](size_t i, std::string&) { return parts[i]; }, {.vocab_size = 700, .threads = 1, .room = room});
  };
  const BpeVocabulary whole = *learn(0);
  int kept = 0, refused = 0;
  for (int64_t room = 4 << 20; room < (10 << 20); room += 1 << 17) {
    const std::optional<BpeVocabulary> one = learn(room);
    EXPECT_TRUE(!one || *one == whole) << room;
    ++(one ? kept : refused);
  }
  EXPECT_GT(kept, 3);
  EXPECT_GT(refused, 3);
}

TEST(WordCounts, MatchAMapInAnyOrder) {
  std::mt19937 random(12);
  std::vector<std::string> words;
  for (int i = 0; i < 5000; ++i) words.push_back(random_bytes(random, i == 17 ? 100000 : 1 + random() % 5));
  std::map<std::string, int64_t> expected;
  WordCounts first, second;
  for (size_t i = 0; i < words.size(); ++i) expected[words[i]] += int64_t(i), first.add(words[i], int64_t(i));
  for (size_t i = words.size(); i-- > 0;) second.add(words[i], int64_t(i));
  EXPECT_EQ(first.bytes(), second.bytes());
  for (WordCounts* counts : {&first, &second}) {
    counts->sort();
    std::map<std::string, int64_t> found;
    for (const WordCounts::Word& word : counts->words()) found.emplace(word.text(), word.count);
    EXPECT_EQ(found, expected);
    EXPECT_TRUE(std::is_sorted(counts->words().begin(), counts->words().end(), [](const auto& a, const auto& b) { return a.text() < b.text(); }));
  }
}

TEST(BpeTraining, StopsWhenNoPairRepeats) {
  for (const char* text : {"", "a", "abc", " "}) EXPECT_EQ(train(text, 1000), byte_vocabulary()) << text;
  EXPECT_EQ(train_bpe({}, {1000, 2, 4}), byte_vocabulary());
  EXPECT_EQ(train("abab abab", 1000).rules.size(), 2u);  // ab, abab; " abab" occurs once
  EXPECT_EQ(train("ab ab ab", 1000, 1, 4).rules.size(), 0u);
}

TEST(BpeTraining, EndOfTextSeparatesDocuments) {
  const std::string whole = "the cat<|endoftext|>the dog<|endoftext|>";
  const std::string_view documents[] = {"the cat", "the dog"};
  EXPECT_EQ(train(whole, 300), train_bpe(documents, {300, 2, 2}));
}

TEST(BpeTraining, RejectsImpossibleSizes) {
  EXPECT_THROW(train("a", 256), Error);
  EXPECT_THROW(train("a", int64_t(1) << 40), Error);
}

TEST(Bpe, EncodesLikeTheDefinition) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const BpeVocabulary v = train(random_text(random, 500), 257 + int64_t(random() % 60));
    const BpeTokenizer tokenizer(v);
    for (int i = 0; i < 5; ++i) {
      const std::string text = random_text(random, random() % 200);
      EXPECT_EQ(tokenizer.encode(text), encode_by_definition(v, text)) << text;
    }
  }
}

// Rules from other programs need not be in the order in which their parts were created.
TEST(Bpe, EncodesByRulesInAnyOrder) {
  std::mt19937 random(8);
  for (int round = 0; round < 20; ++round) {
    BpeVocabulary v = train(random_text(random, 400), 300);
    std::shuffle(v.rules.begin(), v.rules.end(), random);
    const BpeTokenizer tokenizer(v);
    const std::string text = random_text(random, 200);
    EXPECT_EQ(tokenizer.encode(text), encode_by_definition(v, text)) << text;
  }
}

TEST(Bpe, RoundTripsEveryByte) {
  std::mt19937 random(9);
  const BpeTokenizer tokenizer(train(random_text(random, 3000), 400));
  for (int round = 0; round < 200; ++round) {
    const std::string text = round % 2 ? random_bytes(random, random() % 2000) : random_text(random, random() % 1000);
    const Tokens tokens = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(tokens), text);
    EXPECT_LE(tokens.size(), text.size());
  }
  EXPECT_TRUE(tokenizer.encode("").empty());
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST(Bpe, LongWordsAreNotQuadratic) {
  const std::string run(1 << 18, 'a');
  const BpeTokenizer tokenizer(train(run, 270));
  const Tokens tokens = tokenizer.encode(run);
  EXPECT_EQ(tokenizer.decode(tokens), run);
  EXPECT_LT(tokens.size(), run.size() / 1000);
}

TEST(Bpe, FindsEndOfTextInText) {
  const BpeTokenizer tokenizer(train("the cat the cat", 270));
  const Token end = *tokenizer.end_of_text();
  EXPECT_EQ(end, tokenizer.vocab_size() - 1);
  Tokens expected = tokenizer.encode("the");
  expected.push_back(end);
  tokenizer.encode_to(expected, " cat");
  EXPECT_EQ(tokenizer.encode("the<|endoftext|> cat"), expected);
  EXPECT_EQ(tokenizer.encode("<|endoftext|><|endoftext|>"), (Tokens{end, end}));
  EXPECT_EQ(tokenizer.decode(expected), "the<|endoftext|> cat");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("<|endoftext|<|")), "<|endoftext|<|");
}

TEST(Bpe, PrefersTheLongerSpecialToken) {
  BpeVocabulary v = byte_vocabulary();
  for (const char* text : {"<a>", "<a><b>"}) {
    v.special.push_back({Token(v.tokens.size()), text});
    v.tokens.push_back(text);
  }
  EXPECT_EQ(BpeTokenizer(v).encode("<a><a><b>"), (Tokens{257, 258}));
}

TEST(Bpe, RejectsVocabulariesThatChangeText) {
  BpeVocabulary v = byte_vocabulary();
  v.tokens[7] = "zz";
  expect_value_error(v, "0x07");
  v = byte_vocabulary();
  v.rules = {{'a', 'b', 'c'}};
  expect_value_error(v, "changes the text");
  v.rules = {{'a', 'b', 9999}};
  expect_value_error(v, "9999");
  v.rules = {{'a', -1, 'c'}};
  expect_value_error(v, "-1");
  v = train("abab", 258);
  v.rules.push_back(v.rules[0]);
  expect_value_error(v, "same pair");
}

TEST(Bpe, RejectsUnknownTokens) {
  const BpeTokenizer tokenizer(byte_vocabulary());
  EXPECT_THROW(tokenizer.bytes_of(-1), Error);
  EXPECT_THROW(tokenizer.bytes_of(257), Error);
}

}  // namespace
}  // namespace ridge
