#include "compile/index_map.h"

#include <algorithm>
#include <cstdlib>

namespace ridge {

Domain Domain::of(const Shape& shape) {
  Domain d{shape, contiguous_strides(shape), contiguous_strides(shape), {}, Shape::filled(shape.rank(), 0), shape};
  for (int i = 0; i < shape.rank(); ++i) d.origin.push_back(i);
  return d;
}

void split_axis(Domain& d, const SplitAxis& at) {
  if (d.rank() == kMaxRank) throw Refusal{"needs more than 8 loops"};
  d.sizes[at.axis] /= at.inner;
  d.high[at.axis] = d.sizes[at.axis];
  d.low.insert(at.axis + 1, 0);
  d.high.insert(at.axis + 1, at.inner);
  d.sizes.insert(at.axis + 1, at.inner);
  d.full.insert(at.axis + 1, d.full[at.axis]);
  d.full[at.axis] *= at.inner;
  d.kept.insert(at.axis + 1, d.kept[at.axis]);
  d.kept[at.axis] *= at.inner;
  d.origin.insert(d.origin.begin() + at.axis + 1, d.origin[at.axis]);
}

IndexMap split_linear(const Domain& d, const Affine& linear, const Shape& shape) {
  int loops = d.rank();
  IndexMap out(shape.rank(), Affine{0, Shape::filled(loops, 0)});
  if (shape.numel() == 0) return out;
  // Count every loop upwards from the smallest element inside the borders.
  struct Term {
    int64_t stride, size;
    int axis;
    bool falling;
  };
  std::vector<Term> terms;
  int64_t rest = linear.offset;
  for (int a = 0; a < loops; ++a) {
    int64_t s = linear.strides[a], count = d.high[a] - d.low[a];
    if (s == 0) continue;
    if (count <= 0) return out;  // nothing is accessed
    rest += s * (s < 0 ? d.high[a] - 1 : d.low[a]);
    if (count > 1) terms.push_back({std::llabs(s), count, a, s < 0});
  }
  if (rest < 0) throw Refusal{"a view begins before its source"};
  Shape strides = contiguous_strides(shape);
  for (int k = 0; k < shape.rank(); ++k) {
    int64_t s = strides[k], n = shape[k], highest = rest / s;
    Affine& digit = out[k];
    digit.offset = rest / s;
    rest %= s;
    for (const Term& t : terms) {
      int64_t reach = t.stride * t.size;  // one past the last multiple
      if (t.stride >= s * n || reach <= s) continue;
      if (t.stride < s || reach > s * n) {                          // the loop crosses a boundary between digits: split it there
        if (t.stride < s && (t.size - 1) * t.stride < s) continue;  // stays within the lower digit after all
        int64_t border = t.stride < s ? s : s * n, inner = border / t.stride;
        if (border % t.stride || d.sizes[t.axis] % inner || d.low[t.axis] % inner || d.high[t.axis] % inner)
          throw Refusal{"a loop does not divide along the reshape"};
        throw SplitAxis{t.axis, inner};
      }
      if (t.stride % s) throw Refusal{"a reshape mixes strides that do not divide"};
      int64_t step = t.stride / s;
      highest += step * (t.size - 1);
      digit.strides[t.axis] = t.falling ? -step : step;
      digit.offset -= digit.strides[t.axis] * (t.falling ? d.high[t.axis] - 1 : d.low[t.axis]);
    }
    if (highest >= n) throw Refusal{"a reshape of a cut view carries between axes"};
  }
  return out;
}

IndexMap through(const Graph& g, NodeId id, const IndexMap& map, const Domain& d) {
  const Node& n = g[id];
  const Shape& from = g.shape(n.in[0]);
  const std::vector<int64_t>& a = n.attrs.ints;
  int rank = from.rank();
  IndexMap out(rank);
  switch (n.op) {
    case Op::reshape: {
      Affine linear{0, Shape::filled(d.rank(), 0)};
      Shape strides = contiguous_strides(n.type().shape);
      for (size_t i = 0; i < map.size(); ++i) {
        linear.offset += map[i].offset * strides[int(i)];
        for (int l = 0; l < d.rank(); ++l) linear.strides[l] += map[i].strides[l] * strides[int(i)];
      }
      return split_linear(d, linear, from);
    }
    case Op::permute:
      for (int i = 0; i < rank; ++i) out[size_t(a[i])] = map[i];
      return out;
    case Op::expand:
      for (int i = 0; i < rank; ++i) out[i] = from[i] == n.type().shape[i] ? map[i] : Affine{0, Shape::filled(d.rank(), 0)};
      return out;
    case Op::slice:
      for (int i = 0; i < rank; ++i) {
        out[i] = map[i];
        int64_t start = a[i], step = a[2 * rank + i];
        out[i].offset = out[i].offset * step + start;
        for (int l = 0; l < d.rank(); ++l) out[i].strides[l] *= step;
      }
      return out;
    case Op::flip:
      out = map;
      for (int64_t axis : a) {
        Affine& f = out[size_t(axis)];
        f.offset = from[int(axis)] - 1 - f.offset;
        for (int l = 0; l < d.rank(); ++l) f.strides[l] = -f.strides[l];
      }
      return out;
    case Op::windows: {
      for (int i = 0; i < rank; ++i) out[i] = map[i];
      Affine& f = out[size_t(a[0])];
      const Affine& tap = map[size_t(rank)];
      f.offset = f.offset * a[2] + tap.offset * a[3];
      for (int l = 0; l < d.rank(); ++l) f.strides[l] = f.strides[l] * a[2] + tap.strides[l] * a[3];
      return out;
    }
    default: throw Refusal{std::string(name(n.op)) + " is not a view"};
  }
}

std::optional<TileAccess::Bound> bound_of(const Domain& d, const Affine& f, int64_t low, int64_t high) {
  int64_t least = f.offset, most = f.offset;
  int axis = -1, moving = 0;
  for (int l = 0; l < d.rank(); ++l) {
    int64_t reach = f.strides[l] * (d.sizes[l] - 1);
    least += std::min<int64_t>(reach, 0), most += std::max<int64_t>(reach, 0);
    if (reach) axis = l, ++moving;
  }
  if (least >= low && most < high) return std::nullopt;
  if (moving == 0) return TileAccess::Bound{0, 0, 0};  // never in range
  int64_t base = f.offset;
  if (moving > 1) {
    // The slowest loop alone decides if the others never carry the index over a multiple of its step, and the borders are such multiples.
    axis = -1;
    for (int l = 0; l < d.rank(); ++l)
      if (d.sizes[l] > 1 && (axis < 0 || std::llabs(f.strides[l]) > std::llabs(f.strides[axis]))) axis = l;
    int64_t step = f.strides[axis], rest_low = f.offset, rest_high = f.offset;
    for (int l = 0; l < d.rank(); ++l)
      if (l != axis) rest_low += std::min<int64_t>(f.strides[l] * (d.sizes[l] - 1), 0), rest_high += std::max<int64_t>(f.strides[l] * (d.sizes[l] - 1), 0);
    auto floored = [&](int64_t x) { return x >= 0 ? x / step : -((-x + step - 1) / step); };
    if (step <= 0 || floored(rest_low) != floored(rest_high) || low % step || high % step) throw Refusal{"a border runs across several loops"};
    base = floored(rest_low) * step;
  }
  int64_t s = f.strides[axis], n = d.sizes[axis];
  auto up = [](int64_t x, int64_t y) { return x >= 0 ? (x + y - 1) / y : -((-x) / y); };  // ceiling, y > 0
  int64_t first, last;
  if (s > 0)
    first = up(low - base, s), last = up(high - base, s);
  else
    first = up(base - high + 1, -s), last = up(base - low + 1, -s);
  return TileAccess::Bound{axis, std::clamp<int64_t>(first, 0, n), std::clamp<int64_t>(last, 0, n)};
}

std::optional<View> resolve_view(const Graph& g, NodeId node, const StorageFn& storage) {
  Domain d = Domain::of(g.shape(node));
  for (int attempt = 0; attempt < 16; ++attempt) {
    try {
      // Each axis of the node is one loop, or the loops that it was split into.
      IndexMap map(g.shape(node).rank(), Affine{0, Shape::filled(d.rank(), 0)});
      std::vector<int64_t> inner(map.size(), 1);
      for (int l = d.rank() - 1; l >= 0; --l) {
        map[size_t(d.origin[l])].strides[l] = inner[size_t(d.origin[l])];
        inner[size_t(d.origin[l])] *= d.sizes[l];
      }
      NodeId at = node;
      Storage place = storage(at);
      while (!place.owner) {
        NodeId source = g[at].in[0];
        Storage below = storage(source);
        if (g[at].op == Op::reshape)
          while (!below.owner && g[source].op == Op::reshape) source = g[source].in[0], below = storage(source);
        if (g[at].op != Op::reshape || !below.owner) source = g[at].in[0], below = storage(source);
        if (g[at].op == Op::reshape && below.owner && below.strides == contiguous_strides(g.shape(source))) {
          below.strides = contiguous_strides(g.shape(at));  // a reshape of a contiguous buffer
          at = source, place = below;
          break;
        }
        map = through(g, at, map, d);
        at = source;
        place = below;
      }
      View v{at, place.owner, place.offset, std::vector<std::vector<View::Loop>>(size_t(g.shape(node).rank()))};
      const Shape& strides = place.strides;
      Shape total = Shape::filled(d.rank(), 0);
      for (size_t a = 0; a < map.size(); ++a) {
        v.offset += map[a].offset * strides[int(a)];
        for (int l = 0; l < d.rank(); ++l) total[l] += map[a].strides[l] * strides[int(a)];
      }
      for (int l = 0; l < d.rank(); ++l) {
        auto& loops = v.axes[size_t(d.origin[l])];
        // Neighbouring loops that one stride covers are merged again.
        if (!loops.empty() && loops.back().stride == total[l] * d.sizes[l])
          loops.back().size *= d.sizes[l], loops.back().stride = total[l];
        else
          loops.push_back({d.sizes[l], total[l]});
      }
      return v;
    } catch (const SplitAxis& at) {
      try {
        split_axis(d, at);
      } catch (const Refusal&) {
        return std::nullopt;
      }
    } catch (const Refusal&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<std::vector<std::array<int64_t, 3>>> common_loops(const std::vector<View::Loop>& a, const std::vector<View::Loop>& b) {
  // From the fastest loop outwards: the smaller piece must divide the larger.
  std::vector<std::array<int64_t, 3>> out;
  size_t i = a.size(), j = b.size();
  View::Loop x{1, 0}, y{1, 0};
  while (true) {
    while (x.size == 1 && i > 0) x = a[--i];
    while (y.size == 1 && j > 0) y = b[--j];
    if (x.size == 1 && y.size == 1) break;
    int64_t n = std::min(x.size, y.size);
    if (n == 0) {
      out.push_back({0, 0, 0});
      break;
    }
    if (n == 1 || x.size % n || y.size % n) return std::nullopt;
    out.push_back({n, x.stride, y.stride});
    x.size /= n, x.stride *= n, y.size /= n, y.stride *= n;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace ridge
