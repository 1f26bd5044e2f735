// Whole training steps as benchmark rows: gpt/PRESET.
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
  double ms = 0, spread = 0;  // of one step: data in memory to updated weights
  double expected_ms = 0;     // as `ridge plan` says it, from rates of this moment; 0: nothing is known of the GPU
  double tokens_s = 0, tflops = 0;
  double roof = 0;                            // the least that a step can take at the rates of the same moment, divided by what it took
  double others = 0;                          // share of the machine that other programs had meanwhile
  int64_t planned_bytes = 0, peak_bytes = 0;  // peak: what the system, or a GPU's driver, says the step has taken
};

std::vector<std::string> train_presets(bool gpu = false);  // those that have a row

// What a row of a preset has unless another is asked for, as settings.
std::vector<std::string> assumed_settings(const std::string& preset, bool gpu);

// Resolves a preset together with what was asked for besides (batch=16).
using PresetSettings = std::function<config::Resolved(const std::string& preset)>;

void run_train(const Options& options, const PresetSettings& settings, const std::function<void(const TrainResult&)>& sink);

std::string to_json(const TrainResult& result);  // one line
std::string train_table_head();
std::string to_table_line(const TrainResult& result);

}  // namespace ridge::bench
