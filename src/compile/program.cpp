#include "compile/program.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "compile/simplify.h"

namespace ridge {

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

namespace {

std::string kernel_name(const Graph& g, const Group& group) {
  if (group.kind == Group::Kind::node) return std::string(name(g[group.node].op));
  size_t ops = 0;
  bool reduces = false;
  for (const GroupSpec& s : group.specs)
    for (NodeId id : s.members) ++ops, reduces |= is_reduction(g[id].op);
  if (group.kind == Group::Kind::matmul) return ops ? fmt::format("matmul+{}", ops) : "matmul";
  std::string base = fmt::format("{}[{}]", reduces ? "reduce" : "map", ops);
  return group.specs.size() > 1 ? fmt::format("{}x{}", base, group.specs.size()) : base;
}

}  // namespace

Program::Program(Graph graph, std::vector<NodeId> inputs, std::vector<NodeId> outputs, const ProgramOptions& options)
    : graph_(std::move(graph)), inputs_(std::move(inputs)), outputs_(std::move(outputs)), options_(options) {
  size_t count = outputs_.size();
  outputs_.insert(outputs_.end(), options.forward.begin(), options.forward.end());
  outputs_ = canonicalize(graph_, outputs_, options.convolutions);
  if (options.simplify) outputs_ = simplify(graph_, outputs_);
  forward_.assign(outputs_.begin() + long(count), outputs_.end());
  outputs_.resize(count);
  // Every output is a value of its own: an input, a literal or a value that is put out twice is copied.
  std::unordered_set<NodeId> seen;
  for (NodeId& id : outputs_) {
    if (graph_[id].op == Op::input || graph_[id].op == Op::literal || seen.count(id)) {
      const Shape& s = graph_.shape(id);
      for (uint16_t copy = 1; seen.count(id) || graph_[id].op == Op::input || graph_[id].op == Op::literal; ++copy)
        id = graph_.add(Op::reshape, {graph_[id].op == Op::reshape && graph_[id].copy ? graph_[id].in[0] : id}, {{s.begin(), s.end()}, {}, nullptr}, copy);
    }
    seen.insert(id);
  }
  state_of_.assign(outputs_.size(), -1);
  for (auto it = options_.state.rbegin(); it != options_.state.rend(); ++it) state_of_[size_t(it->second)] = it->first;
  const std::unordered_set<NodeId> bound(inputs_.begin(), inputs_.end());
  for (NodeId id : topological(graph_, outputs_))
    if (graph_[id].op == Op::input && !bound.count(id))
      fail(ErrorCode::binding, "[compile] the outputs depend on input \"{}\" {}, which is not among the inputs to be bound", graph_.input_name(id),
           to_string(graph_.type(id)));
  build();
  for (std::vector<size_t> unsafe = unsafe_updates(); !unsafe.empty(); unsafe = unsafe_updates()) {
    for (size_t i : unsafe) write_apart(i);
    build();
  }
  find_live_ranges();
  if (options.plan) alias_in_place();
  mark_streaming();
}

void Program::build() {
  placed_.clear();
  kernels_.clear();
  auto fused = [&] {
    FusePlan plan = fuse(graph_, outputs_, options_.fuse, inputs_, options_.state, forward_);
    looks_ += plan.looks;
    return plan;
  };
  for (fused_ = fused(); !fused_.circular.empty(); fused_ = fused())
    for (size_t i : fused_.circular) write_apart(size_t(options_.state[i].second));
  refusals_ = fused_.refusals;
  if (options_.place) place_concats();
  build_kernels();
}

void Program::write_apart(size_t output) {
  NodeId& id = outputs_[output];
  if (is_apart(graph_[id])) fail(ErrorCode::internal, "[plan] output {} cannot be written over its old value", output);
  const Shape& s = graph_.shape(id);
  id = graph_.add(Op::reshape, {id}, {{s.begin(), s.end()}, {}, nullptr}, kApart);
}

namespace {

// Whether the element changes along a reduced loop. Where it does not, it is written when the reduction is through.
bool moves_in_reduction(const TileGroup& t, const TileAccess& a) {
  const int end = t.domain.rank() - (t.form == TileGroup::Template::column);
  for (int l = end - t.reduced; l < end; ++l)
    if (t.domain[l] > 1 && a.strides[l] != 0) return true;
  return false;
}

}  // namespace

// State that a kernel overwrites while it still reads other elements of it must go through a copy.
std::vector<size_t> Program::unsafe_updates() const {
  struct Use {
    size_t kernel, operand;
  };
  std::unordered_map<NodeId, std::vector<Use>> reads, writes;  // of old values, of new ones
  for (auto [in, result] : options_.state) reads[inputs_[size_t(in)]], writes[outputs_[size_t(result)]];
  for (size_t k = 0; k < kernels_.size(); ++k)
    for (size_t i = 0; i < kernels_[k].operands.size(); ++i) {
      const ProgramOperand& o = kernels_[k].operands[i];
      auto& uses = o.written ? writes : reads;
      if (auto it = uses.find(o.owner); it != uses.end()) it->second.push_back({k, i});
    }
  std::unordered_map<size_t, std::vector<size_t>> begins;  // of kernels: the first operand of each tile
  std::vector<size_t> out;
  for (auto [in, result] : options_.state) {
    const std::vector<Use>& all_reads = reads[inputs_[size_t(in)]];
    bool unsafe = false;
    const std::vector<Use>& all_writes = writes[outputs_[size_t(result)]];
    for (size_t w = 0; w < all_writes.size(); ++w) {
      const Use& write = all_writes[w];
      if (w + 1 < all_writes.size() && all_writes[w + 1].kernel == write.kernel) continue;
      std::vector<size_t> read;  // a matmul and its epilogue may both read it
      for (const Use& r : all_reads)
        if (r.kernel == write.kernel) read.push_back(r.operand);
      if (!read.empty()) unsafe |= !updates_safely(write.kernel, read, write.operand, begins[write.kernel]);
    }
    if (unsafe) out.push_back(size_t(result));
  }
  return out;
}

// Whether a kernel may read the operands `read` and write `written` in the same memory.
bool Program::updates_safely(size_t k, const std::vector<size_t>& read, size_t written, std::vector<size_t>& begins) const {
  const ProgramKernel& kernel = kernels_[k];
  // A kernel of one node reads where it likes, except the one that leaves all but the new rows as they are.
  if (kernel.group.kind == Group::Kind::node) return graph_[kernel.group.node].op == Op::dynamic_update_slice && read.size() == 1 && read[0] == 0;
  const size_t ahead = kernel.group.kind == Group::Kind::matmul ? 2 : 0;
  if (read[0] < ahead) return false;
  if (begins.empty()) {
    begins.push_back(ahead);
    for (const TileGroup& t : kernel.tiles) begins.push_back(begins.back() + size_t(t.operands));
  }
  auto tile_of = [&](size_t operand) { return size_t(std::upper_bound(begins.begin(), begins.end(), operand) - begins.begin()) - 1; };
  std::vector<size_t> tiles;
  for (size_t operand : read) tiles.push_back(tile_of(operand));
  tiles.erase(std::unique(tiles.begin(), tiles.end()), tiles.end());
  for (size_t i : tiles) {
    if (i >= kernel.tiles.size()) continue;
    const TileGroup& t = kernel.tiles[i];
    auto is = [&](const TileAccess& a, size_t operand) { return a.operand >= 0 && size_t(a.operand) + begins[i] == operand; };
    auto reads = [&](const TileAccess& a) { return std::any_of(read.begin(), read.end(), [&](size_t operand) { return is(a, operand); }); };
    const TileAccess* to = nullptr;
    for (const TileNode& n : t.nodes)
      if (n.kind == TileNode::Kind::store && is(t.accesses[size_t(n.access)], written)) to = &t.accesses[size_t(n.access)];
    bool overwritten = false;  // a plain copy of the old value must not come after the new one
    for (const TileNode& n : t.nodes) {
      if (n.kind != TileNode::Kind::store) continue;
      const TileNode& value = t.nodes[size_t(n.in[0])];
      if (overwritten && value.kind == TileNode::Kind::load && reads(t.accesses[size_t(value.access)])) return false;
      overwritten |= &t.accesses[size_t(n.access)] == to;
    }
    for (const TileAccess& a : t.accesses)
      if (reads(a) && !(to && a.offset == to->offset && a.strides == to->strides && a.gather < 0 && a.bounds.empty() && !moves_in_reduction(t, a)))
        return false;
  }
  return true;
}

int Program::state_input(int output) const { return state_of_[size_t(output)]; }

Storage Program::storage(NodeId id) const {
  if (auto it = placed_.find(id); it != placed_.end()) return it->second;
  if (!has_memory(graph_, id, fused_)) return {};
  return {id, 0, contiguous_strides(graph_.shape(id))};
}

// Parts of a stored concat, and what an output is only another shape of, are written straight into it when they are kernels' results that nobody else needs
// whole; so are convolutions whose axes an output only has in another order, where the backend does that well.
void Program::place_concats() {
  std::unordered_map<NodeId, int> uses;
  for (NodeId id : topological(graph_, outputs_))
    for (NodeId in : graph_[id].in) ++uses[in];
  for (NodeId id : outputs_) ++uses[id];
  std::unordered_set<NodeId> updates;  // of state that is read: it is written when its readers have run, not part by part before
  for (auto [in, out] : options_.state)
    if (uses[inputs_[size_t(in)]]) updates.insert(outputs_[size_t(out)]);
  const std::unordered_set<NodeId> put_out(outputs_.begin(), outputs_.end());
  std::vector<Group> left;
  for (Group& group : fused_.groups) {
    NodeId id = group.kind == Group::Kind::tile && group.specs.size() == 1 && group.specs[0].members.size() == 1 ? group.specs[0].members[0] : kNone;
    if (id && !updates.count(id) && graph_[id].op == Op::permute) {
      const NodeId source = graph_[id].in[0];
      if (graph_[source].op == Op::conv && uses[source] == 1 && !placed_.count(source) && options_.stores_permuted && options_.stores_permuted(graph_, id)) {
        const Shape strides = contiguous_strides(graph_.shape(id));
        Storage place{id, 0, strides};
        for (int i = 0; i < strides.rank(); ++i) place.strides[int(graph_[id].attrs.ints[size_t(i)])] = strides[i];
        placed_[source] = place;
        continue;
      }
    }
    if (!id || updates.count(id) || (graph_[id].op != Op::concat && graph_[id].op != Op::reshape)) {
      left.push_back(std::move(group));
      continue;
    }
    int axis = graph_[id].op == Op::concat ? int(graph_[id].attrs.ints[0]) : 0;
    Shape strides = contiguous_strides(graph_.shape(id));
    std::vector<std::pair<NodeId, Storage>> plan;
    int64_t at = 0;
    std::vector<NodeId> parts = graph_[id].in;
    if (graph_[id].op == Op::reshape) parts = {id};  // an output that is another shape of a kernel's result
    for (NodeId part : parts) {
      // Back through reshapes to what a kernel wrote: its shape must cut the part's strides evenly.
      NodeId source = part;
      bool alone = uses[part] == 1;
      while (graph_[source].op == Op::reshape && (source == id || !fused_.copies.count(source))) source = graph_[source].in[0], alone &= uses[source] == 1;
      bool computed = alone && has_memory(graph_, source, fused_) && graph_[source].op != Op::input && !placed_.count(source) && !put_out.count(source) &&
                      graph_[source].op != Op::scan && graph_[source].op != Op::sort;
      if (graph_[source].op == Op::get) {
        Op maker = graph_[graph_[source].in[0]].op;
        computed &= maker == Op::attention || maker == Op::attention_grad;
      } else if (computed) {
        computed = graph_[source].op == Op::matmul || !(graph_[source].op >= Op::dynamic_update_slice && graph_[source].op <= Op::sort &&
                                                        graph_[source].op != Op::gather && graph_[source].op != Op::take);
        computed &= graph_[source].op != Op::cumsum && !is_movement(graph_[source].op);
      }
      if (!computed) break;
      // Strides of `part` inside the concat, then those of `source` by splitting axes.
      Domain d = Domain::of(graph_.shape(source));
      Storage place{id, at ? at * strides[axis] : 0, Shape::filled(d.rank(), 0)};
      try {
        IndexMap map = split_linear(d, {0, d.full}, graph_.shape(part));
        for (size_t a = 0; a < map.size(); ++a)
          for (int l = 0; l < d.rank(); ++l) place.strides[l] += map[a].strides[l] * strides[int(a)];
      } catch (const SplitAxis&) {
        break;
      } catch (const Refusal&) {
        break;
      }
      plan.push_back({source, place});
      at += graph_.shape(part).rank() ? graph_.shape(part)[axis] : 0;
    }
    if (plan.size() != parts.size()) {
      left.push_back(std::move(group));
      continue;
    }
    for (auto& [source, place] : plan) placed_[source] = place;
  }
  fused_.groups = std::move(left);
}

void Program::build_kernels() {
  StorageFn where = [this](NodeId id) { return storage(id); };
  parts_.clear();
  for (NodeId id : topological(graph_, outputs_))
    if (graph_[id].op == Op::get) parts_[graph_[id].in[0]].push_back(id);
  for (Group& group : fused_.groups) {
    ProgramKernel kernel;
    kernel.name = kernel_name(graph_, group);
    kernel.group = std::move(group);
    if (kernel.group.kind == Group::Kind::node) {
      build_node(kernel);
    } else {
      if (kernel.group.kind == Group::Kind::matmul) build_matmul(kernel);
      for (GroupSpec& spec : kernel.group.specs) {
        if (spec.members.empty()) continue;
        spec.repeated = &fused_.repeated;
        LoweredGroup lowered = lower_group(graph_, spec, where);
        if (!lowered.refusal.empty()) fail(ErrorCode::internal, "[compile] kernel {} cannot be lowered: {}", kernel.name, lowered.refusal);
        verify(lowered.group);
        kernel.tiles.push_back(std::move(lowered.group));
        for (size_t i = 0; i < lowered.operands.size(); ++i) kernel.operands.push_back({lowered.operands[i], 0, bool(lowered.written[i])});
      }
    }
    kernels_.push_back(std::move(kernel));
  }
}

// Operands: A, B, C (C only without an epilogue), then the epilogue's.
void Program::build_matmul(ProgramKernel& kernel) {
  StorageFn where = [this](NodeId id) { return storage(id); };
  NodeId id = kernel.group.node;
  const Node& n = graph_[id];
  std::optional<View> a = resolve_view(graph_, n.in[0], where), b = resolve_view(graph_, n.in[1], where);
  if (!a || !b) fail(ErrorCode::internal, "[compile] a matmul's operand is not a view");
  size_t rank = a->axes.size();
  bool epilogue = !kernel.group.specs[0].members.empty();
  Storage c = epilogue ? Storage{id, 0, contiguous_strides(n.type().shape)} : storage(id);
  auto both = [&](const std::vector<View::Loop>& x, const std::vector<View::Loop>& y) {
    auto loops = common_loops(x, y);
    if (!loops) fail(ErrorCode::internal, "[compile] a matmul's operands cut an axis differently");
    return *loops;
  };
  for (size_t i = 0; i + 2 < rank; ++i) {
    auto loops = both(a->axes[i], b->axes[i]);
    int64_t inner = 1;
    std::vector<ContractionLoops::Loop> part;
    for (auto it = loops.rbegin(); it != loops.rend(); ++it) part.push_back({(*it)[0], (*it)[1], (*it)[2], c.strides[int(i)] * inner}), inner *= (*it)[0];
    kernel.loops.batch.insert(kernel.loops.batch.end(), part.rbegin(), part.rend());
  }
  auto one = [&](const std::vector<View::Loop>& loops, int64_t stride, bool from_a, std::vector<ContractionLoops::Loop>& out) {
    int64_t inner = 1;
    for (const View::Loop& l : loops) inner *= l.size;
    for (const View::Loop& l : loops) {
      inner = l.size ? inner / l.size : 0;
      out.push_back({l.size, from_a ? l.stride : 0, from_a ? 0 : l.stride, stride * inner});
    }
  };
  one(a->axes[rank - 2], c.strides[int(rank) - 2], true, kernel.loops.m);
  one(b->axes[rank - 1], c.strides[int(rank) - 1], false, kernel.loops.n);
  for (auto& l : both(a->axes[rank - 1], b->axes[rank - 2])) kernel.loops.k.push_back({l[0], l[1], l[2], 0});
  kernel.operands.push_back({a->base, a->offset * size_of(graph_.dtype(n.in[0])), false});
  kernel.operands.push_back({b->base, b->offset * size_of(graph_.dtype(n.in[1])), false});
  if (!epilogue) kernel.operands.push_back({c.owner, c.offset * size_of(n.type().dtype), true});
}

// Operands, then results. Views keep the strides for kernels that take them.
void Program::build_node(ProgramKernel& kernel) {
  StorageFn where = [this](NodeId id) { return storage(id); };
  NodeId id = kernel.group.node;
  const Node& n = graph_[id];
  for (NodeId in : n.in) {
    std::optional<View> v = resolve_view(graph_, in, where);
    if (!v) fail(ErrorCode::internal, "[compile] an operand of {} is not a view", name(n.op));
    kernel.operands.push_back({v->base, v->offset * size_of(graph_.dtype(in)), false});
    kernel.views.push_back(std::move(*v));
  }
  std::vector<NodeId> results(n.types.size(), kNone);
  if (n.types.size() == 1)
    results[0] = id;
  else
    for (NodeId part : parts_[id]) results[size_t(graph_[part].attrs.ints[0])] = part;
  // Kernels that write all their results get a place for those that nobody reads.
  if (n.op == Op::attention || n.op == Op::attention_grad)
    for (size_t i = 0; i < results.size(); ++i)
      if (!results[i]) results[i] = graph_.add(Op::get, {id}, {{int64_t(i)}, {}, nullptr});
  for (size_t i = 0; i < results.size(); ++i) {
    View v;
    Storage place = results[i] ? storage(results[i]) : Storage{kNone, 0, contiguous_strides(n.types[i].shape)};
    v.source = results[i], v.base = place.owner, v.offset = place.offset;
    for (int a = 0; a < n.types[i].shape.rank(); ++a) v.axes.push_back({{n.types[i].shape[a], place.strides[a]}});
    kernel.operands.push_back({place.owner, place.offset * size_of(n.types[i].dtype), true});
    kernel.views.push_back(std::move(v));
  }
}

void Program::find_live_ranges() {
  auto buffer = [&](NodeId owner) -> ProgramBuffer& {
    auto [it, fresh] = buffer_index_.emplace(owner, int(buffers_.size()));
    if (fresh) {
      ProgramBuffer b;
      b.owner = owner;
      b.bytes = graph_.type(owner).bytes();
      b.first = int(kernels_.size());
      b.last = -1;
      buffers_.push_back(b);
    }
    return buffers_[size_t(it->second)];
  };
  for (size_t i = 0; i < inputs_.size(); ++i) {
    ProgramBuffer& b = buffer(inputs_[i]);
    b.place = ProgramBuffer::Place::input, b.index = int(i);
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    ProgramBuffer& b = buffer(outputs_[i]);
    b.place = ProgramBuffer::Place::output, b.index = int(i);
  }
  for (size_t k = 0; k < kernels_.size(); ++k)
    for (const ProgramOperand& o : kernels_[k].operands) {
      if (!o.owner) continue;
      ProgramBuffer& b = buffer(o.owner);
      b.first = std::min(b.first, int(k)), b.last = std::max(b.last, int(k));
    }
}

namespace {

// Whether a group may write its last result over an operand that it reads at the same element: when nothing is read any more once it writes.
// A row's sums are all complete before a value that hangs on the last of them is stored; columns are shared among threads.
bool stores_last(const TileGroup& t) {
  if (t.form == TileGroup::Template::map) return true;
  if (t.form == TileGroup::Template::column || t.nodes.back().kind != TileNode::Kind::store) return false;
  std::vector<int> phase(t.nodes.size(), 0);  // reductions that come one after the other before the value is known
  int last = 0;
  for (size_t n = 0; n < t.nodes.size(); ++n) {
    for (int in : t.nodes[n].in)
      if (in >= 0) phase[n] = std::max(phase[n], phase[size_t(in)]);
    if (t.nodes[n].kind == TileNode::Kind::reduce) last = std::max(last, ++phase[n]);
  }
  return phase.back() == last && moves_in_reduction(t, t.accesses[size_t(t.nodes.back().access)]);
}

}  // namespace

// The value that dies in a kernel hands its memory on to what the kernel makes of it.
void Program::alias_in_place() {
  for (size_t k = 0; k < kernels_.size(); ++k) {
    const ProgramKernel& kernel = kernels_[k];
    if (kernel.group.kind != Group::Kind::tile || kernel.tiles.size() != 1 || !stores_last(kernel.tiles[0])) continue;
    const TileGroup& t = kernel.tiles[0];
    std::vector<char> taken(kernel.operands.size(), 0);
    // Only by its last node: nothing of the kernel reads the old value after that.
    for (const TileNode& store : std::span(t.nodes).last(1)) {
      if (store.kind != TileNode::Kind::store) continue;
      const TileAccess& to = t.accesses[size_t(store.access)];
      ProgramBuffer& out = buffers_[size_t(buffer_index_.at(kernel.operands[size_t(to.operand)].owner))];
      if (out.place != ProgramBuffer::Place::arena || out.first != int(k) || out.alias >= 0) continue;
      for (size_t i = 0; i < kernel.operands.size(); ++i) {
        if (kernel.operands[i].written || taken[i]) continue;
        int from = buffer_index_.at(kernel.operands[i].owner);
        ProgramBuffer& in = buffers_[size_t(from)];
        if (in.place != ProgramBuffer::Place::arena || in.last != int(k) || in.bytes != out.bytes || &in == &out) continue;
        bool same = true;  // every read of it is of the element that is written
        for (const TileAccess& a : t.accesses)
          if (a.operand == int(i))
            same &= a.offset == to.offset && a.strides == to.strides && a.bounds.empty() && a.gather < 0 && size_of(a.dtype) == size_of(to.dtype);
        if (!same) continue;
        out.alias = from;
        taken[i] = 1;
        break;
      }
    }
  }
}

// What is read again only after more than a cache's worth of other bytes goes to memory directly: it would be evicted anyway, and
// its lines need not be fetched first. Values written over what the kernel has just read are in the cache already.
void Program::mark_streaming() {
  std::vector<int64_t> before(kernels_.size() + 1, 0);  // bytes touched by the kernels before this one
  std::unordered_map<NodeId, std::vector<size_t>> touching;
  for (size_t k = 0; k < kernels_.size(); ++k) {
    before[k + 1] = before[k];
    for (const ProgramOperand& o : kernels_[k].operands)
      if (o.owner) before[k + 1] += graph_.type(o.owner).bytes(), touching[o.owner].push_back(k);
  }
  for (size_t k = 0; k < kernels_.size(); ++k) {
    ProgramKernel& kernel = kernels_[k];
    if (kernel.group.kind != Group::Kind::tile || before[k + 1] - before[k] <= options_.cache_bytes / 4) continue;
    size_t first = 0;
    for (TileGroup& t : kernel.tiles) {
      for (const TileNode& n : t.nodes) {
        if (n.kind != TileNode::Kind::store) continue;
        TileAccess& to = t.accesses[size_t(n.access)];
        const ProgramBuffer& b = buffer_of(kernel.operands[first + size_t(to.operand)].owner);
        const bool output = b.place == ProgramBuffer::Place::output, in_place = b.alias >= 0 || (output && state_input(b.index) >= 0);
        // An output's next reader is at best the next run.
        const std::vector<size_t>& all = touching[b.owner];
        const auto later = std::upper_bound(all.begin(), all.end(), k);
        const size_t next = output || later == all.end() ? kernels_.size() : *later;
        int64_t distance = next == kernels_.size() ? before.back() : before[next] - before[k];
        to.streaming = !in_place && distance > options_.cache_bytes;
      }
      first += size_t(t.operands);
    }
  }
}

void Program::plan(std::span<const int64_t> workspace_bytes) {
  auto root = [&](int i) {
    while (buffers_[size_t(i)].alias >= 0) i = buffers_[size_t(i)].alias;
    return i;
  };
  std::vector<LiveRange> ranges;
  std::vector<int> range_of(buffers_.size(), -1);
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const ProgramBuffer& b = buffers_[i];
    if (b.place != ProgramBuffer::Place::arena || b.last < 0 || b.alias >= 0) continue;
    range_of[i] = int(ranges.size());
    ranges.push_back(options_.plan ? LiveRange{b.bytes, b.first, b.last} : LiveRange{b.bytes, 0, int32_t(kernels_.size())});
  }
  for (size_t i = 0; i < buffers_.size(); ++i)
    if (buffers_[i].alias >= 0) {
      LiveRange& r = ranges[size_t(range_of[size_t(root(int(i)))])];
      r.first = std::min(r.first, buffers_[i].first), r.last = std::max(r.last, buffers_[i].last);
    }
  std::vector<int> workspace_range(workspace_bytes.size(), -1);
  for (size_t k = 0; k < workspace_bytes.size(); ++k)
    if (workspace_bytes[k]) workspace_range[k] = int(ranges.size()), ranges.push_back({workspace_bytes[k], int32_t(k), int32_t(k)});
  memory_ = plan_memory(ranges);
  verify_plan(ranges, memory_);
  for (size_t i = 0; i < buffers_.size(); ++i)
    if (buffers_[i].place == ProgramBuffer::Place::arena && buffers_[i].last >= 0) buffers_[i].offset = memory_.offsets[size_t(range_of[size_t(root(int(i)))])];
  workspace_offsets_.assign(workspace_bytes.size(), 0);
  for (size_t k = 0; k < workspace_bytes.size(); ++k)
    if (workspace_range[k] >= 0) workspace_offsets_[k] = memory_.offsets[size_t(workspace_range[k])];
}

std::string Program::dump() const {
  std::string text;
  for (size_t k = 0; k < kernels_.size(); ++k) {
    const ProgramKernel& kernel = kernels_[k];
    text += fmt::format("{:4}  {}", k, kernel.name);
    for (const ProgramOperand& o : kernel.operands) {
      if (!o.owner) continue;
      const ProgramBuffer& b = buffer_of(o.owner);
      const char* place = b.place == ProgramBuffer::Place::input ? "in" : b.place == ProgramBuffer::Place::output ? "out" : "arena";
      text += fmt::format(" {}%{}:{}@{}{}", o.written ? "->" : "", o.owner, to_string(graph_.type(o.owner)), place,
                          b.place == ProgramBuffer::Place::arena ? b.offset : b.index);
    }
    text += "\n";
    for (const TileGroup& t : kernel.tiles) text += to_string(t);
  }
  for (const std::string& r : refusals_) text += "not fused: " + r + "\n";
  return text;
}

}  // namespace ridge
