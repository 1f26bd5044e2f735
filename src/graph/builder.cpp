#include "graph/builder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "graph/draws.h"
#include "graph/ops/table.h"

namespace ridge {
namespace {

Attrs ints(std::vector<int64_t> values) { return {std::move(values), {}, nullptr}; }
Attrs dims(const Shape& s) { return {{s.begin(), s.end()}, {}, nullptr}; }

bool is_logic(Op op) { return row(op).has(OpRow::logic); }

}  // namespace

NodeId Builder::iota(const Shape& shape, int axis, DType dtype) {
  std::vector<int64_t> a = {int64_t(dtype), normal_axis(axis, shape.rank(), "iota")};
  a.insert(a.end(), shape.begin(), shape.end());
  return g_.add(Op::iota, {}, ints(std::move(a)));
}

NodeId Builder::one_hot(NodeId index, int64_t classes, DType type) {
  Shape out = shape(index);
  out.push_back(classes);
  Shape column = shape(index);
  column.push_back(1);
  return cast(binary(Op::equal, expand(reshape(index, column), out), iota(out, -1, dtype(index))), type);
}

NodeId Builder::unary(Op op, NodeId x) {
  if (row(op).has(OpRow::real) && !is_float(dtype(x))) x = cast(x, DType::f32);
  if (is_logic(op)) x = cast(x, DType::boolean);
  return g_.add(op, {x});
}

NodeId Builder::binary(Op op, NodeId a, NodeId b) {
  DType type = is_logic(op) ? DType::boolean : promote(dtype(a), dtype(b));
  if (op == Op::div && !is_float(type)) type = DType::f32;
  a = cast(a, type), b = cast(b, type);
  Shape out = broadcast(shape(a), shape(b), std::string(name(op)).c_str());
  return g_.add(op, {expand(a, out), expand(b, out)});
}

NodeId Builder::binary(Op op, NodeId a, double b) {
  DType type = is_float(dtype(a)) || (b == std::floor(b) && dtype(a) != DType::boolean) ? dtype(a) : DType::f32;
  return binary(op, a, literal(type, b));
}

NodeId Builder::binary(Op op, double a, NodeId b) {
  DType type = is_float(dtype(b)) || (a == std::floor(a) && dtype(b) != DType::boolean) ? dtype(b) : DType::f32;
  return binary(op, literal(type, a), b);
}

NodeId Builder::cast(NodeId x, DType type) { return dtype(x) == type ? x : g_.add(Op::cast, {x}, ints({int64_t(type)})); }

NodeId Builder::select(NodeId condition, NodeId a, NodeId b) {
  DType type = promote(dtype(a), dtype(b));
  Shape out = broadcast(broadcast(shape(a), shape(b), "select"), shape(condition), "select");
  return g_.add(Op::select, {expand(cast(condition, DType::boolean), out), expand(cast(a, type), out), expand(cast(b, type), out)});
}

NodeId Builder::clamp(NodeId x, double low, double high) { return g_.add(Op::clamp, {x, like(x, low), like(x, high)}); }
NodeId Builder::stop_gradient(NodeId x) { return g_.add(Op::stop_gradient, {x}); }

NodeId Builder::reshape(NodeId x, Shape to) {
  int64_t known = 1, open = -1;
  for (int i = 0; i < to.rank(); ++i)
    if (to[i] == -1 && open < 0)
      open = i;
    else
      known *= to[i];
  if (open >= 0) {
    if (known == 0 || shape(x).numel() % known) fail(ErrorCode::shape, "[reshape] {} has no whole size for -1 in {}", to_string(shape(x)), to_string(to));
    to[int(open)] = shape(x).numel() / known;
  }
  return to == shape(x) ? x : g_.add(Op::reshape, {x}, dims(to));
}

NodeId Builder::permute(NodeId x, const Shape& axes) {
  bool identity = axes.rank() == shape(x).rank();
  std::vector<int64_t> a;
  for (int i = 0; i < axes.rank(); ++i) {
    a.push_back(normal_axis(axes[i], shape(x).rank(), "permute"));
    identity &= a.back() == i;
  }
  return identity ? x : g_.add(Op::permute, {x}, ints(std::move(a)));
}

NodeId Builder::transpose(NodeId x, int a, int b) {
  int rank = shape(x).rank();
  a = normal_axis(a, rank, "transpose"), b = normal_axis(b, rank, "transpose");
  Shape axes;
  for (int i = 0; i < rank; ++i) axes.push_back(i == a ? b : i == b ? a : i);
  return permute(x, axes);
}

NodeId Builder::expand(NodeId x, const Shape& to) {
  if (shape(x) == to) return x;
  if (shape(x).rank() > to.rank()) fail(ErrorCode::shape, "[expand] {} does not broadcast to {}", to_string(shape(x)), to_string(to));
  Shape lifted = Shape::filled(to.rank() - shape(x).rank(), 1);
  for (int64_t d : shape(x)) lifted.push_back(d);
  x = reshape(x, lifted);
  return lifted == to ? x : g_.add(Op::expand, {x}, dims(to));
}

NodeId Builder::slice(NodeId x, int axis, int64_t start, int64_t stop, int64_t step) {
  int rank = shape(x).rank();
  axis = normal_axis(axis, rank, "slice");
  int64_t n = shape(x)[axis];
  if (start < 0) start += n;
  if (stop < 0) stop += n;
  start = std::clamp<int64_t>(start, 0, n), stop = std::clamp<int64_t>(stop, start, n);
  if (step < 1) fail(ErrorCode::value, "[slice] step {} must be 1 or more; use flip to reverse an axis", step);
  if (start == 0 && stop == n && step == 1) return x;
  std::vector<int64_t> a(rank * 3);
  for (int i = 0; i < rank; ++i) a[i] = 0, a[rank + i] = shape(x)[i], a[2 * rank + i] = 1;
  a[axis] = start, a[rank + axis] = stop, a[2 * rank + axis] = step;
  return g_.add(Op::slice, {x}, ints(std::move(a)));
}

NodeId Builder::pad(NodeId x, int axis, int64_t low, int64_t high, int64_t interior, double value) {
  int rank = shape(x).rank();
  axis = normal_axis(axis, rank, "pad");
  if (low == 0 && high == 0 && interior == 0) return x;
  std::vector<int64_t> a(rank * 3);
  a[axis] = low, a[rank + axis] = high, a[2 * rank + axis] = interior;
  return g_.add(Op::pad, {x}, {std::move(a), {value}, nullptr});
}

NodeId Builder::concat(std::span<const NodeId> parts, int axis) {
  if (parts.empty()) fail(ErrorCode::value, "[concat] needs at least one tensor");
  if (parts.size() == 1) return parts[0];
  DType type = dtype(parts[0]);
  for (NodeId p : parts) type = promote(type, dtype(p));
  std::vector<NodeId> in;
  for (NodeId p : parts) in.push_back(cast(p, type));
  return g_.add(Op::concat, in, ints({normal_axis(axis, shape(parts[0]).rank(), "concat")}));
}

NodeId Builder::stack(std::span<const NodeId> parts, int axis) {
  if (parts.empty()) fail(ErrorCode::value, "[stack] needs at least one tensor");
  axis = normal_axis(axis, shape(parts[0]).rank() + 1, "stack");
  std::vector<NodeId> lifted;
  for (NodeId p : parts) {
    Shape s = shape(p);
    if (!(s == shape(parts[0]))) fail(ErrorCode::shape, "[stack] shapes differ: {} and {}", to_string(shape(parts[0])), to_string(s));
    s.insert(axis, 1);
    lifted.push_back(reshape(p, s));
  }
  return concat(lifted, axis);
}

std::vector<NodeId> Builder::split(NodeId x, std::span<const int64_t> sizes, int axis) {
  axis = normal_axis(axis, shape(x).rank(), "split");
  int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t(0)), at = 0;
  if (total != shape(x)[axis]) fail(ErrorCode::shape, "[split] sizes add up to {}, axis {} of {} has {}", total, axis, to_string(shape(x)), shape(x)[axis]);
  std::vector<NodeId> out;
  for (int64_t s : sizes) out.push_back(slice(x, axis, at, at + s)), at += s;
  return out;
}

NodeId Builder::flip(NodeId x, std::span<const int64_t> axes) {
  std::vector<int64_t> a = normal_axes(x, axes, Op::flip);
  return a.empty() ? x : g_.add(Op::flip, {x}, ints(std::move(a)));
}

NodeId Builder::windows(NodeId x, int axis, int64_t size, int64_t stride, int64_t dilation) {
  return g_.add(Op::windows, {x}, ints({normal_axis(axis, shape(x).rank(), "windows"), size, stride, dilation}));
}

NodeId Builder::dynamic_slice(NodeId x, std::span<const NodeId> starts, const Shape& sizes) {
  std::vector<NodeId> in = {x};
  for (NodeId s : starts) in.push_back(cast(s, DType::i64));
  return g_.add(Op::dynamic_slice, in, dims(sizes));
}

NodeId Builder::dynamic_update_slice(NodeId x, NodeId update, std::span<const NodeId> starts) {
  std::vector<NodeId> in = {x, cast(update, dtype(x))};
  for (NodeId s : starts) in.push_back(cast(s, DType::i64));
  return g_.add(Op::dynamic_update_slice, in);
}

NodeId Builder::gather(NodeId x, NodeId index, int axis) {
  return g_.add(Op::gather, {x, cast(index, DType::i64)}, ints({normal_axis(axis, shape(x).rank(), "gather")}));
}
NodeId Builder::scatter(NodeId x, NodeId index, NodeId source, int axis) {
  return g_.add(Op::scatter, {x, cast(index, DType::i64), cast(source, dtype(x))}, ints({normal_axis(axis, shape(x).rank(), "scatter")}));
}
NodeId Builder::scatter_add(NodeId x, NodeId index, NodeId source, int axis) {
  return g_.add(Op::scatter_add, {x, cast(index, DType::i64), cast(source, dtype(x))}, ints({normal_axis(axis, shape(x).rank(), "scatter_add")}));
}
NodeId Builder::take(NodeId x, NodeId index, int axis) {
  return g_.add(Op::take, {x, cast(index, DType::i64)}, ints({normal_axis(axis, shape(x).rank(), "take")}));
}

std::pair<NodeId, NodeId> Builder::sort(NodeId x, int axis, bool descending) {
  NodeId n = g_.add(Op::sort, {x}, ints({normal_axis(axis, shape(x).rank(), "sort"), descending}));
  return {get(n, 0), get(n, 1)};
}

std::pair<NodeId, NodeId> Builder::topk(NodeId x, int64_t k, int axis, bool largest) {
  axis = normal_axis(axis, shape(x).rank(), "topk");
  if (k < 0 || k > shape(x)[axis]) fail(ErrorCode::value, "[topk] k = {} is out of range for axis {} of {}", k, axis, to_string(shape(x)));
  auto [values, index] = sort(x, axis, largest);
  return {slice(values, axis, 0, k), slice(index, axis, 0, k)};
}

std::vector<int64_t> Builder::normal_axes(NodeId x, std::span<const int64_t> axes, Op op) {
  std::vector<int64_t> a;
  if (axes.empty())
    for (int i = 0; i < shape(x).rank(); ++i) a.push_back(i);
  for (int64_t axis : axes) a.push_back(normal_axis(axis, shape(x).rank(), std::string(name(op)).c_str()));
  std::sort(a.begin(), a.end());
  if (std::adjacent_find(a.begin(), a.end()) != a.end()) fail(ErrorCode::axis, "[{}] an axis is named twice", name(op));
  return a;
}

NodeId Builder::restore_axes(NodeId reduced, const Shape& original, std::span<const int64_t> axes) {
  Shape kept = original;
  for (int64_t a : axes) kept[int(a)] = 1;
  return reshape(reduced, kept);
}

NodeId Builder::reduce(Op op, NodeId x, std::span<const int64_t> axes, bool keep) {
  if (op == Op::reduce_sum || op == Op::reduce_prod)
    if (!is_float(dtype(x))) x = cast(x, DType::i64);
  std::vector<int64_t> a = normal_axes(x, axes, op);
  NodeId out = a.empty() ? x : g_.add(op, {x}, ints(a));
  return keep ? restore_axes(out, shape(x), a) : out;
}

NodeId Builder::mean(NodeId x, std::span<const int64_t> axes, bool keep) {
  if (!is_float(dtype(x))) x = cast(x, DType::f32);
  NodeId total = sum(x, axes, keep);
  return mul(total, 1.0 / (double(shape(x).numel()) / double(shape(total).numel())));
}

NodeId Builder::var(NodeId x, std::span<const int64_t> axes, bool keep, int64_t ddof) {
  if (!is_float(dtype(x))) x = cast(x, DType::f32);
  NodeId total = sum(square(sub(x, mean(x, axes, true))), axes, keep);
  return mul(total, 1.0 / (double(shape(x).numel()) / double(shape(total).numel()) - double(ddof)));
}

NodeId Builder::logsumexp(NodeId x, std::span<const int64_t> axes, bool keep) {
  // Subtracting the maximum only stabilizes the sum; its gradient cancels. An infinite maximum is replaced by 0, so that inf - inf never
  // occurs.
  NodeId top = stop_gradient(reduce(Op::reduce_max, x, axes, true));
  top = select(unary(Op::is_finite, top), top, like(top, 0));
  NodeId out = add(unary(Op::log, sum(unary(Op::exp, sub(x, top)), axes, true)), top);
  return keep ? out : reshape(out, g_.shape(reduce(Op::reduce_max, x, axes, false)));
}

NodeId Builder::arg(Op op, NodeId x, std::optional<int64_t> axis, bool keep) {
  if (!axis) x = reshape(x, {-1}), axis = 0;
  int64_t a = normal_axis(*axis, shape(x).rank(), std::string(name(op)).c_str());
  NodeId out = g_.add(op, {x}, ints({a}));
  return keep ? restore_axes(out, shape(x), std::span(&a, 1)) : out;
}

NodeId Builder::cumsum(NodeId x, int axis, bool reverse) {
  if (!is_float(dtype(x))) x = cast(x, DType::i64);
  return g_.add(Op::cumsum, {x}, ints({normal_axis(axis, shape(x).rank(), "cumsum"), reverse}));
}

NodeId Builder::matmul(NodeId a, NodeId b) {
  if (shape(a).rank() == 0 || shape(b).rank() == 0)
    fail(ErrorCode::shape, "[matmul] {} and {}: both need at least one axis; use mul for scalars", to_string(shape(a)), to_string(shape(b)));
  DType type = promote(dtype(a), dtype(b));
  if (!is_float(type)) type = DType::f32;
  a = cast(a, type), b = cast(b, type);
  bool row_vector = shape(a).rank() == 1, column_vector = shape(b).rank() == 1;
  if (row_vector) a = reshape(a, {1, shape(a)[0]});
  if (column_vector) b = reshape(b, {shape(b)[0], 1});
  Shape sa = shape(a), sb = shape(b);
  if (sa.back() != sb[sb.rank() - 2])
    fail(ErrorCode::shape, "[matmul] inner sizes differ: {} times {} ({} and {}); transpose one operand", to_string(sa), to_string(sb), sa.back(),
         sb[sb.rank() - 2]);
  Shape out;
  NodeId y;
  if (sb.rank() == 2) {  // one matrix for all rows: flatten, so that the weight's gradient is one contraction
    int64_t rows = 1;
    for (int i = 0; i < sa.rank() - 1; ++i) rows *= sa[i];
    y = g_.add(Op::matmul, {reshape(a, {rows, sa.back()}), b}, ints({int64_t(type)}));
    out = sa, out[sa.rank() - 1] = sb[1];
  } else {
    Shape batch_a(std::span(sa.begin(), sa.rank() - 2)), batch_b(std::span(sb.begin(), sb.rank() - 2));
    out = broadcast(batch_a, batch_b, "matmul");
    Shape full_a = out, full_b = out;
    full_a.push_back(sa[sa.rank() - 2]), full_a.push_back(sa.back());
    full_b.push_back(sb[sb.rank() - 2]), full_b.push_back(sb.back());
    y = g_.add(Op::matmul, {expand(a, full_a), expand(b, full_b)}, ints({int64_t(type)}));
    out.push_back(sa[sa.rank() - 2]), out.push_back(sb.back());
  }
  if (column_vector) out.erase(out.rank() - 1);
  if (row_vector) out.erase(out.rank() - (column_vector ? 1 : 2));
  return reshape(y, out);
}

NodeId Builder::conv(NodeId x, NodeId weight, ConvOptions o) {
  int spatial = shape(x).rank() - 2;
  if (spatial < 1 || shape(weight).rank() != shape(x).rank())
    fail(ErrorCode::shape, "[conv] input {} and weight {} need the forms [N, C, spatial…] and [O, C / groups, window…]", to_string(shape(x)),
         to_string(shape(weight)));
  auto fill = [&](std::vector<int64_t>& v, int64_t value, const char* what) {
    if (v.empty()) v.assign(spatial, value);
    if (int(v.size()) != spatial) fail(ErrorCode::value, "[conv] {} has {} entries for {} spatial axes", what, v.size(), spatial);
  };
  fill(o.stride, 1, "stride"), fill(o.padding_low, 0, "padding"), fill(o.padding_high, 0, "padding");
  fill(o.input_dilation, 1, "input dilation"), fill(o.dilation, 1, "dilation");
  DType type = promote(dtype(x), dtype(weight));
  std::vector<int64_t> a = {o.groups};
  for (auto* v : {&o.stride, &o.padding_low, &o.padding_high, &o.input_dilation, &o.dilation}) a.insert(a.end(), v->begin(), v->end());
  return g_.add(Op::conv, {cast(x, type), cast(weight, type)}, ints(std::move(a)));
}

NodeId Builder::unfold_windows(NodeId x, std::span<const int64_t> size, std::span<const int64_t> stride) {
  for (size_t i = 0; i < size.size(); ++i) x = windows(x, int(2 + i), size[i], i < stride.size() ? stride[i] : size[i]);
  return x;  // [N, C, out…, window…]
}

NodeId Builder::max_pool(NodeId x, std::span<const int64_t> size, std::span<const int64_t> stride, std::span<const int64_t> padding) {
  for (size_t i = 0; i < padding.size(); ++i) x = pad(x, int(2 + i), padding[i], padding[i], 0, is_float(dtype(x)) ? -INFINITY : -2147483648.0);
  NodeId w = unfold_windows(x, size, stride);
  int kept = shape(w).rank() - int(size.size());
  Shape flat(std::span(shape(w).begin(), kept));
  flat.push_back(-1);
  w = reshape(w, flat);
  // The gradient goes only to the first maximum of a window, as in PyTorch.
  NodeId first = arg(Op::arg_max, stop_gradient(w), -1, true);
  return reshape(gather(w, first, -1), Shape(std::span(shape(w).begin(), kept)));
}

NodeId Builder::avg_pool(NodeId x, std::span<const int64_t> size, std::span<const int64_t> stride, std::span<const int64_t> padding) {
  for (size_t i = 0; i < padding.size(); ++i) x = pad(x, int(2 + i), padding[i], padding[i]);
  NodeId w = unfold_windows(x, size, stride);
  std::vector<int64_t> axes;
  for (size_t i = 0; i < size.size(); ++i) axes.push_back(-1 - int64_t(i));
  return mean(w, axes);
}

NodeId Builder::uniform(const Shape& shape, const RandomOperands& r) {
  std::vector<int64_t> a = {r.stream};
  a.insert(a.end(), shape.begin(), shape.end());
  return g_.add(Op::random_uniform, {r.seed, r.step, r.base}, ints(std::move(a)));
}

NodeId Builder::normal(const Shape& shape, const RandomOperands& r) {
  // Box-Muller with two streams.
  RandomOperands other = r;
  other.stream = r.stream | kSecondStream;
  NodeId u = binary(Op::sub, 1.0, uniform(shape, r));  // in (0, 1]
  NodeId angle = mul(uniform(shape, other), 2 * M_PI);
  return mul(unary(Op::sqrt, mul(unary(Op::log, u), -2.0)), unary(Op::cos, angle));
}

NodeId Builder::bernoulli(const Shape& shape, double probability, const RandomOperands& r) { return binary(Op::less, uniform(shape, r), probability); }

NodeId Builder::dropout(NodeId x, double probability, const RandomOperands& r) {
  if (probability == 0) return x;
  if (probability < 0 || probability >= 1) fail(ErrorCode::value, "[dropout] probability {} must be in [0, 1)", probability);
  NodeId keep = binary(Op::greater_equal, uniform(shape(x), r), probability);
  return select(keep, mul(x, 1 / (1 - probability)), like(x, 0));
}

NodeId Builder::categorical(NodeId logits, const RandomOperands& r) {
  // Gumbel noise: logits - log(-log(u)) is largest at class i with probability softmax(logits)[i].
  NodeId u = add(uniform(shape(logits), r), 0x1p-25);
  NodeId noise = unary(Op::neg, unary(Op::log, unary(Op::neg, unary(Op::log, u))));
  return arg(Op::arg_max, add(stop_gradient(logits), noise), -1);
}

NodeId Builder::permutation(int64_t n, const RandomOperands& r) {
  NodeId bits = g_.add(Op::random_bits, {r.seed, r.step, r.base}, ints({r.stream, n}));
  return sort(bits, 0).second;
}

NodeId Builder::softmax(NodeId x, int axis) {
  int64_t a = normal_axis(axis, shape(x).rank(), "softmax");
  NodeId top = stop_gradient(reduce(Op::reduce_max, x, {&a, 1}, true));
  NodeId e = unary(Op::exp, sub(x, top));
  return mul(e, binary(Op::div, 1.0, sum(e, {&a, 1}, true)));  // one division per row
}

NodeId Builder::log_softmax(NodeId x, int axis) {
  int64_t a = normal_axis(axis, shape(x).rank(), "log_softmax");
  NodeId shifted = sub(x, stop_gradient(reduce(Op::reduce_max, x, {&a, 1}, true)));
  return sub(shifted, unary(Op::log, sum(unary(Op::exp, shifted), {&a, 1}, true)));
}

NodeId Builder::layer_norm(NodeId x, NodeId weight, NodeId bias, double eps) {
  DType type = dtype(x);
  NodeId wide = cast(x, promote(type, DType::f32));
  int64_t last = -1;
  NodeId centred = sub(wide, mean(wide, {&last, 1}, true));
  NodeId scale = unary(Op::rsqrt, add(mean(square(centred), {&last, 1}, true), eps));
  NodeId y = mul(centred, scale);
  if (weight) y = mul(y, weight);
  if (bias) y = add(y, bias);
  return cast(y, type);
}

NodeId Builder::rms_norm(NodeId x, NodeId weight, double eps) {
  DType type = dtype(x);
  NodeId wide = cast(x, promote(type, DType::f32));
  int64_t last = -1;
  NodeId y = mul(wide, unary(Op::rsqrt, add(mean(square(wide), {&last, 1}, true), eps)));
  if (weight) y = mul(y, weight);
  return cast(y, type);
}

Builder::BatchNorm Builder::batch_norm(NodeId x, NodeId weight, NodeId bias, NodeId mean_in, NodeId var_in, bool training, double eps) {
  if (shape(x).rank() < 2) fail(ErrorCode::shape, "[batch_norm] {} needs the form [N, C, …]", to_string(shape(x)));
  std::vector<int64_t> axes = {0};
  Shape channel = Shape::filled(shape(x).rank(), 1);
  channel[1] = shape(x)[1];
  for (int i = 2; i < shape(x).rank(); ++i) axes.push_back(i);
  BatchNorm r{kNone, mean_in, var_in};
  if (training) {
    r.mean = mean(x, axes);
    r.var = mean(square(sub(x, reshape(r.mean, channel))), axes);
  }
  r.out = mul(sub(x, reshape(r.mean, channel)), unary(Op::rsqrt, add(reshape(r.var, channel), eps)));
  if (weight) r.out = mul(r.out, reshape(weight, channel));
  if (bias) r.out = add(r.out, reshape(bias, channel));
  return r;
}

Builder::SumCount Builder::cross_entropy(NodeId logits, NodeId target, std::optional<int64_t> ignore) {
  Shape rows = shape(logits);
  if (rows.rank() < 1) fail(ErrorCode::shape, "[cross_entropy] logits need a class axis, got {}", to_string(rows));
  rows.erase(rows.rank() - 1);
  if (!(rows == shape(target)))
    fail(ErrorCode::shape, "[cross_entropy] logits {} and targets {}: targets need the logits' shape without the last axis", to_string(shape(logits)),
         to_string(shape(target)));
  if (!is_integer(dtype(target))) fail(ErrorCode::dtype, "[cross_entropy] targets must be integers, got {}; cast them", to_string(g_.type(target)));
  int64_t last = -1;
  NodeId x = cast(logits, promote(dtype(logits), DType::f32));
  NodeId top = stop_gradient(reduce(Op::reduce_max, x, {&last, 1}, true));
  NodeId shifted = sub(x, top);
  NodeId log_sum = unary(Op::log, sum(unary(Op::exp, shifted), {&last, 1}));
  // Selecting the target's logit by comparing indices fuses into the same pass, and its gradient is elementwise.
  Shape column = rows;
  column.push_back(1);
  Shape full = shape(x);
  NodeId index = cast(target, DType::i32);
  NodeId hit = binary(Op::equal, expand(reshape(index, column), full), iota(full, -1, DType::i32));
  NodeId picked = sum(select(hit, shifted, like(shifted, 0)), {&last, 1});
  NodeId loss = sub(log_sum, picked);
  auto checked = [&](NodeId index) { return add(loss, g_.add(Op::check_class, {index}, ints({full.back()}))); };
  if (!ignore) return {sum(checked(target)), literal(DType::f32, double(rows.numel()))};
  // Two comparisons, not_equal for the losses and equal for their number, so that each stays in the kernel that uses it.
  NodeId counted = binary(Op::not_equal, target, double(*ignore)), left_out = binary(Op::equal, target, double(*ignore));
  loss = checked(select(counted, target, like(target, 0)));
  return {sum(select(counted, loss, like(loss, 0))), sum(cast(unary(Op::logical_not, left_out), DType::f32))};
}

NodeId Builder::linear(NodeId x, NodeId weight, NodeId bias) {
  NodeId y = matmul(x, transpose(weight));
  return bias ? add(y, bias) : y;
}

NodeId Builder::attention(NodeId q, NodeId k, NodeId v, const AttentionOptions& o) {
  for (NodeId t : {q, k, v})
    if (shape(t).rank() != 4) fail(ErrorCode::shape, "[attention] operands need the form [batch, heads, positions, dim], got {}", to_string(shape(t)));
  std::vector<NodeId> in = {q, cast(k, dtype(q)), cast(v, dtype(q))};
  int64_t mask_kind = 0;
  if (o.mask) {
    mask_kind = dtype(o.mask) == DType::boolean ? 1 : 2;
    NodeId mask = mask_kind == 1 ? o.mask : cast(o.mask, DType::f32);
    Shape scores = {shape(q)[0], shape(q)[1], shape(q)[2], shape(k)[2]};
    if (!(broadcast(shape(mask), scores, "attention") == scores))
      fail(ErrorCode::shape, "[attention] mask {} does not broadcast to the scores {}", to_string(shape(mask)), to_string(scores));
    in.push_back(expand(mask, scores));
  }
  if (o.length) in.push_back(cast(o.length, DType::i64));
  if (o.dropout > 0) {
    if (!o.random) fail(ErrorCode::value, "[attention] dropout {} needs random operands (seed, step, base)", o.dropout);
    in.insert(in.end(), {o.random->seed, o.random->step, o.random->base});
  }
  double scale = o.scale ? o.scale : 1 / std::sqrt(double(std::max<int64_t>(shape(q)[3], 1)));
  std::vector<int64_t> a = {o.causal, mask_kind, o.length != kNone, o.dropout > 0, o.dropout > 0 ? int64_t(o.random->stream) : 0};
  NodeId n = g_.add(Op::attention, in, {std::move(a), {scale, o.dropout}, nullptr});
  return permute(get(n, 0), {0, 2, 1, 3});  // the kernel writes [batch, positions, heads, dim]
}

NodeId Builder::rope(NodeId x, NodeId position, double theta) {
  int64_t dim = shape(x).back(), half = dim / 2;
  if (dim % 2) fail(ErrorCode::shape, "[rope] the last axis of {} must be even", to_string(shape(x)));
  NodeId exponent = mul(cast(iota({half}, 0), DType::f32), -2.0 * std::log(theta) / double(dim));
  NodeId angle = mul(reshape(cast(position, DType::f32), {-1, 1}), unary(Op::exp, exponent));  // [T, half]
  NodeId c = cast(unary(Op::cos, angle), dtype(x)), s = cast(unary(Op::sin, angle), dtype(x));
  NodeId a = slice(x, -1, 0, half), b = slice(x, -1, half, dim);
  NodeId parts[] = {sub(mul(a, c), mul(b, s)), add(mul(b, c), mul(a, s))};
  return concat(parts, -1);
}

}  // namespace ridge
