#include "config/presets.h"

namespace ridge::config {
namespace {

struct Preset {
  std::string_view name, settings;
};

// The shakespeare ones and the training settings of the gpt2 ones are nanoGPT's; the sizes of the gpt2 ones are GPT-2's.
constexpr Preset kPresets[] = {
    {"tiny", "layers=4 heads=4 width=128 block=64 dropout=0 batch=16 steps=3000 lr=2e-3 warmup=100 beta2=0.99"},
    {"shakespeare-cpu", "layers=4 heads=4 width=128 block=64 dropout=0 batch=12 steps=2000 lr=1e-3 min_lr=1e-4 warmup=100 beta2=0.99"},
    {"shakespeare-char", "layers=6 heads=6 width=384 block=256 dropout=0.2 batch=64 steps=5000 lr=1e-3 min_lr=1e-4 warmup=100 beta2=0.99"},
    {"gpt2", "layers=12 heads=12 width=768 block=1024 dropout=0 batch=480 steps=600000 lr=6e-4 min_lr=6e-5 warmup=2000 beta2=0.95"},
    {"gpt2-medium", "layers=24 heads=16 width=1024 block=1024 dropout=0 batch=480 steps=600000 lr=3e-4 min_lr=3e-5 warmup=2000 beta2=0.95"},
    {"gpt2-large", "layers=36 heads=20 width=1280 block=1024 dropout=0 batch=480 steps=600000 lr=2.5e-4 min_lr=2.5e-5 warmup=2000 beta2=0.95"},
    {"gpt2-xl", "layers=48 heads=25 width=1600 block=1024 dropout=0 batch=480 steps=600000 lr=2e-4 min_lr=2e-5 warmup=2000 beta2=0.95"},
};

}  // namespace

std::string_view preset_settings(std::string_view name) {
  for (const Preset& preset : kPresets)
    if (preset.name == name) return preset.settings;
  return {};
}

}  // namespace ridge::config
