#include "compile/pipeline.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "compile/launch.h"
#include "compile/passes.h"
#include "compile/scan_hoist.h"
#include "compile/scan_saved.h"
#include "compile/simplify.h"
#include "graph/ops/conv_layout.h"
#include "graph/ops/table.h"
#include "graph/rewrite.h"

namespace ridge {
namespace {

// clang-format off
constexpr Pass kPasses[] = {
    {"decompose", true, decompose_missing, nullptr, verify_graph},     {"scan_saved", false, save_loop_values, nullptr, verify_graph},
    {"scan_hoist", false, hoist_loops, nullptr, verify_graph},         {"canonicalize", true, canonicalize_graph, nullptr, verify_canonical},
    {"simplify", false, simplify_graph, nullptr, verify_canonical},    {"layout", false, choose_layout, nullptr, verify_canonical},
    {"saved_set", false, choose_saved_set, nullptr, verify_canonical}, {"outputs", true, separate_outputs, nullptr, verify_outputs},
    {"fuse", false, fuse_groups, group_nodes, verify_groups},          {"order", true, order_groups, nullptr, verify_order},
    {"place", false, place_parts, nullptr, verify_outputs},            {"lower", true, lower_kernels, nullptr, verify_kernels},
    {"updates", true, separate_updates, nullptr, verify_kernels},      {"buffers", true, find_buffers, nullptr, verify_buffers},
    {"in_place", false, reuse_in_place, nullptr, verify_buffers},      {"streaming", false, mark_streaming, nullptr, verify_buffers},
    {"loops", true, compile_loops, nullptr, verify_buffers},           {"row_blocks", false, allow_row_blocks, nullptr, nullptr},
    {"plan", false, nullptr, give_each_own_memory, nullptr}};
// clang-format on
constexpr size_t kCount = std::size(kPasses);

constexpr size_t index_of(std::string_view name) {
  return size_t(std::find_if(std::begin(kPasses), std::end(kPasses), [&](const Pass& pass) { return pass.name == name; }) - std::begin(kPasses));
}
constexpr size_t kFuse = index_of("fuse"), kPlan = index_of("plan"), kHoist = index_of("scan_hoist"), kSaved = index_of("scan_saved");

std::string listed(const char* before, bool all) {
  std::string text;
  for (const Pass& pass : kPasses)
    if (all || !pass.required) text += fmt::format("{}{}{}", text.empty() ? "" : ", ", before, pass.name);
  return text;
}

// Calls take(word) for each entry of a comma-separated list.
template <class Take>
void each_word(std::string_view list, const Take& take) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    if (end) take(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::vector<char> switched_off(std::string_view passes) {
  std::vector<char> off(kCount, 0);
  auto take = [&](std::string_view word) {
    const size_t pass = word[0] == '-' ? index_of(word.substr(1)) : kCount;
    if (pass == kCount) fail(ErrorCode::usage, "[passes] \"{}\" is not known; these can be switched off: {}", word, listed("-", false));
    if (kPasses[pass].required) fail(ErrorCode::usage, "[passes] \"{}\" is required; these can be switched off: {}", word.substr(1), listed("-", false));
    off[pass] = 1;
  };
  each_word(passes, take), each_word(variable("RIDGE_PASSES"), take);
  return off;
}

std::vector<char> dumped_passes() {
  std::vector<char> dumped(kCount, 0);
  each_word(variable("RIDGE_DUMP"), [&](std::string_view word) {
    const size_t pass = index_of(word);
    if (pass == kCount) fail(ErrorCode::usage, "[RIDGE_DUMP] \"{}\" is not a pass; the passes are {}", word, listed("", true));
    dumped[pass] = 1;
  });
  return dumped;
}

bool is_verified(const PipelineOptions& options) {
#ifdef __OPTIMIZE__
  return options.verify || variable("RIDGE_VERIFY") == "1";
#else  // a debug build
  return (void)options, true;
#endif
}

std::string to_string(const Graph& g, const FusePlan& plan) {
  std::string text;
  auto add = [&](const char* before, const std::vector<NodeId>& ids) {
    text += before;
    for (NodeId id : ids) text += fmt::format(" %{}", id);
  };
  for (const Group& group : plan.groups) {
    text += group.node ? fmt::format("{} %{}", name(g[group.node].op), group.node) : "tile";
    for (const GroupSpec& spec : group.specs)
      if (!spec.members.empty()) add(" [", spec.members), add(" ->", spec.stores), text += "]";
    text += "\n";
  }
  return text;
}

void dump(size_t pass, const std::string& text) { fmt::print(stderr, "# after {}\n{}", kPasses[pass].name, text); }

std::string state_of(const Compilation& c, size_t pass) {
  if (pass >= index_of("lower")) return to_string(c.program);
  std::string text = to_string(c.program.graph, c.program.outputs);
  return pass >= kFuse ? text + to_string(c.program.graph, c.fused) : text;
}

Program run_passes(Graph graph, std::vector<NodeId> inputs, std::vector<NodeId> outputs, std::vector<NodeId> forward, const PipelineOptions& options,
                   const Target& target, const std::vector<char>& off) {
  Compilation c{options, target, off};
  for (NodeId id : outputs) c.output_types.push_back(graph.type(id));
  c.program.graph = std::move(graph), c.program.inputs = std::move(inputs), c.program.outputs = std::move(outputs);
  c.program.state_input.assign(c.program.outputs.size(), -1);
  for (auto it = options.state.rbegin(); it != options.state.rend(); ++it) c.program.state_input[size_t(it->second)] = it->first;
  c.forward = std::move(forward);
  const bool verified = is_verified(options);
  const std::vector<char> dumped = dumped_passes();
  for (size_t pass = 0; pass < kCount; pass = c.fuse_again ? kFuse : pass + 1) {
    c.fuse_again = false;
    auto* run = off[pass] ? kPasses[pass].instead : kPasses[pass].run;
    if (!run) continue;
    run(c);
    if (dumped[pass]) dump(pass, state_of(c, pass));
    if (verified && kPasses[pass].verify && !c.fuse_again) kPasses[pass].verify(c);
  }
  return std::move(c.program);
}

// Rewrites outputs and forward roots together, so that shared values stay shared.
template <class Rewrite>
void rewrite_roots(Compilation& c, const Rewrite& rewrite) {
  const size_t count = c.program.outputs.size();
  std::vector<NodeId> all = c.program.outputs;
  all.insert(all.end(), c.forward.begin(), c.forward.end());
  all = rewrite(c.program.graph, all);
  c.forward.assign(all.begin() + long(count), all.end());
  c.program.outputs.assign(all.begin(), all.begin() + long(count));
}

void choose_groups(Compilation& c, bool merge) {
  Program& p = c.program;
  c.placed.clear();
  c.fused = fuse(p.graph, p.outputs, merge, p.inputs, c.options.state, c.has_saved_set ? c.forward : std::vector<NodeId>(), c.target.convolutions_fuse);
  p.planning_work += c.fused.planning_work;
  p.refusals = c.fused.refusals;
}

}  // namespace

std::span<const Pass> pipeline() { return kPasses; }

std::string disabled_passes(std::string_view passes) {
  const std::vector<char> off = switched_off(passes);
  std::string text;
  for (size_t pass = 0; pass < kCount; ++pass)
    if (off[pass]) text += fmt::format("{}-{}", text.empty() ? "" : ",", kPasses[pass].name);
  return text;
}

Program compile_graph(const Graph& graph, std::span<const NodeId> inputs, std::span<const NodeId> outputs, const PipelineOptions& options,
                      const Target& target) {
  for (NodeId id : inputs)
    if (graph[id].op != Op::input) fail(ErrorCode::binding, "[compile] %{} ({}) is to be bound but is not an input", id, name(graph[id].op));
  for (auto [in, out] : options.state) {
    if (in < 0 || out < 0 || size_t(in) >= inputs.size() || size_t(out) >= outputs.size())
      fail(ErrorCode::binding, "[compile] state pairs input {} with output {}, but there are {} inputs and {} outputs", in, out, inputs.size(), outputs.size());
    if (!(graph.type(inputs[size_t(in)]) == graph.type(outputs[size_t(out)])))
      fail(ErrorCode::shape, "[compile] state {} is {} before the step and {} after it", in, to_string(graph.type(inputs[size_t(in)])),
           to_string(graph.type(outputs[size_t(out)])));
  }
  // Copy only what the outputs need: compile time then depends on the program alone, and the caller's graph is not modified.
  Graph own;
  std::unordered_map<NodeId, NodeId> known;
  std::vector<NodeId> own_inputs, forward;
  for (NodeId id : inputs) known[id] = own.input(graph.type(id), graph.input_name(id));
  std::vector<NodeId> own_outputs = import_nodes(own, graph, outputs, known);
  for (NodeId id : inputs) own_inputs.push_back(known[id]);
  for (NodeId id : options.forward)
    if (auto it = known.find(id); it != known.end()) forward.push_back(it->second);
  Program program =
      run_passes(std::move(own), std::move(own_inputs), std::move(own_outputs), std::move(forward), options, target, switched_off(options.passes));
  static std::atomic<uint64_t> compilations{0};
  program.number = ++compilations;
  return program;
}

void plan(Program& program, std::span<const int64_t> workspace_bytes) {
  plan_arena(program, workspace_bytes);
  if (dumped_passes()[kPlan]) dump(kPlan, to_string(program));
}

void decompose_missing(Compilation& c) {
  if (!c.target.runs) return;
  bool runs_all = true;
  const Graph& all = c.program.graph;
  for (NodeId id = 1; id < all.size() && runs_all; ++id) runs_all = !row(all[id].op).decompose || c.target.runs(all, id);
  if (runs_all) return;
  rewrite_roots(c, [&](Graph& g, const std::vector<NodeId>& roots) {
    return decompose(g, roots, [&](NodeId id) {
      if (c.target.runs(g, id)) return false;
      c.program.decomposed.push_back(
          fmt::format("{} {}: {} has no kernel for it; decomposed, with {}", name(g[id].op), to_string(g.type(g[id].in[0])), c.target.name,
                      g[id].op == Op::conv ? "a padded copy and products of its windows" : "memory that grows with the square of the length"));
      return true;
    });
  });
}

void save_loop_values(Compilation& c) {
  rewrite_roots(c, [&](Graph& g, const std::vector<NodeId>& roots) {
    SavedLoops s = save_in_loops(g, roots, c.options.recompute < Recompute::attention);
    c.program.scans = std::move(s.notes);
    return s.roots;
  });
}

void hoist_loops(Compilation& c) {
  rewrite_roots(c, [&](Graph& g, const std::vector<NodeId>& roots) {
    HoistedScans h = hoist_scans(g, roots, c.target.convolutions_read_bytes && !c.target.convolutions_fuse);
    c.program.scans.insert(c.program.scans.end(), h.notes.begin(), h.notes.end());
    return h.roots;
  });
}

void canonicalize_graph(Compilation& c) {
  rewrite_roots(c, [&](Graph& g, const std::vector<NodeId>& roots) { return canonicalize(g, roots, c.target.convolutions); });
}

void simplify_graph(Compilation& c) {
  rewrite_roots(c,
                [&](Graph& g, const std::vector<NodeId>& roots) { return simplify(g, roots, c.target.convolutions_fuse, c.target.convolutions_read_bytes); });
}

void choose_layout(Compilation& c) {
  if (c.target.channels_last)
    rewrite_roots(c, [&](Graph& g, const std::vector<NodeId>& roots) { return ops::keep_channels_last(g, roots, c.target.channels_last); });
}

void choose_saved_set(Compilation& c) {
  if (c.forward.empty()) return;
  SavedSet set = choose_saved(c.program.graph, c.program.outputs, c.forward, c.options.recompute, c.target.convolutions_fuse);
  c.program.outputs = std::move(set.outputs), c.program.saved_bytes = set.bytes;
  c.has_saved_set = true;
}

// Every output must be a separate computed value: inputs, literals and values that are output twice are copied.
void separate_outputs(Compilation& c) {
  Graph& g = c.program.graph;
  std::unordered_set<NodeId> seen;
  for (NodeId& id : c.program.outputs) {
    const Shape& s = g.shape(id);
    for (uint16_t copy = 1; seen.count(id) || g[id].op == Op::input || g[id].op == Op::literal; ++copy)
      id = g.add(Op::reshape, {g[id].op == Op::reshape && g[id].copy ? g[id].in[0] : id}, {{s.begin(), s.end()}, {}, nullptr}, copy);
    seen.insert(id);
  }
  const std::unordered_set<NodeId> bound(c.program.inputs.begin(), c.program.inputs.end());
  for (NodeId id : topological(g, c.program.outputs))
    if (g[id].op == Op::input && !bound.count(id))
      fail(ErrorCode::binding, "[compile] the outputs depend on input \"{}\" {}, which is not among the inputs to be bound", g.input_name(id),
           to_string(g.type(id)));
}

void fuse_groups(Compilation& c) { choose_groups(c, true); }
void group_nodes(Compilation& c) { choose_groups(c, false); }

void order_groups(Compilation& c) {
  for (size_t i : c.fused.circular) write_separately(c, size_t(c.options.state[i].second));
  if (!c.fuse_again) arrange_launches(c.program.graph, c.program.outputs, c.fused);
}

void compile_loops(Compilation& c) {
  Target target = c.target;
  target.cache_bytes = Target().cache_bytes;
  PipelineOptions options;
  options.verify = c.options.verify;
  std::vector<char> off = c.off;
  off[kSaved] = off[kHoist] = 1;  // everything that can leave a loop already has
  for (ProgramKernel& kernel : c.program.kernels) {
    if (kernel.group.kind != Group::Kind::node || c.program.graph[kernel.group.node].op != Op::scan) continue;
    ScanFrame frame(c.program.graph, kernel.group.node);
    Program body = run_passes(std::move(frame.body), frame.inputs, frame.outputs, {}, options, target, off);
    kernel.loop = std::make_shared<LoopProgram>(LoopProgram{std::move(frame), std::move(body)});
  }
}

}  // namespace ridge
