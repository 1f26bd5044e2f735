// State is overwritten in place, but a step still reads the previous values.
#include "base/error.h"
#include "graph/builder.h"
#include "measure/default_team.h"
#include "ops/tolerance.h"
#include "support/rounds.h"

namespace ridge::test {
namespace {

// A step whose output i overwrites its input i.
struct InPlace {
  Graph graph;
  Builder b{graph};
  std::vector<NodeId> before, after;
  Values values;

  NodeId add(Shape shape, Random& random) {
    NodeId id = graph.input({DType::f32, shape}, "state" + std::to_string(before.size()));
    reference::Array v = draw(graph.type(id), random, -1, 1);
    for (double& x : v.f) x = float(x);
    values[id] = std::move(v);
    before.push_back(id);
    return id;
  }

  void expect_right(const std::string& label, int threads = 2, const std::string& passes = "") {
    CompileOptions options(cpu_of(threads));
    options.passes = passes;
    for (int i = 0; i < int(before.size()); ++i) options.state.push_back({i, i});
    Executable step(graph, before, after, options);
    std::vector<Bytes> memory(before.size());
    std::vector<const void*> in;
    std::vector<void*> out;
    for (size_t i = 0; i < before.size(); ++i) {
      memory[i].resize(size_t(graph.type(before[i]).bytes()));
      reference::to_bytes(values.at(before[i]), memory[i].data());
      in.push_back(memory[i].data()), out.push_back(memory[i].data());
    }
    step.run(in, out);
    std::vector<reference::Array> want = reference::evaluate(graph, after, values);
    for (size_t i = 0; i < after.size(); ++i) {
      Tolerance t{1e-4, 2e-5 * (1 + largest(want[i]))};
      EXPECT_TRUE(close(reference::from_bytes(want[i].type, memory[i].data()), want[i], t)) << label << ", state " << i << "\n" << step.dump();
    }
  }
};

// A cache: rows are written in place and nothing else moves, even if the new state is read in the same step.
TEST(State, RowsAreUpdatedInPlace) {
  Random random(3);
  InPlace p;
  NodeId cache = p.add({2, 9, 4}, random), other = p.add({2, 3, 4}, random);
  NodeId zero = p.b.literal(DType::i64, 0), starts[] = {zero, p.b.literal(DType::i64, 5), zero};
  NodeId next = p.b.dynamic_update_slice(cache, p.b.mul(other, 2.0), starts);
  p.after = {next, p.b.add(other, p.b.slice(next, 1, 5, 8))};
  p.expect_right("read afterwards");
  CompileOptions options(default_backend());
  options.state = {{0, 0}};
  Executable step(p.graph, p.before, {next}, options);
  for (const KernelReport& k : step.report().kernels) EXPECT_TRUE(k.name.starts_with("dynamic_update_slice") || k.bytes < 300) << step.dump();
  // Other readers of the old value still get it.
  p.after = {next, p.b.add(other, p.b.slice(cache, 1, 5, 8))};
  p.expect_right("read before");
  p.after = {p.b.dynamic_update_slice(cache, p.b.slice(cache, 1, 0, 3), starts), other};
  p.after[1] = p.b.mul(other, 3.0);
  p.expect_right("rows of its own");
}

TEST(State, EachDependsOnTheOthers) {
  for (int64_t n : {0, 1, 7, 64, 300})
    for (int count : {2, 3}) {
      auto step = [&](const char* label, auto next) {
        Random random(uint64_t(n) + 1);
        InPlace p;
        for (int i = 0; i < count; ++i) p.add({n, n}, random);
        for (int i = 0; i < count; ++i) p.after.push_back(next(p.b, p.before[size_t(i)], p.before[size_t((i + 1) % count)]));
        p.expect_right(std::string(label) + " of " + std::to_string(count) + ", " + std::to_string(n));
      };
      step("circle of sums", [](Builder& b, NodeId own, NodeId other) { return b.add(own, b.mul(other, 0.5)); });
      step("exchange", [](Builder&, NodeId, NodeId other) { return other; });
      step("circle of products", [](Builder& b, NodeId own, NodeId other) { return b.unary(Op::tanh, b.matmul(own, other)); });
    }
}

TEST(State, ReadsOtherElementsOfItself) {
  for (int64_t n : {0, 1, 7, 64, 300}) {
    auto step = [&](const char* label, auto next) {
      Random random(uint64_t(n) + 1);
      InPlace p;
      NodeId x = p.add({n, n}, random);
      p.after = {next(p.b, x)};
      p.expect_right(std::string(label) + ", " + std::to_string(n));
    };
    const int64_t rows[] = {0}, columns[] = {1};
    step("transpose", [](Builder& b, NodeId x) { return b.add(b.mul(x, 0.5), b.transpose(x)); });
    step("product", [](Builder& b, NodeId x) { return b.matmul(x, x); });
    step("epilogue", [](Builder& b, NodeId x) { return b.unary(Op::tanh, b.matmul(x, x)); });
    step("less its columns' sums", [&](Builder& b, NodeId x) { return b.sub(x, b.sum(x, rows, true)); });
    step("less its rows' sums", [&](Builder& b, NodeId x) { return b.sub(x, b.sum(x, columns, true)); });
  }
}

TEST(State, OldAndNewValueAreUsedTogether) {
  Random random(3);
  InPlace p;
  NodeId x = p.add({100, 100}, random), y = p.add({100, 100}, random);
  NodeId next = p.b.sub(x, p.b.mul(y, 0.5));
  p.after = {next, p.b.matmul(next, x)};
  p.expect_right("product of both");
}

// A value assembled from parts must not be written part by part while the old value is still being read.
TEST(State, IsConcatenatedFromParts) {
  for (int64_t n : {2, 33, 300}) {
    Random random(uint64_t(n) + 1);
    InPlace p;
    NodeId x = p.add({n, n}, random), y = p.add({n * n}, random), z = p.add({2 * n, n}, random);
    NodeId top = p.b.unary(Op::tanh, x), bottom = p.b.unary(Op::tanh, p.b.matmul(x, p.b.slice(z, 0, 0, n)));
    p.after = {p.b.reshape(p.b.unary(Op::sin, y), {n, n}), p.b.reshape(p.b.unary(Op::cos, x), {n * n}), p.b.concat(std::vector{top, bottom}, 0)};
    p.expect_right(std::to_string(n));
  }
}

TEST(State, RandomSteps) {
  for (uint64_t seed = 0; seed < uint64_t(rounds(300)); ++seed) {
    Random random(seed + 1);
    InPlace p;
    Builder& b = p.b;
    const bool large = seed % 16 == 0;
    const int64_t n = large ? 200 + random.below(200) : 1 + random.below(40), rows[] = {0}, columns[] = {1};
    std::vector<NodeId> matrices, vectors;
    auto pick = [&](const std::vector<NodeId>& from) { return from[size_t(random.below(int64_t(from.size())))]; };
    for (int i = 1 + int(random.below(3)); i > 0; --i) matrices.push_back(p.add({n, n}, random)), vectors.push_back(p.add({n}, random));
    for (int i = 1 + int(random.below(8)); i > 0; --i) {
      NodeId x = pick(matrices), y = pick(matrices), v = pick(vectors);
      switch (random.below(12)) {
        case 0: matrices.push_back(b.add(x, b.mul(y, 0.5))); break;
        case 1: matrices.push_back(b.transpose(x)); break;
        case 2: matrices.push_back(b.mul(b.matmul(x, y), 1.0 / double(n))); break;
        case 3: matrices.push_back(b.unary(Op::tanh, b.add(x, v))); break;
        case 4: matrices.push_back(b.sub(x, b.mul(b.sum(y, random.below(2) ? rows : columns, true), 1.0 / double(n)))); break;
        case 5: matrices.push_back(b.concat(std::vector{b.slice(x, 0, 1, n), b.slice(x, 0, 0, 1)}, 0)); break;
        case 6: matrices.push_back(b.mul(b.cumsum(x, 0, false), 1.0 / double(n))); break;
        case 7: vectors.push_back(b.sub(v, b.mul(b.sum(x, rows), 1.0 / double(n)))); break;
        case 8: vectors.push_back(b.sub(v, b.mul(b.sum(b.mul(x, y), columns), 1.0 / double(n)))); break;
        case 9: vectors.push_back(b.reshape(b.unary(Op::sin, b.slice(x, 0, 0, 1)), {n})); break;
        case 10: matrices.push_back(b.concat(std::vector{b.unary(Op::sin, b.slice(x, 0, 0, n / 2)), b.unary(Op::cos, b.slice(y, 0, n / 2, n))}, 0)); break;
        default: vectors.push_back(b.mul(v, pick(vectors))); break;
      }
    }
    for (NodeId id : p.before) p.after.push_back(pick(b.shape(id).rank() == 2 ? matrices : vectors));
    static constexpr const char* passes[] = {"", "", "-fuse", "-place", "-plan"};
    p.expect_right("seed " + std::to_string(seed), 1 + int(seed % 3), passes[seed % 5]);
    if (::testing::Test::HasFailure()) break;  // one failing program is enough
  }
}

TEST(State, PairsAreChecked) {
  Graph graph;
  Builder b(graph);
  NodeId x = graph.input({DType::f32, {10}}, "x");
  for (std::pair<int, int> pair : {std::pair{0, 1}, {1, 0}, {-1, 0}, {0, -1}}) {
    CompileOptions options(default_backend());
    options.state = {pair};
    try {
      Executable(graph, {x}, {b.add(x, 1.0)}, options);
      ADD_FAILURE() << pair.first << " " << pair.second;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::binding);
    }
  }
}

}  // namespace
}  // namespace ridge::test
