// Whole training steps as benchmark rows: gpt/PRESET, cfc/SIZES; and environments alone: pong-env/….
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "config/config.h"

namespace ridge::bench {

struct TrainResult {
  std::string name, precision = "fp32", device = "cpu";
  int threads = 1, samples = 0;
  int64_t batch = 0;
  std::vector<double> times_us = {};  // every sample
  double ms = 0, spread = 0;          // per step: from data in memory to updated weights
  double expected_ms = 0;             // the estimate of `ridge plan`, from current rates; 0: nothing is known about the GPU
  double tokens_s = 0, tflops = 0;
  double steps_s = 0, frames_s = 0;           // of environments: decisions and frames; 0: there are none
  std::string environment;                    // which one, and how it is played
  double playing = 0, preparing = 0;          // shares of the time of an agent's training step; the rest is learning
  int64_t time_steps = 0;                     // of a loop over time; 0: there is none
  std::string loop;                           // how the loop runs: resident, unrolled or stretches
  std::vector<std::string> loop_kernels;      // on a GPU: what was chosen, for each direction
  std::string rival;                          // a command that measures the same work in another program
  double roof = 0;                            // the shortest possible time of a step at current rates, divided by the actual time
  double others = 0;                          // share of the machine that other programs used meanwhile
  int64_t planned_bytes = 0, peak_bytes = 0;  // peak: memory taken by the step according to the system or the GPU's driver
};

// Resolves a row's default settings together with the command's (batch=16), which are stronger.
using RowSettings = std::function<config::Resolved(unsigned task, const std::vector<std::string>& defaults)>;

void run_train(const Options& options, const RowSettings& settings, const std::function<void(const TrainResult&)>& sink);

std::string to_json(const TrainResult& result, bool raw = false);  // one line
std::string train_table_head();
std::string to_table_line(const TrainResult& result);

}  // namespace ridge::bench
