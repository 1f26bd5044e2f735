// The available tasks, by name.
#pragma once
#include <span>
#include <string_view>

#include "train/task.h"

namespace ridge {

std::span<const Task> tasks();

const Task& find_task(std::string_view name);  // ErrorCode::usage suggests the closest name

// Adds the keys and presets of all tasks to the table of settings. Must be called before any setting is resolved.
void register_tasks();

}  // namespace ridge
