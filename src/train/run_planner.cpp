#include "train/run_planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "backend/backend.h"
#include "base/error.h"
#include "base/text.h"
#include "machine/device_choice.h"
#include "machine/features.h"
#include "machine/fingerprint.h"
#include "machine/machine.h"
#include "machine/precision.h"
#include "measure/default_team.h"
#include "train/checkpoint.h"
#include "train/parts.h"
#include "train/step_time.h"
#include "train/train_text.h"

namespace ridge {
namespace {

constexpr const char* kAhead = "batches ahead";
// Later growth that is not planned in detail (code pages, stacks, logs, JSON); pages mapped to read a checkpoint; granularity of the process's size.
constexpr int64_t kGrowth = int64_t(8) << 20, kReading = int64_t(3) << 20, kCoarse = int64_t(16) << 20;
constexpr int64_t kNoise = int64_t(1) << 20;           // how much more the next process may hold than this one
constexpr int64_t kDeviceGrowth = int64_t(160) << 20;  // kernels, recordings and libraries loaded later
constexpr int64_t kRecordings = int64_t(16) << 20;     // made by the first steps

std::optional<int64_t> whole(const config::Resolved& s, const char* key) { return s.get<std::optional<int64_t>>(key); }

int64_t sum_of(const std::vector<MemoryItem>& items) {
  return std::accumulate(items.begin(), items.end(), int64_t(0), [](int64_t sum, const MemoryItem& item) { return sum + item.bytes; });
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Rounded up, in the same unit as the sizes printed next to it.
std::string budget_word(int64_t bytes) {
  constexpr double kMiB = 0x1p20, kGiB = 0x1p30;
  return double(bytes) < kGiB ? fmt::format("{:.0f}MiB", std::ceil(double(bytes) / kMiB))
                              : fmt::format("{:.2f}GiB", std::ceil(double(bytes) / kGiB * 100) / 100);
}

// How to get a budget of `enough` bytes: raise memory= if that is the limit, else use a larger share of the machine; otherwise there is no way.
std::string budget_remedy(BudgetFacts facts, int64_t enough) {
  const int64_t requested = std::exchange(facts.requested, 0), usable = memory_budget(facts).bytes;
  if (enough <= usable) return fmt::format("the smallest budget that works is memory={}", budget_word(enough));
  const std::string also = requested > 0 && requested < enough ? fmt::format(" and memory={}", budget_word(enough)) : "";
  for (int percent = int(facts.fraction * 100) + 1; percent <= 100; ++percent) {
    facts.fraction = percent / 100.0;
    if (memory_budget(facts).bytes >= enough)
      return fmt::format("the smallest budget that works is {}: set memory_fraction={:g}{}", budget_word(enough), facts.fraction, also);
  }
  const MemoryBudget most = memory_budget(facts);
  return fmt::format("{} is too small for it: it needs {} and has {} ({}); choose a smaller model", facts.device == "cpu" ? "this machine" : facts.device,
                     size_text(enough), size_text(most.bytes), most.reason);
}

int64_t batch_bytes(const BatchSource* source) {
  int64_t bytes = 0;
  if (source)
    for (const Type& t : source->types()) bytes += t.bytes();
  return bytes;
}

}  // namespace

std::string PlannedRun::decided(std::string_view setting) const {
  const auto it = std::find_if(decisions.begin(), decisions.end(), [&](const Decision& d) { return d.setting == setting; });
  return it == decisions.end() ? "" : it->value;
}

int64_t PlannedRun::parameter_count() const {
  return std::accumulate(parameters.begin(), parameters.end(), int64_t(0), [](int64_t sum, const Parameter& p) { return sum + p.shape.numel(); });
}

bool PlannedRun::on_device() const { return backend && !backend->host_memory(); }

double PlannedRun::expected_total() const { return expected_step_seconds * double(trainer.schedule.steps - steps_done); }

void PlannedRun::count_driver() {
  const int64_t held = backend->memory().held + kRecordings;
  planned_bytes += held - memory.front().bytes;
  memory.front().bytes = held;
  trainer.planned_bytes = planned_bytes;
}

void RunPlanner::read_earlier() {
  if (o_.resume) earlier_ = newest_state(o_.folder);
  if (earlier_) run_.steps_done = earlier_->step.attempted;
}

std::string RunPlanner::earlier_text(const std::string& file) const {
  std::vector<std::string> ignored;
  if (!earlier_) return {};
  const std::optional<StoredCheckpoint> stored = CheckpointStore(o_.folder / "checkpoints").newest(ignored);
  return stored && stored->texts.contains(file) ? stored->texts.at(file) : std::string();
}

void RunPlanner::refuse_finished_run(int64_t steps, const char* length_key) {
  const std::optional<double> target = s_.get<std::optional<double>>("target_loss");
  if (!earlier_ || !is_finished(o_.folder, earlier_, steps, target)) return;
  const int64_t done = earlier_->step.attempted;
  if (done < steps) fail_at_target("target_loss", *target);
  const std::string why = done != steps ? fmt::format("{} steps are done, {} are requested", done, steps)
                          : steps == 1  ? "its only step is done"
                                        : fmt::format("all {} steps are done", steps);
  const std::string afresh = can_start_from_weights(s_) ? fmt::format(", or init_from={} to start a new run from its weights", o_.folder.string()) : "";
  fail(ErrorCode::usage, "[resume] the run in {} is finished: {}; set {}=N with a larger N to continue{}", o_.folder.string(), why, length_key, afresh);
}

void RunPlanner::refuse_reached_target(int64_t steps, const char* key, double target) {
  if (earlier_ && earlier_->step.attempted < steps && has_ended_at(o_.folder, earlier_, target)) fail_at_target(key, target);
}

void RunPlanner::fail_at_target(const char* key, double target) const {
  const Score& score = earlier_->score;
  fail(ErrorCode::usage, "[resume] the run in {0} has reached its target: validation {1} {2}, {3}={4}; to continue, set a {5} one or {3}=none",
       o_.folder.string(), score.name, figure_text(earlier_->final_score.value_or(0)), key, target, score.higher_is_better ? "higher" : "lower");
}

bool RunPlanner::is_set_now(const char* key) const {
  const std::string& source = s_.setting(key).source;
  if (source == "command line" || source == kTheProgram || source.starts_with("environment ") || source.starts_with("spec ")) return true;
  const std::filesystem::path file = source.substr(0, source.rfind(':'));
  if (file == source || !file.has_filename()) return false;  // a default, a preset or the measurement store
  return !config::is_of_run(source, o_.folder);
}

void RunPlanner::choose_named_device() {
  const DeviceRequest requested = parse_device(s_.get<std::string>("device"));
  if (o_.backend || (!requested.automatic && requested.kind != Device::Kind::cpu)) {
    const std::vector<std::string> notices = run_.notices;
    choose_device({}, {});
    // If the CPU replaces it, the number formats are still to be compared there.
    if (!run_.fallback.empty() && !on_device_ && !earlier_) chosen_ = false, run_.notices = notices;
  }
  if (!o_.backend && requested.automatic && o_.measure && !deterministic() && !earlier_) gpus_ = begin_measuring_gpus();
}

void RunPlanner::choose_device(const StepWork& work, const TryFormats& try_formats) {
  if (chosen_) return;
  if (o_.backend) return use_device(o_.backend, {"device", o_.backend->info().name, "given"});
  std::string earlier;
  if (earlier_) {
    const auto before = earlier_->choices.find(kDeviceChoice);
    earlier = before != earlier_->choices.end() ? before->second : "cpu";  // default if the checkpoint does not say
  }
  ridge::TryFormats formats;
  if (!earlier_ && try_formats)
    formats = [&] {
      measuring_team();
      const int64_t before = resident_bytes();
      FormatTrial trial = try_formats(memory_budget(host_facts(before)).bytes - before, figures_of_bits());
      left_by_trial_ = std::max<int64_t>(0, resident_bytes() - before);
      return trial;
    };
  RunDevice chosen = choose_run_device(s_, work, earlier, figures_of_bits(), formats, gpus_);
  append(run_.notices, chosen.notices);
  run_.fallback = chosen.fallback, precision_key_ = chosen.precision_key;
  precision_ = std::move(chosen.number_format), number_format_ = chosen.precision;
  use_device(std::move(chosen.backend), std::move(chosen.device));
  if (run_.backend.get() == &default_backend()) choose_kernels(earlier_ ? earlier_->choices : KernelWords());
}

void RunPlanner::use_precision(const PrecisionChoice& choice, std::string decided_by) {
  precision_ = {"precision", std::string(name(choice.precision)), std::move(decided_by), choice.reason, choice.runner_up};
  number_format_ = choice.precision, chooses_products_ = false;
  append(run_.notices, choice.notices);
}

void RunPlanner::use_device(std::shared_ptr<Backend> backend, Decision device) {
  run_.backend = std::move(backend), device_ = std::move(device), chosen_ = true, on_device_ = run_.on_device();
  if (precision_.setting.empty()) {
    const PrecisionChoice choice = choose_precision(s_.get<std::string>("precision"), Fallback::allow, run_.backend->arithmetic());
    precision_ = as_set(s_, "precision", std::string(name(choice.precision)), choice.reason), number_format_ = choice.precision;
  }
  if (on_device_ && earlier_ && same_device(*run_.backend, earlier_->choices)) run_.backend->use_choices(earlier_->choices);
  run_.backend->use_pinned_memory(s_.get<bool>("enable_pinned_memory"));
  if (on_device_) device_before_ = run_.backend->memory();
}

BudgetFacts RunPlanner::host_facts(int64_t held) const {
  BudgetFacts facts = budget_facts(read_limits(), held);
  facts.requested = whole(s_, "memory").value_or(0), facts.fraction = s_.get<double>("memory_fraction");
  return facts;
}

void RunPlanner::plan(const RunNeeds& needs) {
  run_.task = needs.task, batch_ = needs.batch, loading_ = needs.loading;
  // The plan must not depend on whether tokens came from the cache or a trial was needed: heap memory left by the trial is reused.
  baseline_ = (resident_bytes() - left_by_trial_ + kCoarse - 1) / kCoarse * kCoarse;
  facts_ = host_facts(baseline_);
  if (on_device_) {
    BudgetFacts there = device_budget(*run_.backend);
    there.requested = facts_.requested, there.fraction = facts_.fraction, facts_ = there;
  }
  if (o_.free_memory) facts_.available = std::min(facts_.available, o_.free_memory());
  run_.budget = memory_budget(facts_);
  append(run_.notices, run_.budget.notices);
  count_others(needs);
  if (on_device_) check_host(needs);
  // Programs may take more memory than assumed; then the step has to be smaller. A resumed run rather uses the reserve than other choices.
  fit_step(needs);
  estimate();
  if (tune(needs)) {
    const double seconds = run_.expected_step_seconds;
    const std::string from = run_.expected_from;
    fit_step(needs);
    estimate();
    if (tuning_->decided_by == "measured" && !tuned_.empty()) run_.expected_step_seconds = seconds, run_.expected_from = from;
    run_.trainer.expected_step_seconds = run_.expected_step_seconds;
  }
  if (tune_kernels(needs)) {
    const double seconds = run_.expected_step_seconds;
    const std::string from = run_.expected_from;
    const bool fits = fit_with_kernels(needs);
    estimate();
    if (fits && kernels_->decided_by == "measured") run_.expected_step_seconds = seconds, run_.expected_from = from;
    run_.trainer.expected_step_seconds = run_.expected_step_seconds;
  }
  if (!on_device_) count_past();
  fill_trainer(needs);
}

void RunPlanner::fit_step(const RunNeeds& needs) {
  if (!others_count_) others_count_ = {run_.memory.size(), run_.host_memory.size()};
  const size_t others = others_count_->first;
  run_.host_memory.resize(others_count_->second);
  for (int64_t attempt = 0; attempt == 0 || (!on_device_ && run_.planned_bytes > run_.budget.bytes + (reused_ ? kGrowth : 0)); ++attempt) {
    run_.memory.resize(others);
    run_.step = make_step(needs, sum_of(run_.memory) + read_bytes_ + attempt * kNoise);
    count_step(needs);
  }
}

// A feed makes a batch while the previous one is still held.
int64_t RunPlanner::ahead_bytes(const RunNeeds& needs) const { return needs.train ? Prefetcher::bytes_for(*needs.train, loading_) : 2 * needs.feed_bytes; }

// Counts the process's memory other than the step's.
void RunPlanner::count_others(const RunNeeds& needs) {
  run_.memory.clear(), run_.host_memory.clear();
  std::vector<MemoryItem>& host = on_device_ ? run_.host_memory : run_.memory;
  host.push_back({"the process itself", baseline_ + needs.program_bytes + kGrowth});
  // Large batches are loaded one micro-batch at a time; its size is known once the step is compiled.
  const MemoryBudget host_budget = on_device_ ? memory_budget(budget_facts(read_limits(), baseline_)) : run_.budget;
  const int64_t ahead = ahead_bytes(needs), most = host_budget.bytes / 16;
  run_.trainer.load_parts = ahead > most && needs.train && needs.train->has_parts();
  host.push_back({kAhead, (run_.trainer.load_parts ? most : ahead) + batch_bytes(needs.validation)});
  host.push_back({"mapped data", needs.data_bytes});
  if (on_device_) {
    host.push_back({needs.copies > 1 ? "copies for checkpoints" : "copy of the weights", needs.copies * needs.parameters * int64_t(sizeof(float))});
    run_.memory.push_back({"driver, kernels, libraries", std::max(device_before_.held + kDeviceGrowth, run_.backend->memory().held)});
  }
  if (needs.sample_bytes) run_.memory.push_back({"samples", needs.sample_bytes()});
}

// Checks the host memory of a run on a device with its own memory.
void RunPlanner::check_host(const RunNeeds& needs) {
  const MemoryBudget budget = memory_budget(budget_facts(read_limits(), baseline_));
  run_.host_planned_bytes = sum_of(run_.host_memory);
  if (run_.host_planned_bytes > budget.bytes)
    fail(ErrorCode::memory,
         "[{}] the host's memory is too small: the process, its data, copies for checkpoints and moments stored there take {}, and {} can be used ({})",
         needs.task, size_text(run_.host_planned_bytes), size_text(budget.bytes), budget.reason);
}

TrainStep* RunPlanner::make_step(const RunNeeds& needs, int64_t others) {
  reused_ = false;
  StepOptions options = needs.step;
  options.precision = number_format_, options.backend = run_.backend.get();
  options.memory = std::max<int64_t>(run_.budget.bytes - others, 1);  // at least 1 even if nothing is left: the error below says what would fit
  if (on_device_ && s_.get<bool>("offload_optimizer")) options.offload = true;
  if (const std::optional<int64_t> parts = whole(s_, "accumulation")) options.micro = (batch_ + *parts - 1) / *parts;
  if (const std::string level = s_.get<std::string>("recompute"); level != "auto") options.recompute = parse_recompute(level);
  const bool earlier = earlier_ && !earlier_->choices.empty();
  if (earlier && !is_set_now(precision_key_.c_str())) options.precision = precision_as_before(StepChoices::from_words(earlier_->choices).precision);
  options.balance = [backend = run_.backend.get(), precision = options.precision, memory = options.memory,
                     figures = std::min(step_figures(), figures_of_bits())] { return measured_balance(*backend, precision, memory, figures); };
  if (TrainStep* step = earlier ? step_as_before(needs, options, others) : nullptr) return step;
  if (TrainStep* step = tuned_step(needs, options, others)) return step;
  try {
    return fitting_step(needs, options, others);
  } catch (const StepTooLarge& error) {
    if (needs.read_bytes && read_bytes_ == 0) {  // what else the task holds is known once there is any step
      StepOptions any = options;
      any.memory = 0;
      needs.make_step(any);
      others += read_bytes_ = needs.read_bytes();
    }
    const int64_t enough = smallest_budget(needs, others + kNoise, error.least);
    fail(ErrorCode::memory, "[{}] the budget of {} ({}) is too small: {} take {}, the step at least {}; {}", needs.task, size_text(run_.budget.bytes),
         run_.budget.reason, on_device_ ? "driver, kernels and libraries" : "the process, its data and batches", size_text(others), size_text(error.least),
         budget_remedy(facts_, enough));
  }
}

// If the coarse count of the process leaves too little, the exact one decides: by then programs have been compiled, so their memory is known.
// A new run leaves room for what resuming needs, so that the same budget works for both.
TrainStep* RunPlanner::fitting_step(const RunNeeds& needs, StepOptions options, int64_t& others) {
  try {
    return needs.make_step(options);
  } catch (const StepTooLarge& error) {
    if (!on_device_) {
      const int64_t fine = std::min(resident_bytes() + kGrowth + (o_.resume ? 0 : kReading), run_.memory.front().bytes);
      others -= std::exchange(run_.memory.front().bytes, fine) - fine;
    }
    options.memory = run_.budget.bytes - others;
    if (options.memory < error.least) throw;
  }
  return needs.make_step(options);
}

// Uses the choices of the run so far; null if they can no longer be used.
TrainStep* RunPlanner::step_as_before(const RunNeeds& needs, const StepOptions& options, int64_t& others) {
  StepOptions same = options;
  try {
    reuse_choices(same, earlier_->choices);
    if (is_set_now("accumulation")) same.micro = options.micro;
    same.precision = options.precision;
    if (StepChoices::from_words(earlier_->choices).batch != batch_) return nullptr;
    TrainStep* step = fitting_step(needs, same, others);
    reused_ = true;
    return step;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::memory && error.code() != ErrorCode::unsupported) throw;
    run_.notices.push_back(
        fmt::format("the choices of the run so far {} any more: {}", error.code() == ErrorCode::memory ? "do not fit" : "cannot be used", error.what()));
    return nullptr;
  }
}

// Prefetched batches are held whole if they need at most a sixteenth of the budget; otherwise parts of them use that sixteenth.
int64_t RunPlanner::smallest_budget(const RunNeeds& needs, int64_t others, int64_t step) const {
  if (on_device_) return others + step;
  const int64_t ahead = ahead_bytes(needs), fixed = others + step - (run_.trainer.load_parts ? run_.budget.bytes / 16 : ahead);
  if (!needs.train || !needs.train->has_parts()) return fixed + ahead;
  const int64_t in_parts = fixed + fixed / 15 + 16, all = std::max(16 * ahead, fixed + ahead);
  return in_parts < 16 * ahead ? in_parts : all;
}

void RunPlanner::count_step(const RunNeeds& needs) {
  const StepPlan& plan = run_.step->plan();
  if (run_.trainer.load_parts) {
    loading_.part = plan.micro;
    for (MemoryItem& item : on_device_ ? run_.host_memory : run_.memory)
      if (item.what == kAhead) {
        const int64_t before = std::exchange(item.bytes, ahead_bytes(needs) + batch_bytes(needs.validation));
        if (on_device_) run_.host_planned_bytes += item.bytes - before;
      }
  }
  auto item = [&](const char* what, int64_t bytes) { run_.memory.push_back({what, bytes}); };
  item("parameters", plan.parameter_bytes), item("gradients", plan.gradient_bytes),
      item(plan.host_bytes ? "moments in transit" : "optimizer moments", plan.optimizer_bytes);
  if (plan.host_bytes) {
    run_.host_memory.push_back({"optimizer moments", plan.host_bytes});
    check_host(needs);
  }
  item("activations", plan.activation_bytes), item("scratch of kernels", plan.scratch_bytes), item("micro-batch", plan.batch_bytes);
  item("losses of validation", plan.losses_bytes);
  if (needs.read_bytes) item("rollouts and evaluation", read_bytes_ = needs.read_bytes());
  item("scalars and alignment", plan.planned_bytes - plan.parameter_bytes - plan.gradient_bytes - plan.optimizer_bytes - plan.activation_bytes -
                                    plan.scratch_bytes - plan.batch_bytes - plan.losses_bytes);
  // Includes the programs compiled since; a resumed run also holds pages of the files it reads its state from.
  if (!on_device_) run_.memory.front().bytes = resident_bytes() + kGrowth + (o_.resume ? kReading : 0);
  run_.planned_bytes = sum_of(run_.memory);
}

// An earlier run of an experiment, or the first measurement on a machine, may have used more than this run. The process's peak still includes that.
void RunPlanner::count_past() {
  const int64_t held = peak_resident_bytes();
  if (held > run_.budget.bytes)
    run_.notices.push_back(fmt::format("up to {} were in use before this training, more than its budget of {}", size_text(held), size_text(run_.budget.bytes)));
  run_.passed_bytes = std::max<int64_t>(0, held - run_.planned_bytes);
  if (run_.passed_bytes > 0) run_.memory.push_back({"more, used before", run_.passed_bytes});
  run_.planned_bytes += run_.passed_bytes;
}

void RunPlanner::estimate() {
  if (on_device_) {
    const GpuStepTime time = gpu_step_time(*run_.step, *run_.backend, step_figures());
    run_.min_seconds = time.least, run_.expected_step_seconds = time.expected, run_.expected_from = time.source;
    run_.expected_key = time.key, run_.flops_rate = time.flops_rate, run_.bytes_rate = time.bytes_rate;
    return;
  }
  if (!o_.measure) return;
  const KernelRates rates =
      known_kernel_rates(measuring_team(), std::min(run_.planned_bytes, run_.budget.bytes) - baseline_, run_.step->plan().choices.precision);
  run_.flops_rate = 1e9 * rates.fma_gflops, run_.bytes_rate = 1e9 * rates.copy_gbs;
  run_.min_seconds = run_.step->min_seconds(run_.flops_rate, run_.bytes_rate);
  run_.expected_step_seconds = expected_seconds(run_.step->kernels(), rates), run_.roof_others = rates.others;
  run_.expected_from = rates.source;
  if (&measuring_team() != &default_team()) run_.expected_from += fmt::format(", with {}", counted(measuring_team().size(), "thread"));
}

void RunPlanner::fill_trainer(const RunNeeds& needs) {
  TrainerOptions& t = run_.trainer;
  t.folder = o_.folder, t.resume = o_.resume, t.prefetch = needs.loading.depth, t.async_loading = needs.loading.threaded;
  if (on_device_) {
    // In the driver's accounting: the drop in free memory since the run began, plus what the driver had already taken for itself.
    t.device_bytes = [backend = run_.backend.get(), before = device_before_] { return before.free - backend->memory().free + before.held; };
    t.device_choice = device_.value;
    t.pinned_bytes = s_.get<bool>("enable_pinned_memory") ? int64_t(s_.get<double>("pin_memory_ratio") * double(read_limits().memory_total)) : 0;
  }
  t.min_seconds = run_.min_seconds, t.roof_others = run_.roof_others, t.expected_step_seconds = run_.expected_step_seconds;
  t.planned_bytes = run_.planned_bytes;
  // A number of threads that someone set stays; so does everything where nothing may be measured.
  const bool set = s_.setting("threads").source != "default" && s_.get<std::string>("threads") != "auto";
  t.share_live = o_.measure && !on_device_ && !needs.fixed_device && !set && run_.threads == 0 && s_.get<std::string>("tune") != "off";
}

// The format of the run so far, if this device supports it.
Precision RunPlanner::precision_as_before(Precision before) {
  const Fallback fallback = s_.get<bool>("no_fallback") ? Fallback::forbid : Fallback::allow;
  const PrecisionChoice choice = choose_precision(name(before), fallback, run_.backend->arithmetic());
  if (choice.precision != number_format_ || choice.fell_back) {
    for (const std::string& notice : choice.notices)
      if (std::find(run_.notices.begin(), run_.notices.end(), notice) == run_.notices.end()) run_.notices.push_back(notice);
    precision_ = {"precision", std::string(name(choice.precision)), kRunSoFar, choice.fell_back ? choice.reason : "as it was trained", ""};
  }
  if (chooses_products_) choose_products(*run_.backend, choice.precision, s_.get<std::string>("matmul_precision"));
  return choice.precision;
}

// A run with a GPU requested by name does not spend seconds on measuring it.
Figures RunPlanner::step_figures() const { return on_device_ && !o_.probe ? std::min(figures(), Figures::kept) : figures(); }

void RunPlanner::describe(std::vector<Decision> first, Decision batch, const std::vector<Decision>& last) {
  const StepPlan& plan = run_.step->plan();
  std::vector<Decision>& d = run_.decisions;
  d = std::move(first);
  if (earlier_) {
    const std::string steps = fmt::format("from {} {} of {}", step_word(run_.unit), earlier_->step.attempted, run_.trainer.schedule.steps);
    d.insert(d.begin() + 1, as_set(s_, "resume", steps, "with the choices of the run so far"));
  }
  d.push_back(device_), d.push_back(precision_);
  const ThreadChoice& threads = default_threads();
  d.push_back({"threads", fmt::format("{}", threads.team.threads), threads.decided_by,
               on_device_ ? "for data and files, in addition to the GPU: " + threads.reason : threads.reason, threads.runner_up});
  if (run_.threads > 0)
    d.back() = {"threads", fmt::format("{}", run_.threads), tuning_->decided_by, "see tuning", fmt::format("{}: {}", threads.team.threads, threads.reason)};
  append(run_.notices, threads.remarks);
  if (on_device_)
    d.push_back({"kernels", run_.backend->info().what, "detected", "compiled for this chip"});
  else
    d.push_back({"kernels", std::string(name(isa_tier())), "detected", "the best instructions this CPU has"});
  d.push_back({"memory", size_text(run_.budget.bytes), s_.setting(whole(s_, "memory") ? "memory" : "memory_fraction").source, run_.budget.reason});
  d.push_back(std::move(batch));
  if (tuning_) d.push_back(*tuning_);
  if (kernels_) d.push_back(*kernels_);
  auto is_tuned = [&](const char* choice) { return tuned_.contains(choice); };
  const StepPlan& planned = untuned_ ? *untuned_ : plan;  // its reasons
  const std::optional<int64_t> asked = whole(s_, "accumulation");
  const bool as_before = reused_ && !is_set_now("accumulation");
  d.push_back({"micro-batch", fmt::format("{} x {}{}", plan.repeats, plan.micro, plan.remainder ? fmt::format(" + {}", plan.remainder) : ""),
               as_before           ? kRunSoFar
               : is_tuned("parts") ? tuning_->decided_by
               : asked             ? s_.setting("accumulation").source
                                   : "planned",
               as_before || planned.decisions.empty() ? "as it was split"
               : is_tuned("parts")                    ? "see tuning"
                                                      : planned.decisions.back(),
               as_before           ? ""
               : is_tuned("parts") ? fmt::format("{} x {}, as planned", planned.repeats, planned.micro)
                                   : planned.other_split});
  if (const int64_t parts = plan.repeats + (plan.remainder > 0); asked && !as_before && *asked != parts)
    d.back().why = fmt::format("{} asked for; {} make {} that are equal but for the last", counted(*asked, "part"), counted(batch_, "sample"), parts);
  const bool level_asked = s_.get<std::string>("recompute") != "auto";
  d.push_back({"recompute", std::string(name(plan.recompute)),
               reused_                 ? kRunSoFar
               : is_tuned("recompute") ? tuning_->decided_by
               : level_asked           ? s_.setting("recompute").source
                                       : "planned",
               is_tuned("recompute")               ? "see tuning"
               : plan.recompute == Recompute::free ? "only what costs nothing"
               : level_asked                       ? ""
                                                   : "to fit the budget",
               reused_                 ? ""
               : is_tuned("recompute") ? fmt::format("{}, as planned", name(planned.recompute))
                                       : planned.other_recompute});
  if (plan.host_bytes)
    d.push_back({"offload", fmt::format("{} of moments in host memory", size_text(plan.host_bytes)),
                 s_.get<bool>("offload_optimizer") ? s_.setting("offload_optimizer").source : "planned",
                 s_.get<bool>("offload_optimizer") ? "they pass through the device in every update" : "nothing else fits"});
  d.push_back(as_set(s_, "optimizer", s_.get<std::string>("optimizer"), plan.updates));
  append(d, last);
  note_settings_without_effect();
  for (const config::Note& note : s_.notes()) run_.notices.push_back(fmt::format("{}: {}", note.source, note.text));
  if (const std::string remark = MeasurementStore(fingerprint(detect_machine({}))).remark(); !remark.empty()) run_.notices.push_back(remark);
  if (run_.expected_step_seconds > 0) d.push_back({"expected", duration_text(run_.expected_step_seconds) + " a step", "measured", run_.expected_from});
}

// Notes settings without effect on the chosen device. The outcome for device, precision and threads is reported elsewhere.
void RunPlanner::note_settings_without_effect() {
  for (const config::Row& row : s_.describe({.cuda = on_device_}))
    if (!row.remark.empty() && row.key->name != "device" && !row.key->name.starts_with("precision") && row.key->name != "threads")
      run_.notices.push_back(fmt::format("{}={} ({}): {}", row.key->name, row.value, row.source, row.remark));
  if (on_device_ && number_format_ != Precision::fp32 && number_format_ != Precision::tf32 && is_set_now("matmul_precision"))
    run_.notices.push_back(fmt::format("matmul_precision={} ({}): no effect in {}, whose products have no fp32 factors",
                                       s_.get<std::string>("matmul_precision"), s_.setting("matmul_precision").source, name(number_format_)));
}

Decision as_set(const config::Resolved& s, const char* key, std::string value, std::string why) {
  return {key, std::move(value), s.setting(key).source, std::move(why)};
}

Decision rate_decision(const Schedule& s, std::string source) {
  const std::string warmup = fmt::format("{} of warm-up", counted(s.warmup, "step"));
  return {"rate", s.kind == Schedule::Kind::constant ? fmt::format("{:g}, constant", s.lr) : fmt::format("{:g} to {:g}, {}", s.lr, s.min_lr, name(s.kind)),
          std::move(source),
          s.warmup < s.steps ? warmup : fmt::format("{}: the run ends before that, at {:.3g}; set warmup=N below {}", warmup, s.rate(s.steps - 1), s.steps)};
}

std::string_view name(Optimizer::Kind kind) {
  constexpr std::string_view names[] = {"adamw", "adam", "sgd", "muon"};
  return names[size_t(kind)];
}

StepOptions step_options(const config::Resolved& s) {
  using Kind = Optimizer::Kind;
  StepOptions o;
  Optimizer& optimizer = o.optimizer;
  for (const Kind kind : {Kind::adamw, Kind::adam, Kind::sgd, Kind::muon})
    if (s.get<std::string>("optimizer") == name(kind)) optimizer.kind = kind;
  optimizer.lr = s.get<std::optional<double>>("lr").value_or(1e-3), optimizer.decay = s.get<double>("weight_decay");
  optimizer.beta1 = s.get<double>("beta1"), optimizer.beta2 = s.get<std::optional<double>>("beta2").value_or(0.999);
  if (optimizer.kind == Kind::sgd) optimizer.momentum = optimizer.beta1;
  if (optimizer.kind == Kind::muon)
    optimizer.momentum = s.get<double>("muon_momentum"), optimizer.nesterov = true, optimizer.scale = s.get<double>("muon_scale");
  o.clip = s.get<double>("clip");
  return o;
}

Schedule schedule_of(const config::Resolved& s, int64_t steps, const char* task) {
  Schedule schedule;
  const std::string kind = s.get<std::string>("schedule");
  schedule.kind = kind == "linear" ? Schedule::Kind::linear : kind == "constant" ? Schedule::Kind::constant : Schedule::Kind::cosine;
  schedule.steps = steps;
  schedule.lr = s.get<std::optional<double>>("lr").value_or(1e-3);
  schedule.min_lr = s.get<std::optional<double>>("min_lr").value_or(schedule.lr / 10);
  if (schedule.min_lr > schedule.lr) {
    if (!s.origin("min_lr").starts_with("preset"))
      fail(ErrorCode::usage, "[{}] min_lr={:g} is above lr={:g}, from which the rate falls; use a smaller one, or leave min_lr out", task, schedule.min_lr,
           schedule.lr);
    schedule.min_lr = schedule.lr / 10;  // the preset's min_lr belongs to the preset's lr
  }
  schedule.warmup = whole(s, "warmup").value_or(0);
  return schedule;
}

void read_interval(const config::Resolved& s, const char* key, std::optional<int64_t>& steps, bool& on) {
  steps = whole(s, key);
  on = s.get<std::string>(key) != "none";
}

void read_intervals(const config::Resolved& s, TrainerOptions& t) {
  read_interval(s, "eval_interval", t.validation_interval, t.validate);
  read_interval(s, "checkpoint_interval", t.checkpoint_interval, t.keep_checkpoints);
  t.max_minutes = s.get<std::optional<double>>("max_minutes").value_or(0);
  t.target = s.get<std::optional<double>>("target_loss");
  t.trim_interval = s.get<int64_t>("empty_cache_frequency");
}

}  // namespace ridge
