// The rules compiled: a machine that tells stories, reads them, and knows the probability of each next character.
// The alternatives of a rule begin with texts of which none is the beginning of another, so reading never has to look ahead or back.
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
  explicit StoryGrammar(const StoryRules& rules);  // ErrorCode::internal: the beginnings do not tell alternatives apart
  ~StoryGrammar();

  // Appends a story; returns -log P of the choices that made it.
  double tell(uint64_t seed, int64_t number, std::string& out) const;

  // -log P of each character after those before it. ErrorCode::value: no text of this grammar, with the place.
  std::vector<double> read(std::string_view text) const;

  // What can follow `text`, and how probable it is.
  std::vector<std::pair<char, double>> next(std::string_view text) const;

  double entropy() const;  // of a story, in nats; from the rules alone

  struct Tables;

 private:
  std::unique_ptr<const Tables> tables_;
};

}  // namespace ridge
