// Sizes of memory as people write them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ridge {

// "512MiB", "1.5 GB", "2g", "100000"; units in any case, one letter counts in 1024. Empty: not a size, or beyond 63 bits.
std::optional<int64_t> bytes_of(std::string_view text);

// The shortest text that bytes_of() reads back as the same: "512MiB", "2GB", "1000001".
std::string exact_bytes(int64_t bytes);

}  // namespace ridge
