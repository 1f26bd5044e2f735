#include "data/bpe_training.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "data/pre_tokenize.h"

namespace ridge {
namespace {

constexpr size_t kChunk = 1 << 20;
constexpr int64_t kLargestVocabulary = 1 << 24;

using Counts = std::unordered_map<std::string_view, int64_t>;

void count_words(Counts& counts, std::string_view text, const SpecialTokens& special) {
  while (!text.empty()) {
    const SpecialToken* found = nullptr;
    const std::string_view ordinary = special.take_ordinary(text, found);
    for (size_t begin = 0, end = 0; begin < ordinary.size(); begin = end) {
      end = word_end(ordinary, begin);
      ++counts[ordinary.substr(begin, end - begin)];
    }
  }
}

// Every different word with its number, sorted by bytes: the same however the work was shared.
std::vector<std::pair<std::string_view, int64_t>> words_of(std::span<const std::string_view> texts, const SpecialTokens& special, int threads) {
  std::vector<std::string_view> chunks;
  for (std::string_view text : texts)
    for (std::string_view chunk : cut_between_words(text, kChunk)) chunks.push_back(chunk);
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    Counts counts;
    for (size_t i; (i = next++) < chunks.size();) count_words(counts, chunks[i], special);
    return counts;
  };
  const size_t workers = std::clamp<size_t>(size_t(std::max(threads, 1)), 1, std::max<size_t>(chunks.size(), 1));
  std::vector<std::future<Counts>> others;
  for (size_t i = 1; i < workers; ++i) others.push_back(std::async(std::launch::async, work));
  Counts counts = work();
  for (std::future<Counts>& other : others)
    for (const auto& [word, count] : other.get()) counts[word] += count;
  std::vector<std::pair<std::string_view, int64_t>> words(counts.begin(), counts.end());
  std::sort(words.begin(), words.end());
  return words;
}

// The words as sequences of tokens, and for each pair of neighbours how often it occurs and where.
class PairLearner {
 public:
  PairLearner(std::span<const std::pair<std::string_view, int64_t>> words, BpeVocabulary& out, const BpeTraining& how)
      : out_(out), least_(std::max<int64_t>(how.least_count, 1)) {
    for (size_t id = 0; id < out_.tokens.size(); ++id) ids_.emplace(out_.tokens[id], Token(id));
    for (const auto& [word, count] : words) {
      std::vector<Token> tokens;
      for (char byte : word) tokens.push_back(uint8_t(byte));
      words_.push_back({std::move(tokens), count});
    }
    for (size_t w = 0; w < words_.size(); ++w)
      for (size_t i = 0; i + 1 < words_[w].tokens.size(); ++i) count({words_[w].tokens[i], words_[w].tokens[i + 1]}, w);
    queue_grown();
  }

  // Joins the most frequent pair everywhere. False: none is frequent enough.
  bool learn_one() {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(best.pair);
      if (found == pairs_.end() || found->second.count > best.count) continue;  // joined since, or queued again with more
      if (found->second.count < best.count) {
        if (found->second.count >= least_) queue_.push({found->second.count, best.pair});
        continue;
      }
      const std::vector<size_t> where = std::move(found->second.words);
      pairs_.erase(found);
      const Token joined = name_joined(best.pair);
      for (size_t w : where) join_in(words_[w], w, best.pair, joined);
      queue_grown();
      return true;
    }
    return false;
  }

 private:
  using Pair = std::pair<Token, Token>;
  struct PairHash {
    size_t operator()(const Pair& p) const { return size_t((uint64_t(uint32_t(p.first)) << 32 | uint32_t(p.second)) * 0x9e3779b97f4a7c15 >> 16); }
  };
  struct Word {
    std::vector<Token> tokens;
    int64_t count;
  };
  struct Occurrences {
    int64_t count = 0;
    std::vector<size_t> words;  // those that may hold it; a word can be named twice, or have lost it
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : pair > other.pair; }
  };

  void count(Pair pair, size_t word) {
    Occurrences& here = pairs_[pair];
    here.count += words_[word].count;
    if (here.words.empty() || here.words.back() != word) here.words.push_back(word);
    grown_.push_back(pair);
  }

  void discount(Pair pair, const Word& word) {
    if (const auto found = pairs_.find(pair); found != pairs_.end()) found->second.count -= word.count;
  }

  void queue_grown() {
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const Pair& pair : grown_)
      if (const auto found = pairs_.find(pair); found != pairs_.end() && found->second.count >= least_) queue_.push({found->second.count, pair});
    grown_.clear();
  }

  // Two ways may lead to the same bytes; they are one token. A pair that comes up again has its rule already.
  Token name_joined(Pair pair) {
    std::string bytes = out_.tokens[size_t(pair.first)] + out_.tokens[size_t(pair.second)];
    const auto [place, is_new] = ids_.emplace(bytes, Token(out_.tokens.size()));
    const Token joined = place->second;
    if (is_new) out_.tokens.push_back(std::move(bytes));
    if (ruled_.insert(pair).second) out_.rules.push_back({pair.first, pair.second, joined});
    return joined;
  }

  void join_in(Word& word, size_t w, Pair pair, Token joined) {
    std::vector<Token>& tokens = word.tokens;
    size_t kept = 0;
    for (size_t i = 0; i < tokens.size();) {
      if (i + 1 == tokens.size() || Pair(tokens[i], tokens[i + 1]) != pair) {
        tokens[kept++] = tokens[i++];
        continue;
      }
      if (kept > 0) {
        discount({tokens[kept - 1], pair.first}, word);
        count({tokens[kept - 1], joined}, w);
      }
      if (i + 2 < tokens.size()) {
        discount({pair.second, tokens[i + 2]}, word);
        count({joined, tokens[i + 2]}, w);
      }
      tokens[kept++] = joined;
      i += 2;
    }
    tokens.resize(kept);
  }

  BpeVocabulary& out_;
  int64_t least_;
  std::vector<Word> words_;
  std::unordered_map<Pair, Occurrences, PairHash> pairs_;
  std::unordered_set<Pair, PairHash> ruled_;
  std::unordered_map<std::string, Token> ids_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> grown_;
};

}  // namespace

BpeVocabulary train_bpe(std::span<const std::string_view> texts, const BpeTraining& how) {
  BpeVocabulary out = byte_vocabulary();
  const int64_t least = int64_t(out.tokens.size());
  if (how.vocab_size < least || how.vocab_size > kLargestVocabulary)
    fail(ErrorCode::value, "[tokenizer] a byte-level vocabulary of {} tokens; ask for {} to {}", how.vocab_size, least, kLargestVocabulary);
  const SpecialTokens special(std::move(out.special));
  out.tokens.pop_back();  // the end of text comes last
  PairLearner learner(words_of(texts, special, how.threads), out, how);
  while (int64_t(out.tokens.size()) + 1 < how.vocab_size && learner.learn_one()) {
  }
  out.special = {{Token(out.tokens.size()), std::string(kEndOfText)}};
  out.tokens.emplace_back(kEndOfText);
  return out;
}

}  // namespace ridge
