#include <cstdlib>
#include <fstream>

#include <fmt/core.h>

#include "base/error.h"
#include "config/config.h"
#include "config/words.h"

namespace ridge::config {
namespace {

// A run's config.yaml: its first line, and what is between a value and its source.
constexpr std::string_view kFirstLine = "# Every setting of this run, and where it came from.", kBeforeSource = "  # ";

// Where the value on a line of a run's config.yaml came from; empty: `source` is not such a line.
std::string recorded_source(const std::string& source) {
  const size_t colon = source.rfind(':');
  if (colon == source.npos || std::filesystem::path(source.substr(0, colon)).filename() != "config.yaml") return {};
  std::ifstream in(source.substr(0, colon));
  std::string line;
  if (!std::getline(in, line) || line != kFirstLine) return {};  // another file of that name
  for (int64_t number = std::atoll(source.c_str() + colon + 1); number > 1; --number)
    if (!std::getline(in, line)) return {};
  const size_t comment = line.rfind(kBeforeSource);
  return comment == line.npos ? std::string() : line.substr(comment + kBeforeSource.size());
}

[[noreturn]] void wrong_type(std::string_view name, const Resolved& resolved, std::string_view asked) {
  fail(ErrorCode::internal, "[config] '{}' is {}, not a {}", name, resolved.get<std::string>(name), asked);
}

}  // namespace

const std::vector<Setting>& Resolved::history(std::string_view name) const {
  if (const Key* key = find_key(name, task_); key && key->name == name) return history(*key);
  fail(ErrorCode::internal, "[config] {}", unknown_key(name));
}

const std::vector<Setting>& Resolved::history(const Key& key) const { return history_[size_t(&key - keys().data())]; }

const Setting& Resolved::setting(std::string_view name) const { return history(name).back(); }

std::string Resolved::origin(std::string_view name) const {
  const std::string &source = setting(name).source, recorded = recorded_source(source);
  return recorded.empty() ? source : recorded;
}

template <>
std::string Resolved::get(std::string_view name) const {
  const Setting& s = setting(name);
  return to_text(*find_key(name, task_), s.value);
}

template <>
std::optional<int64_t> Resolved::get(std::string_view name) const {
  const Value& value = setting(name).value;
  if (const int64_t* number = value.as<int64_t>()) return *number;
  const Type type = find_key(name, task_)->type;
  if (value.as<std::string>() && type != Type::text && type != Type::path && type != Type::choice) return {};
  wrong_type(name, *this, "whole number");
}

template <>
std::optional<double> Resolved::get(std::string_view name) const {
  if (const double* number = setting(name).value.as<double>()) return *number;
  const std::optional<int64_t> whole = get<std::optional<int64_t>>(name);
  return whole ? std::optional<double>(double(*whole)) : std::nullopt;
}

template <>
int64_t Resolved::get(std::string_view name) const {
  if (std::optional<int64_t> number = get<std::optional<int64_t>>(name)) return *number;
  wrong_type(name, *this, "whole number");
}

template <>
double Resolved::get(std::string_view name) const {
  if (std::optional<double> number = get<std::optional<double>>(name)) return *number;
  wrong_type(name, *this, "number");
}

template <>
bool Resolved::get(std::string_view name) const {
  if (const bool* truth = setting(name).value.as<bool>()) return *truth;
  wrong_type(name, *this, "boolean");
}

template <>
std::vector<std::string> Resolved::get(std::string_view name) const {
  if (const auto* items = setting(name).value.as<std::vector<std::string>>()) return *items;
  wrong_type(name, *this, "list");
}

std::string Resolved::precision_key(std::string_view device) const {
  const std::string own = fmt::format("precision.{}", device.substr(0, device.find(':')));
  return setting(own).value.is("none") ? "precision" : own;
}

std::vector<Row> Resolved::describe(const MachineFacts& machine) const {
  std::vector<Row> rows;
  for (size_t i = 0; i < keys().size(); ++i) {
    const Key& key = keys()[i];
    if (!(key.tasks & task_)) continue;
    const std::vector<Setting>& history = history_[i];
    Row row{&key, to_text(key, history.back().value), history.back().source, {}, {}};
    for (size_t k = history.size() - 1; k-- > 1;) row.overrode.push_back(fmt::format("{} ({})", to_text(key, history[k].value), history[k].source));
    // Nobody asked for a default, not even where a run's config.yaml lists it, so there is no need to say that it has no effect here.
    const bool listed = row.source.find("config.yaml:") != std::string::npos && row.value == to_text(key, history.front().value);
    const bool asked = history.size() > 1 && !row.source.starts_with("preset") && !listed;
    if (asked && key.remark) row.remark = key.remark(history.back().value, machine);
    if (asked && row.remark.empty() && key.used_by.empty()) row.remark = "accepted, not used yet";
    rows.push_back(std::move(row));
  }
  return rows;
}

void Resolved::replace(std::string_view name, std::string_view value, std::string source) {
  const Key* key = find_key(name, task_);
  const Parsed parsed = key ? parse_value(*key, value) : Parsed{};
  if (!parsed.value) fail(key ? ErrorCode::usage : ErrorCode::internal, "[config] {}: {} {}", source, name, key ? parsed.problem : "is not a key");
  history_[size_t(key - keys().data())].push_back({*parsed.value, std::move(source)});
}

void Resolved::keep_paths() {
  auto from_root = [](const std::string& text) {
    std::error_code ignored;
    for (const char* word : {"", "builtin", "auto", "char", "byte", "bpe"})
      if (text == word) return text;
    if (!std::filesystem::exists(text, ignored)) return text;
    const std::filesystem::path whole = std::filesystem::absolute(text, ignored);
    return ignored ? text : whole.lexically_normal().string();
  };
  for (size_t i = 0; i < keys().size(); ++i) {
    if (keys()[i].name != "data" && keys()[i].name != "tokenizer" && keys()[i].name != "init_from" && keys()[i].name != "wiring") continue;
    Value& value = history_[i].back().value;
    if (const auto* text = value.as<std::string>()) value = Value(from_root(*text));
    if (const auto* items = value.as<std::vector<std::string>>()) {
      std::vector<std::string> whole;
      for (const std::string& item : *items) whole.push_back(from_root(item));
      value = Value(std::move(whole));
    }
  }
}

bool is_of_run(const std::string& source, const std::filesystem::path& run) {
  const std::filesystem::path file = source.substr(0, source.rfind(':'));
  if (file == source || file.filename() != "config.yaml") return false;
  const std::filesystem::path within = std::filesystem::weakly_canonical(run).lexically_relative(std::filesystem::weakly_canonical(file).parent_path());
  return !within.empty() && *within.begin() != "..";
}

void Resolved::keep_sources(const std::filesystem::path& run) {
  for (std::vector<Setting>& history : history_) {
    std::string& source = history.back().source;
    if (!is_of_run(source, run)) continue;
    if (std::string recorded = recorded_source(source); !recorded.empty()) source = std::move(recorded);
  }
}

std::string Resolved::to_yaml() const {
  std::string out = fmt::format("{}\n", kFirstLine);
  std::string_view group;
  for (size_t i = 0; i < keys().size(); ++i) {
    const Key& key = keys()[i];
    if (!(key.tasks & task_)) continue;
    if (key.group != group) out += fmt::format("\n# {}\n", group = key.group);
    const Setting& s = history_[i].back();
    const bool plain = first_non_utf8(s.source) == kAllUtf8 && s.source.find('\n') == s.source.npos;  // a path can contain anything
    out += fmt::format("{}: {}{}{}\n", key.name, config::to_yaml(key, s.value), kBeforeSource, plain ? s.source : shown(s.source));
  }
  return out;
}

}  // namespace ridge::config
