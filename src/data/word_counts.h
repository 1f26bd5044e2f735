// Counts each distinct word in memory whose size is known exactly: a few large blocks instead of an allocation per word.
#pragma once
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

namespace ridge {

class WordCounts {
 public:
  struct Word {
    const char* letters;
    uint32_t size, hash;
    int64_t count;
    std::string_view text() const { return {letters, size}; }
  };

  void add(std::string_view word, int64_t count);  // a new word is copied
  void sort();                                     // by bytes, so that the result does not depend on insertion order; nothing may be added afterwards

  const std::deque<Word>& words() const { return words_; }
  int64_t letters() const { return letters_; }
  int64_t bytes() const;  // depends only on the words; never shrinks

 private:
  const char* keep(std::string_view word);
  void grow();

  std::deque<Word> words_;
  std::deque<std::vector<char>> blocks_;
  std::vector<uint32_t> slots_;  // number of a word + 1; 0: empty
  int64_t letters_ = 0;
};

}  // namespace ridge
