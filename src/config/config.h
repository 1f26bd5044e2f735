// The configuration of a command: every key with its value, where that came from, and what it overrode.
//   built-in default < preset < tuned profile < config_gpu.ini < train.yaml < --config FILE < environment < command line
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/key.h"
#include "config/value.h"

namespace ridge::config {

struct Sources {
  unsigned task = kAllTasks;                                     // whose keys are asked for
  std::vector<std::pair<std::string, std::string>> profile;      // what tuning stored: key and value
  std::optional<std::filesystem::path> working_folder = ".";     // where config_gpu.ini and train.yaml are looked for last; empty: not at all
  std::vector<std::filesystem::path> files;                      // --config FILE, the strongest last
  std::vector<std::pair<std::string, std::string>> environment;  // name and value
  std::vector<std::string> words;                                // of the command line: key=value, --key=value, --key value, --key, --no-key
  std::vector<std::string> assumed, decided;                     // words of a command's own: weaker than the command line's, and stronger
  std::vector<std::string> options;                              // flags of the command itself, without their dashes, for messages
};

std::vector<std::pair<std::string, std::string>> process_environment();

// One source's say on a key.
struct Setting {
  Value value;
  std::string source;  // default, preset tiny, tuned profile, config_gpu.ini:7, environment RIDGE_LR, command line
};

// How a setting is shown.
struct Row {
  const Key* key;
  std::string value, source;
  std::vector<std::string> overrode;  // "12 (train.yaml:3)", the strongest first, without the default
  std::string remark;                 // why what was asked for has no effect, here or yet; mostly empty
};

struct Note {
  std::string source, text;
};

class Resolved {
 public:
  // T: int64_t, double (also of an integer), bool, std::string (any key, as text), std::vector<std::string> (a list), and
  // std::optional of the two numbers, which is empty for a word as auto. An unknown name or another type is an error.
  template <class T>
  T get(std::string_view name) const;

  const Setting& setting(std::string_view name) const;               // the one that holds
  const std::vector<Setting>& history(std::string_view name) const;  // all, the weakest first

  // The key that decides about number formats on a device: precision.cuda where that is set, else precision.
  std::string precision_key(std::string_view device) const;  // "cpu", "cuda:0"

  std::vector<Row> describe(const MachineFacts& machine) const;                     // in the order of the table, the asked task's keys only
  const std::vector<Note>& notes() const { return notes_; }                         // what was accepted and has no effect
  const std::vector<std::string>& files() const { return files_; }                  // those that were read, the weakest first
  void replace(std::string_view name, std::string_view value, std::string source);  // by what a run found out itself
  void keep_paths();                                                                // data, tokenizer and init_from that lie here are named from the root on
  void keep_sources(const std::filesystem::path& run);                              // what its own config.yaml said gets the source that is told there
  std::string to_yaml() const;                                                      // every key with its source as a comment; reads back to the same values

 private:
  friend class Resolver;
  unsigned task_ = kAllTasks;
  std::vector<std::vector<Setting>> history_;  // by the key's place in the table
  std::vector<Note> notes_;
  std::vector<std::string> files_;
};

template <>
std::string Resolved::get(std::string_view name) const;
template <>
std::optional<int64_t> Resolved::get(std::string_view name) const;
template <>
std::optional<double> Resolved::get(std::string_view name) const;
template <>
int64_t Resolved::get(std::string_view name) const;
template <>
double Resolved::get(std::string_view name) const;
template <>
bool Resolved::get(std::string_view name) const;
template <>
std::vector<std::string> Resolved::get(std::string_view name) const;

// Whether that is the config.yaml in a run's folder, or in the experiment's around it.
bool is_of_run(const std::string& source, const std::filesystem::path& run);

// Throws ErrorCode::usage with every problem found, a line each.
Resolved resolve(const Sources& sources);

// One file alone.
struct FileReport {
  std::vector<std::string> problems;  // "train.yaml:3: unknown key …"
  std::vector<Note> notes;
  size_t keys = 0;
};
FileReport check_file(const std::filesystem::path& path);

}  // namespace ridge::config
