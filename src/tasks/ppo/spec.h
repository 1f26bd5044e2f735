// Spec files of SLM-Lab (JSON or YAML) as settings.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace ridge {

struct SpecSettings {
  std::string name;
  std::vector<std::pair<std::string, std::string>> settings;  // key and value
  std::vector<std::string> notes;                             // what is done differently, one sentence each
};

// A spec by name; an empty name is allowed if the file has only one. `variables`: values of ${name}, as "name=value". ErrorCode::usage names the key that is
// unknown, missing or cannot be honoured; `file` is the name in messages.
SpecSettings read_spec(const std::string& text, const std::string& name, const std::vector<std::string>& variables, const std::string& file);

}  // namespace ridge
