// Overflow-checked multiplication of settings: a result that does not fit in 64 bits is an error that names the factors.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace ridge {

struct Factor {
  std::string_view name;  // "batch"; empty: a plain number
  int64_t value = 0;      // not negative
};

// ErrorCode::usage on overflow: "[gpt] steps=1000000000000 x batch=1000000000 samples are more than can be counted; …".
int64_t checked_product(std::string_view where, std::string_view what, std::span<const Factor> factors);
inline int64_t checked_product(std::string_view where, std::string_view what, std::initializer_list<Factor> factors) {
  return checked_product(where, what, std::span(factors.begin(), factors.size()));
}

}  // namespace ridge
