#include <algorithm>
#include <bit>
#include <functional>

#include <fmt/core.h>

#include "ridge/wiring.h"

namespace ridge {
namespace {

// Sets of neurons as bits: all pairs of thousands of neurons take a second.
using NeuronSet = std::vector<uint64_t>;

bool contains(const NeuronSet& set, int64_t neuron) { return set[size_t(neuron / 64)] >> (neuron % 64) & 1; }
void insert(NeuronSet& set, int64_t neuron) { set[size_t(neuron / 64)] |= uint64_t(1) << (neuron % 64); }

// Breadth first: the neurons that `start` reaches, itself included, and how many at each distance. targets: of each neuron.
NeuronSet reach(const std::vector<NeuronSet>& targets, NeuronSet start, std::vector<int64_t>& at_distance) {
  NeuronSet reached = start;
  for (size_t total = 0;;) {
    size_t count = 0;
    for (uint64_t word : start) count += size_t(std::popcount(word));
    if (count > 0) at_distance.push_back(int64_t(count));
    total += count;
    if (count == 0 || total == targets.size()) return reached;
    NeuronSet next(start.size());
    for (size_t word = 0; word < start.size(); ++word)
      for (uint64_t rest = start[word]; rest != 0; rest &= rest - 1) {
        const NeuronSet& row = targets[word * 64 + size_t(std::countr_zero(rest))];
        for (size_t i = 0; i < row.size(); ++i) next[i] |= row[i];
      }
    for (size_t i = 0; i < next.size(); ++i) next[i] &= ~reached[i], reached[i] |= next[i];
    start = std::move(next);
  }
}

// sources × targets of a matrix with `units` columns.
WiringStatistics::Block count_block(const std::vector<int8_t>& matrix, int64_t units, const NeuronGroup& from, const NeuronGroup& to) {
  WiringStatistics::Block block{from.name, to.name, 0, 0, int64_t(from.neurons.size() * to.neurons.size())};
  for (int64_t source : from.neurons)
    for (int64_t target : to.neurons) {
      const int8_t polarity = matrix[size_t(source * units + target)];
      block.excitatory += polarity > 0, block.inhibitory += polarity < 0;
    }
  return block;
}

}  // namespace

std::vector<NeuronGroup> neuron_groups(const Wiring& wiring) {
  std::vector<NeuronGroup> groups;
  if (wiring.layers() == 1) {
    groups = {{"hidden", {}}, {"outputs", {}}};
    for (int64_t neuron : wiring.layer(0)) groups[neuron < wiring.outputs()].neurons.push_back(neuron);
    if (groups[0].neurons.empty()) groups.erase(groups.begin());
    return groups;
  }
  for (int64_t i = 0; i < wiring.layers(); ++i) groups.push_back({fmt::format("layer {}", i), wiring.layer(i)});
  const std::vector<int64_t>& last = groups.back().neurons;
  const bool ends_in_outputs = int64_t(last.size()) == wiring.outputs() && *std::max_element(last.begin(), last.end()) < wiring.outputs();
  if (groups.size() == 3 && ends_in_outputs) groups[0].name = "inter", groups[1].name = "command", groups[2].name = "motor";
  return groups;
}

WiringStatistics statistics(const Wiring& wiring) {
  const int64_t units = wiring.units(), inputs = wiring.inputs();
  const std::vector<int8_t>&sensory = wiring.sensory(), &synapses = wiring.synapses();
  WiringStatistics s;
  const std::vector<NeuronGroup> groups = neuron_groups(wiring);
  NeuronGroup all_inputs{"inputs", {}};
  for (int64_t i = 0; i < inputs; ++i) all_inputs.neurons.push_back(i);
  for (const NeuronGroup& to : groups) s.blocks.push_back(count_block(sensory, units, all_inputs, to));
  for (const NeuronGroup& from : groups)
    for (const NeuronGroup& to : groups) s.blocks.push_back(count_block(synapses, units, from, to));
  std::erase_if(s.blocks, [](const auto& block) { return block.excitatory + block.inhibitory == 0; });
  s.sparsity = 1 - double(wiring.synapse_count()) / double(units * units);
  s.sensory_sparsity = 1 - double(wiring.sensory_synapse_count()) / double(inputs * units);

  const NeuronSet none(size_t(units + 63) / 64);
  NeuronSet driven = none, outputs = none;  // by an input
  std::vector<NeuronSet> targets(size_t(units), none), sources(size_t(units), none);
  s.in_degrees.resize(size_t(units)), s.out_degrees.resize(size_t(units));
  for (size_t i = 0; i < sensory.size(); ++i)
    if (sensory[i] != 0) insert(driven, int64_t(i) % units), ++s.in_degrees[i % size_t(units)];
  for (size_t i = 0; i < synapses.size(); ++i) {
    if (synapses[i] == 0) continue;
    const size_t source = i / size_t(units), target = i % size_t(units);
    insert(targets[source], int64_t(target)), insert(sources[target], int64_t(source)), ++s.out_degrees[source], ++s.in_degrees[target];
  }
  for (int64_t i = 0; i < wiring.outputs(); ++i) insert(outputs, i);
  auto missing = [&](const std::vector<NeuronSet>& next, const NeuronSet& start) {
    std::vector<int64_t> found, ignored;
    const NeuronSet reached = reach(next, start, ignored);
    for (int64_t i = 0; i < units; ++i)
      if (!contains(reached, i)) found.push_back(i);
    return found;
  };
  s.unreachable = missing(targets, driven);
  s.without_effect = missing(sources, outputs);

  std::vector<NeuronSet> reached;
  int64_t pairs = 0, steps = 0;
  for (int64_t i = 0; i < units; ++i) {
    NeuronSet start = none;
    insert(start, i);
    std::vector<int64_t> at_distance;
    reached.push_back(reach(targets, start, at_distance));
    for (size_t d = 1; d < at_distance.size(); ++d) pairs += at_distance[d], steps += at_distance[d] * int64_t(d);
    s.longest_path = std::max(s.longest_path, int64_t(at_distance.size()) - 1);
  }
  s.mean_path = pairs == 0 ? 0 : double(steps) / double(pairs);
  std::vector<bool> counted(static_cast<size_t>(units));
  for (int64_t a = 0; a < units; ++a) {
    if (counted[size_t(a)]) continue;
    s.components.push_back(0);
    for (int64_t b = a; b < units; ++b)
      if (contains(reached[size_t(a)], b) && contains(reached[size_t(b)], a)) ++s.components.back(), counted[size_t(b)] = true;
  }
  std::sort(s.components.begin(), s.components.end(), std::greater<>());
  return s;
}

}  // namespace ridge
