#include "backend/gpu/joined_kernels.h"

#include <algorithm>
#include <map>

#include "backend/gpu/memory_use.h"

namespace ridge::gpu {

std::vector<JoinedKernels> find_joined_kernels(Program& program, const std::vector<char>& taken, const KernelMaker& maker) {
  const size_t count = program.kernels.size();
  std::vector<MemoryUse> uses;
  for (const ProgramKernel& k : program.kernels) uses.push_back(memory_use(program, k));
  // By value: the kernel that makes it, and the only one that reads it.
  struct Life {
    size_t made = SIZE_MAX, read = SIZE_MAX;
    bool alone = true;
  };
  std::map<NodeId, Life> lives;
  for (size_t i = 0; i < count; ++i)
    for (const ProgramOperand& o : program.kernels[i].operands) {
      if (!o.owner) continue;
      Life& life = lives[o.owner];
      size_t& at = o.written ? life.made : life.read;
      life.alone = life.alone && (at == SIZE_MAX || at == i);
      at = i;
    }
  // An output that leaves the program has another reader, unless it is state that stays where it is.
  for (size_t i = 0; i < program.outputs.size(); ++i)
    if (program.state_input[i] < 0) lives[program.outputs[i]].alone = false;
  // Whether the kernel can run together with the later one.
  auto movable = [&](size_t first, size_t last) {
    for (const ProgramOperand& o : program.kernels[first].operands)
      if (o.owner && o.written && (!lives[o.owner].alone || lives[o.owner].read != last)) return false;
    for (size_t between = first + 1; between < last; ++between)
      if (uses[first].conflicts(uses[between])) return false;
    // While some blocks of the later kernel store its results, others may still read.
    return std::ranges::none_of(uses[last].written, [&](int memory) { return uses[first].read.count(memory) > 0; });
  };
  std::vector<char> used = taken;
  std::vector<JoinedKernels> all;
  for (size_t last = 0; last < count; ++last) {
    if (used[last] || program.kernels[last].loop) continue;
    std::vector<size_t> found;
    for (const ProgramOperand& o : program.kernels[last].operands) {
      if (!o.owner || o.written) continue;
      const size_t first = lives[o.owner].made;
      if (first == SIZE_MAX || first >= last || used[first] || program.kernels[first].loop || std::ranges::count(found, first) || !movable(first, last))
        continue;
      found.push_back(first);
    }
    if (found.empty()) continue;
    std::ranges::sort(found);
    // All of them, or one.
    std::vector<std::vector<size_t>> choices = {found};
    for (size_t i = 0; i < found.size() && found.size() > 1; ++i) choices.push_back({found[i]});
    std::unique_ptr<Kernel> kernel;
    for (const std::vector<size_t>& choice : choices) {
      std::vector<const ProgramKernel*> kernels;
      for (size_t i : choice) kernels.push_back(&program.kernels[i]);
      if (kernel = maker.joined(program, kernels, program.kernels[last]); !kernel) continue;
      found = choice;
      break;
    }
    if (!kernel) continue;
    for (size_t i : found) used[i] = 1, extend_lives(program, program.kernels[i], last);
    used[last] = 1;
    found.push_back(last);
    all.push_back({std::move(found), std::move(kernel)});
  }
  return all;
}

}  // namespace ridge::gpu
