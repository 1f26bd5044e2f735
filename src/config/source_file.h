// Configuration files as lists of entries with line numbers: INI, and YAML (JSON is YAML). What the names mean is decided elsewhere.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ridge::config {

// What the file says in one place. Nested sections are joined by dots.
struct Entry {
  std::string section, name;
  std::vector<std::string> values;  // one, or the items of a sequence
  bool sequence = false;
  bool null = false;  // said to have no value
  int line = 0;       // from 1
};

struct Problem {
  int line = 0;  // 0: the file as a whole
  std::string what;
};

struct Section {
  std::string name;
  int line = 0;
};

struct FileContent {
  std::vector<Entry> entries;
  std::vector<Problem> problems = {};
  std::vector<Section> sections = {};  // also those without entries
};

FileContent parse_ini(std::string_view text);
FileContent parse_yaml(std::string_view text);

// By the file's ending: .ini, or .yaml, .yml, .json. What cannot be read is a problem too, never an exception.
FileContent read_file(const std::filesystem::path& path);

// The same for a text that is there already: checks UTF-8, drops a byte order mark, turns all line ends into \n, then parses.
FileContent parse_text(std::string_view text, bool ini);

}  // namespace ridge::config
