// Parses and prints memory sizes in human-readable form.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ridge {

// "512MiB", "1.5 GB", "2g", "100000"; units are case-insensitive, and a single letter is a power of 1024. Empty: not a size, or more than 63 bits.
std::optional<int64_t> bytes_of(std::string_view text);

// The shortest text that bytes_of() parses back to the same value: "512MiB", "2GB", "1000001".
std::string exact_bytes(int64_t bytes);

}  // namespace ridge
