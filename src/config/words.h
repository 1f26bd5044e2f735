// Small things about text that all readers of configuration need.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ridge::config {

std::vector<std::string_view> split(std::string_view text, char separator);  // empty text: no parts
std::string_view trim(std::string_view text);                                // spaces and tabs
std::string shown(std::string_view text);                                    // in quotes and cut when long, for messages

template <class Words>
std::string join(const Words& words, std::string_view between) {
  std::string out;
  for (const auto& word : words) (out += &word == &*words.begin() ? std::string_view() : between) += word;
  return out;
}

constexpr size_t kAllUtf8 = std::string_view::npos;
size_t first_non_utf8(std::string_view text);  // index of the first byte that is not UTF-8, else kAllUtf8

}  // namespace ridge::config
