// Shared by the machine tests: recorded machines, made-up file trees, and child processes with their own limits.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "machine/topology.h"
#include "support/source_dir.h"
#include "support/temp_folder.h"

namespace ridge {

inline std::string read_fixture(const std::string& name) {  // path below tests/fixtures
  std::ifstream file(source_dir() + "/tests/fixtures/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline Topology recorded(const std::string& name) { return topology_from_xml(read_fixture("topology/" + name + ".xml")); }

// A temporary folder that stands for the root of a file system.
class FileTree {
 public:
  const std::filesystem::path& root() const { return root_; }

  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((root_ / file).parent_path());
    test::write_text(root_ / file, text);
  }

 private:
  test::TempFolder folder_;
  std::filesystem::path root_ = folder_.path();
};

// Runs a function in a child process, so that limits it sets on itself end with it. Returns its text, or the error it threw. A crash fails the test.
template <class F>
std::string in_child(F&& work) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    std::string text;
    try {
      text = std::forward<F>(work)();
    } catch (const std::exception& e) {
      text = std::string("threw ") + e.what();
    }
    const bool ok = write(ends[1], text.data(), text.size()) == ssize_t(text.size());
    _exit(ok ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char part[512];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;) text.append(part, size_t(n));
  close(ends[0]);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child ended with status " << status;
  return text;
}

// The text with some bytes changed, deleted, inserted or duplicated.
inline std::string damaged(std::string text, std::mt19937& random) {
  for (int n = int(random() % 8) + 1; n > 0 && !text.empty(); --n) {
    const size_t at = random() % text.size();
    switch (random() % 4) {
      case 0: text[at] = char(random()); break;
      case 1: text.erase(at, random() % 30); break;
      case 2: text.insert(at, std::to_string(random())); break;
      default: text.insert(at, text.substr(random() % text.size(), random() % 50));
    }
  }
  return text;
}

// Laws of every topology: each CPU in one core, each core in one kind, kinds fastest first and all different.
inline void check_laws(const Topology& t) {
  ASSERT_FALSE(t.cores.empty());
  ASSERT_FALSE(t.kinds.empty());
  EXPECT_EQ(t.kinds.front().speed, 1);
  EXPECT_EQ(t.kinds.front().name, "performance");
  EXPECT_GE(t.packages, 1);
  EXPECT_GE(t.numa_nodes, 1);
  EXPECT_GE(t.memory_bytes, 0);
  std::vector<int> of_cores, of_kinds;
  for (const Core& core : t.cores) {
    ASSERT_FALSE(core.cpus.empty());
    of_cores.insert(of_cores.end(), core.cpus.begin(), core.cpus.end());
    ASSERT_GE(core.kind, 0);
    ASSERT_LT(core.kind, int(t.kinds.size()));
    EXPECT_EQ(t.kind_of(core.cpus.back()), &t.kinds[core.kind]);
    for (const Cache& c : core.caches) EXPECT_TRUE(c.level >= 1 && c.bytes > 0 && c.cores >= 1 && c.cores <= t.core_count());
  }
  for (size_t k = 0; k < t.kinds.size(); ++k) {
    const CoreKind& kind = t.kinds[k];
    EXPECT_GE(kind.cores(), 1);
    EXPECT_GT(kind.speed, 0);
    EXPECT_LE(kind.speed, k ? t.kinds[k - 1].speed * (1 - kSameKind) * (1 + 1e-12) : 1);
    for (size_t j = 0; j < k; ++j) EXPECT_NE(kind.name, t.kinds[j].name);
    of_kinds.insert(of_kinds.end(), kind.cpus.begin(), kind.cpus.end());
    of_kinds.insert(of_kinds.end(), kind.siblings.begin(), kind.siblings.end());
  }
  std::sort(of_cores.begin(), of_cores.end());
  std::sort(of_kinds.begin(), of_kinds.end());
  EXPECT_EQ(std::adjacent_find(of_cores.begin(), of_cores.end()), of_cores.end());
  EXPECT_EQ(of_cores, of_kinds);
  EXPECT_EQ(t.thread_count(), int(of_cores.size()));
}

}  // namespace ridge
