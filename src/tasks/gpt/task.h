// A GPT to be trained, as settings describe it.
#pragma once
#include "config/config.h"
#include "nn/gpt.h"
#include "ridge/device.h"
#include "step/step.h"

namespace ridge {

void register_gpt_keys();  // and presets

// A whole number that the settings or their preset give. ErrorCode::usage: neither does.
int64_t required_size(const config::Resolved& settings, const char* key);

// What the whole process may hold on the host while its data is made, in bytes; `far`: memory=SIZE is meant for a device with its own.
int64_t host_memory(const config::Resolved& settings, bool far = false);

// Refuses sizes that neither the settings nor their preset give.
GptConfig gpt_config(const config::Resolved& settings, int64_t vocab);

// What weights decide, as the settings name and write it, and in one line: for people, and as state.json holds it, where "1 layers" must stay so.
std::vector<std::pair<std::string, std::string>> size_words(const GptConfig& config);
std::string model_text(const GptConfig& config);
std::string model_identity(const GptConfig& config);
std::string parameters_text(int64_t count);  // "10.65 M parameters", "1,234 parameters"

// Batch: tokens and targets, i64 [batch, block].
StepModel gpt_step_model(const GptConfig& config, int64_t batch);

// About what a step does, known before anything is compiled; and what reading does when so many tokens go through the model together.
StepWork gpt_work(const GptConfig& config, int64_t batch);
StepWork gpt_reading_work(const GptConfig& config, int64_t tokens);

StepOptions gpt_step_options(const config::Resolved& settings);

}  // namespace ridge
