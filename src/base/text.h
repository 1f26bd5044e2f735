// Words and sizes for people.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace ridge {

std::string lower_case(std::string_view text);  // of ASCII letters
std::string size_text(int64_t bytes);           // "14.8 GiB", "1.5 MiB", "512 KiB": at most three digits

}  // namespace ridge
