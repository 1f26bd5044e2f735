#include "data/stories_rules.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ridge {
namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> pieces;
  for (;;) {
    const size_t cut = text.find(at);
    pieces.push_back(trim(text.substr(0, cut)));
    if (cut == std::string_view::npos) return pieces;
    text.remove_prefix(cut + 1);
  }
}

// "he=she, his=her"
std::map<std::string, std::string> read_attributes(std::string_view text) {
  std::map<std::string, std::string> out;
  for (std::string_view pair : split(text, ',')) {
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos) fail(ErrorCode::internal, "[stories] '{}' is not an attribute", pair);
    out[std::string(pair.substr(0, equals))] = pair.substr(equals + 1);
  }
  return out;
}

// Removes "(…)" from the end, if present.
std::map<std::string, std::string> take_attributes(std::string_view& text) {
  if (text.empty() || text.back() != ')') return {};
  const size_t open = text.rfind('(');
  std::map<std::string, std::string> out = read_attributes(text.substr(open + 1, text.size() - open - 2));
  text = trim(text.substr(0, open));
  return out;
}

// Removes "@2" or "@2-3" from the end; returns whether it includes the level.
bool take_levels(std::string_view& text, int level) {
  const size_t at = text.rfind('@');
  if (at == std::string_view::npos || at + 1 >= text.size() || text[at + 1] < '0' || text[at + 1] > '9' || at == 0 || text[at - 1] != ' ') return true;
  const std::string_view range = text.substr(at + 1);
  text = trim(text.substr(0, at));
  return level >= range[0] - '0' && (range.size() < 3 || level <= range[2] - '0');
}

// Replaces "<He/She>" by the variant's word.
std::string variant_of(std::string_view text, size_t variant) {
  std::string out;
  while (!text.empty()) {
    const size_t open = text.find('<');
    out += text.substr(0, open);
    if (open == std::string_view::npos) break;
    const size_t close = text.find('>', open);
    if (close == std::string_view::npos) fail(ErrorCode::internal, "[stories] '<' without '>' in '{}'", text);
    const auto forms = split(text.substr(open + 1, close - open - 1), '/');
    if (variant >= forms.size()) fail(ErrorCode::internal, "[stories] '{}' lacks a form", text.substr(open, close - open + 1));
    out += forms[variant];
    text.remove_prefix(close + 1);
  }
  return out;
}

// Between the brackets: "rule", "name=rule", "name=rule@other.kind".
StoryPart read_choice(std::string_view text) {
  StoryPart part{.kind = StoryPart::Kind::choose};
  if (const size_t equals = text.find('='); equals != std::string_view::npos) {
    part.variable = text.substr(0, equals);
    text.remove_prefix(equals + 1);
  }
  const size_t at = text.find('@');
  part.text = text.substr(0, at);
  if (at == std::string_view::npos) return part;
  const std::string_view selector = text.substr(at + 1);
  const size_t dot = selector.find('.');
  if (dot == std::string_view::npos) fail(ErrorCode::internal, "[stories] '{}' names no attribute", text);
  part.selector = selector.substr(0, dot), part.by = selector.substr(dot + 1);
  return part;
}

StoryPart read_echo(std::string_view text) {
  const size_t dot = text.find('.');
  StoryPart part{.kind = StoryPart::Kind::echo, .variable = std::string(text.substr(0, dot))};
  if (dot != std::string_view::npos) part.attribute = text.substr(dot + 1);
  return part;
}

std::vector<StoryPart> read_parts(std::string_view text) {
  std::vector<StoryPart> parts;
  std::string plain;
  const auto flush = [&] {
    if (!plain.empty()) parts.push_back({.text = std::exchange(plain, {})});
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c != '[' && c != '{') {
      plain += c == '_' ? ' ' : c == '$' ? '\n' : c;
      continue;
    }
    const size_t close = text.find(c == '[' ? ']' : '}', i);
    if (close == std::string_view::npos) fail(ErrorCode::internal, "[stories] a bracket is not closed in '{}'", text);
    flush();
    const std::string_view inside = text.substr(i + 1, close - i - 1);
    parts.push_back(c == '[' ? read_choice(inside) : read_echo(inside));
    i = close;
  }
  flush();
  return parts;
}

// Lines joined to "head: alternatives", without comments.
std::vector<std::string> logical_lines(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    line = line.substr(0, line.find('#'));
    const bool continues = !line.empty() && line.front() == ' ';
    line = trim(line);
    if (line.empty()) continue;
    if (continues && lines.empty()) fail(ErrorCode::internal, "[stories] the first line is a continuation");
    if (continues)
      lines.back().append(" ").append(line);
    else
      lines.emplace_back(line);
  }
  return lines;
}

struct Head {
  std::vector<std::string> names;  // "next.girl", "next.boy"
  std::map<std::string, std::string> attributes;
};

Head read_head(std::string_view text) {
  Head head;
  head.attributes = take_attributes(text);
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos) {
    head.names.emplace_back(text);
    return head;
  }
  for (std::string_view variant : split(text.substr(dot + 1), '/')) head.names.push_back(std::string(text.substr(0, dot + 1)).append(variant));
  return head;
}

}  // namespace

StoryRules::StoryRules(std::string_view text, int level) {
  const Table written = read(text, level);
  Table flat;
  for (const auto& [name, rule] : written) flatten(name, written, flat);
  keep_reachable(flat);
  gather_variables();
  std::map<std::string, Size> known;
  const Size whole = size_of("story", known);
  longest_ = whole.characters, depth_ = whole.depth;
}

StoryRules::Table StoryRules::read(std::string_view text, int level) {
  Table written;
  for (const std::string& line : logical_lines(text)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) fail(ErrorCode::internal, "[stories] '{}' has no colon", line);
    const Head head = read_head(trim(std::string_view(line).substr(0, colon)));
    for (size_t variant = 0; variant < head.names.size(); ++variant) {
      std::vector<StoryAlternative>& rule = written[head.names[variant]];
      for (std::string_view alternative : split(std::string_view(line).substr(colon + 1), '|')) {
        if (!take_levels(alternative, level)) continue;
        StoryWord word{.text = {}, .attributes = take_attributes(alternative)};
        word.attributes.insert(head.attributes.begin(), head.attributes.end());
        StoryAlternative out{.parts = read_parts(variant_of(alternative, variant))};
        if (out.parts.size() == 1 && out.parts[0].kind == StoryPart::Kind::text) {
          word.text = out.parts[0].text;
          out.word = int(words_.size());
          words_.push_back(std::move(word));
        }
        rule.push_back(std::move(out));
      }
      // As in real text, each word is rarer than the one before.
      double total = 0;
      for (size_t i = 0; i < rule.size(); ++i) total += rule[i].weight = 1 / (double(i) + 4);
      for (StoryAlternative& alternative : rule) alternative.weight /= total;
    }
  }
  return written;
}

// A choice with only one word is replaced by the word.
void StoryRules::spell_out(StoryAlternative& alternative, const Table& written) const {
  std::vector<StoryPart> parts;
  for (StoryPart& part : alternative.parts) {
    const auto rule = part.kind == StoryPart::Kind::choose && part.selector.empty() ? written.find(part.text) : written.end();
    if (rule == written.end() || rule->second.size() != 1 || rule->second[0].word < 0) {
      parts.push_back(std::move(part));
      continue;
    }
    const int word = rule->second[0].word;
    parts.push_back({.text = words_[size_t(word)].text});
    if (!part.variable.empty()) parts.push_back({.kind = StoryPart::Kind::set, .variable = part.variable, .word = word});
  }
  alternative.parts = std::move(parts);
}

void StoryRules::flatten(const std::string& name, const Table& written, Table& flat) {
  if (flat.contains(name)) return;
  const auto found = written.find(name);
  if (found == written.end()) fail(ErrorCode::internal, "[stories] there is no rule '{}'", name);
  std::vector<StoryAlternative> out;
  for (StoryAlternative alternative : found->second) {
    spell_out(alternative, written);
    const StoryPart* first = alternative.parts.empty() ? nullptr : &alternative.parts[0];
    if (!first || first->kind != StoryPart::Kind::choose || !first->selector.empty()) {
      out.push_back(alternative);
      continue;
    }
    flatten(first->text, written, flat);
    for (const StoryAlternative& inner : flat.at(first->text)) {
      StoryAlternative joined{.weight = alternative.weight * inner.weight, .parts = inner.parts};
      if (alternative.parts.size() == 1 && first->variable.empty()) joined.word = inner.word;
      if (!first->variable.empty()) {
        if (inner.word < 0) fail(ErrorCode::internal, "[stories] '{}' remembers something that is not a word", first->variable);
        joined.parts.push_back({.kind = StoryPart::Kind::set, .variable = first->variable, .word = inner.word});
      }
      joined.parts.insert(joined.parts.end(), alternative.parts.begin() + 1, alternative.parts.end());
      out.push_back(std::move(joined));
    }
  }
  flat[name] = std::move(out);
}

void StoryRules::keep_reachable(const Table& flat) {
  std::vector<std::string> open = {"story"};
  while (!open.empty()) {
    const std::string name = open.back();
    open.pop_back();
    if (rules_.contains(name)) continue;
    const auto found = flat.find(name);
    if (found == flat.end() || found->second.empty()) fail(ErrorCode::internal, "[stories] rule '{}' has no alternatives", name);
    rules_[name] = found->second;
    for (const StoryAlternative& alternative : found->second)
      for (const StoryPart& part : alternative.parts) {
        if (part.kind != StoryPart::Kind::choose) continue;
        if (part.selector.empty()) {
          open.push_back(part.text);
          continue;
        }
        const std::string family = part.text + ".";
        for (auto it = flat.lower_bound(family); it != flat.end() && it->first.starts_with(family); ++it)
          if (!it->second.empty()) open.push_back(it->first);
      }
  }
}

void StoryRules::gather_variables() {
  const auto add = [&](const std::string& variable, int word) {
    if (word < 0) fail(ErrorCode::internal, "[stories] '{}' remembers something that is not a word", variable);
    std::vector<int>& words = variables_[variable];
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  };
  for (const auto& [name, alternatives] : rules_)
    for (const StoryAlternative& alternative : alternatives)
      for (const StoryPart& part : alternative.parts) {
        if (part.kind == StoryPart::Kind::set) add(part.variable, part.word);
        if (part.kind != StoryPart::Kind::choose || part.variable.empty()) continue;
        const std::string family = part.text + ".";
        for (const auto& [rule, chosen] : rules_)
          if (part.selector.empty() ? rule == part.text : rule.starts_with(family))
            for (const StoryAlternative& a : chosen) add(part.variable, a.word);
      }
}

const std::vector<int>& StoryRules::words_of(const std::string& variable) const {
  const auto found = variables_.find(variable);
  if (found == variables_.end()) fail(ErrorCode::internal, "[stories] nothing sets '{}'", variable);
  return found->second;
}

const std::string& StoryRules::attribute(int word, const std::string& name) const {
  const StoryWord& w = words_[size_t(word)];
  if (name.empty()) return w.text;
  const auto found = w.attributes.find(name);
  if (found == w.attributes.end()) fail(ErrorCode::internal, "[stories] '{}' has no attribute '{}'", w.text, name);
  return found->second;
}

std::vector<std::string> StoryRules::chosen_by(const StoryPart& part) const {
  if (part.selector.empty()) return {part.text};
  std::vector<std::string> names;
  for (int word : words_of(part.selector)) {
    const std::string name = part.text + "." + attribute(word, part.by);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

StoryRules::Size StoryRules::size_of(const std::string& rule, std::map<std::string, Size>& known) const {
  if (const auto it = known.find(rule); it != known.end()) {
    if (it->second.characters < 0) fail(ErrorCode::internal, "[stories] rule '{}' contains itself", rule);
    return it->second;
  }
  known[rule] = {};
  const auto found = rules_.find(rule);
  if (found == rules_.end()) fail(ErrorCode::internal, "[stories] there is no rule '{}'", rule);
  Size largest{0, 1};
  for (const StoryAlternative& alternative : found->second) {
    Size sum{0, 1};
    for (const StoryPart& part : alternative.parts) {
      Size most;
      if (part.kind == StoryPart::Kind::text) most.characters = int64_t(part.text.size());
      if (part.kind == StoryPart::Kind::echo)
        for (int word : words_of(part.variable)) most.characters = std::max(most.characters, int64_t(attribute(word, part.attribute).size()));
      if (part.kind == StoryPart::Kind::choose)
        for (const std::string& name : chosen_by(part)) {
          const Size inner = size_of(name, known);
          most = {std::max(most.characters, inner.characters), std::max(most.depth, inner.depth)};
        }
      sum = {sum.characters + std::max<int64_t>(most.characters, 0), std::max(sum.depth, most.depth + 1)};
    }
    largest = {std::max(largest.characters, sum.characters), std::max(largest.depth, sum.depth)};
  }
  return known[rule] = largest;
}

}  // namespace ridge
