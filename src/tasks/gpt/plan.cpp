// Plans a GPT run: from settings to data and model; RunPlanner does the rest.
#include <algorithm>
#include <bit>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "data/find_source.h"
#include "measure/default_team.h"
#include "tasks/gpt/files.h"
#include "tasks/gpt/format_trial.h"
#include "tasks/gpt/run.h"
#include "tasks/gpt/sampler.h"
#include "tasks/gpt/task.h"
#include "train/checkpoint.h"
#include "train/train_text.h"

namespace ridge {
namespace {

using config::Resolved;

std::optional<int64_t> whole(const Resolved& s, const char* key) { return s.get<std::optional<int64_t>>(key); }

class GptPlanner {
 public:
  GptPlanner(const Resolved& settings, const RunOptions& options) : s_(settings), o_(options), planner_(settings, options, run_) {}

  GptRun operator()() {
    try {
      return plan();
    } catch (const Error& error) {  // it might have fit on the requested device
      if (run_.fallback.empty()) throw;
      throw Error(error.code(), fmt::format("[device] {}\n{}", run_.fallback, error.what()));
    }
  }

  GptRun plan() {
    run_.seed = o_.seed, run_.unit = "tokens";
    planner_.read_earlier();
    if (o_.resume) planner_.refuse_finished_run(required_size(s_, "steps"));
    planner_.choose_named_device();
    open_data();
    make_sources();
    planner_.choose_device(gpt_work(run_.model, batch_),
                           [&](int64_t memory, Figures figures) { return try_formats(run_.model, batch_, measuring_team(), memory, figures); });
    planner_.plan(needs());
    read_intervals(s_, run_.trainer);
    read_interval(s_, "sample_interval", run_.trainer.sample_interval, run_.trainer.samples);
    run_.trainer.schedule = schedule_, run_.trainer.tokens_per_sample = double(run_.model.block);
    describe();
    return std::move(run_);
  }

  void open_data() {
    DatasetOptions d;
    d.tokenizer = s_.get<std::string>("tokenizer");
    d.block = required_size(s_, "block"), d.progress = o_.progress, d.memory = host_memory(s_, run_.on_device());
    if (earlier()) d.cut = earlier()->cut;
    const std::string from = s_.get<std::string>("init_from");
    if (!from.empty()) {
      // A resumed run uses its own weights, sizes and tokenizer.
      run_.init_from = std::make_unique<GptWeights>(load_gpt_weights(earlier() ? o_.folder : std::filesystem::path(expand_home(from))));
      run_.notices.insert(run_.notices.end(), run_.init_from->notices.begin(), run_.init_from->notices.end());
      d.given = run_.init_from->tokenizer, d.block = run_.init_from->config.block, d.model = run_.init_from->folder.string();
      if (!planner_.is_set_now("tokenizer")) d.tokenizer = "auto";
      check_sizes();
    }
    run_.data = open_dataset(o_.data, d);
    if (earlier() && !d.given) keep_vocabulary(d);
    run_.model = gpt_config(s_, run_.data.vocab);
    if (run_.init_from) take_model();
    try {
      (void)gpt_parameters(run_.model);
    } catch (const Error& error) {  // inconsistent sizes are a usage error
      throw Error(ErrorCode::usage, error.what());
    }
  }

 private:
  // A learned vocabulary depends on the memory available at the time, and the cache may have changed since, so a resumed run keeps its own.
  void keep_vocabulary(DatasetOptions d) {
    const auto before = earlier()->identity.find("data");
    if (before == earlier()->identity.end() || before->second == data_identity(run_.data)) return;
    if (const std::string content = fmt::format(" ({})", run_.data.fingerprint.substr(0, 12));
        before->second.ends_with(content)) {  // only its name has changed
      run_.data.name = before->second.substr(0, before->second.size() - content.size());
      return;
    }
    if (!run_.data.tokenizer || run_.data.tokenizer->name() != "bpe") return;
    std::vector<std::string> ignored;
    const std::optional<StoredCheckpoint> stored = CheckpointStore(o_.folder / "checkpoints").newest(ignored);
    if (!stored || !stored->texts.contains("tokenizer.json")) return;
    d.given = load_tokenizer((stored->folder / "tokenizer.json").string());
    Dataset own = open_dataset(o_.data, d);
    if (data_identity(own) == before->second) run_.data = std::move(own);
  }

  // Requested sizes that conflict with the weights are an error, not ignored.
  void check_sizes() {
    GptConfig asked = gpt_config(s_, run_.init_from->config.vocab);
    const auto requested = size_words(asked);
    run_.fixed_sizes = size_words(run_.init_from->config);
    for (size_t i = 0; i < requested.size(); ++i) {
      const auto& [key, value] = run_.fixed_sizes[i];
      if (requested[i].second != value && planner_.is_set_now(key.c_str()))
        fail(ErrorCode::usage, "[gpt] the model in {} has {} {}, not {}; leave {} out", run_.init_from->folder.string(), key, value, requested[i].second, key);
    }
  }

  // Sizes come from the weights; the settings only decide dropout.
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
    schedule_ = schedule_of(s_, required_size(s_, "steps"), "gpt");
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
    // All windows, unless even two validations per run would take more than a twentieth of its time.
    const double affordable = 0.05 * 3 * double(batch_) * double(schedule_.steps);  // windows per run; each costs a third of a training sample
    if (!whole(s_, "eval_interval") && double(run_.validation_windows) * 2 > affordable) {
      const int64_t most = std::max<int64_t>(std::min<int64_t>(run_.validation_windows, 8), int64_t(affordable / 5));
      run_.validation = some_validation_windows(most);
      run_.data.possible = possible_loss(run_.data, most);
      run_.validation_windows = windows();
    }
  }

  // Checks all counts of a run for overflow before they are printed or used for planning.
  void check_products() const {
    const GptConfig& c = run_.model;
    const Factor steps{"steps", schedule_.steps}, batch{"batch", batch_}, block{"block", c.block};
    checked_product("gpt", "tokens", {steps, batch, block});
    checked_product("gpt", "bytes of batches ahead", {batch, block, {"prefetch_factor + 1", s_.get<int64_t>("prefetch_factor") + 1}, {"", 16}});
    constexpr int64_t kLayerBytes = 512, kLogitBytes = 16;  // upper bounds per element of the hidden state and of the logits
    checked_product("gpt", "bytes of activations", {batch, block, {"layers", c.layers}, {"width", c.width}, {"", kLayerBytes}});
    checked_product("gpt", "bytes of logits", {batch, block, {"vocabulary", c.vocab}, {"", kLogitBytes}});
  }

  // Batches are limited to the number of windows and to a small buffer.
  std::unique_ptr<BatchSource> some_validation_windows(int64_t most) const {
    constexpr int64_t kBytes = int64_t(64) << 20;
    const int64_t block = run_.model.block, fit = std::max<int64_t>(1, kBytes / (2 * block * int64_t(sizeof(int64_t))));
    const int64_t batch = std::min(batch_, int64_t(std::bit_floor(uint64_t(fit))));
    std::unique_ptr<BatchSource> windows = validation_windows(run_.data, batch, block, most);
    if (windows->samples(0) < batch) windows = validation_windows(run_.data, std::max<int64_t>(1, windows->samples(0)), block, most);
    return windows;
  }

  RunNeeds needs() {
    RunNeeds n;
    n.task = "gpt", n.train = run_.train.get(), n.validation = run_.validation.get(), n.loading = loading_, n.batch = batch_;
    n.steps = schedule_.steps;
    for (const Parameter& p : gpt_parameters(run_.model)) n.parameters += p.shape.numel();
    n.copies = s_.get<std::string>("checkpoint_interval") != "none" ? 3 : 1;  // without checkpoints, only the weights are copied, at the end
    n.program_bytes = (6 + run_.model.layers) << 20;
    n.data_bytes = run_.data.train.resident_cap() + run_.data.validation.resident_cap();
    if (s_.get<std::string>("sample_interval") != "none" && run_.data.tokenizer)
      n.sample_bytes = [this] {
        run_.make_sampler(std::vector<const void*>(gpt_parameters(run_.model).size()));  // null pointers: only sizes matter before the step's memory exists
        return run_.sampler->planned_bytes();
      };
    n.step = gpt_step_options(s_), n.step.seed = o_.seed;
    run_.parameters = gpt_stored_parameters(run_.model);
    n.make_step = [this, model = gpt_step_model(run_.model, batch_)](const StepOptions& options) {
      run_.own_step = std::make_unique<TrainStep>(model, options);
      return run_.own_step.get();
    };
    return n;
  }

  void describe() {
    std::vector<Decision> first, last;
    const std::string size = parameters_text(run_.parameter_count());
    first.push_back({"model", run_.init_from ? size : fmt::format("{}, {}", s_.get<std::string>("preset"), size),
                     run_.init_from ? "init_from" : s_.setting("preset").source, model_text(run_.model) + smaller_vocabulary()});
    if (run_.init_from) first.push_back(as_set(s_, "init_from", run_.init_from->folder.string(), "weights and sizes come from there"));
    first.push_back(as_set(s_, "data", run_.data.name, run_.data.notes.empty() ? "" : run_.data.notes.front()));
    first.push_back(as_set(s_, "tokenizer", fmt::format("{}, {} tokens", run_.data.tokenizer ? run_.data.tokenizer->name() : "none", run_.data.vocab),
                           run_.data.learnt_from));
    if (run_.init_from && run_.init_from->tokenizer) first.back().decided_by = "init_from";

    last.push_back(rate_decision(schedule_, s_.setting("lr").source));
    const double times = double(schedule_.steps) * double(batch_ * run_.model.block) / run_.tokens_per_epoch;
    const std::string through = times < 99.5 ? fmt::format("{:.2g}", times) : count_text(times);
    last.push_back(as_set(s_, "steps", fmt::format("{}", schedule_.steps), through == "1" ? "once through the data" : through + " times through the data"));
    if (s_.get<std::string>("eval_interval") == "none")
      last.push_back({"validation", "none", s_.setting("eval_interval").source, "asked for"});
    else
      last.push_back({"validation", counted(run_.validation_windows, "window"), "default",
                      run_.validation_windows == run_.all_validation_windows
                          ? "all there are"
                          : fmt::format("a fixed, even subset of {}: all would take over 5 % of the time", run_.all_validation_windows)});
    planner_.describe(std::move(first), as_set(s_, "batch", fmt::format("{} x {} tokens", batch_, run_.model.block)), last);
  }

  // The gpt2 presets are known by parameter counts that include GPT-2's vocabulary; a text may have a much smaller one.
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

  const std::optional<RunState>& earlier() const { return planner_.earlier(); }

  const Resolved& s_;
  const RunOptions& o_;
  GptRun run_;
  RunPlanner planner_;
  Schedule schedule_;
  Prefetcher::Options loading_;
  int64_t batch_ = 0;
};

}  // namespace

GptRun plan_gpt_run(const Resolved& settings, const RunOptions& options) { return GptPlanner(settings, options)(); }

void check_gpt_data(const Resolved& settings, const RunOptions& options) { GptPlanner(settings, options).open_data(); }

}  // namespace ridge
