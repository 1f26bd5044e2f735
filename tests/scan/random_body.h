// Random loop bodies for tests.
#pragma once
#include "ops/harness.h"
#include "scan/bodies.h"

namespace ridge::test {

inline constexpr int64_t kFuzzWidth = 3;

// Values are [batch, kFuzzWidth]. With `rows_apart` no row depends on another one, and an initial carry may return in the middle.
class RandomBody {
 public:
  RandomBody(uint64_t seed, int64_t steps, int64_t batch = 2, bool rows_apart = false)
      : random_(seed), steps_(steps), batch_(batch), rows_apart_(rows_apart), body_(std::make_shared<ScanBody>()), s_(body_->graph), b_(graph) {}

  std::vector<NodeId> make() {
    std::vector<NodeId> carry, sequences, constants;
    int carries = 1 + int(random_.below(3)), sums = rows_apart_ ? 0 : int(random_.below(3));
    const Type row{DType::f32, {batch_, kFuzzWidth}}, square{DType::f32, {kFuzzWidth, kFuzzWidth}};
    for (int i = 0; i < carries; ++i) pool_.push_back(bind(body_->carry_in, carry, row, row));
    for (int i = 0; i < 2; ++i) pool_.push_back(bind(body_->sequence_in, sequences, row, {DType::f32, {steps_, batch_, kFuzzWidth}}));
    for (int i = 0; i < 3; ++i) weights_.push_back(bind(body_->constant_in, constants, square, square));
    pool_.push_back(bind(body_->constant_in, constants, row, row));
    draw_ = bind(body_->sequence_in, sequences, {DType::i64, {}}, {DType::i64, {steps_}});  // keys random draws by the step
    std::vector<NodeId> sum_in, sum_out;
    for (int i = 0; i < sums; ++i) sum_in.push_back(bind(body_->carry_in, carry, square, square));
    if (rows_apart_ && random_.below(2)) {
      NodeId reset = bind(body_->sequence_in, sequences, {DType::boolean, {batch_, 1}}, {DType::boolean, {steps_, batch_, 1}});
      for (int i = 0; i < carries; ++i) pool_[size_t(i)] = s_.select(reset, pool_[size_t(carries + 2)], pool_[size_t(i)]);
    }
    int nodes = 4 + int(random_.below(14));
    for (int i = 0; i < nodes; ++i) pool_.push_back(next());
    for (int i = 0; i < carries; ++i) body_->carry_out.push_back(random_.below(6) == 0 ? body_->carry_in[size_t(i)] : bounded(recent()));
    for (NodeId in : sum_in) {
      NodeId term = s_.matmul(s_.transpose(recent()), recent());
      if (random_.below(3) == 0) term = s_.add(s_.mul(term, 0.5), weight());
      if (random_.below(4) == 0) term = s_.expand(s_.sum(recent()), {kFuzzWidth, kFuzzWidth});
      body_->carry_out.push_back(random_.below(3) == 0 ? s_.sub(in, term) : s_.add(term, in));
    }
    for (int64_t i = 1 + random_.below(3); i > 0; --i) body_->step_out.push_back(random_.below(4) == 0 ? any() : recent());
    ScanResult r = scan(graph, body_, carry, sequences, constants, steps_, random_.below(2));
    std::vector<NodeId> out = r.outputs;
    out.insert(out.end(), r.carry.begin(), r.carry.end());
    if (random_.below(4) == 0) out.push_back(r.entered[0]);
    return out;
  }

  Graph graph;
  std::vector<NodeId> inputs, wrt;
  Values values;

 private:
  NodeId bind(std::vector<NodeId>& inner, std::vector<NodeId>& outer, Type one, Type all) {
    inner.push_back(body_->graph.input(one, "in"));
    NodeId id = graph.input(all, "x");
    outer.push_back(id), inputs.push_back(id);
    values[id] = is_float(all.dtype) ? draw(all, random_, -0.9, 0.9) : draw(all, random_, 0, all.dtype == DType::boolean ? 2 : 1000);
    if (is_float(all.dtype)) {
      wrt.push_back(id);
      for (double& v : values[id].f) v = reference::round_to(DType::f32, v);
    }
    return inner.back();
  }
  NodeId any() { return pool_[size_t(random_.below(int64_t(pool_.size())))]; }
  NodeId recent() { return random_.below(3) ? pool_[pool_.size() - 1 - size_t(random_.below(std::min<int64_t>(4, int64_t(pool_.size()))))] : any(); }
  NodeId bounded(NodeId x) { return s_.unary(Op::tanh, x); }
  NodeId weight() {
    NodeId w = weights_[size_t(random_.below(int64_t(weights_.size())))];
    return random_.below(4) ? w : s_.mul(s_.unary(Op::sigmoid, w), s_.matmul(w, weights_[0]));
  }
  NodeId next() {
    switch (int64_t kind = random_.below(rows_apart_ ? 12 : 11); rows_apart_ && kind == 9 ? 4 : kind) {
      case 0: return bounded(recent());
      case 1: return s_.add(recent(), any());
      case 2: return s_.mul(recent(), any());
      case 3:
      case 4: return bounded(s_.matmul(recent(), weight()));
      case 5: {  // a layer over two concatenated values, of which a part is used
        NodeId both[] = {any(), recent()}, high[] = {weight(), weight()};
        return bounded(s_.matmul(s_.concat(both, 1), s_.concat(high, 0)));
      }
      case 6: {
        NodeId both[] = {weight(), weight()};
        NodeId wide = s_.matmul(recent(), s_.concat(both, 1));
        pool_.push_back(s_.slice(wide, 1, 0, kFuzzWidth));
        return s_.slice(wide, 1, kFuzzWidth, 2 * kFuzzWidth);
      }
      case 7: {
        int64_t last[] = {1};
        return s_.sub(recent(), s_.mean(any(), last, true));
      }
      case 8: return s_.select(s_.binary(Op::greater, any(), 0.1), recent(), any());
      case 9: return bounded(s_.matmul(s_.matmul(recent(), s_.transpose(any())), any()));
      case 11: return s_.mul(any(), s_.unary(Op::sigmoid, s_.add(s_.matmul(recent(), s_.slice(weight(), 1, 0, 1)), 0.1)));
      default: {
        NodeId zero = s_.literal(DType::i64, 3);
        return s_.dropout(recent(), 0.4, {zero, zero, draw_, 5});
      }
    }
  }

  Random random_;
  int64_t steps_, batch_;
  bool rows_apart_;
  std::shared_ptr<ScanBody> body_;
  Builder s_, b_;
  std::vector<NodeId> pool_, weights_;
  NodeId draw_ = kNone;
};

}  // namespace ridge::test
