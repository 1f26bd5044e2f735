#include "backend/cpu/compiled.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backend/cpu/build.h"
#include "graph/scan.h"
#include "runtime/thread_team.h"

namespace ridge::cpu {

// A loop over time. The carries of a step lie where the step before wrote them: in the stack of carries when that is wanted,
// else in two places that take turns. Nothing is copied but the first carry into the stack.
struct CompiledProgram::Scan {
  Scan(const Graph& graph, NodeId node, ThreadTeam& team) : view(scan_view(graph[node])) {
    const ScanBody& b = view.body;
    Graph own;
    std::unordered_map<NodeId, NodeId> known;
    std::vector<NodeId> inputs, outputs;
    for (auto* list : {&b.carry_in, &b.sequence_in, &b.constant_in})
      for (NodeId id : *list) inputs.push_back(known[id] = own.input(b.graph.type(id), b.graph.input_name(id)));
    std::vector<NodeId> roots = b.carry_out;
    roots.insert(roots.end(), b.step_out.begin(), b.step_out.end());
    outputs = import_nodes(own, b.graph, roots, known);
    body = std::make_unique<CompiledProgram>(Program(std::move(own), inputs, outputs, {}), team);
    for (NodeId id : b.carry_in) carry_bytes.push_back(b.graph.type(id).bytes());
    for (NodeId id : b.sequence_in) sequence_bytes.push_back(b.graph.type(id).bytes());
    for (NodeId id : b.step_out) output_bytes.push_back(b.graph.type(id).bytes());
    workspace = aligned(body->arena_bytes());
    for (int64_t bytes : carry_bytes) turn_at.push_back(workspace), workspace += 2 * aligned(bytes);
    for (int64_t bytes : output_bytes) discard_at.push_back(workspace), workspace += aligned(bytes);
    in.resize(inputs.size()), out.resize(outputs.size());
  }

  static int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  // Operands: carries, sequences, constants, then final carries, outputs, entering carries (any result may be absent).
  void run(std::byte* const* bases, Fault& fault) {
    size_t carries = carry_bytes.size(), sequences = sequence_bytes.size(), constants = view.body.constant_in.size(), outputs = output_bytes.size();
    auto at = [&](size_t operand) -> std::byte* { return operands[operand] ? bases[operands[operand].base] + operands[operand].offset : nullptr; };
    size_t results = carries + sequences + constants;
    std::byte* space = bases[place.base] + place.offset;
    auto slot = [&](size_t c, int64_t time) { return space + turn_at[c] + (time & 1) * aligned(carry_bytes[c]); };
    auto when = [&](int64_t t) { return view.reverse ? view.steps - 1 - t : t; };
    for (size_t c = 0; c < carries; ++c) {
      std::byte *stack = at(results + carries + outputs + c), *last = at(results + c);
      if (view.steps == 0) {
        if (last) std::memcpy(last, at(c), size_t(carry_bytes[c]));
      } else if (stack) {
        std::memcpy(stack + when(0) * carry_bytes[c], at(c), size_t(carry_bytes[c]));
      }
    }
    for (size_t k = 0; k < constants; ++k) in[carries + sequences + k] = at(carries + sequences + k);
    for (int64_t t = 0; t < view.steps; ++t) {
      int64_t here = when(t);
      for (size_t c = 0; c < carries; ++c) {
        std::byte* stack = at(results + carries + outputs + c);
        in[c] = t == 0 ? at(c) : stack ? stack + here * carry_bytes[c] : slot(c, t);
        bool last = t + 1 == view.steps;
        out[c] = last ? (at(results + c) ? at(results + c) : slot(c, t + 1)) : stack ? stack + when(t + 1) * carry_bytes[c] : slot(c, t + 1);
      }
      for (size_t s = 0; s < sequences; ++s) in[carries + s] = at(carries + s) + here * sequence_bytes[s];
      for (size_t o = 0; o < outputs; ++o) {
        std::byte* stacked = at(results + carries + o);
        out[carries + o] = stacked ? stacked + here * output_bytes[o] : space + discard_at[o];
      }
      body->run(space, in, out, fault);
    }
  }

  ScanView view;
  std::unique_ptr<CompiledProgram> body;
  std::vector<int64_t> carry_bytes, sequence_bytes, output_bytes, turn_at, discard_at;
  int64_t workspace = 0;
  std::vector<Ref> operands;
  Ref place;
  std::vector<const void*> in;
  std::vector<void*> out;
};

CompiledProgram::CompiledProgram(Program program, ThreadTeam& team) : program_(std::move(program)), team_(team) {
  std::vector<int64_t> workspace;
  for (const ProgramKernel& k : program_.kernels()) {
    bool scan = k.group.kind == Group::Kind::node && program_.graph()[k.group.node].op == Op::scan;
    scans_.push_back(scan ? std::make_unique<Scan>(program_.graph(), k.group.node, team) : nullptr);
    if (scan) {
      kernels_.push_back(nullptr);
      workspace.push_back(scans_.back()->workspace);
      scratch_bytes_ = std::max(scratch_bytes_, scans_.back()->body->scratch_bytes());
    } else {
      kernels_.push_back(make_kernel(program_, k));
      workspace.push_back(kernels_.back()->workspace_bytes());
      scratch_bytes_ = std::max(scratch_bytes_, kernels_.back()->scratch_bytes());
    }
    workspace_bytes_ = std::max(workspace_bytes_, workspace.back());
  }
  program_.plan(workspace);
  size_t first = 0;
  for (size_t i = 0; i < kernels_.size(); ++i) {
    std::vector<Ref> refs;
    for (const ProgramOperand& o : program_.kernels()[i].operands) refs.push_back(place(o.owner, o.offset));
    Ref space = workspace[i] ? Ref{0, program_.workspace_offset(i)} : Ref{};
    if (Scan* scan = scans_[i].get()) {
      scan->operands = std::move(refs), scan->place = space ? space : Ref{0, 0};
      segments_.push_back({first, tasks_.size(), scan});
      first = tasks_.size();
    } else {
      kernels_[i]->bind(refs, space, tasks_);
    }
  }
  segments_.push_back({first, tasks_.size(), nullptr});
  bases_.assign(1 + program_.inputs().size() + program_.outputs().size(), nullptr);
}

CompiledProgram::~CompiledProgram() = default;

size_t CompiledProgram::loop_kernels(size_t kernel) const { return scans_[kernel] ? scans_[kernel]->body->program().kernels().size() : 0; }

std::string CompiledProgram::dump() const {
  std::string text = program_.dump();
  for (size_t i = 0; i < scans_.size(); ++i)
    if (scans_[i]) text += fmt::format("body of kernel {}, {} steps\n", i, scans_[i]->view.steps) + scans_[i]->body->dump();
  return text;
}

Ref CompiledProgram::place(NodeId owner, int64_t offset) const {
  if (!owner) return {};
  const ProgramBuffer& b = program_.buffer_of(owner);
  switch (b.place) {
    case ProgramBuffer::Place::arena: return {0, b.offset + offset};
    case ProgramBuffer::Place::input: return {1 + b.index, offset};
    case ProgramBuffer::Place::output:
      // State has one place, so that kernels can see that there is nothing to copy.
      if (const int in = program_.state_input(b.index); in >= 0) return {1 + in, offset};
      return {1 + int32_t(program_.inputs().size()) + b.index, offset};
  }
  return {};
}

void CompiledProgram::run(std::byte* arena, std::span<const void* const> inputs, std::span<void* const> outputs, Fault& fault) {
  // What is empty may be bound to nothing; addresses inside it are still formed, so it gets one of its own.
  static std::byte empty[64];
  auto base = [](void* p) { return p ? static_cast<std::byte*>(p) : empty; };
  bases_[0] = base(arena);
  for (size_t i = 0; i < inputs.size(); ++i) bases_[1 + i] = base(const_cast<void*>(inputs[i]));
  for (size_t i = 0; i < outputs.size(); ++i) bases_[1 + inputs.size() + i] = base(outputs[i]);
  for (const Segment& s : segments_) {
    if (s.first < s.last) team_.run(std::span(tasks_).subspan(s.first, s.last - s.first), bases_.data(), fault);
    if (s.scan) s.scan->run(bases_.data(), fault);
  }
}

}  // namespace ridge::cpu
