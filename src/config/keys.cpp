// The table of keys, and functions that read its rows.
#include <algorithm>
#include <iterator>
#include <vector>

#include <fmt/core.h>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "config/key.h"
#include "config/value.h"
#include "config/words.h"

namespace ridge::config {
namespace {

using enum Type;

bool is_true(const Value& v) { return v.as<bool>() && *v.as<bool>(); }

std::string needs_gpu(const Value& v, const MachineFacts& m) { return is_true(v) && !m.cuda ? "no effect here: there is no CUDA device to copy to" : ""; }

std::string needs_gpu_to_offload(const Value& v, const MachineFacts& m) {
  return is_true(v) && !m.cuda ? "no effect here: on the CPU, everything is in host memory already" : "";
}

std::string ratio_needs_gpu(const Value&, const MachineFacts& m) { return m.cuda ? "" : "no effect here: without a CUDA device, no memory is pinned"; }

std::string device_exists(const Value& v, const MachineFacts& m) {
  const std::string* requested = v.as<std::string>();
  if (requested && requested->starts_with("cuda") && !m.cuda) return "no CUDA device here: the CPU is used, or with no_fallback=true the run is refused";
  if (requested && *requested == "metal" && !m.metal) return "no Metal device here: the next best device is used, or with no_fallback=true the run is refused";
  return {};
}

std::string precision_exists(const Value& v, const MachineFacts& m) {
  if (v.is("tf32") && !m.cuda) return "tf32 exists on CUDA devices only; fp32 is used here";
  return {};
}

std::string matmul_precision_exists(const Value& v, const MachineFacts& m) {
  if ((v.is("high") || v.is("medium")) && !m.cuda) return "no effect here: without a CUDA device, fp32 matmuls run in fp32";
  return {};
}

std::string threads_exist(const Value& v, const MachineFacts& m) {
  const int64_t* requested = v.as<int64_t>();
  if (requested && m.cpus > 0 && *requested > m.cpus) return fmt::format("more than the {} CPUs available to this process", m.cpus);
  return {};
}

constexpr double kManySteps = 1e12, kManyBytes = 0x1p62, kLargestSeed = 0x1p53;
constexpr std::string_view kTraining = "Training", kData = "Data", kRun = kRunGroup, kDevice = "Device and precision", kMemory = "Memory", kThreads = "Threads",
                           kTargets = "Targets of probe --check";

constexpr std::string_view kFormats = "float32=fp32 float=fp32 32=fp32 bfloat16=bf16 float16=fp16 half=fp16 16=fp16 amp=auto mixed=auto";

// clang-format off
constexpr Key precision_of(std::string_view name, std::string_view alias, std::string_view help) {
  return {.name = name, .group = kDevice, .type = choice, .initial = "none", .help = help, .words = "none|auto|fp32|tf32|bf16|fp16", .aliases = alias,
          .synonyms = kFormats, .used_by = "doctor, eval, plan, sample, train"};
}

constexpr Key kSharedKeys[] = {
  {.name = "steps", .group = kTraining, .type = integer, .initial = "auto", .help = "number of optimizer steps; auto: from the preset", .words = "auto",
   .low = 1, .high = kManySteps, .tasks = kTrain, .aliases = "max_iters max_steps", .used_by = "plan, train"},
  {.name = "batch", .group = kTraining, .type = integer, .initial = "auto", .help = "samples per step, split into micro-batches if they do not fit into memory; auto: the smallest within 2 % of the fastest, measured; not set: from the preset",
   .words = "auto", .low = 1, .high = 1e9, .tasks = kTrain, .aliases = "batch_size", .used_by = "plan, train"},
  {.name = "accumulation", .group = kTraining, .type = integer, .initial = "auto", .help = "micro-batches per step; auto: as few as fit into memory", .words = "auto",
   .low = 1, .high = 1e6, .tasks = kTrain, .aliases = "gradient_accumulation_steps gradient_accumulation accumulate_grad_batches", .used_by = "plan, train"},
  {.name = "lr", .group = kTraining, .type = real, .initial = "auto", .help = "peak learning rate; auto: from the preset", .words = "auto",
   .high = 1000, .tasks = kTrain, .aliases = "learning_rate", .used_by = "plan, train"},
  {.name = "min_lr", .group = kTraining, .type = real, .initial = "auto", .help = "final learning rate; auto: a tenth of lr", .words = "auto",
   .high = 1000, .tasks = kTrain, .aliases = "min_learning_rate", .used_by = "plan, train"},
  {.name = "warmup", .group = kTraining, .type = integer, .initial = "auto", .help = "linear warm-up steps; auto: from the preset", .words = "auto",
   .high = kManySteps, .tasks = kTrain, .aliases = "warmup_iters warmup_steps", .used_by = "plan, train"},
  {.name = "schedule", .group = kTraining, .type = choice, .initial = "cosine", .help = "how the learning rate falls from lr to min_lr", .words = "cosine|linear|constant",
   .tasks = kTrain, .aliases = "lr_schedule", .used_by = "plan, train"},
  {.name = "optimizer", .group = kTraining, .type = choice, .initial = "adamw", .help = "how weights are updated; muon: orthogonal updates for the matrices of hidden layers, AdamW for the rest; sgd: beta1 is the momentum",
   .words = "adamw|adam|sgd|muon", .tasks = kTrain, .used_by = "plan, train"},
  {.name = "weight_decay", .group = kTraining, .type = real, .initial = "0.1", .help = "weight decay, applied to weights with two or more axes", .high = 1000, .tasks = kTrain, .used_by = "plan, train"},
  {.name = "beta1", .group = kTraining, .type = real, .initial = "0.9", .help = "AdamW decay rate of the first moment", .high = 1, .below_high = true, .tasks = kTrain, .used_by = "plan, train"},
  {.name = "beta2", .group = kTraining, .type = real, .initial = "auto", .help = "AdamW decay rate of the second moment; auto: from the preset", .words = "auto",
   .high = 1, .below_high = true, .tasks = kTrain, .used_by = "plan, train"},
  {.name = "muon_momentum", .group = kTraining, .type = real, .initial = "0.95", .help = "Muon's momentum, of Nesterov's kind", .high = 1, .below_high = true, .tasks = kTrain, .used_by = "plan, train"},
  {.name = "muon_scale", .group = kTraining, .type = real, .initial = "0.2", .help = "root mean square of Muon's updates in units of the learning rate; AdamW's is about 0.2", .high = 1000, .tasks = kTrain, .used_by = "plan, train"},
  {.name = "clip", .group = kTraining, .type = real, .initial = "1", .help = "maximum global gradient norm; 0: no clipping", .high = 1e9, .tasks = kTrain,
   .aliases = "grad_clip clip_grad clip_grad_norm", .used_by = "plan, train"},
  {.name = "seed", .group = kTraining, .type = integer, .initial = "1337", .help = "random seed for initial weights, data order, dropout and sampling", .high = kLargestSeed, .tasks = kTrain, .used_by = "plan, sample, train"},
  {.name = "seeds", .group = kTraining, .type = integer, .initial = "1", .help = "number of runs, with seeds seed, seed + 1, …; reports means and standard errors",
   .low = 1, .high = 1000, .tasks = kTrain, .aliases = "num_seeds", .used_by = "plan, train"},
  {.name = "max_minutes", .group = kTraining, .type = real, .initial = "none", .help = "time limit in minutes; the run ends with a checkpoint", .words = "none",
   .high = 1e7, .above_low = true, .tasks = kTrain, .used_by = "train"},
  {.name = "target_loss", .group = kTraining, .type = real, .initial = "none", .help = "stop when the validation loss reaches this value", .words = "none",
   .low = -1e9, .high = 1e9, .tasks = kTrain, .used_by = "train"},

  {.name = "data", .group = kData, .type = list, .initial = "builtin", .help = "text file, folder or token files; builtin: generated stories; several sources: one run each",
   .tasks = kTrain, .aliases = "dataset", .used_by = "eval, plan, train"},
  {.name = "prefetch_factor", .group = kData, .type = integer, .initial = "2", .help = "number of batches loaded ahead", .low = 1, .high = 1024, .tasks = kTrain, .used_by = "plan, train"},
  {.name = "enable_async_loading", .group = kData, .type = boolean, .initial = "true", .help = "load batches on background threads", .tasks = kTrain, .used_by = "plan, train"},

  {.name = "out", .group = kRun, .type = path, .initial = "", .help = "run folder; empty: a new folder in runs_dir", .tasks = kTrain, .aliases = "out_dir", .used_by = "train"},
  {.name = "runs_dir", .group = kRun, .type = path, .initial = "runs", .help = "parent folder of new run folders", .tasks = kTrain, .used_by = "train"},
  {.name = "resume", .group = kRun, .type = boolean, .initial = "false", .help = "resume from the run folder's last checkpoint", .tasks = kTrain, .used_by = "train"},
  {.name = "eval_interval", .group = kRun, .type = integer, .initial = "auto", .help = "steps between validations; auto: validation takes under 5 % of the time", .words = "auto|none",
   .low = 1, .high = kManySteps, .tasks = kTrain, .used_by = "plan, train"},
  {.name = "checkpoint_interval", .group = kRun, .type = integer, .initial = "auto", .help = "steps between checkpoints; auto: at most ten per run, 20 s to 10 min apart", .words = "auto|none",
   .low = 1, .high = kManySteps, .tasks = kTrain, .aliases = "save_interval", .used_by = "plan, train"},
  {.name = "profile", .group = kRun, .type = boolean, .initial = "false", .help = "record where the time of one step in 50 goes: profile.json, a trace and pictures in the run folder", .tasks = kTrain,
   .used_by = "train"},
  {.name = "tensorboard", .group = kRun, .type = boolean, .initial = "false", .help = "also write TensorBoard event files", .tasks = kTrain, .used_by = "train"},
  {.name = "log_level", .group = kRun, .type = choice, .initial = "info", .help = "lowest severity that is logged", .words = "debug|info|warning|error",
   .aliases = "level", .synonyms = "warn=warning", .used_by = "train"},

  {.name = "device", .group = kDevice, .type = choice, .initial = "auto", .help = "device to compute on; auto: the one with the shortest expected step time",
   .words = "auto|cpu|cuda|cuda:N|metal", .synonyms = "mps=metal gpu=cuda", .used_by = "bench, demo, doctor, eval, plan, sample, train, watch", .remark = device_exists},
  {.name = "no_fallback", .group = kDevice, .type = boolean, .initial = "false", .help = "fail instead of falling back to another device, precision or kernel", .used_by = "demo, doctor, eval, plan, sample, train"},
  {.name = "precision", .group = kDevice, .type = choice, .initial = "auto", .help = "number format of activations and matmuls; weights and moments stay fp32",
   .words = "auto|fp32|tf32|bf16|fp16", .aliases = "dtype default_dtype",
   .synonyms = kFormats, .used_by = "doctor, eval, plan, sample, train", .remark = precision_exists},
  precision_of("precision.cpu", "precision_cpu", "precision on the CPU; none: same as precision"),
  precision_of("precision.cuda", "precision_cuda", "precision on CUDA devices; none: same as precision"),
  precision_of("precision.metal", "precision_metal", "precision on Metal devices; none: same as precision"),
  {.name = "matmul_precision", .group = kDevice, .type = choice, .initial = "auto", .help = "format in which a GPU multiplies fp32 matrices: highest is fp32, high tf32, medium bf16",
   .words = "auto|highest|high|medium", .aliases = "allow_tf32 float32_matmul_precision",
   .synonyms = "fp32=highest float32=highest tf32=high bf16=medium bfloat16=medium true=high yes=high on=high 1=high false=highest no=highest off=highest 0=highest",
   .used_by = "bench, eval, plan, sample, train", .remark = matmul_precision_exists},
  {.name = "tune", .group = kDevice, .type = real, .initial = "auto", .help = "seconds to search for faster choices before a run: micro-batch, recomputation, threads, compiler passes, kernels; auto: 2 % of the expected run, at most 20 s, on a GPU none; off: use none, not even stored ones",
   .words = "auto|off", .high = 86400, .above_low = true, .tasks = kTrain, .used_by = "plan, train, tune"},
  {.name = "deterministic", .group = kDevice, .type = boolean, .initial = "false", .help = "new runs with equal settings give equal bits: no choice that can change bits is measured; it is fixed or imported", .tasks = kTrain,
   .aliases = "use_deterministic_algorithms cudnn_deterministic cudnn.deterministic", .used_by = "plan, train, tune"},
  {.name = "optimize_perf", .group = kDevice, .type = boolean, .initial = "true", .help = "make decisions by measurement; false: use fixed defaults", .foreign_variable = "OPTIMIZE_PERF", .used_by = "demo, doctor, eval, plan, sample, train"},

  {.name = "memory", .group = kMemory, .type = bytes, .initial = "auto", .help = "memory limit for the whole process, such as 512MiB or 2GB; on a GPU, of its memory; auto: what the machine and its limits allow",
   .words = "auto", .low = 1, .high = kManyBytes, .used_by = "demo, doctor, plan, train"},
  {.name = "memory_fraction", .group = kMemory, .type = real, .initial = "0.9", .help = "fraction of the available memory that may be used", .high = 1, .above_low = true, .used_by = "doctor, plan, train"},
  {.name = "recompute", .group = kMemory, .type = choice, .initial = "auto", .help = "what backward recomputes instead of keeping, each level more than the one before; auto: as little as fits, or what measures faster",
   .words = "auto|free|elementwise|attention|segments|layers", .tasks = kTrain, .used_by = "plan, train, tune"},
  {.name = "empty_cache_frequency", .group = kMemory, .type = integer, .initial = "0", .help = "steps between releases of unused pooled memory; 0: never", .high = 1e9, .tasks = kTrain, .used_by = "train"},
  {.name = "enable_pinned_memory", .group = kMemory, .type = boolean, .initial = "true", .help = "use page-locked memory for batches going to a GPU and for checkpoint copies coming back; offloaded moments always use it", .tasks = kTrain,
   .aliases = "pin_memory", .used_by = "train", .remark = needs_gpu},
  {.name = "pin_memory_ratio", .group = kMemory, .type = real, .initial = "0.1", .help = "fraction of the memory that may be page-locked for checkpoint copies", .high = 1, .tasks = kTrain,
   .used_by = "train", .remark = ratio_needs_gpu},
  {.name = "offload_optimizer", .group = kMemory, .type = boolean, .initial = "false", .help = "keep the optimizer's moments in host memory; false: only if nothing else fits", .tasks = kTrain,
   .used_by = "bench, plan, train", .remark = needs_gpu_to_offload},

  {.name = "threads", .group = kThreads, .type = integer, .initial = "auto", .help = "compute threads: a number; performance: one per core of the fastest kind; all: every hardware thread; auto: the fastest by measurement",
   .words = "auto|performance|all", .low = 1, .high = 4096, .aliases = "num_threads", .foreign_variable = "OMP_NUM_THREADS", .used_by = "bench, demo, doctor, eval, plan, probe, sample, train, watch", .remark = threads_exist},
  {.name = "affinity", .group = kThreads, .type = choice, .initial = "auto", .help = "how threads are pinned to cores", .words = "auto|none|compact|spread",
   .aliases = "omp_proc_bind", .synonyms = "true=compact close=compact false=none", .used_by = "demo, doctor, eval, plan, sample, train"},
  {.name = "wait", .group = kThreads, .type = choice, .initial = "auto", .help = "whether waiting threads spin (active) or sleep (passive)", .words = "auto|active|passive",
   .aliases = "wait_policy omp_wait_policy", .used_by = "demo, doctor, eval, plan, sample, train"},

  {.name = "min_tflops", .group = kTargets, .type = real, .initial = "auto", .help = "minimum fp32 rate in TFLOP/s; auto: the chip's target", .words = "auto",
   .high = 1e6, .above_low = true, .tasks = kMachine, .used_by = "probe"},
  {.name = "min_bandwidth", .group = kTargets, .type = real, .initial = "auto", .help = "minimum memory bandwidth in GB/s; auto: the chip's target", .words = "auto",
   .high = 1e6, .above_low = true, .tasks = kMachine, .used_by = "probe"},
  {.name = "memory_budget", .group = kTargets, .type = bytes, .initial = "auto", .help = "minimum usable memory; auto: the chip's target", .words = "auto",
   .low = 1, .high = kManyBytes, .tasks = kMachine, .used_by = "probe"},
};

constexpr Switch kSwitches[] = {
  {"RIDGE_ISA", "limits the instruction tier: sse4, avx2, avx512, avx512bf16 or amx"},
  {"RIDGE_PASSES", "disables compiler passes: -fuse,-simplify,…"},
  {"RIDGE_DUMP", "compiler passes, separated by commas; what each leaves behind is written to stderr"},
  {"RIDGE_VERIFY", "1: check what every compiler pass leaves behind"},
  {"RIDGE_CACHE", "folder for measurements, tokens and compiled kernels; default: ridge in the user's cache folder"},
  {"RIDGE_CUDA_LIBRARY", "CUDA driver library, a file name or an absolute path; default: libcuda.so.1"},
  {"RIDGE_CUDA_LIBRARIES", "absolute folders, separated by colons, searched first for cuBLASLt, NVRTC and cuDNN"},
  {"RIDGE_CUDNN", "0: do not use cuDNN for convolutions on the GPU"},
  {"RIDGE_CUDA_DEBUG", "1: launch GPU kernels one by one and check after each, so that an error names its kernel"},
  {"RIDGE_CUDA_OFF", "what shortens chains of short GPU kernels and should be switched off, to compare: thin,joined,overlap"},
  {"RIDGE_CUDA_PROFILE", "N: time every kernel in the Nth run of each GPU program and print a table"},
  {"RIDGE_NVML_LIBRARY", "NVIDIA management library, a file name or an absolute path; default: libnvidia-ml.so.1"},
  {"RIDGE_BENCH_SLOWDOWN", "a share such as 0.05: what ridge bench times takes that much longer, to test --compare"},
  {"RIDGE_TEST_GPU", "1: GPU tests use the machine's GPU instead of the simulated one"},
  {"RIDGE_FULL", "tests run all combinations of cases instead of a sample"},
  {"RIDGE_FUZZ", "seeds that a fuzz test runs: FIRST:COUNT"},
  {"RIDGE_KILLS", "number of kills in the kill test; default: 12"},
};
// clang-format on

std::string number_text(double number) { return number == double(int64_t(number)) ? fmt::format("{}", int64_t(number)) : fmt::format("{}", number); }

std::string range_text(const Key& key) {
  const std::string low = number_text(key.low);
  if (key.type == bytes) return {};
  if (key.high == Key::kNoLimit) return fmt::format(" {} {}", key.above_low ? "above" : "from", low);
  return fmt::format(" {} {} {} {}", key.above_low ? "above" : "from", low, key.below_high ? "to below" : "to", number_text(key.high));
}

std::string either(std::string_view words) {
  std::vector<std::string_view> all = split(words, '|');
  if (all.size() < 2) return std::string(words);
  const std::string_view last = all.back();
  all.pop_back();
  return fmt::format("{} or {}", join(all, ", "), last);
}

std::vector<Key>& table() {
  static std::vector<Key> all(std::begin(kSharedKeys), std::end(kSharedKeys));
  return all;
}

std::vector<TaskName>& known_tasks() {
  static std::vector<TaskName> all = {{kMachine, "machine"}};
  return all;
}

}  // namespace

std::span<const Key> keys() { return table(); }
std::span<const Switch> switches() { return kSwitches; }

unsigned task_bit(std::string_view name) {
  auto& all = known_tasks();
  for (const TaskName& known : all)
    if (known.name == name) return known.task;
  const unsigned bit = 4u << (all.size() - 1);  // above kMachine and kProgram
  all.insert(all.end() - 1, {bit, name});       // machine is last
  return bit;
}

void register_keys(unsigned task, std::string_view after, std::span<const Key> more) {
  auto& all = table();
  if (const Key* known = more.empty() ? nullptr : find_key(more.front().name, task); more.empty() || (known && known->tasks == task)) return;
  const auto before = std::find_if(all.begin(), all.end(), [&](const Key& key) { return key.name == after; });
  if (!after.empty() && before == all.end()) fail(ErrorCode::internal, "[config] {} must be listed after '{}', which is not a key", more.front().name, after);
  for (auto at = all.insert(after.empty() ? all.begin() : before + 1, more.begin(), more.end()), end = at + ptrdiff_t(more.size()); at != end; ++at)
    at->tasks = task;
}

std::span<const TaskName> task_names() { return known_tasks(); }

const Key* find_key(std::string_view name, unsigned task) {
  std::string plain(name);
  std::replace(plain.begin(), plain.end(), '-', '_');
  for (const unsigned readers : {task, kAllTasks}) {
    for (const Key& key : keys())
      if (key.name == plain && (key.tasks & readers)) return &key;
    for (const Key& key : keys())
      for (std::string_view alias : split(key.aliases, ' '))
        if (alias == plain && (key.tasks & readers)) return &key;
  }
  return nullptr;
}

std::string variable_of(const Key& key) {
  std::string out = "RIDGE_";
  for (char c : key.name) out += c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : c == '.' ? '_' : c;
  return out;
}

std::string_view name(Type type) {
  switch (type) {
    case integer: return "integer";
    case real: return "number";
    case boolean: return "boolean";
    case text: return "text";
    case choice: return "choice";
    case bytes: return "size";
    case path: return "path";
    case list: return "list";
  }
  return "unknown";
}

std::string expected(const Key& key) {
  std::string words = key.words.empty() || key.type == choice ? "" : fmt::format(", or {}", either(key.words));
  switch (key.type) {
    case integer: return fmt::format("a whole number{}{}", range_text(key), words);
    case real: return fmt::format("a number{}{}", range_text(key), words);
    case boolean: return fmt::format("true or false{}", words);
    case bytes: return fmt::format("a size such as 512MiB or 2GB{}", words);
    case choice: return either(key.words);
    case path: return key.initial.empty() ? "a path, or nothing" : "a path";
    case text: return key.initial.empty() ? "text, or nothing" : "text";
    case list: return "names separated by commas";
  }
  return {};
}

std::string names_of_tasks(unsigned tasks) {
  if (tasks == kAllTasks) return "all";
  if (tasks == kTrain) return "all training tasks";
  std::vector<std::string_view> names;
  for (auto [task, name] : task_names())
    if (tasks & task) names.push_back(name);
  return join(names, ", ");
}

std::string unknown_key(std::string_view name, std::span<const std::string> options) {
  std::vector<std::string_view> names(options.begin(), options.end());
  for (const Key& key : keys()) names.push_back(key.name);
  for (const Key& key : keys())
    for (std::string_view alias : split(key.aliases, ' ')) names.push_back(alias);
  const std::string word = lower_case(name);
  std::string hint = nearest_hint(word, names, "ridge config keys lists all");
  if (const size_t quote = hint.find('\''); quote != hint.npos && std::find(options.begin(), options.end(), nearest(word, names)) != options.end())
    hint.insert(quote + 1, "--");
  return fmt::format("unknown key {}; {}", shown(name), hint);
}

}  // namespace ridge::config
