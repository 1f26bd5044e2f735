// Regular expressions from the C library: <regex> takes seconds to compile.
#pragma once
#include <regex.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace ridge::test {

class Pattern {
 public:
  explicit Pattern(const char* extended) {
    if (regcomp(&compiled_, extended, REG_EXTENDED) != 0) throw std::invalid_argument(extended);
  }
  ~Pattern() { regfree(&compiled_); }
  Pattern(const Pattern&) = delete;

  bool in(const std::string& text) const { return regexec(&compiled_, text.c_str(), 0, nullptr, 0) == 0; }

  // All matches of the first group in the text.
  std::vector<std::string> all_in(const std::string& text) const {
    std::vector<std::string> found;
    regmatch_t at[2];
    for (const char* from = text.c_str(); regexec(&compiled_, from, 2, at, 0) == 0 && at[0].rm_eo > 0; from += at[0].rm_eo)
      found.emplace_back(from + at[1].rm_so, from + at[1].rm_eo);
    return found;
  }

 private:
  regex_t compiled_;
};

}  // namespace ridge::test
