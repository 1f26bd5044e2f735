// Random loop bodies: whatever is hoisted and however they are segmented, values and gradients do not change.
#include <gtest/gtest.h>

#include "compile/scan_hoist.h"
#include "compile/scan_segments.h"
#include "ops/harness.h"
#include "scan/bodies.h"

namespace ridge::test {
namespace {

constexpr int64_t kFuzzBatch = 2, kFuzzWidth = 3;

class RandomBody {
 public:
  RandomBody(uint64_t seed, int64_t steps) : random_(seed), steps_(steps), body_(std::make_shared<ScanBody>()), s_(body_->graph), b_(graph) {}

  std::vector<NodeId> make() {
    std::vector<NodeId> carry, sequences, constants;
    int carries = 1 + int(random_.below(3)), sums = int(random_.below(3));
    const Type row{DType::f32, {kFuzzBatch, kFuzzWidth}}, square{DType::f32, {kFuzzWidth, kFuzzWidth}};
    for (int i = 0; i < carries; ++i) pool_.push_back(bind(body_->carry_in, carry, row, row));
    for (int i = 0; i < 2; ++i) pool_.push_back(bind(body_->sequence_in, sequences, row, {DType::f32, {steps_, kFuzzBatch, kFuzzWidth}}));
    for (int i = 0; i < 3; ++i) weights_.push_back(bind(body_->constant_in, constants, square, square));
    pool_.push_back(bind(body_->constant_in, constants, row, row));
    draw_ = bind(body_->sequence_in, sequences, {DType::i64, {}}, {DType::i64, {steps_}});  // keys random draws by the step
    std::vector<NodeId> sum_in, sum_out;
    for (int i = 0; i < sums; ++i) sum_in.push_back(bind(body_->carry_in, carry, square, square));
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
    values[id] = is_float(all.dtype) ? draw(all, random_, -0.9, 0.9) : draw(all, random_, 0, 1000);
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
    switch (random_.below(11)) {
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
      default: {
        NodeId zero = s_.literal(DType::i64, 3);
        return s_.dropout(recent(), 0.4, {zero, zero, draw_, 5});
      }
    }
  }

  Random random_;
  int64_t steps_;
  std::shared_ptr<ScanBody> body_;
  Builder s_, b_;
  std::vector<NodeId> pool_, weights_;
  NodeId draw_ = kNone;
};

class RandomLoops : public ::testing::TestWithParam<int> {};

TEST_P(RandomLoops, KeepTheirValues) {
  for (int i = 0; i < 25; ++i) {
    uint64_t seed = uint64_t(GetParam() * 25 + i) + 1;
    int64_t steps = std::array<int64_t, 4>{1, 3, 5, 7}[seed % 4];
    RandomBody r(seed, steps);
    std::vector<NodeId> results = r.make(), roots = results;
    Builder b(r.graph);
    std::vector<NodeId> grads = gradients(r.graph, mixed_loss(b, results), r.wrt);
    roots.insert(roots.end(), grads.begin(), grads.end());
    std::vector<reference::Array> want = reference::evaluate(r.graph, roots, r.values);
    auto expect = [&](const std::vector<reference::Array>& got, double tolerance, const char* what) {
      for (size_t k = 0; k < roots.size(); ++k) {
        double largest = 1;
        for (double v : want[k].f) largest = std::max(largest, std::fabs(v));
        EXPECT_TRUE(close(got[k], want[k], {tolerance, tolerance * largest})) << what << ", seed " << seed << ", result " << k;
      }
    };
    HoistedScans moved = hoist_scans(r.graph, roots);
    expect(reference::evaluate(r.graph, moved.roots, r.values), 1e-8, "moved out");
    std::vector<NodeId> cut = segment_scans(r.graph, results).roots, cut_grads = gradients(r.graph, mixed_loss(b, cut), r.wrt);
    cut.insert(cut.end(), cut_grads.begin(), cut_grads.end());
    expect(reference::evaluate(r.graph, hoist_scans(r.graph, cut).roots, r.values), 1e-8, "in stretches");
    if (i % 5) continue;
    std::vector<Bytes> ran = run_compiled(r.graph, r.inputs, roots, r.values, "", 2);
    std::vector<reference::Array> got;
    for (size_t k = 0; k < roots.size(); ++k) got.push_back(reference::from_bytes(want[k].type, ran[k].data()));
    // Rounding may flip a comparison inside; the values here keep their distance.
    expect(got, 0x1p-23 * 64 * double(1 + steps), "compiled");
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomLoops, ::testing::Range(0, 8));

}  // namespace
}  // namespace ridge::test
