// A target that is not a valid class must stop the run with its numbers, on every backend, and leave the program usable.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "autograd/gradients.h"
#include "backend/reference/evaluate.h"
#include "base/error.h"
#include "graph/builder.h"
#include "measure/default_team.h"
#include "runtime/executable.h"

namespace ridge::engine {
namespace {

constexpr int64_t kClasses = 5, kIgnored = -100;

struct Loss {
  Graph graph;
  Builder b{graph};
  NodeId logits, target;
  std::vector<NodeId> outputs;
  std::vector<float> x = std::vector<float>(6 * kClasses, 0.f);

  Loss(DType type, std::optional<int64_t> ignore, bool backward) {
    logits = graph.input({DType::f32, {2, 3, kClasses}}, "logits"), target = graph.input({type, {2, 3}}, "target");
    NodeId sum = b.cross_entropy(logits, target, ignore).sum;
    outputs = {sum};
    if (backward) outputs.push_back(gradients(graph, sum, {&logits, 1})[0]);
  }
};

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::value) << e.what();
    return e.what();
  }
  return "";
}

void expect_refusal(const std::string& text, int64_t value, int64_t position) {
  for (const std::string& part : {std::string("[cross_entropy]"), fmt::format("target {} ", value), fmt::format("position {} ", position),
                                  fmt::format("{} classes", kClasses), fmt::format("0 to {}", kClasses - 1)})
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" in \"" << text << "\"";
}

class BadTargets : public ::testing::TestWithParam<std::tuple<bool, bool, std::string>> {};

TEST_P(BadTargets, AreRejectedWithTheirPosition) {
  auto [ignores, backward, passes] = GetParam();
  std::optional<int64_t> ignore = ignores ? std::optional<int64_t>(kIgnored) : std::nullopt;
  Loss loss(DType::i64, ignore, backward);
  CompileOptions options(default_backend());
  options.passes = passes;
  Executable e(loss.graph, {loss.logits, loss.target}, loss.outputs, options);
  float sum = 0;
  std::vector<float> dx(loss.x.size());
  auto run = [&](const std::vector<int64_t>& targets) {
    std::vector<void*> out = {&sum};
    if (backward) out.push_back(dx.data());
    const void* in[] = {loss.x.data(), targets.data()};
    e.run(in, out);
  };
  const std::vector<int64_t> good = {0, 4, 2, 1, 3, ignores ? kIgnored : 0};
  for (int64_t bad : {int64_t(-1), kClasses, int64_t(1) << 32, (int64_t(1) << 40) + 1, kIgnored}) {
    if (bad == kIgnored && ignores) continue;
    for (size_t at : {size_t(0), size_t(4)}) {
      std::vector<int64_t> targets = good;
      targets[at] = bad;
      expect_refusal(message_of([&] { run(targets); }), bad, int64_t(at));
      std::unordered_map<NodeId, reference::Array> bound = {{loss.logits, reference::from_bytes(loss.graph.type(loss.logits), loss.x.data())},
                                                            {loss.target, reference::from_bytes(loss.graph.type(loss.target), targets.data())}};
      expect_refusal(message_of([&] { reference::evaluate(loss.graph, loss.outputs, bound); }), bad, int64_t(at));
      EXPECT_EQ(message_of([&] { run(good); }), "");
      EXPECT_NEAR(sum, (ignores ? 5 : 6) * std::log(double(kClasses)), 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, BadTargets, ::testing::Combine(::testing::Bool(), ::testing::Bool(), ::testing::Values("", "-fuse", "-simplify,-fuse")));

TEST(Targets, NarrowTypesAreChecked) {
  for (DType type : {DType::i32, DType::u8}) {
    Loss loss(type, {}, false);
    Executable e(loss.graph, {loss.logits, loss.target}, loss.outputs, default_backend());
    std::vector<int32_t> wide = {0, 1, 7, 2, 3, 4};
    std::vector<uint8_t> narrow(wide.begin(), wide.end());
    float sum = 0;
    void* out[] = {&sum};
    const void* in[] = {loss.x.data(), type == DType::i32 ? static_cast<const void*>(wide.data()) : narrow.data()};
    expect_refusal(message_of([&] { e.run(in, out); }), 7, 2);
  }
}

TEST(Targets, FloatingTargetsAreRejectedImmediately) {
  Graph g;
  Builder b(g);
  NodeId x = g.input({DType::f32, {4, 5}}, "x"), t = g.input({DType::f32, {4}}, "t");
  EXPECT_THROW(b.cross_entropy(x, t), Error);
}

}  // namespace
}  // namespace ridge::engine
