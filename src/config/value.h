// A validated value of a key, and its conversions from and to text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/key.h"

namespace ridge::config {

// A number, a boolean, text (including a word in place of a number, such as auto), or a list.
class Value {
 public:
  using Data = std::variant<int64_t, double, bool, std::string, std::vector<std::string>>;
  Value() = default;
  explicit Value(Data data) : data_(std::move(data)) {}

  const Data& data() const { return data_; }
  template <class T>
  const T* as() const {
    return std::get_if<T>(&data_);
  }
  bool is(std::string_view word) const { return as<std::string>() && *as<std::string>() == word; }
  bool operator==(const Value&) const = default;

 private:
  Data data_;
};

struct Parsed {
  std::optional<Value> value;
  std::string problem;  // if there is no value: "is 'x', which is not …"
};

Parsed parse_value(const Key& key, std::string_view text);
Parsed parse_values(const Key& key, const std::vector<std::string>& items);  // a sequence in a file

std::string to_text(const Key& key, const Value& value);  // parses back to the same value; lists are comma-separated
std::string to_yaml(const Key& key, const Value& value);  // quoted where necessary

}  // namespace ridge::config
