// Computes any Einstein sum by permutations, reshapes, products and sums, pair by pair in the cheapest order.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "graph/builder.h"

namespace ridge {
namespace {

using Labels = std::vector<int>;    // letters; negative labels are axes of an ellipsis counted from its end (-1 is the last)
constexpr size_t kExhaustive = 10;  // up to this many operands all subsets are tried; above that the cheapest pair goes first

struct Term {
  NodeId node = kNone;
  Labels labels;  // one per axis, all different
};

struct Equation {
  std::vector<Labels> in;
  Labels out;
};

bool contains(const Labels& labels, int label) { return std::find(labels.begin(), labels.end(), label) != labels.end(); }

[[noreturn]] void refuse(const std::string& equation, const std::string& why) { fail(ErrorCode::value, "[einsum] \"{}\": {}", equation, why); }

// The labels of one term; `axes` is the number of axes that its ellipsis represents.
Labels parse_term(const std::string& equation, std::string_view text, int axes) {
  Labels labels;
  bool dots = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ' ') continue;
    if (std::isalpha(static_cast<unsigned char>(text[i]))) {
      labels.push_back(text[i]);
    } else if (text.substr(i, 3) == "..." && !dots) {
      for (int k = axes; k > 0; --k) labels.push_back(-k);
      dots = true, i += 2;
    } else {
      refuse(equation, fmt::format("'{}' is neither a letter nor one \"...\" of a term", text[i]));
    }
  }
  return labels;
}

int letters(std::string_view text) {
  return int(std::count_if(text.begin(), text.end(), [](unsigned char c) { return std::isalpha(c); }));
}

Equation parse(const std::string& equation, std::span<const Shape> shapes) {
  size_t arrow = equation.find("->");
  std::string_view left = std::string_view(equation).substr(0, arrow);
  std::vector<std::string_view> texts;
  for (size_t at = 0; at <= left.size();) {
    size_t comma = std::min(left.find(',', at), left.size());
    texts.push_back(left.substr(at, comma - at));
    at = comma + 1;
  }
  if (texts.size() != shapes.size()) refuse(equation, fmt::format("it names {} operands, {} were given", texts.size(), shapes.size()));
  Equation e;
  int axes = 0;  // the longest ellipsis
  for (size_t i = 0; i < texts.size(); ++i) {
    int rank = shapes[i].rank(), named = letters(texts[i]);
    bool dots = texts[i].find("...") != std::string_view::npos;
    if (named > rank || (!dots && named < rank))
      fail(ErrorCode::shape, "[einsum] \"{}\": operand {} is {} and has {} axes, its term \"{}\" names {}", equation, i, to_string(shapes[i]), rank, texts[i],
           named);
    if (dots) axes = std::max(axes, rank - named);
    e.in.push_back(parse_term(equation, texts[i], rank - named));
  }
  if (arrow != std::string::npos) {
    e.out = parse_term(equation, std::string_view(equation).substr(arrow + 2), axes);
    for (size_t i = 0; i < e.out.size(); ++i) {
      bool known = std::any_of(e.in.begin(), e.in.end(), [&](const Labels& l) { return contains(l, e.out[i]); });
      if (!known) refuse(equation, fmt::format("'{}' of the result is in no operand", char(e.out[i])));
      if (std::count(e.out.begin(), e.out.end(), e.out[i]) > 1) refuse(equation, fmt::format("'{}' appears twice in the result", char(e.out[i])));
    }
  } else {  // the ellipsis, then the letters that occur once, in alphabetical order
    std::map<int, int> seen;
    for (const Labels& l : e.in)
      for (int label : l) ++seen[label];
    for (int k = axes; k > 0; --k) e.out.push_back(-k);
    for (auto [label, times] : seen)
      if (label >= 0 && times == 1) e.out.push_back(label);
  }
  return e;
}

class Contraction {
 public:
  Contraction(Builder& b, const std::string& equation, Labels out) : b_(b), equation_(equation), out_(std::move(out)) {}

  NodeId run(std::vector<Term> terms) {
    for (Term& t : terms) take_diagonals(t);
    for (const Term& t : terms)
      for (size_t i = 0; i < t.labels.size(); ++i) {
        int64_t n = b_.shape(t.node)[int(i)];
        auto [it, first] = sizes_.try_emplace(t.labels[i], n);
        if (!first && it->second != n && n != 1 && it->second != 1)
          fail(ErrorCode::shape, "[einsum] \"{}\": '{}' has sizes {} and {}; equal labels need equal sizes or 1", equation_, label_name(t.labels[i]),
               it->second, n);
        if (it->second == 1) it->second = n;
      }
    for (Term& t : terms) drop_broadcast_axes(t);
    while (terms.size() > kExhaustive) contract_cheapest_pair(terms);
    Term last = terms.size() == 1 ? terms[0] : contract_all(terms);
    sum_except(last, out_);
    Shape order;
    for (int label : out_) order.push_back(std::find(last.labels.begin(), last.labels.end(), label) - last.labels.begin());
    return b_.permute(last.node, order);
  }

 private:
  static std::string label_name(int label) { return label < 0 ? "..." : std::string(1, char(label)); }

  // Two axes with the same label are merged into one of n * n elements, of which every (n + 1)th is on the diagonal.
  void take_diagonals(Term& t) {
    for (size_t i = 0; i < t.labels.size(); ++i)
      for (size_t j = i + 1; j < t.labels.size();) {
        if (t.labels[i] != t.labels[j]) {
          ++j;
          continue;
        }
        Shape s = b_.shape(t.node), order, merged;
        int64_t n = s[int(i)];
        if (s[int(j)] != n)
          fail(ErrorCode::shape, "[einsum] \"{}\": '{}' names axes of {} and {} elements of one operand; a diagonal needs equal sizes", equation_,
               label_name(t.labels[i]), n, s[int(j)]);
        for (int a = 0; a < s.rank(); ++a)
          if (a != int(i) && a != int(j)) order.push_back(a), merged.push_back(s[a]);
        order.push_back(int64_t(i)), order.push_back(int64_t(j)), merged.push_back(n * n);
        t.node = b_.slice(b_.reshape(b_.permute(t.node, order), merged), -1, 0, n * n, n + 1);
        int label = t.labels[i];
        t.labels.erase(t.labels.begin() + long(j));
        t.labels.erase(t.labels.begin() + long(i));
        t.labels.push_back(label);
        j = i + 1;
      }
  }

  // An axis of size 1 broadcasts if another operand has a larger size; dropping the axis has the same effect.
  void drop_broadcast_axes(Term& t) {
    Shape kept;
    Labels labels;
    for (size_t i = 0; i < t.labels.size(); ++i) {
      int64_t n = b_.shape(t.node)[int(i)];
      if (n != sizes_.at(t.labels[i])) continue;
      kept.push_back(n), labels.push_back(t.labels[i]);
    }
    t = {b_.reshape(t.node, kept), labels};
  }

  void sum_except(Term& t, const Labels& keep) const {
    std::vector<int64_t> axes;
    Labels kept;
    for (size_t i = 0; i < t.labels.size(); ++i)
      if (contains(keep, t.labels[i]))
        kept.push_back(t.labels[i]);
      else
        axes.push_back(int64_t(i));
    if (axes.empty()) return;
    DType type = b_.dtype(t.node);
    t = {b_.cast(b_.sum(t.node, axes), type), kept};
  }

  int64_t product(const Labels& labels) const {
    int64_t n = 1;
    for (int l : labels)
      if (__builtin_mul_overflow(n, sizes_.at(l), &n)) fail(ErrorCode::value, "[einsum] \"{}\": a product of sizes does not fit into 63 bits", equation_);
    return n;
  }

  // The term's axes as [one merged axis per group]; groups name all its labels.
  NodeId merged(const Term& t, std::initializer_list<const Labels*> groups) const {
    Shape order, shape;
    for (const Labels* group : groups) {
      for (int l : *group) order.push_back(std::find(t.labels.begin(), t.labels.end(), l) - t.labels.begin());
      shape.push_back(product(*group));
    }
    return b_.reshape(b_.permute(t.node, order), shape);
  }

  Term contract(Term x, Term y, const Labels& keep) const {
    Labels needed_x = keep, needed_y = keep;
    needed_x.insert(needed_x.end(), y.labels.begin(), y.labels.end());
    needed_y.insert(needed_y.end(), x.labels.begin(), x.labels.end());
    sum_except(x, needed_x);
    sum_except(y, needed_y);
    Labels batch, inner, left, right;
    for (int l : x.labels) (!contains(y.labels, l) ? left : contains(keep, l) ? batch : inner).push_back(l);
    for (int l : y.labels)
      if (!contains(x.labels, l)) right.push_back(l);
    Term out{kNone, batch};
    out.labels.insert(out.labels.end(), left.begin(), left.end());
    out.labels.insert(out.labels.end(), right.begin(), right.end());
    int64_t n = product(batch), rows = product(left), columns = product(right), depth = product(inner);
    DType type = b_.dtype(x.node);
    NodeId both = kNone;
    if (inner.empty()) {
      both = b_.mul(b_.reshape(merged(x, {&batch, &left}), {n, rows, 1}), b_.reshape(merged(y, {&batch, &right}), {n, 1, columns}));
    } else if (is_float(type)) {
      NodeId a = merged(x, {&batch, &left, &inner}), c = merged(y, {&batch, &inner, &right});
      both = batch.empty() ? b_.matmul(b_.reshape(a, {rows, depth}), b_.reshape(c, {depth, columns})) : b_.matmul(a, c);
    } else {  // integers stay exact
      int64_t last = -1;
      NodeId a = b_.reshape(merged(x, {&batch, &left, &inner}), {n, rows, 1, depth}),
             c = b_.reshape(merged(y, {&batch, &right, &inner}), {n, 1, columns, depth});
      both = b_.cast(b_.sum(b_.mul(a, c), {&last, 1}), type);
    }
    Shape shape;
    for (int l : out.labels) shape.push_back(sizes_.at(l));
    out.node = b_.reshape(both, shape);
    return out;
  }

  double work(const Labels& a, const Labels& b) const {
    double n = 1;
    for (int l : a) n *= double(sizes_.at(l));
    for (int l : b)
      if (!contains(a, l)) n *= double(sizes_.at(l));
    return n;
  }

  // Labels that the result or a term outside `done` still needs.
  Labels needed(const std::vector<Term>& terms, uint64_t done) const {
    Labels keep = out_;
    for (size_t i = 0; i < terms.size(); ++i)
      if (!(done >> i & 1)) keep.insert(keep.end(), terms[i].labels.begin(), terms[i].labels.end());
    return keep;
  }

  void contract_cheapest_pair(std::vector<Term>& terms) const {
    size_t first = 0, second = 1;
    for (size_t i = 0; i < terms.size(); ++i)
      for (size_t j = i + 1; j < terms.size(); ++j)
        if (work(terms[i].labels, terms[j].labels) < work(terms[first].labels, terms[second].labels)) first = i, second = j;
    Labels keep = out_;
    for (size_t i = 0; i < terms.size(); ++i)
      if (i != first && i != second) keep.insert(keep.end(), terms[i].labels.begin(), terms[i].labels.end());
    terms[first] = contract(terms[first], terms[second], keep);
    terms.erase(terms.begin() + long(second));
  }

  // Minimizes the number of multiplications over all orders: the best split of each subset into two parts.
  Term contract_all(const std::vector<Term>& terms) const {
    struct Way {
      double cost = std::numeric_limits<double>::infinity();
      uint64_t part = 0;
      Labels labels;
    };
    uint64_t all = (uint64_t(1) << terms.size()) - 1;
    std::vector<Way> ways(all + 1);
    for (size_t i = 0; i < terms.size(); ++i) ways[uint64_t(1) << i] = {0, 0, terms[i].labels};
    for (uint64_t set = 1; set <= all; ++set) {
      if (!(set & (set - 1))) continue;
      Way& way = ways[set];
      for (uint64_t part = (set - 1) & set; part > set - part; part = (part - 1) & set) {
        const Way &a = ways[part], &b = ways[set - part];
        double cost = a.cost + b.cost + work(a.labels, b.labels);
        if (cost < way.cost) way.cost = cost, way.part = part;
      }
      Labels keep = needed(terms, set);
      std::set<int> labels;
      for (uint64_t part : {way.part, set - way.part})
        for (int l : ways[part].labels)
          if (contains(keep, l)) labels.insert(l);
      way.labels.assign(labels.begin(), labels.end());
    }
    auto build = [&](auto& self, uint64_t set) -> Term {
      if (!(set & (set - 1))) return terms[size_t(__builtin_ctzll(set))];
      return contract(self(self, ways[set].part), self(self, set - ways[set].part), needed(terms, set));
    };
    return build(build, all);
  }

  Builder& b_;
  const std::string& equation_;
  Labels out_;
  std::map<int, int64_t> sizes_;
};

}  // namespace

NodeId Builder::einsum(const std::string& equation, std::span<const NodeId> operands) {
  if (operands.empty()) fail(ErrorCode::value, "[einsum] \"{}\": needs at least one operand", equation);
  std::vector<Shape> shapes;
  DType type = dtype(operands[0]);
  for (NodeId x : operands) shapes.push_back(shape(x)), type = promote(type, dtype(x));
  Equation e = parse(equation, shapes);
  std::vector<Term> terms;
  for (size_t i = 0; i < operands.size(); ++i) terms.push_back({cast(operands[i], type), e.in[i]});
  return Contraction(*this, equation, e.out).run(std::move(terms));
}

}  // namespace ridge
