#include "train/run_profile.h"

#include <algorithm>
#include <chrono>

#include "backend/backend.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/builder.h"
#include "io/atomic_file.h"
#include "measure/default_team.h"
#include "profile/step_profile.h"
#include "runtime/arena.h"
#include "runtime/executable.h"
#include "threads/thread_team.h"

namespace ridge {

namespace {

// Of f32 values in registers and the nearest cache.
double exponentials_per_second(Backend& backend) {
  constexpr int kChain = 32, kRounds = 9;
  const int64_t count = backend.host_memory() ? 1 << 16 : 1 << 22, bytes = 4 * count;
  Graph graph;
  Builder b(graph);
  const NodeId in = graph.input({DType::f32, {count}}, "x");
  NodeId x = in;
  for (int i = 0; i < kChain; ++i) x = b.unary(Op::exp, b.neg(x));  // stays between 0 and 1
  Executable program(graph, {in}, {x}, backend);
  Arena memory(backend);
  memory.require(2 * bytes);
  const void* const from[] = {memory.data()};
  void* const to[] = {memory.data() + bytes};
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    backend.wait();
    const auto start = std::chrono::steady_clock::now();
    program.run(from, to);
    backend.wait();
    best = std::max(best, double(kChain) * double(count) / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

RunProfiler::RunProfiler(TaskRun& run, int64_t group, Steps steps)
    : run_(run), group_(group), interval_(std::clamp<int64_t>(run.trainer.schedule.steps / group / 2, 3, kInterval)), steps_(steps) {
  const bool on_cpu = run.backend->host_memory();
  profiler_.set_title(fmt::format("{} on {}, {}{}, batch {}{}", run.task, run.decided("device"), name(run.step->plan().choices.precision),
                                  on_cpu ? ", " + counted(run.threads > 0 ? run.threads : default_team().size(), "thread") : "", run.step->plan().batch,
                                  group > 1 ? fmt::format(", {} updates together", group) : ""),
                      run.planned_bytes);
  profiler_.set_roof(run.flops_rate, run.bytes_rate);
  if (run.backend->behind()) profiler_.set_wait([&run] { run.backend->wait(); }), stretch_ = kStretch;
  earlier_ = run.trainer.before;
  run.trainer.before = [this](Phase phase, int64_t step) {
    if (earlier_) earlier_(phase, step);
    enter(phase);
  };
}

RunProfiler::~RunProfiler() { run_.trainer.before = std::move(earlier_); }

void RunProfiler::enter(Phase phase) {
  switch (phase) {
    case Phase::data:
      if (entered_ % group_ == 0) begin(entered_ / group_);
      ++entered_;
      return profiler_.waiting_for_data(true);
    case Phase::step: return profiler_.waiting_for_data(false);
    default: return profiler_.end_step();
  }
}

void RunProfiler::begin(int64_t number) {
  using Record = Profiler::Record;
  if (steps_ == Steps::sampled) {  // two steps as the yardstick, then one recorded
    const int64_t left = interval_ - 1 - number % interval_;
    if (number > 0 && number == next_examined_) return next_examined_ *= 2, profiler_.begin_step(Record::values);
    return left > 2 ? profiler_.end_step() : left == 0 ? profiler_.begin_step(Record::times) : profiler_.next_step();
  }
  if (number < kWarmUp) return profiler_.end_step();
  const int64_t steps = run_.trainer.schedule.steps / group_ - kWarmUp, own = number - kWarmUp;  // with an examined step at the beginning and at the end
  if (own == 0 || own + 1 >= steps) return profiler_.begin_step(Record::values);
  own % (stretch_ + 1) == 0 ? profiler_.begin_step(Record::times) : profiler_.next_step();
}

std::vector<std::pair<std::string, std::string>> profile_pictures(const Profiler& profiler) {
  std::vector<std::pair<std::string, std::string>> all;
  const StepProfile& p = profiler.profile();
  if (p.flops_rate > 0 && p.bytes_rate > 0) all.push_back({"roofline", profiler.roofline_picture()});
  if (!p.spans.empty()) all.push_back({"memory", profiler.memory_picture()}), all.push_back({"timeline", profiler.timeline_picture()});
  return all;
}

void write_profile(Profiler& profiler, const std::filesystem::path& folder) {
  profiler.end();
  if (profiler.profile().recorded == 0) return;
  write_atomically((folder / "profile.json").string(), profiler.json());
  write_atomically((folder / "profile_trace.json").string(), profiler.trace());
  for (const auto& [name, text] : profile_pictures(profiler)) write_atomically((folder / fmt::format("profile_{}.svg", name)).string(), text);
}

Outcome::End profile_run(TaskRun& run, const config::Resolved& settings, int64_t steps, const std::function<void(Profiler&)>& use) {
  constexpr double kSeconds = 10;
  run.trainer.folder.clear();
  run.trainer.resume = run.trainer.validate = run.trainer.samples = run.trainer.keep_checkpoints = false;
  run.fill_parameters();
  const TrainerTask task = run.trainer_task(settings);
  const int64_t group = task.feed->group();
  RunProfiler recorder(run, group, RunProfiler::Steps::alternating);
  const std::vector<KernelRun> kernels = run.step->kernels();
  if (run.flops_rate > 0 && std::ranges::any_of(kernels, [](const KernelRun& k) { return k.kernel.name.starts_with("attention"); }))
    recorder.profiler().set_roof(run.flops_rate, run.bytes_rate, exponentials_per_second(*run.backend));
  const double expected = double(group) * std::max(run.expected_step_seconds, 1e-4);
  if (steps <= 0) steps = int64_t(std::clamp(kSeconds / 2 / expected, 5.0, 100.0));
  run.trainer.schedule.steps = group * (RunProfiler::kWarmUp + (recorder.stretch() + 1) * steps + 2);
  const Outcome::End end = train(task, run.trainer, {}).end;
  recorder.profiler().end();
  use(recorder.profiler());
  return end;
}

}  // namespace ridge
