// A laboratory for the Nature network: a PPO update of a minibatch (forward, backward, clipping, Adam) on bytes, as a whole and kernel by kernel.
// Usage: bench_nature_lab [fp32|bf16] [minibatch] [threads] [seconds]; minibatches of 64 and less are also timed forward only, as for acting.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "autograd/gradients.h"
#include "backend/cpu/backend.h"
#include "backend/cpu/build.h"
#include "base/mapped_memory.h"
#include "compile/autocast.h"
#include "compile/pipeline.h"
#include "compile/place.h"
#include "compile/program.h"
#include "graph/builder.h"
#include "machine/caches.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "threads/thread_team.h"

namespace {

using namespace ridge;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Net {
  Graph graph;
  Builder b{graph};
  std::vector<NodeId> inputs, outputs, parameters, roots;
  std::vector<std::pair<int, int>> state;

  NodeId input(DType type, const Shape& shape) { return inputs.emplace_back(graph.input({type, shape}, fmt::format("x{}", inputs.size()))); }
  NodeId parameter(const Shape& shape) { return parameters.emplace_back(input(DType::f32, shape)); }

  NodeId conv(NodeId x, int64_t in, int64_t out, int64_t window, int64_t stride) {
    const NodeId w = parameter({out, in, window, window}), bias = parameter({out, 1, 1});
    return b.unary(Op::relu, b.add(b.conv(x, w, {.stride = {stride, stride}}), bias));
  }
  NodeId linear(NodeId x, int64_t in, int64_t out) {
    const NodeId w = parameter({out, in}), bias = parameter({out});
    return b.linear(x, w, bias);
  }

  Net(int64_t batch, bool learn, bool narrow) {
    NodeId x = b.mul(b.cast(input(DType::u8, {batch, 4, 84, 84}), DType::f32), 1.0 / 255);
    x = conv(conv(conv(x, 4, 32, 8, 4), 32, 64, 4, 2), 64, 64, 3, 1);
    x = b.unary(Op::relu, linear(b.reshape(x, {batch, 3136}), 3136, 512));
    NodeId logits = linear(x, 512, 6), value = b.reshape(linear(x, 512, 1), {batch});
    if (!learn) {
      outputs = {logits, value};
      if (narrow) outputs = autocast(graph, outputs, DType::bf16);
      return;
    }
    const NodeId actions = input(DType::i64, {batch, 1}), old = input(DType::f32, {batch}), advantage = input(DType::f32, {batch}),
                 target = input(DType::f32, {batch});
    const NodeId log = b.log_softmax(logits), chosen = b.reshape(b.gather(log, actions, 1), {batch}), ratio = b.unary(Op::exp, b.sub(chosen, old));
    const NodeId clipped = b.binary(Op::minimum, b.binary(Op::maximum, ratio, 0.9), 1.1);
    const NodeId gain = b.mean(b.binary(Op::minimum, b.mul(advantage, ratio), b.mul(advantage, clipped)), {});
    const NodeId away = b.sub(value, target),
                 entropy = b.mean(b.neg(b.reduce(Op::reduce_sum, b.mul(b.unary(Op::exp, log), log), std::array<int64_t, 1>{1})), {});
    NodeId loss = b.sub(b.sub(b.mul(b.mean(b.mul(away, away), {}), 0.5), gain), b.mul(entropy, 0.01));
    if (narrow) loss = autocast(graph, {&loss, 1}, DType::bf16)[0];
    std::vector<NodeId> gradient = gradients(graph, loss, parameters);
    for (NodeId& g : gradient) g = narrow ? keep_wide(graph, g) : g;
    const Clipped c = clip_global_norm(b, gradient, 0.5);
    AdamState s;
    s.parameters = parameters, s.applied = input(DType::i64, {});
    const NodeId rate = input(DType::f32, {});
    for (auto* moments : {&s.first, &s.second})
      for (NodeId p : parameters) moments->push_back(input(DType::f32, graph.shape(p)));
    const AdamState next = adam(b, s, c.gradients, rate, {}, {.eps = 1e-5});
    outputs = {loss}, roots = {loss};
    auto keep = [&](NodeId from, NodeId to) {
      state.emplace_back(int(std::find(inputs.begin(), inputs.end(), from) - inputs.begin()), int(outputs.size()));
      outputs.push_back(to);
    };
    keep(s.applied, next.applied);
    for (size_t i = 0; i < parameters.size(); ++i)
      keep(s.parameters[i], next.parameters[i]), keep(s.first[i], next.first[i]), keep(s.second[i], next.second[i]);
  }
};

// A program whose kernels can be run one by one.
struct Timed {
  Program program;
  std::vector<std::unique_ptr<cpu::Kernel>> kernels;
  std::vector<cpu::Task> tasks;
  std::vector<size_t> first;
  std::vector<std::byte*> bases;
  cpu::Fault fault;

  Timed(const Net& net, ThreadTeam& team) {
    const cpu::CpuBackend backend(team);
    Target target;
    target.name = "cpu", target.cache_bytes = last_level_cache_bytes(), target.convolutions = target.convolutions_fuse = true;
    target.runs = [&](const Graph& g, NodeId id) { return backend.runs(g, id); };
    target.stores_permuted = [&](const Graph& g, NodeId id) { return backend.stores_permuted(g, id); };
    PipelineOptions options;
    options.forward = net.roots, options.state = net.state;
    program = compile_graph(net.graph, net.inputs, net.outputs, options, target);
    std::vector<int64_t> workspace;
    int64_t scratch = 0;
    for (const ProgramKernel& k : program.kernels) {
      kernels.push_back(cpu::make_kernel(program, k));
      workspace.push_back(kernels.back()->workspace_bytes()), scratch = std::max(scratch, kernels.back()->scratch_bytes());
    }
    plan(program, workspace);
    team.reserve_scratch(scratch);
    bases.push_back(map_memory(program.arena_bytes));
    for (NodeId id : program.inputs) {
      const Type& t = program.graph.type(id);
      bases.push_back(map_memory(t.bytes()));
      for (int64_t i = 0; t.dtype == DType::f32 && i < t.shape.numel(); ++i) reinterpret_cast<float*>(bases.back())[i] = float((i * 7919) % 1000) * 2e-5f;
      for (int64_t i = 0; t.dtype == DType::u8 && i < t.shape.numel(); ++i) bases.back()[i] = std::byte(i * 7919 % 251);
    }
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      const int in = program.state_input[i];
      bases.push_back(in >= 0 ? bases[size_t(1 + in)] : map_memory(program.graph.type(program.outputs[i]).bytes()));
    }
    for (size_t i = 0; i < kernels.size(); ++i) {
      std::vector<cpu::Ref> refs;
      for (const ProgramOperand& o : program.kernels[i].operands) refs.push_back(place_of(program, o));
      first.push_back(tasks.size());
      kernels[i]->bind(refs, workspace[i] ? cpu::Ref{0, program.workspace_offsets[i]} : cpu::Ref{}, tasks);
    }
    first.push_back(tasks.size());
  }
  void run(ThreadTeam& team, size_t from, size_t to) { team.run(std::span(tasks).subspan(first[from], first[to] - first[from]), bases.data(), fault); }
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void time(const char* what, int64_t batch, bool learn, bool narrow, int threads, double seconds) {
  ThreadTeam team(TeamOptions{.threads = threads});
  const Net net(batch, learn, narrow);
  Timed timed(net, team);
  const size_t count = timed.kernels.size();
  std::vector<double> whole;
  std::vector<std::vector<double>> each(count);
  for (const double end = now() + seconds; now() < end || whole.size() < 5;) {
    double t = now();
    timed.run(team, 0, count);
    whole.push_back(now() - t);
    for (size_t i = 0; learn && i < count; ++i) {
      t = now();
      timed.run(team, i, i + 1);
      each[i].push_back(now() - t);
    }
  }
  fmt::print("{} {} of {} on {} threads: {:.3f} ms (least {:.3f}), {} kernels, {:.1f} MB\n", what, narrow ? "bf16" : "fp32", batch, threads,
             median(whole) * 1e3, *std::min_element(whole.begin(), whole.end()) * 1e3, count, double(timed.program.arena_bytes) / 1e6);
  for (size_t i = 0; learn && i < count; ++i) {
    const ProgramKernel& k = timed.program.kernels[i];
    if (const double ms = median(each[i]) * 1e3; ms > 0.1)
      fmt::print("  {:>8.3f} ms  {} {}\n", ms, k.name, to_string(timed.program.graph.type(k.group.node ? k.group.node : k.group.specs[0].stores[0])));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool narrow = argc > 1 && std::string(argv[1]) == "bf16";
  const int64_t batch = argc > 2 ? std::atoll(argv[2]) : 256;
  const int threads = argc > 3 ? std::atoi(argv[3]) : usable_cpus();
  const double seconds = argc > 4 ? std::atof(argv[4]) : 3;
  if (batch <= 64) time("acting", batch, false, narrow, threads, seconds);
  time("learning", batch, true, narrow, threads, seconds);
}
