#include "data/stories.h"

#include "base/error.h"
#include "data/stories_grammar.h"

namespace ridge {

Stories::Stories(int64_t longest) {
  int64_t shortest = 0;
  for (int level = kStoryLevels - 1; level >= 0 && !grammar_; --level) {
    const StoryRules rules(kStoryText, level);
    shortest = rules.longest();
    if (shortest <= longest) grammar_ = std::make_unique<StoryGrammar>(rules);
  }
  if (!grammar_) fail(ErrorCode::value, "[stories] no story fits into {} characters; the shortest kind needs {}", longest, shortest);
}

Stories::~Stories() = default;
Stories::Stories(Stories&&) noexcept = default;

std::string Stories::story(uint64_t seed, int64_t number) const {
  std::string text;
  grammar_->generate(seed, number, text);
  return text;
}

std::vector<double> Stories::nats(std::string_view text) const { return grammar_->read(text); }

}  // namespace ridge
