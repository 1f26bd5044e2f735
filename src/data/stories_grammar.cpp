#include "data/stories_grammar.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <unordered_map>

#include "base/error.h"
#include "base/rng.h"

namespace ridge {
namespace {

using Kind = StoryPart::Kind;

constexpr size_t kVariables = 32, kDepth = 32;
constexpr uint16_t kNone = 0xffff;
constexpr double kAll = 0x1p32;  // a rule's weights add up to this, so that a 32-bit draw has exactly these probabilities

struct Piece {  // a range in the pool of characters
  uint32_t begin = 0, length = 0;
};

struct StoryOp {
  Kind kind = Kind::text;
  uint16_t variable = kNone;  // echo, set: whose; choose: what remembers the choice
  uint16_t value = 0;         // echo: column of `forms`; set: word; choose: rule, or column of `selections`
  uint16_t selector = kNone;  // choose: the variable that selects the rule
  Piece piece = {};           // text
};

struct Choice {
  uint64_t weight_below = 0, weight = 0;  // sum of the choices before it; its own
  double nats = 0;
  Piece head = {};  // the first characters
  uint32_t first_op = 0, last_op = 0;
  uint16_t word = kNone;
};

// A node in the tree of all beginnings of a rule. A node without edges is a complete beginning.
struct StoryNode {
  uint32_t first_edge = 0, edges = 0, choice = 0;
};
struct Edge {
  char character = 0;
  uint32_t node = 0;
  double nats = 0;
};

struct Rule {
  uint32_t first = 0, count = 0;  // choices
  uint32_t root = 0;              // node
};

}  // namespace

struct StoryGrammar::Tables {
  std::string pool;
  std::vector<StoryOp> ops;
  std::vector<Choice> choices;
  std::vector<Rule> rules;
  std::vector<StoryNode> nodes;
  std::vector<Edge> edges;
  size_t words = 0;
  std::vector<Piece> forms;          // [column, word]
  std::vector<uint16_t> selections;  // [column, word]: rule
  std::vector<uint16_t> selectors;   // [column]: the variable
  uint16_t start = 0;

  std::string_view text(Piece p) const { return std::string_view(pool).substr(p.begin, p.length); }
};

namespace {

using Tables = StoryGrammar::Tables;

// ---- from rules to tables ----

class Compiler {
 public:
  Compiler(const StoryRules& rules, Tables& out) : rules_(rules), out_(out) {}

  void run() {
    if (rules_.depth() > int(kDepth)) fail(ErrorCode::internal, "[stories] rules are {} deep, at most {} are possible", rules_.depth(), kDepth);
    out_.words = rules_.words().size();
    for (const auto& [name, alternatives] : rules_.rules()) rule_ids_.emplace(name, uint16_t(rule_ids_.size()));
    out_.start = rule_ids_.at("story");
    out_.rules.resize(rule_ids_.size());
    for (const auto& [name, alternatives] : rules_.rules()) compile(name, alternatives);
  }

 private:
  Piece keep(std::string_view text) {
    size_t at = out_.pool.find(text);
    if (at == std::string::npos) at = out_.pool.size(), out_.pool += text;
    return {uint32_t(at), uint32_t(text.size())};
  }

  uint16_t variable(const std::string& name) {
    if (name.empty()) return kNone;
    const auto id = variable_ids_.emplace(name, uint16_t(variable_ids_.size())).first->second;
    if (id >= kVariables) fail(ErrorCode::internal, "[stories] more than {} variables", kVariables);
    return id;
  }

  uint16_t form_column(const StoryPart& part) {
    const auto [place, is_new] = form_columns_.emplace(part.variable + "." + part.attribute, uint16_t(form_columns_.size()));
    if (is_new) {
      out_.forms.resize(out_.forms.size() + out_.words);
      for (int word : rules_.words_of(part.variable)) out_.forms[place->second * out_.words + size_t(word)] = keep(rules_.attribute(word, part.attribute));
    }
    return place->second;
  }

  uint16_t selection_column(const StoryPart& part) {
    const auto [place, is_new] = selection_columns_.emplace(part.text + "@" + part.selector + "." + part.by, uint16_t(selection_columns_.size()));
    if (is_new) {
      out_.selections.resize(out_.selections.size() + out_.words, kNone);
      out_.selectors.push_back(variable(part.selector));
      for (int word : rules_.words_of(part.selector))
        out_.selections[place->second * out_.words + size_t(word)] = rule_ids_.at(part.text + "." + rules_.attribute(word, part.by));
    }
    return place->second;
  }

  StoryOp compile(const StoryPart& part) {
    StoryOp op{.kind = part.kind, .variable = variable(part.variable)};
    switch (part.kind) {
      case Kind::text: op.piece = keep(part.text); break;
      case Kind::echo: op.value = form_column(part); break;
      case Kind::set: op.value = uint16_t(part.word); break;
      case Kind::choose:
        op.selector = variable(part.selector);
        op.value = part.selector.empty() ? rule_ids_.at(part.text) : selection_column(part);
        break;
    }
    return op;
  }

  void compile(const std::string& name, const std::vector<StoryAlternative>& alternatives) {
    const uint32_t first = uint32_t(out_.choices.size());
    for (const StoryAlternative& alternative : alternatives) {
      Choice choice{.word = alternative.word < 0 ? kNone : uint16_t(alternative.word)};
      // Words remembered along the way are set right after the first characters.
      std::string head;
      std::vector<StoryOp> ops;
      size_t i = 0;
      for (; i < alternative.parts.size(); ++i) {
        const StoryPart& part = alternative.parts[i];
        if (part.kind == Kind::set)
          ops.push_back(compile(part));
        else if (part.kind == Kind::text)
          head += part.text;
        else
          break;
      }
      for (; i < alternative.parts.size(); ++i) ops.push_back(compile(alternative.parts[i]));
      choice.head = keep(head);
      choice.first_op = uint32_t(out_.ops.size());
      out_.ops.insert(out_.ops.end(), ops.begin(), ops.end());
      choice.last_op = uint32_t(out_.ops.size());
      out_.choices.push_back(choice);
    }
    weigh(first, alternatives);
    std::vector<uint32_t> sorted(alternatives.size());
    for (size_t i = 0; i < sorted.size(); ++i) sorted[i] = first + uint32_t(i);
    std::sort(sorted.begin(), sorted.end(), [&](uint32_t a, uint32_t b) { return head(a) < head(b); });
    const uint32_t root = uint32_t(out_.nodes.size());
    out_.nodes.emplace_back();
    if (sorted.size() > 1) grow(sorted, 0, root, name);
    out_.rules[rule_ids_.at(name)] = {first, uint32_t(alternatives.size()), root};
  }

  void weigh(uint32_t first, const std::vector<StoryAlternative>& alternatives) {
    uint64_t sum = 0;
    size_t heaviest = 0;
    for (size_t i = 0; i < alternatives.size(); ++i) {
      sum += out_.choices[first + i].weight = std::max<uint64_t>(1, uint64_t(std::llround(alternatives[i].weight * kAll)));
      if (alternatives[i].weight > alternatives[heaviest].weight) heaviest = i;
    }
    out_.choices[first + heaviest].weight += (uint64_t(1) << 32) - sum;  // the rounding error
    uint64_t below = 0;
    for (size_t i = 0; i < alternatives.size(); ++i) {
      Choice& choice = out_.choices[first + i];
      choice.weight_below = below;
      choice.nats = std::log(kAll) - std::log(double(choice.weight));
      below += choice.weight;
    }
  }

  std::string_view head(uint32_t choice) const { return out_.text(out_.choices[choice].head); }

  // The subtree below `node`, for choices that agree in their first `at` characters.
  void grow(std::span<const uint32_t> sorted, size_t at, uint32_t node, const std::string& name) {
    if (sorted.size() == 1 && head(sorted[0]).size() == at) {
      out_.nodes[node].choice = sorted[0];
      return;
    }
    std::vector<std::span<const uint32_t>> groups;
    for (size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
      if (head(sorted[begin]).size() == at)
        fail(ErrorCode::internal, "[stories] in rule '{}' the text '{}' is the beginning of another alternative", name, head(sorted[begin]));
      while (end < sorted.size() && head(sorted[end])[at] == head(sorted[begin])[at]) ++end;
      groups.push_back(sorted.subspan(begin, end - begin));
    }
    const auto weight = [&](std::span<const uint32_t> group) {
      uint64_t sum = 0;
      for (uint32_t choice : group) sum += out_.choices[choice].weight;
      return double(sum);
    };
    const double total = std::log(weight(sorted));
    // Most probable first, since they are searched from the front.
    std::stable_sort(groups.begin(), groups.end(), [&](auto a, auto b) { return weight(a) > weight(b); });
    const uint32_t first_edge = uint32_t(out_.edges.size()), first_node = uint32_t(out_.nodes.size());
    out_.nodes[node].first_edge = first_edge, out_.nodes[node].edges = uint32_t(groups.size());
    for (size_t i = 0; i < groups.size(); ++i) {
      const double nats = groups.size() == 1 ? 0 : total - std::log(weight(groups[i]));
      out_.edges.push_back({head(groups[i][0])[at], first_node + uint32_t(i), nats});
      out_.nodes.emplace_back();
    }
    for (size_t i = 0; i < groups.size(); ++i) grow(groups[i], at + 1, first_node + uint32_t(i), name);
  }

  const StoryRules& rules_;
  Tables& out_;
  std::unordered_map<std::string, uint16_t> rule_ids_, variable_ids_, form_columns_, selection_columns_;
};

// ---- the machine ----

class StoryMachine {
 public:
  explicit StoryMachine(const Tables& tables) : t_(&tables) { begin(); }

  void begin() {
    depth_ = 0;
    variables_.fill(0);
    rule_ = &t_->rules[t_->start], remember_ = kNone;
  }

  // Advances to the next text, or to the next choice (then text is empty); false: the story is over.
  bool next(std::string_view& text) {
    text = {};
    for (;;) {
      if (rule_) {
        if (rule_->count > 1) return true;
        text = t_->text(t_->choices[rule_->first].head);
        take(rule_->first);
        if (!text.empty()) return true;
      }
      while (depth_ > 0 && frames_[depth_ - 1].op == frames_[depth_ - 1].end) --depth_;
      if (depth_ == 0) return false;
      const StoryOp& op = t_->ops[frames_[depth_ - 1].op++];
      switch (op.kind) {
        case Kind::text: text = t_->text(op.piece); return true;
        case Kind::set: variables_[op.variable] = op.value; break;
        case Kind::echo:
          text = t_->text(t_->forms[op.value * t_->words + variables_[op.variable]]);
          if (!text.empty()) return true;
          break;
        case Kind::choose:
          rule_ = &t_->rules[op.selector == kNone ? op.value : t_->selections[op.value * t_->words + variables_[op.selector]]];
          remember_ = op.variable;
          break;
      }
    }
  }

  const Rule& rule() const { return *rule_; }  // to choose from

  void take(uint32_t choice) {
    const Choice& c = t_->choices[choice];
    if (remember_ != kNone) variables_[remember_] = c.word;
    rule_ = nullptr;
    while (depth_ > 0 && frames_[depth_ - 1].op == frames_[depth_ - 1].end) --depth_;
    if (c.first_op != c.last_op) frames_[depth_++] = {c.first_op, c.last_op};
  }

  // Everything that determines the possible continuations of a choice; remembered words count only if they select rules.
  std::string situation() const {
    std::string key;
    const auto add = [&](auto value) { key.append(reinterpret_cast<const char*>(&value), sizeof value); };  // NOLINT(bugprone-sizeof-expression)
    add(rule_);
    for (size_t i = 0; i < depth_; ++i) add(frames_[i].op), add(frames_[i].end);
    for (size_t c = 0; c < t_->selectors.size(); ++c) add(t_->selections[c * t_->words + variables_[t_->selectors[c]]]);
    if (remember_ != kNone) add(remember_);
    return key;
  }

 private:
  struct Frame {
    uint32_t op, end;
  };
  const Tables* t_;
  const Rule* rule_ = nullptr;
  uint16_t remember_ = kNone;
  size_t depth_ = 0;
  std::array<Frame, kDepth> frames_ = {};
  std::array<uint16_t, kVariables> variables_ = {};
};

// Reads endless stories one character at a time.
class StoryReader {
 public:
  explicit StoryReader(const Tables& tables) : t_(tables), machine_(tables) {}

  // -log P of the next character, or a negative number if it is impossible.
  double feed(char c) {
    skip_determined();
    if (!text_.empty()) {
      if (text_.front() != c) return -1;
      text_.remove_prefix(1);
      return 0;
    }
    const Edge *edge = &t_.edges[node_->first_edge], *end = edge + node_->edges;
    while (edge != end && edge->character != c) ++edge;
    if (edge == end) return -1;
    node_ = &t_.nodes[edge->node];
    if (node_->edges == 0) machine_.take(std::exchange(node_, nullptr)->choice);
    return edge->nats;
  }

  std::vector<std::pair<char, double>> possible() {
    skip_determined();
    if (!text_.empty()) return {{text_.front(), 1.0}};
    std::vector<std::pair<char, double>> out;
    for (uint32_t i = 0; i < node_->edges; ++i) {
      const Edge& edge = t_.edges[node_->first_edge + i];
      out.emplace_back(edge.character, std::exp(-edge.nats));
    }
    return out;
  }

 private:
  void skip_determined() {
    while (text_.empty() && !node_) {
      if (!machine_.next(text_))
        machine_.begin();
      else if (text_.empty())
        node_ = &t_.nodes[machine_.rule().root];
    }
  }

  const Tables& t_;
  StoryMachine machine_;
  std::string_view text_;            // that must follow
  const StoryNode* node_ = nullptr;  // otherwise: the position in a rule's tree
};

[[noreturn]] void refuse(StoryReader reader, std::string_view text, size_t at) {
  std::string wanted;
  for (const auto& [character, probability] : reader.possible())
    wanted += fmt::format("{}'{}'", wanted.empty() ? "" : ", ", character == '\n' ? '$' : character);
  const size_t from = at > 24 ? at - 24 : 0;
  fail(ErrorCode::value, "[stories] character {} ({:#04x}) cannot come after '{}'; possible: {} ($ ends a story)", at, uint8_t(text[at]),
       text.substr(from, at - from), wanted);
}

StoryReader reader_after(const Tables& tables, std::string_view text, double* nats) {
  StoryReader reader(tables);
  for (size_t i = 0; i < text.size(); ++i) {
    const double n = reader.feed(text[i]);
    if (n < 0) refuse(reader, text, i);
    if (nats) nats[i] = n;
  }
  return reader;
}

double entropy_from(const Tables& t, StoryMachine machine, std::unordered_map<std::string, double>& known) {
  std::string_view text;
  do {
    if (!machine.next(text)) return 0;
  } while (!text.empty());
  const std::string key = machine.situation();
  if (const auto it = known.find(key); it != known.end()) return it->second;
  double sum = 0;
  const Rule rule = machine.rule();
  for (uint32_t i = rule.first; i < rule.first + rule.count; ++i) {
    StoryMachine then = machine;
    then.take(i);
    sum += double(t.choices[i].weight) / kAll * (t.choices[i].nats + entropy_from(t, then, known));
  }
  return known[key] = sum;
}

}  // namespace

StoryGrammar::StoryGrammar(const StoryRules& rules) {
  auto tables = std::make_unique<Tables>();
  Compiler(rules, *tables).run();
  tables_ = std::move(tables);
}

StoryGrammar::~StoryGrammar() = default;

double StoryGrammar::generate(uint64_t seed, int64_t number, std::string& out) const {
  constexpr uint32_t kStream = 0x53746f72;  // separate from all other streams with the same seed
  const RandomKey key{seed, uint32_t(uint64_t(number)), uint32_t(uint64_t(number) >> 32) ^ kStream};
  std::array<uint32_t, 4> words = {};
  uint64_t draws = 0;
  double nats = 0;
  StoryMachine machine(*tables_);
  for (std::string_view text; machine.next(text);) {
    out += text;
    if (!text.empty()) continue;
    if (draws % 4 == 0) words = philox(key, draws / 4);
    const uint32_t word = words[draws++ % 4];
    const auto first = tables_->choices.begin() + machine.rule().first;
    const auto after = std::upper_bound(first, first + machine.rule().count, word, [](uint32_t w, const Choice& c) { return w < c.weight_below; });
    const Choice& choice = *(after - 1);
    out += tables_->text(choice.head);
    nats += choice.nats;
    machine.take(uint32_t(after - 1 - tables_->choices.begin()));
  }
  return nats;
}

std::vector<double> StoryGrammar::read(std::string_view text) const {
  std::vector<double> nats(text.size());
  reader_after(*tables_, text, nats.data());
  return nats;
}

std::vector<std::pair<char, double>> StoryGrammar::next(std::string_view text) const { return reader_after(*tables_, text, nullptr).possible(); }

double StoryGrammar::entropy() const {
  std::unordered_map<std::string, double> known;
  return entropy_from(*tables_, StoryMachine(*tables_), known);
}

}  // namespace ridge
