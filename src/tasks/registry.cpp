#include "tasks/registry.h"

#include "base/error.h"
#include "base/nearest.h"
#include "tasks/circuits/task.h"
#include "tasks/gpt/run.h"
#include "tasks/ppo/task.h"

namespace ridge {

std::span<const Task> tasks() {
  static const Task all[] = {gpt_task(), circuits_task(), ppo_task()};
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
  for (size_t i = tasks().size(); i-- > 0;) tasks()[i].register_keys();  // keys are inserted at the top of the table: those of the first task come first
}

}  // namespace ridge
