#include "machine/core_slots.h"

#include <signal.h>
#include <sys/stat.h>

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "machine_fixtures.h"

namespace ridge {
namespace {

using Cores = std::vector<int>;

// A process that holds slots until it is asked to end or killed.
class Holder {
 public:
  Holder(const Cores& cores, const std::filesystem::path& folder) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    child_ = fork();
    if (child_ == 0) {
      CoreSlots slots = CoreSlots::take(cores, folder);
      Cores held = slots.held();
      held.resize(64, -1);
      if (write(ready[1], held.data(), sizeof(int) * 64) < 0) _exit(1);
      for (;;) pause();
    }
    close(ready[1]);
    held_.resize(64);
    EXPECT_EQ(read(ready[0], held_.data(), sizeof(int) * 64), ssize_t(sizeof(int) * 64));
    close(ready[0]);
    held_.erase(std::find(held_.begin(), held_.end(), -1), held_.end());
  }
  ~Holder() { end(); }
  void end() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  const Cores& held() const { return held_; }

 private:
  pid_t child_ = 0;
  Cores held_;
};

Cores first_cores(int n) {
  Cores cores(static_cast<size_t>(n));
  std::iota(cores.begin(), cores.end(), 0);
  return cores;
}

TEST(CoreSlots, AreAcquiredOnceAndReleased) {
  FileTree tree;
  const auto folder = tree.root() / "run";
  {
    CoreSlots first = CoreSlots::take({4, 0, 2}, folder);
    EXPECT_EQ(first.held(), (Cores{4, 0, 2}));
    EXPECT_TRUE(first.foreign().empty());
    EXPECT_TRUE(first.usable());
    CoreSlots second = CoreSlots::take({0, 1, 2, 3, 4}, folder);
    EXPECT_EQ(second.held(), (Cores{1, 3}));
    EXPECT_EQ(second.foreign(), (Cores{0, 2, 4}));
    first.keep({0});
    EXPECT_EQ(first.held(), Cores{0});
    CoreSlots third = CoreSlots::take({0, 1, 2, 4}, folder);
    EXPECT_EQ(third.held(), (Cores{2, 4}));
    CoreSlots moved = std::move(third);
    EXPECT_EQ(moved.held(), (Cores{2, 4}));
    EXPECT_TRUE(CoreSlots::take({2, 4}, folder).held().empty());
  }
  EXPECT_EQ(CoreSlots::take(first_cores(5), folder).held(), first_cores(5));
}

TEST(CoreSlots, AreFreedWhenTheirHolderIsKilled) {
  FileTree tree;
  const auto folder = tree.root() / "run";
  Holder holder(first_cores(4), folder);
  EXPECT_EQ(holder.held(), first_cores(4));
  EXPECT_TRUE(CoreSlots::take(first_cores(4), folder).held().empty());
  EXPECT_EQ(CoreSlots::take(first_cores(6), folder).held(), (Cores{4, 5}));
  holder.end();
  EXPECT_EQ(CoreSlots::take(first_cores(4), folder).held(), first_cores(4));
}

TEST(CoreSlots, HaveOneHolderWhenEightProcessesRace) {
  for (int round = 0; round < 5; ++round) {
    FileTree tree;
    const auto folder = tree.root() / "run";
    constexpr int kCores = 12;
    int start[2];
    ASSERT_EQ(pipe(start), 0);
    // All children wait for the same event: the end of the pipe.
    std::vector<std::pair<pid_t, int>> children;
    for (int i = 0; i < 8; ++i) {
      int result[2];
      ASSERT_EQ(pipe(result), 0);
      const pid_t child = fork();
      if (child == 0) {
        close(start[1]);
        char byte;
        if (read(start[0], &byte, 1) != 0) _exit(2);
        Cores order = first_cores(kCores);
        std::rotate(order.begin(), order.begin() + i, order.end());
        CoreSlots slots = CoreSlots::take(order, folder);
        if (slots.held().size() > 2) slots.keep({slots.held()[0], slots.held()[1]});
        Cores held = slots.held();
        held.push_back(slots.usable() ? -1 : -2);
        held.resize(16, -1);
        if (write(result[1], held.data(), 16 * sizeof(int)) < 0) _exit(3);
        for (;;) pause();
      }
      close(result[1]);
      children.push_back({child, result[0]});
    }
    close(start[0]), close(start[1]);
    std::multiset<int> taken;
    for (auto [child, pipe_end] : children) {
      Cores held(16);
      EXPECT_EQ(read(pipe_end, held.data(), 16 * sizeof(int)), ssize_t(16 * sizeof(int)));
      close(pipe_end);
      for (int core : held) {
        EXPECT_NE(core, -2) << "a process could not use slots";
        if (core >= 0) taken.insert(core);
      }
    }
    for (int core : taken) EXPECT_EQ(taken.count(core), 1u) << "core " << core;
    EXPECT_GE(taken.size(), 2u);
    // A latecomer gets exactly what is left.
    const CoreSlots late = CoreSlots::take(first_cores(kCores), folder);
    EXPECT_EQ(late.held().size() + taken.size(), size_t(kCores));
    for (int core : late.held()) EXPECT_EQ(taken.count(core), 0u);
    for (auto [child, end] : children) kill(child, SIGKILL), waitpid(child, nullptr, 0);
    EXPECT_EQ(CoreSlots::take(late.foreign(), folder).held().size(), taken.size());
  }
}

TEST(CoreSlots, AreOffInFoldersThatOthersCanWrite) {
  FileTree tree;
  const auto folder = tree.root() / "run";
  std::filesystem::create_directory(folder);
  chmod(folder.c_str(), 0777);
  CoreSlots slots = CoreSlots::take({0, 1}, folder);
  EXPECT_TRUE(slots.held().empty());
  EXPECT_TRUE(slots.foreign().empty());
  EXPECT_FALSE(slots.usable());
  EXPECT_NE(slots.remark().find("777"), std::string::npos) << slots.remark();
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "nothing is written to a folder that is not trusted";
}

TEST(CoreSlots, FollowNoLinks) {
  FileTree tree;
  std::filesystem::create_directory(tree.root() / "elsewhere");
  std::filesystem::create_directory_symlink(tree.root() / "elsewhere", tree.root() / "run");
  EXPECT_FALSE(CoreSlots::take({0}, tree.root() / "run").usable());
  EXPECT_TRUE(std::filesystem::is_empty(tree.root() / "elsewhere"));
  // A slot that is a link to another file.
  tree.write("precious", "text");
  std::filesystem::create_directory(tree.root() / "own");
  chmod((tree.root() / "own").c_str(), 0700);
  std::filesystem::create_symlink(tree.root() / "precious", tree.root() / "own/core-0");
  EXPECT_FALSE(CoreSlots::take({0}, tree.root() / "own").usable());
}

TEST(CoreSlots, WorkWithoutAFolder) {
  FileTree tree;
  tree.write("file", "");
  for (const auto& folder :
       {tree.root() / "file", tree.root() / "file/below", tree.root() / "missing/below", std::filesystem::path("/proc/ridge"), std::filesystem::path()}) {
    CoreSlots slots;
    ASSERT_NO_THROW(slots = CoreSlots::take({0, 1}, folder));
    EXPECT_FALSE(slots.usable()) << folder;
    EXPECT_EQ(std::count(slots.remark().begin(), slots.remark().end(), '\n'), 0);
    EXPECT_TRUE(slots.held().empty());
  }
}

TEST(CoreSlots, WorkInUnwritableFolders) {
  // Root may write anywhere, so the child drops its privileges.
  FileTree tree;
  chmod(tree.root().c_str(), 0755);
  const std::string text = in_child([&] {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return std::string("core slots are off: not tried");
    if (geteuid() != 65534) chmod(tree.root().c_str(), 0555);
    return CoreSlots::take({0}, tree.root() / "run").remark();
  });
  chmod(tree.root().c_str(), 0755);
  EXPECT_EQ(text.find("core slots are off"), 0u) << text;
}

TEST(CoreSlots, AreInTheUsersRuntimeFolder) {
  FileTree tree;
  auto folder_with = [](const std::string& run) {
    return in_child([&] {
      setenv("TMPDIR", "/tmp", 1);
      run.empty() ? unsetenv("XDG_RUNTIME_DIR") : setenv("XDG_RUNTIME_DIR", run.c_str(), 1);
      return run_folder().string();
    });
  };
  const std::string temporary = "/tmp/ridge-" + std::to_string(geteuid());
  EXPECT_EQ(folder_with(tree.root().string()), (tree.root() / "ridge").string());
  EXPECT_EQ(folder_with(""), temporary);
  EXPECT_EQ(folder_with("relative"), temporary);
  EXPECT_EQ(folder_with((tree.root() / "missing").string()), temporary);
}

}  // namespace
}  // namespace ridge
