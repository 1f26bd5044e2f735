#include "runtime/executable.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "backend/backend.h"
#include "base/error.h"
#include "compile/kernel_work.h"
#include "compile/program.h"
#include "compile/scan_hoist.h"
#include "compile/simplify.h"
#include "graph/ops/table.h"
#include "graph/rewrite.h"
#include "machine/caches.h"
#include "runtime/arena.h"

namespace ridge {
namespace {

bool enabled(const std::string& passes, const char* name) {
  std::string all = passes;
  if (const char* env = std::getenv("RIDGE_PASSES")) all += std::string(",") + env;
  size_t at = 0;
  static constexpr const char* known[] = {"scan_hoist", "simplify", "saved_set", "fuse", "plan", "place"};
  bool on = true;
  while (at < all.size()) {
    size_t end = std::min(all.find(',', at), all.size());
    std::string word = all.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    if (word[0] != '-' || std::none_of(std::begin(known), std::end(known), [&](const char* k) { return word.substr(1) == k; }))
      fail(ErrorCode::usage, "[passes] \"{}\" is not known; write -scan_hoist, -simplify, -saved_set, -fuse, -plan or -place", word);
    if (word.substr(1) == name) on = false;
  }
  return on;
}

// Values that share memory count once, under the name of the first.
std::vector<LiveValue> live_at_peak(const Program& p) {
  const std::vector<ProgramBuffer>& buffers = p.buffers();
  std::vector<ProgramBuffer> held(buffers);
  for (ProgramBuffer b : buffers) {
    if (b.alias < 0) continue;
    size_t root = size_t(b.alias);
    while (buffers[root].alias >= 0) root = size_t(buffers[root].alias);
    held[root].first = std::min(held[root].first, b.first), held[root].last = std::max(held[root].last, b.last);
  }
  std::erase_if(held, [](const ProgramBuffer& b) { return b.place != ProgramBuffer::Place::arena || b.alias >= 0 || b.last < 0; });
  std::vector<int64_t> live(p.kernels().size() + 1);  // first what changes from one kernel to the next
  for (const ProgramBuffer& b : held) live[size_t(b.first)] += b.bytes, live[size_t(b.last) + 1] -= b.bytes;
  std::partial_sum(live.begin(), live.end(), live.begin());
  const int fullest = int(std::max_element(live.begin(), live.end()) - live.begin());
  std::vector<LiveValue> out;
  for (const ProgramBuffer& b : held)
    if (b.first <= fullest && fullest <= b.last)
      out.push_back({fmt::format("{} {}", p.kernels()[size_t(b.first)].name, to_string(p.graph().type(b.owner))), b.bytes});
  std::stable_sort(out.begin(), out.end(), [](const LiveValue& a, const LiveValue& b) { return a.bytes > b.bytes; });
  return out;
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

Executable::Executable(const Graph& graph, std::vector<NodeId> inputs, std::vector<NodeId> outputs, CompileOptions options) {
  auto start = std::chrono::steady_clock::now();
  // Only what the outputs need, so that compiling costs what the program costs and the caller's graph stays as it is.
  Graph own;
  std::unordered_map<NodeId, NodeId> known;
  for (NodeId id : inputs) {
    if (graph[id].op != Op::input) fail(ErrorCode::binding, "[compile] %{} ({}) is to be bound but is not an input", id, name(graph[id].op));
    known[id] = own.input(graph.type(id), graph.input_name(id));
  }
  std::vector<NodeId> own_outputs = import_nodes(own, graph, outputs, known), own_inputs;
  for (NodeId id : inputs) own_inputs.push_back(known[id]);
  int64_t saved_bytes = 0;
  ProgramOptions po;
  Backend& backend = *options.backend;
  po.convolutions = backend.convolutions();  // those that it does not run are taken apart first
  if (po.convolutions) po.stores_permuted = [&backend](const Graph& g, NodeId id) { return backend.stores_permuted(g, id); };
  std::vector<NodeId> forward;
  for (NodeId id : options.forward)
    if (known.count(id)) forward.push_back(known[id]);
  auto rewritten = [&](auto&& pass) {  // outputs and forward roots together, so that what they share stays shared
    std::vector<NodeId> all = own_outputs;
    all.insert(all.end(), forward.begin(), forward.end());
    all = pass(all);
    forward.assign(all.begin() + long(own_outputs.size()), all.end());
    own_outputs.assign(all.begin(), all.begin() + long(own_outputs.size()));
  };
  std::vector<std::string> replaced;
  bool runs_all = true;
  for (NodeId id = 1; id < own.size() && runs_all; ++id) runs_all = !row(own[id].op).decompose || backend.runs(own, id);
  if (!runs_all)
    rewritten([&](const std::vector<NodeId>& all) {
      return decompose(own, all, [&](NodeId id) {
        if (backend.runs(own, id)) return false;
        replaced.push_back(
            fmt::format("{} {}: {} has no kernel for it; decomposed, with {}", name(own[id].op), to_string(own.type(own[id].in[0])), backend.info().name,
                        own[id].op == Op::conv ? "a padded copy and products of its windows" : "memory that grows with the square of the length"));
        return true;
      });
    });
  std::vector<std::string> notes;
  if (enabled(options.passes, "scan_hoist"))
    rewritten([&](const std::vector<NodeId>& all) {
      HoistedScans h = hoist_scans(own, all);
      notes = std::move(h.notes);
      return h.roots;
    });
  if (!forward.empty() && enabled(options.passes, "saved_set")) {
    // The choice must see what really runs.
    rewritten([&](const std::vector<NodeId>& all) { return simplify(own, canonicalize(own, all, po.convolutions)); });
    SavedSet set = choose_saved(own, own_outputs, forward, options.recompute);
    own_outputs = set.outputs;
    po.forward = forward;
    saved_bytes = set.bytes;
  }
  po.simplify = enabled(options.passes, "simplify"), po.fuse = enabled(options.passes, "fuse");
  po.plan = enabled(options.passes, "plan"), po.place = enabled(options.passes, "place");
  po.state = options.state;
  po.cache_bytes = last_level_cache_bytes();
  for (auto [in, out] : options.state) {
    if (in < 0 || out < 0 || size_t(in) >= inputs.size() || size_t(out) >= outputs.size())
      fail(ErrorCode::binding, "[compile] state pairs input {} with output {}, but there are {} inputs and {} outputs", in, out, inputs.size(), outputs.size());
    if (!(graph.type(inputs[size_t(in)]) == graph.type(outputs[size_t(out)])))
      fail(ErrorCode::shape, "[compile] state {} is {} before the step and {} after it", in, to_string(graph.type(inputs[size_t(in)])),
           to_string(graph.type(outputs[size_t(out)])));
  }
  state_ = std::make_unique<State>();
  State& s = *state_;
  Program program(std::move(own), own_inputs, own_outputs, po);
  s.code = backend.compile(std::move(program));
  const Program& p = s.code->program();
  Report& r = s.report;
  for (size_t i = 0; i < p.kernels().size(); ++i) {
    const ProgramKernel& k = p.kernels()[i];
    size_t inside = s.code->loop_kernels(i);
    std::string name = inside ? fmt::format("{}[{}x{}]", k.name, p.graph()[k.group.node].attrs.ints[0], inside) : k.name;
    const KernelWork work = work_of(p, k);
    r.kernels.push_back({std::move(name), work.flops, work.bytes, work.algorithmic_flops, work.unavoidable_bytes});
  }
  s.state = options.state;
  s.arena = options.arena ? options.arena : std::make_shared<Arena>(backend);
  s.arena->require(p.arena_bytes());
  r.refusals = p.refusals();
  r.refusals.insert(r.refusals.end(), replaced.begin(), replaced.end());
  r.peak = live_at_peak(p);
  r.scans = std::move(notes);
  r.arena_bytes = p.arena_bytes(), r.max_live_bytes = p.max_live_bytes();
  r.workspace_bytes = s.code->workspace_bytes();
  r.scratch_bytes = s.code->scratch_bytes();
  for (NodeId id : p.inputs()) s.input_types.push_back(p.graph().type(id)), r.input_bytes += p.graph().type(id).bytes();
  for (NodeId id : p.outputs()) s.output_types.push_back(p.graph().type(id)), r.output_bytes += p.graph().type(id).bytes();
  r.saved_bytes = saved_bytes;
  r.looks = p.looks();
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
      fail(ErrorCode::binding, "[run] input {} (\"{}\", {}) is not bound", i, p.graph().input_name(p.inputs()[i]), to_string(s.input_types[i]));
    }
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i] && s.output_types[i].bytes()) fail(ErrorCode::binding, "[run] output {} ({}) is not bound", i, to_string(s.output_types[i]));
  for (auto [in, out] : s.state)
    if (inputs[size_t(in)] != outputs[size_t(out)])
      fail(ErrorCode::binding, "[run] input {} and output {} are one state and must be bound to one place", in, out);
  if (!s.ready) prepare();  // before the arena: measurements want memory too
  s.code->run(s.arena->data(), inputs, outputs);
}

void Executable::compile_ahead() { state_->code->compile_ahead(); }

void Executable::prepare() {
  state_->code->prepare();
  state_->arena->data();
  state_->ready = true;
}

void Executable::share(std::shared_ptr<Arena> arena) {
  arena->require(state_->code->program().arena_bytes());
  state_->arena = std::move(arena);
}

const Report& Executable::report() const { return state_->report; }
std::string Executable::dump() const {
  std::string text;
  for (const std::string& note : state_->report.scans) text += note + "\n";
  return text + state_->code->dump();
}
const std::vector<Type>& Executable::input_types() const { return state_->input_types; }
const std::vector<Type>& Executable::output_types() const { return state_->output_types; }

}  // namespace ridge
