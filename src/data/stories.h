// The built-in corpus: short stories from a probabilistic grammar in which every text has exactly one derivation, so that the probability
// of each character after those before it is known exactly.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ridge {

class StoryGrammar;

// Unchanging once made: all threads may use one at the same time.
class Stories {
 public:
  // No story is longer than `longest` characters, its end included; ErrorCode::value below the shortest that the grammar can do.
  explicit Stories(int64_t longest);
  ~Stories();
  Stories(Stories&&) noexcept;

  // Story `number`, a function of the seed and the number. It ends with kEnd.
  std::string story(uint64_t seed, int64_t number) const;
  static constexpr char kEnd = '\n';

  // -log P in nats of each character of `text`, which begins with a story's start; it may go on with more stories and stop anywhere.
  // ErrorCode::value: the grammar cannot produce it, with the place.
  std::vector<double> nats(std::string_view text) const;

 private:
  std::unique_ptr<const StoryGrammar> grammar_;
};

}  // namespace ridge
