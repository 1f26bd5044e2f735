// What a training step will hold and do, known before any of it is allocated.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/saved_set.h"
#include "machine/precision.h"

namespace ridge {

// All that was chosen and can change bits. A checkpoint stores them as words, and a resumed run asks for the same.
struct StepChoices {
  int64_t batch = 0, micro = 0;
  int64_t evaluation = 0;  // samples that an evaluation takes at a time
  Recompute recompute = Recompute::free;
  Precision precision = Precision::fp32;
  std::string isa;  // the vector tier of the kernels

  std::map<std::string, std::string> words() const;
  static StepChoices from_words(const std::map<std::string, std::string>& words);  // ErrorCode::io names what is missing or not known
  bool operator==(const StepChoices&) const = default;
};

// One of the programs that a step is made of.
struct ProgramPlan {
  std::string name;           // body, remainder, update, evaluation, evaluation of one
  int64_t samples = 0;        // that one run of it takes; 0: it has nothing to do with samples
  int64_t times = 0;          // that it runs in a step
  int64_t arena_bytes = 0;    // activations; all programs share the largest arena
  int64_t scratch_bytes = 0;  // of all threads; shared too
  int kernels = 0;            // of one run
  double flops = 0;           // of one run, algorithmic: recomputed work is not counted
};

struct LargeTensor {
  std::string name;   // a parameter, or the kernel that makes it and its type
  int64_t bytes = 0;  // of one
  int count = 1;      // how many alike are held at the same time
};

struct StepPlan {
  int64_t batch = 0, micro = 0, repeats = 0, remainder = 0;  // samples; the remainder is a smaller last micro-batch
  Recompute recompute = Recompute::free;
  int64_t parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0, activation_bytes = 0, scratch_bytes = 0, planned_bytes = 0;
  int64_t host_bytes = 0;     // of moments that lie in the host's memory
  int64_t staging_bytes = 0;  // through which those pass; part of the optimizer's
  int64_t batch_bytes = 0;    // of a micro-batch on a device that has memory of its own
  int64_t losses_bytes = 0;   // of an evaluation: a sum for each sample of the batch, as many as are evaluated at a time
  int kernels = 0;            // of one whole step
  double flops = 0;           // of one whole step, algorithmic
  double compile_ms = 0;
  StepChoices choices;
  std::vector<ProgramPlan> programs;
  std::vector<LargeTensor> largest;          // when most is held, largest first
  std::vector<std::string> decisions;        // what was chosen, why, and what else was tried
  std::string redrawn;                       // why random numbers are others than in version 1 of draws (run_state.h); empty: they are the same
  std::string other_split, other_recompute;  // what would have been next; empty: nothing else was possible or asked for
};

}  // namespace ridge
