#include "backend/reference/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/reference/ops.h"
#include "base/error.h"
#include "base/half.h"
#include "graph/ops/table.h"
#include "graph/rewrite.h"
#include "graph/scan.h"

namespace ridge::reference {
namespace {

using Results = std::vector<Array>;  // one per output

void store(Array& a) {
  for (double& v : a.f) v = round_to(a.type.dtype, v);
}

// Read and write step `t` of a sequence.
Array step_of(const Array& sequence, int64_t t, const Type& type) {
  Array out = zeros(type);
  for (int64_t k = 0; k < out.size(); ++k) copy_element(out, k, sequence, t * out.size() + k);
  return out;
}
void put_step(Array& sequence, int64_t t, const Array& step) {
  for (int64_t k = 0; k < step.size(); ++k) copy_element(sequence, t * step.size() + k, step, k);
}

Results scan(const Node& node, Operands in, Rounding rounding) {
  ScanView v = scan_view(node);
  size_t carries = v.carry.size(), sequences = v.sequences.size(), outputs = v.body.step_out.size();
  Results out;
  for (const Type& t : node.types) out.push_back(zeros(t));
  for (size_t i = 0; i < carries; ++i) out[i] = *in[i];
  std::vector<NodeId> roots = v.body.carry_out;
  roots.insert(roots.end(), v.body.step_out.begin(), v.body.step_out.end());
  for (int64_t n = 0; n < v.steps; ++n) {
    int64_t t = v.reverse ? v.steps - 1 - n : n;
    std::unordered_map<NodeId, Array> values;
    for (size_t i = 0; i < carries; ++i) {
      values[v.body.carry_in[i]] = out[i];
      put_step(out[carries + outputs + i], t, out[i]);
    }
    for (size_t i = 0; i < sequences; ++i) values[v.body.sequence_in[i]] = step_of(*in[carries + i], t, v.body.graph.type(v.body.sequence_in[i]));
    for (size_t i = 0; i < v.constants.size(); ++i) values[v.body.constant_in[i]] = *in[carries + sequences + i];
    Results next = evaluate(v.body.graph, roots, values, rounding);
    for (size_t i = 0; i < carries; ++i) out[i] = next[i];
    for (size_t i = 0; i < outputs; ++i) put_step(out[carries + i], t, next[carries + i]);
  }
  return out;
}

// A macro op is defined by its decomposition.
Results macro(const Node& node, Operands in, Rounding rounding) {
  Graph g;
  std::vector<NodeId> operands, roots;
  std::unordered_map<NodeId, Array> values;
  for (const Array* a : in) {
    operands.push_back(g.input(a->type, "operand"));
    values[operands.back()] = *a;
  }
  NodeId id = g.add(node.op, operands, node.attrs);
  for (size_t i = 0; i < node.types.size(); ++i) roots.push_back(node.types.size() == 1 ? id : g.add(Op::get, {id}, {{int64_t(i)}, {}, nullptr}));
  roots = decompose(g, roots, [](NodeId) { return true; });
  return evaluate(g, roots, values, rounding);
}

Results compute(const Node& node, Operands in, Rounding rounding) {
  if (row(node.op).decompose) return macro(node, in, rounding);
  if (is_elementwise(node.op)) return {elementwise(node, in)};
  if (is_view(node.op)) return {movement(node, in)};
  if (is_reduction(node.op)) return {reduce(node, in)};
  switch (node.op) {
    case Op::literal:
    case Op::iota:
    case Op::random_uniform:
    case Op::random_bits: return {source(node, in)};
    case Op::stop_gradient:
    case Op::custom: return {*in[0]};
    case Op::check_class:
    case Op::dynamic_slice:
    case Op::dynamic_update_slice:
    case Op::gather:
    case Op::scatter:
    case Op::scatter_add:
    case Op::take:
    case Op::take_grad: return {indexed(node, in)};
    case Op::fold: return {movement(node, in)};
    case Op::sort: return sort(node, in);
    case Op::cumsum: return {reduce(node, in)};
    case Op::matmul: return {matmul(node, in)};
    case Op::scan: return scan(node, in, rounding);
    default: fail(ErrorCode::internal, "[{}] is not supported by the reference backend", name(node.op));
  }
}

}  // namespace

std::vector<Array> evaluate(const Graph& graph, std::span<const NodeId> roots, const std::unordered_map<NodeId, Array>& inputs, Rounding rounding) {
  std::unordered_map<NodeId, Results> values;
  for (NodeId id : topological(graph, roots)) {
    const Node& n = graph[id];
    if (n.op == Op::input) {
      auto it = inputs.find(id);
      if (it == inputs.end()) fail(ErrorCode::binding, "[evaluate] input \"{}\" ({}) has no value; bind it", graph.input_name(id), to_string(n.type()));
      if (!(it->second.type == n.type()) || it->second.size() != n.type().shape.numel())
        fail(ErrorCode::shape, "[evaluate] input \"{}\" is {}, bound to {} with {} elements", graph.input_name(id), to_string(n.type()),
             to_string(it->second.type), it->second.size());
      values[id] = {it->second};
    } else if (n.op == Op::get) {
      values[id] = {values.at(n.in[0])[size_t(n.attrs.ints[0])]};
    } else {
      std::vector<const Array*> in;
      for (NodeId operand : n.in) in.push_back(&values.at(operand)[0]);
      values[id] = compute(n, in, rounding);
    }
    if (rounding == Rounding::stored)
      for (Array& a : values[id]) store(a);
  }
  std::vector<Array> out;
  for (NodeId r : roots) out.push_back(values.at(r)[0]);
  return out;
}

Array zeros(const Type& type) {
  Array a{type, {}, {}};
  size_t n = size_t(type.shape.numel());
  if (is_float(type.dtype))
    a.f.resize(n);
  else
    a.i.resize(n);
  return a;
}

Array from_values(const Type& type, std::span<const double> values) {
  if (int64_t(values.size()) != type.shape.numel()) fail(ErrorCode::shape, "[reference] {} values for {}", values.size(), to_string(type));
  Array a = zeros(type);
  for (size_t k = 0; k < values.size(); ++k)
    if (a.floating())
      a.f[k] = values[k];
    else
      a.i[k] = wrap_to(type.dtype, int64_t(std::floor(values[k])));
  return a;
}

double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::f16: return f16_to_f32(f32_to_f16(float(value)));
    case DType::bf16: return bf16_to_f32(f32_to_bf16(float(value)));
    case DType::f32: return float(value);
    default: return value;
  }
}

int64_t wrap_to(DType dtype, int64_t value) {
  switch (dtype) {
    case DType::boolean: return value != 0;
    case DType::u8: return uint8_t(value);
    case DType::i32: return int32_t(uint32_t(uint64_t(value)));
    default: return value;
  }
}

namespace {

template <class T>
T load(const void* bytes, int64_t k) {
  T v;
  std::memcpy(&v, static_cast<const char*>(bytes) + k * int64_t(sizeof(T)), sizeof(T));
  return v;
}
template <class T>
void put(void* bytes, int64_t k, T v) {
  std::memcpy(static_cast<char*>(bytes) + k * int64_t(sizeof(T)), &v, sizeof(T));
}

}  // namespace

Array from_bytes(const Type& type, const void* bytes) {
  Array a = zeros(type);
  for (int64_t k = 0; k < a.size(); ++k) {
    size_t at = size_t(k);
    switch (type.dtype) {
      case DType::boolean: a.i[at] = load<uint8_t>(bytes, k) != 0; break;
      case DType::u8: a.i[at] = load<uint8_t>(bytes, k); break;
      case DType::i32: a.i[at] = load<int32_t>(bytes, k); break;
      case DType::i64: a.i[at] = load<int64_t>(bytes, k); break;
      case DType::f16: a.f[at] = f16_to_f32(load<uint16_t>(bytes, k)); break;
      case DType::bf16: a.f[at] = bf16_to_f32(load<uint16_t>(bytes, k)); break;
      case DType::f32: a.f[at] = load<float>(bytes, k); break;
      case DType::f64: a.f[at] = load<double>(bytes, k); break;
    }
  }
  return a;
}

void to_bytes(const Array& a, void* bytes) {
  for (int64_t k = 0; k < a.size(); ++k) {
    size_t at = size_t(k);
    switch (a.type.dtype) {
      case DType::boolean:
      case DType::u8: put(bytes, k, uint8_t(a.i[at])); break;
      case DType::i32: put(bytes, k, int32_t(a.i[at])); break;
      case DType::i64: put(bytes, k, a.i[at]); break;
      case DType::f16: put(bytes, k, f32_to_f16(float(a.f[at]))); break;
      case DType::bf16: put(bytes, k, f32_to_bf16(float(a.f[at]))); break;
      case DType::f32: put(bytes, k, float(a.f[at])); break;
      case DType::f64: put(bytes, k, a.f[at]); break;
    }
  }
}

}  // namespace ridge::reference
