// Reads the small text files of /proc and /sys. Any of them may be missing, unreadable or malformed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ridge {

std::string read_system_file(const std::filesystem::path& path);  // at most 1 MiB; empty if unreadable

// Removes and returns the next word (up to a space); empty at the end.
std::string_view take_word(std::string_view& text);
std::string_view take_line(std::string_view& text);

std::optional<int64_t> parse_number(std::string_view text);  // a whole number, 0 or more; surrounding spaces are allowed

// "0-3,8,10-11", the kernel's format for sets of CPUs. Malformed text gives an empty list.
std::vector<int> parse_cpu_list(std::string_view text);
std::string format_cpu_list(const std::vector<int>& cpus);  // ascending CPUs in the same format

}  // namespace ridge
