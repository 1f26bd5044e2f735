// Parses the stories' rules into tables, keeping only the alternatives of one level.
//
//   girl (sex=girl, he=she): Lily | Mia              words, most frequent first, with attributes for all of them
//   count: three (less=two) | four (less=three)      or for one of them
//   child: [girl] | [boy]                            a choice among other rules' alternatives
//   open: [hero=child] had a [thing@hero.sex].       the choice is remembered; the rule is thing.girl or thing.boy, as the hero's sex says
//     | Once {hero} saw {hero.his} [thing.girl].     repeats a word, or one of its attributes
//   next.girl/boy: <She/He> ran$ | Then <she/he> hid$ @2-3    two rules, and levels at which an alternative counts (@2: 2 and up)
//
// _ is a space, $ the end of a story, # begins a comment.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ridge {

struct StoryPart {
  enum class Kind : uint8_t { text, echo, set, choose } kind = Kind::text;
  std::string text = {};               // text: the characters; choose: the rule, or the first part of its name
  std::string variable = {};           // echo, set: whose; choose: what remembers the choice, or empty
  std::string attribute = {};          // echo: of the word, empty: the word itself
  std::string selector = {}, by = {};  // choose: the rule is text.VALUE, by this attribute of this variable
  int word = -1;                       // set
};

struct StoryWord {
  std::string text;
  std::map<std::string, std::string> attributes;
};

struct StoryAlternative {
  double weight = 0;  // adds up to 1 in a rule
  std::vector<StoryPart> parts;
  int word = -1;  // its number when it is one
};

class StoryRules {
 public:
  // The rules in `text` at one level. Alternatives that begin with a rule are replaced by that rule's, so that the first characters distinguish
  // the alternatives. ErrorCode::internal: a rule is invalid.
  StoryRules(std::string_view text, int level);

  using Table = std::map<std::string, std::vector<StoryAlternative>>;
  const Table& rules() const { return rules_; }  // that "story" can reach
  const std::vector<StoryWord>& words() const { return words_; }
  const std::vector<int>& words_of(const std::string& variable) const;  // its possible values
  const std::string& attribute(int word, const std::string& name) const;
  int64_t longest() const { return longest_; }  // upper bound on a story's characters
  int depth() const { return depth_; }          // nesting depth of rules

 private:
  Table read(std::string_view text, int level);
  void spell_out(StoryAlternative& alternative, const Table& written) const;
  void flatten(const std::string& name, const Table& written, Table& flat);
  void keep_reachable(const Table& flat);
  void gather_variables();
  struct Size {
    int64_t characters = -1;
    int depth = 0;
  };
  Size size_of(const std::string& rule, std::map<std::string, Size>& known) const;
  std::vector<std::string> chosen_by(const StoryPart& part) const;  // the rules that a choice can refer to

  Table rules_;
  std::vector<StoryWord> words_;
  std::map<std::string, std::vector<int>> variables_;
  int64_t longest_ = 0;
  int depth_ = 0;
};

extern const std::string_view kStoryText;  // the built-in rules
constexpr int kStoryLevels = 6;            // 0 and up

}  // namespace ridge
