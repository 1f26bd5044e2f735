// Registers task-specific commands from the tasks' descriptions of them.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "base/error.h"
#include "base/nearest.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "tasks/registry.h"

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

Command::Run set_up(const Verb& verb, unsigned keys, Line line) {
  if (verb.below.empty()) {
    for (const Verb::Option& option : verb.options) add_option(line, option);
    std::function<config::Sources()> sources = [] { return config::Sources(); };
    if (verb.has_settings) sources = add_settings(line, keys);
    if (*verb.footer) line.footer(verb.footer);
    return [run = verb.run, sources] { return run(sources()); };
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
      if (!shared.task || (task.owns && std::any_of(line.begin(), line.end(), task.owns))) shared.task = &task, shared.verb = verb;
    }
  for (const auto& [_, shared] : commands)
    Command(shared.verb.name, shared.summary, [verb = shared.verb, keys = shared.task->keys](Line own) { return set_up(verb, keys, own); });
}

}  // namespace ridge::cli
