// Registers task-specific commands from the tasks' descriptions of them.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "base/error.h"
#include "base/nearest.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "config/words.h"
#include "tasks/registry.h"
#include "train/model_folder.h"

namespace ridge::cli {
namespace {

void add_option(Line& line, const Verb::Option& o) {
  switch (o.kind) {
    case Verb::Option::Kind::word: return line.word(o.name, *std::get<std::string*>(o.value), o.help);
    case Verb::Option::Kind::text: return line.option(o.name, *std::get<std::string*>(o.value), o.help);
    case Verb::Option::Kind::positive: return line.positive_option(o.name, *std::get<int64_t*>(o.value), o.help);
    case Verb::Option::Kind::range: return line.range_option(o.name, *std::get<int64_t*>(o.value), o.help, o.low, o.high);
    case Verb::Option::Kind::flag: return line.flag(o.name, *std::get<bool*>(o.value), o.help);
  }
}

// The model that the command line names, if the command takes one.
const std::string* model_of(const Verb& verb) {
  for (const Verb::Option& o : verb.options)
    if (o.kind == Verb::Option::Kind::word && o.name == std::string_view("model")) return std::get<std::string*>(o.value);
  return nullptr;
}

// Refuses a model that does not exist, and one of a task without this command.
void check_model(const Verb& verb) {
  const std::string* const model = model_of(verb);
  std::error_code ignored;
  if (!model || model->empty()) return;
  std::vector<std::string_view> users, instead;
  const Task* owner = nullptr;
  for (const Task& task : tasks()) {
    const std::vector<Verb> verbs = task.verbs();
    const bool has = std::any_of(verbs.begin(), verbs.end(), [&](const Verb& other) { return other.name == std::string_view(verb.name); });
    if (has) users.emplace_back(task.name);
    if (!task.owns(*model)) continue;
    if (has) return;
    owner = &task;
    for (const Verb& other : verbs)
      if (model_of(other)) instead.emplace_back(other.name);
  }
  if (!std::filesystem::exists(*model, ignored))
    fail(ErrorCode::io, "[{}] {} does not exist; {}", verb.name, *model, runs_instead_of(*model, std::string(users[0]).c_str()));
  if (owner)
    fail(ErrorCode::usage, "[{0}] {1} is a model of the task {2}, and ridge {0} is for {3}; for {2} there is ridge {4}", verb.name, *model, owner->name,
         config::join(users, " and "), config::join(instead, ", ridge "));
}

// Options that only models of other tasks have.
void refuse_other_options(const Verb& verb, const std::vector<std::string>& words) {
  const std::string& model = *model_of(verb);
  const auto owner = std::ranges::find_if(tasks(), [&](const Task& task) { return task.owns(model); });
  if (owner == tasks().end()) return;
  auto has = [](const Verb& v, const std::string& option) { return std::ranges::any_of(v.options, [&](const Verb::Option& o) { return o.name == option; }); };
  for (const std::string& word : words) {
    const std::string option = word.substr(0, word.find('='));
    if (has(verb, option)) continue;
    for (const Task& task : tasks())
      for (const Verb& other : task.verbs())
        if (option.starts_with("--") && other.name == std::string_view(verb.name) && has(other, option))
          fail(ErrorCode::usage, "[{0}] {1} is for models of the task {2}, and {3} is one of {4}; ridge {0} {3} --help lists its options", verb.name, option,
               task.name, model, owner->name);
  }
}

Command::Run set_up(const Verb& verb, unsigned keys, Line line) {
  if (verb.below.empty()) {
    for (const Verb::Option& option : verb.options) add_option(line, option);
    std::function<config::Sources()> sources = [] { return config::Sources(); };
    if (verb.has_settings) sources = add_settings(line, keys);
    if (*verb.footer) line.footer(verb.footer);
    return [verb, sources] {
      config::Sources read = sources();
      if (model_of(verb)) refuse_other_options(verb, read.words), config::resolve(read), check_model(verb);  // mistakes in settings come first
      return verb.run(std::move(read));
    };
  }
  auto chosen = std::make_shared<Command::Run>();
  for (const Verb& below : verb.below) {
    Line own = line.add_command(below.name, below.summary);
    own.on_chosen([chosen, run = set_up(below, keys, own)] { *chosen = run; });
  }
  line.allow_rest();  // for a better error message on a wrong word
  return [chosen, line, verb]() -> int {
    if (*chosen) return (*chosen)();
    std::vector<std::string_view> names;
    for (const Verb& below : verb.below) names.emplace_back(below.name);
    const std::vector<std::string> rest = line.rest();
    if (rest.empty()) fail(ErrorCode::usage, "[{}] what? {}", verb.name, verb.example);
    fail(ErrorCode::usage, "[{}] unknown command '{}'; {}", verb.name, rest[0], nearest_hint(rest[0], names));
  };
}

}  // namespace

void add_verbs(std::span<const char* const> line) {
  struct Shared {
    std::string summary;         // of all tasks that have the command
    const Task* task = nullptr;  // the one that the line's model belongs to, or else the first
    Verb verb = {};
  };
  std::map<std::string, Shared> commands;
  for (const Task& task : tasks())
    for (const Verb& verb : task.verbs()) {
      Shared& shared = commands[verb.name];
      shared.summary += (shared.summary.empty() ? "" : "; ") + std::string(verb.summary);
      if (!shared.task || std::any_of(line.begin(), line.end(), task.owns)) shared.task = &task, shared.verb = verb;
    }
  for (const auto& [_, shared] : commands)
    Command(shared.verb.name, shared.summary, [verb = shared.verb, keys = shared.task->keys](Line own) { return set_up(verb, keys, own); });
}

}  // namespace ridge::cli
