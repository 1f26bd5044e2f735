// Random programs: checks compiled compositions of views, arithmetic, reductions and products, and their gradients, against the reference. A failing seed
// prints its graph.
#pragma once
#include <cstdlib>

#include "autograd/gradients.h"
#include "graph/builder.h"
#include "measure/default_team.h"
#include "ops/tolerance.h"

namespace ridge::test {

class RandomProgram {
 public:
  explicit RandomProgram(uint64_t seed) : random_(seed), dtype_(seed % 8 == 7 ? DType::bf16 : DType::f32) {
    int inputs = 1 + int(random_.below(3)), steps = 2 + int(random_.below(11));
    for (int i = 0; i < inputs; ++i) nodes_.push_back(input(random_shape(4)));
    for (int i = 0; i < steps; ++i) {
      NodeId y = grow(pick());
      if (b_.shape(y).numel() <= 6000 && b_.shape(y).rank() <= 5) nodes_.push_back(y);
    }
    outputs_ = {nodes_.back()};
    if (random_.below(3) == 0) outputs_.push_back(pick());
    if (random_.below(2) == 0) {  // add its gradient
      NodeId loss = b_.mean(b_.square(outputs_[0]));
      std::vector<NodeId> wrt(inputs_.begin(), inputs_.begin() + inputs);
      std::vector<NodeId> g = gradients(graph_, loss, wrt);
      outputs_.insert(outputs_.end(), g.begin(), g.end());
    }
  }

  Graph& graph() { return graph_; }
  const std::vector<NodeId>& inputs() const { return inputs_; }
  const std::vector<NodeId>& outputs() const { return outputs_; }
  const Values& values() const { return values_; }

 private:
  NodeId input(Shape shape) {
    NodeId id = graph_.input({dtype_, shape}, "x" + std::to_string(inputs_.size()));
    reference::Array v = draw({dtype_, shape}, random_, -1, 1);
    for (double& x : v.f) x = reference::round_to(dtype_, x);
    values_[id] = std::move(v);
    inputs_.push_back(id);
    return id;
  }

  NodeId index_input(Shape shape, int64_t below) {
    NodeId id = graph_.input({DType::i64, shape}, "i" + std::to_string(indices_.size()));
    values_[id] = draw({DType::i64, shape}, random_, 0, double(below));
    indices_.push_back(id);
    return id;
  }

  Shape random_shape(int max_rank) {
    static constexpr int64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 33};
    Shape s;
    for (int i = int(random_.below(max_rank + 1)); i > 0; --i) s.push_back(sizes[random_.below(s.numel() > 100 ? 5 : 9)]);
    return s;
  }

  NodeId pick() { return nodes_[size_t(random_.below(int64_t(nodes_.size())))]; }
  int64_t axis_of(NodeId x) { return random_.below(b_.shape(x).rank()); }

  // Adds one operation on x that keeps values of the order of 1.
  NodeId grow(NodeId x) {
    const Shape s = b_.shape(x);
    int rank = s.rank();
    switch (random_.below(rank ? 29 : 5)) {
      case 0: {
        static constexpr Op smooth[] = {Op::tanh, Op::sigmoid, Op::gelu_tanh, Op::gelu_erf, Op::silu, Op::sin,
                                        Op::cos,  Op::erf,     Op::softplus,  Op::neg,      Op::abs,  Op::relu};
        return b_.unary(smooth[random_.below(12)], x);
      }
      case 1: return b_.add(b_.mul(x, random_.uniform(-1, 1)), random_.uniform(-1, 1));
      case 2:
      case 3: {  // combine with an earlier value of a compatible shape
        static constexpr Op ops[] = {Op::add, Op::sub, Op::mul, Op::maximum, Op::minimum};
        for (int tries = 0; tries < 8; ++tries) {
          NodeId y = pick();
          if (fits(b_.shape(y), s)) return b_.binary(ops[random_.below(5)], x, y);
        }
        return b_.mul(x, x);
      }
      case 4: return b_.div(x, b_.add(b_.square(x), 1.0));
      case 5:
      case 6: {
        std::vector<int64_t> axes;
        for (int i = 0; i < rank; ++i)
          if (random_.below(2) == 0) axes.push_back(i);
        if (axes.empty()) axes.push_back(axis_of(x));
        bool keep = random_.below(2) == 0;
        if (b_.shape(x).numel() == 0) return b_.sum(x, axes, keep);
        return random_.below(3) == 0 ? b_.reduce(random_.below(2) ? Op::reduce_max : Op::reduce_min, x, axes, keep) : b_.mean(x, axes, keep);
      }
      case 7: return b_.softmax(x, int(axis_of(x)));
      case 8: return b_.rms_norm(x, kNone, 0.1);
      case 9: return b_.layer_norm(x, kNone, kNone, 0.1);
      case 10:
      case 11: {
        Shape axes;
        for (int i = 0; i < rank; ++i) axes.insert(int(random_.below(i + 1)), i);
        return b_.permute(x, axes);
      }
      case 12: {  // merge two adjacent axes, or split one
        Shape to = s;
        int a = int(axis_of(x));
        if (a + 1 < rank && random_.below(2))
          to[a] *= to[a + 1], to.erase(a + 1);
        else if (rank < 5)
          for (int64_t f : {2, 3, 5, 7})
            if (to[a] % f == 0 && to[a] > f) {
              to[a] /= f, to.insert(a + 1, f);
              break;
            }
        return b_.reshape(x, to);
      }
      case 13: return b_.reshape(x, {s.numel()});
      case 14: {
        Shape to = s;
        to.insert(int(random_.below(rank + 1)), 1);
        NodeId y = b_.reshape(x, to);
        for (int i = 0; i < to.rank(); ++i)
          if (to[i] == 1 && s.numel() < 500) to[i] = 1 + random_.below(4);
        return b_.expand(y, to);
      }
      case 15: {
        int a = int(axis_of(x));
        int64_t start = random_.below(s[a] + 1), stop = start + random_.below(s[a] - start + 1);
        if (stop == start) start = 0, stop = s[a];
        return b_.slice(x, a, start, stop, 1 + random_.below(3));
      }
      case 16: {
        int64_t a = axis_of(x);
        return b_.flip(x, {&a, 1});
      }
      case 17: return b_.pad(x, int(axis_of(x)), random_.below(3), random_.below(3), random_.below(3) ? 0 : 1, random_.below(2) ? 0.0 : 0.25);
      case 18: {
        std::vector<NodeId> parts = {x, random_.below(2) ? b_.neg(x) : b_.unary(Op::tanh, x)};
        return b_.concat(parts, int(axis_of(x)));
      }
      case 19: {
        int a = int(axis_of(x));
        int64_t size = std::min<int64_t>(s[a], 1 + random_.below(3));
        return size < 1 || rank > 4 ? b_.neg(x) : b_.windows(x, a, size, 1 + random_.below(2));
      }
      case 20: {
        if (s.back() == 0) return b_.neg(x);
        NodeId w = input({s.back(), 1 + random_.below(9)});
        return b_.unary(Op::tanh, b_.matmul(x, w));
      }
      case 21: return b_.mul(b_.cumsum(x, int(axis_of(x)), random_.below(2) == 0), 1.0 / double(std::max<int64_t>(1, s.numel())));
      case 22: {
        int a = int(axis_of(x));
        return s[a] ? b_.take(x, index_input({1 + random_.below(6)}, s[a]), a) : x;
      }
      case 23: return b_.select(b_.binary(Op::greater, x, 0.1), x, b_.mul(x, -0.5));
      case 24: {  // mix integers and floats
        NodeId i = b_.iota(s, int(axis_of(x)), random_.below(2) ? DType::i32 : DType::i64);
        NodeId even = b_.binary(Op::equal, b_.binary(Op::mod, i, 2.0), 0.0);
        return random_.below(2) ? b_.select(even, x, b_.neg(x)) : b_.mul(x, b_.mul(b_.cast(i, b_.dtype(x)), 0.125));
      }
      case 25: {
        std::vector<NodeId> starts;
        Shape sizes = s;
        for (int i = 0; i < rank; ++i) starts.push_back(index_input({}, s[i] + 1)), sizes[i] = (s[i] + 1) / 2;
        NodeId part = b_.dynamic_slice(x, starts, sizes);
        return random_.below(2) ? part : b_.dynamic_update_slice(x, b_.neg(part), starts);
      }
      case 26: {
        int a = int(axis_of(x));
        if (s[a] == 0) return x;
        Shape at = s;
        at[a] = 1 + random_.below(5);
        NodeId where = index_input(at, s[a]), picked = b_.gather(x, where, a);
        return random_.below(2) ? picked : b_.mul(b_.scatter_add(x, where, b_.neg(picked), a), 0.5);
      }
      case 27: return b_.sort(x, int(axis_of(x)), random_.below(2) == 0).first;
      default: {
        int a = int(axis_of(x));
        return s[a] < 2 ? b_.neg(x) : b_.concat(std::vector{b_.slice(x, a, 1, s[a]), b_.slice(x, a, 0, 1)}, a);  // roll by one
      }
    }
  }

  static bool fits(const Shape& y, const Shape& x) {
    for (int i = 1; i <= std::min(x.rank(), y.rank()); ++i) {
      int64_t a = x[x.rank() - i], b = y[y.rank() - i];
      if (a != b && a != 1 && b != 1) return false;
    }
    return true;
  }

  Random random_;
  DType dtype_;
  Graph graph_;
  Builder b_{graph_};
  std::vector<NodeId> inputs_, indices_, nodes_, outputs_;
  Values values_;

 public:
  std::vector<NodeId> all_inputs() const {
    std::vector<NodeId> all = inputs_;
    all.insert(all.end(), indices_.begin(), indices_.end());
    return all;
  }
};

// Returns an empty string on success, else a description of the failure.
inline std::string trouble(uint64_t seed, RandomProgram& p) {
  std::vector<NodeId> in = p.all_inputs(), out = p.outputs();
  std::vector<reference::Array> want = reference::evaluate(p.graph(), out, p.values(), reference::Rounding::stored);
  std::vector<Bytes> first;
  int turn = 0;
  struct Setting {
    const char* passes;
    int threads;
  };
  for (Setting s : {Setting{"", 1}, Setting{"", 3}, Setting{"-plan", 1}, Setting{"-fuse", 2}, Setting{"-simplify", 2}}) {
    std::string with = std::string(" (passes \"") + s.passes + "\", " + std::to_string(s.threads) + " threads, seed " + std::to_string(seed) + ")";
    std::vector<Bytes> got;
    try {
      got = run_compiled(p.graph(), in, out, p.values(), s.passes, s.threads);
    } catch (const std::exception& e) {
      return e.what() + with;
    }
    if (turn == 0) first = got;
    if (turn < 3 && got != first) return "other bits" + with;
    ++turn;
    for (size_t i = 0; i < out.size(); ++i) {
      // Rounding of one f32 operation, propagated through a dozen of them with sums of at most a few thousand terms.
      bool narrow = want[i].type.dtype == DType::bf16;
      Tolerance t{narrow ? 0.1 : 1e-4, (narrow ? 0.1 : 2e-5) * (1 + largest(want[i]))};
      auto result = close(reference::from_bytes(want[i].type, got[i].data()), want[i], t);
      if (!result) return std::string(result.message()) + " in result " + std::to_string(i) + with;
    }
  }
  return "";
}

inline std::string dump(RandomProgram& p) try {
  return Executable(p.graph(), p.all_inputs(), p.outputs(), default_backend()).dump();
} catch (const std::exception&) {
  return "";
}

}  // namespace ridge::test
