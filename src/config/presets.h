// Named models with their training settings: the layer just above the built-in defaults.
#pragma once
#include <span>
#include <string_view>

namespace ridge::config {

struct Preset {
  std::string_view name, settings;
};
// A task's presets, selected by the value of its key `key`. Call before any setting is resolved; existing names are kept.
void register_presets(std::string_view key, std::span<const Preset> presets);

std::span<const std::string_view> preset_keys();
// "layers=6 heads=6 …" of a preset; empty: the preset sets nothing.
std::string_view preset_settings(std::string_view name);

}  // namespace ridge::config
