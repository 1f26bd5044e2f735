#include "backend/cpu/tile_axes.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace ridge::cpu {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(), kHighest = std::numeric_limits<int64_t>::max();

enum Class { kKept, kReduced, kInner };

struct Builder {
  TileAxes axes;
  std::vector<Class> classes;
  int never = -1;

  size_t count() const { return axes.sizes.size(); }

  void erase(size_t axis) {
    axes.sizes.erase(axes.sizes.begin() + long(axis));
    classes.erase(classes.begin() + long(axis));
    for (auto& s : axes.strides) s.erase(s.begin() + long(axis));
    for (auto& b : axes.bounds) b.erase(b.begin() + long(axis));
  }

  int append(Class kind) {
    axes.sizes.push_back(1);
    classes.push_back(kind);
    for (auto& s : axes.strides) s.push_back(0);
    for (auto& b : axes.bounds) b.push_back({kLowest, kHighest});
    return int(count()) - 1;
  }

  void permute(const std::vector<size_t>& order) {
    auto apply = [&](auto& list) {
      auto copy = list;
      for (size_t i = 0; i < order.size(); ++i) list[i] = copy[order[i]];
    };
    apply(axes.sizes), apply(classes);
    for (auto& s : axes.strides) apply(s);
    for (auto& b : axes.bounds) apply(b);
  }

  // An axis of size 1 can be dropped unless its only point is outside some access's bounds.
  void drop_unit_axes() {
    for (size_t i = count(); i-- > 0;) {
      if (axes.sizes[i] != 1) continue;
      bool plain = std::all_of(axes.bounds.begin(), axes.bounds.end(), [&](const auto& b) { return b[i].low <= 0 && b[i].high > 0; });
      if (plain) erase(i);
    }
  }

  bool mergeable(size_t i) const {  // axis i with the faster axis i + 1
    if (classes[i] != classes[i + 1]) return false;
    for (size_t a = 0; a < axes.strides.size(); ++a) {
      if (axes.bounds[a][i + 1].bounded() || axes.strides[a][i] != axes.strides[a][i + 1] * axes.sizes[i + 1]) return false;
    }
    return true;
  }

  void merge_axes() {
    for (size_t i = count(); i-- > 1;) {
      if (!mergeable(i - 1)) continue;
      int64_t inner = axes.sizes[i];
      for (size_t a = 0; a < axes.strides.size(); ++a) {
        axes.strides[a][i - 1] = axes.strides[a][i];
        auto& b = axes.bounds[a][i - 1];
        if (b.low != kLowest) b.low = std::max<int64_t>(b.low, 0) * inner;
        if (b.high != kHighest) b.high = std::min(b.high, axes.sizes[i - 1]) * inner;
      }
      axes.sizes[i - 1] *= inner;
      erase(i);
    }
  }

  // The last axis of a class; adds one of size 1 if there is none.
  int last(Class kind) {
    for (size_t i = count(); i-- > 0;)
      if (classes[i] == kind) return int(i);
    return append(kind);
  }
};

bool is_read(const TileGroup& group, size_t access) {
  if (int(access) == group.accumulator) return true;
  for (const TileNode& node : group.nodes)
    if (node.access == int(access)) return node.kind == TileNode::Kind::load;
  return false;
}

// Orders axes slowest first in the output, so that it is written in order.
std::vector<size_t> output_order(const TileGroup& group, const Builder& b) {
  std::vector<size_t> order(b.count());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (const TileNode& node : group.nodes) {
    if (node.kind != TileNode::Kind::store) continue;
    const auto& strides = b.axes.strides[size_t(node.access)];
    std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) { return std::abs(strides[x]) > std::abs(strides[y]); });
    break;
  }
  return order;
}

// A kept axis along which some access is contiguous although it is not contiguous along the columns.
int transposed_axis(const TileGroup& group, const Builder& b, int col) {
  for (size_t a = 0; a < b.axes.strides.size(); ++a) {
    int64_t step = b.axes.strides[a][size_t(col)];
    if (step == 0 || step == 1 || !is_read(group, a)) continue;
    for (size_t i = 0; i < b.count(); ++i)
      if (int(i) != col && b.classes[i] == kKept && b.axes.strides[a][i] == 1) return int(i);
  }
  return -1;
}

}  // namespace

bool TileAxes::Range::bounded() const { return low != kLowest || high != kHighest; }

TileAxes arrange_axes(const TileGroup& group, bool fixed) {
  using Form = TileGroup::Template;
  Builder b;
  const int rank = group.domain.rank();
  for (int i = 0; i < rank; ++i) {
    b.axes.sizes.push_back(group.domain[i]);
    int from_end = rank - 1 - i;
    bool inner = group.form == Form::column && from_end == 0;
    if (group.form == Form::column) --from_end;
    bool reduced = group.form != Form::map && !inner && from_end < group.reduced;
    b.classes.push_back(inner ? kInner : reduced ? kReduced : kKept);
  }
  for (const TileAccess& access : group.accesses) {
    std::vector<int64_t> strides;
    for (int i = 0; i < rank; ++i) strides.push_back(group.domain[i] != 1 ? access.strides[i] : 0);
    b.axes.strides.push_back(strides);
    std::vector<TileAxes::Range> bounds(size_t(rank), {kLowest, kHighest});
    for (const auto& bound : access.bounds) {
      auto& range = bounds[size_t(bound.axis)];
      range.low = std::max(range.low, bound.low), range.high = std::min(range.high, bound.high);
    }
    b.axes.bounds.push_back(bounds);
  }
  TileAxes& axes = b.axes;
  if (fixed) {
    if (group.form != Form::map || rank != 3) fail(ErrorCode::internal, "[tile_epilogue] the domain is [batch, rows, columns], not rank {}", rank);
    axes.outer = {0}, axes.row = 1, axes.col = 2;
    return axes;
  }
  b.drop_unit_axes();
  if (group.form == Form::map) b.permute(output_order(group, b));
  b.merge_axes();

  if (group.form == Form::column) {
    axes.col = b.last(kInner), axes.row = b.last(kReduced);
  } else {
    axes.col = b.last(group.form == Form::row ? kReduced : kKept);
    int across = transposed_axis(group, b, axes.col);
    axes.transposes = across >= 0;
    if (across >= 0) {
      axes.row = across;
    } else if (group.form == Form::row) {
      axes.row = b.last(kKept);
    } else {
      axes.row = b.count() > 1 ? int(b.count()) - 2 : b.append(kKept);
    }
  }
  for (int i = 0; i < int(b.count()); ++i) {
    if (i == axes.row || i == axes.col) continue;
    (b.classes[size_t(i)] == kReduced ? axes.loop : axes.outer).push_back(i);
  }
  return axes;
}

}  // namespace ridge::cpu
