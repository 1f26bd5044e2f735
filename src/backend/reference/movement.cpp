#include <algorithm>
#include <cmath>

#include "backend/reference/ops.h"
#include "base/error.h"
#include "base/rng.h"
#include "graph/draws.h"

namespace ridge::reference {
namespace {

// Fills the result element by element from the given source positions.
template <class From>
Array view(const Node& node, const Array& x, From from) {
  Array out = zeros(node.type());
  int64_t at = 0;
  for_each_index(out.type.shape, [&](const Shape& index) { copy_element(out, at++, x, position(from(index), x.type.shape)); });
  return out;
}

Array slice(const Node& node, const Array& x) {
  int rank = x.type.shape.rank();
  return view(node, x, [&](Shape i) {
    for (int a = 0; a < rank; ++a) i[a] = node.attrs.ints[size_t(a)] + i[a] * node.attrs.ints[size_t(2 * rank + a)];
    return i;
  });
}

Array expand(const Node& node, const Array& x) {
  return view(node, x, [&](Shape i) {
    for (int a = 0; a < i.rank(); ++a)
      if (x.type.shape[a] == 1) i[a] = 0;
    return i;
  });
}

Array permute(const Node& node, const Array& x) {
  return view(node, x, [&](const Shape& i) {
    Shape from = i;
    for (int a = 0; a < i.rank(); ++a) from[int(node.attrs.ints[size_t(a)])] = i[a];
    return from;
  });
}

Array flip(const Node& node, const Array& x) {
  return view(node, x, [&](Shape i) {
    for (int64_t a : node.attrs.ints) i[int(a)] = x.type.shape[int(a)] - 1 - i[int(a)];
    return i;
  });
}

// ints: axis, size, stride, dilation (for fold also the axis's full size). Window element (o, w) is element o · stride + w · dilation.
Shape window_element(const Node& node, Shape i) {
  int64_t tap = i.back();
  i.erase(i.rank() - 1);
  int axis = int(node.attrs.ints[0]);
  i[axis] = i[axis] * node.attrs.ints[2] + tap * node.attrs.ints[3];
  return i;
}

Array windows(const Node& node, const Array& x) {
  return view(node, x, [&](const Shape& i) { return window_element(node, i); });
}

Array fold(const Node& node, const Array& x) {
  Array out = zeros(node.type());
  int64_t at = 0;
  for_each_index(x.type.shape, [&](const Shape& i) { add_element(out, position(window_element(node, i), out.type.shape), x, at++); });
  return out;
}

Array pad(const Node& node, const Array& x) {
  int rank = x.type.shape.rank();
  Array out = zeros(node.type());
  std::fill(out.f.begin(), out.f.end(), node.attrs.reals[0]);
  std::fill(out.i.begin(), out.i.end(), wrap_to(out.type.dtype, int64_t(node.attrs.reals[0])));
  int64_t at = 0;
  for_each_index(x.type.shape, [&](Shape i) {
    for (int a = 0; a < rank; ++a) i[a] = node.attrs.ints[size_t(a)] + i[a] * (node.attrs.ints[size_t(2 * rank + a)] + 1);
    copy_element(out, position(i, out.type.shape), x, at++);
  });
  return out;
}

Array concat(const Node& node, Operands in) {
  Array out = zeros(node.type());
  int axis = int(node.attrs.ints[0]);
  int64_t start = 0;
  for (const Array* x : in) {
    int64_t at = 0;
    for_each_index(x->type.shape, [&](Shape i) {
      i[axis] += start;
      copy_element(out, position(i, out.type.shape), *x, at++);
    });
    start += x->type.shape[axis];
  }
  return out;
}

}  // namespace

Array movement(const Node& node, Operands in) {
  switch (node.op) {
    case Op::reshape: {
      Array out = *in[0];
      out.type = node.type();
      return out;
    }
    case Op::permute: return permute(node, *in[0]);
    case Op::expand: return expand(node, *in[0]);
    case Op::slice: return slice(node, *in[0]);
    case Op::flip: return flip(node, *in[0]);
    case Op::windows: return windows(node, *in[0]);
    case Op::fold: return fold(node, *in[0]);
    case Op::pad: return pad(node, *in[0]);
    case Op::concat: return concat(node, in);
    default: fail(ErrorCode::internal, "[{}] is not a movement", name(node.op));
  }
}

Array source(const Node& node, Operands in) {
  Array out = zeros(node.type());
  auto set = [&](int64_t k, double value) {
    if (out.floating())
      out.f[size_t(k)] = value;
    else
      out.i[size_t(k)] = wrap_to(out.type.dtype, int64_t(value));
  };
  if (node.op == Op::literal) {
    set(0, node.attrs.reals[0]);
  } else if (node.op == Op::iota) {
    int64_t at = 0;
    for_each_index(out.type.shape, [&](const Shape& i) { set(at++, double(i[int(node.attrs.ints[1])])); });
  } else {  // operands: seed, step, index of the first element
    RandomKey key{uint64_t(in[0]->i[0]), uint32_t(in[1]->i[0]), uint32_t(node.attrs.ints[0])};
    const Shape strides = draw_strides(node);
    size_t k = 0;
    for_each_index(out.type.shape, [&](const Shape& i) {
      int64_t at = in[2]->i[0];
      for (int a = 0; a < i.rank(); ++a) at += i[a] * strides[a];
      uint32_t word = random_word(key, uint64_t(at));
      if (node.op == Op::random_uniform)
        out.f[k++] = uniform_from(word);
      else
        out.i[k++] = int32_t(word);
    });
  }
  return out;
}

}  // namespace ridge::reference
