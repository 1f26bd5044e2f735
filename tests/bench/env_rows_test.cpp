#include "bench/env_rows.h"

#include <gtest/gtest.h>

#include <numeric>

#include "backend/backend.h"
#include "backend/registry.h"
#include "runtime/executable.h"
#include "threads/thread_team.h"

namespace ridge::bench {
namespace {

// The program goes on where it stopped: as many decisions in more runs are the same game.
TEST(EnvRows, GoOnWhereTheyStopped) {
  ThreadTeam team(TeamOptions{.threads = 2});
  const std::unique_ptr<Backend> backend = cpu_backend(team);
  EnvProgram once({"a", "pong", 40, 1200, false}, *backend), parts({"a", "pong", 40, 200, false}, *backend);
  once.run();
  for (int i = 0; i < 6; ++i) parts.run();
  EXPECT_EQ(once.finished(true), parts.finished(true));
  const std::vector<float> matches = once.finished(false), returns = once.finished(true);
  EXPECT_EQ(matches, parts.finished(false));
  const float all = std::accumulate(matches.begin(), matches.end(), 0.f), total = std::accumulate(returns.begin(), returns.end(), 0.f);
  EXPECT_GE(all, 40);
  EXPECT_NEAR(total / all, -20.2, 0.6);
}

// Numbers of a state or a picture: one kernel computes all of a decision except what it draws and puts out.
TEST(EnvRows, RunInBlocksOfRows) {
  ThreadTeam team(TeamOptions{.threads = 2});
  const std::unique_ptr<Backend> backend = cpu_backend(team);
  const EnvProgram state({"a", "pong", 256, 8, false}, *backend), pixels({"a", "pong-pixels", 64, 4, true}, *backend);
  for (const EnvProgram* p : {&state, &pixels}) {
    const std::vector<std::string>& scans = p->program().report().scans;
    EXPECT_TRUE(std::any_of(scans.begin(), scans.end(), [](const std::string& line) { return line.find("all steps at a time") != line.npos; })) << scans.back();
  }
}

TEST(EnvRows, AreMeasured) {
  ThreadTeam team(TeamOptions{.threads = 1});
  Options options;
  options.seconds = 0.01;
  TrainResult r = measure_environment({"pong-env/state", "pong", 64, 4, false}, options, &team);
  r.name = "pong-env/state";
  EXPECT_NEAR(r.steps_s, 64 * 4 / (1e-3 * r.ms), 1);
  EXPECT_NEAR(r.frames_s, 4 * r.steps_s, 1);
  EXPECT_GT(r.roof, 0);
  EXPECT_EQ(r.environment, "pong 00e7ed94, [8], frame skip 4, sticky 0, at most 10000 decisions; 64 instances x 4 decisions, random actions");
  const std::string json = to_json(r);
  for (const char* key : {"steps_s", "frames_s", "ms", "roof", "environment"}) EXPECT_NE(json.find('"' + std::string(key) + '"'), json.npos) << key;
}

}  // namespace
}  // namespace ridge::bench
