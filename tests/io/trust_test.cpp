#include "io/trust.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/temp_folder.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::write_text;

class Trust : public ::testing::Test {
 protected:
  static void set_mode(const std::string& path, mode_t mode) { ASSERT_EQ(::chmod(path.c_str(), mode), 0); }
  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
  TempFolder folder_;
};

TEST_F(Trust, RejectsPathsThatOthersCanWrite) {
  const std::string path = folder_ / "cache";
  EXPECT_EQ(why_untrusted(path), "") << "nothing is there";
  fs::create_directory(path);
  for (mode_t mode : {0700, 0755, 0500, 0770, 0775}) {  // the group is the user's own
    set_mode(path, mode);
    EXPECT_EQ(why_untrusted(path), "") << std::oct << mode;
  }
  for (mode_t mode : {0777, 01777, 0702}) {
    set_mode(path, mode);
    EXPECT_TRUE(has(why_untrusted(path), path + " can be written by everyone (mode ")) << std::oct << mode << why_untrusted(path);
    EXPECT_TRUE(has(why_untrusted(path), "run: chmod o-w " + path));
  }
  set_mode(path, 0700);
  write_text(path + "/file", "x");
  EXPECT_EQ(why_untrusted_folder(path), "");
  set_mode(path + "/file", 0666);
  EXPECT_TRUE(has(why_untrusted_folder(path), "chmod o-w " + path + "/file")) << why_untrusted_folder(path);
}

TEST_F(Trust, ReportsPathsThatAreNotFolders) {
  for (const std::string& why : {why_untrusted_folder("/dev/null"), make_private_folder("/dev/null")}) EXPECT_EQ(why, "/dev/null is not a folder");
}

TEST_F(Trust, RejectsFilesOfOtherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string path = folder_ / "cache", file = path + "/kernel";
  fs::create_directory(path);
  write_text(file, "x");
  set_mode(path, 0775);
  ASSERT_EQ(::chown(path.c_str(), 0, 4711), 0);
  EXPECT_TRUE(has(why_untrusted(path), "can be written by group 4711 (mode 775); run: chmod g-w ")) << why_untrusted(path);
  set_mode(path, 0755);
  EXPECT_EQ(why_untrusted_folder(path), "");
  ASSERT_EQ(::chown(file.c_str(), 4711, 0), 0);
  EXPECT_TRUE(has(why_untrusted_folder(path), file + " belongs to user 4711, not to this user (0)")) << why_untrusted_folder(path);
  EXPECT_TRUE(has(why_untrusted_folder(path), "chown 0 " + file));
  ASSERT_EQ(::chown(file.c_str(), 0, 0), 0);
  ASSERT_EQ(::chown(path.c_str(), 4711, 4711), 0);
  EXPECT_TRUE(has(why_untrusted(path), "belongs to user 4711"));
}

TEST_F(Trust, ChecksLinksAndTheirTargets) {
  const std::string target = folder_ / "target", link = folder_ / "link";
  fs::create_directory(target);
  fs::create_directory_symlink(target, link);
  EXPECT_EQ(why_untrusted(link), "");
  set_mode(target, 0777);
  EXPECT_TRUE(has(why_untrusted(link), "everyone"));
}

TEST_F(Trust, RejectsLinksOfOtherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a link away";
  const std::string target = folder_ / "target", link = folder_ / "link";
  fs::create_directory(target);
  set_mode(target, 0700);
  fs::create_directory_symlink(target, link);
  EXPECT_EQ(why_untrusted(link), "");
  ASSERT_EQ(::lchown(link.c_str(), 4711, 4711), 0);
  EXPECT_TRUE(has(why_untrusted(link), "belongs to user 4711")) << "its owner can let it lead elsewhere";
}

TEST_F(Trust, NewFoldersArePrivateForAnyUmask) {
  const mode_t before = ::umask(0);
  EXPECT_EQ(make_private_folder(folder_ / "a/b/c"), "");
  ::umask(before);
  for (const char* path : {"a", "a/b", "a/b/c"}) EXPECT_EQ(why_untrusted(folder_ / path), "") << path;
  EXPECT_EQ(make_private_folder(folder_ / "a/b/c"), "") << "it is there already";
  write_text(folder_ / "file", "x");
  EXPECT_TRUE(has(make_private_folder(folder_ / "file"), "is not a folder"));
  EXPECT_NE(make_private_folder(folder_ / "file/below"), "");
  set_mode(folder_ / "a", 0777);
  EXPECT_TRUE(has(make_private_folder(folder_ / "a"), "chmod o-w"));
}

}  // namespace
}  // namespace ridge
