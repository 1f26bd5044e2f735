#include "compile/tile_group.h"

#include <fmt/format.h>

#include "base/error.h"
#include "graph/ops/table.h"

namespace ridge {
namespace {

using Kind = TileNode::Kind;

std::string_view name(Kind kind) {
  switch (kind) {
    case Kind::load: return "load";
    case Kind::literal: return "literal";
    case Kind::index: return "index";
    case Kind::random: return "random";
    case Kind::check: return "check";
    case Kind::elementwise: return "elementwise";
    case Kind::reduce: return "reduce";
    case Kind::store: return "store";
  }
  return "unknown";
}

std::string_view name(TileGroup::Template form) { return form == TileGroup::Template::map ? "map" : form == TileGroup::Template::row ? "row" : "column"; }

std::string access_text(const TileAccess& access) {
  std::string text = fmt::format("{}:{} + {} * {}", access.operand, name(access.dtype), access.offset, to_string(access.strides));
  for (const auto& b : access.bounds) text += fmt::format(" if {} <= i{} < {}", b.low, b.axis, b.high);
  if (access.gather >= 0) text += fmt::format(" + %{} * {} (of {})", access.gather, access.gather_stride, access.gather_size);
  if (access.streaming) text += " streaming";
  return text;
}

// Which axes a node's value varies over, as bits; reduced axes drop out at a reduction.
std::vector<uint32_t> variation(const TileGroup& group, uint32_t reduced) {
  std::vector<uint32_t> varies(group.nodes.size(), 0);
  for (size_t n = 0; n < group.nodes.size(); ++n) {
    const TileNode& node = group.nodes[n];
    for (int in : node.in)
      if (in >= 0) varies[n] |= varies[size_t(in)];
    if (node.kind == Kind::reduce) varies[n] &= ~reduced;
    if (node.access < 0 || node.kind == Kind::store) continue;
    const TileAccess& access = group.accesses[size_t(node.access)];
    for (int axis = 0; axis < group.domain.rank(); ++axis)
      if (access.strides[axis] != 0 && group.domain[axis] > 1) varies[n] |= 1u << axis;
    for (const auto& b : access.bounds) varies[n] |= 1u << b.axis;
    if (access.gather >= 0) varies[n] |= varies[size_t(access.gather)];
  }
  return varies;
}

}  // namespace

std::string to_string(const TileGroup& group) {
  std::string text = fmt::format("{} {} reduced {}\n", name(group.form), to_string(group.domain), group.reduced);
  for (size_t n = 0; n < group.nodes.size(); ++n) {
    const TileNode& node = group.nodes[n];
    text += fmt::format("  %{} = {}", n, name(node.kind));
    if (node.kind == Kind::elementwise || node.kind == Kind::reduce || node.kind == Kind::random) text += " " + std::string(name(node.op));
    text += fmt::format(" {}", name(node.dtype));
    for (int in : node.in)
      if (in >= 0) text += fmt::format(" %{}", in);
    if (node.kind == Kind::literal || node.kind == Kind::check) text += fmt::format(" {}", node.value);
    if (node.kind == Kind::random) text += fmt::format(" stream {}", node.stream);
    if (node.access >= 0) text += " [" + access_text(group.accesses[size_t(node.access)]) + "]";
    text += "\n";
  }
  return text;
}

void verify(const TileGroup& group) {
  auto require = [&](bool condition, const char* rule, size_t node) {
    if (!condition) fail(ErrorCode::internal, "[tile_group] node {}: {}; in\n{}", node, rule, to_string(group));
  };
  const int rank = group.domain.rank();
  const bool map = group.form == TileGroup::Template::map, column = group.form == TileGroup::Template::column;
  for (const TileAccess& access : group.accesses) {
    require(access.strides.rank() == rank, "an access has one stride per axis", 0);
    require(access.operand < group.operands, "operands are numbered below the group's count", 0);
    for (const auto& b : access.bounds) require(b.axis >= 0 && b.axis < rank, "a bound names an axis of the domain", 0);
  }
  require(group.accumulator < int(group.accesses.size()), "the accumulator is one of the accesses", 0);
  require(map ? group.reduced == 0 : group.reduced > 0 && group.reduced <= rank - (column ? 1 : 0), "the number of reduced axes fits the template", 0);
  uint32_t reduced = 0;
  for (int axis = rank - group.reduced - (column ? 1 : 0), k = 0; k < group.reduced; ++k, ++axis) reduced |= 1u << axis;
  for (size_t n = 0; n < group.nodes.size(); ++n) {
    const TileNode& node = group.nodes[n];
    for (int in : node.in) {
      require(in < int(n), "operands come before their users", n);
      require(in < 0 || group.nodes[size_t(in)].kind != Kind::store, "a store has no value", n);
    }
    require(node.access < int(group.accesses.size()), "the access exists", n);
    const TileAccess* access = node.access >= 0 ? &group.accesses[size_t(node.access)] : nullptr;
    if (access && access->gather >= 0) {
      require(access->gather < int(n), "the gathered index comes before its user", n);
      require(!is_float(group.nodes[size_t(access->gather)].dtype), "a gathered index is an integer", n);
    }
    require(node.dtype != DType::f64, "f64 runs on the reference only", n);
    switch (node.kind) {
      case Kind::load:
        require(access && (access->operand >= 0 || node.access == group.accumulator), "a load has a memory access", n);
        require(access->dtype == node.dtype, "a load has its access's type", n);
        require(node.in[0] < 0 || group.nodes[size_t(node.in[0])].dtype == node.dtype, "a fallback has the load's type", n);
        break;
      case Kind::literal: break;
      case Kind::index: require(access && is_integer(node.dtype) && node.dtype != DType::u8, "an index is i32 or i64 and has an access", n); break;
      case Kind::random:
        require(access && node.in[0] >= 0 && node.in[1] >= 0, "a random node has an access, a seed and a step", n);
        for (int in : node.in) require(in < 0 || group.nodes[size_t(in)].dtype == DType::i64, "seed, step and base are i64", n);
        require(node.op == Op::random_uniform ? node.dtype == DType::f32 : node.op == Op::random_bits && node.dtype == DType::i32,
                "random_uniform is f32, random_bits i32", n);
        break;
      case Kind::check:
        require(access && node.in[0] >= 0 && is_integer(group.nodes[size_t(node.in[0])].dtype), "a check has an access and an integer", n);
        require(node.dtype == DType::f32, "a check gives f32", n);
        break;
      case Kind::elementwise:
        require(is_elementwise(node.op), "an elementwise node has an elementwise op", n);
        for (int k = 0; k < 3; ++k) require((node.in[size_t(k)] >= 0) == (k < row(node.op).max_in), "the op has its number of operands", n);
        break;
      case Kind::reduce: require(!map && is_reduction(node.op) && node.in[0] >= 0, "a reduction belongs to a row or column group", n); break;
      case Kind::store:
        require(access && access->operand >= 0 && node.in[0] >= 0, "a store has a value and a memory access", n);
        require(access->bounds.empty() && access->gather < 0, "a store is neither bounded nor gathered", n);
        require(access->dtype == group.nodes[size_t(node.in[0])].dtype, "a store has its value's type", n);
        break;
    }
  }
  std::vector<uint32_t> varies = variation(group, reduced);
  for (size_t n = 0; n < group.nodes.size(); ++n) {
    const TileNode& node = group.nodes[n];
    if (node.kind != Kind::store) continue;
    for (int axis = 0; axis < rank; ++axis) {
      bool lost = (varies[size_t(node.in[0])] >> axis & 1) && group.domain[axis] > 1 && group.accesses[size_t(node.access)].strides[axis] == 0;
      require(!lost, "a store has a place for every value", n);
    }
  }
}

bool moves_in_reduction(const TileGroup& t, const TileAccess& a) {
  const int end = t.domain.rank() - (t.form == TileGroup::Template::column);
  for (int l = end - t.reduced; l < end; ++l)
    if (t.domain[l] > 1 && a.strides[l] != 0) return true;
  return false;
}

}  // namespace ridge
