#include "data/stories.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "base/error.h"
#include "data/stories_grammar.h"

namespace ridge {
namespace {

constexpr int64_t kLengths[] = {32, 64, 128, 256, 512, 1024};

std::string several(const Stories& stories, uint64_t seed, int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += stories.story(seed, i);
  return text;
}

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

class StoryLevels : public testing::TestWithParam<int> {
 protected:
  StoryRules rules_{kStoryText, GetParam()};
  StoryGrammar grammar_{rules_};
};

INSTANTIATE_TEST_SUITE_P(All, StoryLevels, testing::Range(0, kStoryLevels));

TEST(Stories, AreAFunctionOfSeedAndNumber) {
  const Stories a(128), b(128);
  std::set<std::string> different;
  for (int64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(a.story(7, i), b.story(7, i));
    different.insert(a.story(7, i));
  }
  EXPECT_GT(different.size(), 195u);
  EXPECT_NE(a.story(7, 1), a.story(8, 1));
  EXPECT_NE(a.story(7, 1), a.story(7, 1 + (int64_t(1) << 32)));
}

TEST(Stories, FitIntoEveryLength) {
  for (const int64_t longest : kLengths) {
    const Stories stories(longest);
    size_t most = 0;
    for (int64_t i = 0; i < 3000; ++i) {
      const std::string text = stories.story(1, i);
      most = std::max(most, text.size());
      ASSERT_EQ(text.find(Stories::kEnd), text.size() - 1) << text;
      for (const char c : text) ASSERT_TRUE(c == Stories::kEnd || (c >= ' ' && c <= '~')) << text;
    }
    EXPECT_LE(int64_t(most), longest);
    EXPECT_GT(int64_t(most), longest / 2) << "the room is not used";
  }
}

TEST(Stories, RejectALengthThatIsTooShort) {
  try {
    Stories stories(10);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::value);
    EXPECT_NE(std::string(error.what()).find("10 characters"), std::string::npos) << error.what();
  }
}

TEST(Stories, UseTheAvailableLength) {
  int64_t before = 0;
  for (int level = 0; level < kStoryLevels; ++level) {
    const StoryRules rules(kStoryText, level);
    EXPECT_GT(rules.longest(), before);
    EXPECT_LE(rules.longest(), kLengths[level]);
    before = rules.longest();
  }
}

// Two ways to the same number: the storyteller's choices, and the reader's view.
TEST_P(StoryLevels, ParsingCostEqualsGenerationCost) {
  for (int64_t i = 0; i < 2000; ++i) {
    std::string text;
    const double chosen = grammar_.generate(3, i, text);
    ASSERT_NEAR(sum(grammar_.read(text)), chosen, 1e-9 * (1 + chosen)) << text;
  }
}

// All derivations of a text by the rules as written: tries every alternative of every rule wherever it could apply, without lookahead.
class Derivations {
 public:
  Derivations(const StoryRules& rules, std::string_view text) : rules_(rules), text_(text) {
    choose("story", 0, {}, 0, [&](size_t at, const Memory&, double nats, int) {
      if (at == text_.size()) ++count, this->nats = nats;
    });
  }
  int count = 0;
  double nats = 0;  // of the last derivation

 private:
  using Memory = std::map<std::string, int>;  // variable -> the word it stands for
  using Then = std::function<void(size_t at, const Memory&, double nats, int word)>;

  void choose(const std::string& rule, size_t at, const Memory& memory, double nats, const Then& then) {
    for (const StoryAlternative& a : rules_.rules().at(rule)) {
      const int word = a.word;
      follow(a.parts, 0, at, memory, nats - std::log(a.weight), [&](size_t end, const Memory& m, double n, int) { then(end, m, n, word); });
    }
  }
  void follow(const std::vector<StoryPart>& parts, size_t i, size_t at, const Memory& memory, double nats, const Then& then) {
    if (i == parts.size()) return then(at, memory, nats, -1);
    const StoryPart& p = parts[i];
    auto literal = [&](std::string_view expected) {
      if (text_.substr(at, expected.size()) == expected) follow(parts, i + 1, at + expected.size(), memory, nats, then);
    };
    switch (p.kind) {
      case StoryPart::Kind::text: return literal(p.text);
      case StoryPart::Kind::echo: return literal(rules_.attribute(memory.at(p.variable), p.attribute));
      case StoryPart::Kind::set: {
        Memory more = memory;
        more[p.variable] = p.word;
        return follow(parts, i + 1, at, more, nats, then);
      }
      case StoryPart::Kind::choose:
        return choose(p.selector.empty() ? p.text : p.text + "." + rules_.attribute(memory.at(p.selector), p.by), at, memory, nats,
                      [&](size_t end, const Memory& m, double n, int word) {
                        Memory more = m;
                        if (!p.variable.empty()) more[p.variable] = word;
                        follow(parts, i + 1, end, more, n, then);
                      });
    }
  }

  const StoryRules& rules_;
  std::string_view text_;
};

// So a text's cost is -log of its total probability: no second derivation adds to it.
TEST_P(StoryLevels, EveryTextHasExactlyOneDerivation) {
  for (int64_t i = 0; i < 150; ++i) {
    std::string text;
    const double told = grammar_.generate(17, i, text);
    const Derivations all(rules_, text);
    ASSERT_EQ(all.count, 1) << text;
    ASSERT_NEAR(all.nats, told, 1e-5 * (1 + told)) << text;  // weights are stored in 32 bits
  }
}

TEST_P(StoryLevels, ProbabilitiesOfNextCharactersSumToOne) {
  for (int64_t i = 0; i < 10; ++i) {
    std::string text;
    grammar_.generate(5, i, text);
    grammar_.generate(6, i, text);
    const std::vector<double> nats = grammar_.read(text);
    for (size_t at = 0; at < text.size(); ++at) {
      double total = 0, here = -1;
      std::set<char> characters;
      for (const auto& [character, probability] : grammar_.next(text.substr(0, at))) {
        EXPECT_TRUE(characters.insert(character).second);
        total += probability;
        if (character == text[at]) here = probability;
      }
      ASSERT_NEAR(total, 1, 1e-12) << text.substr(0, at);
      ASSERT_NEAR(-std::log(here), nats[at], 1e-9) << text.substr(0, at);
    }
  }
}

// Every character reported as possible can be read, and the text can then be completed: there are no dead ends.
TEST_P(StoryLevels, EveryPossibleCharacterCanBeRead) {
  std::string text;
  grammar_.generate(9, 0, text);
  for (size_t at = 0; at < text.size(); ++at)
    for (const auto& [character, probability] : grammar_.next(text.substr(0, at))) {
      std::string other = text.substr(0, at) + character;
      while (other.back() != Stories::kEnd) {
        ASSERT_LE(int64_t(other.size()), rules_.longest()) << other;
        other += grammar_.next(other).back().first;  // the least likely
      }
      ASSERT_LE(int64_t(other.size()), rules_.longest()) << other;
    }
}

TEST_P(StoryLevels, MeanCostIsTheEntropy) {
  constexpr int kCount = 20000;
  double total = 0, squares = 0;
  std::string text;
  for (int64_t i = 0; i < kCount; ++i) {
    text.clear();
    const double nats = grammar_.generate(11, i, text);
    total += nats, squares += nats * nats;
  }
  const double mean = total / kCount, deviation = std::sqrt((squares / kCount - mean * mean) / kCount);
  EXPECT_NEAR(mean, grammar_.entropy(), 4 * deviation);
}

// A character's frequency matches its probability: one prefix, many stories.
TEST_P(StoryLevels, FirstCharacterFrequenciesMatchProbabilities) {
  constexpr int kCount = 20000;
  std::map<char, int> counts;
  for (int64_t i = 0; i < kCount; ++i) {
    std::string text;
    grammar_.generate(13, i, text);
    ++counts[text[0]];
  }
  for (const auto& [character, probability] : grammar_.next(""))
    EXPECT_NEAR(counts[character], kCount * probability, 5 * std::sqrt(kCount * probability) + 1) << character;
}

TEST(Stories, ParseAcrossStoriesAndStopAnywhere) {
  const Stories stories(64);
  const std::string text = several(stories, 2, 20);
  const std::vector<double> whole = stories.nats(text);
  for (size_t size = 0; size <= text.size(); size += 7) {
    const std::vector<double> part = stories.nats(std::string_view(text).substr(0, size));
    ASSERT_EQ(part.size(), size);
    ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin()));
  }
  double separately = 0;
  for (int64_t i = 0; i < 20; ++i) separately += sum(stories.nats(stories.story(2, i)));
  EXPECT_NEAR(sum(whole), separately, 1e-9);
}

TEST(Stories, RejectImpossibleTextWithItsPosition) {
  const Stories stories(128);
  const std::string text = several(stories, 4, 3);
  for (size_t at = 0; at < text.size(); at += 5) {
    std::string broken = text;
    broken[at] = '~';
    try {
      stories.nats(broken);
      FAIL() << broken;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::value);
      EXPECT_NE(std::string(error.what()).find("character " + std::to_string(at) + " "), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(stories.nats("\xff"), Error);
  EXPECT_TRUE(stories.nats("").empty());
}

// The first sentence decides what a later one can say.
TEST(Stories, RememberAcrossSentences) {
  const StoryGrammar grammar(
      StoryRules("story: The [p=pet] had [n=count]. {p.He} ate one, so {n.less} were left.$\n"
                 "pet: fox (He=He) | hen (He=She)\n"
                 "count: four (less=three) | five (less=four)\n",
                 0));
  EXPECT_NO_THROW(grammar.read("The hen had five. She ate one, so four were left.\n"));
  EXPECT_THROW(grammar.read("The hen had five. He ate one, so four were left.\n"), Error);
  EXPECT_THROW(grammar.read("The hen had five. She ate one, so three were left.\n"), Error);
  const double second = std::log((1.0 / 4 + 1.0 / 5) / (1.0 / 5));
  EXPECT_NEAR(sum(grammar.read("The hen had five. She ate one, so four were left.\n")), 2 * second, 1e-8);
}

TEST(Stories, RejectAmbiguousRules) {
  const auto refused = [](const char* text) {
    try {
      StoryGrammar grammar{StoryRules(text, 0)};
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_NE(refused("story: a$ | a$\n").find("beginning of another"), std::string::npos);
  EXPECT_EQ(refused("story: [x]$\nx: cat | catfish\n"), "") << "what comes after the word tells them apart";
  EXPECT_NE(refused("story: a [x]$\nx: cat | catfish\n").find("beginning of another"), std::string::npos);
  EXPECT_NE(refused("story: a [x]$\nx: b [story]\n").find("contains itself"), std::string::npos);
  EXPECT_NE(refused("story: a [y]$\nx: b\n").find("'y'"), std::string::npos);
  EXPECT_NE(refused("story: a {y}$\n").find("nothing sets 'y'"), std::string::npos);
  EXPECT_NE(refused("story: a [x=w] {x.he}$\nw: b | c (he=d)\n").find("no attribute 'he'"), std::string::npos);
}

}  // namespace
}  // namespace ridge
