#include "backend/gpu/matmul_epilogue.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/half.h"

namespace ridge::gpu {
namespace {

using Kind = TileNode::Kind;
using Function = MatmulEpilogue::Function;

bool is_stored(DType t) { return t == DType::f32 || t == DType::bf16 || t == DType::f16; }

// What is known about a node's value.
struct Value {
  enum class Form : uint8_t { other, literal, column, matrix, slope, sums } form = Form::other;
  double number = 0;    // literal
  MatmulArray array;    // column, matrix, slope
  MatmulEpilogue sums;  // without its result
  int before = -1;      // sums under gelu: the node that is gelu's input
};

class Matcher {
 public:
  explicit Matcher(const TileGroup& group) : g_(group) {
    for (const TileNode& n : group.nodes) values_.push_back(value_of(n));
  }
  const Value& operator[](int node) const { return values_[size_t(node)]; }

  // An array over the domain's rows and columns that can be a result, an addend or gelu's input.
  std::optional<MatmulArray> matrix(const TileAccess& a) const {
    if (a.operand < 0 || !a.bounds.empty() || a.gather >= 0 || !is_stored(a.dtype) || g_.domain.rank() != 3) return std::nullopt;
    MatmulArray m{a.operand, a.dtype, a.offset, a.strides[0], a.strides[1], a.strides[2]};
    if (g_.domain[0] == 1) m.batch = 0;
    if (g_.domain[2] == 1) m.column = 1;
    if (g_.domain[1] == 1) m.row = g_.domain[2];
    if (m.column != 1 || m.row < g_.domain[2] || m.batch < 0 || (g_.domain[0] > 1 && m.batch == 0)) return std::nullopt;
    return m;
  }

  // The node with any casts around it skipped.
  int behind_casts(int node) const {
    while (g_.nodes[size_t(node)].kind == Kind::elementwise && g_.nodes[size_t(node)].op == Op::cast && is_stored(g_.nodes[size_t(node)].dtype))
      node = g_.nodes[size_t(node)].in[0];
    return node;
  }

 private:
  std::optional<MatmulArray> column(const TileAccess& a) const {
    if (a.operand < 0 || !a.bounds.empty() || a.gather >= 0 || !is_stored(a.dtype) || g_.domain.rank() != 3) return std::nullopt;
    if ((a.strides[0] != 0 && g_.domain[0] > 1) || (a.strides[1] != 0 && g_.domain[1] > 1) || (a.strides[2] != 1 && g_.domain[2] > 1)) return std::nullopt;
    return MatmulArray{a.operand, a.dtype, a.offset, 0, 0, 1};
  }

  Value value_of(const TileNode& n) const {
    Value v;
    switch (n.kind) {
      case Kind::literal:
        v.form = Value::Form::literal, v.number = n.value;
        if (n.dtype == DType::bf16) v.number = bf16_to_f32(f32_to_bf16(float(n.value)));
        if (n.dtype == DType::f16) v.number = f16_to_f32(f32_to_f16(float(n.value)));
        return v;
      case Kind::load: return loaded(n);
      case Kind::elementwise: break;
      default: return v;
    }
    if (!is_stored(n.dtype)) return v;
    const Value none, &x = n.in[0] >= 0 ? values_[size_t(n.in[0])] : none, &y = n.in[1] >= 0 ? values_[size_t(n.in[1])] : none;
    switch (n.op) {
      case Op::cast: return x;
      case Op::add: {
        const Value sum = added(x, y);
        return sum.form == Value::Form::sums ? sum : added(y, x);
      }
      case Op::mul: {
        const Value scaled = multiplied(x, y);
        return scaled.form == Value::Form::sums ? scaled : multiplied(y, x);
      }
      case Op::div:
        if (y.form == Value::Form::literal && y.number != 0) {
          Value inverse = y;
          inverse.number = 1 / y.number;
          return multiplied(x, inverse);
        }
        return v;
      case Op::relu:
      case Op::gelu_tanh:
        if (x.form != Value::Form::sums || x.sums.function != Function::none) return v;
        v = x;
        v.sums.function = n.op == Op::relu ? Function::relu : Function::gelu;
        v.before = behind_casts(n.in[0]);
        return v;
      case Op::gelu_tanh_grad:
        if (x.form != Value::Form::matrix) return v;
        v = x;
        v.form = Value::Form::slope;
        return v;
      default: return v;
    }
  }

  Value loaded(const TileNode& n) const {
    Value v;
    if (n.access == g_.accumulator) {
      v.form = Value::Form::sums;
      return v;
    }
    const TileAccess& a = g_.accesses[size_t(n.access)];
    if (const auto c = column(a)) {
      v.form = Value::Form::column, v.array = *c;
    } else if (const auto m = matrix(a)) {
      v.form = Value::Form::matrix, v.array = *m;
    }
    return v;
  }

  static Value added(const Value& sums, const Value& term) {
    if (sums.form != Value::Form::sums || sums.sums.function != Function::none) return {};
    Value v = sums;
    if (term.form == Value::Form::column && !v.sums.bias) {
      v.sums.bias = term.array;
      return v;
    }
    if (term.form == Value::Form::matrix && !v.sums.addend) {
      v.sums.addend = term.array;
      return v;
    }
    return {};
  }

  static Value multiplied(const Value& sums, const Value& factor) {
    if (sums.form != Value::Form::sums || sums.sums.function != Function::none || sums.sums.bias || sums.sums.addend) return {};
    Value v = sums;
    if (factor.form == Value::Form::literal) {
      v.sums.alpha *= factor.number;
      return v;
    }
    if (factor.form == Value::Form::slope) {
      v.sums.function = Function::gelu_grad, v.sums.aux = factor.array;
      return v;
    }
    return {};
  }

  const TileGroup& g_;
  std::vector<Value> values_;
};

// Removes the nodes that nothing reads and renumbers the others.
TileGroup without_dead_nodes(const TileGroup& from) {
  std::vector<char> alive(from.nodes.size(), 0);
  for (size_t i = from.nodes.size(); i-- > 0;) {
    const TileNode& n = from.nodes[i];
    if (n.kind == Kind::store || n.kind == Kind::check) alive[i] = 1;
    if (!alive[i]) continue;
    for (int in : n.in)
      if (in >= 0) alive[size_t(in)] = 1;
    if (n.access >= 0 && from.accesses[size_t(n.access)].gather >= 0) alive[size_t(from.accesses[size_t(n.access)].gather)] = 1;
  }
  TileGroup to = from;
  to.nodes.clear(), to.accesses.clear();
  std::vector<int> at(from.nodes.size(), -1), access(from.accesses.size(), -1);
  for (size_t i = 0; i < from.nodes.size(); ++i) {
    if (!alive[i]) continue;
    TileNode n = from.nodes[i];
    for (int& in : n.in)
      if (in >= 0) in = at[size_t(in)];
    if (n.access >= 0) {
      int& a = access[size_t(n.access)];
      if (a < 0) {
        a = int(to.accesses.size());
        to.accesses.push_back(from.accesses[size_t(n.access)]);
        if (to.accesses.back().gather >= 0) to.accesses.back().gather = at[size_t(to.accesses.back().gather)];
      }
      n.access = a;
    }
    at[i] = int(to.nodes.size());
    to.nodes.push_back(n);
  }
  to.accumulator = from.accumulator >= 0 ? access[size_t(from.accumulator)] : -1;
  return to;
}

bool reads_accumulator(const TileGroup& g) {
  return std::any_of(g.nodes.begin(), g.nodes.end(), [&](const TileNode& n) { return n.kind == Kind::load && n.access == g.accumulator; });
}

}  // namespace

std::string MatmulEpilogue::name() const {
  std::string text;
  auto add = [&](const char* word) { text += (text.empty() ? "" : "+") + std::string(word); };
  if (alpha != 1) add("scale");
  if (bias) add("bias");
  if (addend) add("add");
  if (function == Function::relu) add("relu");
  if (function == Function::gelu) add("gelu");
  if (function == Function::gelu_grad) add("gelu_grad");
  if (function == Function::gelu && aux) add("aux");
  return text;
}

std::optional<MatmulEpilogue> match_epilogue(const TileGroup& g) {
  if (g.accumulator < 0 || g.form != TileGroup::Template::map || g.domain.rank() != 3) return std::nullopt;
  const Matcher values(g);
  std::vector<const TileNode*> stores;
  for (const TileNode& n : g.nodes) {
    if (n.kind == Kind::check) return std::nullopt;
    if (n.kind == Kind::store) stores.push_back(&n);
  }
  if (stores.empty() || stores.size() > 2) return std::nullopt;
  auto whole = [&](const TileNode& store) { return values.matrix(g.accesses[size_t(store.access)]); };
  // With two stores, the one under gelu is the result and the other is gelu's input.
  if (stores.size() == 2 && values[stores[0]->in[0]].before >= 0) std::swap(stores[0], stores[1]);
  const Value& last = values[stores.back()->in[0]];
  if (last.form != Value::Form::sums) return std::nullopt;
  MatmulEpilogue e = last.sums;
  const auto result = whole(*stores.back());
  if (!result) return std::nullopt;
  e.result = *result;
  if (stores.size() == 2) {
    if (e.function != Function::gelu || values.behind_casts(stores[0]->in[0]) != last.before) return std::nullopt;
    const auto aux = whole(*stores[0]);
    if (!aux) return std::nullopt;
    e.aux = *aux;
  }
  return e;
}

std::optional<SplitEpilogue> split_epilogue(const TileGroup& g) {
  if (g.accumulator < 0 || g.form != TileGroup::Template::map || g.domain.rank() != 3) return std::nullopt;
  const Matcher values(g);
  for (size_t s = 0; s < g.nodes.size(); ++s) {
    const TileNode& store = g.nodes[s];
    if (store.kind != Kind::store) continue;
    const Value& v = values[store.in[0]];
    const TileAccess& access = g.accesses[size_t(store.access)];
    if (v.form != Value::Form::sums || v.sums.function != Function::none || access.dtype != g.nodes[size_t(store.in[0])].dtype) continue;
    const auto place = values.matrix(access);
    if (!place) continue;
    TileGroup rest = g;
    TileNode& again = rest.nodes[size_t(store.in[0])];
    again = {.kind = Kind::load, .dtype = access.dtype, .access = store.access};
    rest.accesses[size_t(store.access)].streaming = false;
    // The store becomes a literal that nothing reads.
    rest.nodes[s] = {.kind = Kind::literal, .dtype = DType::f32};
    rest = without_dead_nodes(rest);
    if (rest.accumulator >= 0 && reads_accumulator(rest)) continue;
    rest.accumulator = -1;
    const bool stores = std::any_of(rest.nodes.begin(), rest.nodes.end(), [](const TileNode& n) { return n.kind == Kind::store; });
    if (!stores) continue;
    SplitEpilogue out{v.sums, std::move(rest)};
    out.first.result = *place;
    return out;
  }
  return std::nullopt;
}

std::optional<SplitEpilogue> finish_in_place(const MatmulEpilogue& whole, const Shape& domain, int operands) {
  if ((!whole.bias && whole.function == Function::none) || (whole.function == Function::gelu && whole.aux)) return std::nullopt;
  SplitEpilogue out;
  out.first = whole;
  out.first.bias = {}, out.first.aux = {}, out.first.function = Function::none;
  TileGroup& g = out.rest;
  g.domain = domain, g.operands = operands;
  auto load = [&](const MatmulArray& a) {
    TileAccess access;
    access.operand = a.operand, access.dtype = a.type, access.offset = a.offset, access.strides = {a.batch, a.row, a.column};
    g.accesses.push_back(std::move(access));
    g.nodes.push_back({.kind = Kind::load, .dtype = a.type, .access = int(g.accesses.size()) - 1});
  };
  auto last = [&] { return int(g.nodes.size()) - 1; };
  auto elementwise = [&](Op op, int x, int y = -1, DType type = DType::f32) {
    g.nodes.push_back({.kind = Kind::elementwise, .op = op, .dtype = type, .in = {x, y, -1}});
  };
  auto widened = [&](const MatmulArray& a) {
    load(a);
    if (a.type != DType::f32) elementwise(Op::cast, last());
    return last();
  };
  int value = widened(whole.result);
  if (whole.bias) {
    const int bias = widened(whole.bias);
    elementwise(Op::add, value, bias);
    value = last();
  }
  if (whole.function == Function::relu || whole.function == Function::gelu) {
    elementwise(whole.function == Function::relu ? Op::relu : Op::gelu_tanh, value);
    value = last();
  } else if (whole.function == Function::gelu_grad) {
    elementwise(Op::gelu_tanh_grad, widened(whole.aux));
    elementwise(Op::mul, value, last());
    value = last();
  }
  if (whole.result.type != DType::f32) elementwise(Op::cast, value, -1, whole.result.type), value = last();
  g.nodes.push_back({.kind = Kind::store, .dtype = whole.result.type, .in = {value, -1, -1}, .access = 0});
  return out;
}

DetachedEpilogue detach_epilogue(const TileGroup& g) {
  DetachedEpilogue out;
  out.group = g;
  TileGroup& to = out.group;
  DType narrow = DType::f32;
  bool all = true, first = true;
  for (const TileNode& n : g.nodes)
    for (int in : n.in) {
      if (in < 0 || g.nodes[size_t(in)].kind != Kind::load || g.nodes[size_t(in)].access != g.accumulator) continue;
      const bool cast = n.kind == Kind::elementwise && n.op == Op::cast && size_of(n.dtype) == 2 && is_stored(n.dtype);
      all = all && cast && (first || n.dtype == narrow);
      if (cast) narrow = n.dtype;
      first = false;
    }
  out.sums = all && !first ? narrow : DType::f32;
  TileAccess& access = to.accesses[size_t(to.accumulator)];
  access.operand = to.operands++;
  access.dtype = out.sums;
  if (out.sums != DType::f32)
    for (TileNode& n : to.nodes)
      if (n.kind == Kind::load && n.access == to.accumulator) n.dtype = out.sums;
  to.accumulator = -1;
  return out;
}

}  // namespace ridge::gpu
