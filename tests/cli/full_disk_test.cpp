// Full disks under the real program: a file system of a few MiB in a mount namespace, and a file size limit. Earlier saves survive byte for byte, the exit code
// reports what is lost, and once there is space again the run continues bit for bit.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kSkipped = 77;
const std::vector<std::string> kRun = {"train",         "gpt", "layers=1", "heads=2", "width=64", "block=32", "batch=4", "threads=1", "optimize_perf=false",
                                       "data=plays.txt"};

std::vector<std::string> with(std::vector<std::string> words, std::initializer_list<std::string> more) {
  words.insert(words.end(), more);
  return words;
}

// Every file below a folder.
std::map<std::string, std::string> files_below(const std::string& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) all[fs::relative(entry.path(), folder)] = read_text(entry.path());
  return all;
}

// Losses by step, from the last row of each step.
std::map<int64_t, double> losses_of(const std::string& run) {
  std::map<int64_t, double> losses;
  std::ifstream in(run + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);)
    if (const Json row = Json::parse(line); row.contains("loss")) losses[row.at("step")] = row.at("loss");
  return losses;
}

// Runs in a child process that sees a tmpfs of this many bytes as `disk` in the program's folder. Root may mount; other users may in a user namespace.
template <class Body>
void on_small_disk(int64_t bytes, Body body) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    RidgeProgram ridge;
    write_plays(ridge);
    const std::string disk = ridge / "disk", options = "size=" + std::to_string(bytes);
    fs::create_directory(disk);
    const bool entered = ::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    const bool mounted =
        entered && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 && ::mount("none", disk.c_str(), "tmpfs", 0, options.c_str()) == 0;
    if (mounted) {
      try {
        body(ridge, disk);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
      ::umount2(disk.c_str(), MNT_DETACH);
    }
    fs::remove_all(ridge.folder());
    std::fflush(stdout);
    ::_exit(!mounted ? kSkipped : testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == kSkipped) {
    const char* ci = std::getenv("CI");
    ASSERT_FALSE(ci && std::string_view(ci) == "true") << "no file system can be mounted here";
    GTEST_SKIP() << "no file system can be mounted here";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0) << "its checks are above";
}

// Fills the disk up to this many bytes.
void fill(const std::string& disk, int64_t but) {
  const uintmax_t free = fs::space(disk).available;
  const std::string block(4096, 'x');
  std::ofstream filler(disk + "/filler", std::ios::binary);
  for (uintmax_t done = 0; done + block.size() + uintmax_t(but) <= free; done += block.size()) filler << block;
}

TEST(FullDisk, LosesOnlyProgressSinceTheLastCheckpoint) {
  on_small_disk(8 << 20, [](RidgeProgram& ridge, const std::string& disk) {
    const Answer begun = ridge(with(kRun, {"steps=10", "checkpoint_interval=5", "--out", "disk/run"}));
    ASSERT_EQ(begun.code, 0) << begun.all();
    fs::copy(disk + "/run", ridge / "plain", fs::copy_options::recursive);
    const Answer plain = ridge({"train", "gpt", "--resume", "plain", "steps=20"});
    ASSERT_EQ(plain.code, 0) << plain.all();

    const auto before = files_below(disk + "/run/checkpoints");
    EXPECT_TRUE(before.contains("step_00000010/optimizer.safetensors"));
    fill(disk, 100 << 10);  // enough for rows and texts, but not for a checkpoint
    const Answer lost = ridge({"train", "gpt", "--resume", "disk/run", "steps=20"});
    EXPECT_EQ(lost.code, 6) << lost.all();
    EXPECT_NE(lost.err.find("ridge: progress since step 10 is lost: the last checkpoint could not be written"), std::string::npos) << lost.all();
    EXPECT_NE(lost.out.find("lost since step 10"), std::string::npos) << lost.all();
    EXPECT_NE(lost.out.find("No space left on device"), std::string::npos) << lost.all();
    EXPECT_EQ(files_below(disk + "/run/checkpoints"), before);
    const Json summary = Json::parse(read_text(disk + "/run/summary.json"));
    EXPECT_EQ(summary.at("state_lost_since"), 10);
    EXPECT_EQ(summary.at("end"), "finished");
    EXPECT_EQ(summary.at("steps"), 20);
    EXPECT_EQ(losses_of(disk + "/run"), losses_of(ridge / "plain"));

    fs::remove(disk + "/filler");
    const Answer again = ridge({"train", "gpt", "--resume", "disk/run", "steps=20"});
    EXPECT_EQ(again.code, 0) << again.all();
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_TRUE(read_text(disk + "/run/checkpoints/step_00000020/" + file) == read_text(ridge / "plain/checkpoints/step_00000020/" + file)) << file;
    EXPECT_EQ(losses_of(disk + "/run"), losses_of(ridge / "plain"));
    EXPECT_TRUE(Json::parse(read_text(disk + "/run/summary.json")).at("state_lost_since").is_null());
  });
}

// Nothing at all can be written any more: rows, log, events, summary, model, checkpoint.
TEST(FullDisk, ReportsLostStateWhenEndedBySignal) {
  on_small_disk(32 << 20, [](RidgeProgram& ridge, const std::string& disk) {
    const auto running = ridge.start(
        with(kRun, {"checkpoint_interval=1000000", "eval_interval=1000000", "sample_interval=none", "tensorboard=true", "steps=1000000", "--out", "disk/run"}));
    for (int i = 0; i < 6000 && running.printed().find("iter 1:") == std::string::npos; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const auto before = files_below(disk + "/run/checkpoints");
    fill(disk, 0);
    running.send(SIGTERM);
    const Answer lost = running.wait();
    EXPECT_EQ(lost.code, 6) << lost.all();
    EXPECT_NE(lost.err.find("ridge: progress since step 0 is lost"), std::string::npos) << lost.all();
    EXPECT_EQ(files_below(disk + "/run/checkpoints"), before);
    fs::remove(disk + "/filler");
    const Answer again = ridge({"train", "gpt", "--resume", "disk/run", "steps=3"});
    EXPECT_EQ(again.code, 0) << again.all();
    EXPECT_EQ(losses_of(disk + "/run").size(), 3u);
  });
}

TEST(FullDisk, FromTheStartOrReadOnlyIsReported) {
  on_small_disk(300 << 10, [](RidgeProgram& ridge, const std::string& disk) {
    const Answer full = ridge(with(kRun, {"steps=20", "checkpoint_interval=5", "--out", "disk/run"}));
    EXPECT_EQ(full.code, 6) << full.all();
    EXPECT_NE(full.out.find("No space left on device"), std::string::npos) << full.all();
    EXPECT_NE(full.out.find("3 checkpoints in a row could not be written"), std::string::npos) << full.all();
    fs::remove_all(disk + "/run");
    EXPECT_EQ(::mount("none", disk.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
    const Answer refused = ridge(with(kRun, {"steps=2", "--out", "disk/run"}));
    EXPECT_EQ(refused.code, 4) << refused.all();
    EXPECT_NE(refused.err.find("Read-only file system"), std::string::npos) << refused.all();
  });
}

// ulimit -f: exceeding the limit is an error, and does not kill the process.
TEST(FileSizeLimit, IsLikeAFullDisk) {
  RidgeProgram ridge;
  write_plays(ridge);
  ridge.limit_files(64 << 10);
  const Answer lost = ridge(with(kRun, {"steps=6", "eval_interval=6", "checkpoint_interval=6", "--out", "run"}));
  EXPECT_EQ(lost.code, 6) << lost.all();
  EXPECT_TRUE(lost.says("File too large; raise the limit on the size of files (ulimit -f)")) << lost.all();
  EXPECT_TRUE(lost.says("model/ was not written")) << lost.all();
  EXPECT_EQ(Json::parse(read_text(ridge / "run/summary.json")).at("state_lost_since"), 0);
  EXPECT_EQ(losses_of(ridge / "run").size(), 6u);
  ridge.limit_files(-1);
  fs::remove_all(ridge / "run");
  EXPECT_EQ(ridge(with(kRun, {"steps=6", "eval_interval=6", "checkpoint_interval=6", "--out", "run"})).code, 0);
}

}  // namespace
}  // namespace ridge::test
