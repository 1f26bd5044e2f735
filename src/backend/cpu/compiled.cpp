#include "backend/cpu/compiled.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backend/cpu/build.h"
#include "backend/cpu/row_blocks.h"
#include "backend/kernel_log.h"
#include "base/text.h"
#include "compile/pipeline.h"
#include "compile/place.h"
#include "threads/thread_team.h"

namespace ridge::cpu {

namespace {

KernelVariant chosen_variant(const Program& program, ProgramKernel& kernel, CompiledProgram::Choices& choices) {
  kernel.choice_key = kernel_key(program, kernel);
  if (kernel.choice_key.empty()) return {};
  choices.seen.insert(kernel.choice_key);
  const auto wanted = choices.wanted.find(kernel.choice_key);
  if (wanted == choices.wanted.end()) return {};
  choices.used[wanted->first] = wanted->second;
  return variant_of(wanted->first, wanted->second);
}

}  // namespace

// A loop over time.
struct CompiledProgram::Scan {
  Scan(LoopProgram loop, ThreadTeam& team) : frame(std::move(loop.frame)), in(frame.inputs.size()), out(frame.outputs.size()) {
    body = std::make_unique<CompiledProgram>(std::move(loop.body), team);
    workspace = frame.lay_out(body->arena_bytes());
  }

  void run(std::byte* const* bases, Fault& fault) {
    std::byte* space = bases[place.base] + place.offset;
    auto at = [&](size_t operand) -> std::byte* { return operands[operand] ? bases[operands[operand].base] + operands[operand].offset : nullptr; };
    auto copy = [](std::byte* to, const std::byte* from, int64_t bytes) {
      if (to != from) std::memcpy(to, from, size_t(bytes));
    };
    frame.run_steps(space, in, out, at, copy, [&] { body->run(space, in, out, fault); });
  }

  ScanFrame frame;
  std::unique_ptr<CompiledProgram> body;
  int64_t workspace = 0;
  std::vector<Ref> operands;
  Ref place;
  std::vector<const void*> in;
  std::vector<void*> out;
};

CompiledProgram::CompiledProgram(Program program, ThreadTeam& team, Choices* choices) : program_(std::move(program)), team_(team) {
  std::vector<int64_t> workspace;
  for (ProgramKernel& k : program_.kernels) {
    std::string why;
    KernelVariant variant;
    if (choices) variant = chosen_variant(program_, k, *choices);
    std::unique_ptr<RowBlockLoop> blocks = k.loop ? make_row_blocks(*k.loop, why, variant) : nullptr;
    if (k.loop) {
      program_.scans.push_back(fmt::format("scan of {}: {}", counted(k.loop->frame.steps(), "step"),
                                           blocks ? blocks->describe() + ", all steps at a time" : "all rows, step by step: " + why));
    }
    scans_.push_back(k.loop && !blocks ? std::make_unique<Scan>(std::move(*k.loop), team) : nullptr);
    bodies_.push_back(blocks ? &blocks->body() : k.loop ? &scans_.back()->body->program() : nullptr);
    if (scans_.back()) {
      kernels_.push_back(nullptr);
      workspace.push_back(scans_.back()->workspace);
      scratch_bytes_ = std::max(scratch_bytes_, scans_.back()->body->scratch_bytes());
    } else {
      kernels_.push_back(blocks ? std::move(blocks) : make_kernel(program_, k, team.size(), variant));
      workspace.push_back(kernels_.back()->workspace_bytes());
      scratch_bytes_ = std::max(scratch_bytes_, kernels_.back()->scratch_bytes());
    }
    workspace_bytes_ = std::max(workspace_bytes_, workspace.back());
  }
  plan(program_, workspace);
  size_t first = 0;
  for (size_t i = 0; i < kernels_.size(); ++i) {
    std::vector<Ref> refs;
    for (const ProgramOperand& o : program_.kernels[i].operands) refs.push_back(place_of(program_, o));
    Ref space = workspace[i] ? Ref{0, program_.workspace_offsets[i]} : Ref{};
    first_task_.push_back(tasks_.size());
    if (Scan* scan = scans_[i].get()) {
      scan->operands = std::move(refs), scan->place = space ? space : Ref{0, 0};
      segments_.push_back({first, tasks_.size(), scan});
      first = tasks_.size();
    } else {
      kernels_[i]->bind(refs, space, tasks_);
    }
  }
  segments_.push_back({first, tasks_.size(), nullptr});
  first_task_.push_back(tasks_.size());
  bases_.assign(1 + program_.inputs.size() + program_.outputs.size(), nullptr);
}

CompiledProgram::~CompiledProgram() = default;

size_t CompiledProgram::loop_kernels(size_t kernel) const { return bodies_[kernel] ? bodies_[kernel]->kernels.size() : 0; }

std::string CompiledProgram::dump() const {
  std::string text = to_string(program_);
  for (size_t i = 0; i < scans_.size(); ++i)
    if (bodies_[i])
      text += fmt::format("body of kernel {}, {} steps\n", i, scan_view(program_.graph[program_.kernels[i].group.node]).steps) +
              (scans_[i] ? scans_[i]->body->dump() : to_string(*bodies_[i]));
  return text;
}

void CompiledProgram::bind(std::byte* arena, std::span<const void* const> inputs, std::span<void* const> outputs) {
  // Empty arrays may be bound to null. Kernels still compute addresses in them, so they get valid memory.
  static std::byte empty[64];
  auto base = [](void* p) { return p ? static_cast<std::byte*>(p) : empty; };
  bases_[0] = base(arena);
  for (size_t i = 0; i < inputs.size(); ++i) bases_[1 + i] = base(const_cast<void*>(inputs[i]));
  for (size_t i = 0; i < outputs.size(); ++i) bases_[1 + inputs.size() + i] = base(outputs[i]);
}

void CompiledProgram::run(std::byte* arena, std::span<const void* const> inputs, std::span<void* const> outputs, Fault& fault) {
  bind(arena, inputs, outputs);
  for (const Segment& s : segments_) {
    if (s.first < s.last) team_.run(std::span(tasks_).subspan(s.first, s.last - s.first), bases_.data(), fault);
    if (s.scan) s.scan->run(bases_.data(), fault);
  }
}

void CompiledProgram::run(std::byte* arena, std::span<const void* const> inputs, std::span<void* const> outputs, Fault& fault, KernelLog& log) {
  const size_t threads = size_t(team_.size()), count = scans_.size();
  LoggedRun logged{.program = &program_, .whole = {log_time(), 0}, .kernels = {}, .threads = int(threads), .busy = {}, .launches = int64_t(tasks_.size())};
  logged.kernels.resize(count), logged.busy.resize(threads * count);
  std::vector<double> before(threads), after(threads);
  bind(arena, inputs, outputs);
  team_.kernel_seconds(before);
  for (size_t i = 0; i < count; ++i) {
    logged.kernels[i].begin = log_time();
    const size_t first = first_task_[i], last = first_task_[i + 1];
    if (first < last) team_.run(std::span(tasks_).subspan(first, last - first), bases_.data(), fault);
    if (scans_[i]) scans_[i]->run(bases_.data(), fault);
    logged.kernels[i].end = log_time();
    team_.kernel_seconds(after);
    for (size_t t = 0; t < threads; ++t) logged.busy[t * count + i] = after[t] - before[t];
    before.swap(after);
    if (log.looks()) log.look(program_, i, [&](const Place& place, int64_t) { return bases_[size_t(place.base)] + place.offset; });
  }
  logged.whole.end = log_time();
  log.add(logged);
}

}  // namespace ridge::cpu
