// The kernel texts of real programs compile for every chip without any header, and what their kernels take of the chip is bounded.
#include <algorithm>
#include <cstdlib>
#include <map>

#include <fmt/core.h>

#include "autograd/gradients.h"
#include "ops/op_cases.h"
#include "runtime/executable.h"
#include "scan/bodies.h"
#include "support/cubin.h"
#include "support/cuda_device.h"
#include "support/nvrtc.h"
#include "support/plan_backend.h"
#include "support/steps.h"
#include "train/gpt_task.h"

namespace ridge::test {
namespace {

using cuda::Chip;
using cuda::KernelText;

// A GPT-2 step in bf16 with dropout: body, update, evaluation. Layers add no texts of their own.
std::vector<KernelText> gpt2_texts(const Chip& chip) {
  PlanBackend backend(chip);
  GptConfig c;
  c.vocab = 50257, c.padded_vocab = 50304, c.block = 1024, c.layers = 2, c.heads = 12, c.width = 768, c.bias = true, c.dropout = 0.1;
  StepOptions o;
  o.clip = 1, o.precision = Precision::bf16, o.micro = 32, o.evaluation_micro = 32, o.recompute = Recompute::free, o.backend = &backend;
  TrainStep step(gpt_step_model(c, 64), o);
  return backend.texts();
}

std::vector<KernelText> other_texts(const Chip& chip) {
  PlanBackend backend(chip);
  CompileOptions options;
  options.backend = &backend;
  for (const StepModel& model : {engine::conv_model(8), engine::mlp_model(8)}) {
    const engine::Step step = engine::make_step(model);
    options.state = step.state, options.forward = {step.loss};
    Executable(step.graph, step.inputs, step.outputs, options);
  }
  options.state.clear(), options.forward.clear();
  for (const Cell& cell : cells()) {
    if (std::string(cell.name) != "cfc") continue;
    Loop loop = make_loop(cell, {.steps = 16, .batch = 8, .inputs = 5, .width = 32, .reset = true});
    Builder b(loop.graph);
    const NodeId loss = mixed_loss(b, loop.results);
    std::vector<NodeId> outputs = gradients(loop.graph, loss, loop.wrt);
    outputs.push_back(loss);
    Executable(loop.graph, loop.inputs, outputs, options);
  }
  return backend.texts();
}

// The first case of every op, or of every third.
std::vector<KernelText> op_texts(const Chip& chip, bool all) {
  PlanBackend backend(chip);
  CompileOptions options;
  options.backend = &backend;
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

class KernelTexts : public NvrtcTest {
 protected:
  std::vector<Job> jobs_;
  void add(std::vector<KernelText> texts, const Chip& chip) {
    for (KernelText& t : texts) jobs_.push_back({std::move(t), chip.target()});
  }
};

TEST_F(KernelTexts, OfAGptStepCompile) {
  const bool all = is_set("RIDGE_FULL");
  for (const Chip& chip : all_chips())
    if (all || chip.wgmma()) add(gpt2_texts(chip), chip);
  EXPECT_GE(jobs_.size(), 20u);
  const std::vector<std::string> code = compile(jobs_);
  for (size_t i = 0; i < code.size(); ++i) {
    const KernelUse use = use_of(code[i], jobs_[i].text.entry);
    if (std::getenv("TEST_PRINT"))
      fmt::print("{:8} {:28} {:3} registers, frame {:4}, shared {:6} + {:6}\n", jobs_[i].target, jobs_[i].text.entry, use.registers, use.frame, use.shared,
                 jobs_[i].text.shared);
    EXPECT_GT(use.registers, 0) << jobs_[i].text.entry;
    if (jobs_[i].target != "sm_90a") continue;
    // Little is spilled where a step spends its time.
    EXPECT_LE(use.frame, jobs_[i].text.entry == "tile_row" ? 288 : 0) << jobs_[i].text.entry << " spills";
    EXPECT_LE(use.shared + jobs_[i].text.shared, cuda::chip_for(9, 0).shared_bytes) << jobs_[i].text.entry;
  }
}

TEST_F(KernelTexts, OfOtherStepsCompile) {
  const bool all = is_set("RIDGE_FULL");
  for (const Chip& chip : all_chips())
    if (all || chip.at_least(9, 0)) add(other_texts(chip), chip);
  EXPECT_GE(jobs_.size(), 20u);
  compile(jobs_);
}

TEST_F(KernelTexts, OfTheOpTableCompile) {
  const bool all = is_set("RIDGE_FULL");
  for (const Chip& chip : all_chips())
    if (all || !chip.at_least(8, 0)) add(op_texts(chip, all), chip);
  EXPECT_GE(jobs_.size(), 20u);
  compile(jobs_);
}

}  // namespace
}  // namespace ridge::test
