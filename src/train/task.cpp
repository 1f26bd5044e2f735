#include "train/task.h"

#include "base/error.h"
#include "base/text.h"
#include "machine/limits.h"
#include "measure/default_team.h"
#include "train/run_profile.h"

namespace ridge {

void TaskRun::prepare() {
  step->compile_ahead();
  step->touch();
}

void start_run(const RunOptions& options, const std::function<TaskRun&(const RunOptions&)>& plan) {
  RunOptions o = options;
  std::vector<std::string> replanned;
  for (int attempt = 1;; ++attempt) {
    TaskRun& run = plan(o);
    const DeviceMemory device = run.backend->memory();
    const int64_t needed = run.planned_bytes - run.passed_bytes - (run.on_device() ? device.held : resident_bytes());
    const int64_t left = options.free_memory ? options.free_memory() : run.on_device() ? device.free : read_limits().memory_available;
    std::string problem;
    if (left > 0 && needed > left) problem = fmt::format("{} are needed but {} are left", size_text(needed), size_text(left));
    if (problem.empty()) try {
        run.prepare();
        if (run.on_device()) run.count_driver();
        run.notices.insert(run.notices.begin(), replanned.begin(), replanned.end());
        return;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::memory) throw;
        problem = error.what();
      }
    if (attempt == 3)
      fail(ErrorCode::memory, "[{}] could not allocate the planned memory: {}; close other programs or set a smaller memory=SIZE", run.task, problem);
    replanned.push_back(fmt::format("other programs have taken memory since the plan was made ({}): planned again for what is free", problem));
    o.free_memory = [free = std::max<int64_t>(1, left), &options] { return options.free_memory ? options.free_memory() : free; };
  }
}

std::unique_ptr<TaskRun> start_run(const Task& task, const config::Resolved& settings, const RunOptions& options) {
  std::unique_ptr<TaskRun> run;
  start_run(options, [&](const RunOptions& o) -> TaskRun& {
    run.reset();  // free its memory before planning another
    return *(run = task.plan(settings, o));
  });
  return run;
}

Outcome train_run(TaskRun& run, const config::Resolved& settings, const std::vector<TrainerView*>& views) {
  if (!run.trainer.resume) run.fill_parameters();
  const TrainerTask task = run.trainer_task(settings);
  std::optional<RunProfiler> profiler;
  if (settings.get<bool>("profile") && !run.trainer.folder.empty()) profiler.emplace(run, task.feed->group(), RunProfiler::Steps::sampled);
  const Outcome outcome = train(task, run.trainer, views);
  if (profiler) write_profile(profiler->profiler(), run.trainer.folder);
  if (outcome.own_steps >= 50) keep_step_time(run.expected_key, run.expected_step_seconds, 1e-3 * outcome.ms);
  return outcome;
}

RunSummary summary_of(const TaskRun& run, const Outcome& outcome, const std::string& cores) {
  RunSummary s;
  s.outcome = outcome, s.unit = run.unit, s.cores = cores;
  s.device = run.decided("device"), s.precision = run.decided("precision"), s.threads = run.threads > 0 ? run.threads : default_threads().team.threads;
  s.planned_bytes = run.planned_bytes, s.folder = run.trainer.folder;
  run.add_to_summary(s);
  return s;
}

}  // namespace ridge
