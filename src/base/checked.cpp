#include "base/checked.h"

#include <string>

#include "base/error.h"

namespace ridge {

int64_t checked_product(std::string_view where, std::string_view what, std::span<const Factor> factors) {
  int64_t product = 1;
  bool fits = true, zero = false;
  for (const Factor& f : factors) zero |= f.value == 0;
  if (zero) return 0;
  for (const Factor& f : factors) fits = fits && !__builtin_mul_overflow(product, f.value, &product);
  if (fits) return product;
  std::string text;
  for (const Factor& f : factors) text += fmt::format("{}{}{}{}", text.empty() ? "" : " x ", f.name, f.name.empty() ? "" : "=", f.value);
  fail(ErrorCode::usage, "[{}] {} {} exceed 2^63, the largest possible number; lower one of these numbers", where, text, what);
}

}  // namespace ridge
