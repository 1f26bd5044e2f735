// What a profile knows, as plain data, and how it is shown.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/program_memory.h"

namespace ridge {

// Kernels of one name, layer and phase; all figures are per step.
struct KernelRow {
  std::string name, layer, phase;
  double calls = 0, seconds = 0, flops = 0, bytes = 0, exponentials = 0;
  double roof = 0;    // lower bound of its time ÷ its time; 0: unknown
  std::string bound;  // arithmetic, memory, overhead; empty: unknown
  std::string advice() const;
};

// All kernels of one kind and phase, such as the products of the backward pass.
struct KindRow {
  std::string kind, phase;
  double calls = 0, seconds = 0;
  double roof = 0;  // as above, of all together
};
constexpr double kHotShare = 0.05, kLowRoof = 0.6;  // a kind with more of a step and less of its roof is worth work

struct PhaseRow {
  std::string name;
  double seconds = 0, calls = 0;
};

// Of the recorded step with the median time, for pictures and the trace; seconds since it began.
struct KernelSpan {
  std::string name, layer, phase;
  double begin = 0, end = 0;
  int64_t live_bytes = 0;
  std::vector<double> busy;  // by thread: seconds inside the kernel; empty: a stream
};

struct ValueRange {
  std::string tensor, layer, phase;
  double low = 0, high = 0;
  int64_t bad = 0;  // values that are not finite
};

struct GradientNorm {
  std::string parameter;
  double norm = 0;
};

// A layer in a step whose values were examined.
struct LayerRange {
  std::string layer;
  double low = 0, high = 0;   // of its forward values
  double gradient_norm = -1;  // of its parameters; -1: it has none
  int64_t bad = 0;            // of all its values
};
struct ExaminedStep {
  int64_t step = 0;  // counted from the first that the profiler saw
  std::vector<LayerRange> layers;
};

struct StepProfile {
  std::string title;
  int threads = 0;  // 0: a GPU
  int recorded = 0, unprofiled = 0;
  double step_seconds = 0, low_seconds = 0, high_seconds = 0;  // of unprofiled steps: median, 10th and 90th percentile
  double recorded_seconds = 0;                                 // median of the recorded ones
  // Measured in the half of the recorded steps around their median, per step, never rescaled.
  double kernel_seconds = 0;
  double gap_seconds = 0;  // between the kernels of a program
  double data_seconds = 0;
  double flops = 0, bytes = 0, launches = 0, programs = 0;
  double flops_rate = 0, bytes_rate = 0, exponentials_rate = 0;  // ceilings; 0: unknown
  std::vector<double> busy;                                      // by thread: share of a step's time inside kernels
  std::vector<KernelRow> kernels;                                // slowest first
  std::vector<PhaseRow> phases;
  int64_t planned_bytes = 0, arena_bytes = 0, live_bytes = 0;  // live: the most that values of one program take
  std::vector<LiveValue> peak;
  int64_t process_bytes = 0;                                                  // resident
  double heap_growth = 0, allocations = 0;                                    // bytes and requests to the pool, per unprofiled step
  int64_t pool_requests = 0, pool_reuses = 0, pool_bytes = 0, pool_peak = 0;  // the buffer pool of eager tensors, in the whole process
  std::vector<KernelSpan> spans;
  // Of the last step whose values were examined, in the order in which they were written.
  std::vector<ValueRange> ranges;
  std::vector<GradientNorm> gradients;
  std::vector<ExaminedStep> examined;  // over time

  double unattributed() const { return step_seconds - kernel_seconds - gap_seconds - data_seconds; }
  double tflops() const { return step_seconds > 0 ? 1e-12 * flops / step_seconds : 0; }
  double bandwidth() const { return step_seconds > 0 ? bytes / step_seconds : 0; }  // bytes per second
  double utilization() const;                                                       // mean share of the cores' time inside kernels; of a GPU: of its stream
  // Why shares exceed 100 %: recorded steps that took longer than unprofiled ones, or ceilings that are too low. Empty: none do.
  std::string remark() const;
  double roof() const;                 // sum of the kernels' lower bounds ÷ the step's time
  std::vector<KindRow> kinds() const;  // slowest first
};

std::string profile_text(const StepProfile& profile, int rows);
std::string profile_json(const StepProfile& profile);
std::string profile_trace(const StepProfile& profile);
std::string roofline_picture(const StepProfile& profile);
std::string memory_picture(const StepProfile& profile);
std::string timeline_picture(const StepProfile& profile);

// The differences to an earlier profile, as written by profile_json(). ErrorCode::value if it is none.
std::string compare_profiles(const StepProfile& profile, const std::string& earlier, int rows);

// Judges a profile: "min_tflops=0.1", "min_bandwidth=10e9", "min_utilization=0.5", "max_memory=2GiB". ErrorCode::usage for anything else.
struct Verdict {
  std::string text;  // measured against asked, in columns
  bool kept = true;
};
Verdict check_profile(const StepProfile& profile, const std::vector<std::string>& wanted);

}  // namespace ridge
