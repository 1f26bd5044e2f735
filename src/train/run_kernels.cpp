// How a run finds the choices of its single kernels: those of the run that it resumes, stored by an earlier search, imported, or searched for.
#include <algorithm>

#include "base/text.h"
#include "machine/machine.h"
#include "machine/utilisation.h"
#include "measure/default_team.h"
#include "threads/thread_team.h"
#include "train/run_planner.h"
#include "train/train_text.h"

namespace ridge {
namespace {

constexpr double kLeastShare = 0.25;
constexpr double kFewestColumns = 3, kStepsPerColumn = 10;  // a search that cannot measure so much is not begun

const char* const kKernelsWord = "kernels";
const char* const kKernelDecision = "kernel choices";

}  // namespace

int RunPlanner::own_threads() const { return run_.threads > 0 ? run_.threads : default_team().size(); }

// From now on the run's device builds its kernels by these words. The process's own device never does, so that other programs are not affected.
void RunPlanner::choose_kernels(const KernelWords& words) {
  std::unique_ptr<Backend> own = run_.backend->with_choices(words);
  if (!own) return;
  struct Chosen {
    std::shared_ptr<Backend> threads;  // whose team it uses
    std::unique_ptr<Backend> backend;
  };
  former_.push_back(run_.backend);
  const auto chosen = std::make_shared<Chosen>(Chosen{run_.backend, std::move(own)});
  run_.backend = {chosen, chosen->backend.get()};
}

bool RunPlanner::has_tunable_kernels() const {
  const bool wanted = o_.tune_over.empty() || std::ranges::find(o_.tune_over, kKernelsWord) != o_.tune_over.end();
  return wanted && !on_device_ && run_.step->options().backend == run_.backend.get() && !run_.backend->tunable_kernels().empty();
}

void RunPlanner::note_new_bits(const std::string& by) {
  if (by == "imported" || o_.tune_seconds) return;
  const std::string notice =
      "these choices were measured, and another new run may measure others: for equal bits in new runs set deterministic=true, or take these along with "
      "ridge tune export and import; this run resumes with its own";
  if (std::ranges::find(run_.notices, notice) == run_.notices.end()) run_.notices.push_back(notice);
}

// What is stored for the step's kernels; with deterministic=true, only what keeps the bits or was imported.
KernelWords RunPlanner::stored_kernels(const MeasurementStore& store, bool& imported) const {
  KernelWords words;
  imported = true;
  for (const std::string& key : run_.backend->tunable_kernels()) {
    const std::optional<TunedChoice> kept = kept_choice(store, kernel_tuning_key(own_threads(), key));
    if (!kept || (!o_.measure && !kept->imported) || !kept->words.contains(kVariant)) continue;
    for (const KernelCandidate& c : run_.backend->kernel_candidates(key))
      if (c.name == kept->words.at(kVariant) && (c.same_bits || !deterministic() || kept->imported))
        words[std::string(kKernelChoice) + key] = c.name, imported = imported && kept->imported;
  }
  return words;
}

// Whether kernels are built differently from now on, so that the step is compiled again.
bool RunPlanner::tune_kernels(const RunNeeds& needs) {
  if (earlier_ || !has_tunable_kernels() || (!o_.tune_seconds && s_.get<std::string>("tune") == "off")) return false;
  MeasurementStore store(fingerprint(detect_machine({})));
  const std::optional<TunedChoice> summary = kept_choice(store, kernels_tuning_key(run_.tuning_key, own_threads()));
  bool imported = false;
  KernelWords words;
  std::string by = "measured";
  const bool searched = summary && (o_.measure || summary->imported) && (!summary->busy || others_now() > kQuiet);
  double seconds = o_.tune_seconds || (!searched && o_.measure) ? tuning_seconds(needs) - tuned_for_ : 0;
  if (o_.tune_seconds) seconds = std::max(seconds, kLeastShare * *o_.tune_seconds);  // the search of whole steps may have taken longer than its share
  const double least = kFewestColumns * (1e-3 * run_.step->plan().compile_ms + kStepsPerColumn * run_.expected_step_seconds);
  if (seconds > 0 && (seconds >= least || o_.tune_seconds)) {
    words = search_kernels(needs, store, seconds);
  } else {
    words = stored_kernels(store, imported);
    by = imported ? "imported" : "measured before";
    if (!words.empty()) kernels_ = Decision{kKernelDecision, "", by, "faster in an earlier search; ridge tune show lists them"};
  }
  if (kernels_) {
    kernels_->value = words.empty() ? "as planned" : fmt::format("{} of {} built differently", words.size(), run_.backend->tunable_kernels().size());
    if (summary && seconds <= 0 && words.empty()) kernels_.reset();
  }
  if (words.empty()) return false;
  bool new_bits = false;
  for (const auto& [word, variant] : words)
    for (const KernelCandidate& c : run_.backend->kernel_candidates(word.substr(kKernelChoice.size()))) new_bits |= c.name == variant && !c.same_bits;
  if (new_bits) note_new_bits(by);
  choose_kernels(words);
  return true;
}

// Kernels that are built differently may need larger workspaces.
bool RunPlanner::fit_with_kernels(const RunNeeds& needs) {
  try {
    fit_step(needs);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::memory && error.code() != ErrorCode::unsupported) throw;
    run_.notices.push_back(fmt::format("kernels are built as planned: {}", error.what()));
  }
  choose_kernels({}), kernels_->value = "as planned", kernels_->why = "the faster ones do not fit", kernels_->runner_up.clear();
  fit_step(needs);
  return false;
}

KernelWords RunPlanner::search_kernels(const RunNeeds& needs, MeasurementStore& store, double seconds) {
  StepTrialOptions options = trial_options(needs);
  options.same_bits = deterministic();
  KernelTrials trials(*run_.step, options, run_.flops_rate, run_.bytes_rate);
  const KernelSearchResult r = ridge::search_kernels(trials, seconds);
  const std::vector<KernelSite> sites = trials.sites();
  if (o_.kernels_tuned) o_.kernels_tuned(sites, r);
  std::vector<NamedMeasurement> rows;
  std::string gains, runner_up;
  const std::string on = fmt::format("{} on {}", counted(own_threads(), "thread"), device_.value);
  auto variant = [&](const KernelFinding& f, size_t number) { return number ? sites[f.site].variants[number - 1] : std::string("as planned"); };
  for (const KernelFinding& f : r.hot) {
    TunedChoice choice{.what = fmt::format("kernel {}, {}", sites[f.site].key, on),
                       .planned_seconds = f.seconds,
                       .seconds = f.best_seconds,
                       .measured = int64_t(f.tried) + 1,
                       .points = int64_t(sites[f.site].variants.size()) + 1,
                       .busy = r.busy};
    if (f.variant) choice.words[kVariant] = variant(f, f.variant);
    if (f.other) choice.runner_up = fmt::format("{}: {:.3f} x the time", variant(f, f.other), f.other_ratio);
    if (f.variant) gains += fmt::format("{}{} {}: {:.2f} x as fast", gains.empty() ? "" : "; ", sites[f.site].key, variant(f, f.variant), choice.gain());
    if (f.other && (runner_up.empty() || !f.variant)) runner_up = fmt::format("{} {}", sites[f.site].key, choice.runner_up);
    if (o_.tune_over.empty() && !deterministic() && choice.seconds > 0)
      rows.push_back(NamedMeasurement(kernel_tuning_key(own_threads(), sites[f.site].key), measurement_of(choice)));
  }
  const KernelWords words = trials.words(r.best);
  TunedChoice all{.what = fmt::format("kernels of {}: {}, batch {}, {}", needs.task, counted(run_.parameter_count(), "parameter"), batch_, on),
                  .planned_seconds = r.step_seconds,
                  .seconds = r.best_step_seconds,
                  .measured = r.measured,
                  .points = 0,
                  .busy = r.busy};
  for (const KernelFinding& f : r.hot) all.points += int64_t(sites[f.site].variants.size());
  if (!words.empty()) all.words[kKernelsWord] = std::to_string(words.size());
  if (o_.tune_over.empty() && !deterministic() && all.seconds > 0)
    rows.push_back(NamedMeasurement(kernels_tuning_key(run_.tuning_key, own_threads()), measurement_of(all)));
  store.put(rows);
  kernels_ = Decision{kKernelDecision, "", "measured",
                      fmt::format("{}{} of {} candidates for {} of at least {:.0f} % of a step in {}; {}", gains.empty() ? "" : gains + ": ", all.measured,
                                  all.points, counted(int64_t(r.hot.size()), "kernel"), 100 * kHotKernel, duration_text(r.seconds), r.ended),
                      runner_up};
  if (!r.refused.empty()) kernels_->why += fmt::format("; {} refused, such as {}", r.refused.size(), r.refused[0]);
  if (r.best_step_seconds > 0) run_.expected_step_seconds = r.best_step_seconds, run_.expected_from = "steps measured by the search for faster kernels";
  tuned_for_ += r.seconds;
  return words;
}

}  // namespace ridge
