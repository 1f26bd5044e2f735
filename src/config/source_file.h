// Parses configuration files into entries with line numbers: INI, and YAML (JSON is YAML). The meaning of the names is decided elsewhere.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ridge::config {

// One entry of a file. Nested sections are joined by dots.
struct Entry {
  std::string section, name;
  std::vector<std::string> values;  // one value, or the items of a sequence
  bool sequence = false;
  bool null = false;  // explicitly given no value
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
  std::vector<Section> sections = {};  // including empty sections
};

FileContent parse_ini(std::string_view text);
FileContent parse_yaml(std::string_view text);

// Chosen by extension: .ini, or .yaml, .yml, .json. A file that cannot be read is a problem in the result, never an exception.
FileContent read_file(const std::filesystem::path& path);

// The same for text in memory: checks UTF-8, drops a byte order mark, converts all line endings to \n, then parses.
FileContent parse_text(std::string_view text, bool ini);

}  // namespace ridge::config
