// Profiles the steps of a run: kernels, waits and memory, while the training loop runs as always.
#pragma once
#include <filesystem>

#include "ridge/profiler.h"
#include "train/task.h"

namespace ridge {

class RunProfiler {
 public:
  // alternating: after a warm-up, every other step is recorded, and the values of the first and the last one are examined; on a device that runs behind the
  // host, one in nine is recorded, as those in between are timed together. sampled: one step in 50, and the values of steps 2000, 4000, 8000 and so on, which
  // takes several times as long.
  // Steps that share a batch of experience (BatchFeed::group) count as one.
  enum class Steps { alternating, sampled };
  RunProfiler(TaskRun& run, int64_t group, Steps steps);  // adds itself to the run's trainer; must outlive the training
  ~RunProfiler();
  RunProfiler(const RunProfiler&) = delete;

  static constexpr int64_t kWarmUp = 4, kInterval = 50, kStretch = 8;
  int64_t stretch() const { return stretch_; }  // unrecorded steps for each recorded one
  Profiler& profiler() { return profiler_; }

 private:
  void enter(Phase phase);
  void begin(int64_t number);

  TaskRun& run_;
  int64_t group_, entered_ = 0, stretch_ = 1, next_examined_ = 2000;
  int64_t interval_;  // sampled: of recorded steps; short runs record some too
  Steps steps_;
  std::function<void(Phase, int64_t step)> earlier_;  // what was called before each phase without the profiler
  Profiler profiler_;
};

// Ends the profile and, if it has a recorded step, writes profile.json, profile_trace.json and the pictures profile_*.svg into the folder.
void write_profile(Profiler& profiler, const std::filesystem::path& folder);
// Each picture that can be drawn: its name and text. There is no roofline without measured ceilings.
std::vector<std::pair<std::string, std::string>> profile_pictures(const Profiler& profiler);

// Trains a few steps without leaving anything behind and returns their profile. steps: recorded steps; 0: for about ten seconds. Stopped by a signal, the
// profile is of the steps so far; the return value says so.
Outcome::End profile_run(TaskRun& run, const config::Resolved& settings, int64_t steps, const std::function<void(Profiler&)>& use);

}  // namespace ridge
