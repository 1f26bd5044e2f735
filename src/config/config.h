// The configuration of a command: every key with its value, its source, and the values that it overrode.
//   built-in default < preset < tuned choices < config_gpu.ini < train.yaml < --config FILE < environment < command line
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
  unsigned task = kAllTasks;                                     // the task whose keys are read
  std::vector<std::pair<std::string, std::string>> tuned;        // tuning results: key and value
  std::optional<std::filesystem::path> working_folder = ".";     // where config_gpu.ini and train.yaml are looked for last; empty: nowhere
  std::vector<std::filesystem::path> files;                      // --config FILE, strongest last
  std::vector<std::pair<std::string, std::string>> environment;  // name and value
  std::vector<std::string> words;                                // command line: key=value, --key=value, --key value, --key, --no-key
  std::vector<std::string> assumed, decided;                     // the command's own words: weaker and stronger than the command line's
  std::vector<std::string> measured;                             // words that a measurement found, stronger than the command line's auto
  std::string assumed_source = "command line";                   // what the assumed words are shown as
  std::vector<std::string> options;                              // the command's own flags, without dashes, for messages
};

std::vector<std::pair<std::string, std::string>> process_environment();

// The value that one source gives a key.
struct Setting {
  Value value;
  std::string source;  // default, preset tiny, tuned choices, config_gpu.ini:7, environment RIDGE_LR, command line, spec ppo_pong
};

// How a setting is displayed.
struct Row {
  const Key* key;
  std::string value, source;
  std::vector<std::string> overrode;  // "12 (train.yaml:3)", strongest first, without the default
  std::string remark;                 // why the value has no effect, here or yet; usually empty
};

struct Note {
  std::string source, text;
};

class Resolved {
 public:
  // T: int64_t, double (integers too), bool, std::string (any key, as text), std::vector<std::string> (a list), and std::optional of the two numbers, which is
  // empty for a word such as auto. An unknown name or another type is an error.
  template <class T>
  T get(std::string_view name) const;

  const Setting& setting(std::string_view name) const;               // the one in effect
  std::string origin(std::string_view name) const;                   // its source; of a line of a run's config.yaml, the source recorded there
  const std::vector<Setting>& history(std::string_view name) const;  // all, weakest first
  const std::vector<Setting>& history(const Key& key) const;         // of this row of the table

  // The key that sets the number format on a device: precision.cuda if set, else precision.
  std::string precision_key(std::string_view device) const;  // "cpu", "cuda:0"

  std::vector<Row> describe(const MachineFacts& machine) const;                     // in table order, this task's keys only
  const std::vector<Note>& notes() const { return notes_; }                         // settings that were accepted but have no effect
  const std::vector<std::string>& files() const { return files_; }                  // the files read, weakest first
  void replace(std::string_view name, std::string_view value, std::string source);  // with a value that the run determined itself
  void keep_paths();                                                                // makes local data, tokenizer, init_from and wiring paths absolute
  void keep_sources(const std::filesystem::path& run);                              // settings from the run's config.yaml get the source recorded there
  std::string to_yaml() const;                                                      // every key with its source as a comment; parses back to the same values

 private:
  friend class Resolver;
  unsigned task_ = kAllTasks;
  std::vector<std::vector<Setting>> history_;  // by the key's index in the table
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

// Whether this is the config.yaml of a run folder, or of the experiment folder around it.
bool is_of_run(const std::string& source, const std::filesystem::path& run);

// Throws ErrorCode::usage listing every problem found, one per line.
Resolved resolve(const Sources& sources);

// A single file.
struct FileReport {
  std::vector<std::string> problems;  // "train.yaml:3: unknown key …"
  std::vector<Note> notes;
  size_t keys = 0;
};
FileReport check_file(const std::filesystem::path& path);

}  // namespace ridge::config
