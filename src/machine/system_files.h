// Reading the small text files of /proc and /sys. Any of them may be missing, unreadable or full of nonsense.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ridge {

std::string read_system_file(const std::filesystem::path& path);  // at most 1 MiB of it; empty when it cannot be read

// The next word (up to a blank) is cut off the front; empty at the end.
std::string_view take_word(std::string_view& text);
std::string_view take_line(std::string_view& text);

std::optional<int64_t> parse_number(std::string_view text);  // a whole number, 0 or more, blanks around it allowed

// "0-3,8,10-11" as the kernel writes sets of CPUs. Garbage gives an empty list.
std::vector<int> parse_cpu_list(std::string_view text);
std::string format_cpu_list(const std::vector<int>& cpus);  // ascending CPUs in the same form

}  // namespace ridge
