// Whole training steps of recurrent models as benchmark rows, the models of the rival's script: mean squared error against random targets, AdamW.
#include <fmt/format.h>

#include <cstring>

#include "base/rng.h"
#include "step/compiled_step.h"
#include "tasks/circuits/task.h"

namespace ridge {
namespace {

constexpr int64_t kBenchOutputs = 4;

struct BenchSizes {
  const char* model;
  int64_t batch, time, inputs, hidden, units, layers;
};
constexpr BenchSizes kBenchSizes[] = {{"cfc", 64, 16, 8, 64, 64, 2},
                                      {"cfc", 64, 32, 8, 64, 128, 1},
                                      {"cfc", 256, 64, 32, 256, 256, 2},
                                      {"lstm", 64, 128, 8, 128, 0, 0},
                                      {"ltc", 16, 300, 8, 66, 0, 0}};

std::string bench_name(const BenchSizes& s) {
  const std::string name = fmt::format("{}/{}-{}-{}-{}", s.model, s.batch, s.time, s.inputs, s.hidden);
  return s.units > 0 ? fmt::format("{}-{}x{}", name, s.units, s.layers) : name;
}

// A quarter of all synapses and half of those from inputs.
Wiring bench_wiring(const BenchSizes& s) {
  Wiring wiring(s.hidden, kBenchOutputs);
  wiring.build(s.inputs);
  uint64_t drawn = 0;
  auto draw = [&] { return random_word({1, 0, 3}, drawn++); };
  for (int64_t to = 0; to < s.hidden; ++to) {
    for (int64_t from = 0; from < s.hidden; ++from)
      if (draw() % 4 == 0) wiring.add_synapse(from, to, draw() % 2 ? 1 : -1);
    for (int64_t from = 0; from < s.inputs; ++from)
      if (draw() % 2 == 0) wiring.add_sensory_synapse(from, to, draw() % 2 ? 1 : -1);
  }
  return wiring;
}

CircuitArgs bench_args(const BenchSizes& s) {
  CircuitArgs a;
  a.cell = s.model, a.inputs = s.inputs;
  if (a.cell == "ltc") {
    a.wiring = {bench_wiring(s)}, a.input_mapping = a.output_mapping = "none";
    return a;
  }
  a.units = s.hidden, a.projection = kBenchOutputs;
  if (s.units > 0) a.backbone_units = s.units, a.backbone_layers = s.layers, a.activation = "tanh";
  return a;
}

}  // namespace

// Rows are exact fp32 on every device, like the rival without further flags.
std::vector<BenchRow> circuit_bench_rows(bool gpu) {
  std::vector<BenchRow> rows;
  for (const BenchSizes& s : kBenchSizes)
    rows.push_back({bench_name(s),
                    {"precision=fp32", "matmul_precision=highest"},
                    fmt::format("torch_cfc.py --only {} {}", s.model, gpu ? "--device cuda --modes graphs capture" : "--modes eager cell compile"),
                    {{"tf32", "--tf32"}, {"bf16", "--dtype bfloat16"}}});
  return rows;
}

BenchStep circuit_bench_step(const BenchRow& row, const config::Resolved&) {
  const BenchSizes* sizes = std::begin(kBenchSizes);
  while (bench_name(*sizes) != row.name) ++sizes;
  const BenchSizes& s = *sizes;
  seed(1);
  const auto net = std::make_shared<Circuit>(bench_args(s));
  const std::vector<NamedTensor> weights = parameters(*net);
  const Step step(weights, adamw({.lr = 1e-3, .decay = 0.01}), loss_function([net](const Tensor& x, const Tensor& y) { return mse((*net)(x).output, y); }));
  BenchStep bench;
  bench.model = step_model(step, {{{s.batch, s.time, s.inputs}}, {{s.batch, s.time, kBenchOutputs}}});
  bench.options.optimizer = step.optimizer(), bench.units = s.batch * s.time, bench.time_steps = s.time;
  bench.fill = [net, weights](size_t i, std::span<float> values) { std::memcpy(values.data(), weights[i].tensor->data(), values.size_bytes()); };
  for (const Type& type : bench.model.batch) {  // inputs and targets
    const std::vector<float> values = normal(type.shape).to_floats();
    std::memcpy(bench.batch.emplace_back(values.size() * sizeof(float)).data(), values.data(), values.size() * sizeof(float));
  }
  return bench;
}

}  // namespace ridge
