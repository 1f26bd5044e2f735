// The table of keys, and what can be read off a row.
#include <algorithm>
#include <iterator>

#include <fmt/core.h>

#include "base/nearest.h"
#include "base/text.h"
#include "config/key.h"
#include "config/value.h"
#include "config/words.h"

namespace ridge::config {
namespace {

using enum Type;

bool is_true(const Value& v) { return v.as<bool>() && *v.as<bool>(); }

std::string needs_gpu(const Value& v, const MachineFacts& m) { return is_true(v) && !m.cuda ? "no effect here: nothing is copied to a CUDA device" : ""; }

std::string needs_gpu_to_offload(const Value& v, const MachineFacts& m) {
  return is_true(v) && !m.cuda ? "no effect here: on the CPU everything is in host memory already" : "";
}

std::string ratio_needs_gpu(const Value&, const MachineFacts& m) { return m.cuda ? "" : "no effect here: nothing is pinned without a CUDA device"; }

std::string device_exists(const Value& v, const MachineFacts& m) {
  const std::string* wish = v.as<std::string>();
  if (wish && wish->starts_with("cuda") && !m.cuda) return "no CUDA device here: the CPU is used, or with no_fallback=true the run is refused";
  if (wish && *wish == "metal" && !m.metal) return "no Metal device here: the next best device is used, or with no_fallback=true the run is refused";
  return {};
}

std::string precision_exists(const Value& v, const MachineFacts& m) {
  if (v.is("tf32") && !m.cuda) return "tf32 is a format of CUDA devices: here it is fp32";
  return {};
}

std::string matmul_precision_exists(const Value& v, const MachineFacts& m) {
  if ((v.is("high") || v.is("medium")) && !m.cuda) return "no effect here: without a CUDA device matmuls of fp32 run in fp32";
  return {};
}

std::string threads_exist(const Value& v, const MachineFacts& m) {
  const int64_t* wish = v.as<int64_t>();
  if (wish && m.cpus > 0 && *wish > m.cpus) return fmt::format("more than the {} CPUs that this process may use", m.cpus);
  return {};
}

constexpr double kManySteps = 1e12, kManyBytes = 0x1p62, kLargestSeed = 0x1p53;
constexpr std::string_view kModel = "Model", kTraining = "Training", kData = "Data", kRun = "Run folder", kSampling = "Sampling",
                           kDevice = "Device and precision", kMemory = "Memory", kThreads = "Threads", kTargets = "Targets of probe --check";

constexpr std::string_view kFormats = "float32=fp32 float=fp32 32=fp32 bfloat16=bf16 float16=fp16 half=fp16 16=fp16 amp=auto mixed=auto";

// clang-format off
constexpr Key precision_of(std::string_view name, std::string_view alias, std::string_view help) {
  return {.name = name, .group = kDevice, .type = choice, .initial = "none", .help = help, .words = "none|auto|fp32|tf32|bf16|fp16", .aliases = alias,
          .synonyms = kFormats, .used_by = "doctor, eval, plan, sample, train"};
}

constexpr Key kKeys[] = {
  {.name = "preset", .group = kModel, .type = choice, .initial = "tiny", .help = "a named model with its training settings; single keys override it",
   .words = "tiny|shakespeare-cpu|shakespeare-char|gpt2|gpt2-medium|gpt2-large|gpt2-xl", .tasks = kGpt, .used_by = "plan, train"},
  {.name = "layers", .group = kModel, .type = integer, .initial = "auto", .help = "layers of the model; auto: the preset's", .words = "auto",
   .low = 1, .high = 1024, .tasks = kTrain, .aliases = "n_layer num_layers", .used_by = "plan, train"},
  {.name = "heads", .group = kModel, .type = integer, .initial = "auto", .help = "attention heads of a layer; auto: the preset's", .words = "auto",
   .low = 1, .high = 1024, .tasks = kGpt, .aliases = "n_head num_heads", .used_by = "plan, train"},
  {.name = "kv_heads", .group = kModel, .type = integer, .initial = "auto", .help = "heads of keys and values, a divisor of heads; auto: as many as heads", .words = "auto",
   .low = 1, .high = 1024, .tasks = kGpt, .aliases = "n_kv_head num_kv_heads", .used_by = "plan, train"},
  {.name = "width", .group = kModel, .type = integer, .initial = "auto", .help = "size of the hidden state; auto: the preset's", .words = "auto",
   .low = 1, .high = 1 << 20, .tasks = kTrain, .aliases = "n_embd hidden_size", .used_by = "plan, train"},
  {.name = "block", .group = kModel, .type = integer, .initial = "auto", .help = "longest context in tokens; auto: the preset's", .words = "auto",
   .low = 1, .high = 1 << 24, .tasks = kGpt, .aliases = "block_size context", .used_by = "data, plan, train"},
  {.name = "dropout", .group = kModel, .type = real, .initial = "auto", .help = "share of activations dropped in training; auto: the preset's", .words = "auto",
   .high = 1, .below_high = true, .tasks = kTrain, .used_by = "plan, train"},
  {.name = "bias", .group = kModel, .type = boolean, .initial = "false", .help = "biases in linear layers and norms", .tasks = kGpt, .used_by = "plan, train"},
  {.name = "norm", .group = kModel, .type = choice, .initial = "layer", .help = "which normalisation", .words = "layer|rms", .tasks = kGpt,
   .synonyms = "layernorm=layer layer_norm=layer rmsnorm=rms rms_norm=rms", .used_by = "plan, train"},
  {.name = "pos", .group = kModel, .type = choice, .initial = "learned", .help = "how positions are told", .words = "learned|rope", .tasks = kGpt, .used_by = "plan, train"},
  {.name = "mlp", .group = kModel, .type = choice, .initial = "gelu", .help = "the form of the feed-forward part", .words = "gelu|swiglu", .tasks = kGpt, .used_by = "plan, train"},
  {.name = "tokenizer", .group = kModel, .type = text, .initial = "auto", .help = "auto, char, byte, bpe, or a tokenizer.json, a vocab.json (with merges.txt) or a folder with one to load", .tasks = kGpt, .used_by = "data, eval, plan, train"},
  {.name = "init_from", .group = kModel, .type = path, .initial = "", .help = "a run or a folder of weights to start from; empty: new weights", .tasks = kTrain, .used_by = "plan, train"},

  {.name = "steps", .group = kTraining, .type = integer, .initial = "auto", .help = "optimizer steps; auto: the preset's", .words = "auto",
   .low = 1, .high = kManySteps, .tasks = kTrain, .aliases = "max_iters max_steps", .used_by = "plan, train"},
  {.name = "batch", .group = kTraining, .type = integer, .initial = "auto", .help = "samples in one step, split by plan where they do not fit; auto: the preset's",
   .words = "auto", .low = 1, .high = 1e9, .tasks = kTrain, .aliases = "batch_size", .used_by = "plan, train"},
  {.name = "accumulation", .group = kTraining, .type = integer, .initial = "auto", .help = "micro-batches in one step; auto: as few as fit", .words = "auto",
   .low = 1, .high = 1e6, .tasks = kTrain, .aliases = "gradient_accumulation_steps gradient_accumulation accumulate_grad_batches", .used_by = "plan, train"},
  {.name = "lr", .group = kTraining, .type = real, .initial = "auto", .help = "learning rate at its highest; auto: the preset's", .words = "auto",
   .high = 1000, .tasks = kTrain, .aliases = "learning_rate", .used_by = "plan, train"},
  {.name = "min_lr", .group = kTraining, .type = real, .initial = "auto", .help = "learning rate at the end; auto: a tenth of lr", .words = "auto",
   .high = 1000, .tasks = kTrain, .aliases = "min_learning_rate", .used_by = "plan, train"},
  {.name = "warmup", .group = kTraining, .type = integer, .initial = "auto", .help = "steps of linear warm-up; auto: the preset's", .words = "auto",
   .high = kManySteps, .tasks = kTrain, .aliases = "warmup_iters warmup_steps", .used_by = "plan, train"},
  {.name = "schedule", .group = kTraining, .type = choice, .initial = "cosine", .help = "how the rate falls from lr to min_lr", .words = "cosine|linear|constant",
   .tasks = kTrain, .aliases = "lr_schedule", .used_by = "plan, train"},
  {.name = "weight_decay", .group = kTraining, .type = real, .initial = "0.1", .help = "AdamW's decay of weights with two axes or more", .high = 1000, .tasks = kTrain, .used_by = "plan, train"},
  {.name = "beta1", .group = kTraining, .type = real, .initial = "0.9", .help = "AdamW's decay of the first moment", .high = 1, .below_high = true, .tasks = kTrain, .used_by = "plan, train"},
  {.name = "beta2", .group = kTraining, .type = real, .initial = "auto", .help = "AdamW's decay of the second moment; auto: the preset's", .words = "auto",
   .high = 1, .below_high = true, .tasks = kTrain, .used_by = "plan, train"},
  {.name = "clip", .group = kTraining, .type = real, .initial = "1", .help = "largest global norm of the gradient; 0: no clipping", .high = 1e9, .tasks = kTrain,
   .aliases = "grad_clip clip_grad clip_grad_norm", .used_by = "plan, train"},
  {.name = "seed", .group = kTraining, .type = integer, .initial = "1337", .help = "of weights, data order, dropout and samples", .high = kLargestSeed, .tasks = kTrain, .used_by = "plan, sample, train"},
  {.name = "seeds", .group = kTraining, .type = integer, .initial = "1", .help = "runs with seeds seed, seed + 1, …; means and standard errors are reported",
   .low = 1, .high = 1000, .tasks = kTrain, .aliases = "num_seeds", .used_by = "plan, train"},
  {.name = "max_minutes", .group = kTraining, .type = real, .initial = "none", .help = "end with a checkpoint after so many minutes", .words = "none",
   .high = 1e7, .above_low = true, .tasks = kTrain, .used_by = "train"},
  {.name = "target_loss", .group = kTraining, .type = real, .initial = "none", .help = "end when the validation loss is this low", .words = "none",
   .low = -1e9, .high = 1e9, .tasks = kTrain, .used_by = "train"},

  {.name = "data", .group = kData, .type = list, .initial = "builtin", .help = "text files, folders or token files; builtin: generated stories; several: one run each",
   .tasks = kTrain, .aliases = "dataset", .used_by = "eval, plan, train"},
  {.name = "prefetch_factor", .group = kData, .type = integer, .initial = "2", .help = "batches that the loader is ahead", .low = 1, .high = 1024, .tasks = kTrain, .used_by = "plan, train"},
  {.name = "enable_async_loading", .group = kData, .type = boolean, .initial = "true", .help = "load batches on threads of their own", .tasks = kTrain, .used_by = "plan, train"},

  {.name = "out", .group = kRun, .type = path, .initial = "", .help = "the run folder; empty: a new one in runs_dir", .tasks = kTrain, .aliases = "out_dir", .used_by = "train"},
  {.name = "runs_dir", .group = kRun, .type = path, .initial = "runs", .help = "where new run folders are made", .tasks = kTrain, .used_by = "train"},
  {.name = "resume", .group = kRun, .type = boolean, .initial = "false", .help = "go on from the last checkpoint of the run folder", .tasks = kTrain, .used_by = "train"},
  {.name = "eval_interval", .group = kRun, .type = integer, .initial = "auto", .help = "steps between validations; auto: below 5 % of the time", .words = "auto|none",
   .low = 1, .high = kManySteps, .tasks = kTrain, .used_by = "plan, train"},
  {.name = "checkpoint_interval", .group = kRun, .type = integer, .initial = "auto", .help = "steps between checkpoints", .words = "auto|none",
   .low = 1, .high = kManySteps, .tasks = kTrain, .aliases = "save_interval", .used_by = "plan, train"},
  {.name = "sample_interval", .group = kRun, .type = integer, .initial = "auto", .help = "steps between samples of text", .words = "auto|none",
   .low = 1, .high = kManySteps, .tasks = kGpt, .used_by = "plan, train"},
  {.name = "tensorboard", .group = kRun, .type = boolean, .initial = "false", .help = "write TensorBoard event files too", .tasks = kTrain, .used_by = "train"},
  {.name = "log_level", .group = kRun, .type = choice, .initial = "info", .help = "the least serious lines that are logged", .words = "debug|info|warning|error",
   .aliases = "level", .synonyms = "warn=warning", .used_by = "train"},

  {.name = "temperature", .group = kSampling, .type = real, .initial = "0.8", .help = "how freely tokens are drawn; 0: always the likeliest", .high = 1000,
   .tasks = kGpt, .used_by = "sample"},
  {.name = "top_k", .group = kSampling, .type = integer, .initial = "none", .help = "draw only from the likeliest tokens, this many", .words = "none",
   .low = 1, .high = 1e9, .tasks = kGpt, .used_by = "sample"},
  {.name = "top_p", .group = kSampling, .type = real, .initial = "1", .help = "draw only from the likeliest tokens that have this probability together",
   .high = 1, .above_low = true, .tasks = kGpt, .used_by = "sample"},
  {.name = "tokens", .group = kSampling, .type = integer, .initial = "500", .help = "how many tokens to write", .low = 1, .high = 1e12,
   .tasks = kGpt, .aliases = "max_new_tokens", .used_by = "sample"},
  {.name = "kv_precision", .group = kSampling, .type = choice, .initial = "auto",
   .help = "how keys and values of earlier tokens are kept; auto: as the weights are, but on the CPU fp16 beside fp32 ones; fp32: all bits, for more time late in a text",
   .words = "auto|fp32|bf16|fp16", .tasks = kGpt, .aliases = "kv_cache_dtype", .synonyms = "float32=fp32 bfloat16=bf16 float16=fp16 half=fp16", .used_by = "bench, sample"},

  {.name = "device", .group = kDevice, .type = choice, .initial = "auto", .help = "where to compute; auto: where a step is expected to be fastest",
   .words = "auto|cpu|cuda|cuda:N|metal", .synonyms = "mps=metal gpu=cuda", .used_by = "bench, demo, doctor, eval, plan, sample, train", .remark = device_exists},
  {.name = "no_fallback", .group = kDevice, .type = boolean, .initial = "false", .help = "refuse instead of falling back to another device, precision or kernel", .used_by = "demo, doctor, eval, plan, sample, train"},
  {.name = "precision", .group = kDevice, .type = choice, .initial = "auto", .help = "of activations and matmuls; weights and moments stay fp32",
   .words = "auto|fp32|tf32|bf16|fp16", .aliases = "dtype default_dtype",
   .synonyms = kFormats, .used_by = "doctor, eval, plan, sample, train", .remark = precision_exists},
  precision_of("precision.cpu", "precision_cpu", "precision on the CPU; none: as precision says"),
  precision_of("precision.cuda", "precision_cuda", "precision on CUDA devices; none: as precision says"),
  precision_of("precision.metal", "precision_metal", "precision on Metal devices; none: as precision says"),
  {.name = "matmul_precision", .group = kDevice, .type = choice, .initial = "auto", .help = "of fp32 matmuls: highest is fp32, high tf32, medium bf16",
   .words = "auto|highest|high|medium", .aliases = "allow_tf32 float32_matmul_precision",
   .synonyms = "fp32=highest float32=highest tf32=high bf16=medium bfloat16=medium true=high yes=high on=high 1=high false=highest no=highest off=highest 0=highest",
   .used_by = "bench, eval, plan, sample, train", .remark = matmul_precision_exists},
  {.name = "optimize_perf", .group = kDevice, .type = boolean, .initial = "true", .help = "tune by measurement; false: sane defaults", .foreign_variable = "OPTIMIZE_PERF", .used_by = "demo, doctor, eval, plan, sample, train"},

  {.name = "memory", .group = kMemory, .type = bytes, .initial = "auto", .help = "what the whole process may hold, as 512MiB or 2GB; auto: what the machine's limits leave",
   .words = "auto", .low = 1, .high = kManyBytes, .used_by = "demo, doctor, plan, train"},
  {.name = "memory_fraction", .group = kMemory, .type = real, .initial = "0.9", .help = "share of the memory that may be used", .high = 1, .above_low = true, .used_by = "doctor, plan, train"},
  {.name = "empty_cache_frequency", .group = kMemory, .type = integer, .initial = "0", .help = "steps between trims of the memory pools; 0: never", .high = 1e9, .tasks = kTrain, .used_by = "train"},
  {.name = "enable_pinned_memory", .group = kMemory, .type = boolean, .initial = "true", .help = "page-locked memory for batches on their way to a GPU and for copies of checkpoints from it; offloaded moments always have it", .tasks = kTrain,
   .aliases = "pin_memory", .used_by = "train", .remark = needs_gpu},
  {.name = "pin_memory_ratio", .group = kMemory, .type = real, .initial = "0.1", .help = "share of the memory that may be page-locked for copies of checkpoints", .high = 1, .tasks = kTrain,
   .used_by = "train", .remark = ratio_needs_gpu},
  {.name = "offload_optimizer", .group = kMemory, .type = boolean, .initial = "false", .help = "keep the optimizer's moments in host memory; false: only where nothing else fits", .tasks = kTrain,
   .used_by = "bench, plan, train", .remark = needs_gpu_to_offload},

  {.name = "threads", .group = kThreads, .type = integer, .initial = "auto", .help = "compute threads: a number, those of fast cores, all, or what measures fastest",
   .words = "auto|performance|all", .low = 1, .high = 4096, .aliases = "num_threads", .foreign_variable = "OMP_NUM_THREADS", .used_by = "bench, demo, doctor, eval, plan, probe, sample, train", .remark = threads_exist},
  {.name = "affinity", .group = kThreads, .type = choice, .initial = "auto", .help = "how threads are bound to cores", .words = "auto|none|compact|spread",
   .aliases = "omp_proc_bind", .synonyms = "true=compact close=compact false=none", .used_by = "demo, doctor, eval, plan, sample, train"},
  {.name = "wait", .group = kThreads, .type = choice, .initial = "auto", .help = "whether waiting threads spin or sleep", .words = "auto|active|passive",
   .aliases = "wait_policy omp_wait_policy", .used_by = "demo, doctor, eval, plan, sample, train"},

  {.name = "min_tflops", .group = kTargets, .type = real, .initial = "auto", .help = "least fp32 rate in TFLOP/s; auto: the chip's target", .words = "auto",
   .high = 1e6, .above_low = true, .tasks = kMachine, .used_by = "probe"},
  {.name = "min_bandwidth", .group = kTargets, .type = real, .initial = "auto", .help = "least memory bandwidth in GB/s; auto: the chip's target", .words = "auto",
   .high = 1e6, .above_low = true, .tasks = kMachine, .used_by = "probe"},
  {.name = "memory_budget", .group = kTargets, .type = bytes, .initial = "auto", .help = "least memory that must be usable; auto: the chip's target", .words = "auto",
   .low = 1, .high = kManyBytes, .tasks = kMachine, .used_by = "probe"},
};

constexpr Switch kSwitches[] = {
  {"RIDGE_ISA", "lowers the instruction tier: sse4, avx2, avx512, avx512bf16"},
  {"RIDGE_PASSES", "switches compiler passes off: -fuse,-simplify,…"},
  {"RIDGE_CACHE", "the folder for what was measured; else ridge in the user's cache folder"},
  {"RIDGE_CUDA_LIBRARY", "the CUDA driver's library, a name or an absolute path; else libcuda.so.1"},
  {"RIDGE_CUDA_LIBRARIES", "absolute folders, with : between, to look for cuBLASLt, NVRTC and cuDNN in first"},
  {"RIDGE_CUDNN", "0: convolutions on the GPU go without cuDNN"},
  {"RIDGE_CUDA_DEBUG", "1: no recordings on the GPU, and a check after every launch, so that an error names its kernel"},
  {"RIDGE_CUDA_PROFILE", "N: times every kernel in the Nth run of each program on the GPU and prints the table"},
  {"RIDGE_NVML_LIBRARY", "NVIDIA's management library, a name or an absolute path; else libnvidia-ml.so.1"},
  {"RIDGE_TEST_GPU", "1: tests of the GPU run on the machine's own instead of the simulated one"},
  {"RIDGE_FULL", "tests run their whole product of cases"},
  {"RIDGE_FUZZ", "which seeds a fuzz test runs: FIRST:COUNT"},
  {"RIDGE_KILLS", "how many kills the kill test makes; else 12"},
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

}  // namespace

std::span<const Key> keys() { return kKeys; }
std::span<const Switch> switches() { return kSwitches; }

const Key* find_key(std::string_view name) {
  std::string plain(name);
  std::replace(plain.begin(), plain.end(), '-', '_');
  for (const Key& key : kKeys)
    if (key.name == plain) return &key;
  for (const Key& key : kKeys)
    for (std::string_view alias : split(key.aliases, ' '))
      if (alias == plain) return &key;
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
    case bytes: return fmt::format("a size as 512MiB or 2GB{}", words);
    case choice: return either(key.words);
    case path: return key.initial.empty() ? "a path, or nothing" : "a path";
    case text: return key.initial.empty() ? "text, or nothing" : "text";
    case list: return "names with commas between";
  }
  return {};
}

std::string names_of_tasks(unsigned tasks) {
  if (tasks == kAllTasks) return "all";
  std::vector<std::string_view> names;
  constexpr std::pair<unsigned, std::string_view> kNames[] = {{kGpt, "gpt"}, {kCfc, "cfc"}, {kPpo, "ppo"}, {kMachine, "machine"}};
  for (auto [task, name] : kNames)
    if (tasks & task) names.push_back(name);
  return join(names, ", ");
}

std::string unknown_key(std::string_view name, std::span<const std::string> options) {
  std::vector<std::string_view> names(options.begin(), options.end());
  for (const Key& key : kKeys) names.push_back(key.name);
  for (const Key& key : kKeys)
    for (std::string_view alias : split(key.aliases, ' ')) names.push_back(alias);
  const std::string word = lower_case(name);
  std::string hint = nearest_hint(word, names, "ridge config keys lists all");
  if (const size_t quote = hint.find('\''); quote != hint.npos && std::find(options.begin(), options.end(), nearest(word, names)) != options.end())
    hint.insert(quote + 1, "--");
  return fmt::format("unknown key {}; {}", shown(name), hint);
}

}  // namespace ridge::config
