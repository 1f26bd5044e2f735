#include "config/foreign.h"

#include <algorithm>
#include <optional>

#include <fmt/core.h>

#include "base/nearest.h"
#include "base/text.h"
#include "config/words.h"

namespace ridge::config {
namespace {

// Sections of config_gpu.ini, then of train.yaml. Names in them are looked up as if there were no section.
constexpr std::string_view kSections[] = {"gpu", "memory_management", "precision", "threads", "backend", "dataset", "training", "model", "paths", "logging"};

struct Foreign {
  std::string_view path;  // section.name, or a name without a section
  std::string_view key;   // the key that it sets; empty: none
  std::string_view remark = {};
  std::optional<bool> only = {};  // the only value that files may give it, which asks for nothing
};

constexpr std::string_view kSteps = "training is counted in steps; set steps";
constexpr std::string_view kLoader = "the loader's threads are chosen by Ridge; prefetch_factor sets how many batches are loaded ahead";
constexpr std::string_view kFormat = "set precision=auto|fp32|tf32|bf16|fp16";
constexpr std::string_view kMeasured = "kernels are always chosen by measurement; optimize_perf=false turns measuring off";
constexpr std::string_view kLayout = "the compiler chooses the layout of every tensor in memory";
constexpr std::string_view kRecompute = "recomputation is planned from the memory budget; set memory, or recompute=layers";
constexpr std::string_view kLogged = "every run writes metrics.jsonl; set tensorboard=true for event files";

constexpr Foreign kForeign[] = {
    {"dataset.path", "data"},
    {"dataset.name", "", "a dataset is named by its path here; set data"},
    {"dataset.size", "", "a dataset has the size of its files"},
    {"dataset.split", "", "Ridge chooses the validation part, the same for every run"},
    {"precision.cpu", "precision.cpu"},
    {"precision.cuda", "precision.cuda"},
    {"precision.metal", "precision.metal"},
    {"training.epochs", "", kSteps},
    {"epochs", "", kSteps},
    {"max_epochs", "", kSteps},
    {"num_epochs", "", kSteps},
    {"num_train_epochs", "", kSteps},
    {"training.num_workers", "", kLoader},
    {"num_workers", "", kLoader},
    {"paths.checkpoints_dir", "", "checkpoints are in the run folder; set runs_dir or out"},
    {"paths.data_dir", "", "data is named by its own path; set data"},
    {"logging.format", "", "both forms are written: log.txt and metrics.jsonl"},
    {"tag", "", "a run is named by its folder; set out"},
    {"amp", "", kFormat},
    {"use_amp", "", kFormat},
    {"autocast", "", kFormat},
    {"mixed_precision", "", kFormat},
    {"cudnn_benchmark", "", kMeasured},
    {"cudnn.benchmark", "", kMeasured},
    {"benchmark", "", kMeasured},
    {"memory_format", "", kLayout},
    {"channels_last", "", kLayout},
    {"compile", "", "every step is compiled"},
    {"torch_compile", "", "every step is compiled"},
    {"gradient_checkpointing", "", kRecompute},
    {"activation_checkpointing", "", kRecompute},
    {"eval_iters", "", "a validation takes all windows, or a fixed share of them; eval_interval says how often"},
    {"decay_lr", "", "set schedule=cosine|linear|constant"},
    {"lr_decay_iters", "", "the learning rate falls until the last step; set steps and min_lr"},
    {"wandb_log", "", kLogged},
    {"wandb_project", "", kLogged},
    {"wandb_run_name", "", kLogged},
    {"streaming_transfer", "", "a batch of tokens takes microseconds to copy and goes to the GPU in the queue of its step, so there is nothing to switch",
     true},
    {"offload_parameters", "", "weights stay on the device; offload_optimizer=true keeps the moments, which take twice as much, in host memory", false},
};

}  // namespace

Meaning meaning_of(unsigned task, std::string_view section, std::string_view name, std::span<const std::string> options) {
  std::string path = section.empty() ? std::string(name) : fmt::format("{}.{}", section, name), plain = lower_case(name);
  for (std::string* text : {&path, &plain}) std::replace(text->begin(), text->end(), '-', '_');
  for (const std::string& text : {path, plain, plain.starts_with("no_") ? plain.substr(3) : plain})
    for (const Foreign& f : kForeign)
      if (f.path == text) return f.key.empty() ? Meaning{nullptr, f.remark, f.only} : Meaning{find_key(f.key, task)};
  if (const Key* key = find_key(name, task)) return {key};
  return {.problem = unknown_key(name, options)};
}

std::string section_problem(std::string_view section) {
  if (std::find(std::begin(kSections), std::end(kSections), section) != std::end(kSections)) return {};
  return fmt::format("unknown section {}; {}", shown(section), nearest_hint(lower_case(section), kSections));
}

}  // namespace ridge::config
