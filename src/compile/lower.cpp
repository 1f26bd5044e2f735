#include "compile/lower.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "graph/draws.h"
#include "graph/ops/table.h"

namespace ridge {
namespace {

constexpr int64_t kNoGatherLimit = int64_t(1) << 62;

class Lowering {
 public:
  Lowering(const Graph& g, const GroupSpec& spec, const StorageFn& storage, Domain domain, TileGroup::Template form, int reduced, int column_inner,
           LoweredGroup& out)
      : g_(g), spec_(spec), storage_(storage), d_(std::move(domain)), out_(out), column_inner_(column_inner) {
    out_.group.form = form;
    out_.group.domain = d_.sizes;
    out_.group.reduced = reduced;
    for (NodeId id : spec.members) members_[id] = is_reduction(g[id].op);
    for (NodeId id : spec.members)
      for (NodeId in : g[id].in) members_[id] |= reaches_reduction(in);
  }

  void run() {
    for (NodeId id : spec_.stores) {
      IndexMap map = root_map(id);
      int value = is_view(g_[id].op) ? move(id, map, {}) : lower(id, map, {});
      Storage place = storage_(id);
      TileAccess access = affine_access(place, map, g_.dtype(id));
      access.operand = operand(place.owner, true);
      TileNode store{.kind = TileNode::Kind::store, .dtype = g_.dtype(id), .in = {value, -1, -1}, .access = add_access(std::move(access))};
      emit(store);
    }
    out_.group.operands = int(out_.operands.size());
  }

 private:
  using Bounds = std::vector<TileAccess::Bound>;
  using Kind = TileNode::Kind;

  bool member(NodeId id) const { return members_.count(id) != 0; }
  bool after_reduction(NodeId id) const {
    auto it = members_.find(id);
    return it != members_.end() && it->second;
  }
  bool is_transparent(NodeId id) const { return is_view(g_[id].op) && !storage_(id).owner; }
  bool repeated(NodeId id) const { return spec_.repeated && spec_.repeated->count(id); }
  bool reaches_reduction(NodeId id) const {
    if (repeated(id)) return std::any_of(g_[id].in.begin(), g_[id].in.end(), [&](NodeId in) { return reaches_reduction(in); });
    while (is_transparent(id)) {
      if (g_[id].op == Op::concat) {
        for (NodeId in : g_[id].in)
          if (reaches_reduction(in)) return true;
        return false;
      }
      id = g_[id].in[0];
      if (repeated(id)) return reaches_reduction(id);
    }
    return after_reduction(id);
  }

  int64_t full_size() const { return d_.sizes.numel(); }
  int64_t kept_size() const {
    int64_t n = 1;
    for (int l = 0; l < d_.rank(); ++l)
      if (!is_reduced(l)) n *= d_.sizes[l];
    return n;
  }
  bool is_reduced(int axis) const {
    int r = out_.group.reduced;
    if (out_.group.form == TileGroup::Template::row) return axis >= d_.rank() - r;
    if (out_.group.form == TileGroup::Template::column) return axis >= d_.rank() - column_inner_ - r && axis < d_.rank() - column_inner_;
    return false;
  }

  // The loop indices at which a node of the domain's size, before or after the reduction, is computed.
  IndexMap root_map(NodeId id) {
    int64_t n = g_.shape(id).numel();
    if (n == full_size()) return split_linear(d_, {0, d_.full}, g_.shape(id));
    if (n == kept_size() && reaches_reduction(id)) return split_linear(d_, {0, d_.kept}, g_.shape(id));
    throw Refusal{fmt::format("{} has {} elements, the loops cover {} ({} after reduction)", to_string(g_.type(id)), n, full_size(), kept_size())};
  }

  int emit(const TileNode& n) {
    out_.group.nodes.push_back(n);
    return int(out_.group.nodes.size()) - 1;
  }
  int add_access(TileAccess a) {
    out_.group.accesses.push_back(std::move(a));
    return int(out_.group.accesses.size()) - 1;
  }
  int operand(NodeId owner, bool written) {
    for (size_t i = 0; i < out_.operands.size(); ++i)
      if (out_.operands[i] == owner && bool(out_.written[i]) == written) return int(i);
    out_.operands.push_back(owner);
    out_.written.push_back(written);
    return int(out_.operands.size()) - 1;
  }

  TileAccess affine_access(const Storage& place, const IndexMap& map, DType dtype) const {
    TileAccess a;
    a.dtype = dtype;
    a.offset = place.offset;
    a.strides = Shape::filled(d_.rank(), 0);
    for (size_t i = 0; i < map.size(); ++i) {
      a.offset += map[i].offset * place.strides[int(i)];
      for (int l = 0; l < d_.rank(); ++l) a.strides[l] += map[i].strides[l] * place.strides[int(i)];
    }
    for (int l = 0; l < d_.rank(); ++l)
      if (d_.sizes[l] == 1) a.strides[l] = 0;
    return a;
  }

  int literal(DType dtype, double value) {
    TileNode n{.kind = Kind::literal, .dtype = dtype};
    n.value = value;
    return emit(n);
  }
  int elementwise(Op op, DType dtype, int a, int b = -1, int c = -1) { return emit({.kind = Kind::elementwise, .op = op, .dtype = dtype, .in = {a, b, c}}); }

  int index_node(const Affine& f, DType dtype) {
    TileAccess a;
    a.offset = f.offset;
    a.strides = f.strides;
    return emit({.kind = Kind::index, .dtype = dtype, .access = add_access(std::move(a))});
  }

  // Whether a loop index is inside a bound, as a boolean value.
  int predicate(const TileAccess::Bound& b) {
    if (b.low >= b.high) return literal(DType::boolean, 0);
    Affine f{0, Shape::filled(d_.rank(), 0)};
    f.strides[b.axis] = 1;
    int i = index_node(f, DType::i32), both = -1;
    if (b.low > 0) both = elementwise(Op::greater_equal, DType::boolean, i, literal(DType::i32, double(b.low)));
    if (b.high < d_.sizes[b.axis]) {
      int below = elementwise(Op::less, DType::boolean, i, literal(DType::i32, double(b.high)));
      both = both < 0 ? below : elementwise(Op::logical_and, DType::boolean, both, below);
    }
    return both < 0 ? literal(DType::boolean, 1) : both;
  }

  int load(NodeId id, const IndexMap& map, const Bounds& bounds, int fallback = -1) {
    if (id == spec_.matmul) {
      if (!bounds.empty()) throw Refusal{"a matmul's sums are padded"};
      TileAccess a = affine_access({id, 0, contiguous_strides(g_.shape(id))}, map, DType::f32);
      if (a.offset != 0 || !(a.strides == squeezed(d_.full))) throw Refusal{"a matmul's sums are read out of place"};
      if (out_.group.accumulator < 0) out_.group.accumulator = add_access(std::move(a));
      int raw = emit({.kind = Kind::load, .dtype = DType::f32, .access = out_.group.accumulator});
      return g_.dtype(id) == DType::f32 ? raw : elementwise(Op::cast, g_.dtype(id), raw);
    }
    return load_from(storage_(id), g_.dtype(id), map, bounds, fallback);
  }

  int load_from(const Storage& place, DType dtype, const IndexMap& map, const Bounds& bounds, int fallback) {
    TileAccess a = affine_access(place, map, dtype);
    a.operand = operand(place.owner, false);
    a.bounds = bounds;
    return emit({.kind = Kind::load, .dtype = dtype, .in = {fallback, -1, -1}, .access = add_access(std::move(a))});
  }

  Shape squeezed(Shape strides) const {
    for (int l = 0; l < d_.rank(); ++l)
      if (d_.sizes[l] == 1) strides[l] = 0;
    return strides;
  }

  struct Key {
    NodeId id;
    std::vector<int64_t> map;
    bool operator<(const Key& o) const { return id != o.id ? id < o.id : map < o.map; }
  };
  Key key_of(NodeId id, const IndexMap& map, const Bounds& bounds) const {
    Key k{id, {}};
    k.map.reserve(map.size() * size_t(1 + d_.rank()) + 3 * bounds.size());
    for (const Affine& f : map) {
      k.map.push_back(f.offset);
      for (int l = 0; l < d_.rank(); ++l) k.map.push_back(d_.sizes[l] == 1 ? 0 : f.strides[l]);
    }
    for (const auto& b : bounds) k.map.insert(k.map.end(), {b.axis, b.low, b.high});
    return k;
  }

  int lower(NodeId id, const IndexMap& map, const Bounds& bounds) {
    Key key = key_of(id, map, bounds);
    if (auto it = memo_.find(key); it != memo_.end()) return it->second;
    int value = compute(id, map, bounds);
    memo_.emplace(std::move(key), value);
    return value;
  }

  int compute(NodeId id, const IndexMap& map, const Bounds& bounds) {
    const Node& n = g_[id];
    if (n.op == Op::literal) return literal(n.type().dtype, n.attrs.reals[0]);
    if (is_transparent(id)) return move(id, map, bounds);
    if (!member(id) && !repeated(id)) return load(id, map, bounds);
    if (!repeated(id) && !seen_.emplace(id, key_of(id, map, {}).map).second && seen_[id] != key_of(id, map, {}).map && !cheap(id))
      throw Refusal{fmt::format("{} would be computed at several places", name(n.op))};
    if (is_elementwise(n.op)) {
      std::array<int, 3> in{-1, -1, -1};
      for (size_t i = 0; i < n.in.size(); ++i) in[i] = lower(n.in[i], map, bounds);
      return emit({.kind = Kind::elementwise, .op = n.op, .dtype = n.type().dtype, .in = in});
    }
    if (is_reduction(n.op)) return reduce(id, map, bounds);
    if (is_view(n.op)) return move(id, map, bounds);
    switch (n.op) {
      case Op::iota: {
        DType type = n.type().dtype == DType::i32 ? DType::i32 : DType::i64;
        int index = index_node(map[size_t(n.attrs.ints[1])], type);
        return type == n.type().dtype ? index : elementwise(Op::cast, n.type().dtype, index);
      }
      case Op::random_uniform:
      case Op::random_bits: {
        TileAccess a = affine_access({id, 0, draw_strides(n)}, map, DType::i64);
        std::array<int, 3> in;
        for (int i = 0; i < 3; ++i) in[size_t(i)] = lower(n.in[size_t(i)], {}, {});
        return emit(
            {.kind = Kind::random, .op = n.op, .dtype = n.type().dtype, .in = in, .access = add_access(std::move(a)), .stream = uint32_t(n.attrs.ints[0])});
      }
      case Op::check_class: {
        TileAccess a = affine_access({id, 0, contiguous_strides(n.type().shape)}, map, DType::i64);
        TileNode check{.kind = Kind::check, .dtype = DType::f32, .in = {lower(n.in[0], map, bounds), -1, -1}, .access = add_access(std::move(a))};
        check.value = double(n.attrs.ints[0]);
        return emit(check);
      }
      case Op::take: return take(id, map, bounds);
      case Op::gather: return gather(id, map, bounds);
      case Op::dynamic_slice: return dynamic_slice(id, map, bounds);
      default: throw Refusal{std::string(name(n.op)) + " does not fuse"};
    }
  }

  // The domain restricted to the given borders.
  Domain inside(const Bounds& bounds) const {
    Domain d = d_;
    for (const auto& b : bounds) d.low[b.axis] = std::max(d.low[b.axis], b.low), d.high[b.axis] = std::min(d.high[b.axis], b.high);
    return d;
  }

  int move(NodeId id, const IndexMap& map, const Bounds& bounds) {
    if (g_[id].op == Op::pad) return pad(id, map, bounds);
    if (g_[id].op == Op::concat) return concat(id, map, bounds);
    // A reshape of a contiguous buffer has the same linear index, so its axes need not be separated.
    if (g_[id].op == Op::reshape) {
      NodeId source = g_[id].in[0];
      while (g_[source].op == Op::reshape && is_transparent(source)) source = g_[source].in[0];
      if (source != spec_.matmul && !is_transparent(source) && !member(source) && !repeated(source) && g_[source].op != Op::literal)
        if (Storage place = storage_(source); place.strides == contiguous_strides(g_.shape(source))) {
          place.strides = contiguous_strides(g_.shape(id));
          return load_from(place, g_.dtype(id), map, bounds, -1);
        }
    }
    return lower(g_[id].in[0], through(g_, id, map, inside(bounds)), bounds);
  }

  // Arithmetic that is cheaper than a memory access may be repeated at another index.
  bool cheap(NodeId id) const { return g_[id].op == Op::iota || row(g_[id].op).effort == Effort::cheap; }

  int pad(NodeId id, const IndexMap& map, const Bounds& bounds) {
    const Node& n = g_[id];
    const Shape& from = g_.shape(n.in[0]);
    int rank = from.rank();
    if (from.numel() == 0) return literal(n.type().dtype, n.attrs.reals[0]);
    IndexMap inner = map;
    std::vector<TileAccess::Bound> own;
    for (int i = 0; i < rank; ++i) {
      int64_t low = n.attrs.ints[size_t(i)], high = n.attrs.ints[size_t(rank + i)], interior = n.attrs.ints[size_t(2 * rank + i)];
      if (interior) throw Refusal{"padding between elements does not fuse"};
      if (low || high)
        if (auto b = bound_of(d_, map[size_t(i)], low, low + from[i])) own.push_back(*b);
      inner[size_t(i)].offset -= low;
    }
    return guarded(n.in[0], inner, bounds, own, literal(n.type().dtype, n.attrs.reals[0]));
  }

  int concat(NodeId id, const IndexMap& map, const Bounds& bounds) {
    const Node& n = g_[id];
    size_t axis = size_t(n.attrs.ints[0]);
    int64_t at = 0;
    int value = -1;
    for (NodeId part : n.in) {
      int64_t size = g_.shape(part)[int(axis)];
      if (size == 0) continue;
      IndexMap inner = map;
      inner[axis].offset -= at;
      std::vector<TileAccess::Bound> own;
      if (auto b = bound_of(d_, map[axis], at, at + size)) own.push_back(*b);
      at += size;
      if (!own.empty() && own[0].low >= own[0].high) continue;  // this part is never accessed
      value = guarded(part, inner, bounds, own, value);
    }
    return value < 0 ? literal(n.type().dtype, 0) : value;
  }

  // The value of `id` where `own` holds, else the fallback.
  int guarded(NodeId id, const IndexMap& map, const Bounds& bounds, const std::vector<TileAccess::Bound>& own, int fallback) {
    if (own.empty()) return lower(id, map, bounds);
    Bounds both = bounds;
    both.insert(both.end(), own.begin(), own.end());
    Domain d = inside(both);
    NodeId at = id;
    IndexMap m = map;
    while (is_transparent(at) && is_strided_view(g_[at].op)) m = through(g_, at, m, d), at = g_[at].in[0];
    if (bounds.empty() && !member(at) && !repeated(at) && !is_transparent(at) && g_[at].op != Op::literal) return load(at, m, both, fallback);
    int value = lower(at, m, both);
    int in_range = -1;
    for (const auto& b : own) {
      int p = predicate(b);
      in_range = in_range < 0 ? p : elementwise(Op::logical_and, DType::boolean, in_range, p);
    }
    if (fallback < 0) fallback = literal(g_.dtype(id), 0);
    return elementwise(Op::select, g_.dtype(id), in_range, value, fallback);
  }

  int reduce(NodeId id, const IndexMap& map, const Bounds& bounds) {
    if (!bounds.empty()) throw Refusal{"a reduction is padded"};
    IndexMap own = split_linear(d_, {0, d_.kept}, g_.shape(id));
    if (key_of(id, own, {}).map != key_of(id, map, {}).map) throw Refusal{fmt::format("{} is read at another place than its own row", name(g_[id].op))};
    NodeId x = g_[id].in[0];
    if (g_.shape(x).numel() != full_size() || g_.shape(id).numel() != kept_size()) throw Refusal{"reductions over different loops"};
    // The operand's index: kept axes use `kept`, reduced ones their position in the operand.
    int value = lower(x, reduce_map(id), {});
    return emit({.kind = Kind::reduce, .op = g_[id].op, .dtype = g_.dtype(id), .in = {value, -1, -1}});
  }

  // The operand's indices: the domain's loops are its axes, reordered and split.
  IndexMap reduce_map(NodeId id) {
    NodeId x = g_[id].in[0];
    IndexMap map = split_linear(d_, {0, d_.full}, g_.shape(x));
    // Every loop must be reduced in the operand if and only if it is reduced in the domain.
    for (int a = 0; a < g_.shape(x).rank(); ++a) {
      bool reduced = std::find(g_[id].attrs.ints.begin(), g_[id].attrs.ints.end(), a) != g_[id].attrs.ints.end();
      for (int l = 0; l < d_.rank(); ++l)
        if (d_.sizes[l] > 1 && map[size_t(a)].strides[l] != 0 && is_reduced(l) != reduced) throw Refusal{"reductions over different axes"};
    }
    return map;
  }

  int gathered(NodeId source, const IndexMap& map, size_t axis, int index, int64_t size, const Bounds& bounds) {
    // The indexed axis contributes through the gather; all others as usual.
    NodeId at = source;
    if (is_transparent(at) || member(at)) throw Refusal{"indexing needs its source in memory"};
    Storage place = storage_(at);
    TileAccess a = affine_access(place, map, g_.dtype(at));
    a.operand = operand(place.owner, false);
    a.bounds = bounds;
    a.gather = index;
    a.gather_stride = place.strides[int(axis)];
    a.gather_size = size;
    return emit({.kind = Kind::load, .dtype = g_.dtype(at), .access = add_access(std::move(a))});
  }

  int take(NodeId id, const IndexMap& map, const Bounds& bounds) {
    const Node& n = g_[id];
    size_t axis = size_t(n.attrs.ints[0]), index_rank = size_t(g_.shape(n.in[1]).rank());
    IndexMap index_map(map.begin() + long(axis), map.begin() + long(axis + index_rank)), source;
    for (size_t i = 0; i < axis; ++i) source.push_back(map[i]);
    source.push_back({0, Shape::filled(d_.rank(), 0)});
    for (size_t i = axis + index_rank; i < map.size(); ++i) source.push_back(map[i]);
    return gathered(n.in[0], source, axis, lower(n.in[1], index_map, bounds), g_.shape(n.in[0])[int(axis)], bounds);
  }

  int gather(NodeId id, const IndexMap& map, const Bounds& bounds) {
    const Node& n = g_[id];
    size_t axis = size_t(n.attrs.ints[0]);
    int index = lower(n.in[1], map, bounds);
    IndexMap source = map;
    source[axis] = {0, Shape::filled(d_.rank(), 0)};
    return gathered(n.in[0], source, axis, index, g_.shape(n.in[0])[int(axis)], bounds);
  }

  int dynamic_slice(NodeId id, const IndexMap& map, const Bounds& bounds) {
    const Node& n = g_[id];
    NodeId x = n.in[0];
    if (is_transparent(x) || member(x)) throw Refusal{"indexing needs its source in memory"};
    Storage place = storage_(x);
    int element = -1;  // sum of clamped starts times strides
    for (int i = 0; i < g_.shape(x).rank(); ++i) {
      int64_t room = g_.shape(x)[i] - n.type().shape[i];
      if (room == 0) continue;
      int start = lower(n.in[size_t(i) + 1], {}, {});
      start = elementwise(Op::clamp, DType::i64, start, literal(DType::i64, 0), literal(DType::i64, double(room)));
      start = elementwise(Op::mul, DType::i64, start, literal(DType::i64, double(place.strides[i])));
      element = element < 0 ? start : elementwise(Op::add, DType::i64, element, start);
    }
    TileAccess a = affine_access(place, map, g_.dtype(x));
    a.operand = operand(place.owner, false);
    a.bounds = bounds;
    if (element >= 0) a.gather = element, a.gather_stride = 1, a.gather_size = kNoGatherLimit;
    return emit({.kind = Kind::load, .dtype = g_.dtype(x), .access = add_access(std::move(a))});
  }

  const Graph& g_;
  const GroupSpec& spec_;
  const StorageFn& storage_;
  Domain d_;
  LoweredGroup& out_;
  int column_inner_;                          // number of loops after the reduced ones in the column form
  std::unordered_map<NodeId, bool> members_;  // -> depends on a reduction of this group
  std::unordered_map<NodeId, std::vector<int64_t>> seen_;
  std::map<Key, int> memo_;
};

// The loops of a group: those of its reductions' operand, or of its largest stored value.
struct Frame {
  Domain domain;
  TileGroup::Template form = TileGroup::Template::map;
  int reduced = 0, inner = 0;
};

// The column form merges all trailing kept axes into its last loop; with `one_inner` only the last of them is that loop.
Frame frame_of(const Graph& g, const GroupSpec& spec, bool one_inner) {
  Frame f;
  NodeId reduction = kNone;
  for (NodeId id : spec.members)
    if (is_reduction(g[id].op)) reduction = id;
  if (!reduction) {
    if (spec.matmul) {
      const Shape& s = g.shape(spec.matmul);
      const int rows = g[spec.matmul].op == Op::conv ? 1 : s.rank() - 2;  // of a convolution: the outputs; its columns are the positions
      int64_t batch = 1, columns = 1;
      for (int i = 0; i < s.rank(); ++i) (i < rows ? batch : columns) *= i == rows ? 1 : s[i];
      f.domain = Domain::of({batch, s[rows], columns});
      return f;
    }
    NodeId largest = spec.stores[0];
    for (NodeId id : spec.stores)
      if (g.shape(id).numel() > g.shape(largest).numel()) largest = id;
    f.domain = Domain::of(g.shape(largest).rank() ? g.shape(largest) : Shape{1});  // a scalar is a loop of one
    return f;
  }
  const Shape& s = g.shape(g[reduction].in[0]);
  Shape strides = contiguous_strides(s);
  auto reduced = [&](int a) { return std::find(g[reduction].attrs.ints.begin(), g[reduction].attrs.ints.end(), a) != g[reduction].attrs.ints.end(); };
  int last = s.rank() - 1;
  while (last > 0 && s[last] == 1 && !reduced(last)) --last;
  std::vector<int> order;
  int tail = s.rank();  // trailing kept axes stay innermost
  if (!reduced(last))
    while (tail > 0 && !reduced(tail - 1)) --tail;
  if (one_inner && tail < last) tail = last;
  for (int a = 0; a < tail; ++a)
    if (!reduced(a)) order.push_back(a);
  for (int a = 0; a < s.rank(); ++a)
    if (reduced(a)) order.push_back(a), ++f.reduced;
  for (int a = tail; a < s.rank(); ++a)
    if (!reduced(a)) order.push_back(a), ++f.inner;
  f.form = f.inner ? TileGroup::Template::column : TileGroup::Template::row;
  Shape kept;
  for (int a = 0; a < s.rank(); ++a)
    if (!reduced(a)) kept.push_back(s[a]);
  Shape kept_strides = contiguous_strides(kept);
  std::vector<int64_t> kept_of(size_t(s.rank()), 0);
  for (int a = 0, k = 0; a < s.rank(); ++a)
    if (!reduced(a)) kept_of[size_t(a)] = kept_strides[k++];
  for (int a : order) {
    f.domain.sizes.push_back(s[a]);
    f.domain.full.push_back(strides[a]);
    f.domain.kept.push_back(kept_of[size_t(a)]);
    f.domain.origin.push_back(a);
    f.domain.low.push_back(0);
    f.domain.high.push_back(s[a]);
  }
  return f;
}

// Merges two neighbouring loops if every access allows it.
void merge_loops(TileGroup& g, int a) {
  int64_t outer = g.domain[a], inner = g.domain[a + 1];
  for (const TileAccess& t : g.accesses) {
    if (outer != 1 && inner != 1 && t.strides[a] != t.strides[a + 1] * inner) throw Refusal{"loops that must be one step differently"};
    for (const auto& b : t.bounds)
      if (b.axis == a || b.axis == a + 1) throw Refusal{"loops that must be one have a border"};
  }
  for (TileAccess& t : g.accesses) {
    if (inner != 1) t.strides[a] = t.strides[a + 1];
    t.strides.erase(a + 1);
    for (auto& b : t.bounds) b.axis -= b.axis > a;
  }
  g.domain[a] *= inner;
  g.domain.erase(a + 1);
}

}  // namespace

namespace {

LoweredGroup lower_in(const Graph& g, const GroupSpec& spec, const StorageFn& storage, Frame f) {
  LoweredGroup out;
  for (int attempt = 0; attempt < 16; ++attempt) {
    out = {};
    try {
      Lowering lowering(g, spec, storage, f.domain, f.form, f.reduced, f.inner, out);
      lowering.run();
      // The column form has one loop after the reduced ones; an epilogue has those of its matmul.
      if (f.form == TileGroup::Template::column)
        for (int inner = f.inner; inner > 1; --inner) merge_loops(out.group, out.group.domain.rank() - 2);
      if (spec.matmul)
        for (int l = f.domain.rank() - 2; l >= 0; --l)
          if (f.domain.origin[size_t(l)] == f.domain.origin[size_t(l) + 1]) merge_loops(out.group, l);
      return out;
    } catch (const SplitAxis& at) {
      try {
        int before_inner = f.domain.rank() - f.inner;
        split_axis(f.domain, at);
        if (at.axis >= before_inner)
          ++f.inner;
        else if (at.axis >= before_inner - f.reduced)
          ++f.reduced;
      } catch (const Refusal& r) {
        out.refusal = r.reason;
        return out;
      }
    } catch (const Refusal& r) {
      out.refusal = r.reason;
      return out;
    }
  }
  out.refusal = "the loops were split too often";
  return out;
}

}  // namespace

LoweredGroup lower_group(const Graph& g, const GroupSpec& spec, const StorageFn& storage) {
  Frame f = frame_of(g, spec, false);
  LoweredGroup out = lower_in(g, spec, storage, f);
  if (!out.refusal.empty() && f.form == TileGroup::Template::column && f.inner > 1) out = lower_in(g, spec, storage, frame_of(g, spec, true));
  return out;
}

}  // namespace ridge
