// A loop over time as a backend runs it: its body as a graph of its own, and where each step finds and leaves its values. The carries of a
// step lie where the step before wrote them: in the stack of carries when that is wanted, else in two places that take turns. Nothing is
// copied but the first carry into the stack.
#pragma once
#include <vector>

#include "graph/graph.h"
#include "graph/scan.h"

namespace ridge {

class ScanFrame {
 public:
  ScanFrame(const Graph& graph, NodeId node);

  // The body, for the pipeline to compile: carries, sequences and constants to carries and outputs of the step.
  Graph body;
  std::vector<NodeId> inputs, outputs;

  int64_t steps() const { return view_.steps; }
  size_t carries() const { return carry_bytes_.size(); }

  // What a run needs beside its operands, in bytes: the body's arena, then carries and outputs that nobody asked for.
  int64_t lay_out(int64_t body_arena_bytes);

  // `at` gives operands' addresses, null where one is absent: carries, sequences, constants, then final carries, outputs, entering carries.
  // Each step's addresses are put into `in` and `out`, as many as the body has, before `run` is called.
  template <class Address, class In, class Out, class At, class Copy, class Run>
  void run_steps(Address space, In& in, Out& out, const At& at, const Copy& copy, const Run& run) const {
    const size_t carries = carry_bytes_.size(), sequences = sequence_bytes_.size(), outputs = output_bytes_.size();
    const size_t results = inputs.size(), stacks = results + carries + outputs;
    auto turn = [&](size_t c, int64_t time) { return space + turn_at_[c] + (time & 1) * turn_bytes_[c]; };
    auto when = [&](int64_t t) { return view_.reverse ? view_.steps - 1 - t : t; };
    for (size_t c = 0; c < carries; ++c) {
      const Address stack = at(stacks + c), last = at(results + c);
      if (view_.steps > 0 && stack) copy(stack + when(0) * carry_bytes_[c], at(c), carry_bytes_[c]);
      if (view_.steps == 0 && last) copy(last, at(c), carry_bytes_[c]);
    }
    for (size_t k = carries + sequences; k < results; ++k) in[k] = at(k);
    for (int64_t t = 0; t < view_.steps; ++t) {
      const int64_t here = when(t);
      for (size_t c = 0; c < carries; ++c) {
        const Address stack = at(stacks + c), last = at(results + c);
        in[c] = t == 0 ? at(c) : stack ? stack + here * carry_bytes_[c] : turn(c, t);
        const bool ends = t + 1 == view_.steps;
        out[c] = ends && last ? last : !ends && stack ? stack + when(t + 1) * carry_bytes_[c] : turn(c, t + 1);
      }
      for (size_t s = 0; s < sequences; ++s) in[carries + s] = at(carries + s) + here * sequence_bytes_[s];
      for (size_t o = 0; o < outputs; ++o) {
        const Address stacked = at(results + carries + o);
        out[carries + o] = stacked ? stacked + here * output_bytes_[o] : space + discard_at_[o];
      }
      run();
    }
  }

 private:
  ScanView view_;
  std::vector<int64_t> carry_bytes_, sequence_bytes_, output_bytes_;
  std::vector<int64_t> turn_at_, turn_bytes_, discard_at_;  // in the space of a run
};

}  // namespace ridge
