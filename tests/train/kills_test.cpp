// A run that is killed repeatedly, at any moment and mostly while writing a checkpoint, ends with the same bits as an uninterrupted one. RIDGE_KILLS sets the
// number of kills; each process is a new start of this test's binary.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <sstream>

#include "base/error.h"
#include "train/small_run.h"

extern char** environ;

namespace ridge {
namespace {

namespace fs = std::filesystem;
using test::expect_same;
using test::SmallRun;
using test::TempFolder;
using test::Trace;

constexpr const char* kOrder = "KILLS_TEST_ORDER";  // instructions for the child
constexpr int64_t kSteps = 30, kCheckpoints = 5;

// Where a process is killed: before a phase of a step, or at a file call of the checkpoint saved after it (before the call, or in the middle of a write).
struct Kill {
  Phase phase = Phase::data;
  int64_t step = -1;
  int call = -1;
  bool within = false;
};

// Counts the file calls of one save; the system calls' signatures cannot carry an object.
struct Calls {
  static inline Kill kill;
  static inline bool saving = false;
  static inline int count = 0;

  [[noreturn]] static void die() {
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }
  static bool last() { return saving && count++ == kill.call; }
  static ssize_t write(int file, const void* data, size_t bytes) {
    if (!last()) return ::write(file, data, bytes);
    if (kill.within) (void)!::write(file, data, (bytes + 1) / 2);
    die();
  }
  static int fsync(int file) { return last() ? (die(), -1) : ::fsync(file); }
  static int rename(const char* from, const char* to) { return last() ? (die(), -1) : std::rename(from, to); }
  static int mkdir(const char* path, mode_t mode) { return last() ? (die(), -1) : ::mkdir(path, mode); }
  static int remove(const char* path) { return last() ? (die(), -1) : std::remove(path); }
};
constexpr FileCalls kCalls = {Calls::write, Calls::fsync, Calls::rename, Calls::mkdir, Calls::remove};

struct Order {
  fs::path folder;
  bool resume = false;
  Kill kill;

  std::string text() const { return fmt::format("{} {} {} {} {} {}", int(resume), int(kill.phase), kill.step, kill.call, int(kill.within), folder.string()); }
  Order(fs::path f, bool r, Kill k) : folder(std::move(f)), resume(r), kill(k) {}
  explicit Order(const std::string& text) {
    std::istringstream in(text);
    int phase = 0;
    in >> resume >> phase >> kill.step >> kill.call >> kill.within >> folder;
    kill.phase = Phase(phase);
  }
};

// Writes next to the run how many file calls the save after each step made.
void obey(const Order& order) {
  std::ostringstream counts;
  int64_t saved = -1;
  auto close = [&] {
    if (saved >= 0) counts << saved << " " << Calls::count << "\n";
    saved = -1;
  };
  Calls::kill = order.kill;
  SmallRun run{.folder = order.folder, .steps = kSteps, .resume = order.resume, .files = &kCalls};
  run.before = [&](Phase phase, int64_t step) {
    close();
    const bool here = phase == order.kill.phase && step == order.kill.step;
    if (here && phase != Phase::checkpoint) Calls::die();
    Calls::saving = phase == Phase::checkpoint, Calls::count = 0;
    Calls::kill.call = here ? order.kill.call : -1;
    if (Calls::saving) saved = step;
  };
  EXPECT_EQ(run().end, Outcome::End::finished);
  close();
  test::write_text(order.folder.string() + ".calls", counts.str());
}

// The child process. Run as a plain test, it has no instructions and trains undisturbed.
TEST(KillsChild, Trains) {
  TempFolder folder;
  const char* order = std::getenv(kOrder);
  obey(order ? Order(order) : Order(folder / "run", false, {}));
}

// Returns the wait status. Each child has a different number of threads, and a measured machine or none.
int start(const Order& order, int threads, const fs::path& cache) {
  std::vector<std::string> variables = {kOrder + ("=" + order.text()), "RIDGE_THREADS=" + std::to_string(threads), "RIDGE_CACHE=" + cache.string()};
  for (char** v = environ; *v; ++v)
    if (!std::string_view(*v).starts_with("RIDGE_") && !std::string_view(*v).starts_with("GTEST_")) variables.push_back(*v);
  std::vector<char*> environment;
  for (std::string& v : variables) environment.push_back(v.data());
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe", filter = "--gtest_filter=KillsChild.Trains", brief = "--gtest_brief=1";
  char* arguments[] = {program.data(), filter.data(), brief.data(), nullptr};
  posix_spawn_file_actions_t silent;
  posix_spawn_file_actions_init(&silent);
  posix_spawn_file_actions_addopen(&silent, STDOUT_FILENO, (order.folder.string() + ".log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  pid_t child = -1;
  int status = -1;
  if (::posix_spawn(&child, program.c_str(), &silent, nullptr, arguments, environment.data()) == 0) ::waitpid(child, &status, 0);
  posix_spawn_file_actions_destroy(&silent);
  return status;
}

std::map<int64_t, int> calls_of_saves(const fs::path& folder) {
  std::map<int64_t, int> calls;
  std::istringstream in(test::read_text(folder.string() + ".calls"));
  for (int64_t step = 0, count = 0; in >> step >> count;) calls[step] = int(count);
  return calls;
}

// A point in the ten steps after `from`; alternately in a save and elsewhere.
Kill draw(std::mt19937& random, int64_t from, bool in_save, const std::map<int64_t, int>& calls) {
  const int64_t step = std::min(from + 1 + int64_t(random() % 10), kSteps);
  if (!in_save) {
    if (step % 10 == 0 && random() % 2) return {Phase::validation, step};
    return {random() % 2 ? Phase::data : Phase::step, std::min(step, kSteps - 1)};
  }
  const int64_t save = (step + kCheckpoints - 1) / kCheckpoints * kCheckpoints;
  return {Phase::checkpoint, save, int(random() % unsigned(calls.at(save))), random() % 2 == 0};
}

int64_t newest_step(const fs::path& folder) {
  std::vector<std::string> notices;
  const auto newest = CheckpointStore(folder / "checkpoints").newest(notices);
  EXPECT_TRUE(newest && notices.empty()) << testing::PrintToString(notices);
  return newest ? newest->step : 0;
}

TEST(Kills, EndWithTheSameBits) {
  const char* requested = std::getenv("RIDGE_KILLS");
  const int wanted = requested ? std::atoi(requested) : 12;
  TempFolder folder;
  const fs::path calm = folder / "calm";
  ASSERT_EQ(start({calm, false, {}}, 2, folder / "cache"), 0) << test::read_text(calm.string() + ".log");
  const Trace expected(calm);
  const std::map<int64_t, int> calls = calls_of_saves(calm);
  for (int64_t step = kCheckpoints; step <= kSteps; step += kCheckpoints) ASSERT_GT(calls.at(step), 20);

  std::mt19937 random(5);
  int kills = 0, in_saves = 0, misses = 0;
  for (int round = 0; kills < wanted; ++round) {
    SCOPED_TRACE(testing::Message() << "run " << round);
    const fs::path run = folder / ("run" + std::to_string(round));
    bool resume = false, done = false;
    int64_t at = 0;
    for (int here = 0; !done; ++here) {
      const bool disturb = kills < wanted && here < 4;
      const Kill kill = disturb ? draw(random, at, (kills + misses) % 3 != 0, calls) : Kill{};
      SCOPED_TRACE(testing::Message() << name(kill.phase) << " at step " << kill.step << " call " << kill.call);
      const int status = start({run, resume, kill}, 1 + int(random() % 2), folder / (random() % 2 ? "cache" : fmt::format("cache{}.{}", round, here)));
      done = WIFEXITED(status);
      if (done) {
        ASSERT_EQ(WEXITSTATUS(status), 0) << test::read_text(run.string() + ".log");
        misses += disturb;
        continue;
      }
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << test::read_text(run.string() + ".log");
      ++kills;
      in_saves += kill.phase == Phase::checkpoint;
      resume = true;
      at = newest_step(run);
      ASSERT_LE(at, kill.step);
      ASSERT_GE(at, kill.step - 2 * kCheckpoints);
      done = at == kSteps;  // killed after the last checkpoint was complete, while older ones were being pruned
    }
    expect_same(Trace(run), expected);
    fs::remove_all(run);
  }
  EXPECT_GE(2 * in_saves, kills);
  std::printf("%d kills, %d of them while a checkpoint was saved or pruned: every run ended with the same bits\n", kills, in_saves);
}

}  // namespace
}  // namespace ridge
