// Byte-level byte pair encoding: words start as bytes, and the neighbours with the earliest rule are merged until no rule applies.
#pragma once
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "data/special_tokens.h"
#include "data/tokenizer.h"

namespace ridge {

struct BpeRule {
  Token left = 0, right = 0, joined = 0;
  bool operator==(const BpeRule&) const = default;
};

struct BpeVocabulary {
  std::vector<std::string> tokens;  // their bytes, by id
  std::vector<BpeRule> rules;       // earlier rules apply first
  std::vector<SpecialToken> special;
  bool operator==(const BpeVocabulary&) const = default;
};

BpeVocabulary byte_vocabulary();  // bytes as 0 .. 255, end of text as 256, no rules

// Maps pairs of tokens to their rule. Open addressing, since every byte of a text needs several lookups.
class BpeRuleTable {
 public:
  explicit BpeRuleTable(const std::vector<BpeRule>& rules);
  uint32_t find(Token left, Token right) const;  // the rule's position in the order, or kNone
  static constexpr uint32_t kNone = 0xffffffff;

 private:
  struct Slot {
    uint64_t pair = 0;
    uint32_t rank = kNone;
  };
  size_t slot_of(uint64_t pair) const;
  std::vector<Slot> slots_;
};

class BpeTokenizer final : public Tokenizer {
 public:
  // ErrorCode::value: decoding would not reproduce every text, a pair has two rules, or a number is out of range.
  explicit BpeTokenizer(BpeVocabulary vocabulary);

  std::string_view name() const override { return "bpe"; }
  int64_t vocab_size() const override { return int64_t(vocabulary_.tokens.size()); }
  std::optional<Token> end_of_text() const override { return special_.find(kEndOfText); }
  const SpecialTokens& special() const override { return special_; }
  void encode_to(std::vector<Token>& out, std::string_view text) const override;
  std::string_view bytes_of(Token token) const override;
  std::string json() const override;

  const BpeVocabulary& vocabulary() const { return vocabulary_; }

 private:
  BpeVocabulary vocabulary_;
  SpecialTokens special_;
  BpeRuleTable rules_;
  std::array<Token, 256> of_byte_;
};

}  // namespace ridge
