#include "machine/measurement_store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <set>

#include "base/error.h"
#include "support/temp_folder.h"
#include "support/variable.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

const Fingerprint kHere{"00000000000000aa", "{}"}, kElsewhere{"00000000000000bb", "{}"};

class MeasurementStoreTest : public ::testing::Test {
 protected:
  void write(const std::string& bytes) const {
    fs::create_directories(file_.parent_path());
    test::write_text(file_, bytes);
  }
  std::string bytes() const { return test::read_text(file_); }

  // Runs body in this many child processes in parallel; returns their exit codes.
  static std::set<int> in_children(int count, const std::function<int(int)>& body) {
    std::vector<pid_t> children;
    for (int i = 0; i < count; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        int code = 99;
        try {
          code = body(i);
        } catch (...) {
        }
        _exit(code);
      }
      children.push_back(child);
    }
    std::set<int> codes;
    for (pid_t child : children) {
      int status = 0;
      waitpid(child, &status, 0);
      codes.insert(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
    return codes;
  }

  static void expect_works(MeasurementStore& store) {
    store.put("works", {.value = "1"});
    EXPECT_EQ(store.number("works"), 1.0);
    EXPECT_EQ(store.remark().find('\n'), std::string::npos);
  }

  test::TempFolder temporary_;
  fs::path folder_ = temporary_.path(), file_ = folder_ / "cache" / "store.db";
};

TEST_F(MeasurementStoreTest, KeepsMeasurementsAcrossProcesses) {
  {
    MeasurementStore store(kHere, file_);
    EXPECT_TRUE(store.stored());
    EXPECT_EQ(store.remark(), "");
    store.put("copy/t2", {.value = R"({"value":51.5,"variant":"2 streams"})", .spread = 0.02, .samples = 40});
    store.put("copy/t1", {.value = "50"});
    store.put("copy/t1", {.value = "49.5", .samples = 7});
  }
  MeasurementStore store(kHere, file_);
  const Measurement m = store.get("copy/t2").value();
  EXPECT_EQ(m.value, R"({"value":51.5,"variant":"2 streams"})");
  EXPECT_EQ(m.spread, 0.02);
  EXPECT_EQ(m.samples, 40);
  EXPECT_GT(m.when, 1'700'000'000);
  EXPECT_EQ(store.number("copy/t1"), 49.5);
  EXPECT_EQ(store.number("copy/t2"), 51.5);
  EXPECT_FALSE(store.get("copy/t"));
  EXPECT_FALSE(store.number("copy"));
}

TEST_F(MeasurementStoreTest, ListsAndRemovesByPrefix) {
  MeasurementStore store(kHere, file_);
  for (const char* key : {"b/2", "a/1", "b/1", "b", "c%_'\"; DROP TABLE measurement", "bä"}) store.put(key, {.value = "0"});
  auto keys = [&](std::string_view prefix) {
    std::vector<std::string> found;
    for (const auto& [key, m] : store.all(prefix)) found.push_back(key);
    return found;
  };
  EXPECT_EQ(keys("b/"), (std::vector<std::string>{"b/1", "b/2"}));
  EXPECT_EQ(keys("b").size(), 4u);
  EXPECT_EQ(keys("").size(), 6u);
  EXPECT_EQ(keys("%").size(), 0u);
  EXPECT_EQ(store.forget("b/"), 2);
  EXPECT_EQ(store.forget("b/"), 0);
  EXPECT_EQ(store.forget(), 4);
  EXPECT_TRUE(keys("").empty());
}

TEST_F(MeasurementStoreTest, MachinesAreSeparate) {
  MeasurementStore here(kHere, file_), elsewhere(kElsewhere, file_);
  here.put("x", {.value = "1"});
  elsewhere.put("x", {.value = "2"});
  EXPECT_EQ(here.number("x"), 1.0);
  EXPECT_EQ(elsewhere.forget(), 1);
  EXPECT_EQ(here.number("x"), 1.0);
}

TEST_F(MeasurementStoreTest, RejectsInvalidMeasurements) {
  MeasurementStore store(kHere, file_);
  EXPECT_THROW(store.put("", {.value = "1"}), Error);
  EXPECT_THROW(store.put("x", {.value = ""}), Error);
  EXPECT_THROW(store.put("x", {.value = "nan"}), Error);
  EXPECT_THROW(store.put("x", {.value = "1", .spread = std::nan("")}), Error);
  const NamedMeasurement rows[] = {{"good", {.value = "1"}}, {"bad", {.value = "{"}}};
  EXPECT_THROW(store.put(rows), Error);
  EXPECT_TRUE(store.all().empty());  // all or none
}

TEST_F(MeasurementStoreTest, BrokenStoresAreMovedAsideAndRecreated) {
  std::string whole;
  {
    MeasurementStore store(kHere, file_);
    for (int i = 0; i < 400; ++i) store.put("key/" + std::to_string(i), {.value = "\"" + std::string(100, 'x') + "\""});
  }
  whole = bytes();
  ASSERT_GT(whole.size(), 20000u);
  std::vector<std::string> broken = {"this is no database at all, but long enough to look like one: " + std::string(2000, '.'), whole.substr(0, 5000),
                                     std::string(100, '\0') + whole.substr(100)};
  std::mt19937 random(1);
  for (int i = 0; i < 10; ++i) {
    std::string text = whole;
    for (int k = 0; k < 2000; ++k) text[random() % text.size()] = char(random());
    broken.push_back(text);
  }
  for (const std::string& text : broken) {
    fs::remove_all(file_.parent_path());
    write(text);
    MeasurementStore store(kHere, file_);
    EXPECT_TRUE(store.stored());
    EXPECT_NE(store.remark().find("recreated"), std::string::npos) << store.remark();
    EXPECT_TRUE(fs::exists(file_.string() + ".corrupt"));
    expect_works(store);
    MeasurementStore again(kHere, file_);
    EXPECT_EQ(again.remark(), "");
    EXPECT_EQ(again.number("works"), 1.0);
  }
}

TEST_F(MeasurementStoreTest, IgnoresTablesWithAnotherSchema) {
  fs::create_directories(file_.parent_path());
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(file_.c_str(), &other), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(other, "CREATE TABLE measurement(word TEXT)", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  MeasurementStore store(kHere, file_);
  EXPECT_TRUE(store.stored());
  expect_works(store);
  EXPECT_TRUE(fs::exists(file_.string() + ".corrupt"));
}

TEST_F(MeasurementStoreTest, AnEmptyFileIsANewStore) {
  write("");
  MeasurementStore store(kHere, file_);
  EXPECT_EQ(store.remark(), "");
  expect_works(store);
}

TEST_F(MeasurementStoreTest, SurvivesAStoreThatBreaksWhileItIsOpen) {
  MeasurementStore store(kHere, file_);
  for (int i = 0; i < 300; ++i) store.put("key/" + std::to_string(i), {.value = "\"" + std::string(200, 'x') + "\""});
  for (const char* part : {"", "-wal", "-shm"}) std::ofstream(file_.string() + part, std::ios::binary | std::ios::trunc) << std::string(100000, 'z');
  store.all();
  store.get("key/250");
  expect_works(store);
}

TEST_F(MeasurementStoreTest, FallsBackToMemory) {
  std::ofstream(folder_ / "file") << "x";
  fs::create_directories(folder_ / "folder.db");
  for (const fs::path& place : {fs::path(), folder_ / "file" / "store.db", fs::path("/proc/nothing/here/store.db"), folder_ / "folder.db"}) {
    MeasurementStore store(kHere, place);
    EXPECT_FALSE(store.stored()) << place;
    EXPECT_NE(store.remark().find("in memory only"), std::string::npos) << store.remark();
    expect_works(store);
    EXPECT_EQ(store.forget(), 1);
  }
}

TEST_F(MeasurementStoreTest, IgnoresAStoreThatOthersCanWrite) {
  MeasurementStore(kHere, file_).put("x", {.value = "6"});
  for (const fs::path& path : {file_.parent_path(), file_}) {
    fs::permissions(path, fs::perms::others_write, fs::perm_options::add);
    const std::string before = bytes();
    MeasurementStore store(kHere, file_);
    EXPECT_FALSE(store.stored());
    EXPECT_FALSE(store.number("x"));
    EXPECT_NE(store.remark().find("chmod o-w " + path.string()), std::string::npos) << store.remark();
    expect_works(store);
    EXPECT_EQ(bytes(), before);
    fs::permissions(path, fs::perms::others_write, fs::perm_options::remove);
  }
  EXPECT_EQ(MeasurementStore(kHere, file_).number("x"), 6.0);
}

TEST_F(MeasurementStoreTest, TheCacheFolderIsPrivate) {
  const test::TempFolder folder;
  const test::Variable cache("RIDGE_CACHE", folder.path());
  EXPECT_EQ(cache_folder(), folder.path());
  EXPECT_EQ(cache_problem(), "");
  fs::permissions(folder.path(), fs::perms::all);
  EXPECT_EQ(cache_folder(), "");
  EXPECT_NE(cache_problem().find("chmod o-w " + folder.path()), std::string::npos) << cache_problem();
  EXPECT_EQ(MeasurementStore(kHere).remark(), cache_problem());
  fs::permissions(folder.path(), fs::perms::owner_all);
  fs::create_directory(folder / "kernels");
  fs::permissions(folder / "kernels", fs::perms::all);
  EXPECT_NE(cache_problem().find("chmod o-w " + (folder / "kernels")), std::string::npos) << cache_problem();
}

TEST_F(MeasurementStoreTest, DoesNotFollowLinks) {
  const test::TempFolder folder;
  fs::create_directory(folder / "real");
  fs::create_directory_symlink(folder / "real", folder / "cache");  // the user's own link to another disk
  { MeasurementStore(kHere, folder / "cache/p.db").put("x", {.value = "1"}); }
  EXPECT_TRUE(fs::exists(folder / "real/p.db"));
  fs::create_symlink(folder / "elsewhere", folder / "cache/q.db");
  EXPECT_FALSE(MeasurementStore(kHere, folder / "cache/q.db").stored());
  EXPECT_FALSE(fs::exists(folder / "elsewhere"));
}

TEST_F(MeasurementStoreTest, ReadsAReadOnlyStore) {
  MeasurementStore(kHere, file_).put("x", {.value = "5"});
  fs::permissions(folder_, fs::perms::all);
  fs::permissions(file_.parent_path(), fs::perms(0555));
  fs::permissions(file_, fs::perms(0444));
  const std::set<int> codes = in_children(1, [&](int) {
    if (geteuid() == 0 && setuid(65534) != 0) return 1;  // because root may write everywhere
    MeasurementStore store(kHere, file_);
    if (store.stored()) return 2;
    if (store.number("x") != 5.0) return 3;
    store.put("x", {.value = "6"});
    return store.number("x") == 6.0 && store.remark().find('\n') == std::string::npos ? 0 : 4;
  });
  EXPECT_EQ(codes, std::set<int>{0});
  fs::permissions(file_.parent_path(), fs::perms::owner_all);
  EXPECT_EQ(MeasurementStore(kHere, file_).number("x"), 5.0);
}

TEST_F(MeasurementStoreTest, EightProcessesLoseNothing) {
  constexpr int kProcesses = 8, kOpenings = 4, kRows = 8;
  for (bool corrupt : {false, true}) {
    fs::remove_all(file_.parent_path());
    if (corrupt) write(std::string(5000, '#'));
    const std::set<int> codes = in_children(kProcesses, [&](int process) {
      for (int opening = 0; opening < kOpenings; ++opening) {
        MeasurementStore store(opening % 2 ? kHere : kElsewhere, file_);
        for (int i = 0; i < kRows; ++i) {
          const std::string key = std::to_string(process) + "/" + std::to_string(opening) + "/" + std::to_string(i);
          store.put("shared", {.value = std::to_string(process)});
          store.put(key, {.value = std::to_string(i)});
          if (store.number(key) != double(i)) return 1;
        }
        if (!store.stored()) return 2;
      }
      return 0;
    });
    EXPECT_EQ(codes, std::set<int>{0});
    EXPECT_EQ(MeasurementStore(kHere, file_).all().size() + MeasurementStore(kElsewhere, file_).all().size(), size_t(kProcesses * kOpenings * kRows + 2));
    EXPECT_EQ(fs::exists(file_.string() + ".corrupt"), corrupt);
  }
}

TEST_F(MeasurementStoreTest, ReadingWritesNothing) {
  MeasurementStore(kHere, file_).put("x", {.value = "1"});
  const auto before = fs::last_write_time(file_);
  const std::string same = bytes();
  for (const Fingerprint& machine : {kHere, kElsewhere}) {
    MeasurementStore store(machine, file_);
    store.get("x");
    store.all();
  }
  EXPECT_EQ(fs::last_write_time(file_), before);
  EXPECT_EQ(bytes(), same);
}

TEST_F(MeasurementStoreTest, RemovesOldMachines) {
  std::vector<MeasurementStore> machines;  // all open together: only the last to close waits for the disk
  for (int i = 0; i < 80; ++i) machines.emplace_back(Fingerprint{"machine" + std::to_string(i), "{}"}, file_).put("x", {.value = std::to_string(i)});
  EXPECT_EQ(MeasurementStore({"machine79", "{}"}, file_).number("x"), 79.0);
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(file_.c_str(), &db), SQLITE_OK);
  for (const char* table : {"machine", "measurement"}) {
    sqlite3_stmt* count = nullptr;
    sqlite3_prepare_v2(db, ("SELECT COUNT(*) FROM " + std::string(table)).c_str(), -1, &count, nullptr);
    EXPECT_EQ(sqlite3_step(count), SQLITE_ROW);
    EXPECT_LE(sqlite3_column_int(count, 0), 64);
    sqlite3_finalize(count);
  }
  sqlite3_close(db);
}

TEST(CacheFolder, FollowsTheEnvironment) {
  auto folder = [](const char* own, const char* xdg, const char* home) {
    const char* names[] = {"RIDGE_CACHE", "XDG_CACHE_HOME", "HOME"};
    const char* values[] = {own, xdg, home};
    std::optional<std::string> saved[3];
    for (int i = 0; i < 3; ++i) {
      if (const char* old = std::getenv(names[i])) saved[i] = old;
      values[i] ? setenv(names[i], values[i], 1) : unsetenv(names[i]);
    }
    const std::string found = cache_folder().string();
    for (int i = 0; i < 3; ++i) saved[i] ? setenv(names[i], saved[i]->c_str(), 1) : unsetenv(names[i]);
    return found;
  };
  EXPECT_EQ(folder("/own", "/xdg", "/home/me"), "/own");
  EXPECT_EQ(folder(nullptr, "/xdg", "/home/me"), "/xdg/ridge");
  EXPECT_EQ(folder("", "relative", "/home/me"), "/home/me/.cache/ridge");
  EXPECT_EQ(folder(nullptr, nullptr, nullptr), "");
}

}  // namespace
}  // namespace ridge
