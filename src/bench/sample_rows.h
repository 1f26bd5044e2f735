// Text generation as benchmark rows: sample/PRESET, for each storage format of the weights.
#pragma once
#include <functional>
#include <string>

#include "bench/bench.h"
#include "bench/train_rows.h"

namespace ridge::bench {

struct SampleResult {
  std::string name, precision, kv_precision, device = "cpu";
  int threads = 1, samples = 0;       // samples: texts; threads: 0 on a GPU
  std::vector<double> times_us = {};  // every sample
  double us = 0, spread = 0;          // per token, from position 32 to the end of the block
  double tokens_s = 0, gbs = 0;       // bytes of weights and cache that the tokens must read
  // The time to read these bytes at the current bandwidth of the memory level that holds them, divided by the actual time.
  double roof = 0;
  double others = 0;     // share of the machine that other programs used meanwhile
  double end_ratio = 0;  // cost of a token at the end of the block relative to one at position 32
  int64_t bytes = 0;     // weight bytes that a token reads
  int kernels = 0;
};

void run_sample(const Options& options, const RowSettings& settings, const std::function<void(const SampleResult&)>& sink);

std::string to_json(const SampleResult& result, bool raw = false);  // one line
std::string sample_table_head();
std::string to_table_line(const SampleResult& result);

}  // namespace ridge::bench
