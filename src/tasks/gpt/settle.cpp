// How a GPT run is settled: from settings to data, device, step, memory and decisions, before anything is trained.
#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "backend/backend.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "data/find_source.h"
#include "data/prefetch.h"
#include "machine/device_choice.h"
#include "machine/features.h"
#include "machine/fingerprint.h"
#include "machine/precision.h"
#include "machine/profile.h"
#include "measure/default_team.h"
#include "tasks/gpt/device.h"
#include "tasks/gpt/files.h"
#include "tasks/gpt/run.h"
#include "tasks/gpt/sampler.h"
#include "tasks/gpt/task.h"
#include "train/checkpoint.h"
#include "train/run_state.h"
#include "train/step_time.h"
#include "train/train_text.h"

namespace ridge {
namespace {

using config::Resolved;

std::optional<int64_t> whole(const Resolved& s, const char* key) { return s.get<std::optional<int64_t>>(key); }

Decision as_set(const Resolved& s, const char* key, std::string value, std::string why = {}) {
  return {key, std::move(value), s.setting(key).source, std::move(why)};
}

Schedule schedule_of(const Resolved& s) {
  Schedule schedule;
  const std::string kind = s.get<std::string>("schedule");
  schedule.kind = kind == "linear" ? Schedule::Kind::linear : kind == "constant" ? Schedule::Kind::constant : Schedule::Kind::cosine;
  schedule.steps = required_size(s, "steps");
  schedule.lr = s.get<std::optional<double>>("lr").value_or(1e-3);
  schedule.min_lr = s.get<std::optional<double>>("min_lr").value_or(schedule.lr / 10);
  if (schedule.min_lr > schedule.lr) {
    if (!s.setting("min_lr").source.starts_with("preset"))
      fail(ErrorCode::usage, "[gpt] min_lr={:g} is above lr={:g}, from which the rate falls; give a smaller one, or leave min_lr out", schedule.min_lr,
           schedule.lr);
    schedule.min_lr = schedule.lr / 10;  // the preset's belongs to its own rate
  }
  schedule.warmup = whole(s, "warmup").value_or(0);
  return schedule;
}

// How many steps the run's summary tells of; -1: it has none.
int64_t summed_up_steps(const std::filesystem::path& folder) {
  std::ifstream file(folder / "summary.json");
  const auto j = nlohmann::json::parse(file, nullptr, false);
  return j.is_object() && j.contains("steps") && j["steps"].is_number_integer() ? j["steps"].get<int64_t>() : -1;
}

// Rounded up, in the unit of the sizes that stand beside it.
std::string budget_word(int64_t bytes) {
  constexpr double kMiB = 0x1p20, kGiB = 0x1p30;
  return double(bytes) < kGiB ? fmt::format("{:.0f}MiB", std::ceil(double(bytes) / kMiB))
                              : fmt::format("{:.2f}GiB", std::ceil(double(bytes) / kGiB * 100) / 100);
}

// How to come by a budget of so many bytes: memory= where that is what limits, else a larger share of the machine, else nothing will do.
std::string budget_remedy(BudgetFacts facts, int64_t enough) {
  const int64_t wish = std::exchange(facts.wish, 0), usable = memory_budget(facts).bytes;
  if (enough <= usable) return fmt::format("the smallest budget that works is memory={}", budget_word(enough));
  const std::string also = wish > 0 && wish < enough ? fmt::format(" and memory={}", budget_word(enough)) : "";
  for (int percent = int(facts.fraction * 100) + 1; percent <= 100; ++percent) {
    facts.fraction = percent / 100.0;
    if (memory_budget(facts).bytes >= enough)
      return fmt::format("the smallest budget that works is {}: set memory_fraction={:g}{}", budget_word(enough), facts.fraction, also);
  }
  const MemoryBudget most = memory_budget(facts);
  return fmt::format("{} is too small for it: it needs {} and has {} ({}); choose a smaller model", facts.device == "cpu" ? "this machine" : facts.device,
                     size_text(enough), size_text(most.bytes), most.reason);
}

int64_t batch_bytes(const BatchSource& source) {
  int64_t bytes = 0;
  for (const Type& t : source.types()) bytes += t.bytes();
  return bytes;
}

class Settling {
 public:
  Settling(const Resolved& settings, const GptRunOptions& options) : s_(settings), o_(options) {}

  GptRun operator()() {
    try {
      return settle();
    } catch (const Error& error) {  // what does not fit here might have on the device that was asked for
      if (run_.fallback.empty()) throw;
      throw Error(error.code(), fmt::format("[device] {}\n{}", run_.fallback, error.what()));
    }
  }

  GptRun settle() {
    run_.seed = o_.seed;
    if (o_.resume) look_back();
    const DeviceRequest wish = parse_device(s_.get<std::string>("device"));
    const bool automatic = wish.automatic && !o_.backend, later = automatic || (wish.kind == Device::Kind::cpu && !o_.backend);
    if (!later) choose_device();  // a device that cannot be had is refused before anything takes time
    if (automatic && o_.measure && !earlier_) gpus_ = begin_measuring_gpus();
    open_data();
    make_sources();
    if (later) choose_device();
    make_step();
    estimate();
    fill_trainer();
    describe();
    return std::move(run_);
  }

  void open_data() {
    DatasetOptions d;
    d.tokenizer = s_.get<std::string>("tokenizer");
    d.block = required_size(s_, "block"), d.progress = o_.progress, d.memory = host_memory(s_, far_);
    if (earlier_) d.cut = earlier_->cut;
    const std::string from = s_.get<std::string>("init_from");
    if (!from.empty()) {
      // A run that goes on has its own weights, sizes and tokenizer.
      run_.init_from = std::make_unique<GptWeights>(load_gpt_weights(earlier_ ? o_.folder : std::filesystem::path(expand_home(from))));
      run_.notices.insert(run_.notices.end(), run_.init_from->notices.begin(), run_.init_from->notices.end());
      d.given = run_.init_from->tokenizer, d.block = run_.init_from->config.block, d.model = run_.init_from->folder.string();
      if (!is_said_now("tokenizer")) d.tokenizer = "auto";
      check_sizes();
    }
    run_.data = open_dataset(o_.data, d);
    if (earlier_ && !d.given) keep_vocabulary(d);
    run_.model = gpt_config(s_, run_.data.vocab);
    if (run_.init_from) take_model();
    try {
      (void)gpt_parameters(run_.model);
    } catch (const Error& error) {  // sizes that do not fit each other are the settings' fault
      throw Error(ErrorCode::usage, error.what());
    }
  }

 private:
  // A vocabulary depends on the memory that there was to learn it, and on what others have learnt since: a run goes on with its own.
  void keep_vocabulary(DatasetOptions d) {
    const auto before = earlier_->identity.find("data");
    if (before == earlier_->identity.end() || before->second == data_identity(run_.data)) return;
    if (!run_.data.tokenizer || run_.data.tokenizer->name() != "bpe") return;
    std::vector<std::string> ignored;
    const std::optional<StoredCheckpoint> stored = CheckpointStore(o_.folder / "checkpoints").newest(ignored);
    if (!stored || !stored->texts.contains("tokenizer.json")) return;
    d.given = load_tokenizer((stored->folder / "tokenizer.json").string());
    Dataset own = open_dataset(o_.data, d);
    if (data_identity(own) == before->second) run_.data = std::move(own);
  }

  void look_back() {
    earlier_ = newest_state(o_.folder);
    if (earlier_) run_.steps_done = earlier_->step.attempted;
    run_.trainer.complete = earlier_ && summed_up_steps(o_.folder) < earlier_->step.attempted;  // it was killed after its last step
    if (!earlier_ || run_.trainer.complete) return;
    refuse_finished(o_.folder, *earlier_, required_size(s_, "steps"));
    const std::optional<double> target = s_.get<std::optional<double>>("target_loss"), reached = earlier_->final_val_loss;
    if (target && reached && *reached <= *target && !earlier_->validation_due)
      fail(ErrorCode::usage, "[resume] the run in {} is at its target: validation loss {:.4f}, target_loss={}; a lower one, or target_loss=none, goes on",
           o_.folder.string(), *reached, *target);
  }

  void choose_device() {
    if (o_.backend) {
      run_.backend = o_.backend;
      device_ = {"device", o_.backend->info().name, "given", "", ""};
      const PrecisionChoice precision = choose_precision(s_.get<std::string>("precision"), Fallback::allow, o_.backend->arithmetic());
      precision_ = as_set(s_, "precision", std::string(name(precision.precision)), precision.reason);
      number_format_ = precision.precision;
    } else {
      std::string earlier;
      if (earlier_) {
        const auto before = earlier_->choices.find(kDeviceChoice);
        earlier = before != earlier_->choices.end() ? before->second : "cpu";  // where nothing is said of it
      }
      TryFormats formats;
      if (!earlier_ && run_.train)
        formats = [&] {
          ThreadTeam& team = measuring_team();
          const int64_t before = resident_bytes();
          BudgetFacts facts = budget_facts(read_limits(), before);
          facts.wish = whole(s_, "memory").value_or(0), facts.fraction = s_.get<double>("memory_fraction");
          FormatTrial trial = try_formats(run_.model, batch_, team, memory_budget(facts).bytes - before, figures());
          left_by_trial_ = std::max<int64_t>(0, resident_bytes() - before);
          return trial;
        };
      SettledDevice settled = settle_device(s_, run_.train ? gpt_work(run_.model, batch_) : StepWork{}, earlier, figures(), formats, gpus_);
      run_.notices.insert(run_.notices.end(), settled.notices.begin(), settled.notices.end());
      run_.fallback = settled.fallback, precision_key_ = settled.precision_key;
      run_.backend = std::move(settled.backend);
      device_ = std::move(settled.device), precision_ = std::move(settled.number_format), number_format_ = settled.precision;
    }
    far_ = !run_.backend->host_memory();
    if (far_ && earlier_ && same_device(*run_.backend, earlier_->choices)) run_.backend->use_choices(earlier_->choices);
    run_.backend->use_pinned_memory(s_.get<bool>("enable_pinned_memory"));
    if (far_) device_before_ = run_.backend->memory();
  }

  // Sizes that were asked for and cannot be had are not passed over.
  void check_sizes() {
    GptConfig asked = gpt_config(s_, run_.init_from->config.vocab);
    const auto wishes = size_words(asked);
    run_.settled = size_words(run_.init_from->config);
    for (size_t i = 0; i < wishes.size(); ++i) {
      const auto& [key, value] = run_.settled[i];
      if (wishes[i].second != value && is_said_now(key.c_str()))
        fail(ErrorCode::usage, "[gpt] the model in {} has {} {}, not {}; leave {} out", run_.init_from->folder.string(), key, value, wishes[i].second, key);
    }
  }

  // The sizes are those of the weights; the settings decide about dropout alone.
  void take_model() {
    const double dropout = run_.model.dropout;
    run_.model = run_.init_from->config;
    run_.model.dropout = dropout;
    if (run_.data.vocab > run_.model.vocab)
      fail(ErrorCode::io, "[gpt] {} has {} tokens, the weights in {} know {}; tokenize the text with the tokenizer of the weights", o_.data, run_.data.vocab,
           run_.init_from->folder.string(), run_.model.vocab);
  }

  void make_sources() {
    batch_ = required_size(s_, "batch");
    schedule_ = schedule_of(s_);
    check_products();
    run_.train = training_windows(run_.data, batch_, run_.model.block, o_.seed);
    run_.tokens_per_epoch = double(run_.data.train.size());
    loading_.depth = int(s_.get<int64_t>("prefetch_factor")), loading_.threaded = s_.get<bool>("enable_async_loading");
    run_.validation = some_validation_windows(0);
    auto windows = [&] {
      int64_t sum = 0;
      for (int64_t i = 0; i < run_.validation->batches(); ++i) sum += run_.validation->samples(i);
      return sum;
    };
    run_.all_validation_windows = run_.validation_windows = windows();
    // All of them, unless even two validations in a run would take more than a twentieth of its time.
    const double affordable = 0.05 * 3 * double(batch_) * double(schedule_.steps);  // windows in a run; one costs a third of a training sample
    if (!whole(s_, "eval_interval") && double(run_.validation_windows) * 2 > affordable) {
      const int64_t most = std::max<int64_t>(std::min<int64_t>(run_.validation_windows, 8), int64_t(affordable / 5));
      run_.validation = some_validation_windows(most);
      run_.data.possible = possible_loss(run_.data, most);
      run_.validation_windows = windows();
    }
  }

  // Everything that is counted about a run, so that no figure is printed or planned with that has lost its upper bits.
  void check_products() const {
    const GptConfig& c = run_.model;
    const Factor steps{"steps", schedule_.steps}, batch{"batch", batch_}, block{"block", c.block};
    checked_product("gpt", "tokens", {steps, batch, block});
    checked_product("gpt", "bytes of batches ahead", {batch, block, {"prefetch_factor + 1", s_.get<int64_t>("prefetch_factor") + 1}, {"", 16}});
    constexpr int64_t kLayerBytes = 512, kLogitBytes = 16;  // for each number of the hidden state and of the logits, at most
    checked_product("gpt", "bytes of activations", {batch, block, {"layers", c.layers}, {"width", c.width}, {"", kLayerBytes}});
    checked_product("gpt", "bytes of logits", {batch, block, {"vocabulary", c.vocab}, {"", kLogitBytes}});
  }

  // In batches no larger than there are windows, and than a small buffer holds.
  std::unique_ptr<BatchSource> some_validation_windows(int64_t most) const {
    constexpr int64_t kBytes = int64_t(64) << 20;
    const int64_t block = run_.model.block, fit = std::max<int64_t>(1, kBytes / (2 * block * int64_t(sizeof(int64_t))));
    const int64_t batch = std::min(batch_, int64_t(std::bit_floor(uint64_t(fit))));
    std::unique_ptr<BatchSource> windows = validation_windows(run_.data, batch, block, most);
    if (windows->samples(0) < batch) windows = validation_windows(run_.data, std::max<int64_t>(1, windows->samples(0)), block, most);
    return windows;
  }

  // What the process holds besides the step.
  void count_others() {
    run_.memory.clear(), run_.host_memory.clear();
    std::vector<MemoryItem>& host = far_ ? run_.host_memory : run_.memory;
    host.push_back({"the process itself", baseline_ + programs_bytes() + kGrowth});
    // Large batches are loaded a micro-batch at a time; how large that is comes with the step.
    const MemoryBudget near = far_ ? memory_budget(budget_facts(read_limits(), baseline_)) : run_.budget;
    const int64_t ahead = Prefetcher::bytes_for(*run_.train, loading_), most = near.bytes / 16;
    run_.trainer.load_parts = ahead > most && run_.train->has_parts();
    host.push_back({kAhead, (run_.trainer.load_parts ? most : ahead) + batch_bytes(*run_.validation)});
    host.push_back({"mapped data", run_.data.train.resident_cap() + run_.data.validation.resident_cap()});
    if (far_) {
      int64_t numbers = 0;
      for (const Parameter& p : gpt_parameters(run_.model)) numbers += p.shape.numel();
      const bool keeps = s_.get<std::string>("checkpoint_interval") != "none";  // else only the weights are copied, at the end
      host.push_back({keeps ? "copies for checkpoints" : "copy of the weights", (keeps ? 3 : 1) * numbers * int64_t(sizeof(float))});
      run_.memory.push_back({"driver, kernels, libraries", std::max(device_before_.held + kDeviceGrowth, run_.backend->memory().held)});
    }
    if (s_.get<std::string>("sample_interval") != "none" && run_.data.tokenizer) {
      const std::vector<const void*> nowhere(gpt_parameters(run_.model).size());  // only sizes matter before the step has its memory
      run_.make_sampler(nowhere);
      run_.memory.push_back({"samples", run_.sampler->planned_bytes()});
    }
  }

  // The host's part of a run on a device with memory of its own.
  void check_host() {
    const MemoryBudget budget = memory_budget(budget_facts(read_limits(), baseline_));
    run_.host_planned_bytes = 0;
    for (const MemoryItem& item : run_.host_memory) run_.host_planned_bytes += item.bytes;
    if (run_.host_planned_bytes > budget.bytes)
      fail(ErrorCode::memory,
           "[gpt] the host's memory is too small: the process, its data, copies for checkpoints and moments that lie there take {}, and {} can be used ({})",
           size_text(run_.host_planned_bytes), size_text(budget.bytes), budget.reason);
  }

  void settle_loading() {
    if (!run_.trainer.load_parts) return;
    loading_.part = run_.step->plan().micro;
    for (MemoryItem& item : far_ ? run_.host_memory : run_.memory)
      if (item.what == kAhead) {
        const int64_t before = std::exchange(item.bytes, Prefetcher::bytes_for(*run_.train, loading_) + batch_bytes(*run_.validation));
        if (far_) run_.host_planned_bytes += item.bytes - before;
      }
  }

  // Given with this call, and not by what the run was started with: that is in the config.yaml of its folder, or of the experiment's around it.
  bool is_said_now(const char* key) const {
    const std::string& source = s_.setting(key).source;
    if (source == "command line" || source.starts_with("environment ")) return true;
    const std::filesystem::path file = source.substr(0, source.rfind(':'));
    if (file == source || !file.has_filename()) return false;  // a default, a preset or the profile
    return !config::is_of_run(source, o_.folder);
  }

  // What the run so far was computed in, as far as this device knows it.
  Precision precision_as_before(Precision before) {
    const Fallback fallback = s_.get<bool>("no_fallback") ? Fallback::forbid : Fallback::allow;
    const PrecisionChoice choice = choose_precision(name(before), fallback, run_.backend->arithmetic());
    if (choice.precision != number_format_ || choice.fell_back) {
      for (const std::string& notice : choice.notices)
        if (std::find(run_.notices.begin(), run_.notices.end(), notice) == run_.notices.end()) run_.notices.push_back(notice);
      precision_ = {"precision", std::string(name(choice.precision)), "the run so far", choice.fell_back ? choice.reason : "as it was trained", ""};
    }
    choose_products(*run_.backend, choice.precision, s_.get<std::string>("matmul_precision"));
    return choice.precision;
  }

  void make_step() {
    const Limits limits = read_limits();
    // Whether tokens came from the cache must not change the plan, nor whether a trial was needed: what it has left in the heap is used again.
    baseline_ = (resident_bytes() - left_by_trial_ + kCoarse - 1) / kCoarse * kCoarse;
    BudgetFacts facts = far_ ? device_budget(*run_.backend) : budget_facts(limits, baseline_);
    facts.wish = whole(s_, "memory").value_or(0), facts.fraction = s_.get<double>("memory_fraction");
    if (o_.free_memory) facts.available = std::min(facts.available, o_.free_memory());
    run_.budget = memory_budget(facts);
    run_.notices.insert(run_.notices.end(), run_.budget.notices.begin(), run_.budget.notices.end());
    count_others();
    if (far_) check_host();
    int64_t others = 0;
    for (const MemoryItem& item : run_.memory) others += item.bytes;

    StepOptions options = gpt_step_options(s_);
    options.seed = o_.seed, options.precision = number_format_, options.backend = run_.backend.get();
    options.memory = run_.budget.bytes - others;
    options.memory = std::max<int64_t>(options.memory, 1);  // nothing is left: the refusal below knows what would do
    if (far_ && s_.get<bool>("offload_optimizer")) options.offload = true;
    if (const std::optional<int64_t> parts = whole(s_, "accumulation")) options.micro = (batch_ + *parts - 1) / *parts;
    StepModel model = gpt_step_model(run_.model, batch_);
    run_.parameters = gpt_stored_parameters(run_.model);
    if (earlier_ && !earlier_->choices.empty()) {
      const StepChoices before = StepChoices::from_words(earlier_->choices);
      if (!is_said_now(precision_key_.c_str())) options.precision = precision_as_before(before.precision);
    }
    options.balance = [backend = run_.backend.get(), precision = options.precision, memory = options.memory, figures = step_figures()] {
      return measured_balance(*backend, precision, memory, figures);
    };
    if (earlier_ && !earlier_->choices.empty()) {
      StepOptions same = options;
      try {
        honour(same, earlier_->choices);
        if (is_said_now("accumulation")) same.micro = options.micro;
        same.precision = options.precision;
        if (StepChoices::from_words(earlier_->choices).batch == batch_) run_.step = make_fitting(model, same, others), honoured_ = true;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::memory) throw;
        run_.notices.push_back(fmt::format("the choices of the run so far do not fit any more: {}", error.what()));
      }
    }
    if (!run_.step) try {
        run_.step = make_fitting(model, options, others);
      } catch (const StepTooLarge& error) {
        fail(ErrorCode::memory, "[gpt] the budget of {} ({}) is too small: {} take {}, the step {} at the least; {}", size_text(run_.budget.bytes),
             run_.budget.reason, far_ ? "driver, kernels and libraries" : "the process, its data and batches", size_text(others), size_text(error.least),
             budget_remedy(facts, smallest_budget(others + kNoise, error.least)));
      }
    settle_loading();
    const StepPlan& plan = run_.step->plan();
    auto item = [&](const char* what, int64_t bytes) { run_.memory.push_back({what, bytes}); };
    item("parameters", plan.parameter_bytes), item("gradients", plan.gradient_bytes),
        item(plan.host_bytes ? "moments on their way" : "optimizer moments", plan.optimizer_bytes);
    if (plan.host_bytes) {
      run_.host_memory.push_back({"optimizer moments", plan.host_bytes});
      check_host();
    }
    item("activations", plan.activation_bytes), item("scratch of kernels", plan.scratch_bytes), item("micro-batch", plan.batch_bytes);
    item("losses of validation", plan.losses_bytes);
    item("scalars and alignment", plan.planned_bytes - plan.parameter_bytes - plan.gradient_bytes - plan.optimizer_bytes - plan.activation_bytes -
                                      plan.scratch_bytes - plan.batch_bytes - plan.losses_bytes);
    // With the programs that were compiled since; a resumed run also holds pages of the files from which it reads its state.
    if (!far_) run_.memory.front().bytes = resident_bytes() + kGrowth + (o_.resume ? kReading : 0);
    for (const MemoryItem& m : run_.memory) run_.planned_bytes += m.bytes;
    if (!far_) count_past();
  }

  // Where a coarse count of the process leaves too little, the fine one decides: by then programs have been compiled, so it knows what they take.
  // A new run leaves room for what resuming it takes, so that the same budget does for both.
  std::unique_ptr<TrainStep> make_fitting(const StepModel& model, StepOptions options, int64_t& others) {
    try {
      return std::make_unique<TrainStep>(model, options);
    } catch (const StepTooLarge& error) {
      if (!far_) {
        const int64_t fine = std::min(resident_bytes() + kGrowth + (o_.resume ? 0 : kReading), run_.memory.front().bytes);
        others -= std::exchange(run_.memory.front().bytes, fine) - fine;
      }
      options.memory = run_.budget.bytes - others;
      if (options.memory < error.least) throw;
    }
    return std::make_unique<TrainStep>(model, options);
  }

  // Batches ahead are held whole where they take at most a sixteenth of the budget; else parts of them take that sixteenth.
  int64_t smallest_budget(int64_t others, int64_t step) const {
    if (far_) return others + step;
    const int64_t ahead = Prefetcher::bytes_for(*run_.train, loading_), fixed = others + step - (run_.trainer.load_parts ? run_.budget.bytes / 16 : ahead);
    const int64_t in_parts = fixed + fixed / 15 + 16, whole = std::max(16 * ahead, fixed + ahead);
    return run_.train->has_parts() && in_parts < 16 * ahead ? in_parts : whole;
  }

  // An earlier run of an experiment may have taken more than this one. It is over by now; the most that the process held stays what it is.
  void count_past() {
    const int64_t held = peak_resident_bytes();
    if (held > run_.budget.bytes)
      run_.notices.push_back(fmt::format("up to {} were held before this training, more than its budget of {}", size_text(held), size_text(run_.budget.bytes)));
    run_.passed_bytes = std::max<int64_t>(0, held - run_.planned_bytes);
    if (run_.passed_bytes > 0) run_.memory.push_back({"more, held before", run_.passed_bytes});
    run_.planned_bytes += run_.passed_bytes;
  }

  void estimate() {
    if (far_) {
      const GpuStepTime time = gpu_step_time(*run_.step, *run_.backend, step_figures());
      run_.least_seconds = time.least, run_.expected_step_seconds = time.expected, run_.expected_from = time.source;
      run_.expected_key = time.key;
      return;
    }
    if (!o_.measure) return;
    const KernelRates rates = known_kernel_rates(measuring_team(), std::min(run_.planned_bytes - run_.passed_bytes, run_.budget.bytes) - baseline_,
                                                 run_.step->plan().choices.precision);
    run_.least_seconds = run_.step->least_seconds(1e9 * rates.fma_gflops, 1e9 * rates.copy_gbs);
    run_.expected_step_seconds = expected_seconds(run_.step->kernels(), rates), run_.roof_others = rates.others;
    run_.expected_from = rates.source;
    if (&measuring_team() != &default_team()) run_.expected_from += fmt::format(", with {}", counted(measuring_team().size(), "thread"));
  }

  void fill_trainer() {
    TrainerOptions& t = run_.trainer;
    t.folder = o_.folder, t.resume = o_.resume, t.schedule = schedule_, t.tokens_per_sample = run_.model.block;
    auto interval = [&](const char* key, std::optional<int64_t>& to, bool& on) {
      to = whole(s_, key);
      on = s_.get<std::string>(key) != "none";
    };
    interval("eval_interval", t.validation_interval, t.validate);
    interval("checkpoint_interval", t.checkpoint_interval, t.keep_checkpoints);
    interval("sample_interval", t.sample_interval, t.samples);
    t.max_minutes = s_.get<std::optional<double>>("max_minutes").value_or(0);
    t.target = s_.get<std::optional<double>>("target_loss");
    t.prefetch = loading_.depth, t.async_loading = loading_.threaded;
    t.trim_interval = s_.get<int64_t>("empty_cache_frequency");
    if (far_) {
      // As the driver counts it: what is no longer free since the run began, and what the driver had taken for itself by then.
      t.device_bytes = [backend = run_.backend.get(), before = device_before_] { return before.free - backend->memory().free + before.held; };
      t.device_choice = device_.value;
      t.pinned_bytes = s_.get<bool>("enable_pinned_memory") ? int64_t(s_.get<double>("pin_memory_ratio") * double(read_limits().memory_total)) : 0;
    }
    t.least_seconds = run_.least_seconds, t.roof_others = run_.roof_others, t.expected_step_seconds = run_.expected_step_seconds,
    t.planned_bytes = run_.planned_bytes;
  }

  void describe() {
    const StepPlan& plan = run_.step->plan();
    std::vector<Decision>& d = run_.decisions;
    const std::string size = parameters_text(run_.parameter_count());
    d.push_back({"model", run_.init_from ? size : fmt::format("{}, {}", s_.get<std::string>("preset"), size),
                 run_.init_from ? "init_from" : s_.setting("preset").source, model_text(run_.model) + smaller_vocabulary()});
    if (earlier_)
      d.push_back(as_set(s_, "resume", fmt::format("from step {} of {}", earlier_->step.attempted, schedule_.steps), "with the choices of the run so far"));
    if (run_.init_from) d.push_back(as_set(s_, "init_from", run_.init_from->folder.string(), "weights and sizes come from there"));
    d.push_back(as_set(s_, "data", run_.data.name, run_.data.notes.empty() ? "" : run_.data.notes.front()));
    d.push_back(as_set(s_, "tokenizer", fmt::format("{}, {} tokens", run_.data.tokenizer ? run_.data.tokenizer->name() : "none", run_.data.vocab),
                       run_.data.learnt_from));
    if (run_.init_from && run_.init_from->tokenizer) d.back().decided_by = "init_from";
    d.push_back(device_), d.push_back(precision_);
    const ThreadChoice& threads = default_threads();
    d.push_back({"threads", fmt::format("{}", threads.team.threads), threads.decided_by,
                 far_ ? "for data and files, beside the GPU: " + threads.reason : threads.reason, threads.runner_up});
    run_.notices.insert(run_.notices.end(), threads.remarks.begin(), threads.remarks.end());
    if (far_)
      d.push_back({"kernels", run_.backend->info().what, "detected", "compiled for this chip"});
    else
      d.push_back({"kernels", std::string(name(isa_tier())), "detected", "the best instructions this CPU has"});
    d.push_back({"memory", size_text(run_.budget.bytes), s_.setting(whole(s_, "memory") ? "memory" : "memory_fraction").source, run_.budget.reason});
    d.push_back(as_set(s_, "batch", fmt::format("{} x {} tokens", batch_, run_.model.block)));
    const bool as_before = honoured_ && !is_said_now("accumulation");
    d.push_back({"micro-batch", fmt::format("{} x {}{}", plan.repeats, plan.micro, plan.remainder ? fmt::format(" + {}", plan.remainder) : ""),
                 as_before                   ? "the run so far"
                 : whole(s_, "accumulation") ? s_.setting("accumulation").source
                                             : "planned",
                 as_before || plan.decisions.empty() ? "as it was split" : plan.decisions.back(), as_before ? "" : plan.other_split});
    const int64_t parts = plan.repeats + (plan.remainder > 0);
    if (const std::optional<int64_t> asked = whole(s_, "accumulation"); asked && !as_before && *asked != parts)
      d.back().why = fmt::format("{} asked for; {} make {} that are equal but for the last", counted(*asked, "part"), counted(batch_, "sample"), parts);
    d.push_back({"recompute", std::string(name(plan.recompute)), honoured_ ? "the run so far" : "planned",
                 plan.recompute == Recompute::free ? "only what costs nothing" : "to fit the budget", honoured_ ? "" : plan.other_recompute});
    if (plan.host_bytes)
      d.push_back({"offload", fmt::format("{} of moments in the host's memory", size_text(plan.host_bytes)),
                   s_.get<bool>("offload_optimizer") ? s_.setting("offload_optimizer").source : "planned",
                   s_.get<bool>("offload_optimizer") ? "they pass the device in every update" : "nothing else fits"});
    d.push_back({"rate", fmt::format("{:g} to {:g}, {}", schedule_.lr, schedule_.min_lr, s_.get<std::string>("schedule")), s_.setting("lr").source,
                 schedule_.warmup < schedule_.steps ? fmt::format("{} of warm-up", counted(schedule_.warmup, "step"))
                                                    : fmt::format("{} of warm-up: the run ends on the way, at {:.3g}; set warmup=N below {}",
                                                                  counted(schedule_.warmup, "step"), schedule_.rate(schedule_.steps - 1), schedule_.steps)});
    const double times = double(schedule_.steps) * double(batch_ * run_.model.block) / run_.tokens_per_epoch;
    const std::string through = times < 99.5 ? fmt::format("{:.2g}", times) : count_text(times);
    d.push_back(as_set(s_, "steps", fmt::format("{}", schedule_.steps), through == "1" ? "once through the data" : through + " times through the data"));
    if (s_.get<std::string>("eval_interval") == "none")
      d.push_back({"validation", "none", s_.setting("eval_interval").source, "asked for"});
    else
      d.push_back({"validation", counted(run_.validation_windows, "window"), "default",
                   run_.validation_windows == run_.all_validation_windows
                       ? "all there are"
                       : fmt::format("a fixed, even subset of {}: all would take over 5 % of the time", run_.all_validation_windows)});
    note_settings_without_effect();
    for (const config::Note& note : s_.notes()) run_.notices.push_back(fmt::format("{}: {}", note.source, note.text));
    if (const std::string remark = Profile(fingerprint(look_at_machine({}))).remark(); !remark.empty()) run_.notices.push_back(remark);
    if (run_.expected_step_seconds > 0) d.push_back({"expected", duration_text(run_.expected_step_seconds) + " a step", "measured", run_.expected_from});
  }

  // The presets of GPT-2's are known by sizes that count its vocabulary, and a text may have a much smaller one.
  std::string smaller_vocabulary() const {
    constexpr int64_t kGpt2Vocab = 50257;
    const std::string preset = s_.get<std::string>("preset");
    if (run_.init_from || !preset.starts_with("gpt2") || run_.model.vocab >= kGpt2Vocab) return "";
    GptConfig full = run_.model;
    full.vocab = kGpt2Vocab;
    int64_t count = 0;
    for (const Parameter& p : gpt_stored_parameters(full)) count += p.shape.numel();
    return fmt::format("; {:.0f} M with GPT-2's vocabulary of {}, but this tokenizer has {} tokens", double(count) / 1e6, kGpt2Vocab, run_.model.vocab);
  }

  // Asked for, and without effect on the device that was chosen. What device, precision and threads became is told elsewhere.
  void note_settings_without_effect() {
    for (const config::Row& row : s_.describe({.cuda = far_}))
      if (!row.remark.empty() && row.key->name != "device" && !row.key->name.starts_with("precision") && row.key->name != "threads")
        run_.notices.push_back(fmt::format("{}={} ({}): {}", row.key->name, row.value, row.source, row.remark));
    if (far_ && number_format_ != Precision::fp32 && number_format_ != Precision::tf32 && is_said_now("matmul_precision"))
      run_.notices.push_back(fmt::format("matmul_precision={} ({}): no effect in {}, whose products have no fp32 factors",
                                         s_.get<std::string>("matmul_precision"), s_.setting("matmul_precision").source, name(number_format_)));
  }

  // What the step's programs and those of other plans will take on the heap; counted when they are there.
  int64_t programs_bytes() const { return (6 + run_.model.layers) << 20; }

  Figures figures() const { return o_.measure ? Figures::measured : Figures::none; }
  // A training that was told which GPU to use does not spend seconds on measuring it.
  Figures step_figures() const { return far_ && !o_.probe ? std::min(figures(), Figures::kept) : figures(); }

  static constexpr const char* kAhead = "batches ahead";
  // What grows afterwards without a plan in detail: code pages, stacks, logs, JSON.
  static constexpr int64_t kGrowth = int64_t(8) << 20, kReading = int64_t(3) << 20, kCoarse = int64_t(16) << 20;
  static constexpr int64_t kNoise = int64_t(1) << 20;           // by which the next process may hold more than this one
  static constexpr int64_t kDeviceGrowth = int64_t(160) << 20;  // kernels, recordings and libraries that are loaded later

  const Resolved& s_;
  const GptRunOptions& o_;
  GptRun run_;
  Decision device_, precision_;
  Precision number_format_ = Precision::fp32;
  std::string precision_key_ = "precision";
  Schedule schedule_;
  Prefetcher::Options loading_;
  std::optional<RunState> earlier_;  // of the run that is resumed
  std::function<void()> gpus_;       // waits for measurements that were begun
  int64_t batch_ = 0, baseline_ = 0, left_by_trial_ = 0;
  bool far_ = false;       // the device has memory of its own
  bool honoured_ = false;  // the step is split and recomputed as in the run so far
  DeviceMemory device_before_;
};

}  // namespace

GptRun settle_gpt_run(const Resolved& settings, const GptRunOptions& options) { return Settling(settings, options)(); }

void check_gpt_data(const Resolved& settings, const GptRunOptions& options) { Settling(settings, options).open_data(); }

}  // namespace ridge
