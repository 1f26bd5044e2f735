#include "runtime/executable.h"

#include <algorithm>
#include <chrono>

#include "backend/backend.h"
#include "backend/kernel_work.h"
#include "backend/program_memory.h"
#include "base/error.h"
#include "compile/pipeline.h"
#include "compile/program.h"
#include "machine/caches.h"
#include "runtime/arena.h"

namespace ridge {
namespace {

Target target_of(const Backend& backend) {
  Target t;
  t.name = backend.info().name, t.cache_bytes = last_level_cache_bytes();
  t.runs = [&backend](const Graph& g, NodeId id) { return backend.runs(g, id); };
  t.convolutions = backend.convolutions(), t.convolutions_fuse = backend.convolutions_fuse();  // convolutions that it does not run are decomposed first
  t.convolutions_read_bytes = backend.convolutions_read_bytes();
  if (t.convolutions) t.channels_last = [&backend](const Graph& g, NodeId id) { return backend.channels_last(g, id); };
  if (t.convolutions) t.stores_permuted = [&backend](const Graph& g, NodeId id) { return backend.stores_permuted(g, id); };
  return t;
}

}  // namespace

struct Executable::State {
  std::unique_ptr<Code> code;
  std::vector<std::pair<int, int>> state;
  std::shared_ptr<Arena> arena;
  std::vector<Type> input_types, output_types;
  Report report;
  bool ready = false;
};

Executable::Executable(const Graph& graph, std::vector<NodeId> inputs, std::vector<NodeId> outputs, const CompileOptions& options) {
  auto start = std::chrono::steady_clock::now();
  state_ = std::make_unique<State>();
  State& s = *state_;
  Backend& backend = *options.backend;
  s.code = backend.compile(compile_graph(graph, inputs, outputs, options, target_of(backend)));
  const Program& p = s.code->program();
  Report& r = s.report;
  for (size_t i = 0; i < p.kernels.size(); ++i) {
    const ProgramKernel& k = p.kernels[i];
    size_t inside = s.code->loop_kernels(i);
    std::string name = inside ? fmt::format("{}[{}x{}]", k.name, p.graph[k.group.node].attrs.ints[0], inside) : k.name;
    const KernelWork work = work_of(p, k);
    r.kernels.push_back({std::move(name), work.flops, work.bytes, work.algorithmic_flops, work.unavoidable_bytes});
  }
  s.state = options.state;
  s.arena = options.arena ? options.arena : std::make_shared<Arena>(backend);
  s.arena->require(p.arena_bytes);
  r.refusals = p.refusals;
  r.refusals.insert(r.refusals.end(), p.decomposed.begin(), p.decomposed.end());
  r.peak = memory_over(p).peak;
  r.scans = p.scans;
  r.arena_bytes = p.arena_bytes, r.max_live_bytes = p.max_live_bytes;
  r.workspace_bytes = s.code->workspace_bytes();
  r.scratch_bytes = s.code->scratch_bytes();
  for (NodeId id : p.inputs) s.input_types.push_back(p.graph.type(id)), r.input_bytes += p.graph.type(id).bytes();
  for (NodeId id : p.outputs) s.output_types.push_back(p.graph.type(id)), r.output_bytes += p.graph.type(id).bytes();
  r.saved_bytes = p.saved_bytes;
  r.planning_work = p.planning_work;
  r.planned_bytes = r.arena_bytes + r.scratch_bytes;
  r.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

Executable::~Executable() = default;
Executable::Executable(Executable&&) noexcept = default;

void Executable::run(std::span<const void* const> inputs, std::span<void* const> outputs) {
  State& s = *state_;
  if (inputs.size() != s.input_types.size() || outputs.size() != s.output_types.size())
    fail(ErrorCode::binding, "[run] got {} inputs and {} outputs, the program has {} and {}", inputs.size(), outputs.size(), s.input_types.size(),
         s.output_types.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i] && s.input_types[i].bytes()) {
      const Program& p = s.code->program();
      fail(ErrorCode::binding, "[run] input {} (\"{}\", {}) is not bound", i, p.graph.input_name(p.inputs[i]), to_string(s.input_types[i]));
    }
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i] && s.output_types[i].bytes()) fail(ErrorCode::binding, "[run] output {} ({}) is not bound", i, to_string(s.output_types[i]));
  for (auto [in, out] : s.state)
    if (inputs[size_t(in)] != outputs[size_t(out)])
      fail(ErrorCode::binding, "[run] input {} and output {} are one state and must be bound to one place", in, out);
  if (!s.ready) prepare();  // before the arena: measurements need memory too
  s.code->run(s.arena->data(), inputs, outputs);
}

void Executable::compile_ahead() { state_->code->compile_ahead(); }

void Executable::prepare() {
  state_->code->prepare();
  state_->arena->data();
  state_->ready = true;
}

void Executable::share(std::shared_ptr<Arena> arena) {
  arena->require(state_->code->program().arena_bytes);
  state_->arena = std::move(arena);
}

const Report& Executable::report() const { return state_->report; }
std::string Executable::dump() const { return state_->code->dump(); }
int64_t Executable::launches() const { return state_->code->launches(); }
const std::vector<Type>& Executable::input_types() const { return state_->input_types; }
const std::vector<Type>& Executable::output_types() const { return state_->output_types; }

}  // namespace ridge
