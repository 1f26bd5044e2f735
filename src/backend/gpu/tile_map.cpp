// Map kernels: one that follows the order of the output, and one that works in squares, for reads that are contiguous along another axis.
#include <fmt/format.h>

#include <algorithm>

#include "backend/gpu/tile_skeleton.h"
#include "base/error.h"

namespace ridge::gpu {

using Kind = TileNode::Kind;

// ---- map: a thread reads all of its `unroll` vectors before it computes, so that many reads are in flight ----

TileText TileSkeleton::map() {
  use(all_stores(group_));
  // The number of gathers that precede each load.
  std::vector<int> stage(group_.nodes.size(), 0);
  int stages = 0;
  for (size_t n = 0; n < group_.nodes.size(); ++n) {
    const TileNode& node = group_.nodes[n];
    for (int in : node.in)
      if (in >= 0) stage[n] = std::max(stage[n], stage[size_t(in)]);
    if (node.access >= 0 && group_.accesses[size_t(node.access)].gather >= 0)
      stage[n] = std::max(stage[n], stage[size_t(group_.accesses[size_t(node.access)].gather)] + 1);
    if (alive_[n] && node.kind == Kind::load && facts_.body(int(n))) stages = std::max(stages, stage[n] + 1);
  }
  std::vector<int> axes;
  for (int i = 0; i < group_.domain.rank(); ++i) axes.push_back(i);
  begin_function("template <int V, int U> RIDGE_INLINE void run(@constant const Entry& entry, @global Fault* fault, I first, I step, I end) {");
  out_.line("const bool A = true;");
  kept_values_of(0, "true");
  auto is_early = [&](size_t n, int at) { return alive_[n] && group_.nodes[n].kind == Kind::load && facts_.body(int(n)) && stage[n] == at; };
  for (int at = 0; at < stages; ++at)
    for (size_t n = 0; n < group_.nodes.size(); ++n)
      if (is_early(n, at)) out_.line(fmt::format("{} k{}[U]{};", TileWriter::type(group_.nodes[n].dtype), n, facts_.wide(int(n)) ? "[V]" : ""));
  for (int at = 0; at <= stages; ++at) {
    out_.line("@unroll");
    out_.open("for (int c = 0; c < U; ++c) {");
    out_.line("const I i = first + c * step;");
    out_.line("const bool live = i < end;");
    coordinates(axes, "i");
    const TileWriter::Scope scope = out_.enter();
    for (size_t n = 0; n < group_.nodes.size(); ++n)
      if (is_early(n, at)) out_.target(int(n), fmt::format("k{}[c]", n)), out_.want(int(n), "live");
    out_.untarget();
    if (at == stages) {
      body_stores(0, "live", "live");
      kept_stores("live");
    }
    out_.leave(scope);
    for (size_t n = 0; n < group_.nodes.size(); ++n)
      if (is_early(n, at)) out_.place(int(n), fmt::format("k{}[c]", n));
    out_.close();
  }
  out_.close();
  const int64_t tile = int64_t(schedule_.threads) * schedule_.unroll * schedule_.vector;
  std::string kernel = fmt::format("  const I total = (I)entry.n, start = block * (I){};\n", tile);
  if (schedule_.vector == 1) {
    kernel += fmt::format("  run<1, {}>(entry, fault, start + (I)@thread, {}, total);\n", schedule_.unroll, schedule_.threads);
  } else {
    kernel += fmt::format("  const bool aligned = {};\n", aligned());
    kernel += fmt::format("  const I whole_end = total - total % {}, end = start + {} < total ? start + {} : total;\n", schedule_.vector, tile, tile);
    kernel += fmt::format("  if (aligned) run<{}, {}>(entry, fault, start + (I)@thread * {}, {}, whole_end);\n", schedule_.vector, schedule_.unroll,
                          schedule_.vector, schedule_.threads * schedule_.vector);
    kernel += "  const I rest = aligned ? whole_end : start;\n";
    kernel += fmt::format("@unroll 1\n  for (I i = rest + (I)@thread; i < end; i += {}) run<1, 1>(entry, fault, i, 0, total);\n", schedule_.threads);
  }
  return finish("tile_map", kernel);
}

// A block takes a square of two axes. Data that is contiguous along the slower axis is read in that order into shared memory, and transposed when read from
// there.
TileText TileSkeleton::transposed_map() {
  use(all_stores(group_));
  const int across = schedule_.across, along = facts_.axis, side = 64, deep = schedule_.threads / side;
  const Transposed turned = transposed_loads(group_, facts_);
  std::vector<int> others;
  for (int i = 0; i < group_.domain.rank(); ++i)
    if (i != across && i != along) others.push_back(i);
  const int64_t wide = (group_.domain[along] + side - 1) / side, high = (group_.domain[across] + side - 1) / side;
  begin_function("template <int V, bool A> RIDGE_INLINE void run(@constant const Entry& entry, @global Fault* fault, I block) {");
  out_.line(fmt::format("const int lane = (int)@thread % {}, row = (int)@thread / {};", side, side));
  out_.line(fmt::format("const I left = block % {} * {}, top = block / {} % {} * {}, other = block / {};", wide, side, wide, high, side, wide * high));
  out_.line("(void)other;");
  coordinates(others, "other");
  kept_values_of(0, "true");
  for (int n : turned.loads) out_.line(fmt::format("@shared {} t{}[{}][{}];", TileWriter::type(group_.nodes[size_t(n)].dtype), n, side, side + 1));
  auto walk = [&](const char* along_index, const char* across_index) {
    out_.line("@unroll");
    out_.open(fmt::format("for (int i = row; i < {}; i += {}) {{", side, deep));
    out_.line(fmt::format("const I x{} = left + {}, x{} = top + {};", along, along_index, across, across_index));
    out_.line(fmt::format("const bool live = x{} < {} && x{} < {};", along, group_.domain[along], across, group_.domain[across]));
  };
  TileWriter::Scope scope = out_.enter();
  walk("i", "lane");
  for (int n : turned.loads) {
    out_.want(n, "live");
    out_.line(fmt::format("t{}[i][lane] = v{}[0];", n, n));
  }
  out_.close();
  out_.leave(scope);
  out_.line("@barrier;");
  walk("lane", "i");
  for (int n : turned.loads) out_.place_one(n, fmt::format("t{}[lane][i]", n));
  body_stores(0, "live", "live");
  kept_stores("live");
  out_.close();
  out_.close();
  return finish("tile_map", "  run<1, true>(entry, fault, block);\n");
}

}  // namespace ridge::gpu
