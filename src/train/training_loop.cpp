#include "train/training_loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <deque>
#include <thread>
#include <utility>

#include "backend/backend.h"
#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "machine/memory_budget.h"
#include "ridge/tensor.h"
#include "train/checkpoint_writer.h"
#include "train/guards.h"
#include "train/metric_rows.h"
#include "train/outputs.h"
#include "train/pace.h"
#include "train/run_folder.h"
#include "train/run_state.h"
#include "train/stop_signals.h"
#include "train/train_text.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr double kSideShare = 0.05;  // share of the time that validation may take
constexpr double kWaitShare = 0.5;   // share of a step's time to wait for the next batch before collecting the step instead

// Steps are reported in bursts: after a step, the code and tables for number formatting are not in cache, which makes it ten times slower.
constexpr double kReportSeconds = 0.5;
constexpr size_t kMaxPendingReports = 256;
constexpr double kFlushSeconds = 1, kMemorySeconds = 5;  // between writes of rows, and between checks of the process's memory
constexpr int kMaxFailedSaves = 3;                       // consecutive failures that end a run

std::string listed(const std::vector<int64_t>& numbers) {
  std::string text;
  for (int64_t n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

std::string figures_of(const StepMetrics& m) { return fmt::format("loss {}, gradient norm {}", without_nan_sign(m.loss), without_nan_sign(m.gradient_norm)); }

struct Abandoned {};  // a step, because of a signal

// How the device shares out the work of steps, chosen while they run; as at first when the run ends.
class Sharing {
 public:
  Sharing(Backend& device, const LiveChoice::Limits& limits) : device_(device), ways_(device.sharings()), choice_(ways_.size(), limits) {}
  ~Sharing() {
    if (way_ > 0) device_.use_sharing(0);
  }
  Sharing(const Sharing&) = delete;

  size_t way() const { return way_; }
  void set() {
    if (choice_.use() != way_) device_.use_sharing(way_ = choice_.use());
  }
  // What changed, in words; empty: nothing.
  std::string add(double seconds) {
    const std::optional<LiveChoice::Switch> change = choice_.add(seconds);
    if (!change) return {};
    return fmt::format("{}: {} a step and {} with {}, measured in turns on the run's own steps; no result changes", ways_[change->to],
                       duration_text(change->to_seconds), duration_text(change->from_seconds), ways_[change->from]);
  }

 private:
  Backend& device_;
  const std::vector<std::string> ways_;
  LiveChoice choice_;
  size_t way_ = 0;
};

class Run {
 public:
  Run(const TrainerTask& task, const TrainerOptions& options, const std::vector<TrainerView*>& views)
      : task_(task),
        o_(options),
        views_(views),
        step_(*task.step),
        feed_(*task.feed),
        group_(feed_.group()),
        lock_(options.locked ? std::nullopt : lock_run(options.folder)),
        signals_(options.handle_signals),
        rows_([this](const std::string& line) { views_.on_notice(line); }),
        checkpoints_(task, options, calls()) {
    scalar_names_ = step_.scalars_and(feed_.scalar_names());  // views show them after the run has ended
    if (scalar_names_.size() > kMaxScalars)
      fail(ErrorCode::usage, "[train] the loss and the feed report {} scalars together, at most {} are possible", scalar_names_.size(), kMaxScalars);
  }

  Outcome operator()() {
    start_ = Clock::now();
    step_.touch();  // first, because the choices include what the device measures
    choose_intervals();
    if (o_.resume)
      resume();
    else if (saves() && !checkpoints_.empty())
      fail(ErrorCode::usage, "[train] {} already contains a run; {}", o_.folder.string(),
           task_.restart_hint.empty() ? "continue it with --resume, or choose another folder with --out DIR" : task_.restart_hint);
    if (lock_ && !lock_->problem().empty()) notice(lock_->problem());
    if (o_.accepted) o_.accepted();
    rows_.open(o_.folder.empty() ? std::filesystem::path{} : o_.folder / "metrics.jsonl", o_.resume ? state_.step.attempted : -1);
    if (!o_.resume) save(false);  // so that the run can roll back before its first regular checkpoint
    seek();
    begun_at_ = state_.step.attempted;
    out_.resumed = o_.resume;
    pending_reports_.reserve(kMaxPendingReports), current_reports_.reserve(kMaxPendingReports);
    if (o_.share_live && !feed_.on_policy() && !step_.behind() && step_.device().sharings().size() > 1) sharing_.emplace(step_.device(), o_.live_limits);
    loop_start_ = Clock::now();
    group_start_ = loop_start_;
    wall_.start(loop_start_);
    try {
      run();
      finish();
    } catch (...) {
      if (failed_batch_ && !feed_.on_policy()) keep_steps();
      rows_.keep(pending_reports_);
      throw;
    }
    return std::move(out_);
  }

 private:
  void run() {
    if (state_.validation_due) {  // interrupted by a signal
      const bool best = validate();
      check_for_end(!state_.validation_due);
      save(best);
    } else if (o_.resume) {
      check_target();  // the run may have been killed after that validation
    }
    while (!ended_ && state_.step.attempted < o_.schedule.steps) one_step();
  }

  // Remembers the step whose data could not be made.
  template <class Make>
  auto from_feed(int64_t number, Make make) {
    try {
      return make();
    } catch (...) {
      failed_batch_ = number;
      throw;
    }
  }

  // Saves the steps before a batch that could not be made. The feed's error ends the run, whatever happens here.
  void keep_steps() {
    try {
      while (step_.pending() > 0)
        if (!collect(Clock::now())) return;
      save(false);
      checkpoints_.finish();
      notice(fmt::format("the data of step {} could not be made{}", *failed_batch_ + 1,
                         saves() && checkpoints_.saved_step() == state_.step.attempted ? "; the run is saved up to there and can be resumed" : ""));
    } catch (const std::exception& error) {
      notice(fmt::format("the steps since the last checkpoint are lost: {}", error.what()));
    }
  }

  // Intervals are decided before the first step and kept on resume, so that a run's results do not depend on timing.
  void choose_intervals() {
    const int64_t steps = o_.schedule.steps;
    auto interval_of = [&](const std::optional<int64_t>& requested, bool on, int64_t otherwise) {
      const int64_t wanted = std::clamp<int64_t>(requested.value_or(otherwise), 1, std::max<int64_t>(steps, 1));
      return on ? (wanted + group_ - 1) / group_ * group_ : 0;
    };
    state_.validation_interval = interval_of(o_.validation_interval, o_.validate && validates(), affordable_validation());
    find_score();
    const bool paced = o_.expected_step_seconds > 0;
    const double most = paced ? 600 / o_.expected_step_seconds : 1e9;  // a crash loses at most ten minutes
    constexpr double kSlowCore = 2e10;                                 // operations per second: an estimate for when nothing was measured
    const double guess = paced ? o_.expected_step_seconds : std::max(step_.plan().flops / kSlowCore, 1e-6);
    const double least = o_.checkpoint_rest / guess;  // so that a quick run does not spend its time saving
    int64_t pause = int64_t(std::clamp(std::max(std::min(double(steps) / 10, most), least), 1.0, double(std::max<int64_t>(steps, 1))));
    if (const int64_t v = state_.validation_interval; v > 0 && v < pause) pause = (pause + v - 1) / v * v;  // a regular save may then also save a best
    state_.checkpoint_interval = interval_of(o_.checkpoint_interval, saves(), pause);
    state_.sample_interval = interval_of(o_.sample_interval, o_.samples && bool(task_.sample), std::max<int64_t>(1, steps / 4));
    state_.score = task_.score, state_.identity = task_.identity, state_.settings = task_.settings;
    for (const auto& [what, value] : step_.choices()) state_.choices[what] = value;
    state_.choices[kDeviceChoice] = o_.device_choice;
    if (state_.validation_interval) state_.validation_samples = validation_samples(), state_.validation_data = task_.validation_data;
  }

  bool validates() const { return task_.validation || task_.validate; }
  std::span<const std::string> validation_scalars() const { return task_.validate ? task_.validation_scalars : step_.evaluation_scalars(); }

  // Finds the score's index among the validation's scalars.
  void find_score() {
    if (task_.score.is_loss() || !state_.validation_interval) return;
    const std::span<const std::string> names = validation_scalars();
    const auto found = std::find(names.begin(), names.end(), task_.score.name);
    if (found == names.end())
      fail(ErrorCode::usage, "[train] validation reports no scalar \"{}\", which was chosen as the score; {}", task_.score.name,
           nearest_hint(task_.score.name, std::vector<std::string_view>(names.begin(), names.end())));
    score_at_ = size_t(found - names.begin());
  }

  int64_t validation_samples() const {
    int64_t samples = 0;
    for (int64_t i = 0; task_.validation && i < task_.validation->batches(); ++i) samples += task_.validation->samples(i);
    return samples;
  }

  int64_t held_bytes() const { return o_.device_bytes ? o_.device_bytes() : ridge::resident_bytes(); }
  bool saves() const { return o_.keep_checkpoints && !o_.folder.empty(); }

  // A validation sample costs about a third of a training sample. Each new best is saved, so twenty validations per run are enough.
  int64_t affordable_validation() const {
    constexpr int64_t kMaxValidations = 20;
    if (!task_.validation) return (o_.schedule.steps + kMaxValidations - 1) / kMaxValidations;
    const double in_steps = std::max(double(validation_samples()) / (3 * double(step_.plan().batch)), 1e-9);
    const int64_t times = int64_t(std::clamp(kSideShare * double(o_.schedule.steps) / in_steps, 1.0, double(kMaxValidations)));
    return (o_.schedule.steps + times - 1) / times;
  }

  void notice(const std::string& line) { flush_reports(), views_.on_notice(line); }

  void resume() {
    const std::optional<StoredCheckpoint> stored = checkpoints_.newest();
    if (!stored)
      fail(ErrorCode::usage, "[resume] {} has no intact checkpoint to resume from; {}", o_.folder.string(),
           task_.restart_hint.empty() ? "start a new run without --resume, in another folder with --out DIR" : task_.restart_hint);
    RunState found = read_state(*stored);
    found.choices.emplace(kDeviceChoice, "cpu");  // default if the checkpoint does not say
    std::string before, now, why;
    auto require = [&](const std::string& what, const std::string& value, const std::map<std::string, std::string>& stored) {
      if (auto it = stored.find(what); it == stored.end() || it->second != value) {
        before += fmt::format("{}{} {}", before.empty() ? "" : ", ", what, it == stored.end() ? "unknown" : it->second);
        now += fmt::format("{}{} {}", now.empty() ? "" : ", ", what, value);
        if (const auto reason = task_.kept.find(what); reason != task_.kept.end()) why = ": " + reason->second;
      }
    };
    for (const auto& [what, value] : task_.identity) require(what, value, found.identity);
    found.settings.emplace("optimizer", "adamw");  // earlier versions had no other, or stored it
    for (const auto& [what, value] : task_.settings)
      if (what == "optimizer" || (task_.kept.contains(what) && found.settings.contains(what))) require(what, value, found.settings);
    if (!before.empty())
      fail(ErrorCode::usage, "[resume] {} was trained with {}, but {} was requested{}. Use the same, or {}", o_.folder.string(), before, now, why,
           task_.restart_hint.empty() ? fmt::format("start a new run from its weights with init_from={}", o_.folder.string()) : task_.restart_hint);
    std::vector<std::string> differences;
    auto compare = [&](const std::map<std::string, std::string>& before, const std::map<std::string, std::string>& now, bool complete) {
      for (const auto& [what, value] : now)
        if (auto it = before.find(what); it == before.end() ? complete : it->second != value)
          differences.push_back(fmt::format("{} was {}, is now {}", what, it == before.end() ? "not set" : it->second, value));
    };
    compare(found.settings, task_.settings, false);  // earlier versions stored fewer settings
    const bool changed = !differences.empty();       // then choose intervals as for a new run
    compare(found.choices, state_.choices, true);
    if (auto it = found.choices.find("passes"); it != found.choices.end() && !state_.choices.contains("passes"))
      differences.push_back(fmt::format("passes was {}, is now not set", it->second));
    for (const auto& [what, value] : found.choices)
      if (what.starts_with(kKernelChoice) && !state_.choices.contains(what)) differences.push_back(fmt::format("{} was {}, is now not set", what, value));
    if (found.draws > kDrawsVersion) differences.push_back(fmt::format("random numbers had version {}, now {}", found.draws, kDrawsVersion));
    if (const std::string& redrawn = task_.step->plan().redrawn; found.draws < kDrawsVersion && !redrawn.empty()) differences.push_back(redrawn);
    if (!task_.inexact.empty()) differences.push_back(task_.inexact);
    const RunState current = state_;
    state_ = found, earlier_seconds_ = found.seconds;
    state_.settings = current.settings, state_.choices = current.choices, state_.score = current.score, state_.finished = false;
    auto keep = [&](int64_t& stored, int64_t now, bool asked) {
      if (asked || changed || !stored || !now) stored = now;
    };
    keep(state_.validation_interval, current.validation_interval, o_.validation_interval.has_value());
    keep(state_.checkpoint_interval, current.checkpoint_interval, o_.checkpoint_interval.has_value());
    keep(state_.sample_interval, current.sample_interval, o_.sample_interval.has_value());
    if (!validates()) state_.validation_due = false;
    // Scores over different samples are not comparable. Without a validation now, those of the stored scores are kept.
    if (current.validation_samples) state_.validation_samples = current.validation_samples;
    if (!current.validation_data.empty()) state_.validation_data = current.validation_data;
    const bool other_number = found.validation_samples && found.validation_samples != state_.validation_samples;
    if (state_.best_score && (other_number || (!found.validation_data.empty() && found.validation_data != state_.validation_data))) {
      notice(fmt::format("validation is now on {}: the best {} so far, {} at step {}, no longer counts",
                         other_number ? fmt::format("{} and was on {}", counted(state_.validation_samples, "sample"), found.validation_samples) : "other data",
                         found.score.name, figure_text(*state_.best_score), state_.best_step));
      state_.forget_validations();
    }
    if (state_.best_score && found.score != task_.score) {
      notice(fmt::format("validations are now scored by {} and were by {}: the best so far, {} at step {}, no longer counts", task_.score.name,
                         found.score.name, figure_text(*state_.best_score), state_.best_step));
      state_.forget_validations();
    }
    guards_.restore(state_.skipped, state_.roll_backs, state_.strikes);
    checkpoints_.restore(*stored, state_.step);
    out_.bit_exact = differences.empty();
    notice(fmt::format("resumed at step {} of {} from {}", found.step.attempted, o_.schedule.steps, stored->folder.string()));
    if (!differences.empty()) {
      // A setting that is a choice as well, such as the batch, is listed once.
      for (auto next = differences.begin(); next != differences.end();)
        next = std::find(differences.begin(), next, *next) == next ? next + 1 : differences.erase(next);
      // Choices of single kernels are many and have long names: list the others first, and only a few.
      constexpr size_t kMaxListed = 8, kShort = 80;
      std::stable_partition(differences.begin(), differences.end(), [&](const std::string& d) { return d.size() <= kShort; });
      std::string all;
      for (size_t i = 0; i < std::min(differences.size(), kMaxListed); ++i) all += (i ? "; " : "") + differences[i];
      if (differences.size() > kMaxListed) all += fmt::format("; and {} more", differences.size() - kMaxListed);
      notice("resumed, not bit-exact: " + all);
    }
  }

  static RunState read_state(const StoredCheckpoint& stored) {
    const std::string file = (stored.folder / "state.json").string();
    auto it = stored.texts.find("state.json");
    if (it == stored.texts.end()) fail(ErrorCode::io, "[resume] {} is missing", file);
    return run_state_from(it->second, file);
  }

  void save(bool best, bool later = false) {
    if (saves()) checkpoints_.save(best, later);
  }

  const RunState& state_to_save() {
    enter(Phase::checkpoint);
    state_.step = step_.state(), state_.skipped = guards_.skipped(), state_.roll_backs = guards_.roll_backs();
    state_.strikes = guards_.strikes();
    state_.seconds = earlier_seconds_ + since(start_);
    state_.finished = state_.step.attempted >= o_.schedule.steps && !state_.validation_due;
    return state_;
  }

  CheckpointWriter::Calls calls() {
    return {.state = [this]() -> const RunState& { return state_to_save(); },
            .before_write = [this] { flush_reports(), rows_.flush(); },
            .notice = [this](const std::string& line) { notice(line); },
            .spent = [this](Clock::time_point start) { leave(Phase::checkpoint, start); },
            .on_written = [this](int64_t step, double seconds) { flush_reports(), views_.on_checkpoint(step, (o_.folder / "checkpoints").string(), seconds); },
            .on_failed =
                [this](int64_t step, const std::string& why) {
                  notice(fmt::format("checkpoint at step {} failed{}: {}", step,
                                     ended_ || state_.step.attempted >= o_.schedule.steps ? "" : ", training continues", why));
                }};
  }

  Clock::time_point enter(Phase phase) { return enter(phase, state_.step.attempted); }
  Clock::time_point enter(Phase phase, int64_t step) {
    if (o_.before) o_.before(phase, step);
    return Clock::now();
  }
  Clock::time_point leave(Phase phase, Clock::time_point start) {
    const Clock::time_point now = Clock::now();
    out_.phase_seconds[size_t(phase)] += std::chrono::duration<double>(now - start).count();
    return now;
  }

  // After a roll-back, the same weights would collect the same batches again: only another rate can lead elsewhere.
  void seek() {
    if (feed_.on_policy()) feed_.rate_scale = std::pow(0.5, guards_.roll_backs());
    feed_.seek(state_.next_batch, state_.left_out);
  }

  // On an asynchronous device, a step is enqueued before the previous one is collected. All steps are collected before anything that is due
  // after a step, and before a feed makes batches with the current weights.
  void one_step() {
    Clock::time_point start = enter(Phase::data);
    // A step that is about to end is collected before waiting longer for the next batch: otherwise the wait would count as the step's own time. The wait
    // must also stay below the full step time, or each step would lengthen the measured time a little further.
    if (step_.pending() > 0 && !feed_.wait(std::max(0.0, kWaitShare * pace_.value() - since(std::max(in_flight_.front().start, last_collected_))))) {
      leave(Phase::data, start);
      while (step_.pending() > 0)
        if (!collect(Clock::now())) return;
      start = Clock::now();
    }
    const int64_t number = state_.step.attempted + step_.pending();
    const BatchFeed::Batch batch = from_feed(number, [&] { return feed_.next(number); });
    const int64_t after = feed_.position();
    const Clock::time_point ready = leave(Phase::data, start);
    waited_ = feed_.waited_seconds();
    if (batch.left_out) return leave_out(after);
    const double lr = feed_.rate(o_.schedule.rate(number));
    start = o_.before ? enter(Phase::step, number) : ready;
    if (sharing_) sharing_->set();
    if (anything_due(number + 1)) step_.time_next_update();  // all pending work is waited for then anyway
    const double waited = waited_;
    // A signal ends the run before the next micro-batch: what a large step has done so far is left, as if it had not begun.
    const auto part_of = [&](int64_t first, int64_t) {
      if (first == 0) return batch.tensors;
      if (signals_.caught() && !feed_.on_policy()) throw Abandoned();
      return feed_.in_parts() ? from_feed(number, [&] { return feed_.next_part(); }) : step_.from_sample(batch.tensors, first);
    };
    try {
      batch.on_device ? step_.enqueue_in_place(batch.tensors) : step_.enqueue(TrainStep::Parts(std::cref(part_of)), lr);
    } catch (const Abandoned&) {
      leave(Phase::step, start);
      while (step_.pending() > 0)
        if (!collect(Clock::now())) return;
      return check_for_end(false);
    }
    if (feed_.in_parts()) waited_ = feed_.waited_seconds();
    in_flight_.push_back({batch.position, after, batch.on_device ? std::nullopt : std::optional(lr), start, waited_ - waited});
    const Clock::time_point enqueued = leave(Phase::step, start);
    out_.phase_seconds[size_t(Phase::step)] -= waited_ - waited, out_.phase_seconds[size_t(Phase::data)] += waited_ - waited;
    const bool now = !step_.behind() || feed_.needs_results(number + 1) || anything_due(number + 1) || signals_.caught() || out_of_time();
    const int64_t left = now ? 0 : 1;
    if (step_.pending() > left && !collect(enqueued)) return;
    while (step_.pending() > left)
      if (!collect(Clock::now())) return;
  }

  void leave_out(int64_t position_after) {
    while (step_.pending() > 0)
      if (!collect(Clock::now())) return;
    step_.leave_out();
    state_.step = step_.state(), state_.next_batch = position_after;
    wall_.add(Clock::now());  // rates count attempted steps
    between_steps();
  }

  bool anything_due(int64_t done) const {
    return done == o_.schedule.steps || due(state_.validation_interval, done) || due(state_.checkpoint_interval, done) || due(state_.sample_interval, done);
  }
  bool due(int64_t interval, int64_t done) const { return interval > 0 && (done % interval == 0 || done == o_.schedule.steps); }
  // The last validation of a time-limited run belongs to its time, and gets at most half of it. Once up, the time stays up, even if that validation took less
  // than expected.
  bool out_of_time() {
    const bool unknown = state_.validation_interval > 0 && bool(task_.validate) && validated_at_ != state_.step.attempted;
    const double limit = 60 * o_.max_minutes, reserve = unknown ? std::min(std::max(longest_validation_, feed_.validation_seconds()), limit / 2) : 0;
    return time_is_up_ = time_is_up_ || (limit > 0 && since(start_) + group_seconds_ + reserve > limit);
  }
  bool overdue() const { return o_.max_minutes > 0 && since(start_) > 60 * 1.1 * o_.max_minutes + 1; }

  // Collects the oldest pending step; false: the run ended or rolled back.
  bool collect(Clock::time_point start) {
    const InFlight step = in_flight_.front();
    in_flight_.pop_front();
    const StepMetrics m = step_.collect();
    const Clock::time_point before = std::max(step.start, last_collected_);
    last_collected_ = leave(Phase::step, start);
    const double seconds = std::max(std::chrono::duration<double>(last_collected_ - before).count() - step.waited, 1e-9);
    pace_.add(seconds), own_seconds_ += seconds, ++collected_;
    if (sharing_)
      if (const std::string change = sharing_->add(o_.live_seconds ? o_.live_seconds(sharing_->way(), seconds) : seconds); !change.empty()) {
        notice(fmt::format("from step {} on, work is shared out as {}", step_.state().attempted + 1, change));
      }
    state_.step = step_.state();
    state_.next_batch = step.after;
    feed_.collected(m);
    if (m.left_out) {
      wall_.add(last_collected_);  // rates count attempted steps
      between_steps();
      return !ended_;
    }
    report(m, step.lr.value_or(m.lr), seconds);
    switch (guards_.judge(step.batch, m.applied, m.scale_search)) {
      case Guards::Verdict::good:
      case Guards::Verdict::skipped: break;
      case Guards::Verdict::roll_back:
        if (feed_.on_policy() && std::exchange(failed_at_, state_.step.attempted) == failed_at_) return stop_diverged(m), false;
        roll_back();
        return false;
      case Guards::Verdict::stop: stop_diverged(m); return false;
    }
    if (m.applied) {
      if (state_.recent_losses.empty()) state_.first_loss = m.loss;
      state_.recent_losses.push_back(m.loss);
      if (state_.recent_losses.size() > kMeanSteps) state_.recent_losses.pop_front();
    }
    between_steps();
    return !ended_;
  }

  void stop_diverged(const StepMetrics& m) {
    const std::string figures = figures_of(m);
    end(Outcome::End::diverged, feed_.on_policy()
                                    ? fmt::format("step {} was not finite again, though its batch was collected again with a lower learning rate: {}; {}",
                                                  state_.step.attempted, figures, feed_.diagnosis())
                                    : fmt::format("step {} was not finite again after {} roll-backs: {}; try a lower lr, or look at the batches {}",
                                                  state_.step.attempted, Guards::kRollBacks, figures, listed(guards_.offending())));
    step_.discard(), in_flight_.clear();
  }

  void report(const StepMetrics& m, double lr, double seconds) {
    const Clock::time_point now = last_collected_;
    const int64_t done = state_.step.attempted;
    Progress& p = pending_reports_.emplace_back();
    p.step = done, p.steps = o_.schedule.steps, p.loss = m.loss, p.gradient_norm = m.gradient_norm, p.lr = lr, p.applied = m.applied;
    p.scalar_names = scalar_names_, p.scalars = m.scalars;
    std::ranges::copy(feed_.scalars(), p.scalars.begin() + long(step_.scalars().size()));
    p.ms = 1e3 * seconds, p.loss_scale = m.loss_scale, p.data_wait_s = waited_;
    const double wall = wall_.add(now), tokens = double(step_.plan().batch) * o_.tokens_per_sample;
    p.wall_ms = 1e3 * wall, p.tokens_s = tokens / wall, p.frames_s = p.tokens_s * feed_.frames();
    p.compute_tokens_s = tokens / pace_.value(), p.roof = o_.min_seconds / pace_.value(), p.roof_others = o_.roof_others;
    p.elapsed_s = std::chrono::duration<double>(now - start_).count();
    // Includes validation and checkpoints.
    const double per_step = std::chrono::duration<double>(now - loop_start_).count() / double(std::max<int64_t>(1, done - begun_at_));
    p.eta_s = per_step * double(o_.schedule.steps - done);
    p.planned_bytes = o_.planned_bytes;
    const bool report_due = std::chrono::duration<double>(now - reported_at_).count() >= kReportSeconds || pending_reports_.size() == kMaxPendingReports;
    out_.reporting_seconds += since(now);
    if (report_due) flush_reports();
    if (!m.applied && !m.scale_search) notice(fmt::format("step {} skipped: {}", done, figures_of(m)));
  }

  void flush_reports() {
    if (pending_reports_.empty()) return;
    const Clock::time_point start = Clock::now();
    std::swap(pending_reports_, current_reports_);
    if (std::chrono::duration<double>(start - memory_read_).count() > kMemorySeconds) resident_ = held_bytes(), memory_read_ = start;
    for (Progress& p : current_reports_) p.resident_bytes = resident_, p.newest = &p == &current_reports_.back(), rows_.add(p);
    if (std::chrono::duration<double>(start - rows_.flushed_at()).count() >= kFlushSeconds) rows_.flush();
    views_.on_steps(current_reports_);
    current_reports_.clear();
    reported_at_ = Clock::now();
    out_.reporting_seconds += std::chrono::duration<double>(reported_at_ - start).count();
  }

  void roll_back() {
    step_.discard(), in_flight_.clear();
    checkpoints_.finish();
    std::optional<StoredCheckpoint> stored;
    if (saves()) stored = checkpoints_.newest();
    const std::vector<int64_t> bad = guards_.offending();
    if (!stored)
      return end(Outcome::End::diverged, fmt::format("{} steps in a row were not finite, and there is no checkpoint to go back to", Guards::kStrikes));
    const int64_t skipped = guards_.skipped();
    const int roll_backs = guards_.roll_backs();
    const std::vector<int64_t> left_out = state_.left_out;
    RunState back = read_state(*stored);
    std::swap(state_, back);
    state_.validation_interval = back.validation_interval, state_.checkpoint_interval = back.checkpoint_interval, state_.sample_interval = back.sample_interval;
    state_.settings = back.settings, state_.choices = back.choices;
    state_.left_out = left_out, state_.skipped = skipped, state_.roll_backs = roll_backs;
    if (!feed_.on_policy()) state_.left_out.insert(state_.left_out.end(), bad.begin(), bad.end());  // otherwise the batches are collected again
    checkpoints_.restore(*stored, state_.step);
    flush_reports();
    rows_.flush();
    if (rows_.waiting()) notice("metrics that could not be written are lost with the roll-back");
    rows_.cut(state_.step.attempted);
    seek();
    notice(fmt::format("rolled back to step {}: {} steps in a row were not finite; {} ({} of {} roll-backs)", state_.step.attempted, Guards::kStrikes,
                       feed_.on_policy() ? "their batches are collected again, with half the learning rate from now on"
                                         : fmt::format("batches {} are skipped from now on", listed(bad)),
                       roll_backs, Guards::kRollBacks));
  }

  void trim(int64_t step) {
    const int64_t before = eager_statistics().pool_bytes;
    trim_pool();
    notice(fmt::format("step {}: trimmed the memory pools, {} released", step, size_text(before - eager_statistics().pool_bytes)));
  }

  // Does what is due after a step, in a fixed order, so that a resumed run does the same.
  void between_steps() {
    checkpoints_.poll();
    const int64_t done = state_.step.attempted;
    if (o_.trim_interval > 0 && done % o_.trim_interval == 0) trim(done);
    if (step_.pending() > 0) return;  // nothing else is due, or the step would have been collected
    if (done % group_ != 0 && done != o_.schedule.steps) return;
    if (group_ > 1) group_seconds_ = since(group_start_);  // the next group takes about as long, and would be finished before the run ends
    // A time-limited run still ends with a validation loss.
    const bool older = bool(task_.validate) && validated_at_ != done;  // the weights have changed since their score was measured
    const bool unknown = state_.validation_interval > 0 && (!state_.final_score || older) && out_of_time() && !signals_.caught();
    const bool validates = due(state_.validation_interval, done) || unknown || (o_.validate && this->validates() && feed_.wants_validation());
    const bool best = validates && validate();
    if (due(state_.sample_interval, done) && !signals_.caught()) take_sample();
    check_for_end(validates && !state_.validation_due);
    // No checkpoints during a series of bad steps: a rollback must go back to before them.
    const bool regular = ended_ || (due(state_.checkpoint_interval, done) && guards_.strikes().empty());
    if (best || regular) save(best, !regular);
    if (checkpoints_.failed() >= kMaxFailedSaves && done < o_.schedule.steps)
      end(Outcome::End::unsaved, fmt::format("{} checkpoints in a row could not be written", kMaxFailedSaves));
    group_start_ = Clock::now();
  }

  void take_sample() {
    if (failed_samples_ == Outputs::kTries) return;
    const Clock::time_point start = enter(Phase::sample);
    std::string text, failure;
    try {
      text = task_.sample();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    leave(Phase::sample, start);
    if (failure.empty()) return flush_reports(), views_.on_sample(state_.step.attempted, text);
    const bool off = ++failed_samples_ == Outputs::kTries;
    if (off || failed_samples_ == 1) notice(fmt::format("a sample failed, training continues{}: {}", off ? " without samples" : "", failure));
  }

  void check_for_end(bool validated) {
    const int signal = signals_.caught();
    if (signal == SIGINT) end(Outcome::End::interrupted, "interrupted");
    if (signal != 0) end(Outcome::End::terminated, signal == SIGHUP ? "the terminal is gone (SIGHUP)" : "asked to end (SIGTERM)");
    if (validated) check_target();
    if (out_of_time()) end(Outcome::End::time, fmt::format("the time limit of {} minutes is reached", o_.max_minutes));
  }

  void check_target() {
    if (o_.target && feed_.may_end() && state_.final_score && task_.score.reaches(*state_.final_score, *o_.target))
      end(Outcome::End::target, fmt::format("validation {} {} has reached the target of {}", task_.score.name, figure_text(*state_.final_score), *o_.target));
  }

  // Evaluates all validation data; empty: interrupted by a signal.
  std::optional<Validation> evaluate() {
    if (task_.validate) return task_.validate([this] { return signals_.caught() != 0 || overdue(); });
    double sum = 0, count = 0;
    std::array<TrainStep::Losses::Ratio, kMaxScalars> scalars = {};
    if (buffers_.empty()) {
      for (const Type& t : task_.validation->types()) buffers_.emplace_back(size_t(t.bytes()));
      for (auto& b : buffers_) to_.push_back(b.data()), from_.push_back(b.data());
    }
    for (int64_t i = 0; i < task_.validation->batches(); ++i) {
      if (signals_.caught()) return {};
      task_.validation->fill(i, to_);
      const TrainStep::Losses losses = step_.evaluate(from_, task_.validation->samples(i));
      sum += losses.sum, count += losses.count;
      for (size_t k = 0; k < scalars.size(); ++k) scalars[k].sum += losses.scalars[k].sum, scalars[k].count += losses.scalars[k].count;
    }
    Validation v{count > 0 ? sum / count : NAN, {}};
    for (size_t k = 0; k < scalars.size(); ++k) v.scalars[k] = scalars[k].sum / scalars[k].count;
    return v;
  }

  bool validate() {
    const Clock::time_point start = enter(Phase::validation);
    state_.validation_due = true;
    const std::optional<Validation> v = evaluate();
    if (!v) {  // repeated first when the run is resumed
      leave(Phase::validation, start);
      if (!signals_.caught()) notice("the time limit cut off the last evaluation; it is repeated if the run is resumed");
      return false;
    }
    state_.validation_due = false;
    ValidationResult r;
    r.step = state_.step.attempted, r.loss = v->loss, r.scalars = v->scalars, r.scalar_names = validation_scalars();
    r.score = task_.score, r.value = score_at_ ? v->scalars[*score_at_] : v->loss;
    r.best = std::isfinite(r.value) && (!state_.best_score || task_.score.better(r.value, *state_.best_score));
    const auto if_finite = [](double value) { return std::isfinite(value) ? std::optional(value) : std::nullopt; };
    const std::optional<double> loss = state_.final_val_loss = if_finite(r.loss);
    state_.final_score = if_finite(r.value), validated_at_ = r.step;
    if (r.best) state_.best_score = r.value, state_.best_val_loss = loss, state_.best_step = r.step;
    r.seconds = std::chrono::duration<double>(leave(Phase::validation, start) - start).count();
    longest_validation_ = std::max(longest_validation_, r.seconds);
    flush_reports();
    rows_.add(r);
    views_.on_validation(r);
    return r.best;
  }

  void end(Outcome::End how, std::string reason) {
    if (ended_) return;
    ended_ = true, out_.ended_at = Clock::now(), out_.end = how, out_.reason = std::move(reason);
  }

  void finish() {
    const bool diverged = out_.end == Outcome::End::diverged;
    auto lost = [&] { return !diverged && saves() && checkpoints_.saved_step() != state_.step.attempted; };
    checkpoints_.wait();
    if (lost()) save(false);
    checkpoints_.finish();
    if (lost()) out_.state_lost_since = std::max<int64_t>(checkpoints_.saved_step(), 0);
    flush_reports();
    if (rows_.flush(); rows_.waiting()) {  // there is no later retry
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      rows_.flush();
    }
    if (rows_.waiting()) notice("the last metrics could not be written and are lost");
    const int64_t done = state_.step.attempted, steps = o_.schedule.steps;
    if (!ended_) out_.ended_at = Clock::now();
    if (!ended_)
      out_.reason = done > steps ? fmt::format("{} steps are done, {} are requested", done, steps)
                    : steps == 1 ? "its only step is done"
                                 : fmt::format("all {} steps done", steps);
    out_.steps = state_.step.attempted, out_.skipped = guards_.skipped(), out_.roll_backs = guards_.roll_backs();
    out_.first_loss = state_.first_loss, out_.final_train_loss = state_.final_train_loss();
    out_.validated_step = validated_at_;
    out_.score = task_.score, out_.best_score = state_.best_score, out_.final_score = state_.final_score;
    out_.best_val_loss = state_.best_val_loss, out_.final_val_loss = state_.final_val_loss, out_.best_step = state_.best_step;
    out_.seconds = earlier_seconds_ + since(start_), out_.earlier_seconds = earlier_seconds_, out_.data_wait_seconds = waited_;
    out_.ms = 1e3 * pace_.value(), out_.update_seconds = std::min(step_.update_seconds(), out_.phase_seconds[size_t(Phase::step)]);
    const int64_t here = out_.own_steps = out_.steps - begun_at_;
    if (here > 0) {
      const double tokens = double(step_.plan().batch) * o_.tokens_per_sample;
      // Not the phase's time: an asynchronous device also computes while the host waits for data.
      const double own = own_seconds_ / double(collected_);
      out_.tokens_s = double(here) * tokens / since(loop_start_), out_.compute_tokens_s = tokens / own;
      out_.roof = o_.min_seconds / own, out_.roof_others = o_.roof_others;
    }
    out_.peak_bytes = o_.device_bytes ? held_bytes() : peak_resident_bytes();  // device memory is not freed before the end
  }

  const TrainerTask& task_;
  const TrainerOptions& o_;
  Outputs views_;
  TrainStep& step_;
  BatchFeed& feed_;
  const int64_t group_;  // steps
  std::span<const std::string> scalar_names_;
  std::optional<size_t> score_at_;  // index among the validation's scalars; none: the loss
  std::optional<FolderLock> lock_;
  StopSignals signals_;
  MetricRows rows_;
  RunState state_;
  Guards guards_;
  Outcome out_;
  bool ended_ = false;
  std::optional<int64_t> failed_batch_;  // the step whose data could not be made
  int failed_samples_ = 0;
  struct InFlight {
    int64_t batch, after;      // the batch's position, and the position after it
    std::optional<double> lr;  // none: the device knows it
    Clock::time_point start;
    double waited;  // seconds waited for parts of its data, since the start
  };
  std::optional<Sharing> sharing_;
  std::deque<InFlight> in_flight_;  // steps enqueued but not yet collected
  RunningMedian pace_;
  WallPace wall_;
  Clock::time_point start_, loop_start_, group_start_, memory_read_ = {}, last_collected_ = {}, reported_at_ = {};
  std::vector<Progress> pending_reports_, current_reports_;
  int64_t resident_ = 0, begun_at_ = 0, collected_ = 0, validated_at_ = -1;
  int64_t failed_at_ = -1;  // the step that the last roll-back of an on-policy run was for
  bool time_is_up_ = false;
  double earlier_seconds_ = 0, waited_ = 0, longest_validation_ = 0, group_seconds_ = 0;
  double own_seconds_ = 0;                       // of all collected steps
  std::vector<std::vector<std::byte>> buffers_;  // of a validation batch
  std::vector<std::byte*> to_;
  std::vector<const void*> from_;
  CheckpointWriter checkpoints_;
};

}  // namespace

std::string_view name(Phase phase) {
  constexpr std::string_view names[kPhases] = {"data", "step", "validation", "samples", "checkpoints"};
  return names[size_t(phase)];
}

std::optional<FolderLock> lock_run(const std::filesystem::path& folder) {
  if (folder.empty()) return {};
  std::optional<FolderLock> lock = FolderLock::take(folder);
  if (!lock) fail(ErrorCode::usage, "[train] another process is training in {}; wait for it or choose another folder with --out DIR", folder.string());
  return lock;
}

std::shared_ptr<BatchFeed> data_feed(const BatchSource& source, const TrainStep& step, const TrainerOptions& o) {
  return std::make_shared<DataFeed>(source, DataFeed::Options{o.prefetch, o.async_loading, o.load_parts ? step.plan().micro : 0});
}

std::optional<RunState> newest_state(const std::filesystem::path& folder) {
  std::vector<std::string> ignored;
  const std::optional<StoredCheckpoint> stored = CheckpointStore(folder / "checkpoints").newest(ignored);
  if (!stored || !stored->texts.contains("state.json")) return {};
  return run_state_from(stored->texts.at("state.json"), (stored->folder / "state.json").string());
}

Outcome train(const TrainerTask& task, const TrainerOptions& options, const std::vector<TrainerView*>& views) {
  if (!options.folder.empty()) make_run_folder(options.folder);
  return Run(task, options, views)();
}

}  // namespace ridge
