#include <algorithm>
#include <cmath>

#include "backend/reference/ops.h"
#include "base/error.h"

namespace ridge::reference {
namespace {

// Reduces elements given in index order.
template <class T>
T reduced(Op op, const std::vector<T>& v, DType dtype) {
  if (op == Op::reduce_sum || op == Op::reduce_prod) {
    if constexpr (std::is_same_v<T, double>) {
      double total = op == Op::reduce_prod;
      for (double x : v) total = op == Op::reduce_sum ? total + x : total * x;
      return total;
    } else {
      uint64_t total = op == Op::reduce_prod;
      for (int64_t x : v) total = op == Op::reduce_sum ? total + uint64_t(x) : total * uint64_t(x);
      return wrap_to(dtype, int64_t(total));
    }
  }
  T best = v[0];
  for (T x : v)
    if (!(best != best) && (x != x || (op == Op::reduce_max ? x > best : x < best))) best = x;  // NaN wins
  return best;
}

template <class T>
int64_t place(Op op, const std::vector<T>& v) {
  size_t best = 0;
  for (size_t k = 1; k < v.size() && !(v[best] != v[best]); ++k)  // the first NaN, else the first extreme
    if (v[k] != v[k] || (op == Op::arg_max ? v[k] > v[best] : v[k] < v[best])) best = k;
  return int64_t(best);
}

Array cumsum(const Node& node, const Array& x) {
  Array out = x;
  const Shape& shape = x.type.shape;
  int axis = int(node.attrs.ints[0]);
  bool reverse = node.attrs.ints[1] != 0;
  int64_t n = shape[axis];
  Shape outer = shape;
  outer[axis] = n ? 1 : 0;
  for_each_index(outer, [&](Shape i) {
    for (int64_t k = 1; k < n; ++k) {
      Shape from = i;
      i[axis] = reverse ? n - 1 - k : k;
      from[axis] = reverse ? n - k : k - 1;
      add_element(out, position(i, shape), out, position(from, shape));
    }
  });
  return out;
}

}  // namespace

Array reduce(const Node& node, Operands in) {
  const Array& x = *in[0];
  if (node.op == Op::cumsum) return cumsum(node, x);
  Array out = zeros(node.type());
  const Shape& shape = x.type.shape;
  std::vector<int> kept, gone;
  for (int a = 0; a < shape.rank(); ++a) (std::count(node.attrs.ints.begin(), node.attrs.ints.end(), a) ? gone : kept).push_back(a);
  Shape inner;
  for (int a : gone) inner.push_back(shape[a]);
  int64_t at = 0;
  for_each_index(out.type.shape, [&](const Shape& o) {
    std::vector<double> f;
    std::vector<int64_t> i;
    for_each_index(inner, [&](const Shape& r) {
      Shape index = shape;
      for (size_t k = 0; k < kept.size(); ++k) index[kept[k]] = o[int(k)];
      for (size_t k = 0; k < gone.size(); ++k) index[gone[k]] = r[int(k)];
      size_t from = size_t(position(index, shape));
      if (x.floating())
        f.push_back(x.f[from]);
      else
        i.push_back(x.i[from]);
    });
    size_t to = size_t(at++);
    if (node.op == Op::arg_max || node.op == Op::arg_min)
      out.i[to] = x.floating() ? place(node.op, f) : place(node.op, i);
    else if (x.floating())
      out.f[to] = reduced(node.op, f, x.type.dtype);
    else
      out.i[to] = reduced(node.op, i, x.type.dtype);
  });
  return out;
}

Array matmul(const Node& node, Operands in) {
  const Array &a = *in[0], &b = *in[1];
  Array out = zeros(node.type());
  int rank = out.type.shape.rank();
  int64_t rows = out.type.shape[rank - 2], columns = out.type.shape[rank - 1], inner = a.type.shape[rank - 1];
  int64_t batches = out.size() == 0 ? 0 : out.size() / (rows * columns);
  for (int64_t n = 0; n < batches; ++n)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        double total = 0;
        for (int64_t k = 0; k < inner; ++k) total += a.f[size_t((n * rows + r) * inner + k)] * b.f[size_t((n * inner + k) * columns + c)];
        out.f[size_t((n * rows + r) * columns + c)] = total;
      }
  return out;
}

}  // namespace ridge::reference
