// Builds a GPT for training from the settings.
#pragma once
#include "config/config.h"
#include "nn/gpt.h"
#include "ridge/device.h"
#include "step/train_step.h"

namespace ridge {

inline constexpr const char* kGptName = "gpt";
void register_gpt_keys();  // also registers presets

// An integer from the settings or their preset. ErrorCode::usage if neither has it.
int64_t required_size(const config::Resolved& settings, const char* key);

// Host memory limit of the process while it prepares data, in bytes. `on_device`: memory=SIZE refers to a device with its own memory.
int64_t host_memory(const config::Resolved& settings, bool on_device = false);

// ErrorCode::usage if a size is missing from both the settings and their preset.
GptConfig gpt_config(const config::Resolved& settings, int64_t vocab);

// The sizes that weights determine: as settings, as one line of text, and as stored in state.json, where "1 layers" must not change.
std::vector<std::pair<std::string, std::string>> size_words(const GptConfig& config);
std::string model_text(const GptConfig& config);
std::string model_identity(const GptConfig& config);
std::string parameters_text(int64_t count);  // "10.65 M parameters", "1,234 parameters"

// Batch: tokens and targets, i64 [batch, block].
StepModel gpt_step_model(const GptConfig& config, int64_t batch);

// Estimated work of a step, before anything is compiled; and of inference when `tokens` tokens go through the model together.
StepWork gpt_work(const GptConfig& config, int64_t batch);
StepWork gpt_reading_work(const GptConfig& config, int64_t tokens);

StepOptions gpt_step_options(const config::Resolved& settings);

}  // namespace ridge
