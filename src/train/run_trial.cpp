#include "train/run_trial.h"

#include <algorithm>
#include <chrono>
#include <map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "train/loss_plot.h"
#include "train/train_text.h"
#include "tune/load_watch.h"
#include "tune/recently_used.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_from(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

RunOptions trial_options(const RunOptions& given) {
  RunOptions o = given;
  o.folder.clear(), o.resume = false, o.tune = false, o.tune_seconds.reset(), o.tuned = {};
  return o;
}

// The present value first, then the others.
std::vector<std::string> candidates_of(const Task::Size& size, const config::Resolved& settings) {
  std::vector<std::string> values = {settings.get<std::string>(size.key)};
  for (int64_t v : size.values)
    if (std::to_string(v) != values[0]) values.push_back(std::to_string(v));
  return values;
}

// The cost of a point is the time for a fixed number of parameters x units.
class SizeTarget : public TuneTarget {
 public:
  SizeTarget(const Task& task, const config::Resolved& settings, const RunOptions& options, const TuneSpace& space, const SizeSearchOptions& o)
      : task_(task), settings_(settings), options_(trial_options(options)), space_(space), o_(o), load_(o.others) {
    if (!o.guess) load_.busy();  // begins to watch
  }

  std::string check(const TunePoint& point) override {
    try {
      Size& size = sizes_[point];
      if (o_.guess) {
        const std::unique_ptr<TaskRun> run = task_.plan(settings_at(point), options_);
        size = {{o_.guess(*run)}, {}, double(run->step->plan().batch) * run->trainer.tokens_per_sample, run->parameter_count()};
      } else {
        RunTrial& trial = ready(point);
        size.units = trial.units(), size.parameters = trial.run().parameter_count();
        for (int turn = 0; turn < kTurns && size.quiet.empty(); ++turn) time(size, trial, kFirst);
      }
      if (size.seconds() <= o_.latency) return {};
      held_.erase(point);
      return fmt::format("a step takes {}", duration_text(size.seconds()));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::memory && error.code() != ErrorCode::usage && error.code() != ErrorCode::io) throw;
      return error.what();
    }
  }
  TuneSample measure(const TunePoint& point) override {
    Size& size = sizes_.at(point);
    if (o_.guess) return {kWork / size.rate(), false};
    const auto [seconds, busy] = time(size, ready(point), kAgain);
    return {kWork * seconds / (double(size.parameters) * size.units), busy};
  }
  // A guess takes as long as it takes: what it finds does not depend on the time.
  double now() override { return o_.guess ? 0 : std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

  struct Size {
    std::vector<double> quiet, busy;  // seconds of a step, by whether other programs used the machine
    double units = 0;
    int64_t parameters = 0;

    double seconds() const { return summary_of(quiet.empty() ? busy : quiet).median; }
    double rate() const { return double(parameters) * units / seconds(); }
  };
  const Size* find(const TunePoint& point) const {
    const auto at = sizes_.find(point);
    return at == sizes_.end() || at->second.parameters == 0 ? nullptr : &at->second;
  }
  static constexpr double kWork = 1e9;

 private:
  static constexpr double kFirst = 0.16, kAgain = 0.05;  // seconds; the first is long enough to see whether other programs use the machine
  static constexpr int kTurns = 2;                       // of the first measurement, until the machine is quiet
  static constexpr double kHeldShare = 0.25;             // of the memory that a step may use: what is held counts in the plan of the next one

  config::Resolved settings_at(const TunePoint& point) const {
    config::Resolved s = settings_;
    for (size_t d = 0; d < point.size(); ++d) s.replace(space_.dimensions[d].name, space_.dimensions[d].values[point[d]], "ridge tune");
    return s;
  }
  TuneSample time(Size& size, RunTrial& trial, double seconds) {
    const double step = trial.step_seconds(seconds);
    const bool busy = load_.busy();
    (busy ? size.busy : size.quiet).push_back(step);
    return {step, busy};
  }
  // Runs that are not held any more are made again when they are needed.
  RunTrial& ready(const TunePoint& point) {
    if (const std::unique_ptr<RunTrial>* held = held_.find(point)) return **held;
    held_.shrink_to(limit_);
    auto trial = std::make_unique<RunTrial>(task_, settings_at(point), options_);
    const TaskRun& run = trial->run();
    const int64_t bytes = run.step->plan().planned_bytes;
    limit_ = int64_t(kHeldShare * double(run.budget.bytes - (run.planned_bytes - run.passed_bytes - bytes)));
    return *held_.add(point, std::move(trial), bytes);
  }

  const Task& task_;
  const config::Resolved& settings_;
  const RunOptions options_;
  const TuneSpace& space_;
  const SizeSearchOptions& o_;
  LoadWatch load_;
  std::map<TunePoint, Size> sizes_;
  RecentlyUsed<std::unique_ptr<RunTrial>> held_;
  int64_t limit_ = 0;  // bytes of those that are held while another one is made
};

}  // namespace

RunTrial::RunTrial(const Task& task, const config::Resolved& settings, const RunOptions& options) : run_(start_run(task, settings, trial_options(options))) {
  run_->trainer.folder.clear();
  run_->trainer.resume = run_->trainer.validate = run_->trainer.samples = run_->trainer.keep_checkpoints = false;
  run_->fill_parameters();
  task_ = run_->trainer_task(settings);
  task_.feed->seek(0, {});
  lr_ = run_->trainer.schedule.lr;
}

double RunTrial::units() const { return double(run_->step->plan().batch) * run_->trainer.tokens_per_sample; }

// As the training loop does: a device that runs behind gets the next step before the last one has ended.
void RunTrial::group() {
  TrainStep& step = *run_->step;
  BatchFeed& feed = *task_.feed;
  for (const int64_t end = number_ + feed.group(); number_ < end; ++number_) {
    while (step.pending() > 0 && feed.needs_results(number_)) feed.collected(step.collect());
    const BatchFeed::Batch batch = feed.next(number_);
    if (batch.left_out) {
      while (step.pending() > 0) feed.collected(step.collect());
      step.leave_out();
      continue;
    }
    bool first = true;
    auto part_of = [&](int64_t sample, int64_t) {
      if (std::exchange(first, false)) return feed.in_parts() ? batch.tensors : step.from_sample(batch.tensors, sample);
      return feed.in_parts() ? feed.next_part() : step.from_sample(batch.tensors, sample);
    };
    batch.on_device ? step.enqueue_in_place(batch.tensors) : step.enqueue(TrainStep::Parts(std::cref(part_of)), feed.rate(lr_));
    if (!step.behind() || step.pending() > 1) feed.collected(step.collect());
  }
}

double RunTrial::step_seconds(double seconds) {
  constexpr int kWarmUp = 2, kLeastGroups = 3;
  TrainStep& step = *run_->step;
  for (int i = 0; number_ < kWarmUp * task_.feed->group() && i < kWarmUp; ++i) group();
  while (step.pending() > 0) task_.feed->collected(step.collect());
  std::vector<double> times;
  for (const auto start = Clock::now(); times.size() < kLeastGroups || seconds_from(start) < seconds;) {
    const auto begin = Clock::now();
    group();
    times.push_back(seconds_from(begin) / double(task_.feed->group()));
  }
  while (step.pending() > 0) task_.feed->collected(step.collect());
  return summary_of(times).median;
}

SizeCurve measure_sizes(const Task& task, const config::Resolved& settings, const RunOptions& options, const std::string& key, int64_t first, double seconds,
                        std::function<double()> others) {
  constexpr double kLongestStep = 2;
  constexpr double kLeast = 0.16;  // seconds; long enough to see whether other programs use the machine
  constexpr int kTurns = 4;        // until the machine is quiet
  LoadWatch load(std::move(others));
  load.busy();  // begins to watch
  return choose_size(first, kLongestStep, [&](int64_t size) -> SizeMeasurement {
    config::Resolved s = settings;
    s.replace(key, std::to_string(size), "ridge tune");
    try {
      RunTrial trial(task, s, options);
      const StepPlan& plan = trial.run().step->plan();
      const std::string tuned = trial.run().decided("tuning");  // what splits or recomputes for speed
      if (plan.micro < plan.batch && tuned.find("parts=") == tuned.npos && s.get<std::string>("accumulation") == "auto")
        return {.missing = fmt::format("{} do not fit into memory whole, and parts of a batch train no faster", grouped(size))};
      if (plan.recompute > Recompute::elementwise && tuned.find("recompute=") == tuned.npos && s.get<std::string>("recompute") == "auto")
        return {.missing = fmt::format("{} fit into memory only with recompute={}", grouped(size), name(plan.recompute))};
      double time = 0;
      bool busy = true;
      for (int turn = 0; turn < kTurns && busy; ++turn) time = trial.step_seconds(std::max(seconds, kLeast)), busy = load.busy();
      return {trial.units() / time, time, trial.run().planned_bytes - trial.run().passed_bytes, {}, busy};
    } catch (const Error& error) {
      if (error.code() == ErrorCode::memory) return {.missing = fmt::format("{} do not fit into memory", grouped(size))};
      if (size > first && (error.code() == ErrorCode::usage || error.code() == ErrorCode::io || error.code() == ErrorCode::value))
        return {.missing = fmt::format("{} are refused: {}", grouped(size), error.what())};
      throw;
    }
  });
}

std::string curve_text(const SizeCurve& curve, const std::string& key, const std::string& unit) {
  std::string text = fmt::format("  {:>10} {:>16} {:>12} {:>12}\n", key, unit + "/s", "a step", "memory");
  const double best = std::ranges::max_element(curve.points, {}, &SizePoint::rate)->rate();
  for (size_t i = 0; i < curve.points.size(); ++i) {
    const SizePoint& p = curve.points[i];
    text += fmt::format("  {:>10} {:>16} {:>12} {:>12}  {:.2f}{}{}\n", grouped(p.size), count_text(p.rate()), duration_text(p.step_seconds),
                        size_text(p.planned_bytes), p.rate() / best, p.busy ? "  on a busy machine" : "",
                        i == curve.chosen ? "  <- the smallest within 2 % of the fastest" : "");
  }
  return text + fmt::format("  ended there: {}\n", curve.ended);
}

std::string curve_svg(const SizeCurve& curve, const std::string& key, const std::string& unit, const std::string& title) {
  const double thousand = curve.points[curve.chosen].rate() >= 1e4 ? 1e3 : 1;
  const std::string rate = fmt::format("{}{}/s", thousand > 1 ? "1,000 " : "", unit);
  LossPoints points;
  for (const SizePoint& p : curve.points) points.emplace_back(p.size, p.rate() / thousand);
  LossPanel panel;
  panel.title = fmt::format("{}={}: the smallest within 2 % of the fastest", key, curve.points[curve.chosen].size);
  panel.series = {{rate, {points}}};
  panel.score = {.name = rate, .unit = {}, .higher_is_better = true}, panel.x_title = key;
  return loss_svg(title, {&panel, 1});
}

bool is_batch_measured(const config::Resolved& settings) {
  if (settings.get<bool>("resume")) return false;  // a run keeps its batch
  // A preset's value follows an auto that was asked for, and precedes anything else (config/resolve.cpp).
  const std::vector<config::Setting>& history = settings.history("batch");
  const size_t last = history.size() - 1 - (history.size() > 1 && history.back().source.starts_with("preset"));
  return last > 0 && history[last].value.is("auto");
}

SizeSearch search_sizes(const Task& task, const config::Resolved& given, const RunOptions& given_options, const SizeSearchOptions& o) {
  config::Resolved settings = given;
  RunOptions options = given_options;
  if (o.guess) {  // what this machine measures, or has stored, says nothing about another one
    options.measure = options.probe = false;
    settings.replace("tune", "off", "ridge tune"), settings.replace("device", "cpu", "ridge tune");
    if (settings.get<std::string>("precision") == "auto") settings.replace("precision", "fp32", "ridge tune");
  }
  SizeSearch s;
  for (const Task::Size& size : task.sizes)
    if (!task.uses_size || task.uses_size(settings, size.key)) s.space.dimensions.push_back({size.key, candidates_of(size, settings)});
  {
    SizeTarget present(task, settings, options, s.space, o);
    s.present_fits = present.check(s.space.start()).empty();
  }
  // The search needs a start that is allowed: the smallest sizes, if the present ones are too slow.
  if (!s.present_fits)
    for (TuneDimension& d : s.space.dimensions) {
      std::vector<std::string> sorted = d.values;
      std::ranges::sort(sorted, {}, [](const std::string& v) { return std::atoll(v.c_str()); });
      d.values = sorted;
    }
  SizeTarget target(task, settings, options, s.space, o);
  s.result = search(s.space, target, {.seconds = o.seconds});
  if (const SizeTarget::Size* start = target.find(s.space.start()); s.present_fits && start) s.present_rate = start->rate();  // in turns with the others
  if (const SizeTarget::Size* best = target.find(s.result.best); best && s.result.points > 0)
    s.best_rate = best->rate(), s.step_seconds = best->seconds(), s.parameters = best->parameters;
  return s;
}

}  // namespace ridge
