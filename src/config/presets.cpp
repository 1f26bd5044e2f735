#include "config/presets.h"

#include <algorithm>
#include <vector>

namespace ridge::config {
namespace {

std::vector<Preset>& registered() {
  static std::vector<Preset> all;
  return all;
}

std::vector<std::string_view>& registered_keys() {
  static std::vector<std::string_view> all;
  return all;
}

const Preset* find_preset(std::string_view name) {
  const auto it = std::find_if(registered().begin(), registered().end(), [&](const Preset& preset) { return preset.name == name; });
  return it == registered().end() ? nullptr : &*it;
}

}  // namespace

void register_presets(std::string_view key, std::span<const Preset> presets) {
  if (std::find(registered_keys().begin(), registered_keys().end(), key) == registered_keys().end()) registered_keys().push_back(key);
  for (const Preset& preset : presets)
    if (!find_preset(preset.name)) registered().push_back(preset);
}

std::span<const std::string_view> preset_keys() { return registered_keys(); }

std::string_view preset_settings(std::string_view name) {
  const Preset* preset = find_preset(name);
  return preset ? preset->settings : std::string_view();
}

}  // namespace ridge::config
