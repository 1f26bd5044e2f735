// One step of a task with given settings, as training takes it: the row of `ridge bench devices` and `configs`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "train/task.h"

namespace ridge::bench {

struct StepResult {
  std::string name, config, device, precision, unit;  // name: what is trained; config: the settings that a row has alone
  int threads = 0;                                    // 0: on a device with its own memory
  int64_t batch = 0;
  double units = 0;                   // per step: what rates count
  double ready_s = 0;                 // planning, compilation, memory
  double first_ms = 0;                // the first step, which also loads kernels; like the second it is not among the samples
  std::vector<double> times_us = {};  // every sample: from the beginning of a step to that of the next one, with its data
  double ms = 0, spread = 0, tflops = 0, others = 0;
  int samples = 0;
  int64_t planned_bytes = 0;
};

// Trains for about so many seconds, at least three steps after the warm-up, and leaves nothing behind. Steps that share a batch of experience count as one.
StepResult measure_step(const Task& task, const config::Resolved& settings, double seconds);

std::string to_json(const StepResult& result, bool raw = false);  // one line
std::string step_table_head();
std::string to_table_line(const StepResult& result);

}  // namespace ridge::bench
