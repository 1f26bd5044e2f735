#include "data/bpe_training.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/text.h"
#include "data/pre_tokenize.h"
#include "data/word_counts.h"

namespace ridge {
namespace {

constexpr size_t kChunk = 1 << 16;  // text is counted in chunks, so that each thread holds little
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

// Every distinct word with its count, sorted by bytes, so that the result does not depend on how the work was shared. Empty: the room is not enough.
std::optional<WordCounts> words_of(size_t parts, const ReadPart& read, const SpecialTokens& special, const BpeTraining& how) {
  WordCounts all;
  std::mutex adding;
  std::atomic<size_t> next = 0;
  std::atomic<bool> full = false;
  const auto work = [&] {
    std::string buffer;
    Counts counts;
    for (size_t i; !full && (i = next++) < parts;)
      for (std::string_view chunk : cut_between_words(read(i, buffer), kChunk, special)) {
        counts.clear();
        count_words(counts, chunk, special);
        const std::lock_guard lock(adding);
        for (const auto& [word, count] : counts) all.add(word, count);
        if (how.room > 0 && all.bytes() > how.room) full = true;
        if (full) return;
      }
  };
  {
    std::vector<std::future<void>> others;
    for (size_t i = 1; i < std::min(size_t(std::max(how.threads, 1)), parts); ++i) others.push_back(std::async(std::launch::async, work));
    work();
    for (std::future<void>& other : others) other.get();
  }
  if (full) return {};
  all.sort();
  return all;
}

// The words as token sequences, and for each pair of neighbours its count and the words that contain it.
class PairLearner {
 public:
  PairLearner(WordCounts words, BpeVocabulary& out, const BpeTraining& how)
      : out_(out), least_(std::max<int64_t>(how.least_count, 1)), room_(how.room > 0 ? how.room : std::numeric_limits<int64_t>::max()) {
    for (size_t id = 0; id < out_.tokens.size(); ++id) ids_.emplace(out_.tokens[id], Token(id));
    const size_t count_of_words = words.words().size();
    flat_bytes_ = int64_t(count_of_words * sizeof(Word)) + words.letters() * int64_t(sizeof(Token));
    if (count_of_words > std::numeric_limits<uint32_t>::max() || words.bytes() + flat_bytes_ > room_) {
      give_up();
      return;
    }
    words_.reserve(count_of_words), tokens_.reserve(size_t(words.letters()));
    for (const WordCounts::Word& word : words.words()) {
      words_.push_back({tokens_.size(), word.size, word.count});
      for (char byte : word.text()) tokens_.push_back(uint8_t(byte));
    }
    words = {};
    for (uint32_t w = 0; w < words_.size(); ++w) {
      if (!fits()) {
        give_up();
        return;
      }
      for (size_t i = 0; i + 1 < words_[w].size; ++i) count({tokens_[words_[w].begin + i], tokens_[words_[w].begin + i + 1]}, w);
    }
    queue_grown();
  }

  // Whether everything held fits in the room. Once it does not, learning stops.
  bool fits() const {
    constexpr int64_t kNode = 64, kToken = 192;  // per node of a table, including heap overhead; per learnt token, over all lists
    const int64_t queued = int64_t(queue_.capacity() * sizeof(Candidate) + grown_.capacity() * sizeof(Pair));
    return flat_bytes_ + list_bytes_ + int64_t(pairs_.size()) * kNode + int64_t(pairs_.bucket_count()) * 8 + queued + queued / 2 +
               int64_t(out_.tokens.size()) * kToken <=
           room_;
  }

  // Merges the most frequent pair everywhere. False: none is frequent enough.
  bool learn_one() {
    while (!queue_.empty() && fits()) {
      std::pop_heap(queue_.begin(), queue_.end());
      const Candidate best = queue_.back();
      queue_.pop_back();
      const auto found = pairs_.find(best.pair);
      if (found == pairs_.end() || found->second.count > best.count) continue;  // merged since, or queued again with a higher count
      if (found->second.count < best.count) {
        if (found->second.count >= least_) queue({found->second.count, best.pair});
        continue;
      }
      const std::vector<uint32_t> where = std::move(found->second.words);
      pairs_.erase(found);
      const Token joined = name_joined(best.pair);
      for (size_t i = 0; i < where.size(); ++i) {
        if (!fits()) return give_up();
        join_in(words_[where[i]], where[i], best.pair, joined);
      }
      list_bytes_ -= heap_bytes(where);
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
    size_t begin, size;  // of its tokens
    int64_t count;
  };
  struct Occurrences {
    int64_t count = 0;
    std::vector<uint32_t> words;  // words that may contain it; a word can be listed twice, or no longer contain it
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : pair > other.pair; }
  };

  bool give_up() {
    flat_bytes_ = std::numeric_limits<int64_t>::max() / 2;  // nothing else fits
    return false;
  }

  static int64_t heap_bytes(const std::vector<uint32_t>& list) {
    return list.capacity() ? std::max<int64_t>(32, (int64_t(list.capacity() * sizeof(list[0])) + 8 + 15) / 16 * 16) : 0;
  }

  void count(Pair pair, uint32_t word) {
    Occurrences& here = pairs_[pair];
    here.count += words_[word].count;
    if (here.words.empty() || here.words.back() != word) {
      list_bytes_ -= heap_bytes(here.words);
      here.words.push_back(word);
      list_bytes_ += heap_bytes(here.words);
    }
    grown_.push_back(pair);
  }

  void discount(Pair pair, const Word& word) {
    const auto found = pairs_.find(pair);
    if (found == pairs_.end() || (found->second.count -= word.count) > 0) return;
    list_bytes_ -= heap_bytes(found->second.words);
    pairs_.erase(found);  // no word contains it any more
  }

  void queue(Candidate candidate) {
    queue_.push_back(candidate);
    std::push_heap(queue_.begin(), queue_.end());
  }

  void queue_grown() {
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const Pair& pair : grown_)
      if (const auto found = pairs_.find(pair); found != pairs_.end() && found->second.count >= least_) queue({found->second.count, pair});
    grown_.clear();
  }

  // Two merges can produce the same bytes; they are one token. A pair that comes up again already has its rule.
  Token name_joined(Pair pair) {
    std::string bytes = out_.tokens[size_t(pair.first)] + out_.tokens[size_t(pair.second)];
    const auto [place, is_new] = ids_.emplace(bytes, Token(out_.tokens.size()));
    const Token joined = place->second;
    if (is_new) out_.tokens.push_back(std::move(bytes));
    if (ruled_.insert(pair).second) out_.rules.push_back({pair.first, pair.second, joined});
    return joined;
  }

  void join_in(Word& word, uint32_t w, Pair pair, Token joined) {
    const std::span<Token> tokens(tokens_.data() + word.begin, word.size);
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
    word.size = kept;
  }

  BpeVocabulary& out_;
  int64_t least_, room_;
  int64_t flat_bytes_ = 0, list_bytes_ = 0;  // of words and tokens; of all word lists
  std::vector<Word> words_;
  std::vector<Token> tokens_;
  std::unordered_map<Pair, Occurrences, PairHash> pairs_;
  std::unordered_set<Pair, PairHash> ruled_;
  std::unordered_map<std::string, Token> ids_;
  std::vector<Candidate> queue_;  // a heap
  std::vector<Pair> grown_;
};

}  // namespace

std::optional<BpeVocabulary> train_bpe(size_t parts, const ReadPart& read, const BpeTraining& how) {
  BpeVocabulary out = byte_vocabulary();
  const int64_t least = int64_t(out.tokens.size());
  if (how.vocab_size < least || how.vocab_size > kLargestVocabulary)
    fail(ErrorCode::value, "[tokenizer] a byte-level vocabulary cannot have {} tokens; use {} to {}", how.vocab_size, least, kLargestVocabulary);
  const SpecialTokens special(std::move(out.special));
  out.tokens.pop_back();  // the end of text comes last
  std::optional<WordCounts> words = words_of(parts, read, special, how);
  if (!words) return {};
  PairLearner learner(*std::move(words), out, how);
  words.reset();  // NOLINT(bugprone-use-after-move): frees what is left of them
  while (int64_t(out.tokens.size()) + 1 < how.vocab_size && learner.learn_one()) {
  }
  if (!learner.fits()) return {};
  out.special = {{Token(out.tokens.size()), std::string(kEndOfText)}};
  out.tokens.emplace_back(kEndOfText);
  return out;
}

BpeVocabulary train_bpe(std::span<const std::string_view> texts, const BpeTraining& how) {
  std::vector<std::string_view> chunks;  // smaller than a text, so that all threads get some
  const SpecialTokens special(byte_vocabulary().special);
  for (std::string_view text : texts)
    for (std::string_view chunk : cut_between_words(text, kChunk, special)) chunks.push_back(chunk);
  std::optional<BpeVocabulary> out = train_bpe(
      chunks.size(), [&](size_t i, std::string&) { return chunks[i]; }, how);
  if (!out) fail(ErrorCode::memory, "[tokenizer] learning a vocabulary takes more than {}", size_text(how.room));
  return *std::move(out);
}

}  // namespace ridge
