// How often each different word occurs, in memory that can be told exactly: a few large blocks instead of a piece for each word.
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

  void add(std::string_view word, int64_t count);  // the word is copied when it is new
  void sort();                                     // by bytes, so that nothing depends on the order in which they came; nothing is added afterwards

  const std::deque<Word>& words() const { return words_; }
  int64_t letters() const { return letters_; }
  int64_t bytes() const;  // a function of the words alone; it only grows

 private:
  const char* keep(std::string_view word);
  void grow();

  std::deque<Word> words_;
  std::deque<std::vector<char>> blocks_;
  std::vector<uint32_t> slots_;  // number of a word + 1; 0: empty
  int64_t letters_ = 0;
};

}  // namespace ridge
