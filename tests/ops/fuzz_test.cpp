// Random programs on the CPU.
#include "ops/random_programs.h"
#include "support/rounds.h"

namespace ridge::test {
namespace {

TEST(RandomPrograms, MatchTheReference) {
  const char* full = std::getenv("RIDGE_FULL");
  const char* range = std::getenv("RIDGE_FUZZ");  // "first:count" to search further
  uint64_t first = 0, count = full && std::string(full) == "1" ? 4000 : uint64_t(rounds(300));
  if (range) first = std::strtoull(range, nullptr, 10), count = std::strtoull(std::string(range).substr(std::string(range).find(':') + 1).c_str(), nullptr, 10);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    RandomProgram p(seed);
    std::string wrong = trouble(seed, p);
    if (!wrong.empty()) ADD_FAILURE() << wrong << "\n" << to_string(p.graph(), p.outputs()) << dump(p);
    if (::testing::Test::HasFailure() && !range) break;  // one failing graph is enough
  }
}

}  // namespace
}  // namespace ridge::test
