#include "backend/gpu/tile_writer.h"

#include <fmt/format.h>

#include <bit>
#include <cstdlib>

#include "base/error.h"
#include "base/half.h"
#include "graph/ops/table.h"

namespace ridge::gpu {
namespace {

using Kind = TileNode::Kind;

bool is_real(DType t) { return is_float(t); }

std::string joined(const std::string& a, const std::string& b) {
  if (a.empty() || a == "true") return b.empty() ? "true" : b;
  return b.empty() || b == "true" ? a : a + " && " + b;
}

// The result is one of the operands, so it needs no rounding.
bool chooses(Op op) {
  switch (op) {
    case Op::neg:
    case Op::abs:
    case Op::sign:
    case Op::relu:
    case Op::floor:
    case Op::ceil:
    case Op::round:
    case Op::minimum:
    case Op::maximum:
    case Op::select:
    case Op::clamp: return true;
    default: return false;
  }
}

}  // namespace

const char* TileWriter::type(DType t) { return is_real(t) ? "float" : t == DType::i64 ? "i64" : "int"; }

const char* TileWriter::memory(DType t) {
  switch (t) {
    case DType::f32: return "float";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i32: return "int";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
    case DType::boolean: return "truth";
    default: fail(ErrorCode::internal, "[tile_kernel] {} has no kernels on a GPU", name(t));
  }
}

std::string TileWriter::rounded(DType t, const std::string& e) {
  switch (t) {
    case DType::bf16: return "bf16_round(" + e + ")";
    case DType::f16: return "f16_round(" + e + ")";
    case DType::u8: return "((" + e + ") & 255)";
    case DType::boolean: return "(int)((" + e + ") != 0)";
    default: return e;
  }
}

TileWriter::TileWriter(const TileGroup& group, const TileFacts& facts)
    : group_(group),
      facts_(facts),
      place_(group.nodes.size()),
      target_(group.nodes.size()),
      shared_(group.nodes.size()),
      array_(group.nodes.size(), 0),
      shared_first_(group.nodes.size(), 0),
      divisor_(group.nodes.size(), 0),
      divides_(group.nodes.size(), 0) {
  for (size_t n = 0; n < group.nodes.size(); ++n) {
    const TileNode& node = group.nodes[n];
    if (node.kind == Kind::literal) place_[n] = literal(node);
    if (node.kind != Kind::elementwise || node.op != Op::div || !is_real(node.dtype)) continue;
    if (facts.body(int(n)) && !facts.body(node.in[1]) && !facts.wide(node.in[1])) divides_[size_t(node.in[1])] = 1;
  }
}

void TileWriter::line(const std::string& text) {
  text_.append(size_t(depth_) * 2, ' ');
  text_ += text;
  text_ += '\n';
}

std::string TileWriter::literal(const TileNode& node) const {
  switch (node.dtype) {
    case DType::boolean: return node.value != 0 ? "1" : "0";
    case DType::u8: return fmt::format("{}", int64_t(node.value) & 255);
    case DType::i32: return fmt::format("(int){:#x}u", uint32_t(int64_t(node.value)));
    case DType::i64: return fmt::format("(i64){:#x}ull", uint64_t(int64_t(node.value)));
    default: break;
  }
  float f = float(node.value);
  if (node.dtype == DType::bf16) f = bf16_to_f32(f32_to_bf16(f));
  if (node.dtype == DType::f16) f = f16_to_f32(f32_to_f16(f));
  return fmt::format("bits_float({:#x}u)", std::bit_cast<uint32_t>(f));
}

std::string TileWriter::value(int node) const {
  const std::string& place = place_[size_t(node)];
  if (place.empty()) fail(ErrorCode::internal, "[tile_kernel] node {} is used before it is computed; in\n{}", node, to_string(group_));
  return array_[size_t(node)] ? place + "[k]" : place;
}

std::string TileWriter::element(const TileAccess& access, bool wide_number) const {
  std::string text = fmt::format("{}", access.offset);
  if (wide_number) text = fmt::format("(i64){}ll", access.offset);
  for (int i = 0; i < group_.domain.rank(); ++i) {
    const int64_t stride = access.strides[i];
    if (stride == 0 || group_.domain[i] == 1) continue;
    if (wide_number) {
      text += fmt::format(" + (i64)x{} * {}ll", i, stride);
    } else if (stride == 1) {
      text += fmt::format(" + x{}", i);
    } else {
      text += fmt::format(" + x{} * (I){}", i, stride);
    }
  }
  return text;
}

std::string TileWriter::inside(const TileAccess& access) const {
  std::string text;
  for (const auto& b : access.bounds) {
    if (b.low > 0) text = joined(text, fmt::format("x{} >= {}", b.axis, b.low));
    if (b.high < group_.domain[b.axis]) text = joined(text, fmt::format("x{} < {}", b.axis, b.high));
  }
  return text;
}

bool TileWriter::stored_only(int node) const {
  for (const TileNode& user : group_.nodes) {
    if (user.access >= 0 && group_.accesses[size_t(user.access)].gather == node) return false;
    for (int in : user.in)
      if (in == node && user.kind != Kind::store) return false;
  }
  return true;
}

// Memory that a store writes is read only through that store's access; everything else is constant while the kernel runs.
bool TileWriter::is_fixed(const TileAccess& access) const {
  for (const TileNode& node : group_.nodes) {
    if (node.kind != Kind::store) continue;
    const TileAccess& to = group_.accesses[size_t(node.access)];
    if (to.operand == access.operand || (to.offset == access.offset && to.strides == access.strides)) return false;
  }
  return true;
}

std::vector<int> TileWriter::missing(int node) const {
  std::vector<char> wanted(group_.nodes.size(), 0);
  wanted[size_t(node)] = 1;
  for (int n = node; n >= 0; --n) {
    if (!wanted[size_t(n)] || has(n)) continue;
    const TileNode& x = group_.nodes[size_t(n)];
    if (int one = chosen(n); one >= 0) {
      wanted[size_t(one)] = 1;
      continue;
    }
    for (int in : x.in)
      if (in >= 0) wanted[size_t(in)] = 1;
    if (x.access >= 0 && group_.accesses[size_t(x.access)].gather >= 0) wanted[size_t(group_.accesses[size_t(x.access)].gather)] = 1;
  }
  std::vector<int> out;
  for (int n = 0; n <= node; ++n)
    if (wanted[size_t(n)] && !has(n)) out.push_back(n);
  return out;
}

void TileWriter::want(int node, const std::string& live) {
  for (int n : missing(node)) emit(n, live);
}

std::string TileWriter::own(int n) {
  std::string name = target_[size_t(n)];
  if (name.empty()) {
    name = fmt::format("v{}", n);
    line(fmt::format("{} {}{};", type(group_.nodes[size_t(n)].dtype), name, facts_.wide(n) ? "[V]" : ""));
  }
  place(n, name);
  return name;
}

void TileWriter::pointwise(int n, const std::string& expression) {
  const std::string name = own(n);
  if (facts_.wide(n)) {
    line("@unroll");
    line(fmt::format("for (int k = 0; k < V; ++k) {}[k] = {};", name, expression));
  } else {
    line(fmt::format("{} = {};", name, expression));
  }
}

int TileWriter::chosen(int n) const {
  const TileNode& node = group_.nodes[size_t(n)];
  if (!decided_ || node.kind != Kind::elementwise) return -1;
  if (node.op == Op::add && node.dtype == DType::f32) return is_zero(node.in[0]) ? node.in[1] : is_zero(node.in[1]) ? node.in[0] : -1;
  if (node.op != Op::select) return -1;
  const std::string& condition = place_[size_t(node.in[0])];
  return condition == "1" ? node.in[1] : condition == "0" ? node.in[2] : -1;
}

std::vector<TileWriter::Decision> TileWriter::decisions(const std::vector<char>& nodes) const {
  std::vector<Decision> out;
  for (int n = 0; n < int(nodes.size()); ++n) {
    const TileNode& node = group_.nodes[size_t(n)];
    if (!nodes[size_t(n)] || node.kind != Kind::elementwise || !is_comparison(node.op)) continue;
    for (size_t p : {0, 1}) {
      const TileNode& index = group_.nodes[size_t(node.in[p])];
      const int other = node.in[1 - p];
      if (index.kind != Kind::index || facts_.body(other) || !has(other)) continue;
      const TileAccess& access = group_.accesses[size_t(index.access)];
      if (access.strides[facts_.axis] != 1) continue;
      double reach = double(std::abs(access.offset)) + 8;
      for (int i = 0; i < group_.domain.rank(); ++i) reach += double(std::abs(access.strides[i])) * double(group_.domain[i]);
      const bool narrow = group_.nodes[size_t(other)].dtype == DType::i32 && reach < 2147483647.0;
      const std::string number = narrow ? "((int)(" + element(access, false) + "))" : "(" + element(access, true) + ")";
      const std::string first = number, last = "(" + number + " + (V - 1))", x = (narrow ? "" : "(i64)") + place_[size_t(other)];
      const bool below = (node.op == Op::less || node.op == Op::less_equal) == (p == 0);  // the index is the smaller operand
      const char* sign = node.op == Op::less || node.op == Op::greater ? "<" : "<=";
      if (node.op == Op::equal || node.op == Op::not_equal)
        out.push_back({n, fmt::format("({} < {} || {} > {})", x, first, x, last), node.op == Op::not_equal});
      else if (below)
        out.push_back({n, fmt::format("{} {} {}", last, sign, x), true});
      else
        out.push_back({n, fmt::format("{} {} {}", x, sign, first), true});
      break;
    }
  }
  return out;
}

void TileWriter::emit(int n, const std::string& live) {
  const TileNode& node = group_.nodes[size_t(n)];
  const TileAccess* access = node.access >= 0 ? &group_.accesses[size_t(node.access)] : nullptr;
  if (access && access->gather >= 0 && node.kind != Kind::load)
    fail(ErrorCode::unsupported, "[tile_kernel] a gathered element number; gather in a load; in\n{}", to_string(group_));
  auto number = [&] {
    std::string e = element(*access, true);
    if (facts_.wide(n) && access->strides[facts_.axis] != 0) e += fmt::format(" + (i64)k * {}ll", access->strides[facts_.axis]);
    return e;
  };
  switch (node.kind) {
    case Kind::load: load(n, live); break;
    case Kind::literal: break;
    case Kind::index: pointwise(n, fmt::format("({})({})", type(node.dtype), number())); break;
    case Kind::random: random(n); break;
    case Kind::check: pointwise(n, fmt::format("checked_class({}, {}ll, {}, {}, fault)", value(node.in[0]), int64_t(node.value), number(), live)); break;
    case Kind::elementwise:
      if (int one = chosen(n); one >= 0 && target_[size_t(n)].empty()) {
        place_[size_t(n)] = place_[size_t(one)], array_[size_t(n)] = array_[size_t(one)];
        break;
      }
      pointwise(n, operation(n));
      break;
    case Kind::reduce: fail(ErrorCode::internal, "[tile_kernel] reduction {} is used before it is finished; in\n{}", n, to_string(group_));
    case Kind::store: fail(ErrorCode::internal, "[tile_kernel] a store has no value");
  }
  if (node.kind != Kind::literal && target_[size_t(n)].empty()) add_divisor(n);
}

void TileWriter::add_divisor(int n) {
  if (!divides_[size_t(n)] || facts_.body(n)) return;
  line(fmt::format("const Divisor d{} = divisor({});", n, place_[size_t(n)]));
  divisor_[size_t(n)] = 1;
}

void TileWriter::load(int n, const std::string& live) {
  const TileNode& node = group_.nodes[size_t(n)];
  const TileAccess& access = group_.accesses[size_t(node.access)];
  const std::string bounds = inside(access), there = joined(live, bounds);
  std::string at = fmt::format("p{} + ({})", node.access, element(access, false));
  const bool each = is_wide_gather(facts_, access);
  if (access.gather >= 0)
    at += fmt::format(" + (I)checked_index({}, {}ll, {}, fault) * (I){}", value(access.gather), access.gather_size, there, access.gather_stride);
  const std::string name = own(n);
  if (!facts_.wide(n)) {
    line(fmt::format("{} = load_one({}, {});", name, at, there));
    if (!bounds.empty() && node.in[0] >= 0) line(fmt::format("if (!({})) {} = {};", bounds, name, value(node.in[0])));
    return;
  }
  if (each) {
    const int64_t stride = access.strides[facts_.axis];
    if (stride != 0) at += fmt::format(" + k * (I){}", stride);
    line("@unroll");
    line(fmt::format("for (int k = 0; k < V; ++k) {}[k] = load_one({}, {});", name, at, there));
  } else if (shared_[size_t(n)].empty()) {
    line(fmt::format("load<V, A, {}>({}, {}, {});", is_fixed(access) ? "true" : "false", name, at, there));
  } else if (shared_first_[size_t(n)]) {
    line(fmt::format("load_and_keep<V, A>({}, {}, {}, {});", name, at, shared_[size_t(n)], there));
  } else {
    line(fmt::format("load<V>({}, {}, {});", name, shared_[size_t(n)], live));
  }
  if (!bounds.empty() && node.in[0] >= 0) {
    line("@unroll");
    line(fmt::format("for (int k = 0; k < V; ++k) if (!({})) {}[k] = {};", bounds, name, value(node.in[0])));
  }
}

void TileWriter::random(int n) {
  const TileNode& node = group_.nodes[size_t(n)];
  const TileAccess& access = group_.accesses[size_t(node.access)];
  for (int in : node.in)
    if (in >= 0 && facts_.wide(in)) fail(ErrorCode::unsupported, "[tile_kernel] seed, step and base vary along a row; in\n{}", to_string(group_));
  const int64_t stride = access.strides[facts_.axis];
  std::string at = element(access, true);
  if (node.in[2] >= 0) at += " + " + value(node.in[2]);
  const std::string key = fmt::format("{}, {}, {}u", value(node.in[0]), value(node.in[1]), node.stream);
  const char* make = node.op == Op::random_uniform ? "uniform_of" : "(int)";
  if (facts_.wide(n) && stride == 1) {
    line(fmt::format("u32 w{}[V];", n));
    line(fmt::format("random_words<V>(w{}, {}, (u64)({}));", n, key, at));
    pointwise(n, fmt::format("{}(w{}[k])", make, n));
  } else {
    if (facts_.wide(n)) at += fmt::format(" + (i64)k * {}ll", stride);
    pointwise(n, fmt::format("{}(random_word({}, (u64)({})))", make, key, at));
  }
}

std::string TileWriter::cast(int n) const {
  const TileNode& node = group_.nodes[size_t(n)];
  const DType from = group_.nodes[size_t(node.in[0])].dtype, to = node.dtype;
  const std::string a = value(node.in[0]);
  if (to == DType::boolean) return fmt::format("(int)({} != 0)", a);
  if (is_real(to)) {
    const std::string x = is_real(from) ? a : "(float)" + a;
    return from == to || to == DType::f32 || stored_only(n) ? x : rounded(to, x);
  }
  const std::string x = is_real(from) ? "whole(" + a + ")" : a;
  if (to == DType::u8) return fmt::format("(int)({} & 255)", x);
  return fmt::format("({}){}", type(to), x);
}

// Values computed twice are equal if everything they are computed from is equal.
bool TileWriter::same_value(int a, int b) const {
  if (a == b) return true;
  if (a < 0 || b < 0) return false;
  const TileNode &x = group_.nodes[size_t(a)], &y = group_.nodes[size_t(b)];
  if (x.kind != y.kind || x.op != y.op || x.dtype != y.dtype || x.value != y.value || x.stream != y.stream || (x.access < 0) != (y.access < 0)) return false;
  if (x.access >= 0) {
    const TileAccess &p = group_.accesses[size_t(x.access)], &q = group_.accesses[size_t(y.access)];
    if (p.operand != q.operand || p.dtype != q.dtype || p.offset != q.offset || p.strides != q.strides) return false;
    if (!p.bounds.empty() || !q.bounds.empty() || p.gather >= 0 || q.gather >= 0) return false;
  }
  for (size_t i = 0; i < x.in.size(); ++i)
    if (!same_value(x.in[i], y.in[i])) return false;
  return true;
}

bool TileWriter::is_below_maximum(int n) const {
  const TileNode& node = group_.nodes[size_t(n)];
  if (node.kind != Kind::elementwise || node.op != Op::sub) return false;
  const TileNode& top = group_.nodes[size_t(node.in[1])];
  return top.kind == Kind::reduce && top.op == Op::reduce_max && same_value(top.in[0], node.in[0]);
}

std::string TileWriter::operation(int n) const {
  const TileNode& node = group_.nodes[size_t(n)];
  if (node.op == Op::cast) return cast(n);
  const std::string a = value(node.in[0]), b = node.in[1] >= 0 ? value(node.in[1]) : "", c = node.in[2] >= 0 ? value(node.in[2]) : "";
  const bool real = is_real(group_.nodes[size_t(node.in[0])].dtype);
  auto call = [&](const char* function) { return c.empty() ? b.empty() ? fmt::format("{}({})", function, a) : fmt::format("{}({}, {})", function, a, b) : ""; };
  auto compare = [&](const char* sign) { return fmt::format("(int)({} {} {})", a, sign, b); };
  auto logic = [&](const char* sign) { return fmt::format("(int)(({} != 0) {} ({} != 0))", a, sign, b); };
  std::string e;
  switch (node.op) {
    case Op::abs: e = call("size_of_value"); break;
    case Op::exp: e = call(is_below_maximum(node.in[0]) ? "exp_below" : "expf"); break;
    case Op::expm1: e = call("expm1f"); break;
    case Op::log: e = call("logf"); break;
    case Op::log1p: e = call("log1pf"); break;
    case Op::sqrt: e = call("sqrtf"); break;
    case Op::rsqrt: e = call("inverse_root"); break;
    case Op::sin: e = call("sinf"); break;
    case Op::cos: e = call("cosf"); break;
    case Op::tanh: e = call("tanhf"); break;
    case Op::erf: e = call("erff"); break;
    case Op::floor: e = real ? call("floorf") : a; break;
    case Op::ceil: e = real ? call("ceilf") : a; break;
    case Op::round: e = real ? call("round_even") : a; break;
    case Op::is_finite: e = real ? call("finite") : "1"; break;
    case Op::logical_not: e = fmt::format("(int)({} == 0)", a); break;
    case Op::div:
      if (real && group_.nodes[size_t(node.in[1])].kind == Kind::literal) {
        e = fmt::format("div({}, divisor({}))", a, b);
      } else if (real && divisor_[size_t(node.in[1])]) {
        e = fmt::format("div({}, d{})", a, node.in[1]);
      } else {
        e = call("div");
      }
      break;
    case Op::pow: e = call("power"); break;
    case Op::equal: e = compare("=="); break;
    case Op::not_equal: e = compare("!="); break;
    case Op::less: e = compare("<"); break;
    case Op::less_equal: e = compare("<="); break;
    case Op::greater: e = compare(">"); break;
    case Op::greater_equal: e = compare(">="); break;
    case Op::logical_and: e = logic("&&"); break;
    case Op::logical_or: e = logic("||"); break;
    case Op::logical_xor: e = logic("!="); break;
    case Op::select: e = fmt::format("({} ? {} : {})", a, b, c); break;
    case Op::random_at: e = fmt::format("uniform_of(philox((u64)({}), (u32)({}), (u32)((u64)({}) >> 32), (u64)({})).x)", a, c, c, b); break;
    case Op::clamp: e = fmt::format("minimum(maximum({}, {}), {})", a, b, c); break;
    default: e = call(std::string(name(node.op)).c_str()); break;
  }
  if (row(node.op).has(OpRow::truth) || chooses(node.op)) {
    const bool may_leave = node.dtype == DType::u8 && (node.op == Op::neg || node.op == Op::abs);
    const bool whole = node.dtype == DType::boolean && node.op == Op::neg;
    return may_leave || whole ? rounded(node.dtype, e) : e;
  }
  return is_real(node.dtype) && stored_only(n) ? e : rounded(node.dtype, e);
}

void TileWriter::store(int n, const std::string& live) {
  const TileNode& node = group_.nodes[size_t(n)];
  const TileAccess& access = group_.accesses[size_t(node.access)];
  want(node.in[0], live);
  std::string once = live;  // a value that does not vary along an axis is stored at the axis's first point
  for (int i = 0; i < group_.domain.rank(); ++i)
    if (group_.domain[i] > 1 && !(facts_.mask[size_t(n)] >> i & 1) && (facts_.body(n) || !(facts_.reduced >> i & 1)))
      once = joined(once, fmt::format("x{} == 0", i));
  const std::string at = fmt::format("p{} + ({})", node.access, element(access, false));
  const std::string& from = place_[size_t(node.in[0])];
  if (!facts_.wide(n)) {
    line(fmt::format("store_one({}, {}, {});", at, from, once));
  } else if (array_[size_t(node.in[0])]) {
    line(fmt::format("store<V, A>({}, {}, {}, {});", at, from, once, access.streaming ? "true" : "false"));
  } else {
    line("{");
    line(fmt::format("  {} spread_value[V];", type(access.dtype)));
    line(fmt::format("  spread<V>(spread_value, {});", from));
    line(fmt::format("  store<V, A>({}, spread_value, {}, false);", at, once));
    line("}");
  }
}

}  // namespace ridge::gpu
