#include "backend/gpu/tile_loops.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace ridge::gpu {
namespace {

using Kind = TileNode::Kind;
using Form = TileGroup::Template;

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(), kHighest = std::numeric_limits<int64_t>::max();

struct Range {
  int64_t low = kLowest, high = kHighest;
  bool bounded() const { return low != kLowest || high != kHighest; }
};

enum Class { kKept, kReduced, kInner };

struct Axis {
  int64_t size = 1;
  Class kind = kKept;
  std::vector<int64_t> strides;  // per access
  std::vector<Range> bounds;
};

std::vector<Axis> axes_of(const TileGroup& group) {
  std::vector<Axis> axes;
  const int rank = group.domain.rank(), column = group.form == Form::column;
  for (int i = 0; i < rank; ++i) {
    Axis axis;
    axis.size = group.domain[i];
    const int from_end = rank - 1 - i - column;
    axis.kind = from_end < 0 ? kInner : group.form != Form::map && from_end < group.reduced ? kReduced : kKept;
    for (const TileAccess& access : group.accesses) {
      axis.strides.push_back(axis.size != 1 ? access.strides[i] : 0);
      Range range;
      for (const auto& b : access.bounds)
        if (b.axis == i) range.low = std::max(range.low, b.low), range.high = std::min(range.high, b.high);
      axis.bounds.push_back(range);
    }
    axes.push_back(std::move(axis));
  }
  return axes;
}

// An axis of size 1 can be dropped unless its only point is outside some access's bounds.
void drop_unit_axes(std::vector<Axis>& axes) {
  std::erase_if(axes, [](const Axis& axis) {
    return axis.size == 1 && std::all_of(axis.bounds.begin(), axis.bounds.end(), [](const Range& b) { return b.low <= 0 && b.high > 0; });
  });
}

void put_in_output_order(const TileGroup& group, std::vector<Axis>& axes) {
  for (const TileNode& node : group.nodes) {
    if (node.kind != Kind::store) continue;
    const size_t a = size_t(node.access);
    std::stable_sort(axes.begin(), axes.end(), [&](const Axis& x, const Axis& y) { return std::abs(x.strides[a]) > std::abs(y.strides[a]); });
    return;
  }
}

bool mergeable(const Axis& slow, const Axis& fast) {
  if (slow.kind != fast.kind) return false;
  for (size_t a = 0; a < slow.strides.size(); ++a)
    if (fast.bounds[a].bounded() || slow.strides[a] != fast.strides[a] * fast.size) return false;
  return true;
}

void merge_axes(std::vector<Axis>& axes) {
  for (size_t i = axes.size(); i-- > 1;) {
    Axis &slow = axes[i - 1], &fast = axes[i];
    if (!mergeable(slow, fast)) continue;
    for (size_t a = 0; a < slow.strides.size(); ++a) {
      Range& b = slow.bounds[a];
      if (b.low != kLowest) b.low = std::max<int64_t>(b.low, 0) * fast.size;
      if (b.high != kHighest) b.high = std::clamp<int64_t>(b.high, 0, slow.size) * fast.size;
    }
    slow.strides = fast.strides;
    slow.size *= fast.size;
    axes.erase(axes.begin() + long(i));
  }
}

// Adds the axes that the form requires: at least one of each class.
void complete(Form form, std::vector<Axis>& axes, size_t accesses) {
  auto has = [&](Class kind) { return std::any_of(axes.begin(), axes.end(), [&](const Axis& a) { return a.kind == kind; }); };
  auto add = [&](Class kind, size_t at) { axes.insert(axes.begin() + long(at), {1, kind, std::vector<int64_t>(accesses, 0), std::vector<Range>(accesses)}); };
  if (form == Form::map && axes.empty()) add(kKept, 0);
  if (form == Form::column && !has(kInner)) add(kInner, axes.size());
  if (form != Form::map && !has(kReduced)) add(kReduced, axes.size() - (form == Form::column));
}

// Replaces nodes that no store needs with unused literals.
void drop_dead_nodes(TileGroup& group) {
  std::vector<char> alive(group.nodes.size(), 0);
  for (size_t n = group.nodes.size(); n-- > 0;) {
    const TileNode& node = group.nodes[n];
    if (!alive[n] && node.kind != Kind::store) {
      group.nodes[n] = {.kind = Kind::literal};
      continue;
    }
    for (int in : node.in)
      if (in >= 0) alive[size_t(in)] = 1;
    if (node.access >= 0 && group.accesses[size_t(node.access)].gather >= 0) alive[size_t(group.accesses[size_t(node.access)].gather)] = 1;
  }
}

}  // namespace

TileGroup simplified(const TileGroup& group) {
  std::vector<Axis> axes = axes_of(group);
  drop_unit_axes(axes);
  if (group.form == Form::map) put_in_output_order(group, axes);
  merge_axes(axes);
  complete(group.form, axes, group.accesses.size());
  TileGroup out = group;
  drop_dead_nodes(out);
  out.domain = {};
  out.reduced = 0;
  for (const Axis& axis : axes) out.domain.push_back(axis.size), out.reduced += axis.kind == kReduced;
  for (size_t a = 0; a < out.accesses.size(); ++a) {
    TileAccess& access = out.accesses[a];
    access.strides = {};
    access.bounds.clear();
    for (size_t i = 0; i < axes.size(); ++i) {
      access.strides.push_back(axes[i].strides[a]);
      const Range& b = axes[i].bounds[a];
      if (b.bounded()) access.bounds.push_back({int(i), std::max<int64_t>(b.low, 0), std::min(b.high, axes[i].size)});
    }
  }
  return out;
}

std::vector<int> reduced_axes(const TileGroup& group) {
  std::vector<int> axes;
  const int end = group.domain.rank() - (group.form == Form::column);
  for (int i = end - group.reduced; i < end; ++i) axes.push_back(i);
  return axes;
}

std::vector<int> kept_axes(const TileGroup& group) {
  std::vector<int> axes;
  const int end = group.domain.rank() - (group.form == Form::column);
  for (int i = 0; i < group.domain.rank(); ++i)
    if (i < end - group.reduced || i >= end) axes.push_back(i);
  return axes;
}

int64_t kept_points(const TileGroup& group) {
  int64_t points = 1;
  for (int i : kept_axes(group)) points *= group.domain[i];
  return points;
}

int64_t reduced_points(const TileGroup& group) {
  int64_t points = 1;
  for (int i : reduced_axes(group)) points *= group.domain[i];
  return points;
}

TileFacts facts_of(const TileGroup& group) {
  TileFacts facts;
  const size_t nodes = group.nodes.size();
  facts.mask.assign(nodes, 0), facts.phase.assign(nodes, 0);
  for (int i : reduced_axes(group)) facts.reduced |= 1u << i;
  facts.axis = group.domain.rank() - 1;
  for (size_t n = 0; n < nodes; ++n) {
    const TileNode& node = group.nodes[n];
    auto depend = [&](int in) { facts.mask[n] |= facts.mask[size_t(in)], facts.phase[n] = std::max(facts.phase[n], facts.phase[size_t(in)]); };
    for (int in : node.in)
      if (in >= 0) depend(in);
    if (node.kind == Kind::reduce) {
      facts.mask[n] &= ~facts.reduced;
      facts.phases = std::max(facts.phases, ++facts.phase[n]);
    }
    if (node.access < 0) continue;
    const TileAccess& access = group.accesses[size_t(node.access)];
    if (access.gather >= 0) depend(access.gather);
    for (int i = 0; i < group.domain.rank(); ++i)
      if (access.strides[i] != 0 && group.domain[i] != 1) facts.mask[n] |= 1u << i;
    for (const auto& b : access.bounds) facts.mask[n] |= 1u << b.axis;
  }
  facts.store_phase = facts.phases;
  return facts;
}

bool is_wide_gather(const TileFacts& facts, const TileAccess& access) { return access.gather >= 0 && facts.wide(access.gather); }

uint32_t full_mask(const TileGroup& group) {
  uint32_t mask = 0;
  for (int i = 0; i < group.domain.rank(); ++i) mask |= uint32_t(group.domain[i] != 1) << i;
  return mask;
}

int vector_width(const TileGroup& group, const TileFacts& facts, bool open) {
  const int axis = facts.axis;
  const int64_t size = group.domain[axis];
  int64_t smallest = 16, largest = 1, widest = 1;
  const uint32_t all = full_mask(group);
  for (size_t n = 0; n < group.nodes.size(); ++n) {
    const TileNode& node = group.nodes[n];
    if ((node.kind != Kind::load && node.kind != Kind::store) || !facts.wide(int(n))) continue;
    const int64_t bytes = size_of(group.accesses[size_t(node.access)].dtype);
    smallest = std::min(smallest, bytes), widest = std::max(widest, bytes);
    if (facts.mask[n] == all) largest = std::max(largest, bytes);  // data that is read repeatedly is in the cache
  }
  if (smallest == 16) return 1;
  if (largest == 1) largest = widest;
  auto suits = [&](int64_t v) {
    if (!open && size % v != 0) return false;
    for (size_t n = 0; n < group.nodes.size(); ++n) {
      const TileNode& node = group.nodes[n];
      if ((node.kind != Kind::load && node.kind != Kind::store) || !facts.wide(int(n))) continue;
      const TileAccess& access = group.accesses[size_t(node.access)];
      for (const auto& b : access.bounds)
        if (b.axis == axis && (b.low % v != 0 || (b.high % v != 0 && b.high < size) || (open && b.high < size))) return false;
      if (is_wide_gather(facts, access)) continue;
      if (access.strides[axis] != 1 && size > 1) return false;
      if (access.offset % v != 0 || access.gather_stride % v != 0) return false;
      for (int i = 0; i < group.domain.rank(); ++i)
        if (i != axis && group.domain[i] > 1 && access.strides[i] % v != 0) return false;
    }
    return true;
  };
  // 16 bytes of the widest elements, so that neighbouring threads access neighbouring bytes. Next to narrow elements, the widest may take two accesses.
  for (int64_t v = std::min<int64_t>(largest == 8 && smallest < 8 ? 4 : 16 / largest, 8); v > 1; v /= 2)
    if (suits(v)) return int(v);
  return 1;
}

Transposed transposed_loads(const TileGroup& group, const TileFacts& facts) {
  constexpr int64_t kShort = 16, kMaxShared = 2;
  Transposed out;
  if (group.form != Form::map || group.domain[facts.axis] < kShort) return out;
  for (int n = 0; n < int(group.nodes.size()); ++n) {
    const TileNode& node = group.nodes[size_t(n)];
    if (node.kind != Kind::load || node.in[0] >= 0) continue;
    const TileAccess& access = group.accesses[size_t(node.access)];
    const int64_t step = std::abs(access.strides[facts.axis]);
    if (access.gather >= 0 || step <= 1 || int64_t(out.loads.size()) == kMaxShared) continue;
    for (int i = 0; i < group.domain.rank(); ++i) {
      if (i == facts.axis || access.strides[i] != 1 || group.domain[i] < kShort || (out.axis >= 0 && out.axis != i)) continue;
      out.axis = i, out.loads.push_back(n);
      break;
    }
  }
  return out;
}

bool fits_32_bits(const TileGroup& group) {
  constexpr double kMax = double((int64_t(1) << 31) - (1 << 20));
  double points = 1;
  for (int64_t size : group.domain) points *= double(size);
  if (points >= kMax) return false;
  for (const TileAccess& access : group.accesses) {
    if (access.operand < 0) continue;
    double reach = double(std::abs(access.offset)) + double(std::abs(access.gather_stride)) * double(access.gather >= 0 ? access.gather_size : 0);
    for (int i = 0; i < group.domain.rank(); ++i) reach += double(std::abs(access.strides[i])) * double(std::max<int64_t>(group.domain[i] - 1, 0));
    if (reach >= kMax) return false;
  }
  return true;
}

}  // namespace ridge::gpu
