// The compiled rules: a machine that generates stories, reads them, and knows the probability of each next character. No alternative of a rule begins with text
// that is a prefix of another's, so reading needs no lookahead and no backtracking.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/stories_rules.h"

namespace ridge {

class StoryGrammar {
 public:
  explicit StoryGrammar(const StoryRules& rules);  // ErrorCode::internal: alternatives cannot be distinguished by their beginnings
  ~StoryGrammar();

  // Appends a story; returns -log P of its choices.
  double generate(uint64_t seed, int64_t number, std::string& out) const;

  // -log P of each character given the preceding ones. ErrorCode::value: not a text of this grammar; the message gives the position.
  std::vector<double> read(std::string_view text) const;

  // What can follow `text`, with probabilities.
  std::vector<std::pair<char, double>> next(std::string_view text) const;

  double entropy() const;  // of a story, in nats; computed from the rules alone

  struct Tables;

 private:
  std::unique_ptr<const Tables> tables_;
};

}  // namespace ridge
