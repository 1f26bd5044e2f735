// Named models with their training settings: the layer just above the built-in defaults.
#pragma once
#include <span>
#include <string_view>

namespace ridge::config {

struct Preset {
  std::string_view name, settings;
};
void register_presets(std::span<const Preset> presets);  // a task's presets, before settings are resolved; existing names are kept

// "layers=6 heads=6 …" of a preset; empty: the preset sets nothing.
std::string_view preset_settings(std::string_view name);

}  // namespace ridge::config
