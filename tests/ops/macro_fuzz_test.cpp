// Macro ops with random shapes on the CPU.
#include "ops/macro_fuzz.h"

namespace ridge::test {
namespace {

TEST(MacroFuzz, Attention) { fuzz_attention(0, cases(150)); }
TEST(MacroFuzz, Convolution) { fuzz_convolution(0, cases(100)); }
TEST(MacroFuzz, Products) { fuzz_products(0, cases(150)); }

}  // namespace
}  // namespace ridge::test
