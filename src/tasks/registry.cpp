#include "tasks/registry.h"

#include "base/error.h"
#include "base/nearest.h"
#include "tasks/gpt/run.h"

namespace ridge {

std::span<const Task> tasks() {
  static const Task all[] = {gpt_task()};
  return all;
}

const Task& find_task(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Task& task : tasks()) {
    if (task.name == name) return task;
    names.push_back(task.name);
  }
  fail(ErrorCode::usage, "unknown task '{}'; {}", name, nearest_hint(name, names));
}

void register_tasks() {
  for (const Task& task : tasks()) task.register_keys();
}

}  // namespace ridge
