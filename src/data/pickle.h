// Reads simple Python pickles: dictionaries, strings and integers. Anything else is rejected, and nothing is ever called.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ridge {

struct PickleValue {
  enum class Kind : uint8_t { whole, text, dictionary } kind = Kind::whole;
  int64_t whole = 0;
  std::string text;                                  // UTF-8
  std::vector<std::pair<uint32_t, uint32_t>> items;  // key and value, as indices into Pickle::values
};

struct Pickle {
  std::vector<PickleValue> values;  // a value can be in several dictionaries, and a dictionary can contain itself
  uint32_t top = 0;

  const PickleValue& root() const { return values[top]; }
  const PickleValue* find(const PickleValue& dictionary, std::string_view key) const;  // null: not found, or not a dictionary
};

// Protocols 0 to 5. ErrorCode::io gives the byte offset and what was found there; `name` is the file's name in messages.
Pickle parse_pickle(std::span<const std::byte> file, const std::string& name);

}  // namespace ridge
