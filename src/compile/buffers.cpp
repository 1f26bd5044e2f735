// The buffer of every value: its lifetime, whose memory it takes over, and its offset in the arena.
#include <algorithm>
#include <span>

#include "compile/passes.h"
#include "compile/plan_memory.h"

namespace ridge {

void find_buffers(Compilation& c) {
  Program& p = c.program;
  auto buffer = [&](NodeId owner) -> ProgramBuffer& {
    auto [it, fresh] = p.buffer_index.emplace(owner, int(p.buffers.size()));
    if (fresh) {
      ProgramBuffer b;
      b.owner = owner;
      b.bytes = p.graph.type(owner).bytes();
      b.first = int(p.kernels.size());
      b.last = -1;
      p.buffers.push_back(b);
    }
    return p.buffers[size_t(it->second)];
  };
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    ProgramBuffer& b = buffer(p.inputs[i]);
    b.place = ProgramBuffer::Place::input, b.index = int(i);
  }
  for (size_t i = 0; i < p.outputs.size(); ++i) {
    ProgramBuffer& b = buffer(p.outputs[i]);
    b.place = ProgramBuffer::Place::output, b.index = int(i);
  }
  for (size_t k = 0; k < p.kernels.size(); ++k)
    for (const ProgramOperand& o : p.kernels[k].operands) {
      if (!o.owner) continue;
      ProgramBuffer& b = buffer(o.owner);
      b.first = std::min(b.first, int(k)), b.last = std::max(b.last, int(k));
    }
}

namespace {

// Whether a group may write its last result over an operand that it reads at the same element: only if it reads nothing more once it starts
// writing. In the row form, all sums are complete before a value that depends on the last one is stored; columns are shared among threads.
bool stores_last(const TileGroup& t) {
  if (t.form == TileGroup::Template::map) return true;
  if (t.form == TileGroup::Template::column || t.nodes.back().kind != TileNode::Kind::store) return false;
  std::vector<int> phase(t.nodes.size(), 0);  // number of successive reductions that the value depends on
  int last = 0;
  for (size_t n = 0; n < t.nodes.size(); ++n) {
    for (int in : t.nodes[n].in)
      if (in >= 0) phase[n] = std::max(phase[n], phase[size_t(in)]);
    if (t.nodes[n].kind == TileNode::Kind::reduce) last = std::max(last, ++phase[n]);
  }
  return phase.back() == last && moves_in_reduction(t, t.accesses[size_t(t.nodes.back().access)]);
}

}  // namespace

// When a kernel is the last reader of a value, its result may take over the value's memory.
void reuse_in_place(Compilation& c) {
  Program& p = c.program;
  for (size_t k = 0; k < p.kernels.size(); ++k) {
    const ProgramKernel& kernel = p.kernels[k];
    if (kernel.group.kind != Group::Kind::tile || kernel.tiles.size() != 1 || !stores_last(kernel.tiles[0])) continue;
    const TileGroup& t = kernel.tiles[0];
    std::vector<char> taken(kernel.operands.size(), 0);
    // Only the last node's result may: the kernel reads no old value after it.
    for (const TileNode& store : std::span(t.nodes).last(1)) {
      if (store.kind != TileNode::Kind::store) continue;
      const TileAccess& to = t.accesses[size_t(store.access)];
      ProgramBuffer& out = p.buffers[size_t(p.buffer_index.at(kernel.operands[size_t(to.operand)].owner))];
      if (out.place != ProgramBuffer::Place::arena || out.first != int(k) || out.alias >= 0) continue;
      for (size_t i = 0; i < kernel.operands.size(); ++i) {
        if (kernel.operands[i].written || taken[i]) continue;
        int from = p.buffer_index.at(kernel.operands[i].owner);
        ProgramBuffer& in = p.buffers[size_t(from)];
        if (in.place != ProgramBuffer::Place::arena || in.last != int(k) || in.bytes != out.bytes || &in == &out) continue;
        bool same = true;  // every read of it is at the element that is written
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

// Values that are next read after more than a cache's worth of other bytes bypass the cache: they would be evicted anyway, and their cache
// lines need not be fetched first. Values that overwrite what the kernel has just read are in the cache already.
void mark_streaming(Compilation& c) {
  Program& p = c.program;
  std::vector<int64_t> before(p.kernels.size() + 1, 0);  // bytes touched by the kernels before this one
  std::unordered_map<NodeId, std::vector<size_t>> touching;
  for (size_t k = 0; k < p.kernels.size(); ++k) {
    before[k + 1] = before[k];
    for (const ProgramOperand& o : p.kernels[k].operands)
      if (o.owner) before[k + 1] += p.graph.type(o.owner).bytes(), touching[o.owner].push_back(k);
  }
  for (size_t k = 0; k < p.kernels.size(); ++k) {
    ProgramKernel& kernel = p.kernels[k];
    if (kernel.group.kind != Group::Kind::tile || before[k + 1] - before[k] <= c.target.cache_bytes / 4) continue;
    size_t first = 0;
    for (TileGroup& t : kernel.tiles) {
      for (const TileNode& n : t.nodes) {
        if (n.kind != TileNode::Kind::store) continue;
        TileAccess& to = t.accesses[size_t(n.access)];
        const ProgramBuffer& b = p.buffer_of(kernel.operands[first + size_t(to.operand)].owner);
        const bool output = b.place == ProgramBuffer::Place::output, in_place = b.alias >= 0 || (output && p.state_input[size_t(b.index)] >= 0);
        // An output is read by the next run at the earliest.
        const std::vector<size_t>& all = touching[b.owner];
        const auto later = std::upper_bound(all.begin(), all.end(), k);
        const size_t next = output || later == all.end() ? p.kernels.size() : *later;
        int64_t distance = next == p.kernels.size() ? before.back() : before[next] - before[k];
        to.streaming = !in_place && distance > c.target.cache_bytes;
      }
      first += size_t(t.operands);
    }
  }
}

void allow_row_blocks(Compilation& c) { c.program.row_blocks = true; }

void give_each_own_memory(Compilation& c) {
  c.program.shares_memory = false;
  for (ProgramBuffer& b : c.program.buffers) b.alias = -1;
}

void plan_arena(Program& p, std::span<const int64_t> workspace_bytes) {
  auto root = [&](int i) {
    while (p.buffers[size_t(i)].alias >= 0) i = p.buffers[size_t(i)].alias;
    return i;
  };
  std::vector<LiveRange> ranges;
  std::vector<int> range_of(p.buffers.size(), -1);
  for (size_t i = 0; i < p.buffers.size(); ++i) {
    const ProgramBuffer& b = p.buffers[i];
    if (b.place != ProgramBuffer::Place::arena || b.last < 0 || b.alias >= 0) continue;
    range_of[i] = int(ranges.size());
    ranges.push_back(p.shares_memory ? LiveRange{b.bytes, b.first, b.last} : LiveRange{b.bytes, 0, int32_t(p.kernels.size())});
  }
  for (size_t i = 0; i < p.buffers.size(); ++i)
    if (p.buffers[i].alias >= 0) {
      LiveRange& r = ranges[size_t(range_of[size_t(root(int(i)))])];
      r.first = std::min(r.first, p.buffers[i].first), r.last = std::max(r.last, p.buffers[i].last);
    }
  std::vector<int> workspace_range(workspace_bytes.size(), -1);
  for (size_t k = 0; k < workspace_bytes.size(); ++k)
    if (workspace_bytes[k]) workspace_range[k] = int(ranges.size()), ranges.push_back({workspace_bytes[k], int32_t(k), int32_t(k)});
  const MemoryPlan memory = plan_memory(ranges);
  verify_plan(ranges, memory);
  for (size_t i = 0; i < p.buffers.size(); ++i)
    if (p.buffers[i].place == ProgramBuffer::Place::arena && p.buffers[i].last >= 0)
      p.buffers[i].offset = memory.offsets[size_t(range_of[size_t(root(int(i)))])];
  p.workspace_offsets.assign(workspace_bytes.size(), 0);
  for (size_t k = 0; k < workspace_bytes.size(); ++k)
    if (workspace_range[k] >= 0) p.workspace_offsets[k] = memory.offsets[size_t(workspace_range[k])];
  p.arena_bytes = memory.arena_bytes, p.max_live_bytes = memory.max_live_bytes;
}

}  // namespace ridge
