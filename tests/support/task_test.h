// Trains runs of a task as the command line does, in folders of their own, without output and measurements.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "support/temp_folder.h"
#include "tasks/registry.h"
#include "train/run_folder.h"

namespace ridge::test {

using Words = std::vector<std::string>;

inline Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class TaskTest : public testing::Test {
 protected:
  explicit TaskTest(const char* task) : task_(task) {}
  void SetUp() override { setenv("RIDGE_CACHE", (folder_ / "cache").c_str(), 1), register_tasks(); }
  void TearDown() override { unsetenv("RIDGE_CACHE"); }

  config::Resolved settings(Words words) const {
    config::Sources sources;
    sources.task = config::task_bit(task_), sources.working_folder.reset(), sources.words = std::move(words);
    return config::resolve(sources);
  }

  // Trains without a folder unless one is named; returns the run, and its summary.
  std::unique_ptr<TaskRun> train(const Words& words, RunSummary& summary, const std::string& out = {}, bool resume = false) const {
    const config::Resolved s = settings(words);
    RunOptions o;
    o.data = s.get<Words>("data").front(), o.seed = uint64_t(s.get<int64_t>("seed")), o.measure = false, o.resume = resume;
    if (!out.empty()) o.folder = folder_ / out;
    std::unique_ptr<TaskRun> run = start_run(find_task(task_), s, o);
    summary = train_in_folder(*run, s, {.show = false, .config = config_text(s, o.folder)}).summary;
    return run;
  }

  static std::vector<float> weights(const TaskRun& run) {
    std::vector<float> all;
    for (size_t i = 0; i < run.parameters.size(); ++i) {
      std::vector<float> values(size_t(run.parameters[i].shape.numel()));
      run.step->read(TrainStep::Held::parameter, i, values);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  TempFolder folder_;

 private:
  const char* task_;
};

}  // namespace ridge::test
