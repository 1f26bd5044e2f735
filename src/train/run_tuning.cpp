// How a run finds its tuned choices: stored by an earlier search, imported, or searched for before the first step.
#include <algorithm>
#include <cstdlib>

#include "base/text.h"
#include "machine/machine.h"
#include "machine/utilisation.h"
#include "measure/default_team.h"
#include "threads/thread_team.h"
#include "train/run_planner.h"
#include "train/train_text.h"

namespace ridge {
namespace {

constexpr double kShareOfRun = 0.02, kMostSeconds = 20, kLeastSeconds = 0.5;
constexpr int kFewestPoints = 8, kStepsPerPoint = 6;  // a search that cannot measure so much is not begun
constexpr double kShareOfSteps = 0.6;                 // of the time, where kernels are searched after whole steps

// Whether a setting was made by someone; tuned choices are stronger than defaults and presets only.
bool is_settled(const config::Resolved& s, const char* key) {
  const std::string& source = s.setting(key).source;
  return source != "default" && !source.starts_with("preset") && s.get<std::string>(key) != "auto";
}

}  // namespace

std::string tuning_reason(const TuneSpace& space, const TuneResult& r) {
  if (r.points == 0) return r.ended;
  const std::string measured = fmt::format("{} of {} choices in {}; {}", r.points, space.points(), duration_text(r.seconds), r.ended);
  const std::string start = duration_text(r.start_seconds);
  if (r.adopted) return fmt::format("{} a step and {} as planned, {:.2f} x as fast: {}", duration_text(r.best_seconds), start, r.gain(), measured);
  // Single samples may well be faster: only repeats in turns with the plan decide.
  if (r.other_seconds > 0 && r.other_seconds <= (1 - kTuneGain) * r.start_seconds)
    return fmt::format("{} as planned; {} looked faster with {}, which repeats in turns did not make certain{}: {}", start, space.text(r.other),
                       duration_text(r.other_seconds), r.busy ? " next to other programs" : "", measured);
  return fmt::format("nothing is {:.0f} % faster than {} a step: {}", 100 * kTuneGain, start, measured);
}

double RunPlanner::tuning_seconds(const RunNeeds& needs) const {
  if (o_.tune_seconds) return *o_.tune_seconds;
  if (!o_.tune) return 0;
  if (const std::optional<double> asked = s_.get<std::optional<double>>("tune")) return *asked;
  if (on_device_) return 0;  // compiling a candidate takes seconds there, and its kernels are measured anyway: only on request
  double run = run_.expected_step_seconds * double(needs.steps);
  if (const std::optional<double> minutes = s_.get<std::optional<double>>("max_minutes")) run = std::min(run, 60 * *minutes);
  const double seconds = std::min(kMostSeconds, kShareOfRun * run);
  return seconds < kLeastSeconds ? 0 : seconds;
}

StepTrialOptions RunPlanner::trial_options(const RunNeeds& needs) const {
  StepTrialOptions options{.fill = needs.fill};
  if (!options.fill)
    options.fill = [this, seed = o_.seed](size_t i, std::span<float> values) { initialize(run_.step->model().parameters[i], seed, uint32_t(i), values); };
  if (needs.train) options.batch = [source = needs.train](std::span<std::byte* const> tensors) { source->fill(0, tensors); };
  options.memory = std::max<int64_t>(1, run_.budget.bytes - (run_.planned_bytes - run_.step->plan().planned_bytes));
  return options;
}

// Whether other choices than the planned ones are used, so that the step is planned again.
bool RunPlanner::tune(const RunNeeds& needs) {
  if (!o_.tune_seconds && s_.get<std::string>("tune") == "off") return false;
  const TeamOptions& team = default_threads().team;
  const bool threads = !on_device_ && !needs.fixed_device && !is_settled(s_, "threads") && team.threads > 1 && team.threads == measuring_team().size();
  StepTrialOptions options = trial_options(needs);
  options.team = threads ? &team : nullptr;
  options.only = o_.tune_over;
  if (is_settled(s_, "accumulation")) options.fixed.push_back("parts");
  if (is_settled(s_, "recompute")) options.fixed.push_back("recompute");
  if (std::getenv("RIDGE_PASSES")) options.fixed.push_back("passes");
  StepTrials trials(*run_.step, options);
  const std::string key = run_.tuning_key = tuning_key(needs.task, *run_.step, trials.space());
  MeasurementStore store(fingerprint(detect_machine({})));
  std::optional<TunedChoice> kept = o_.tune_seconds ? std::nullopt : kept_choice(store, key);
  if (kept && !o_.measure && !kept->imported) kept.reset();
  // What changes bits is settled before the first step of a run, and with deterministic=true only by an import.
  if (kept && (earlier_ || (deterministic() && !kept->imported))) kept->words = neutral_part(kept->words);
  if (kept && (!kept->busy || others_now() > kQuiet))
    return take_choice(*kept, kept->imported ? "imported" : "measured before",
                       fmt::format("{:.2f} x as fast in an earlier search, {} of {} choices", kept->gain(), kept->measured, kept->points));
  const double share = has_tunable_kernels() ? kShareOfSteps : 1;
  const double seconds = earlier_ || (!o_.measure && !o_.tune_seconds) ? 0 : share * tuning_seconds(needs);
  const StepPlan& plan = run_.step->plan();
  const double least = kFewestPoints * (1e-3 * plan.compile_ms + kStepsPerPoint * run_.expected_step_seconds);
  if (seconds <= 0) return false;
  if (seconds < least && !o_.tune_seconds) {
    if (s_.get<std::string>("tune") != "auto")
      run_.notices.push_back(fmt::format("tune={:g}: nothing was searched, as that takes about {} with steps of this length", seconds, duration_text(least)));
    return false;
  }
  if (deterministic()) {
    options.same_bits = true;
    StepTrials neutral(*run_.step, options);
    return !neutral.space().dimensions.empty() && take_choice(search_choices(needs, neutral, seconds), "measured", {});
  }
  const TunedChoice choice = search_choices(needs, trials, seconds);
  if (o_.tune_over.empty()) keep_choice(store, key, choice);
  return take_choice(choice, "measured", {});
}

TunedChoice RunPlanner::search_choices(const RunNeeds& needs, StepTrials& trials, double seconds) {
  const TuneSpace& space = trials.space();
  const TuneResult r = search(space, trials, {.seconds = seconds, .roof_seconds = run_.min_seconds});
  tuned_for_ += r.seconds;
  TunedChoice choice{.words = trials.words(r.best),
                     .what = fmt::format("{}: {}, batch {}, {} on {}", needs.task, counted(run_.parameter_count(), "parameter"), batch_,
                                         name(run_.step->plan().choices.precision), device_.value),
                     .planned_seconds = r.start_seconds,
                     .seconds = r.best_seconds,
                     .measured = r.points,
                     .points = space.points(),
                     .busy = r.busy};
  if (r.other_seconds > 0) choice.runner_up = fmt::format("{}: {}", space.text(r.other), duration_text(r.other_seconds));
  if (o_.tuned) o_.tuned(trials, r);
  tuning_ = {"tuning", choice.text(), "measured", tuning_reason(space, r), choice.runner_up};
  if (r.refused > 0) {
    const auto first = std::find_if(r.trials.begin(), r.trials.end(), [](const TuneTrial& t) { return !t.refused.empty(); });
    tuning_->why += fmt::format("; {} refused, such as {}: {}", r.refused, space.text(first->point), first->refused);
  }
  if (r.best_seconds > 0) run_.expected_step_seconds = r.best_seconds, run_.expected_from = "steps measured by the search for faster choices";
  return choice;
}

bool RunPlanner::take_choice(const TunedChoice& choice, const std::string& by, const std::string& why) {
  tuned_ = choice.words;
  if (!why.empty())
    tuning_ = {"tuning", TunedChoice{.words = tuned_}.text(), by, tuned_.empty() ? "nothing was certainly faster in an earlier search" : why, choice.runner_up};
  if (const auto threads = tuned_.find("threads"); threads != tuned_.end()) {
    const TeamOptions& team = default_threads().team;
    const int wanted = std::atoi(threads->second.c_str());
    if (on_device_ || wanted >= team.threads)
      tuned_.erase(threads);
    else
      former_.push_back(run_.backend), run_.backend = StepTrials::backend_with(team, wanted), run_.threads = wanted,
                                       choose_kernels(earlier_ ? earlier_->choices : KernelWords());
  }
  if (changes_bits(tuned_)) note_new_bits(by);
  untuned_ = run_.step->plan();
  return !tuned_.empty();
}

// The step with the tuned choices; null if there are none, or they do not fit.
TrainStep* RunPlanner::tuned_step(const RunNeeds& needs, const StepOptions& options, int64_t& others) {
  if (!changes_bits(tuned_)) return nullptr;
  StepOptions tuned = options;
  tuned.micro = untuned_->micro, tuned.recompute = untuned_->recompute;
  try {
    apply(tuned_, batch_, tuned);
    return fitting_step(needs, tuned, others);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::memory && error.code() != ErrorCode::unsupported) throw;
    run_.notices.push_back(fmt::format("the tuned choices are not used: {}", error.what()));
    tuned_ = neutral_part(tuned_);
    tuning_->value = TunedChoice{.words = tuned_}.text();
    return nullptr;
  }
}

}  // namespace ridge
