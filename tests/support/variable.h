// Environment variables: test whether one is 1, and set one temporarily.
#pragma once
#include <stdlib.h>

#include <optional>
#include <string>

namespace ridge::test {

inline bool is_set(const char* name) {
  const char* const value = ::getenv(name);
  return value && std::string(value) == "1";
}

class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = ::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace ridge::test
