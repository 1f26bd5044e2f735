// The keys and presets that GPT adds to those of every task.
#include "config/key.h"
#include "config/presets.h"
#include "tasks/gpt/task.h"

namespace ridge {
namespace config::gpt_keys {  // named, because these names are too common for files that are compiled together

using enum Type;

constexpr double kMaxSteps = 1e12;
constexpr std::string_view kSamplingGroup = "Sampling";

// clang-format off
constexpr Key kModelKeys[] = {
  {.name = "preset", .group = kModelGroup, .type = choice, .initial = "tiny", .help = "a model with matching training settings; individual keys override it",
   .words = "tiny|shakespeare-cpu|shakespeare-char|gpt2|gpt2-medium|gpt2-large|gpt2-xl", .used_by = "plan, train"},
  {.name = "layers", .group = kModelGroup, .type = integer, .initial = "auto", .help = "number of layers; auto: from the preset", .words = "auto",
   .low = 1, .high = 1024, .aliases = "n_layer num_layers", .used_by = "plan, train"},
  {.name = "heads", .group = kModelGroup, .type = integer, .initial = "auto", .help = "attention heads per layer; auto: from the preset", .words = "auto",
   .low = 1, .high = 1024, .aliases = "n_head num_heads", .used_by = "plan, train"},
  {.name = "kv_heads", .group = kModelGroup, .type = integer, .initial = "auto", .help = "key and value heads per layer, a divisor of heads; auto: same as heads", .words = "auto",
   .low = 1, .high = 1024, .aliases = "n_kv_head num_kv_heads", .used_by = "plan, train"},
  {.name = "width", .group = kModelGroup, .type = integer, .initial = "auto", .help = "width of the hidden state; auto: from the preset", .words = "auto",
   .low = 1, .high = 1 << 20, .aliases = "n_embd hidden_size", .used_by = "plan, train"},
  {.name = "block", .group = kModelGroup, .type = integer, .initial = "auto", .help = "context length in tokens; auto: from the preset", .words = "auto",
   .low = 1, .high = 1 << 24, .aliases = "block_size context", .used_by = "data, plan, train"},
  {.name = "dropout", .group = kModelGroup, .type = real, .initial = "auto", .help = "fraction of activations dropped during training; auto: from the preset", .words = "auto",
   .high = 1, .below_high = true, .used_by = "plan, train"},
  {.name = "bias", .group = kModelGroup, .type = boolean, .initial = "false", .help = "use biases in linear layers and norms", .used_by = "plan, train"},
  {.name = "norm", .group = kModelGroup, .type = choice, .initial = "layer", .help = "normalisation: layer norm or RMS norm", .words = "layer|rms",
   .synonyms = "layernorm=layer layer_norm=layer rmsnorm=rms rms_norm=rms", .used_by = "plan, train"},
  {.name = "pos", .group = kModelGroup, .type = choice, .initial = "learned", .help = "position encoding: learned embeddings or RoPE", .words = "learned|rope", .used_by = "plan, train"},
  {.name = "mlp", .group = kModelGroup, .type = choice, .initial = "gelu", .help = "feed-forward layer: GELU or SwiGLU", .words = "gelu|swiglu", .used_by = "plan, train"},
  {.name = "tokenizer", .group = kModelGroup, .type = text, .initial = "auto", .help = "auto, char, byte or bpe, or the path of a tokenizer.json, of a vocab.json (with merges.txt) or of a folder that contains one", .used_by = "data, eval, plan, sample, train"},
  {.name = "init_from", .group = kModelGroup, .type = path, .initial = "", .help = "run folder or weights folder to start from; empty: random initial weights", .used_by = "plan, train"},
};
constexpr Key kRunKeys[] = {
  {.name = "sample_interval", .group = kRunGroup, .type = integer, .initial = "auto", .help = "steps between text samples; auto: four per run", .words = "auto|none",
   .low = 1, .high = kMaxSteps, .used_by = "plan, train"},
};
constexpr Key kSamplingKeys[] = {
  {.name = "temperature", .group = kSamplingGroup, .type = real, .initial = "0.8", .help = "sampling temperature; 0: always the most likely token", .high = 1000,
   .used_by = "sample"},
  {.name = "top_k", .group = kSamplingGroup, .type = integer, .initial = "none", .help = "sample only from this many most likely tokens", .words = "none",
   .low = 1, .high = 1e9, .used_by = "sample"},
  {.name = "top_p", .group = kSamplingGroup, .type = real, .initial = "1", .help = "sample only from the most likely tokens whose probabilities add up to this value",
   .high = 1, .above_low = true, .used_by = "sample"},
  {.name = "tokens", .group = kSamplingGroup, .type = integer, .initial = "500", .help = "number of tokens to generate", .low = 1, .high = 1e12,
   .aliases = "max_new_tokens", .used_by = "sample"},
  {.name = "kv_precision", .group = kSamplingGroup, .type = choice, .initial = "auto",
   .help = "format of the key-value cache; auto: the format of the weights, except fp16 with fp32 weights on a CPU that converts it in hardware; fp32: exact, but slower late in a long text",
   .words = "auto|fp32|bf16|fp16", .aliases = "kv_cache_dtype", .synonyms = "float32=fp32 bfloat16=bf16 float16=fp16 half=fp16", .used_by = "bench, sample"},
};
// clang-format on

// The shakespeare presets and the training settings of the gpt2 presets are from nanoGPT; the sizes of the gpt2 presets are from GPT-2.
constexpr Preset kPresets[] = {
    {"tiny", "layers=4 heads=4 width=128 block=64 dropout=0 batch=16 steps=3000 lr=2e-3 warmup=100 beta2=0.99"},
    {"shakespeare-cpu", "layers=4 heads=4 width=128 block=64 dropout=0 batch=12 steps=2000 lr=1e-3 min_lr=1e-4 warmup=100 beta2=0.99"},
    {"shakespeare-char", "layers=6 heads=6 width=384 block=256 dropout=0.2 batch=64 steps=5000 lr=1e-3 min_lr=1e-4 warmup=100 beta2=0.99"},
    {"gpt2", "layers=12 heads=12 width=768 block=1024 dropout=0 batch=480 steps=600000 lr=6e-4 min_lr=6e-5 warmup=2000 beta2=0.95"},
    {"gpt2-medium", "layers=24 heads=16 width=1024 block=1024 dropout=0 batch=480 steps=600000 lr=3e-4 min_lr=3e-5 warmup=2000 beta2=0.95"},
    {"gpt2-large", "layers=36 heads=20 width=1280 block=1024 dropout=0 batch=480 steps=600000 lr=2.5e-4 min_lr=2.5e-5 warmup=2000 beta2=0.95"},
    {"gpt2-xl", "layers=48 heads=25 width=1600 block=1024 dropout=0 batch=480 steps=600000 lr=2e-4 min_lr=2e-5 warmup=2000 beta2=0.95"},
};

}  // namespace config::gpt_keys

void register_gpt_keys() {
  using namespace config;
  using namespace config::gpt_keys;
  const unsigned gpt = task_bit(kGptName);
  register_keys(gpt, "", kModelKeys);
  register_keys(gpt, "checkpoint_interval", kRunKeys);
  register_keys(gpt, "log_level", kSamplingKeys);
  register_presets("preset", kPresets);
}

}  // namespace ridge
