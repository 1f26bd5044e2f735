// The same states on every kind of device and with every set of vector instructions, bit for bit.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "backend/registry.h"
#include "bench/env_rows.h"
#include "io/checksum.h"
#include "machine/features.h"
#include "rl/matches.h"
#include "support/gpu_runner.h"
#include "threads/thread_team.h"

namespace ridge::test {
namespace {

// The digest of the states of some instances after random play; the frames of pictures are part of it as positions.
std::string digest(const std::string& environment, Backend& backend, int64_t instances, int64_t decisions) {
  bench::EnvProgram program({environment, environment, instances, decisions, false}, backend);
  program.run();
  const std::vector<std::byte> state = program.state();
  return checksum_of({reinterpret_cast<const char*>(state.data()), state.size()});
}

std::string digest_on_cpu(const std::string& environment, int64_t instances, int64_t decisions, int threads = 2) {
  ThreadTeam team(TeamOptions{.threads = threads});
  const std::unique_ptr<Backend> backend = cpu_backend(team);
  return digest(environment, *backend, instances, decisions);
}

bool everything() {
  const char* full = std::getenv("RIDGE_FULL");
  return full && std::string(full) == "1";
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Taken before any test registers one of its own.
const std::vector<std::string>& built_in() {
  static const std::vector<std::string> names = environment_names();
  return names;
}

class SameStatesOnGpu : public testing::TestWithParam<std::string> {};
class SameStates : public testing::TestWithParam<std::string> {};

// In full: a million random decisions.
TEST_P(SameStatesOnGpu, AsOnTheCpu) {
  const int64_t instances = everything() ? 1000 : 8, decisions = everything() ? 1000 : 20;
  EXPECT_EQ(digest(GetParam(), Gpu::the().backend(), instances, decisions), digest_on_cpu(GetParam(), instances, decisions));
}

// A simulated GPU compiles every kernel with the host's compiler, which takes seconds.
INSTANTIATE_TEST_SUITE_P(Environments, SameStatesOnGpu, testing::ValuesIn(everything() ? built_in() : std::vector<std::string>{"pong", "breakout", "pendulum"}),
                         test_name);

TEST_P(SameStates, ForAnyNumberOfThreads) {
  const std::string two = digest_on_cpu(GetParam(), 5000, 10);
  EXPECT_EQ(digest_on_cpu(GetParam(), 5000, 10, 1), two);
  EXPECT_EQ(digest_on_cpu(GetParam(), 5000, 10, 3), two);
}

INSTANTIATE_TEST_SUITE_P(Environments, SameStates, testing::ValuesIn(built_in()), test_name);

// The digests of all environments, also printed by a second process of this test with fewer vector instructions.
std::string all_digests() {
  const int64_t instances = everything() ? 1000 : 40, decisions = 1000;
  std::string all;
  for (const std::string& name : built_in()) all += name + " " + digest_on_cpu(name, instances, decisions) + "\n";
  return all;
}

TEST(SameStatesOnTiers, WithEverySetOfVectorInstructions) {
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) GTEST_SKIP() << "no /proc";
  const std::string here = all_digests();
  if (std::getenv("TEST_PRINT_DIGESTS")) {
    std::printf("%s", here.c_str());
    return;
  }
  for (IsaTier tier : {IsaTier::sse4, IsaTier::avx2, IsaTier::avx512}) {
    if (tier >= isa_tier()) continue;
    const std::string command =
        "TEST_PRINT_DIGESTS=1 RIDGE_ISA=" + std::string(name(tier)) + " '" + self + "' --gtest_filter='SameStatesOnTiers.*' 2>/dev/null";
    std::string printed;
    FILE* pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    char line[512];
    while (std::fgets(line, sizeof line, pipe)) printed += line;
    EXPECT_EQ(pclose(pipe), 0);
    EXPECT_NE(printed.find(here), printed.npos) << name(tier) << ":\n" << printed << "here:\n" << here;
  }
}

}  // namespace
}  // namespace ridge::test
