#include "machine/caches.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace ridge {
namespace {

// Bytes of a cache as sysfs writes them: "32768K".
int64_t cache_size(const std::string& text) {
  char* end = nullptr;
  int64_t size = std::strtoll(text.c_str(), &end, 10);
  return size * (*end == 'K' ? 1 << 10 : *end == 'M' ? 1 << 20 : 1);
}

}  // namespace

int64_t last_level_cache_bytes() {
  static const int64_t bytes = [] {
    int64_t largest = 0;
    for (int index = 0; index < 10; ++index) {
      std::string text;
      if (std::ifstream("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size") >> text) largest = std::max(largest, cache_size(text));
    }
    return largest ? largest : int64_t(32) << 20;
  }();
  return bytes;
}

}  // namespace ridge
