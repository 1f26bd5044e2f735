// ridge config keys|show|check: lists the settings, their current values and sources, or checks a file.
#include <algorithm>
#include <memory>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/nearest.h"
#include "base/terminal.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "config/config.h"
#include "config/document.h"
#include "config/words.h"
#include "machine/gpus.h"
#include "machine/limits.h"

namespace ridge::cli {
namespace {

using config::Key;

// Prints a heading where a new group begins.
void print_heading(std::string_view& group, std::string_view next) {
  if (next == group) return;
  fmt::print("{}{}\n", group.empty() ? "" : "\n", bold(next));
  group = next;
}

int print_keys(bool json, bool markdown) {
  if (json || markdown) {
    fmt::print("{}{}", json ? config::keys_json() : config::keys_markdown(), json ? "\n" : "");
    return kOk;
  }
  const int width = terminal_width();
  constexpr int kName = 22, kIndent = 4;
  std::string_view group;
  for (const Key& key : config::keys()) {
    print_heading(group, key.group);
    const std::string initial = key.initial.empty() ? "" : fmt::format("; default {}", key.initial);
    fmt::print("  {}{} {}\n", key.name, std::string(size_t(std::max(0, kName - int(key.name.size()))), ' '),
               wrap(fmt::format("{}{}", expected(key), initial), width, kName + 3));
    fmt::print("{}{}\n", std::string(kIndent, ' '), dim(wrap(key.help, width, kIndent)));
  }
  return kOk;
}

unsigned task_of(std::string_view word) {
  for (auto [task, name] : config::task_names())
    if (word == name) return task;
  return 0;
}

config::MachineFacts machine_facts() {
  config::MachineFacts facts;
  facts.cuda = gpus().cuda_devices() > 0;
  facts.metal = std::any_of(gpus().gpus.begin(), gpus().gpus.end(), [](const Gpu& gpu) { return gpu.vendor == Gpu::Vendor::apple; });
  facts.cpus = int(read_limits().cpus.size());
  return facts;
}

nlohmann::ordered_json as_json(const Key& key, const config::Value& value) {
  if (key.type == config::Type::bytes && value.as<int64_t>()) return to_text(key, value);
  return std::visit([](const auto& data) { return nlohmann::ordered_json(data); }, value.data());
}

void print_json(const config::Resolved& resolved, const std::vector<config::Row>& rows) {
  nlohmann::ordered_json out{{"files", resolved.files()}, {"settings", nlohmann::json::array()}, {"notes", nlohmann::json::array()}};
  for (const config::Row& row : rows) {
    nlohmann::ordered_json item{{"key", row.key->name}, {"value", as_json(*row.key, resolved.history(*row.key).back().value)}, {"source", row.source}};
    item["used_by"] = row.key->used_by;
    item["overrode"] = nlohmann::json::array();
    const auto& history = resolved.history(*row.key);
    for (auto s = history.rbegin() + 1; s != history.rend(); ++s) item["overrode"].push_back({{"value", as_json(*row.key, s->value)}, {"source", s->source}});
    if (!row.remark.empty()) item["remark"] = row.remark;
    out["settings"].push_back(std::move(item));
  }
  for (const config::Note& note : resolved.notes()) out["notes"].push_back({{"source", note.source}, {"text", note.text}});
  fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void print_table(const config::Resolved& resolved, const std::vector<config::Row>& rows) {
  size_t value_width = 5, source_width = 6;
  for (const config::Row& row : rows) {
    value_width = std::min<size_t>(std::max<size_t>(value_width, size_t(display_width(row.value))), 24);
    source_width = std::min<size_t>(std::max<size_t>(source_width, size_t(display_width(row.source))), 32);
  }
  constexpr int kName = 22;
  const int width = terminal_width(), indent = 2 + kName + 1;
  for (const std::string& file : resolved.files()) fmt::print("read {}\n", file);
  if (!resolved.files().empty()) fmt::print("\n");
  std::string_view group;
  for (const config::Row& row : rows) {
    print_heading(group, row.key->group);
    const std::string source = row.source == "default" ? dim(row.source) : row.source;
    std::string line = fmt::format("  {:{}} {:{}}  {}", row.key->name, kName, row.value.empty() ? "–" : row.value, value_width, source);
    const int used = indent + int(std::max<size_t>(value_width, size_t(display_width(row.value)))) + 2 + display_width(row.source);
    const int column = indent + int(value_width) + 2 + int(source_width) + 2;
    std::string more = row.overrode.empty() ? "" : fmt::format("overrode {}", config::join(row.overrode, ", "));
    if (!row.remark.empty()) more = more.empty() ? row.remark : fmt::format("{}; {}", row.remark, more);
    if (!more.empty()) {
      const bool same_line = used < column && column + display_width(more) <= width;
      line += same_line ? std::string(size_t(column - used), ' ') + dim(more)
                        : fmt::format("\n{}{}", std::string(size_t(indent), ' '), dim(wrap(more, width, indent)));
    }
    fmt::print("{}\n", line);
  }
  std::vector<std::string_view> idle;
  for (const config::Row& row : rows)
    if (row.key->used_by.empty()) idle.push_back(row.key->name);
  fmt::print("\n");
  if (!idle.empty()) fmt::print("{}\n", dim(wrap(fmt::format("No command uses these yet: {}.", config::join(idle, ", ")), width, 0)));
  for (const config::Note& note : resolved.notes()) fmt::print("note: {}\n", wrap(fmt::format("{}: {}", note.source, note.text), width, 6));
}

int show(config::Sources sources, bool json) {
  // Only options that preceded the command come before it.
  const auto word = std::find_if_not(sources.words.begin(), sources.words.end(), [](const std::string& w) { return w.starts_with("--"); });
  if (word != sources.words.end() && task_of(*word)) {
    sources.task = task_of(*word);
    sources.words.erase(word);
  }
  const config::Resolved resolved = config::resolve(sources);
  const std::vector<config::Row> rows = resolved.describe(machine_facts());
  json ? print_json(resolved, rows) : print_table(resolved, rows);
  return kOk;
}

int check(const std::vector<std::string>& files) {
  size_t problems = 0;
  for (const std::string& file : files) {
    const config::FileReport report = config::check_file(file);
    for (const std::string& problem : report.problems) fmt::print(stderr, "{}\n", problem);
    for (const config::Note& note : report.notes) fmt::print("{}: note: {}\n", note.source, note.text);
    if (report.problems.empty()) fmt::print("{}: {} key{}, all valid\n", file, report.keys, report.keys == 1 ? "" : "s");
    problems += report.problems.size();
  }
  return problems == 0 ? kOk : kUsage;
}

const Command config_command("config", "list the settings, show their values and sources, check a file", [](Line line) {
  auto chosen = std::make_shared<Command::Run>();
  auto json = std::make_shared<bool>(false), markdown = std::make_shared<bool>(false);
  Line keys_command = line.add_command("keys", "every key with its type, default and meaning");
  keys_command.flag("--json", *json, "print one JSON document");
  keys_command.flag_without("--md", *markdown, "Markdown, as docs/configuration.md", "--json");
  keys_command.on_chosen([=] { *chosen = [=] { return print_keys(*json, *markdown); }; });

  auto show_json = std::make_shared<bool>(false);
  std::vector<std::string_view> names;
  for (const config::TaskName& task : config::task_names()) names.push_back(task.name);
  const std::string summary = fmt::format("every value with its source: ridge config show [{}] [key=value …]", config::join(names, "|"));
  Line show_command = line.add_command("show", summary.c_str());
  show_command.flag("--json", *show_json, "print one JSON document");
  auto sources = add_settings(show_command);
  show_command.on_chosen([=] { *chosen = [=] { return show(sources(), *show_json); }; });

  auto files = std::make_shared<std::vector<std::string>>();
  Line check_command = line.add_command("check", "list all problems of configuration files");
  check_command.words("files", *files, "the files");
  check_command.on_chosen([=] { *chosen = [=] { return check(*files); }; });

  line.allow_rest();  // for a better error message on a wrong word
  return [chosen, line]() -> int {
    if (*chosen) return (*chosen)();
    constexpr std::string_view kWords[] = {"keys", "show", "check"};
    const std::vector<std::string> rest = line.rest();
    if (rest.empty()) fail(ErrorCode::usage, "[config] no command given; use ridge config keys, ridge config show, or ridge config check FILE");
    fail(ErrorCode::usage, "[config] unknown command '{}'; {}", rest[0], nearest_hint(rest[0], kWords));
  };
});

}  // namespace
}  // namespace ridge::cli
