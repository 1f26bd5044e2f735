// In-place updates of state: which may overwrite the old value directly, and which need a copy.
#include <algorithm>

#include "base/error.h"
#include "compile/passes.h"

namespace ridge {
namespace {

// Whether a kernel may read the operands `read` and write `written` in the same memory.
bool updates_safely(const Program& p, size_t k, const std::vector<size_t>& read, size_t written, std::vector<size_t>& begins) {
  const ProgramKernel& kernel = p.kernels[k];
  // A single-node kernel may read any element at any time. Only dynamic_update_slice is safe: it leaves all but the new rows unchanged.
  if (kernel.group.kind == Group::Kind::node) return p.graph[kernel.group.node].op == Op::dynamic_update_slice && read.size() == 1 && read[0] == 0;
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
    bool overwritten = false;  // a plain copy of the old value must not run after the new one is written
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

// State that a kernel overwrites while it still reads other elements of it needs a copy.
std::vector<size_t> unsafe_updates(const Compilation& c) {
  const Program& p = c.program;
  struct Use {
    size_t kernel, operand;
  };
  std::unordered_map<NodeId, std::vector<Use>> reads, writes;  // of old values, of new ones
  for (auto [in, result] : c.options.state) reads[p.inputs[size_t(in)]], writes[p.outputs[size_t(result)]];
  for (size_t k = 0; k < p.kernels.size(); ++k)
    for (size_t i = 0; i < p.kernels[k].operands.size(); ++i) {
      const ProgramOperand& o = p.kernels[k].operands[i];
      auto& uses = o.written ? writes : reads;
      if (auto it = uses.find(o.owner); it != uses.end()) it->second.push_back({k, i});
    }
  std::unordered_map<size_t, std::vector<size_t>> begins;  // by kernel: the first operand of each tile
  std::vector<size_t> out;
  for (auto [in, result] : c.options.state) {
    const std::vector<Use>& all_reads = reads[p.inputs[size_t(in)]];
    bool unsafe = false;
    const std::vector<Use>& all_writes = writes[p.outputs[size_t(result)]];
    for (size_t w = 0; w < all_writes.size(); ++w) {
      const Use& write = all_writes[w];
      if (w + 1 < all_writes.size() && all_writes[w + 1].kernel == write.kernel) continue;
      std::vector<size_t> read;  // a matmul and its epilogue may both read it
      for (const Use& r : all_reads)
        if (r.kernel == write.kernel) read.push_back(r.operand);
      if (!read.empty()) unsafe |= !updates_safely(p, write.kernel, read, write.operand, begins[write.kernel]);
    }
    if (unsafe) out.push_back(size_t(result));
  }
  return out;
}

}  // namespace

void write_separately(Compilation& c, size_t output) {
  Program& p = c.program;
  NodeId& id = p.outputs[output];
  if (p.graph[id].op == Op::reshape && p.graph[id].copy == kSeparateKernel)
    fail(ErrorCode::internal, "[plan] output {} cannot be written over its old value", output);
  const Shape& s = p.graph.shape(id);
  c.fuse_again = true;
  id = p.graph.add(Op::reshape, {id}, {{s.begin(), s.end()}, {}, nullptr}, kSeparateKernel);
}

void separate_updates(Compilation& c) {
  for (size_t output : unsafe_updates(c)) write_separately(c, output);
}

}  // namespace ridge
