#include "backend/cuda/overlap.h"

#include <algorithm>
#include <map>

namespace ridge::cuda {
namespace {

// A piece of memory: who wrote it last, and who has read it since.
struct Piece {
  uint64_t end = 0;
  int writer = -1;
  std::vector<int> readers;
};

class Pieces {
 public:
  void use(const MemoryRange& range, int kernel, std::vector<int>& waits) {
    if (range.begin >= range.end) return;
    cut(range.begin), cut(range.end);
    uint64_t at = range.begin;
    auto it = pieces_.lower_bound(at);
    while (at < range.end) {
      if (it == pieces_.end() || it->first > at) {  // nobody was here before
        const uint64_t end = it == pieces_.end() ? range.end : std::min(range.end, it->first);
        it = pieces_.emplace_hint(it, at, Piece{end, -1, {}});
      }
      Piece& piece = it->second;
      if (piece.writer >= 0 && piece.writer != kernel) waits.push_back(piece.writer);
      if (range.written) {
        for (int reader : piece.readers)
          if (reader != kernel) waits.push_back(reader);
        piece.writer = kernel, piece.readers.clear();
      } else if (piece.writer != kernel && (piece.readers.empty() || piece.readers.back() != kernel)) {
        piece.readers.push_back(kernel);
      }
      at = piece.end;
      ++it;
    }
  }

 private:
  // No piece lies across this address.
  void cut(uint64_t at) {
    auto it = pieces_.upper_bound(at);
    if (it == pieces_.begin()) return;
    --it;
    if (it->first >= at || it->second.end <= at) return;
    Piece rest = it->second;
    it->second.end = at;
    pieces_.emplace(at, std::move(rest));
  }

  std::map<uint64_t, Piece> pieces_;  // by where they begin
};

}  // namespace

std::vector<std::vector<int>> dependencies(std::span<const std::vector<MemoryRange>> kernels) {
  std::vector<std::vector<int>> out(kernels.size());
  Pieces pieces;
  for (size_t i = 0; i < kernels.size(); ++i) {
    // Reads first: what a kernel writes over its own operands is no news to itself.
    for (bool written : {false, true})
      for (const MemoryRange& range : kernels[i])
        if (range.written == written) pieces.use(range, int(i), out[i]);
    std::sort(out[i].begin(), out[i].end());
    out[i].erase(std::unique(out[i].begin(), out[i].end()), out[i].end());
  }
  return out;
}

std::vector<Lane> assign_lanes(const std::vector<std::vector<int>>& dependencies, int lanes, std::span<const char> alone) {
  const size_t count = dependencies.size();
  std::vector<Lane> out(count);
  std::vector<int> tail(size_t(lanes), -1);    // the last kernel of each lane
  std::vector<std::vector<int>> known(count);  // for each kernel and lane: the latest that has ended before it starts
  int last_alone = -1;
  for (size_t i = 0; i < count; ++i) {
    Lane& own = out[i];
    std::vector<int> waits = dependencies[i];
    const bool by_itself = i < alone.size() && alone[i];
    for (int t : tail)
      if (by_itself && t >= 0) waits.push_back(t);
    if (last_alone >= 0) waits.push_back(last_alone);
    std::sort(waits.rbegin(), waits.rend());  // the latest first: others may follow from it
    const auto follows = std::find_if(waits.begin(), waits.end(), [&](int w) { return tail[size_t(out[size_t(w)].lane)] == w; });
    own.lane = follows != waits.end() ? out[size_t(*follows)].lane : int(std::min_element(tail.begin(), tail.end()) - tail.begin());

    std::vector<int>& seen = known[i];
    seen.assign(size_t(lanes), -1);
    auto join = [&](int kernel) {
      for (size_t l = 0; l < seen.size(); ++l) seen[l] = std::max(seen[l], known[size_t(kernel)][l]);
      int& own_lane = seen[size_t(out[size_t(kernel)].lane)];
      own_lane = std::max(own_lane, kernel);
    };
    if (const int before = tail[size_t(own.lane)]; before >= 0) join(before);
    for (int w : waits) {
      if (seen[size_t(out[size_t(w)].lane)] >= w) continue;
      own.waits.push_back(w);
      out[size_t(w)].signals = true;
      join(w);
    }
    tail[size_t(own.lane)] = int(i);
    if (by_itself) last_alone = int(i);
  }
  return out;
}

}  // namespace ridge::cuda
