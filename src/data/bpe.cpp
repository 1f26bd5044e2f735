#include "data/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "data/pre_tokenize.h"
#include "data/tokenizer_file.h"

namespace ridge {
namespace {

uint64_t pair_of(Token left, Token right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }

// Merges the tokens of one word at a time; keeps its memory between words.
class WordEncoder {
 public:
  WordEncoder(const std::vector<BpeRule>& rules, const BpeRuleTable& table, const std::array<Token, 256>& of_byte)
      : rules_(rules), table_(table), of_byte_(of_byte) {}

  void encode_to(std::vector<Token>& out, std::string_view word) {
    parts_.clear();
    for (size_t i = 0; i < word.size(); ++i) parts_.push_back({of_byte_[uint8_t(word[i])], int64_t(i) - 1, int64_t(i) + 1});
    parts_.back().next = kEnd;
    for (size_t i = 0; i + 1 < word.size(); ++i) propose(int64_t(i));
    while (!proposals_.empty()) {
      const Proposal best = proposals_.top();
      proposals_.pop();
      if (rank_at(best.at) == best.rank) join(best);  // otherwise one of the two has been merged with another since
    }
    for (int64_t at = 0; at != kEnd; at = parts_[size_t(at)].next) out.push_back(parts_[size_t(at)].token);
  }

 private:
  static constexpr int64_t kEnd = -1;
  static constexpr Token kRemoved = -1;

  struct Part {
    Token token;
    int64_t previous, next;
  };
  struct Proposal {
    uint32_t rank;
    int64_t at;
    bool operator<(const Proposal& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }  // the queue's top is its largest element
  };

  uint32_t rank_at(int64_t at) const {
    const Part& part = parts_[size_t(at)];
    return part.token == kRemoved || part.next == kEnd ? BpeRuleTable::kNone : table_.find(part.token, parts_[size_t(part.next)].token);
  }

  void propose(int64_t at) {
    if (const uint32_t rank = rank_at(at); rank != BpeRuleTable::kNone) proposals_.push({rank, at});
  }

  void join(Proposal proposal) {
    Part& left = parts_[size_t(proposal.at)];
    Part& right = parts_[size_t(left.next)];
    left.token = rules_[proposal.rank].joined;
    left.next = right.next;
    right.token = kRemoved;
    if (left.next != kEnd) parts_[size_t(left.next)].previous = proposal.at;
    if (left.previous != kEnd) propose(left.previous);
    propose(proposal.at);
  }

  const std::vector<BpeRule>& rules_;
  const BpeRuleTable& table_;
  const std::array<Token, 256>& of_byte_;
  std::vector<Part> parts_;
  std::priority_queue<Proposal> proposals_;
};

// Where in the output the tokens of recently seen words are stored. A new word replaces an old one, so memory is bounded.
class SeenWords {
 public:
  explicit SeenWords(size_t text_size) : slots_(std::bit_ceil(std::clamp<size_t>(text_size / 8, 16, 1 << 15))) {}

  struct Slot {
    std::string_view word;
    size_t begin = 0, count = 0;  // of its tokens
  };
  Slot& slot_of(std::string_view word) { return slots_[XXH3_64bits(word.data(), word.size()) & (slots_.size() - 1)]; }

 private:
  std::vector<Slot> slots_;
};

}  // namespace

BpeVocabulary byte_vocabulary() {
  BpeVocabulary out;
  for (int byte = 0; byte < 256; ++byte) out.tokens.emplace_back(1, char(byte));
  out.tokens.emplace_back(kEndOfText);
  out.special.push_back({256, std::string(kEndOfText)});
  return out;
}

BpeRuleTable::BpeRuleTable(const std::vector<BpeRule>& rules) : slots_(std::bit_ceil(2 * rules.size() + 2)) {
  for (size_t rank = 0; rank < rules.size(); ++rank) {
    Slot& slot = slots_[slot_of(pair_of(rules[rank].left, rules[rank].right))];
    if (slot.rank != kNone) fail(ErrorCode::value, "[tokenizer] merges {} and {} have the same pair", slot.rank, rank);
    slot = {pair_of(rules[rank].left, rules[rank].right), uint32_t(rank)};
  }
}

// At least half of the slots are empty, so the search ends.
size_t BpeRuleTable::slot_of(uint64_t pair) const {
  size_t slot = size_t(pair * 0x9e3779b97f4a7c15 >> 32) & (slots_.size() - 1);
  while (slots_[slot].rank != kNone && slots_[slot].pair != pair) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

uint32_t BpeRuleTable::find(Token left, Token right) const { return slots_[slot_of(pair_of(left, right))].rank; }

BpeTokenizer::BpeTokenizer(BpeVocabulary vocabulary) : vocabulary_(std::move(vocabulary)), special_(vocabulary_.special), rules_(vocabulary_.rules) {
  for (const BpeRule& rule : vocabulary_.rules)
    if (bytes_of(rule.joined) != fmt::format("{}{}", bytes_of(rule.left), bytes_of(rule.right)))
      fail(ErrorCode::value, "[tokenizer] the merge of {} and {} to {} changes the text", rule.left, rule.right, rule.joined);
  for (const SpecialToken& special : vocabulary_.special)
    if (bytes_of(special.token) != special.text) fail(ErrorCode::value, "[tokenizer] the special token {} represents another text", special.token);
  of_byte_.fill(-1);
  for (Token token = 0; token < vocab_size(); ++token)
    if (const std::string& bytes = vocabulary_.tokens[size_t(token)]; bytes.size() == 1 && of_byte_[uint8_t(bytes[0])] < 0) of_byte_[uint8_t(bytes[0])] = token;
  for (size_t byte = 0; byte < 256; ++byte)
    if (of_byte_[byte] < 0) fail(ErrorCode::value, "[tokenizer] the byte 0x{:02x} has no token, so not every text could be encoded", byte);
}

void BpeTokenizer::encode_to(std::vector<Token>& out, std::string_view text) const {
  WordEncoder encoder(vocabulary_.rules, rules_, of_byte_);
  SeenWords seen(text.size());
  while (!text.empty()) {
    const SpecialToken* special = nullptr;
    const std::string_view ordinary = special_.take_ordinary(text, special);
    for (size_t begin = 0, end = 0; begin < ordinary.size(); begin = end) {
      end = word_end(ordinary, begin);
      const std::string_view word = ordinary.substr(begin, end - begin);
      SeenWords::Slot& slot = seen.slot_of(word);
      if (slot.word == word) {
        for (size_t i = 0; i < slot.count; ++i) out.push_back(out[slot.begin + i]);
      } else {
        slot = {word, out.size(), 0};
        encoder.encode_to(out, word);
        slot.count = out.size() - slot.begin;
      }
    }
    if (special) out.push_back(special->token);
  }
}

std::string_view BpeTokenizer::bytes_of(Token token) const {
  if (token < 0 || token >= vocab_size()) fail(ErrorCode::value, "[tokenizer] token {} is not in 0 .. {}", token, vocab_size() - 1);
  return vocabulary_.tokens[size_t(token)];
}

std::string BpeTokenizer::json() const { return bpe_json(vocabulary_); }

}  // namespace ridge
