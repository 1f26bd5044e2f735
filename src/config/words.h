// Text helpers shared by all configuration readers.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ridge::config {

std::vector<std::string_view> split(std::string_view text, char separator);  // empty text gives no parts
std::string_view trim(std::string_view text);                                // spaces and tabs
std::string shown(std::string_view text);                                    // quoted, and truncated if long, for messages

template <class Words>
std::string join(const Words& words, std::string_view between) {
  std::string out;
  for (const auto& word : words) (out += &word == &*words.begin() ? std::string_view() : between) += word;
  return out;
}

constexpr size_t kAllUtf8 = std::string_view::npos;
size_t first_non_utf8(std::string_view text);  // index of the first byte that is not UTF-8, else kAllUtf8

}  // namespace ridge::config
