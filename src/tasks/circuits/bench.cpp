// Whole training steps of recurrent models as benchmark rows, the models of the rival's script: mean squared error against random targets, AdamW.
#include <algorithm>

#include <fmt/format.h>

#include "base/rng.h"
#include "tasks/circuits/task.h"
#include "train/module_run.h"

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
  return fmt::format("{}/{}-{}-{}-{}{}", s.model, s.batch, s.time, s.inputs, s.hidden, s.units > 0 ? fmt::format("-{}x{}", s.units, s.layers) : "");
}

// A quarter of all synapses and half of those from inputs.
Wiring bench_wiring(const BenchSizes& s) {
  Wiring wiring(s.hidden, kBenchOutputs);
  wiring.build(s.inputs);
  auto draw = [drawn = uint64_t(0)]() mutable { return random_word({1, 0, 3}, drawn++); };
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
  if (a.cell == "ltc")
    a.wiring = {bench_wiring(s)}, a.input_mapping = a.output_mapping = "none";
  else
    a.units = s.hidden, a.projection = kBenchOutputs;
  if (s.units > 0) a.backbone_units = s.units, a.backbone_layers = s.layers, a.activation = "tanh";
  return a;
}

}  // namespace

// Rows are exact fp32 on every device, like the rival without further flags.
std::vector<BenchRow> circuit_bench_rows(bool gpu) {
  std::vector<BenchRow> rows;
  for (const BenchSizes& s : kBenchSizes)
    rows.push_back({.name = bench_name(s),
                    .settings = {"precision=fp32", "matmul_precision=highest"},
                    .rival = fmt::format("torch_cfc.py --only {} {}", s.model, gpu ? "--device cuda --modes graphs capture" : "--modes eager cell compile"),
                    .rival_flags = {{"tf32", "--tf32"}, {"bf16", "--dtype bfloat16"}},
                    .rival_line = fmt::format("\"T\": {},", s.time)});
  return rows;
}

BenchStep circuit_bench_step(const BenchRow& row, const config::Resolved&) {
  const BenchSizes& s = *std::ranges::find(kBenchSizes, row.name, bench_name);
  seed(1);
  const auto net = std::make_shared<Circuit>(bench_args(s));
  const Step learner = step(*net, adamw({.lr = 1e-3, .decay = 0.01}), [net](const Tensor& x, const Tensor& y) { return mse((*net)(x).output, y); });
  BenchStep bench = module_bench(learner, {{{s.batch, s.time, s.inputs}}, {{s.batch, s.time, kBenchOutputs}}});
  bench.units = s.batch * s.time, bench.time_steps = s.time;
  return bench;
}

}  // namespace ridge
