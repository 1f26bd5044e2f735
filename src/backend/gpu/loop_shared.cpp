// Where a loop's values are in a block's shared memory, and which weights are in registers instead.
#include <algorithm>
#include <tuple>

#include "backend/gpu/loop_text.h"

namespace ridge::gpu {

std::vector<std::vector<size_t>> product_groups(const ResidentLoop& loop) {
  std::vector<std::vector<size_t>> groups;
  auto source = [&](size_t i) {
    const LoopProduct& p = *loop.nests[i].product;
    return std::tuple(loop.nests[i].stage, p.value, p.offset, p.stride, p.depth, p.format);
  };
  for (size_t i = 0; i < loop.nests.size(); ++i) {
    if (!loop.nests[i].product) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return source(group[0]) == source(i); });
    if (same == groups.end())
      groups.push_back({i});
    else
      same->push_back(i);
  }
  return groups;
}

std::vector<int> chunks_in_registers(const ResidentLoop& loop) {
  std::vector<int> out(loop.nests.size(), 0);
  int64_t left = loop.weight_registers;
  auto take = [&](const std::vector<size_t>& nests) {
    int s = 0;
    for (size_t i : nests) s += loop.slots(loop.nests[i].points);
    const int kept = int(std::min<int64_t>(loop.chunks(*loop.nests[nests[0]].product), left / (4 * s)));
    for (size_t i : nests) out[i] = kept;
    left -= int64_t(kept) * 4 * s;
  };
  for (const std::vector<size_t>& group : product_groups(loop)) {
    if (loop.matrix)
      take(group);
    else
      for (size_t i : group) take({i});
  }
  return out;
}

LoopShared loop_shared(const ResidentLoop& loop) {
  LoopShared out;
  const size_t count = loop.values.size();
  for (LoopShared::Places* p : {&out.values, &out.factors}) p->at.assign(count, -1), p->pitch.assign(count, 0), p->copy.assign(count, 0);
  const int64_t rows = int64_t(loop.groups) * loop.rows_each;
  auto words = [](LoopFactor format, int64_t elements) { return (elements * 4 + ResidentLoop::chunk(format) - 1) / ResidentLoop::chunk(format); };
  for (size_t v = 0; v < count; ++v) {
    out.values.pitch[v] = (loop.values[v].width + 3) / 4 * 4;
    out.factors.pitch[v] = words(loop.values[v].format, loop.values[v].width);
  }
  for (const LoopNest& nest : loop.nests)  // threads read whole chunks, also beyond the last element
    if (nest.product && nest.product->stride == 1) {
      const LoopProduct& p = *nest.product;
      const int64_t end = p.offset + int64_t(loop.chunks(p)) * ResidentLoop::chunk(p.format) * loop.sharers();
      int64_t& pitch = (loop.matrix ? out.factors : out.values).pitch[size_t(p.value)];
      pitch = std::max<int64_t>(pitch, loop.matrix ? words(p.format, end) : (end + 3) / 4 * 4);
    }
  for (int64_t& pitch : out.factors.pitch) pitch = (pitch + 15) / 32 * 32 + 16;
  struct Piece {
    size_t value;
    bool factor;
    int64_t bytes;
  };
  auto piece = [&](size_t v, bool factor) -> Piece {
    if (factor) return {v, true, loop.groups * (loop.rows_each * out.factors.pitch[v] + LoopShared::kGroupGap) * 4};
    return {v, false, (rows * out.values.pitch[v] * (loop.values[v].dtype == DType::i64 ? 8 : 4) + 15) / 16 * 16};
  };
  auto places = [&](bool factor) -> LoopShared::Places& { return factor ? out.factors : out.values; };
  for (size_t c = 0; c < loop.carries; ++c)
    for (bool factor : {false, true}) {
      const size_t from = size_t(loop.entering[c]), to = size_t(loop.leaving[c]);
      if (factor ? !loop.values[from].factor : !loop.values[from].shared) continue;
      LoopShared::Places& p = places(factor);
      p.pitch[from] = p.pitch[to] = std::max(p.pitch[from], p.pitch[to]);
      const int64_t bytes = piece(from, factor).bytes;
      p.at[from] = p.at[to] = out.bytes, out.bytes += 2 * bytes;
      p.copy[from] = p.copy[to] = bytes / (!factor && loop.values[from].dtype == DType::i64 ? 8 : 4);
    }
  // Values of a step share memory if no stage needs both: a barrier lies between the last reader of one and the writer of the other.
  std::vector<Piece> pieces, placed;
  for (size_t v = 0; v < count; ++v)
    if (const LoopValue& x = loop.values[v]; x.carry < 0) {
      if (x.shared) pieces.push_back(piece(v, false));
      if (x.factor) pieces.push_back(piece(v, true));
    }
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.bytes > b.bytes; });
  const int64_t begin = out.bytes;
  const bool meets = loop.meets_between_steps();
  auto apart = [&](const LoopValue& x, const LoopValue& y) { return x.last < y.first && (meets || x.first > 0 || y.last < loop.stages - 1); };
  for (const Piece& p : pieces) {
    const LoopValue& x = loop.values[p.value];
    int64_t at = begin;
    for (bool moved = true; moved;) {
      moved = false;
      for (const Piece& other : placed) {
        const LoopValue& y = loop.values[other.value];
        const int64_t there = places(other.factor).at[other.value];
        if (apart(x, y) || apart(y, x) || at >= there + other.bytes || there >= at + p.bytes) continue;
        at = there + other.bytes, moved = true;
      }
    }
    places(p.factor).at[p.value] = at, out.bytes = std::max(out.bytes, at + p.bytes);
    placed.push_back(p);
  }
  for (const std::vector<size_t>& group : product_groups(loop)) {
    out.partials.push_back(out.bytes);
    for (size_t i : group)
      if (loop.splits > 1) out.bytes += int64_t(loop.slots(loop.nests[i].points)) * loop.rows_each * loop.threads() * 4;
  }
  out.barriers = out.bytes;
  if (loop.sends) out.bytes += 16;
  out.weights = out.bytes;
  const std::vector<int> kept = chunks_in_registers(loop);
  for (size_t i = 0; i < loop.nests.size(); ++i)
    if (const LoopNest& nest = loop.nests[i]; nest.product)
      out.bytes += int64_t(loop.slots(nest.points)) * (loop.chunks(*nest.product) - kept[i]) * loop.threads() * 16;
  return out;
}

}  // namespace ridge::gpu
