#include "backend/gpu/compiled.h"

#include <algorithm>
#include <unordered_set>

#include "backend/gpu/make.h"
#include "backend/gpu/tile_kernel.h"
#include "base/error.h"
#include "compile/pipeline.h"
#include "compile/place.h"
#include "graph/ops/table.h"

namespace ridge::gpu {
namespace {

std::unique_ptr<Kernel> make_kernel(const Program& program, const ProgramKernel& kernel, const KernelMaker& maker) {
  switch (kernel.group.kind) {
    case Group::Kind::tile: return make_tile_kernel(kernel.tiles, maker.chip());
    case Group::Kind::matmul: return maker.matmul(program, kernel);
    case Group::Kind::node: break;
  }
  const Op op = program.graph[kernel.group.node].op;
  if (!row(op).decompose) return make_node_kernel(program.graph, kernel.group.node, maker.chip());
  std::unique_ptr<Kernel> made = maker.macro(program, kernel);
  if (!made) fail(ErrorCode::internal, "[compile] there is no kernel for {} on {}", name(op), maker.target());
  return made;
}

std::unique_ptr<Kernel> make_pair(const ProgramKernel& row, const ProgramKernel& column, const GpuChip& chip) {
  return make_row_kernel_with_sums(row.tiles[0], column.tiles[0], same_operands(row, column), chip);
}

// Stands in for a kernel whose work another kernel does.
class Nothing final : public Kernel {
 public:
  std::vector<KernelText> texts() const override { return {}; }
  void load(Loader&) override {}
  void bind(std::span<const Place>, Place, Place) override {}
  void enqueue(Bases, LaunchSink&) const override {}
  int launches() const override { return 0; }
};

}  // namespace

// A loop over time.
struct CompiledProgram::Scan {
  Scan(LoopProgram loop, const KernelMaker& maker) : frame(std::move(loop.frame)), in(frame.inputs.size()), out(frame.outputs.size()) {
    body = std::make_unique<CompiledProgram>(std::move(loop.body), maker);
    workspace = frame.lay_out(body->arena_bytes());
  }

  int64_t launches() const { return int64_t(frame.carries()) + frame.steps() * body->launches(); }

  void enqueue(LaunchSink& sink, Bases bases, const Addresses& outer) {
    const Address space = gpu::at(bases, place);
    auto at = [&](size_t operand) { return gpu::at(bases, operands[operand]); };
    auto copy = [&](Address to, Address from, int64_t bytes) {
      if (bytes && to != from) sink.copy(to, from, bytes);
    };
    frame.run_steps(space, in, out, at, copy,
                    [&] { body->enqueue(sink, {.arena = space, .fault = outer.fault, .empty = outer.empty, .inputs = in, .outputs = out}); });
  }

  ScanFrame frame;
  std::unique_ptr<CompiledProgram> body;
  int64_t workspace = 0;
  std::vector<Place> operands;
  Place place;
  std::vector<Address> in, out;
};

CompiledProgram::CompiledProgram(Program program, const KernelMaker& maker) : program_(std::move(program)), takes_over_(program_.kernels.size(), -1) {
  find_row_sums(program_, maker.chip(), takes_over_);
  std::vector<int64_t> workspace;
  std::vector<char> taken(program_.kernels.size(), 0);
  for (int j : takes_over_)
    if (j >= 0) taken[size_t(j)] = 1;
  for (const ProgramKernel& k : program_.kernels) {
    const size_t at = kernels_.size();
    scans_.push_back(k.loop ? std::make_unique<Scan>(std::move(*k.loop), maker) : nullptr);
    if (taken[at])
      kernels_.push_back(std::make_unique<Nothing>());
    else if (takes_over_[at] >= 0)
      kernels_.push_back(make_pair(k, program_.kernels[size_t(takes_over_[at])], maker.chip()));
    else
      kernels_.push_back(k.loop ? nullptr : make_kernel(program_, k, maker));
    workspace.push_back(k.loop ? scans_.back()->workspace : kernels_.back()->workspace_bytes());
    workspace_bytes_ = std::max(workspace_bytes_, workspace.back());
  }
  plan(program_, workspace);
  for (size_t i = 0; i < kernels_.size(); ++i) {
    std::vector<Place> places;
    for (const ProgramOperand& o : operands_of(i)) places.push_back(place_of(program_, o));
    const Place space = workspace[i] ? Place{0, program_.workspace_offsets[i]} : Place{};
    if (Scan* scan = scans_[i].get())
      scan->operands = std::move(places), scan->place = space ? space : Place{0, 0};
    else
      kernels_[i]->bind(places, space, fault_place());
  }
  bases_.assign(size_t(fault_place().base) + 1, 0);
}

CompiledProgram::~CompiledProgram() = default;

std::vector<ProgramOperand> CompiledProgram::operands_of(size_t kernel) const {
  std::vector<ProgramOperand> all = program_.kernels[kernel].operands;
  if (const int other = takes_over_[kernel]; other >= 0) {
    const std::vector<ProgramOperand>& more = program_.kernels[size_t(other)].operands;
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

size_t CompiledProgram::loop_kernels(size_t kernel) const { return scans_[kernel] ? scans_[kernel]->body->program().kernels.size() : 0; }

int64_t CompiledProgram::launches() const {
  int64_t count = 0;
  for (size_t i = 0; i < kernels_.size(); ++i) count += scans_[i] ? scans_[i]->launches() : kernels_[i]->launches();
  return count;
}

std::string CompiledProgram::dump() const {
  std::string text = to_string(program_);
  for (size_t i = 0; i < kernels_.size(); ++i)
    if (const std::string note = kernels_[i] ? kernels_[i]->note() : std::string(); !note.empty()) text += fmt::format("kernel {}: {}\n", i, note);
  for (size_t i = 0; i < scans_.size(); ++i) {
    if (!scans_[i]) continue;
    text += fmt::format("body of kernel {}, {} steps\n", i, scans_[i]->frame.steps());
    for (const std::string& note : scans_[i]->body->program().decomposed) text += note + "\n";
    text += scans_[i]->body->dump();
  }
  return text;
}

std::vector<KernelText> CompiledProgram::texts() const {
  std::vector<KernelText> all;
  std::unordered_set<std::string> seen;
  auto add = [&](std::vector<KernelText> texts) {
    for (KernelText& text : texts)
      if (seen.insert(text.entry + "\n" + text.body).second) all.push_back(std::move(text));
  };
  for (size_t i = 0; i < kernels_.size(); ++i) add(scans_[i] ? scans_[i]->body->texts() : kernels_[i]->texts());
  return all;
}

void CompiledProgram::load(Loader& loader) {
  for (size_t i = 0; i < kernels_.size(); ++i) {
    if (scans_[i])
      scans_[i]->body->load(loader);
    else
      kernels_[i]->load(loader);
  }
}

std::string CompiledProgram::describe(size_t kernel) const {
  std::string entries;
  if (kernels_[kernel])
    for (const KernelText& text : kernels_[kernel]->texts()) entries += (entries.empty() ? ": " : ", ") + text.entry;
  const std::string note = kernels_[kernel] ? kernels_[kernel]->note() : std::string();
  return fmt::format("{}{}{}{}", program_.kernels[kernel].name, entries, note.empty() ? "" : "; ", note);
}

void CompiledProgram::set_bases(const Addresses& a) {
  auto base = [&](Address p) { return p ? p : a.empty; };
  bases_[0] = base(a.arena);
  for (size_t i = 0; i < a.inputs.size(); ++i) bases_[1 + i] = base(a.inputs[i]);
  for (size_t i = 0; i < a.outputs.size(); ++i) bases_[1 + a.inputs.size() + i] = base(a.outputs[i]);
  bases_.back() = a.fault;
}

void CompiledProgram::put(size_t kernel, LaunchSink& sink, const Addresses& a) {
  try {
    if (scans_[kernel])
      scans_[kernel]->enqueue(sink, bases_, a);
    else
      kernels_[kernel]->enqueue(bases_, sink);
    sink.end_kernel();
  } catch (const Error& error) {
    sink.fail_in(fmt::format("kernel {} of {} ({})", kernel, kernels_.size(), describe(kernel)), error);
  }
}

void CompiledProgram::enqueue(LaunchSink& sink, const Addresses& a, const After& after) {
  set_bases(a);
  for (size_t i = 0; i < kernels_.size(); ++i) {
    put(i, sink, a);
    if (after) after(i);
  }
}

}  // namespace ridge::gpu
