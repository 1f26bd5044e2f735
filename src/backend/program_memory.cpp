#include "backend/program_memory.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "compile/program.h"

namespace ridge {

ProgramMemory memory_over(const Program& p) {
  const std::vector<ProgramBuffer>& buffers = p.buffers;
  std::vector<ProgramBuffer> held(buffers);
  for (const ProgramBuffer& b : buffers) {
    if (b.alias < 0) continue;
    size_t root = size_t(b.alias);
    while (buffers[root].alias >= 0) root = size_t(buffers[root].alias);
    held[root].first = std::min(held[root].first, b.first), held[root].last = std::max(held[root].last, b.last);
  }
  std::erase_if(held, [](const ProgramBuffer& b) { return b.place != ProgramBuffer::Place::arena || b.alias >= 0 || b.last < 0; });
  std::vector<int64_t> live(p.kernels.size() + 1);  // initially the change from one kernel to the next
  for (const ProgramBuffer& b : held) live[size_t(b.first)] += b.bytes, live[size_t(b.last) + 1] -= b.bytes;
  std::partial_sum(live.begin(), live.end(), live.begin());
  const int fullest = int(std::max_element(live.begin(), live.end()) - live.begin());
  ProgramMemory memory;
  for (const ProgramBuffer& b : held)
    if (b.first <= fullest && fullest <= b.last)
      memory.peak.push_back({fmt::format("{} {}", p.kernels[size_t(b.first)].name, to_string(p.graph.type(b.owner))), b.bytes});
  std::stable_sort(memory.peak.begin(), memory.peak.end(), [](const LiveValue& a, const LiveValue& b) { return a.bytes > b.bytes; });
  live.pop_back();
  memory.live = std::move(live);
  return memory;
}

}  // namespace ridge
