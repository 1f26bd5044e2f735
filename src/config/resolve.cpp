#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/core.h>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "config/config.h"
#include "config/foreign.h"
#include "config/presets.h"
#include "config/source_file.h"
#include "config/words.h"

namespace ridge::config {

namespace fs = std::filesystem;

// Collects the settings of each source, weakest first. Problems are gathered, so that all are reported together.
class Resolver {
 public:
  explicit Resolver(unsigned task) {
    resolved_.task_ = task;
    resolved_.history_.resize(keys().size());
    for (const Key& key : keys()) set(key, parse_value(key, key.initial), "default");
  }

  void presets() {
    for (std::string_view name : preset_keys()) {
      const Key& key = *find(name);
      if (!is_asked_for(key)) continue;
      if (const std::string named = implied_preset(key); !named.empty()) set(key, parse_value(key, named), "data");
      preset(resolved_.get<std::string>(name));
    }
  }

  // A task may have presets for data sets, named like them, and one for tables. Data that is set chooses among these, unless a preset is set too.
  std::string implied_preset(const Key& key) {
    const Setting& data = resolved_.setting("data");
    const auto* sources = data.value.as<std::vector<std::string>>();
    if (history_of(key).size() > 1 || data.source == "default" || !sources || sources->empty() || sources->front() == "builtin") return {};
    std::string found;
    for (std::string_view word : split(key.words, '|')) {
      if (word == sources->front()) return std::string(word);
      if (word == "table") found = word;
    }
    return found;
  }

  void preset(const std::string& name) {
    for (std::string_view word : split(preset_settings(name), ' ')) {
      const Key& key = *find(word.substr(0, word.find('=')));
      set(key, parse_value(key, word.substr(word.find('=') + 1)), "preset " + name);
      // Known last, yet weaker than everything but the default: it is inserted right after the default, unless auto was asked for explicitly
      // and means the preset's value, as it does for keys whose default it is.
      auto& history = history_of(key);
      if (key.initial != "auto" || !history.end()[-2].value.is("auto")) std::rotate(history.begin() + 1, history.end() - 1, history.end());
    }
  }

  // Written by Ridge, perhaps by another version: what is not understood is reported and skipped.
  void tuned(const std::vector<std::pair<std::string, std::string>>& settings) {
    for (const auto& [name, value] : settings) {
      const Key* key = find(name);
      const Parsed parsed = key ? parse_value(*key, value) : Parsed{{}, unknown_key(name)};
      if (parsed.value)
        set(*key, parsed, kTuned);
      else
        note(std::string(kTuned), fmt::format("{} has no effect: {}", name, parsed.problem));
    }
  }

  void file(const fs::path& path) {
    const Marks before = marks();
    const std::string file = path.lexically_normal().string();
    resolved_.files_.push_back(file);
    FileContent content = read_file(path);
    interpret(file, content);
    constexpr size_t kMaxReported = 100;
    std::stable_sort(content.problems.begin(), content.problems.end(), [](const Problem& a, const Problem& b) { return a.line < b.line; });
    for (size_t i = 0; i < std::min(content.problems.size(), kMaxReported); ++i) {
      const Problem& p = content.problems[i];
      problem(p.line > 0 ? fmt::format("{}:{}", file, p.line) : file, p.what);
    }
    if (content.problems.size() > kMaxReported) problem(file, fmt::format("has more problems than the {} listed", kMaxReported));
    apply_general_precision(before);
  }

  void environment(const std::vector<std::pair<std::string, std::string>>& variables) {
    const Marks before = marks();
    for (const bool foreign : {true, false})  // RIDGE_* is stronger than other programs' variables
      for (const auto& [name, value] : variables)
        if (!value.empty()) foreign ? foreign_variable(name, value) : variable(name, value);
    apply_general_precision(before);
  }

  // Within one list the last of equal names wins, so that a script's defaults can be overridden; two names for one key are an error, as in a file.
  void words(const std::vector<std::string>& all, const std::vector<std::string>& options = {}, std::string_view source = "command line") {
    const Marks before = marks();
    written_.clear();
    options_ = options, source_ = source;
    for (size_t i = 0; i < all.size(); ++i) {
      const std::string_view word = all[i];
      const bool flag = word.starts_with("--");
      const size_t equal = word.find('=');
      const std::string_view name = word.substr(flag ? 2 : 0, equal == word.npos ? word.npos : equal - (flag ? 2 : 0));
      const Key* key = find(name);
      if (equal != word.npos && (flag || !word.starts_with('-'))) {
        assign(key, name, word.substr(equal + 1), flag);
      } else if (!flag) {
        problem(source_, fmt::format("{} is not a setting; write key=value", shown(word)));
      } else if (!key && (name.starts_with("no-") || name.starts_with("no_")) && find(name.substr(3)) && find(name.substr(3))->type == Type::boolean) {
        assign(find(name.substr(3)), name, "false");
      } else if (key && key->type == Type::boolean) {
        // A boolean may follow but need not; any other word is not its value.
        const bool follows = i + 1 < all.size() && all[i + 1].find('=') == std::string::npos && parse_value(*key, all[i + 1]).value;
        assign(key, name, follows ? std::string_view(all[++i]) : "true");
      } else if (!key) {
        assign(nullptr, name, {}, true);
        if (i + 1 < all.size() && !all[i + 1].starts_with('-') && all[i + 1].find('=') == std::string::npos) ++i;  // most likely its value
      } else if (i + 1 == all.size()) {
        problem(source_, fmt::format("--{} needs a value: {}", name, expected(*key)));
      } else {
        assign(key, name, all[++i]);
      }
    }
    apply_general_precision(before);
  }

  std::string text(std::string_view name) const { return resolved_.get<std::string>(name); }
  // Problems with other programs' variables count only if nothing stronger sets their key.
  std::vector<std::string> problems() {
    std::vector<std::string> all;
    for (const Waiting& w : waiting_)
      if (history_of(*w.key).size() == w.settings) all.push_back(w.what);
    all.insert(all.end(), problems_.begin(), problems_.end());
    return all;
  }
  Resolved take() { return std::move(resolved_); }

 private:
  static constexpr std::string_view kTuned = "tuned choices";

  // Interprets a file's entries, and adds to its problems.
  void interpret(const std::string& file, FileContent& content) {
    constexpr size_t kMaxSearched = 1000;
    std::map<const Key*, std::pair<int, std::string>> seen;
    std::set<std::string> bad_sections;  // including nested ones
    for (const Section& section : content.sections) {
      const bool within = bad_sections.contains(section.name.substr(0, section.name.rfind('.')));
      const std::string what = section_problem(section.name);
      if (!what.empty() && bad_sections.insert(section.name).second && !within) content.problems.push_back({section.line, what});
    }
    std::vector<std::string_view> others;
    for (const Entry& entry : content.entries) {
      if (content.problems.size() >= kMaxSearched) return;
      if (bad_sections.contains(entry.section)) continue;
      if (entry.null && !find(entry.name) && section_problem(entry.name).empty()) continue;  // a section whose keys are all commented out
      const std::string source = fmt::format("{}:{}", file, entry.line);
      const Meaning meaning = meaning_of(resolved_.task_, entry.section, entry.name);
      auto wrong = [&](std::string what) { content.problems.push_back({entry.line, std::move(what)}); };
      if (!meaning.problem.empty()) {
        wrong(meaning.problem);
      } else if (!meaning.key && meaning.only) {
        const Parsed parsed = entry.null || entry.sequence ? Parsed{} : parse_value(*find_key("resume"), entry.values.at(0));
        if (!entry.null && parsed.value != Value(*meaning.only)) wrong(fmt::format("{} cannot be set: {}", entry.name, meaning.remark));
      } else if (!meaning.key) {
        note(source, fmt::format("{} has no effect: {}", entry.name, meaning.remark));
      } else if (auto [first, fresh] = seen.try_emplace(meaning.key, entry.line, entry.name); !fresh) {
        const auto& [line, name] = first->second;
        wrong(fmt::format("'{}' is set twice: as {} in line {}, as {} in line {}; remove one", meaning.key->name, name, line, entry.name, entry.line));
      } else if (entry.null) {
        note(source, fmt::format("{} has no value and is ignored", entry.name));
      } else {
        const Key& key = entry.sequence ? *meaning.key : accepting(*meaning.key, entry.values.at(0));
        const Parsed parsed = entry.sequence ? parse_values(key, entry.values) : parse_value(key, entry.values.at(0));
        parsed.value ? set(key, parsed, source) : wrong(refusal(key, entry.name, parsed));
        if (!is_asked_for(key)) others.push_back(key.name);
      }
    }
    if (!others.empty()) note(file, fmt::format("keys of other tasks have no effect: {}", join(others, ", ")));
  }

  const Key* find(std::string_view name) const { return find_key(name, resolved_.task_); }

  // Of several tasks' keys of one name, the first that accepts the value, if any task's will do.
  const Key& accepting(const Key& key, std::string_view value) const {
    if (resolved_.task_ == kAllTasks)
      for (const Key& other : keys())
        if (other.name == key.name && parse_value(other, value).value) return other;
    return key;
  }

  std::vector<Setting>& history_of(const Key& key) { return resolved_.history_[size_t(&key - keys().data())]; }

  void problem(std::string_view source, std::string_view what) { problems_.push_back(fmt::format("{}: {}", source, what)); }
  void note(std::string source, std::string text) { resolved_.notes_.push_back({std::move(source), std::move(text)}); }

  static std::string refusal(const Key& key, std::string_view written, const Parsed& parsed) {
    return written == key.name ? fmt::format("{} {}", key.name, parsed.problem) : fmt::format("{} ({}) {}", written, key.name, parsed.problem);
  }

  void set(const Key& key, const Parsed& parsed, std::string_view source, std::string_view written = {}) {
    if (parsed.value)
      history_of(key).push_back({*parsed.value, std::string(source)});
    else
      problem(source, refusal(key, written.empty() ? key.name : written, parsed));
  }

  bool is_asked_for(const Key& key) const { return key.tasks & resolved_.task_; }

  void assign(const Key* key, std::string_view name, std::string_view value, bool flag = false) {
    const Meaning meaning =
        key ? Meaning{key} : meaning_of(resolved_.task_, {}, name, flag ? std::span<const std::string>(options_) : std::span<const std::string>());
    if (!meaning.problem.empty()) return problem(source_, meaning.problem);
    if (!meaning.key) return problem(source_, fmt::format("{} cannot be set: {}", shown(name), meaning.remark));
    if (!is_asked_for(*meaning.key))
      return problem(source_, fmt::format("'{}' is a key of {}, not of {}", name, names_of_tasks(meaning.key->tasks), names_of_tasks(resolved_.task_)));
    std::string plain(name);
    std::replace(plain.begin(), plain.end(), '-', '_');
    if (plain.starts_with("no_") && !find(plain)) plain.erase(0, 3);
    if (const auto [first, fresh] = written_.try_emplace(meaning.key, plain); !fresh && first->second != plain)
      return problem(source_, fmt::format("'{}' is set twice: as {} and as {}; remove one", meaning.key->name, first->second, plain));
    const Key& taken = accepting(*meaning.key, value);
    set(taken, parse_value(taken, value), source_, name);
  }

  // How often precision and its per-device forms were set.
  static constexpr std::string_view kPrecisions[] = {"precision", "precision.cpu", "precision.cuda", "precision.metal"};
  using Marks = std::array<size_t, std::size(kPrecisions)>;
  Marks marks() {
    Marks sizes;
    for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = history_of(*find_key(kPrecisions[i])).size();
    return sizes;
  }

  // Within one source precision.cuda is stronger than precision, but precision from a stronger source replaces a weaker source's value for a device.
  void apply_general_precision(const Marks& before) {
    const Marks now = marks();
    if (now[0] == before[0]) return;
    for (size_t i = 1; i < now.size(); ++i)
      if (auto& history = history_of(*find_key(kPrecisions[i])); now[i] == before[i] && !history.back().value.is("none"))
        history.push_back({Value(std::string("none")), history_of(*find_key("precision")).back().source});
  }

  void variable(const std::string& name, const std::string& value) {
    if (!name.starts_with("RIDGE_")) return;
    const std::string source = "environment " + name;
    const Key* found = nullptr;
    for (const Key& key : keys())
      if (variable_of(key) == name && (!found || (is_asked_for(key) && !is_asked_for(*found)))) found = &key;
    if (found) {
      const Key& key = accepting(*found, value);
      set(key, parse_value(key, value), source);
      if (!is_asked_for(key)) note(source, fmt::format("has no effect: {} is a key of {}", key.name, names_of_tasks(key.tasks)));
      return;
    }
    std::vector<std::string> valid;
    for (const Switch& s : switches()) {
      if (s.name == name) return;
      valid.emplace_back(s.name);
    }
    for (const Key& key : keys()) valid.push_back(variable_of(key));
    std::string plain;
    for (char c : name.substr(6)) plain += c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
    if (const Meaning meaning = meaning_of(resolved_.task_, {}, plain); !meaning.remark.empty())
      return problem(source, fmt::format("cannot be set: {}", meaning.remark));
    problem(source, fmt::format("unknown variable; {}",
                                nearest_hint(name, std::vector<std::string_view>(valid.begin(), valid.end()), "ridge config keys --md lists all")));
  }

  // For other programs' variables, whose lists for nested teams begin with the outermost.
  void foreign_variable(const std::string& name, const std::string& value) {
    for (const Key& key : keys())
      if (key.foreign_variable == name) {
        const std::string source = "environment " + name;
        const std::string_view outermost = key.type == Type::integer ? std::string_view(value).substr(0, value.find(',')) : std::string_view(value);
        const Parsed parsed = parse_value(key, outermost);
        if (parsed.value)
          set(key, parsed, source);
        else
          waiting_.push_back({&key, history_of(key).size(), fmt::format("{}: {}", source, refusal(key, key.name, parsed))});
      }
  }

  struct Waiting {
    const Key* key;
    size_t settings;  // number of settings of this key by weaker sources
    std::string what;
  };

  Resolved resolved_;
  std::vector<std::string> problems_;
  std::vector<Waiting> waiting_;
  std::map<const Key*, std::string> written_;  // names on the command line
  std::vector<std::string> options_;
  std::string_view source_;  // of the words being read
};

namespace {

// The run's folder, according to the strongest source that does not depend on finding a file first.
fs::path run_folder(const Sources& sources) {
  Resolver early(sources.task);
  early.environment(sources.environment);
  early.words(sources.words), early.words(sources.decided);
  return early.text("out");
}

// First next to the run, then in the working folder.
void add_found_files(const Sources& sources, std::vector<fs::path>& files) {
  std::vector<fs::path> folders;
  if (const fs::path out = run_folder(sources); !out.empty()) {
    fs::path run = (*sources.working_folder / out).lexically_normal();  // just the folder if out is absolute
    if (!run.has_filename()) run = run.parent_path();
    folders = {run, run.parent_path()};
  }
  folders.push_back(*sources.working_folder);
  std::error_code error;
  for (const char* name : {"config_gpu.ini", "train.yaml"})
    for (const fs::path& folder : folders)
      if (const fs::path path = folder / name; fs::is_regular_file(path, error)) {
        files.push_back(path);
        break;
      }
}

}  // namespace

Resolved resolve(const Sources& sources) {
  Resolver resolver(sources.task);
  resolver.tuned(sources.tuned);
  std::vector<fs::path> files;
  if (sources.working_folder) add_found_files(sources, files);
  std::error_code error;
  for (const fs::path& named : sources.files) {
    std::erase_if(files, [&](const fs::path& found) { return fs::equivalent(found, named, error); });
    files.push_back(named);
  }
  for (const fs::path& path : files) resolver.file(path);
  resolver.environment(sources.environment);
  resolver.words(sources.assumed, {}, sources.assumed_source), resolver.words(sources.words, sources.options), resolver.words(sources.decided),
      resolver.words(sources.measured, {}, "measured");
  if (const std::vector<std::string> problems = resolver.problems(); !problems.empty()) fail(ErrorCode::usage, "[config] {}", join(problems, "\n[config] "));
  resolver.presets();
  return resolver.take();
}

FileReport check_file(const fs::path& path) {
  Resolver resolver(kAllTasks);
  resolver.file(path);
  FileReport report;
  report.problems = resolver.problems();
  const Resolved resolved = resolver.take();
  report.notes = resolved.notes();
  for (const Key& key : keys()) report.keys += resolved.history(key).size() - 1;
  return report;
}

std::vector<std::pair<std::string, std::string>> process_environment() {
  std::vector<std::pair<std::string, std::string>> all;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    if (const size_t equal = text.find('='); equal != text.npos) all.emplace_back(text.substr(0, equal), text.substr(equal + 1));
  }
  return all;
}

}  // namespace ridge::config
