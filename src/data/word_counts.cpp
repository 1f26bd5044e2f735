#include "data/word_counts.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ridge {

constexpr size_t kBlock = size_t(1) << 16, kFirstSlots = 1024;

void WordCounts::add(std::string_view word, int64_t count) {
  if (2 * (words_.size() + 1) > slots_.size()) grow();
  const uint32_t hash = uint32_t(XXH3_64bits(word.data(), word.size()));
  size_t at = hash & (slots_.size() - 1);
  for (; slots_[at]; at = (at + 1) & (slots_.size() - 1))
    if (Word& known = words_[slots_[at] - 1]; known.hash == hash && known.text() == word) {
      known.count += count;
      return;
    }
  words_.push_back({keep(word), uint32_t(word.size()), hash, count});
  slots_[at] = uint32_t(words_.size());
}

void WordCounts::sort() {
  slots_ = {};
  std::sort(words_.begin(), words_.end(), [](const Word& a, const Word& b) { return a.text() < b.text(); });
}

int64_t WordCounts::bytes() const { return letters_ + int64_t(words_.size() * sizeof(Word) + slots_.size() * sizeof(slots_[0])); }

const char* WordCounts::keep(std::string_view word) {
  letters_ += int64_t(word.size());
  if (blocks_.empty() || blocks_.back().capacity() - blocks_.back().size() < word.size()) blocks_.emplace_back().reserve(std::max(kBlock, word.size()));
  std::vector<char>& block = blocks_.back();
  block.insert(block.end(), word.begin(), word.end());
  return block.data() + block.size() - word.size();
}

// Frees the old slots first: the words store their hashes.
void WordCounts::grow() {
  const size_t size = std::max(kFirstSlots, 2 * slots_.size());
  slots_ = {};
  slots_.resize(size);
  for (size_t i = 0; i < words_.size(); ++i) {
    size_t at = words_[i].hash & (size - 1);
    while (slots_[at]) at = (at + 1) & (size - 1);
    slots_[at] = uint32_t(i + 1);
  }
}

}  // namespace ridge
