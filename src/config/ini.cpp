// INI files: [section], key = value or key: value, quoted or bare values, comments with # and ; on their own lines or after a value.
#include <fmt/core.h>

#include "config/source_file.h"
#include "config/words.h"

namespace ridge::config {
namespace {

bool starts_comment(std::string_view text) { return text.starts_with('#') || text.starts_with(';'); }

// Strips a comment from a bare value. The marker must follow a space, so that a colour #fff or a path a;b stays whole.
std::string_view without_comment(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i)
    if (starts_comment(text.substr(i)) && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t')) return trim(text.substr(0, i));
  return text;
}

struct Unquoted {
  std::string text, problem;
};

Unquoted unquote(std::string_view text) {
  if (text.empty() || (text[0] != '"' && text[0] != '\'')) return {std::string(without_comment(text)), {}};
  const size_t end = text.find(text[0], 1);
  if (end == text.npos) return {{}, fmt::format("the value {} has no closing quote", shown(text))};
  const std::string_view rest = trim(text.substr(end + 1));
  if (!rest.empty() && !starts_comment(rest)) return {{}, fmt::format("{} follows the quoted value; only a comment may", shown(rest))};
  return {std::string(text.substr(1, end - 1)), {}};
}

}  // namespace

FileContent parse_ini(std::string_view text) {
  FileContent content;
  std::string section;
  int line = 0;
  for (std::string_view raw : split(text, '\n')) {
    ++line;
    auto problem = [&](std::string what) { content.problems.push_back({line, std::move(what)}); };
    const std::string_view word = trim(raw);
    if (word.empty() || starts_comment(word)) continue;
    if (word[0] == '[') {
      const size_t end = word.find(']');
      const std::string_view rest = end == word.npos ? std::string_view() : trim(word.substr(end + 1));
      if (end == word.npos || !(rest.empty() || starts_comment(rest)))
        problem(fmt::format("{} is not a section; write [name]", shown(word)));
      else
        section = trim(word.substr(1, end - 1)), content.sections.push_back({section, line});
      continue;
    }
    const size_t separator = word.find_first_of("=:");
    const std::string_view name = trim(word.substr(0, separator));
    if (separator == word.npos || name.empty()) {
      problem(fmt::format("{} is not a setting; write key = value", shown(word)));
      continue;
    }
    Unquoted value = unquote(trim(word.substr(separator + 1)));
    if (!value.problem.empty())
      problem(fmt::format("{}: {}", name, value.problem));
    else
      content.entries.push_back({section, std::string(name), {std::move(value.text)}, false, false, line});
  }
  return content;
}

}  // namespace ridge::config
