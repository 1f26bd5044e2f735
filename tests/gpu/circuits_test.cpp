// Training steps of recurrent models on an H200: one kernel for the loop forward and one for its gradient.
#include <gtest/gtest.h>

#include "eager/eager_device.h"
#include "ridge/ridge.h"
#include "step/compiled_step.h"
#include "support/plan_backend.h"

namespace ridge::test {
namespace {

struct Sequences {
  explicit Sequences(CircuitArgs args) : rnn(std::move(args)), out(rnn.outputs(), 4) {}
  Tensor operator()(const Tensor& x) const { return out(rnn(x).output); }
  void visit(Visitor& v) { v("rnn", rnn)("out", out); }
  Circuit rnn;
  Linear out;
};

// The notes on loops of a training step.
std::vector<std::string> loops_of(const CircuitArgs& args, int64_t batch, int64_t steps, Precision precision = Precision::fp32) {
  Sequences net(args);
  auto backend = std::make_shared<PlanBackend>(cuda::chip_for(9, 0));
  detail::EagerDevice device{{}, "plan", backend, nullptr, nullptr};
  StepOptions options;
  options.micro = batch, options.evaluation = false, options.precision = precision;
  compile_step(step(net, adamw({.lr = 1e-3}), [&net](const std::vector<Tensor>& b) { return mse(net(b[0]), b[1]); }),
               {{{batch, steps, args.inputs}}, {{batch, steps, 4}}}, options, device);
  std::vector<std::string> notes;
  for (const std::string& note : backend->scans())
    if (note.find(" steps: resident") != std::string::npos || note.find(" steps: unrolled") != std::string::npos) notes.push_back(note);
  return notes;
}

TEST(CudaCircuits, TrainWithOneKernelPerLoop) {
  auto args = [](const char* cell, int64_t units) {
    CircuitArgs a;
    a.cell = cell, a.inputs = 8, a.units = units;
    return a;
  };
  CircuitArgs two = args("cfc", 64), one = args("cfc", 64), liquid = args("ltc", 0), dense = args("ltc", 32);
  liquid.wiring = {Wiring::random(66, 4, 0.75)};
  two.backbone_units = 64, two.backbone_layers = 2, one.backbone_units = 128, one.backbone_layers = 1;
  for (const auto& [name, a, batch, steps] : {std::tuple("two layers", two, 64, 16),
                                              {"one layer", one, 64, 32},
                                              {"ltc", liquid, 16, 300},
                                              {"dense ltc", dense, 16, 20},
                                              {"lstm", args("lstm", 128), 64, 128},
                                              {"gru", args("gru", 64), 64, 20},
                                              {"mingru", args("mingru", 64), 64, 20},
                                              {"ctrnn", args("ctrnn", 64), 64, 20}}) {
    const std::vector<std::string> notes = loops_of(a, batch, steps);
    EXPECT_EQ(notes.size(), 2u) << name;  // one for each direction
    if (std::getenv("TEST_PRINT"))
      for (const std::string& note : notes) fmt::print("{}: {}\n", name, note);
    for (const std::string& note : notes) EXPECT_NE(note.find(" steps: resident"), std::string::npos) << name << ": " << note;
  }
}

// With factors of fewer bits, each loop has a kernel on matrix units, the first of its candidates; weights that are too large for a block are in clusters.
TEST(CudaCircuits, MultiplyOnMatrixUnits) {
  CircuitArgs layers, wide, lstm;
  layers.cell = wide.cell = "cfc", layers.backbone_layers = wide.backbone_layers = 2, lstm.cell = "lstm";
  layers.units = 64, layers.backbone_units = 64, wide.units = 256, wide.backbone_units = 256, lstm.units = 128;
  layers.inputs = wide.inputs = lstm.inputs = 8;
  for (Precision precision : {Precision::tf32, Precision::bf16, Precision::fp16})
    for (const CircuitArgs& a : {layers, wide, lstm}) {
      const std::vector<std::string> notes = loops_of(a, 64, 16, precision);
      EXPECT_EQ(notes.size(), 2u) << a.cell;
      const std::string units = a.units < 256                  ? " on matrix units, "
                                : precision == Precision::tf32 ? " on matrix units of 4 blocks"
                                                               : " on matrix units of 2 blocks";
      for (const std::string& note : notes) {
        if (std::getenv("TEST_PRINT")) fmt::print("{} {}: {}\n", a.cell, name(precision), note);
        EXPECT_NE(note.find(units), std::string::npos) << a.cell << ", " << name(precision) << ": " << note;
      }
    }
}

}  // namespace
}  // namespace ridge::test
