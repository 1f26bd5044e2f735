#include "backend/gpu/compiled.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "backend/gpu/joined_kernels.h"
#include "backend/gpu/launch_lists.h"
#include "backend/gpu/loop_kernel.h"
#include "backend/gpu/make.h"
#include "backend/gpu/tile_kernel.h"
#include "base/error.h"
#include "compile/pipeline.h"
#include "compile/place.h"
#include "graph/ops/table.h"
#include "io/checksum.h"

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

// A loop over time: one kernel for all steps, or the kernels of every step one after another, whichever is measured to be faster.
struct CompiledProgram::Scan {
  Scan(const ProgramKernel& kernel, const KernelMaker& maker)
      : resident(kernel.loop->body.row_blocks ? make_loop_kernels(kernel, maker.chip()) : LoopKernels{{}, "the pass row_blocks is switched off"}),
        operand_bytes(loop_operand_bytes(*kernel.loop)),
        frame(std::move(kernel.loop->frame)),
        in(frame.inputs.size()),
        out(frame.outputs.size()) {
    body = std::make_unique<CompiledProgram>(std::move(kernel.loop->body), maker);
    workspace = frame.lay_out(body->arena_bytes());
    if (!resident.kernels.empty()) whole = resident.kernels[0].get();
  }

  int64_t launches() const { return whole ? whole->launches() : int64_t(frame.carries()) + frame.steps() * body->launches(); }
  std::string note() const { return whole ? whole->note() : fmt::format("unrolled: {}", resident.refusal); }

  std::vector<KernelText> texts() const {
    std::vector<KernelText> all = body->texts();
    for (const auto& kernel : resident.kernels)
      for (KernelText& text : kernel->texts()) all.push_back(std::move(text));
    return all;
  }

  void bind(std::vector<Place> places, Place space, Place fault) {
    operands = std::move(places), place = space ? space : Place{0, 0}, fault_at = fault;
    for (const auto& kernel : resident.kernels) kernel->bind(operands, {}, fault);
  }

  void load(Loader& loader) {
    if (whole) choose(loader);
    (whole ? whole->load(loader) : body->load(loader));
  }

  // The key holds the step, how its rows are divided, and the number of steps as a power of two: what a resident kernel does once, such as reading weights,
  // decides a short loop and does not matter in a long one.
  void choose(Loader& loader) {
    std::string bodies;
    for (const auto& kernel : resident.kernels) bodies += kernel->texts()[0].body;
    const int64_t steps = int64_t(1) << std::lround(std::log2(double(std::max<int64_t>(frame.steps(), 1))));
    const std::string key = fmt::format("loop {} of {} steps", checksum_of(bodies).substr(0, 16), steps);
    const std::string known = loader.choice(key);
    constexpr std::string_view kResident = "resident ";
    for (size_t i = 0; i < resident.kernels.size(); ++i)
      if (known.starts_with(fmt::format("{}{},", kResident, i))) return void(whole = resident.kernels[i].get());
    if (!known.empty()) return whole = nullptr, void(resident.refusal = known);
    std::vector<Kernel*> candidates;
    int spilled = 0;
    for (const auto& kernel : resident.kernels) {
      kernel->load(loader);
      const int bytes = loader.spilled_bytes(loader.loaded(kernel->texts()[0]));
      spilled = std::max(spilled, bytes);
      if (bytes == 0) candidates.push_back(kernel.get());
    }
    if (candidates.empty()) {
      whole = nullptr;
      resident.refusal = fmt::format("the kernel for all steps needs {} bytes of memory per thread that its registers do not hold", spilled);
      return loader.record_choice(key, resident.refusal);
    }
    constexpr int64_t kMostLaunches = 20000;  // each takes about 10 KB of a recording
    const bool rival = frame.steps() * body->launches() <= kMostLaunches;
    if (rival) body->load(loader), candidates.push_back(nullptr);
    const std::vector<double> ms = measured(loader, candidates);
    const size_t best = size_t(std::min_element(ms.begin(), ms.end()) - ms.begin());
    whole = candidates[best];
    const size_t number =
        size_t(std::find_if(resident.kernels.begin(), resident.kernels.end(), [&](const auto& k) { return k.get() == whole; }) - resident.kernels.begin());
    std::string times;
    for (size_t i = 0; i < ms.size(); ++i) times += fmt::format("{} {} {:.4f} ms", i ? "," : "", candidates[i] ? "resident" : "unrolled", ms[i]);
    if (!whole) resident.refusal = "measured:" + times;
    const std::string choice = whole ? fmt::format("{}{},{}", kResident, number, times) : resident.refusal;
    ms[best] < 0 ? loader.record_choice(key, choice) : loader.keep_choice(key, choice);
  }

  // Milliseconds of each candidate (null: step by step) in memory of its own; negative if there is none.
  std::vector<double> measured(Loader& loader, const std::vector<Kernel*>& candidates) {
    std::vector<Place> own = operands, places;
    const Place own_place = place, own_fault = fault_at;
    int64_t bytes = (sizeof(FaultRecord) + 255) / 256 * 256;
    auto add = [&](int64_t size) { return std::exchange(bytes, bytes + (size + 255) / 256 * 256); };
    for (size_t i = 0; i < own.size(); ++i) places.push_back(own[i] ? Place{0, add(operand_bytes[i])} : Place{});
    const Place space{0, add(workspace)};
    bind(std::move(places), space, {0, 0});
    std::vector<double> ms;
    for (Kernel* candidate : candidates) {
      whole = candidate;
      ms.push_back(loader.recorded_ms(bytes, [&](LaunchSink& sink, Address memory) {
        const Address bases[] = {memory};
        enqueue(sink, bases, {.arena = 0, .fault = memory, .empty = memory, .inputs = {}, .outputs = {}});
      }));
    }
    bind(std::move(own), own_place, own_fault);
    return ms;
  }

  void enqueue(LaunchSink& sink, Bases bases, const Addresses& outer) {
    if (whole) return whole->enqueue(bases, sink);
    const Address space = gpu::at(bases, place);
    auto at = [&](size_t operand) { return gpu::at(bases, operands[operand]); };
    auto copy = [&](Address to, Address from, int64_t bytes) {
      if (bytes && to != from) sink.copy(to, from, bytes);
    };
    frame.run_steps(space, in, out, at, copy,
                    [&] { body->enqueue(sink, {.arena = space, .fault = outer.fault, .empty = outer.empty, .inputs = in, .outputs = out}); });
  }

  LoopKernels resident;
  Kernel* whole = nullptr;  // the kernel for all steps that is used; null: step by step
  std::vector<int64_t> operand_bytes;
  ScanFrame frame;
  std::unique_ptr<CompiledProgram> body;
  int64_t workspace = 0;
  std::vector<Place> operands;
  Place place, fault_at;
  std::vector<Address> in, out;
};

CompiledProgram::CompiledProgram(Program program, const KernelMaker& maker) : program_(std::move(program)) {
  const size_t count = program_.kernels.size();
  for (size_t i = 0; i < count; ++i) does_.push_back({i});
  for (const ProgramKernel& k : program_.kernels) {
    scans_.push_back(k.loop ? std::make_unique<Scan>(k, maker) : nullptr);
    kernels_.push_back(k.loop ? nullptr : make_kernel(program_, k, maker));
  }
  std::vector<char> taken(count, 0), hidden(count, 0);
  auto take = [&](size_t by, std::vector<size_t> all, std::unique_ptr<Kernel> kernel) {
    for (size_t i : all) taken[i] = 1, does_[i].clear(), kernels_[i] = std::make_unique<Nothing>();
    does_[by] = std::move(all), kernels_[by] = std::move(kernel);
  };
  const std::vector<std::vector<size_t>> sums = find_row_sums(program_, maker.chip());
  for (size_t i = 0; i < count; ++i) {
    if (sums[i].empty()) continue;
    std::vector<size_t> all = {i};
    all.insert(all.end(), sums[i].begin(), sums[i].end());
    take(i, std::move(all), make_row_kernel_with_sums(program_, i, sums[i], maker.chip()));
  }
  for (size_t i = 0; i < count; ++i) {
    const ProgramKernel& k = program_.kernels[i];
    if (taken[i] || k.group.kind != Group::Kind::node || !row(program_.graph[k.group.node].op).decompose) continue;
    for (size_t j : columns_near(program_, i)) {
      if (taken[j]) continue;
      std::unique_ptr<Kernel> both = maker.macro_with_sums(program_, k, program_.kernels[j]);
      if (!both) continue;
      take(i, {i, j}, std::move(both));
      break;
    }
  }
  for (JoinedKernels& j : find_joined_kernels(program_, taken, maker)) {
    const size_t last = j.kernels.back();
    take(last, std::move(j.kernels), std::move(j.kernel));
    hidden[last] = 1;
  }
  for (LaunchList& list : find_launch_lists(program_, kernels_, taken, maker)) {
    const size_t last = list.kernels.back();
    take(last, std::move(list.kernels), std::move(list.kernel));
  }
  shows_ = does_;
  for (size_t i = 0; i < count; ++i)
    if (hidden[i]) shows_[i] = {i};
  std::vector<int64_t> workspace;
  for (size_t i = 0; i < count; ++i) {
    workspace.push_back(scans_[i] ? scans_[i]->workspace : kernels_[i]->workspace_bytes());
    workspace_bytes_ = std::max(workspace_bytes_, workspace.back());
  }
  for (size_t i = 0; i < count; ++i)
    if (scans_[i]) program_.scans.push_back(fmt::format("scan of {} steps: {}", scans_[i]->frame.steps(), scans_[i]->note()));
  plan(program_, workspace);
  for (size_t i = 0; i < count; ++i) {
    std::vector<Place> places;
    for (const ProgramOperand& o : operands_of(i)) places.push_back(place_of(program_, o));
    const Place space = workspace[i] ? Place{0, program_.workspace_offsets[i]} : Place{};
    if (Scan* scan = scans_[i].get())
      scan->bind(std::move(places), space, fault_place());
    else
      kernels_[i]->bind(places, space, fault_place());
  }
  bases_.assign(size_t(fault_place().base) + 1, 0);
}

CompiledProgram::~CompiledProgram() = default;

std::vector<ProgramOperand> CompiledProgram::operands_of(size_t kernel) const {
  std::vector<ProgramOperand> all;
  for (size_t i : does_[kernel]) all.insert(all.end(), program_.kernels[i].operands.begin(), program_.kernels[i].operands.end());
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
    text += fmt::format("kernel {}: loop of {} steps, {}\nbody of kernel {}, {} steps\n", i, scans_[i]->frame.steps(), scans_[i]->note(), i,
                        scans_[i]->frame.steps());
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
  for (size_t i = 0; i < kernels_.size(); ++i) add(scans_[i] ? scans_[i]->texts() : kernels_[i]->texts());
  return all;
}

void CompiledProgram::load(Loader& loader) {
  for (size_t i = 0; i < kernels_.size(); ++i) {
    if (scans_[i])
      scans_[i]->load(loader);
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
