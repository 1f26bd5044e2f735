// What a training step will allocate and run, known before anything is allocated.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/saved_set.h"
#include "machine/precision.h"

namespace ridge {

// All choices that can change bits. A checkpoint stores them as words, and a resumed run requests the same ones.
struct StepChoices {
  int64_t batch = 0, micro = 0;
  int64_t evaluation = 0;  // samples evaluated at a time
  Recompute recompute = Recompute::free;
  Precision precision = Precision::fp32;
  std::string isa;     // vector instruction tier of the kernels
  std::string passes;  // compiler passes that were switched off; stored only if there are any

  std::map<std::string, std::string> words() const;
  static StepChoices from_words(const std::map<std::string, std::string>& words);  // ErrorCode::io names what is missing or unknown
  bool operator==(const StepChoices&) const = default;
};

// One of the programs of a step.
struct ProgramPlan {
  std::string name;           // body, remainder, update, evaluation, evaluation of one
  int64_t samples = 0;        // per run; 0: the program does not process samples
  int64_t times = 0;          // runs per step
  int64_t arena_bytes = 0;    // activations; all programs share the largest arena
  int64_t scratch_bytes = 0;  // of all threads; also shared
  int kernels = 0;            // of one run
  double flops = 0;           // per run, algorithmic: recomputed work is not counted
};

struct LargeTensor {
  std::string name;   // a parameter, or the kernel that produces it and its type
  int64_t bytes = 0;  // of one
  int count = 1;      // how many identical tensors are held at the same time
};

struct StepPlan {
  int64_t batch = 0, micro = 0, repeats = 0, remainder = 0;  // samples; the remainder is a smaller last micro-batch
  Recompute recompute = Recompute::free;
  int64_t parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0, activation_bytes = 0, scratch_bytes = 0, planned_bytes = 0;
  int64_t host_bytes = 0;     // of moments stored in host memory
  int64_t staging_bytes = 0;  // device buffers for those moments; part of optimizer_bytes
  int64_t batch_bytes = 0;    // of a micro-batch, on a device with its own memory
  int64_t losses_bytes = 0;   // of an evaluation: one sum per sample evaluated at a time
  int kernels = 0;            // of one whole step
  double flops = 0;           // of one whole step, algorithmic
  double compile_ms = 0;
  StepChoices choices;
  std::vector<ProgramPlan> programs;
  std::vector<LargeTensor> largest;          // at the memory peak, largest first
  std::vector<std::string> decisions;        // what was chosen and why, and which alternatives were tried
  std::string updates;                       // which parameters Muon updates; empty: another optimizer
  std::string redrawn;                       // why random numbers differ from version 1 of draws (run_state.h); empty: they do not
  std::string other_split, other_recompute;  // the runner-up; empty: no alternative was possible or requested
};

}  // namespace ridge
