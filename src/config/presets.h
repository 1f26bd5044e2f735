// Named models with the training settings that belong to them: the layer of values above the built-in defaults.
#pragma once
#include <span>
#include <string_view>

namespace ridge::config {

struct Preset {
  std::string_view name, settings;
};
void register_presets(std::span<const Preset> presets);  // of a task, before settings are resolved; a name that is there is left as it is

// "layers=6 heads=6 …" of a preset; empty: the preset sets nothing.
std::string_view preset_settings(std::string_view name);

}  // namespace ridge::config
