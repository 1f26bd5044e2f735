#include "config/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <system_error>

#include <fmt/core.h>

#include "base/bytes.h"
#include "base/nearest.h"
#include "base/text.h"
#include "config/words.h"

namespace ridge::config {
namespace {

constexpr size_t kLongestValue = 4096;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Plain decimal numbers only; 1_000 is 1000. Empty: not a number, or not finite.
std::optional<double> real_of(std::string_view text) {
  std::string digits;
  if (text.starts_with('+')) text.remove_prefix(1);
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] != '_' || i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) digits += text[i];
  double number = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(number)) return {};
  return number;
}

// Also 8k, 2.5M, 1e6, 64Ki. Only whole numbers.
std::optional<int64_t> integer_of(std::string_view text) {
  struct Suffix {
    std::string_view name;
    double scale;
  };
  constexpr Suffix kSuffixes[] = {{"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}};
  double scale = 1;
  for (const Suffix& s : kSuffixes)
    if (text.size() > s.name.size() && text.ends_with(s.name)) {
      scale = s.scale;
      text.remove_suffix(s.name.size());
      break;
    }
  const std::optional<double> number = real_of(text);
  if (!number || std::abs(*number * scale) > 0x1p53 || *number * scale != std::floor(*number * scale)) return {};
  return int64_t(*number * scale);
}

std::optional<bool> boolean_of(std::string_view text) {
  const std::string word = lower_case(text);
  for (std::string_view yes : {"true", "yes", "on", "1"})
    if (word == yes) return true;
  for (std::string_view no : {"false", "no", "off", "0"})
    if (word == no) return false;
  return {};
}

// The key's canonical spelling of a word, after synonyms; empty: not one of its words.
std::optional<std::string> word_of(const Key& key, std::string_view text) {
  std::string word = lower_case(text);
  for (std::string_view pair : split(key.synonyms, ' '))
    if (const size_t equal = pair.find('='); pair.substr(0, equal) == word) word = pair.substr(equal + 1);
  for (std::string_view w : split(key.words, '|')) {
    if (w == word) return word;
    // "cuda:N" stands for cuda:0, cuda:1 and so on.
    if (w.ends_with(":N") && word.size() > w.size() - 1 && word.size() < w.size() + 3 && word.starts_with(w.substr(0, w.size() - 1)) &&
        std::all_of(word.begin() + int64_t(w.size()) - 1, word.end(), is_digit))
      return word;
  }
  return {};
}

bool in_range(const Key& key, double number) {
  return (key.above_low ? number > key.low : number >= key.low) && (key.below_high ? number < key.high : number <= key.high);
}

template <class Number>
Parsed ranged(const Key& key, std::optional<Number> number, std::string_view text) {
  if (number && in_range(key, double(*number))) return {Value(*number), {}};
  return {{}, fmt::format("is {}, but must be {}", shown(text), expected(key))};
}

Parsed parse_text(const Key& key, std::string_view text) {
  if (text.empty() && !key.initial.empty()) return {{}, fmt::format("is empty, but must be {}", expected(key))};
  if (std::any_of(text.begin(), text.end(), [](char c) { return uint8_t(c) < 32 || c == 127; })) return {{}, "contains a control character"};
  return {Value(std::string(text)), {}};
}

Parsed parse_choice(const Key& key, std::string_view text) {
  if (std::optional<std::string> word = word_of(key, text)) return {Value(*word), {}};
  std::vector<std::string_view> words = split(key.words, '|');
  for (std::string_view pair : split(key.synonyms, ' ')) words.push_back(pair.substr(0, pair.find('=')));
  const std::string hint = close_hint(lower_case(text), words);
  return {{}, fmt::format("is {}, but must be {}{}{}", shown(text), expected(key), hint.empty() ? "" : "; ", hint)};
}

// A comma either separates names or is part of one: parts that together name something that exists are joined.
Parsed parse_list(const Key& key, std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ',');
  std::vector<std::string> items;
  for (size_t first = 0, last; first < parts.size(); first = last + 1) {
    auto joined = [&] { return trim({parts[first].data(), size_t(parts[last].data() + parts[last].size() - parts[first].data())}); };
    std::error_code ignored;
    for (last = parts.size() - 1; last > first && !std::filesystem::exists(joined(), ignored);) --last;
    items.emplace_back(joined());
  }
  return parse_values(key, items);
}

}  // namespace

Parsed parse_value(const Key& key, std::string_view text) {
  if (first_non_utf8(text) != kAllUtf8) return {{}, "is not UTF-8"};
  if (text.size() > kLongestValue) return {{}, fmt::format("is {}, longer than the {} bytes that a value may have", shown(text), kLongestValue)};
  text = trim(text);
  const bool number = key.type == Type::integer || key.type == Type::real || key.type == Type::boolean || key.type == Type::bytes;
  if (number && !key.words.empty())
    if (std::optional<std::string> word = word_of(key, text)) return {Value(*word), {}};
  switch (key.type) {
    case Type::integer: return ranged(key, integer_of(text), text);
    case Type::real: return ranged(key, real_of(text), text);
    case Type::bytes: return ranged(key, bytes_of(text), text);
    case Type::boolean:
      if (std::optional<bool> b = boolean_of(text)) return {Value(*b), {}};
      return {{}, fmt::format("is {}, but must be {}", shown(text), expected(key))};
    case Type::choice: return parse_choice(key, text);
    case Type::text: return parse_text(key, text);
    case Type::path: return parse_text(key, expand_home(std::string(text)));  // a shell leaves the ~ of --out=~/run alone
    case Type::list: return parse_list(key, text);
  }
  return {{}, "has a type without a parser"};
}

Parsed parse_values(const Key& key, const std::vector<std::string>& items) {
  if (key.type != Type::list) {
    if (items.size() == 1) return parse_value(key, items[0]);
    return {{}, fmt::format("is a list of {}, but must be {}", items.size(), expected(key))};
  }
  for (const std::string& item : items) {
    if (item.empty()) return {{}, fmt::format("contains an empty item, but must be {}", expected(key))};
    if (first_non_utf8(item) != kAllUtf8) return {{}, "is not UTF-8"};
    if (item.size() > kLongestValue) return {{}, fmt::format("contains {}, longer than the {} bytes that an item may have", shown(item), kLongestValue)};
    if (Parsed text = parse_text(key, item); !text.value) return text;
  }
  if (items.empty() && !key.initial.empty()) return {{}, fmt::format("is empty, but must be {}", expected(key))};
  return {Value(items), {}};
}

std::string to_text(const Key& key, const Value& value) {
  if (key.type == Type::bytes && value.as<int64_t>()) return exact_bytes(*value.as<int64_t>());
  return std::visit(
      []<class T>(const T& data) {
        if constexpr (std::is_same_v<T, std::vector<std::string>>)
          return join(data, ", ");
        else
          return fmt::format("{}", data);
      },
      value.data());
}

std::string to_yaml(const Key& key, const Value& value) {
  auto quoted = [](std::string_view text) {
    std::string out = "\"";
    for (char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    return out + "\"";
  };
  if (const auto* items = value.as<std::vector<std::string>>()) {
    std::vector<std::string> all;
    for (const std::string& item : *items) all.push_back(quoted(item));
    return fmt::format("[{}]", join(all, ", "));
  }
  return key.type == Type::text || key.type == Type::path ? quoted(to_text(key, value)) : to_text(key, value);
}

}  // namespace ridge::config
