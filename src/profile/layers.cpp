#include "profile/layers.h"

#include <algorithm>
#include <cmath>

#include "graph/ops/table.h"

namespace ridge {

std::string layer_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? parameter : parameter.substr(0, dot);
}

namespace {

enum class Role { training, evaluation, reading, update, other };

// Programs of a step name their inputs.
struct InputNames {
  explicit InputNames(const Program& p) : program(p) {
    bool updates = false, reads = false;
    for (size_t i = 0; i < p.inputs.size(); ++i) {
      const std::string& name = p.graph.input_name(p.inputs[i]);
      if (name == "seed" && !seeded) seeded = true, parameters = i;
      updates |= name.starts_with("gradient of "), reads |= name == "number";
    }
    bool gradients = false;
    for (size_t i = 0; i < std::min(parameters, p.outputs.size()); ++i) gradients |= p.graph.shape(p.outputs[i]) == p.graph.shape(p.inputs[i]);
    role = updates && !seeded                            ? Role::update  // parts of a batch read the gradients so far
           : !seeded                                     ? Role::other
           : reads                                       ? Role::reading
           : gradients && p.outputs.size() >= parameters ? Role::training
                                                         : Role::evaluation;
  }
  const std::string& name(size_t i) const { return program.graph.input_name(program.inputs[i]); }

  const Program& program;
  size_t parameters = 0;  // the first inputs
  bool seeded = false;
  Role role = Role::other;
};

std::vector<NodeId> members_of(const ProgramKernel& k) {
  std::vector<NodeId> all;
  if (k.group.node) all.push_back(k.group.node);
  for (const GroupSpec& spec : k.group.specs) all.insert(all.end(), spec.members.begin(), spec.members.end());
  return all;
}

}  // namespace

std::vector<std::string> gradients_among(const Program& p) {
  const InputNames names(p);
  std::vector<std::string> out(p.outputs.size());
  if (names.role == Role::training)
    for (size_t i = 0; i < std::min(names.parameters, out.size()); ++i) out[i] = names.name(i);
  return out;
}

std::vector<char> masked_values(const Graph& g) {
  std::vector<char> masked(g.size(), 0);
  for (NodeId id = 1; id < g.size(); ++id) {
    const Node& n = g[id];
    auto of = [&](size_t operand) { return operand < n.in.size() && masked[n.in[operand]]; };
    switch (n.op) {
      case Op::literal: masked[id] = n.attrs.reals[0] == -INFINITY; break;
      case Op::pad: masked[id] = of(0) || (!n.attrs.reals.empty() && n.attrs.reals[0] == -INFINITY); break;
      case Op::concat: masked[id] = std::ranges::any_of(n.in, [&](NodeId in) { return masked[in] != 0; }); break;
      case Op::select: masked[id] = of(1) || of(2); break;
      case Op::add:
      case Op::minimum: masked[id] = of(0) || of(1); break;
      case Op::get: masked[id] = g[n.in[0]].op == Op::attention && n.attrs.ints[0] == 1; break;  // the log-sum-exp of a row without keys
      case Op::sub:
      case Op::mul:
      case Op::div:
      case Op::cast:
      case Op::stop_gradient:
      case Op::dynamic_slice:
      case Op::gather: masked[id] = of(0); break;
      default: masked[id] = is_view(n.op) && of(0);
    }
  }
  return masked;
}

std::vector<KernelOrigin> origins_of(const Program& p) {
  const Graph& g = p.graph;
  const InputNames names(p);
  const std::vector<std::string> gradients = gradients_among(p);

  // What the losses depend on is the forward pass.
  std::vector<char> forward(g.size(), names.role == Role::training ? 0 : 1);
  if (names.role == Role::training) {
    std::vector<NodeId> losses(p.outputs.begin() + std::ptrdiff_t(std::min(names.parameters, p.outputs.size())), p.outputs.end());
    for (NodeId id : topological(g, losses)) forward[id] = 1;
  }
  std::vector<const std::string*> layer(g.size(), nullptr), direct(g.size(), nullptr);  // direct: a parameter itself, possibly seen through views and casts
  std::vector<std::string> own(names.parameters);
  for (size_t i = 0; i < names.parameters; ++i) own[i] = layer_of(names.name(i)), direct[p.inputs[i]] = &own[i];
  for (NodeId id = 1; id < g.size(); ++id) {
    const Node& n = g[id];
    if (n.op == Op::input) continue;
    if ((is_view(n.op) || n.op == Op::cast) && n.in.size() == 1) direct[id] = direct[n.in[0]];
    for (NodeId in : n.in)
      if (direct[in] && !layer[id]) layer[id] = direct[in];
    for (const bool wanted : {true, false})  // forward values first
      for (auto in = n.in.rbegin(); in != n.in.rend() && !layer[id]; ++in)
        if (bool(forward[*in]) == wanted) layer[id] = layer[*in];
  }

  std::vector<KernelOrigin> all;
  for (const ProgramKernel& k : p.kernels) {
    KernelOrigin origin;
    const std::vector<NodeId> members = members_of(k);
    const std::string* found = nullptr;
    for (NodeId id : members)
      for (NodeId in : g[id].in)
        if (!found && direct[in]) found = direct[in];
    for (auto id = members.rbegin(); id != members.rend() && !found; ++id) found = layer[*id];
    if (found) origin.layer = *found;
    bool ahead = true, again = true;
    for (NodeId id : members)
      if (!is_view(g[id].op)) ahead &= bool(forward[id]), again &= is_recomputed(g, id);
    for (const ProgramOperand& o : k.operands) {
      if (!o.written || !o.owner) continue;
      const ProgramBuffer& b = p.buffer_of(o.owner);
      if (b.place == ProgramBuffer::Place::output && size_t(b.index) < gradients.size() && !gradients[size_t(b.index)].empty())
        origin.layer = layer_of(gradients[size_t(b.index)]);
    }
    switch (names.role) {
      case Role::training: origin.phase = ahead ? "forward" : again ? "recomputed" : "backward"; break;
      case Role::evaluation: origin.phase = "evaluation"; break;
      case Role::reading: origin.phase = "reading"; break;
      case Role::update: origin.phase = "update"; break;
      case Role::other: origin.phase = "other"; break;
    }
    all.push_back(std::move(origin));
  }
  return all;
}

}  // namespace ridge
