// The built-in corpus: short stories from a probabilistic grammar in which every text has exactly one derivation, so that the exact probability of each
// character given the preceding ones is known.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ridge {

class StoryGrammar;

// Immutable, so it can be shared by threads.
class Stories {
 public:
  // No story is longer than `longest` characters, including its end; ErrorCode::value if the grammar has no story that short.
  explicit Stories(int64_t longest);
  ~Stories();
  Stories(Stories&&) noexcept;

  // Story `number`, determined by the seed and the number. It ends with kEnd.
  std::string story(uint64_t seed, int64_t number) const;
  static constexpr char kEnd = '\n';

  // -log P in nats of each character of `text`, which starts at the beginning of a story; it may continue with more stories and stop anywhere.
  // ErrorCode::value: the grammar cannot produce it; the message gives the position.
  std::vector<double> nats(std::string_view text) const;

 private:
  std::unique_ptr<const StoryGrammar> grammar_;
};

}  // namespace ridge
