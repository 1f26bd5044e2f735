// One table of keys drives configuration files, environment, command line, documentation and error messages.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace ridge::config {

enum class Type : uint8_t { integer, real, boolean, text, choice, bytes, path, list };

// The tasks that read a key, as a bit set. Another task's key is an error on the command line and a remark in a file.
constexpr unsigned kMachine = 1, kProgram = 2, kTrain = ~kMachine, kAllTasks = ~0u;  // kProgram: the model of a C++ program; kTrain: of any task that trains

// Facts that remarks depend on. The defaults describe a machine without a GPU, otherwise unknown.
struct MachineFacts {
  bool cuda = false, metal = false;
  int cpus = 0;  // usable by the process; 0: unknown
};

class Value;

struct Key {
  std::string_view name;
  std::string_view group;
  Type type;
  std::string_view initial;                                                          // the default, as written
  std::string_view help;                                                             // one sentence without a full stop
  std::string_view words = {};                                                       // choices, or words allowed in place of a number: "auto|none"
  double low = 0, high = kNoLimit;                                                   // for numbers and sizes
  bool above_low = false, below_high = false;                                        // excludes the limit itself
  unsigned tasks = kAllTasks;                                                        // the tasks that read it
  std::string_view aliases = {};                                                     // other names, also in other programs' files: "batch_size n_batch"
  std::string_view synonyms = {};                                                    // other words: "float32=fp32 amp=auto"
  std::string_view foreign_variable = {};                                            // another program's variable that also sets it, weaker than RIDGE_*
  std::string_view used_by = {};                                                     // the commands that use it today; empty: none yet
  std::string (*remark)(const Value& value, const MachineFacts& machine) = nullptr;  // why the value cannot be used here; empty: it can

  static constexpr double kNoLimit = std::numeric_limits<double>::infinity();
};

inline constexpr std::string_view kModelGroup = "Model", kRunGroup = "Run folder";  // groups that tasks add keys to

unsigned task_bit(std::string_view name);  // of a task, which is registered by the first call; the name must stay valid

// Adds a task's own keys after the shared key `after`, or first if that is empty. Call before any setting is resolved; a second call changes nothing.
void register_keys(unsigned task, std::string_view after, std::span<const Key> keys);

struct TaskName {
  unsigned task;
  std::string_view name;
};
std::span<const TaskName> task_names();  // those registered, and machine

std::span<const Key> keys();
// By name or alias, hyphens treated as underscores; null: unknown. Tasks may have different keys of one name: the one that `task` reads is found first.
const Key* find_key(std::string_view name, unsigned task = kAllTasks);

std::string variable_of(const Key& key);     // RIDGE_BATCH
std::string expected(const Key& key);        // "a whole number from 1 to 1024, or auto"
std::string names_of_tasks(unsigned tasks);  // "gpt, machine"
std::string_view name(Type type);

// RIDGE_… variables that are not keys: switches for developers and tests.
struct Switch {
  std::string_view name, help;
};
std::span<const Switch> switches();

// "unknown key 'bach'; did you mean 'batch'?" `options` are flags that would have been valid, without dashes.
std::string unknown_key(std::string_view name, std::span<const std::string> options = {});

}  // namespace ridge::config
