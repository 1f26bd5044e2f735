// The tasks that can be trained, by name.
#pragma once
#include <span>
#include <string_view>

#include "train/task.h"

namespace ridge {

std::span<const Task> tasks();

const Task& find_task(std::string_view name);  // ErrorCode::usage names the nearest

// Adds the keys and presets of all tasks to the table of settings: first of all, before any setting is resolved.
void register_tasks();

}  // namespace ridge
