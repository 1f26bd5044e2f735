// A loop over time as a backend runs it: its body as a separate graph, and where each step reads and writes its values. A step reads its
// carries where the previous step wrote them: in the stack of carries if that is an output, otherwise in two alternating buffers. Only the
// first carry is copied, into the stack.
#pragma once
#include <vector>

#include "graph/graph.h"
#include "graph/scan.h"

namespace ridge {

class ScanFrame {
 public:
  ScanFrame(const Graph& graph, NodeId node);

  // The body, for the pipeline to compile: carries, sequences and constants in, carries and per-step outputs out.
  Graph body;
  std::vector<NodeId> inputs, outputs;

  int64_t steps() const { return view_.steps; }
  bool reverse() const { return view_.reverse; }
  size_t carries() const { return carry_bytes_.size(); }
  size_t sequences() const { return sequence_bytes_.size(); }

  // The memory that a run needs in addition to its operands, in bytes: the body's arena, then carries and outputs that are not results.
  int64_t lay_out(int64_t body_arena_bytes);

  // `at` returns the addresses of operands, null for absent ones: carries, sequences, constants, then final carries, outputs, and carries
  // at the start of each step. Before each call of `run`, the addresses of that step are written to `in` and `out`, one per input and
  // output of the body.
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
  std::vector<int64_t> turn_at_, turn_bytes_, discard_at_;  // offsets and sizes in the memory of a run
};

}  // namespace ridge
