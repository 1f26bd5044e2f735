// The list of passes matches the documentation; each can be dumped, verified and, unless it is required, switched off.
#include "compile/pipeline.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>

#include "compile/passes.h"
#include "compile/saved_set.h"
#include "compile/simplify.h"
#include "graph/builder.h"
#include "support/errors.h"
#include "support/source_dir.h"
#include "support/steps.h"
#include "support/variable.h"

namespace ridge {
namespace {

using test::error_of;
using test::has;
using test::Variable;

// Two products with an operation in between, updated state, and a loop over time.
struct Sample {
  Graph graph;
  std::vector<NodeId> inputs, outputs;
  PipelineOptions options;

  Sample() {
    Builder b(graph);
    for (Shape s : {Shape{4, 8}, Shape{8, 8}, Shape{4, 8}}) inputs.push_back(graph.input({DType::f32, s}, "x" + std::to_string(inputs.size())));
    const NodeId hidden = b.unary(Op::tanh, b.matmul(inputs[0], inputs[1]));
    outputs = {b.matmul(hidden, b.transpose(inputs[1])), b.add(inputs[2], hidden)};
    options.state = {{2, 1}};
    options.verify = true;
  }
  Program compile(const std::string& passes = "") {
    options.passes = passes;
    return compile_graph(graph, inputs, outputs, options);
  }
};

TEST(Pipeline, MatchesTheDocumentation) {
  std::ifstream page(source_dir() + "/docs/architecture.md");
  std::vector<std::pair<std::string, bool>> documented, listed;
  std::string line;
  while (std::getline(page, line) && line != "## Passes") {
  }
  while (std::getline(page, line) && line.find("## ") != 0) {
    if (line.find("| `") != 0) continue;
    const size_t end = line.find('`', 3), next = line.find("| ", end);
    documented.push_back({line.substr(3, end - 3), line.substr(next + 2, 2) == "no"});
  }
  for (const Pass& pass : pipeline()) listed.push_back({std::string(pass.name), pass.required});
  EXPECT_EQ(documented, listed);
}

TEST(Pipeline, SwitchesOffWhatIsNotRequired) {
  Sample s;
  std::string all;
  const size_t kernels = s.compile().kernels.size();
  for (const Pass& pass : pipeline()) {
    const std::string word = fmt::format("-{}", pass.name);
    const auto error = error_of([&] { s.compile(word); });
    EXPECT_EQ(error.has_value(), pass.required) << word;
    if (!pass.required) {
      all += "," + word;
      continue;
    }
    EXPECT_TRUE(has(error, fmt::format("\"{}\" is required", pass.name)));
    for (const Pass& other : pipeline()) EXPECT_EQ(has(error, fmt::format("-{}", other.name)), !other.required) << other.name << " in " << error->what();
  }
  EXPECT_GT(s.compile("-fuse").kernels.size(), kernels);
  EXPECT_GE(s.compile(all).kernels.size(), s.compile("-fuse").kernels.size());
  EXPECT_TRUE(has(error_of([&] { s.compile("-fuze"); }), "\"-fuze\" is not known; these can be switched off: -scan_saved, -scan_hoist, -simplify"));
  EXPECT_TRUE(has(error_of([&] { s.compile("fuse"); }), "\"fuse\" is not known"));
  EXPECT_EQ(disabled_passes(""), "");
  const Variable off("RIDGE_PASSES", "-fuse");
  EXPECT_EQ(disabled_passes("-place,-simplify"), "-simplify,-fuse,-place") << "in the order of the pipeline";
  EXPECT_GT(s.compile().kernels.size(), kernels);
}

TEST(Pipeline, DumpsTheStateAfterAPass) {
  Sample s;
  auto dumped = [&](const std::string& passes) {
    const Variable dump("RIDGE_DUMP", passes);
    testing::internal::CaptureStderr();
    Program p = s.compile();
    plan(p, std::vector<int64_t>(p.kernels.size(), 64));
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(dumped(""), "");
  for (const Pass& pass : pipeline()) EXPECT_EQ(dumped(std::string(pass.name)).find(fmt::format("# after {}\n", pass.name)), 0u) << pass.name;
  const std::string two = dumped("outputs,lower");
  EXPECT_LT(two.find("# after outputs\n"), two.find("tanh")) << "the graph\n" << two;
  EXPECT_LT(two.find("# after lower\n"), two.find("matmul+")) << "the kernels\n" << two;
  EXPECT_TRUE(has(error_of([&] { dumped("simplfy"); }), "\"simplfy\" is not a pass; the passes are decompose, scan_saved, scan_hoist"));
  testing::internal::GetCapturedStderr();
}

TEST(Pipeline, DoesNotChangeTheGraph) {
  Sample s;
  const NodeId size = s.graph.size();
  s.compile();
  EXPECT_EQ(s.graph.size(), size);
}

// The output of passes is checked: each of these programs was legal before it was changed.
TEST(Pipeline, VerifiesTheResultOfEveryPass) {
  Sample s;
  const Target target;
  const std::vector<char> off(pipeline().size(), 0);
  auto broken = [&](const auto& check, const auto& change) {
    Compilation c{s.options, target, off};
    c.program = s.compile();
    for (NodeId id : c.program.outputs) c.output_types.push_back(c.program.graph.type(id));
    check(c);
    change(c);
    const auto error = error_of([&] { check(c); });
    return error ? std::string(error->what()) : "nothing";
  };
  auto found = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  std::string told = broken(verify_graph, [](Compilation& c) { c.program.outputs[0] = c.program.inputs[1]; });
  EXPECT_TRUE(found(told, "[verify] output 0 was f32[4, 8] and is f32[8, 8]")) << told;
  told = broken(verify_outputs, [](Compilation& c) { c.program.outputs[0] = c.program.outputs[1]; });
  EXPECT_TRUE(found(told, "is output twice")) << told;
  told = broken(verify_canonical, [](Compilation& c) { c.program.outputs[0] = c.program.graph.add(Op::stop_gradient, {c.program.outputs[0]}); });
  EXPECT_TRUE(found(told, "stop_gradient")) << told;
  told = broken(verify_kernels, [](Compilation& c) { std::reverse(c.program.kernels.begin(), c.program.kernels.end()); });
  EXPECT_TRUE(found(told, "still writes")) << told;
  told = broken(verify_kernels, [](Compilation& c) { c.program.kernels.pop_back(); });
  EXPECT_TRUE(found(told, "no kernel writes output")) << told;
  told = broken(verify_buffers, [](Compilation& c) { c.program.buffers[0].last = -1; });
  EXPECT_TRUE(found(told, "which lives from")) << told;

  auto fused = [&](bool ordered, const auto& change) {
    Compilation c{s.options, target, off};
    c.program.graph = s.graph, c.program.inputs = s.inputs, c.program.outputs = s.outputs;
    for (NodeId id : s.outputs) c.output_types.push_back(s.graph.type(id));
    fuse_groups(c);
    verify_groups(c);
    if (ordered) order_groups(c), verify_order(c);
    change(c.fused);
    const auto error = error_of([&] { ordered ? verify_order(c) : verify_groups(c); });
    return error ? std::string(error->what()) : "nothing";
  };
  told = fused(false, [](FusePlan& plan) { plan.groups.pop_back(); });
  EXPECT_TRUE(found(told, "is read but no group computes it")) << told;
  told = fused(false, [](FusePlan& plan) { plan.groups.push_back(plan.groups[0]); });
  EXPECT_TRUE(found(told, "is computed by groups")) << told;
  told = fused(true, [](FusePlan& plan) { std::reverse(plan.groups.begin(), plan.groups.end()); });
  EXPECT_TRUE(found(told, " reads %")) << told;
}

// The passes that rewrite a graph run once each. That is enough: the result of the saved set is already canonical and simplified.
TEST(Pipeline, NeedsOnlyOneRound) {
  GptConfig config = engine::small_gpt();
  config.layers = 2, config.width = 32, config.dropout = 0.1;
  for (const StepModel& model : {engine::gpt_model(config, 2, 16), engine::mlp_model(8), engine::conv_model(2)})
    for (Recompute level : {Recompute::free, Recompute::elementwise, Recompute::attention, Recompute::layers}) {
      engine::Step step = engine::make_step(model);
      Graph& g = step.graph;
      std::vector<NodeId> all = step.outputs;
      all.push_back(step.loss);
      all = simplify(g, canonicalize(g, all));
      const NodeId loss = all.back();
      all.pop_back();
      const std::vector<NodeId> chosen = choose_saved(g, all, {&loss, 1}, level).outputs;
      EXPECT_EQ(simplify(g, canonicalize(g, chosen)), chosen) << name(level);
    }
}

}  // namespace
}  // namespace ridge
