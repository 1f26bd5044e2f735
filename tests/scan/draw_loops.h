// Loops that draw random numbers, and the same loops unrolled from the definition: inside a loop the time index is the upper 32 bits of the Philox block
// number.
#pragma once
#include <functional>

#include "graph/builder.h"
#include "graph/scan.h"
#include "support/samples.h"

namespace ridge::test {

constexpr int64_t kDrawSteps = 7, kDrawInner = 3, kDrawBatch = 3, kDrawWidth = 5;

// One step: raw words, noise, dropout, and attention with dropout, from the step's base.
struct DrawStep {
  NodeId carry, words, noise;
};
inline DrawStep draw_step(Builder& b, NodeId h, NodeId x, const RandomOperands& r) {
  auto stream = [&](uint32_t s) { return RandomOperands{r.seed, r.step, r.base, s}; };
  const Shape shape = b.shape(h);
  NodeId words = b.graph().add(Op::random_bits, {r.seed, r.step, r.base}, {{11, shape[0], shape[1]}, {}, nullptr});
  NodeId noise = b.normal(shape, stream(12));
  NodeId q = b.reshape(b.add(h, x), {shape[0], 1, shape[1], 1});
  NodeId attended = b.reshape(b.attention(q, q, q, {.dropout = 0.4, .random = stream(13)}), shape);
  NodeId next = b.unary(Op::tanh, b.add(b.dropout(b.add(attended, b.mul(h, 0.5)), 0.3, stream(14)), b.mul(b.add(noise, x), 0.25)));
  return {next, words, noise};
}

struct DrawLoop {
  Graph graph;
  std::vector<NodeId> inputs, wrt, results;  // results: the final carry, words [steps, …], noise [steps, …]
  Values values;
};

enum class LoopForm { scan, by_hand };

// With `nested`, each step is a loop of kDrawInner steps over the same x.
inline DrawLoop make_draw_loop(LoopForm form, bool nested, bool reverse, int64_t base_value) {
  DrawLoop loop;
  Graph& g = loop.graph;
  Builder b(g);
  Random random(5);
  auto input = [&](Type t, const char* name) {
    loop.inputs.push_back(g.input(std::move(t), name));
    return loop.inputs.back();
  };
  const Shape state = {kDrawBatch, kDrawWidth};
  NodeId h = input({DType::f32, state}, "h"), x = input({DType::f32, {kDrawSteps, kDrawBatch, kDrawWidth}}, "x");
  RandomOperands r{input({DType::i64, {}}, "seed"), input({DType::i64, {}}, "step"), input({DType::i64, {}}, "base"), 0};
  for (NodeId id : {h, x}) {
    loop.values[id] = draw(g.type(id), random, -1, 1), loop.wrt.push_back(id);
    for (double& v : loop.values[id].f) v = reference::round_to(DType::f32, v);
  }
  loop.values[r.seed] = reference::from_values({DType::i64, {}}, std::vector<double>{77});
  loop.values[r.step] = reference::from_values({DType::i64, {}}, std::vector<double>{4});
  loop.values[r.base] = reference::from_values({DType::i64, {}}, std::vector<double>{double(base_value)});

  if (form == LoopForm::by_hand) {
    std::vector<NodeId> words(kDrawSteps), noise(kDrawSteps);
    for (int64_t i = 0; i < kDrawSteps; ++i) {
      const int64_t t = reverse ? kDrawSteps - 1 - i : i;
      NodeId at = b.reshape(b.slice(x, 0, t, t + 1), state);
      std::vector<NodeId> inner_words, inner_noise;
      for (int64_t k = 0; k < (nested ? kDrawInner : 1); ++k) {
        const int64_t index = nested ? t * kDrawInner + k : t;
        DrawStep s = draw_step(b, h, at, {r.seed, r.step, b.add(r.base, double(index) * 0x1p34), 0});
        h = s.carry, inner_words.push_back(s.words), inner_noise.push_back(s.noise);
      }
      words[size_t(t)] = nested ? b.stack(inner_words, 0) : inner_words[0];
      noise[size_t(t)] = nested ? b.stack(inner_noise, 0) : inner_noise[0];
    }
    loop.results = {h, b.stack(words, 0), b.stack(noise, 0)};
    return loop;
  }
  auto body_of = [&](const std::function<std::vector<NodeId>(Builder&, const ScanBody&)>& step) {
    auto body = std::make_shared<ScanBody>();
    body->carry_in = {body->graph.input({DType::f32, state}, "h")};
    for (const char* name : {"seed", "step", "base"}) body->constant_in.push_back(body->graph.input({DType::i64, {}}, name));
    Builder inner(body->graph);
    std::vector<NodeId> out = step(inner, *body);
    body->carry_out = {out[0]}, body->step_out = {out[1], out[2]};
    return body;
  };
  auto plain = [&](Builder& s, const ScanBody& body, NodeId at) {
    DrawStep d = draw_step(s, body.carry_in[0], at, {body.constant_in[0], body.constant_in[1], body.constant_in[2], 0});
    return std::vector<NodeId>{d.carry, d.words, d.noise};
  };
  NodeId at = kNone;
  auto outer = body_of([&](Builder& s, const ScanBody& body) -> std::vector<NodeId> {
    at = s.graph().input({DType::f32, state}, "x");
    if (!nested) return plain(s, body, at);
    NodeId inner_at = kNone;
    auto inner = body_of([&](Builder& i, const ScanBody& b) {
      inner_at = i.graph().input({DType::f32, state}, "x");
      return plain(i, b, inner_at);
    });
    inner->constant_in.push_back(inner_at);
    std::vector<NodeId> constants = body.constant_in;
    constants.push_back(at);
    ScanResult r = scan(s.graph(), inner, body.carry_in, {}, constants, kDrawInner);
    return {r.carry[0], r.outputs[0], r.outputs[1]};
  });
  outer->sequence_in = {at};
  const NodeId constants[] = {r.seed, r.step, r.base};
  ScanResult s = scan(g, outer, {&h, 1}, {&x, 1}, constants, kDrawSteps, reverse);
  loop.results = {s.carry[0], s.outputs[0], s.outputs[1]};
  return loop;
}

}  // namespace ridge::test
