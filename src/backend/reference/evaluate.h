// The reference: defines every operation in scalar double precision and obvious code. The oracle of every test; never fast.
#pragma once
#include <span>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace ridge::reference {

// A tensor's elements in row-major order: `f` for a floating type, `i` for an integer or boolean one.
struct Array {
  Type type;
  std::vector<double> f;
  std::vector<int64_t> i;
  bool floating() const { return is_float(type.dtype); }
  int64_t size() const { return floating() ? int64_t(f.size()) : int64_t(i.size()); }
  double at(int64_t k) const { return floating() ? f[size_t(k)] : double(i[size_t(k)]); }
  bool operator==(const Array&) const = default;
};

// exact: nothing is rounded, regardless of dtype. stored: floating values are rounded to their dtype after every node.
enum class Rounding { exact, stored };

// Returns the first result of each root; use `get` for the others. Errors: ErrorCode::binding for an input without a value,
// ErrorCode::shape for one of the wrong type, ErrorCode::value for an index out of range.
std::vector<Array> evaluate(const Graph& graph, std::span<const NodeId> roots, const std::unordered_map<NodeId, Array>& inputs,
                            Rounding rounding = Rounding::exact);

Array zeros(const Type& type);
Array from_values(const Type& type, std::span<const double> values);  // integers are rounded down
Array from_bytes(const Type& type, const void* bytes);                // contiguous elements as devices store them
void to_bytes(const Array& array, void* bytes);
double round_to(DType dtype, double value);   // nearest even; integer types keep their value
int64_t wrap_to(DType dtype, int64_t value);  // modulo 2^bits; boolean: 0 or 1

}  // namespace ridge::reference
