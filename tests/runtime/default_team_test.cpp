#include "measure/default_team.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "backend/backend.h"
#include "base/error.h"
#include "machine/machine_fixtures.h"
#include "measure/kernel_mix.h"

namespace ridge {
namespace {

// The result in a new process with these variables; its slots and measurements are stored in the tree.
std::string default_in_child(const FileTree& tree, std::initializer_list<std::pair<const char*, const char*>> variables,
                             const ThreadRequest* request = nullptr) {
  return in_child([&] {
    for (const char* name : {"RIDGE_THREADS", "OMP_NUM_THREADS", "RIDGE_AFFINITY", "RIDGE_WAIT"}) unsetenv(name);
    setenv("XDG_RUNTIME_DIR", tree.root().c_str(), 1);
    setenv("RIDGE_CACHE", tree.root().c_str(), 1);
    for (auto [name, value] : variables) setenv(name, value, 1);
    if (request) request_default_threads(*request);
    const ThreadChoice& c = default_threads();
    std::string text = fmt::format("{} {} by {}, {} remarks", default_team().size(), name(default_team().wait()), c.decided_by, c.remarks.size());
    bool refused = false;
    try {
      request_default_threads({});
    } catch (const Error& e) {
      refused = e.code() == ErrorCode::usage;
    }
    return refused ? text : text + ", changed at work";
  });
}

// Named so that they run before other tests start the team: its threads do not exist in a forked child.
TEST(DefaultTeamDeathTest, FollowsTheEnvironment) {
  FileTree tree;
  const Machine m = known_machine();
  const int n = m.cores();
  EXPECT_EQ(default_in_child(tree, {{"RIDGE_THREADS", "1"}}), "1 active by RIDGE_THREADS, 0 remarks");
  EXPECT_EQ(default_in_child(tree, {{"OMP_NUM_THREADS", "1"}, {"RIDGE_WAIT", "passive"}}), "1 passive by OMP_NUM_THREADS, 0 remarks");
  EXPECT_EQ(default_in_child(tree, {{"RIDGE_THREADS", std::to_string(m.threads() + 1).c_str()}}),
            fmt::format("{} passive by RIDGE_THREADS, 1 remarks", m.threads() + 1));
  EXPECT_EQ(default_in_child(tree, {{"RIDGE_THREADS", "some"}}).find("threw [threads]"), 0u);
  const bool plain = m.usable.size() == 1 && m.threads() == n && m.limits.cpu_quota == 0;
  const std::string unasked = default_in_child(tree, {});
  EXPECT_TRUE(!plain || unasked == fmt::format("{} active by default, 0 remarks", n)) << unasked;
  const ThreadRequest two{.threads = "2", .source = "command line"};
  EXPECT_EQ(default_in_child(tree, {{"RIDGE_THREADS", "1"}}, &two).find("2 "), 0u);
}

// Lets options name the CPU before the number of threads is decided.
TEST(DefaultTeamDeathTest, IsCreatedByTheFirstProgram) {
  FileTree tree;
  const std::string text = in_child([&] {
    setenv("XDG_RUNTIME_DIR", tree.root().c_str(), 1);
    setenv("RIDGE_CACHE", tree.root().c_str(), 1);
    Backend& cpu = default_backend();
    const bool same = open_device({}).get() == &cpu;
    request_default_threads({.threads = "2"});  // rejected once there is a team
    return fmt::format("{} {}", same, cpu.info().what.ends_with(", 2 threads"));
  });
  EXPECT_EQ(text, "true true");
}

TEST(DefaultTeamDeathTest, SharesTakenCoresAndReportsIt) {
  FileTree tree;
  const Machine m = known_machine();
  const CoreSlots mine = CoreSlots::take(usable_cores(m), tree.root() / "ridge");
  ASSERT_EQ(int(mine.held().size()), m.cores());
  const std::string text = default_in_child(tree, {});
  EXPECT_NE(text.find(" passive by "), std::string::npos) << text;
  EXPECT_NE(text.find(" 1 remarks"), std::string::npos) << text;
}

TEST(KernelMix, MeasuresEveryPossibleTeam) {
  const std::vector<double> rates = measure_kernel_mix({{.threads = 1}, {.threads = 2}, {.threads = -1}, {.threads = 2, .wait = Wait::passive}}, 0.1);
  ASSERT_EQ(rates.size(), 4u);
  for (size_t i : {0, 1, 3}) EXPECT_GT(rates[i], 0);
  EXPECT_EQ(rates[2], 0);
  EXPECT_TRUE(measure_kernel_mix({}, 0.1).empty());
}

TEST(KernelMix, IsMeasuredOncePerMachine) {
  FileTree tree;
  const std::string text = in_child([&] {
    setenv("RIDGE_CACHE", tree.root().c_str(), 1);
    const Machine m = known_machine();
    const MeasureTeams measure = known_throughput(m);
    const std::vector<TeamOptions> teams{{.threads = 1}, {.threads = 2}}, others{{.threads = 2}, {.threads = 1}};
    const auto first = measure(teams), again = measure(teams), other = measure(others);
    return std::string(first == again ? "same" : "measured again") + (other == first ? ", mixed up" : "");
  });
  EXPECT_EQ(text, "same");
}

}  // namespace
}  // namespace ridge
