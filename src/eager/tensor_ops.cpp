#include "ridge/ops.h"

#include <algorithm>

#include "base/error.h"
#include "eager/tensor_state.h"
#include "graph/custom.h"
#include "graph/draws.h"
#include "graph/ops/table.h"
#include "graph/scan.h"
#include "ridge/rl.h"

namespace ridge {

using detail::lift;
using detail::lift1;
using Nodes = std::span<const NodeId>;

namespace {

// A number combined with a tensor is weak: it takes the tensor's dtype.
Tensor binary(Op op, const Tensor& a, const Tensor& b) {
  auto weak = [](const Tensor& t) { return t.state() && t.state()->has_value() && !t.state()->lazy && t.shape().rank() == 0 && t.dtype() == DType::f32; };
  return lift1({a, b}, [&](Builder& g, Nodes n) {
    NodeId x = n[0], y = n[1];
    if (weak(b) && !weak(a) && is_float(g.dtype(x))) y = g.cast(y, g.dtype(x));
    if (weak(a) && !weak(b) && is_float(g.dtype(y))) x = g.cast(x, g.dtype(y));
    return g.binary(op, x, y);
  });
}

Tensor unary(Op op, const Tensor& x) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.unary(op, n[0]); });
}

Tensor reduction(Op op, const Tensor& x, const Axes& axes, bool keep) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.reduce(op, n[0], axes, keep); });
}

// Optional operands.
NodeId optional_node(Nodes n, size_t& at, const Tensor& t) { return t.defined() ? n[at++] : kNone; }

std::vector<Tensor> present(std::initializer_list<Tensor> all) {
  std::vector<Tensor> out;
  for (const Tensor& t : all)
    if (t.defined()) out.push_back(t);
  return out;
}

Tensor random(const std::function<NodeId(Builder&, const RandomOperands&, Nodes)>& fn, const std::vector<Tensor>& operands, int64_t per_sample) {
  detail::RandomDraw r = detail::draw_random();
  std::vector<Tensor> in = {r.seed, r.step, r.base};
  in.insert(in.end(), operands.begin(), operands.end());
  return lift(in, [&](Builder& g, Nodes n) {
    RandomOperands o{n[0], n[1], g.mul(n[2], double(per_sample)), r.stream};
    return std::vector<NodeId>{fn(g, o, n.subspan(3))};
  })[0];
}

// Elements per sample if the first axis counts samples.
int64_t per_sample(const Shape& s) { return s.rank() && s[0] ? s.numel() / s[0] : s.rank() ? 0 : 1; }

}  // namespace

Tensor operator+(const Tensor& a, const Tensor& b) { return binary(Op::add, a, b); }
Tensor operator-(const Tensor& a, const Tensor& b) { return binary(Op::sub, a, b); }
Tensor operator*(const Tensor& a, const Tensor& b) { return binary(Op::mul, a, b); }
Tensor operator/(const Tensor& a, const Tensor& b) { return binary(Op::div, a, b); }
Tensor operator-(const Tensor& a) { return unary(Op::neg, a); }
Tensor operator<(const Tensor& a, const Tensor& b) { return binary(Op::less, a, b); }
Tensor operator<=(const Tensor& a, const Tensor& b) { return binary(Op::less_equal, a, b); }
Tensor operator>(const Tensor& a, const Tensor& b) { return binary(Op::greater, a, b); }
Tensor operator>=(const Tensor& a, const Tensor& b) { return binary(Op::greater_equal, a, b); }
Tensor equal(const Tensor& a, const Tensor& b) { return binary(Op::equal, a, b); }
Tensor not_equal(const Tensor& a, const Tensor& b) { return binary(Op::not_equal, a, b); }
Tensor logical_and(const Tensor& a, const Tensor& b) { return binary(Op::logical_and, a, b); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return binary(Op::logical_or, a, b); }
Tensor logical_xor(const Tensor& a, const Tensor& b) { return binary(Op::logical_xor, a, b); }
Tensor logical_not(const Tensor& a) { return unary(Op::logical_not, a); }
Tensor minimum(const Tensor& a, const Tensor& b) { return binary(Op::minimum, a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return binary(Op::maximum, a, b); }
Tensor pow(const Tensor& a, const Tensor& b) { return binary(Op::pow, a, b); }
Tensor mod(const Tensor& a, const Tensor& b) { return binary(Op::mod, a, b); }

Tensor where(const Tensor& c, const Tensor& a, const Tensor& b) {
  return lift1({c, a, b}, [](Builder& g, Nodes n) { return g.select(n[0], n[1], n[2]); });
}
Tensor clamp(const Tensor& x, double low, double high) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.clamp(n[0], low, high); });
}
Tensor cast(const Tensor& x, DType dtype) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.cast(n[0], dtype); });
}
Tensor stop_gradient(const Tensor& x) {
  return lift1({x}, [](Builder& g, Nodes n) { return g.stop_gradient(n[0]); });
}

#define RIDGE_FUNCTION(name) \
  Tensor name(const Tensor& x) { return unary(Op::name, x); }
RIDGE_UNARY_FUNCTIONS(RIDGE_FUNCTION)
#undef RIDGE_FUNCTION
Tensor square(const Tensor& x) { return x * x; }
Tensor gelu(const Tensor& x, bool exact) { return unary(exact ? Op::gelu_erf : Op::gelu_tanh, x); }

Tensor full(const Shape& shape, double value, DType dtype) {
  return lift1({}, [&](Builder& g, Nodes) { return g.full(shape, dtype, value); });
}
Tensor iota(const Shape& shape, int axis, DType dtype) {
  return lift1({}, [&](Builder& g, Nodes) { return g.iota(shape, axis, dtype); });
}
Tensor one_hot(const Tensor& index, int64_t classes) {
  return lift1({index}, [&](Builder& g, Nodes n) { return g.one_hot(n[0], classes); });
}
Tensor reshape(const Tensor& x, const Shape& shape) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.reshape(n[0], shape); });
}
Tensor permute(const Tensor& x, const Shape& axes) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.permute(n[0], axes); });
}
Tensor transpose(const Tensor& x, int a, int b) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.transpose(n[0], a, b); });
}
Tensor expand(const Tensor& x, const Shape& shape) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.expand(n[0], shape); });
}
Tensor slice(const Tensor& x, int axis, int64_t start, int64_t stop, int64_t step) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.slice(n[0], axis, start, stop, step); });
}
Tensor pad(const Tensor& x, int axis, int64_t low, int64_t high, double value) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.pad(n[0], axis, low, high, 0, value); });
}
Tensor concat(const std::vector<Tensor>& parts, int axis) {
  return lift(parts, [&](Builder& g, Nodes n) { return std::vector<NodeId>{g.concat(n, axis)}; })[0];
}
Tensor stack(const std::vector<Tensor>& parts, int axis) {
  return lift(parts, [&](Builder& g, Nodes n) { return std::vector<NodeId>{g.stack(n, axis)}; })[0];
}
std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int axis) {
  return lift({&x, 1}, [&](Builder& g, Nodes n) { return g.split(n[0], sizes, axis); });
}
Tensor flip(const Tensor& x, const Axes& axes) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.flip(n[0], axes); });
}
Tensor gather(const Tensor& x, const Tensor& index, int axis) {
  return lift1({x, index}, [&](Builder& g, Nodes n) { return g.gather(n[0], n[1], axis); });
}
Tensor scatter(const Tensor& x, const Tensor& index, const Tensor& source, int axis) {
  return lift1({x, index, source}, [&](Builder& g, Nodes n) { return g.scatter(n[0], n[1], n[2], axis); });
}
Tensor scatter_add(const Tensor& x, const Tensor& index, const Tensor& source, int axis) {
  return lift1({x, index, source}, [&](Builder& g, Nodes n) { return g.scatter_add(n[0], n[1], n[2], axis); });
}
Tensor take(const Tensor& x, const Tensor& index, int axis) {
  return lift1({x, index}, [&](Builder& g, Nodes n) { return g.take(n[0], n[1], axis); });
}
Tensor dynamic_slice(const Tensor& x, const std::vector<Tensor>& starts, const Shape& sizes) {
  std::vector<Tensor> in = {x};
  in.insert(in.end(), starts.begin(), starts.end());
  return lift(in, [&](Builder& g, Nodes n) { return std::vector<NodeId>{g.dynamic_slice(n[0], n.subspan(1), sizes)}; })[0];
}
Tensor dynamic_update_slice(const Tensor& x, const Tensor& update, const std::vector<Tensor>& starts) {
  std::vector<Tensor> in = {x, update};
  in.insert(in.end(), starts.begin(), starts.end());
  return lift(in, [&](Builder& g, Nodes n) { return std::vector<NodeId>{g.dynamic_update_slice(n[0], n[1], n.subspan(2))}; })[0];
}

namespace {
std::pair<Tensor, Tensor> pair_of(const Tensor& x, const std::function<std::pair<NodeId, NodeId>(Builder&, NodeId)>& fn) {
  auto out = lift({&x, 1}, [&](Builder& g, Nodes n) {
    auto [a, b] = fn(g, n[0]);
    return std::vector<NodeId>{a, b};
  });
  return {out[0], out[1]};
}
}  // namespace

std::pair<Tensor, Tensor> sort(const Tensor& x, int axis, bool descending) {
  return pair_of(x, [&](Builder& g, NodeId n) { return g.sort(n, axis, descending); });
}
Tensor argsort(const Tensor& x, int axis, bool descending) { return sort(x, axis, descending).second; }
std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int axis, bool largest) {
  return pair_of(x, [&](Builder& g, NodeId n) { return g.topk(n, k, axis, largest); });
}

Tensor sum(const Tensor& x, const Axes& axes, bool keep) { return reduction(Op::reduce_sum, x, axes, keep); }
Tensor max(const Tensor& x, const Axes& axes, bool keep) { return reduction(Op::reduce_max, x, axes, keep); }
Tensor min(const Tensor& x, const Axes& axes, bool keep) { return reduction(Op::reduce_min, x, axes, keep); }
Tensor prod(const Tensor& x, const Axes& axes, bool keep) { return reduction(Op::reduce_prod, x, axes, keep); }
Tensor mean(const Tensor& x, const Axes& axes, bool keep) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.mean(n[0], axes, keep); });
}
Tensor var(const Tensor& x, const Axes& axes, bool keep, int64_t ddof) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.var(n[0], axes, keep, ddof); });
}
Tensor logsumexp(const Tensor& x, const Axes& axes, bool keep) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.logsumexp(n[0], axes, keep); });
}
Tensor argmax(const Tensor& x, std::optional<int64_t> axis, bool keep) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.arg(Op::arg_max, n[0], axis, keep); });
}
Tensor argmin(const Tensor& x, std::optional<int64_t> axis, bool keep) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.arg(Op::arg_min, n[0], axis, keep); });
}
Tensor cumsum(const Tensor& x, int axis) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.cumsum(n[0], axis); });
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  return lift1({a, b}, [](Builder& g, Nodes n) { return g.matmul(n[0], n[1]); });
}
Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands) {
  return lift(operands, [&](Builder& g, Nodes n) { return std::vector<NodeId>{g.einsum(equation, n)}; })[0];
}
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return lift(present({x, weight, bias}), [&](Builder& g, Nodes n) { return std::vector<NodeId>{g.linear(n[0], n[1], bias.defined() ? n[2] : kNone)}; })[0];
}

namespace {
Tensor conv(const Tensor& x, const Tensor& weight, const ConvArgs& a, int rank, const char* name) {
  if (x.shape().rank() != rank) fail(ErrorCode::shape, "[{}] the input needs rank {}, got {}", name, rank, to_string(x.shape()));
  return lift1({x, weight}, [&](Builder& g, Nodes n) { return g.conv(n[0], n[1], {a.stride, a.padding, a.padding, {}, a.dilation, a.groups}); });
}
}  // namespace

Tensor conv1d(const Tensor& x, const Tensor& weight, const ConvArgs& args) { return conv(x, weight, args, 3, "conv1d"); }
Tensor conv2d(const Tensor& x, const Tensor& weight, const ConvArgs& args) { return conv(x, weight, args, 4, "conv2d"); }
Tensor max_pool(const Tensor& x, const std::vector<int64_t>& size, const std::vector<int64_t>& stride, const std::vector<int64_t>& padding) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.max_pool(n[0], size, stride, padding); });
}
Tensor avg_pool(const Tensor& x, const std::vector<int64_t>& size, const std::vector<int64_t>& stride, const std::vector<int64_t>& padding) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.avg_pool(n[0], size, stride, padding); });
}

Tensor softmax(const Tensor& x, int axis) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.softmax(n[0], axis); });
}
Tensor log_softmax(const Tensor& x, int axis) {
  return lift1({x}, [&](Builder& g, Nodes n) { return g.log_softmax(n[0], axis); });
}
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return lift(present({x, weight, bias}), [&](Builder& g, Nodes n) {
    size_t at = 1;
    NodeId w = optional_node(n, at, weight), b = optional_node(n, at, bias);
    return std::vector<NodeId>{g.layer_norm(n[0], w, b, eps)};
  })[0];
}
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return lift(present({x, weight}), [&](Builder& g, Nodes n) { return std::vector<NodeId>{g.rms_norm(n[0], weight.defined() ? n[1] : kNone, eps)}; })[0];
}
BatchNormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& var, bool training, double eps) {
  auto out = lift(present({x, weight, bias, mean, var}), [&](Builder& g, Nodes n) {
    size_t at = 1;
    NodeId w = optional_node(n, at, weight), b = optional_node(n, at, bias), m = optional_node(n, at, mean), v = optional_node(n, at, var);
    if (!training && (!m || !v)) fail(ErrorCode::value, "[batch_norm] outside training it needs a mean and a variance");
    auto r = g.batch_norm(n[0], w, b, m, v, training, eps);
    return std::vector<NodeId>{r.out, r.mean, r.var};
  });
  return {out[0], out[1], out[2]};
}
Tensor embedding(const Tensor& index, const Tensor& table) { return take(table, index, 0); }

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionArgs& a) {
  std::vector<Tensor> in = present({q, k, v, a.mask, a.length});
  uint32_t stream = 0;
  if (a.dropout > 0) {
    detail::RandomDraw r = detail::draw_random();
    in.insert(in.end(), {r.seed, r.step, r.base});
    stream = r.stream;
  }
  return lift(in, [&](Builder& g, Nodes n) {
    AttentionOptions o{a.scale, a.causal, kNone, kNone, a.dropout, {}};
    size_t at = 3;
    o.mask = optional_node(n, at, a.mask), o.length = optional_node(n, at, a.length);
    if (a.dropout > 0) o.random = RandomOperands{n[at], n[at + 1], g.mul(n[at + 2], double(q.shape()[1] * q.shape()[2] * k.shape()[2])), stream};
    return std::vector<NodeId>{g.attention(n[0], n[1], n[2], o)};
  })[0];
}
Tensor rope(const Tensor& x, const Tensor& position, double theta) {
  return lift1({x, position}, [&](Builder& g, Nodes n) { return g.rope(n[0], n[1], theta); });
}

Loss::operator Tensor() const { return sum / count; }

Loss Loss::with(std::string name, const Tensor& values) const {
  return with(std::move(name), ridge::sum(cast(values, DType::f32)), full({}, double(values.size())));
}

Loss Loss::with(std::string name, const Tensor& total, const Tensor& number) const {
  Loss more = *this;
  more.scalars.push_back({std::move(name), total, number});
  return more;
}

Loss cross_entropy(const Tensor& logits, const Tensor& target, std::optional<int64_t> ignore) {
  Tensor in[] = {logits, target};
  auto out = lift(in, [&](Builder& g, Nodes n) {
    auto r = g.cross_entropy(n[0], n[1], ignore);
    return std::vector<NodeId>{r.sum, r.count};
  });
  return {out[0], out[1]};
}
Loss mse(const Tensor& prediction, const Tensor& target) {
  Tensor d = prediction - target;
  return {sum(d * d), full({}, double(d.size()))};
}

Tensor uniform(const Shape& shape) {
  return random([&](Builder& g, const RandomOperands& r, Nodes) { return g.uniform(shape, r); }, {}, per_sample(shape));
}
Tensor normal(const Shape& shape) {
  return random([&](Builder& g, const RandomOperands& r, Nodes) { return g.normal(shape, r); }, {}, per_sample(shape));
}
Tensor bernoulli(const Shape& shape, double probability) {
  return random([&](Builder& g, const RandomOperands& r, Nodes) { return g.bernoulli(shape, probability, r); }, {}, per_sample(shape));
}
Tensor dropout(const Tensor& x, double probability) {
  return random([&](Builder& g, const RandomOperands& r, Nodes n) { return g.dropout(n[0], probability, r); }, {x}, per_sample(x.shape()));
}
Tensor categorical(const Tensor& logits) {
  return random([&](Builder& g, const RandomOperands& r, Nodes n) { return g.categorical(n[0], r); }, {logits}, per_sample(logits.shape()));
}
Tensor permutation(int64_t n) {
  return random([&](Builder& g, const RandomOperands& r, Nodes) { return g.permutation(n, r); }, {}, 0);
}

Tensor uniform_at(const Tensor& counter, const Tensor& lane, uint32_t stream) {
  constexpr uint32_t kStreams = 1u << 24, kFirst = 0x60000000;  // not used by calls that take the next stream, nor by read programs
  if (stream >= kStreams) fail(ErrorCode::value, "[uniform_at] stream {} must be less than {}", stream, kStreams);
  for (const Tensor& t : {counter, lane})
    if (t.dtype() != DType::i64) fail(ErrorCode::dtype, "[uniform_at] counter and lane must be i64, got {}", name(t.dtype()));
  detail::RandomSource& source = detail::random_source();
  Tensor out = lift1({source.seed, counter, lane}, [&](Builder& g, Nodes n) {
    const NodeId tagged = g.add(n[2], g.literal(DType::i64, double(kFirst + stream) * 0x1p32));
    const Shape shape = broadcast(g.shape(n[1]), g.shape(tagged), "uniform_at");
    return g.graph().add(Op::random_at, {g.expand(n[0], shape), g.expand(n[1], shape), g.expand(tagged, shape)}, {});
  });
  if (source.counted) source.counted->push_back(out);
  return out;
}

namespace {

// While it exists, uniform_at() reports to it.
class CountedDraws {
 public:
  CountedDraws() : source_(detail::random_source()), outer_(source_.counted) { source_.counted = &draws_; }
  ~CountedDraws() { source_.counted = outer_; }
  CountedDraws(const CountedDraws&) = delete;

  // Fails if a draw depends on none of these placeholders, which hold what differs from step to step.
  void check(const std::vector<const detail::TensorState*>& varying) const {
    for (const Tensor& t : draws_) {
      const std::shared_ptr<detail::Lazy>& lazy = t.state()->lazy;
      const std::vector<NodeId> order = topological(lazy->graph, {&t.state()->id, 1});
      const bool varies = std::any_of(order.begin(), order.end(), [&](NodeId id) {
        const auto it = lazy->bound.find(id);
        return it != lazy->bound.end() && std::find(varying.begin(), varying.end(), it->second.get()) != varying.end();
      });
      if (!varies)
        fail(ErrorCode::usage,
             "[scan] uniform_at() is called with a counter and a lane that are the same in every step, so it would draw the same numbers again; "
             "give it a counter that the loop carries and increases");
    }
  }

  // A loop inside a loop: its draws must differ in the outer one too.
  void report(const Tensor& result) const {
    if (!draws_.empty() && outer_) outer_->push_back(result);
  }

 private:
  detail::RandomSource& source_;
  std::vector<Tensor>* outer_;
  std::vector<Tensor> draws_;
};

}  // namespace

ScanOutput scan(const ScanStep& step, const std::vector<Tensor>& carry, const std::vector<Tensor>& sequences, const Tensor& reset, bool reverse) {
  if (sequences.empty() && !reset.defined()) fail(ErrorCode::value, "[scan] needs at least one sequence, whose first axis is time");
  int64_t steps = sequences.empty() ? reset.shape()[0] : sequences[0].shape()[0];
  auto one_step = [&](const Tensor& s) {
    Shape shape = s.shape();
    if (shape.rank() == 0 || shape[0] != steps)
      fail(ErrorCode::shape, "[scan] a sequence is {}, its first axis must be the {} steps", to_string(s.shape()), steps);
    shape.erase(0);
    return detail::placeholder({s.dtype(), shape}, "x");
  };
  std::vector<Tensor> carry_in, x_in, initial;
  for (const Tensor& c : carry) carry_in.push_back(detail::placeholder({c.dtype(), c.shape()}, "carry"));
  for (const Tensor& s : sequences) x_in.push_back(one_step(s));
  // A reset is a sequence like any other, and the initial carry is a constant.
  std::vector<Tensor> entering = carry_in, all_sequences = sequences, all_x = x_in;
  if (reset.defined()) {
    Tensor r = one_step(reset);
    all_sequences.push_back(reset), all_x.push_back(r);
    for (size_t i = 0; i < carry.size(); ++i) {
      Shape column = r.shape();
      while (column.rank() < carry[i].shape().rank()) column.push_back(1);
      entering[i] = where(reshape(cast(r, DType::boolean), column), carry[i], carry_in[i]);
    }
  }
  const detail::RandomSource before = detail::random_source();
  CountedDraws counted;
  ScanOutput traced = step(entering, x_in);
  const detail::RandomSource after = detail::random_source();
  if (after.seed.state() != before.seed.state())
    fail(ErrorCode::usage, "[scan] the step calls seed(), which would make every step draw the same; call it before the loop");
  if (traced.carry.size() != carry.size()) fail(ErrorCode::value, "[scan] the step returned {} carries for {}", traced.carry.size(), carry.size());

  std::vector<const detail::TensorState*> varying;
  for (const Tensor& t : all_x) varying.push_back(t.state().get());
  for (size_t i = 0; i < carry.size(); ++i)
    if (traced.carry[i].state() != carry_in[i].state()) varying.push_back(carry_in[i].state().get());
  counted.check(varying);

  std::vector<Tensor> results = traced.carry;
  results.insert(results.end(), traced.outputs.begin(), traced.outputs.end());
  std::shared_ptr<detail::Lazy> lazy = detail::common_lazy(results);
  std::vector<NodeId> roots;
  for (const Tensor& t : results) roots.push_back(detail::node_in(lazy, t));
  // Values that do not depend on the step are computed once, outside; draws inside the step depend on it. Streams are numbered per seed,
  // and every seed is a separate tensor.
  const auto seed = lazy->node_of.find(after.seed.state().get());
  auto drawn_here = [&](NodeId id) {
    const std::vector<NodeId>& in = lazy->graph[id].in;
    if (seed == lazy->node_of.end() || std::find(in.begin(), in.end(), seed->second) == in.end()) return false;
    bool found = false;
    for_each_draw_in(lazy->graph, id, [&](const Graph&, NodeId, const Draw& d) {
      const uint32_t stream = d.stream & ~kSecondStream;
      found |= stream >= before.next_stream && stream < after.next_stream;
    });
    return found;
  };
  auto body = std::make_shared<ScanBody>();
  std::vector<char> varies(lazy->graph.size() + carry.size() + all_x.size() + 1, 0);
  std::unordered_map<NodeId, NodeId> known;
  auto bind = [&](const Tensor& t, std::vector<NodeId>& list) {
    NodeId inner = body->graph.input(t.state()->type, t.state()->name);
    list.push_back(inner);
    auto it = lazy->node_of.find(t.state().get());
    if (it != lazy->node_of.end()) known[it->second] = inner, varies[it->second] = 1;
  };
  for (const Tensor& t : carry_in) bind(t, body->carry_in);
  for (const Tensor& t : all_x) bind(t, body->sequence_in);
  std::vector<Tensor> constants;
  auto as_constant = [&](auto& self, NodeId id) -> void {
    if (known.count(id) || lazy->graph[id].op == Op::literal) return;
    NodeId viewed = id;
    while (is_strided_view(lazy->graph[viewed].op)) viewed = lazy->graph[viewed].in[0];
    if (lazy->graph[viewed].op == Op::literal) return;                               // a number of the program itself: storing it would take a kernel
    if (lazy->graph[id].op == Op::expand) return self(self, lazy->graph[id].in[0]);  // a copy for every row would cost memory, and its gradient too
    NodeId inner = body->graph.input(lazy->graph.type(id), "constant");
    body->constant_in.push_back(inner);
    known[id] = inner;
    auto it = lazy->bound.find(id);
    constants.push_back(it != lazy->bound.end() ? Tensor(it->second) : detail::lazy_tensor(lazy, id));
  };
  for (NodeId id : topological(lazy->graph, roots)) {
    for (NodeId in : lazy->graph[id].in) varies[id] |= varies[in];
    varies[id] |= drawn_here(id);
    if (!varies[id] || known.count(id)) continue;
    for (NodeId in : lazy->graph[id].in)
      if (!varies[in]) as_constant(as_constant, in);
  }
  for (NodeId r : roots)
    if (!varies[r]) as_constant(as_constant, r);
  std::vector<NodeId> moved;
  for (NodeId r : roots) moved.push_back(import_nodes(body->graph, lazy->graph, {&r, 1}, known)[0]);
  body->carry_out.assign(moved.begin(), moved.begin() + long(carry.size()));
  body->step_out.assign(moved.begin() + long(carry.size()), moved.end());

  std::vector<Tensor> in = carry;
  in.insert(in.end(), all_sequences.begin(), all_sequences.end());
  in.insert(in.end(), constants.begin(), constants.end());
  auto out = lift(in, [&](Builder& g, Nodes n) {
    ScanResult r = ridge::scan(g.graph(), body, n.subspan(0, carry.size()), n.subspan(carry.size(), all_sequences.size()),
                               n.subspan(carry.size() + all_sequences.size()), steps, reverse);
    std::vector<NodeId> ids = r.carry;
    ids.insert(ids.end(), r.outputs.begin(), r.outputs.end());
    return ids;
  });
  if (!out.empty()) counted.report(out[0]);
  return {{out.begin(), out.begin() + long(carry.size())}, {out.begin() + long(carry.size()), out.end()}};
}

Tensor custom(const CustomForward& forward, const CustomVjp& vjp, const std::vector<Tensor>& inputs) {
  Tensor out = forward(inputs);
  auto rule = std::make_shared<CustomGradient>();
  // In a training step, gradients are taken after its random source is gone. Draws of the function would be the same in every step, so they are refused.
  rule->vjp = [vjp, in_step = detail::current_random() != nullptr](Graph& graph, std::span<const NodeId> in, NodeId output, NodeId cotangent) {
    // The user's function works on tensors: it is traced over placeholders and its graph is imported.
    std::vector<Tensor> ins;
    std::vector<NodeId> nodes(in.begin(), in.end());
    nodes.insert(nodes.end(), {output, cotangent});
    std::vector<Tensor> leaves;
    for (NodeId id : nodes) leaves.push_back(detail::placeholder(graph.type(id), "operand"));
    const uint32_t first_stream = detail::random_source().next_stream;
    std::vector<Tensor> grads = vjp({leaves.begin(), leaves.end() - 2}, leaves[leaves.size() - 2], leaves.back());
    if (in_step && detail::random_source().next_stream != first_stream)
      fail(ErrorCode::unsupported,
           "[custom] the gradient function draws random numbers, which a training step cannot repeat; draw in the loss and pass them as an input");
    std::vector<NodeId> result;
    for (const Tensor& g : grads) {
      if (!g.defined()) {
        result.push_back(kNone);
        continue;
      }
      std::shared_ptr<detail::Lazy> lazy = detail::common_lazy({&g, 1});
      NodeId root = detail::node_in(lazy, g);
      std::unordered_map<NodeId, NodeId> known;
      for (size_t i = 0; i < leaves.size(); ++i)
        if (auto it = lazy->node_of.find(leaves[i].state().get()); it != lazy->node_of.end()) known[it->second] = nodes[i];
      Builder b(graph);
      detail::bind_numbers(*lazy, {&root, 1}, b, known, "[custom] the gradient function may use only its arguments and numbers; it uses a");
      result.push_back(import_nodes(graph, lazy->graph, {&root, 1}, known)[0]);
    }
    return result;
  };
  std::vector<Tensor> all = {out};
  all.insert(all.end(), inputs.begin(), inputs.end());
  return lift(all, [&](Builder& g, Nodes n) { return std::vector<NodeId>{g.graph().add(Op::custom, n, {{}, {}, rule})}; })[0];
}

}  // namespace ridge
