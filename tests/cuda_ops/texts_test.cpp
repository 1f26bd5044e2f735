// The kernel texts of real programs compile for every chip without any header, and their kernels' use of the chip is bounded.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include <fmt/core.h>

#include "autograd/gradients.h"
#include "ops/op_cases.h"
#include "runtime/executable.h"
#include "scan/bodies.h"
#include "support/cubin.h"
#include "support/cuda_device.h"
#include "support/nvrtc.h"
#include "support/pins.h"
#include "support/plan_backend.h"
#include "support/steps.h"
#include "tasks/gpt/task.h"

namespace ridge::test {
namespace {

using cuda::Chip;
using cuda::KernelText;

// A GPT-2 step in bf16 with dropout: body, update, evaluation. More layers add no texts.
StepPlan plan_gpt2(PlanBackend& backend, double dropout = 0.1, int64_t micro = 32) {
  GptConfig c;
  c.vocab = 50257, c.padded_vocab = 50304, c.block = 1024, c.layers = 2, c.heads = 12, c.width = 768, c.bias = true, c.dropout = dropout;
  StepOptions o;
  o.clip = 1, o.precision = Precision::bf16, o.micro = micro, o.evaluation_micro = micro, o.recompute = Recompute::free, o.backend = &backend;
  return TrainStep(gpt_step_model(c, 64), o).plan();
}

struct NamedReport {
  std::string name;
  Report report;
};
std::vector<NamedReport> plan_others(PlanBackend& backend) {
  std::vector<NamedReport> reports;
  CompileOptions options(backend);
  const std::pair<const char*, StepModel> models[] = {{"conv", engine::conv_model(8)}, {"mlp", engine::mlp_model(8)}};
  for (const auto& [name, model] : models) {
    const engine::Step step = engine::make_step(model);
    options.state = step.state, options.forward = {step.loss};
    reports.push_back({name, Executable(step.graph, step.inputs, step.outputs, options).report()});
  }
  options.state.clear(), options.forward.clear();
  for (const Cell& cell : cells()) {
    if (std::string(cell.name) != "cfc") continue;
    Loop loop = make_loop(cell, {.steps = 16, .batch = 8, .inputs = 5, .width = 32, .reset = true});
    Builder b(loop.graph);
    const NodeId loss = mixed_loss(b, loop.results);
    std::vector<NodeId> outputs = gradients(loop.graph, loss, loop.wrt);
    outputs.push_back(loss);
    reports.push_back({cell.name, Executable(loop.graph, loop.inputs, outputs, options).report()});
  }
  return reports;
}

// The first case of every op, or of every third op.
std::vector<KernelText> op_texts(const Chip& chip, bool all) {
  PlanBackend backend(chip);
  CompileOptions options(backend);
  int number = 0;
  for (int op : ops_with_samples()) {
    if (++number % 3 && !all) continue;
    int cases = 0;
    row(Op(op)).samples([&](const Sample& sample) {
      if (cases++ > (all ? 3 : 0)) return;
      const OpCase c = make_case(Op(op), sample, Layout(cases % int(Layout::count)), uint64_t(op));
      Executable(c.graph, c.inputs, c.outputs, options);
    });
  }
  return backend.texts();
}

bool all() { return is_set("RIDGE_FULL"); }

// One of all_chips(); the last is the newest. Without RIDGE_FULL=1 each kind of program is compiled for one of them.
class ChipTexts : public NvrtcTest, public ::testing::WithParamInterface<size_t> {
 protected:
  static const Chip& chip() { return all_chips()[GetParam()]; }
  std::vector<Cubin::Use> compile_all(const std::vector<KernelText>& texts, const std::string& variant = {}) const {
    EXPECT_GE(texts.size(), 20u);
    std::vector<Job> jobs;
    for (const KernelText& t : texts) jobs.push_back({t, chip().target()});
    return compile(jobs, variant);
  }
};
std::vector<size_t> chips(size_t one) { return all() ? std::vector<size_t>{0, 1, 2, 3, 4} : std::vector<size_t>{one}; }
std::string chip_name(const ::testing::TestParamInfo<size_t>& info) { return all_chips()[info.param].target(); }

class GptTexts : public ChipTexts {};

// Resource limits for the kernels of a GPT-2 step on an H200; the last line is for all others. More registers mean fewer resident threads, a stack frame means
// memory traffic that no roofline counts.
struct Limits {
  std::string_view entry;
  int registers, frame;
  int64_t shared;
};
constexpr Limits kLimits[] = {
    {"tile_map", 64, 0, 34816},
    {"tile_row", 96, 0, 204800},
    {"tile_column", 88, 0, 10240},
    {"tile_combine", 48, 0, 8192},
    {"radix_", 48, 0, 12288},
    {"segment_", 64, 0, 4096},
    {"attention_hopper_forward", 168, 16, 133120},
    {"attention_hopper_grad", 168, 128, 204800},
    {"", 128, 0, 49152},
};

TEST_P(GptTexts, CompileWithinTheirLimits) {
  PlanBackend backend(chip());
  plan_gpt2(backend);
  const std::vector<KernelText>& texts = backend.texts();
  const std::vector<Cubin::Use> uses = compile_all(texts);
  for (size_t i = 0; i < uses.size(); ++i) {
    const Cubin::Use& use = uses[i];
    if (std::getenv("TEST_PRINT"))
      fmt::print("{:8} {:28} {:3} registers, frame {:4}, shared {:6} + {:6}\n", chip().target(), texts[i].entry, use.registers, use.frame, use.shared,
                 texts[i].shared);
    EXPECT_GT(use.registers, 0) << texts[i].entry;
    EXPECT_LE(use.shared + texts[i].shared, chip().shared_bytes) << texts[i].entry;
    if (!chip().wgmma()) continue;
    const Limits* limits = std::find_if(std::begin(kLimits), std::end(kLimits), [&](const Limits& l) { return texts[i].entry.starts_with(l.entry); });
    EXPECT_LE(use.registers, limits->registers) << texts[i].entry;
    EXPECT_LE(use.frame, limits->frame) << texts[i].entry << " spills";
    EXPECT_LE(use.shared + texts[i].shared, limits->shared) << texts[i].entry;
  }
}

INSTANTIATE_TEST_SUITE_P(Chips, GptTexts, ::testing::ValuesIn(chips(4)), chip_name);

class StepTexts : public ChipTexts {};

TEST_P(StepTexts, Compile) {
  PlanBackend backend(chip());
  plan_others(backend);
  compile_all(backend.texts());
}

INSTANTIATE_TEST_SUITE_P(Chips, StepTexts, ::testing::ValuesIn(chips(1)), chip_name);

class OpTexts : public ChipTexts {};

TEST_P(OpTexts, Compile) { compile_all(op_texts(chip(), all()), all() ? ".full" : ""); }

INSTANTIATE_TEST_SUITE_P(Chips, OpTexts, ::testing::ValuesIn(chips(0)), chip_name);

// Kernels and bytes of the same programs, for every chip: planning needs no compiler.
TEST(CudaPlans, KernelsAndBytesMatchThePins) {
  std::vector<Pin> pins;
  for (const Chip& chip : all_chips()) {
    PlanBackend backend(chip);
    const StepPlan gpt2 = plan_gpt2(backend);
    pins.push_back({fmt::format("{:7} gpt2: {} kernels; {}", chip.target(), gpt2.kernels, engine::planned_bytes(gpt2)), {}});
    for (const auto& [name, r] : plan_others(backend))
      pins.push_back({fmt::format("{:7} {}: {} kernels; {} arena, {} workspace, {} in all", chip.target(), name, r.kernels.size(), r.arena_bytes,
                                  r.workspace_bytes, r.planned_bytes),
                      {}});
    pins.push_back({fmt::format("{:7} {} texts", chip.target(), backend.texts().size()), {}});
  }
  expect_pins("plans/cuda", std::move(pins));
}

// Of a GPT-2 step's sums of columns, those of what norms' and attention's gradients store are in these kernels.
TEST(CudaPlans, BiasGradientsAreSummedWhereTheyAreStored) {
  for (auto [minor, columns, with_attention] : {std::array<int, 3>{0, 3, 1}, {9, 4, 0}}) {
    PlanBackend backend(cuda::chip_for(minor ? 8 : 9, minor));
    plan_gpt2(backend, 0, 64);
    auto count = [&](std::string_view entry) { return std::ranges::count_if(backend.texts(), [&](const KernelText& t) { return t.entry == entry; }); };
    EXPECT_EQ(count("tile_column"), columns) << minor;
    EXPECT_EQ(count("attention_hopper_grad_sums"), with_attention) << minor;
  }
}

}  // namespace
}  // namespace ridge::test
