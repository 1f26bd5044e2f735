// The sizes of this machine's caches.
#pragma once
#include <cstdint>

namespace ridge {

int64_t last_level_cache_bytes();  // 32 MiB if unknown

}  // namespace ridge
