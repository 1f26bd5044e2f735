#include "io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <optional>

#include "base/error.h"
#include "io/checksum.h"
#include "support/errors.h"
#include "support/file_faults.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

using test::error_of;
using test::Fault;
using test::FileFaults;
using test::has;
using test::read_text;
using test::TempFolder;
using test::write_text;

const std::string kOld = "the previous content, complete";
const std::string kNew = std::string(300, 'n') + "the new content" + std::string(3, '\0');

std::span<const std::byte> new_bytes() { return std::as_bytes(std::span(kNew)); }

void write_in_pieces(const std::string& path, const FileCalls& calls) {
  AtomicFile file(path, calls);
  file.write(new_bytes().first(7));
  file.write({});
  file.write(new_bytes().subspan(7));
  file.commit();
}

TEST(AtomicFile, SyncsBeforeRenamingAndThenTheFolder) {
  TempFolder folder;
  FileFaults faults(Fault::none, 0);
  write_in_pieces(folder / "a", FileFaults::calls());
  EXPECT_EQ(FileFaults::sequence(), "wwfrf");
  EXPECT_EQ(read_text(folder / "a"), kNew);
  EXPECT_FALSE(std::filesystem::exists(folder / "a.part"));
}

// Someone else with write access to a folder must not decide which of the user's files is overwritten.
TEST(AtomicFile, FollowsNoLinks) {
  TempFolder folder;
  write_text(folder / "precious", kOld);
  const std::string aside = folder / "a.part";
  const std::function<void()> traps[] = {
      [&] { std::filesystem::create_symlink(folder / "precious", aside); },
      [&] { std::filesystem::create_symlink(folder / "nothing", aside); },
      [&] { std::filesystem::create_hard_link(folder / "precious", aside); },
      [&] { ASSERT_EQ(::mkfifo(aside.c_str(), 0666), 0); },
  };
  for (const auto& lay : traps) {
    lay();
    write_atomically(folder / "a", kNew);
    EXPECT_EQ(read_text(folder / "a"), kNew);
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(folder / "a")));
    EXPECT_EQ(read_text(folder / "precious"), kOld);
    EXPECT_FALSE(std::filesystem::exists(folder / "nothing"));
    std::filesystem::remove(folder / "a");
  }
  // A link at the path itself is replaced.
  std::filesystem::create_symlink(folder / "precious", folder / "a");
  write_atomically(folder / "a", kNew);
  EXPECT_EQ(read_text(folder / "precious"), kOld);
  EXPECT_EQ(read_text(folder / "a"), kNew);
}

// Another user may hold a file open and write to it after it was renamed.
TEST(AtomicFile, DoesNotReplaceFilesOfOtherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  TempFolder folder;
  write_text(folder / "a.part", kOld);
  ASSERT_EQ(::chown((folder / "a.part").c_str(), 4711, 4711), 0);
  write_atomically(folder / "a", kNew);
  struct stat info = {};
  ASSERT_EQ(::stat((folder / "a").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 0u);
  EXPECT_EQ(read_text(folder / "a"), kNew);
}

TEST(AtomicFile, SyncsOnRequestOnly) {
  TempFolder folder;
  FileFaults faults(Fault::none, 0);
  write_atomically(folder / "a", kNew, {FileFaults::calls(), nullptr, false});
  EXPECT_EQ(FileFaults::sequence(), "wr");
  EXPECT_EQ(read_text(folder / "a"), kNew);
  EXPECT_EQ(sync_path(folder / "a", FileFaults::calls()), 0);
  EXPECT_EQ(sync_path(folder.path(), FileFaults::calls()), 0);
  EXPECT_EQ(sync_path(folder / "none", FileFaults::calls()), ENOENT);
  EXPECT_EQ(FileFaults::sequence(), "wrff");
}

// However it is cut into pieces, the checksum is that of the whole.
TEST(AtomicFile, ComputesAChecksum) {
  TempFolder folder;
  const std::string large(3'000'017, 'x');
  for (Fault fault : {Fault::none, Fault::short_write, Fault::interrupted})
    for (int at : {0, 1, 2}) {
      FileFaults faults(fault, at);
      Checksum sum;
      write_atomically(folder / "a", large, {FileFaults::calls(), &sum});
      EXPECT_EQ(sum.hex(), checksum_of(large));
      EXPECT_EQ(sum.bytes(), int64_t(large.size()));
    }
  EXPECT_EQ(checksum_of(""), "99aa06d3014798d86001c324468d497f");  // as xxhsum -H2 prints it
}

TEST(AtomicFile, IsAbsentUntilCommitted) {
  TempFolder folder;
  {
    AtomicFile file(folder / "a");
    file.write(new_bytes());
    EXPECT_EQ(file.written(), int64_t(kNew.size()));
    EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  AtomicFile(folder / "a").commit();
  EXPECT_EQ(std::filesystem::file_size(folder / "a"), 0u);
}

// Every fault at every call, with and without an old file: the path has one of the two contents in full, and no temporary file remains.
TEST(AtomicFile, KeepsThePreviousContentThroughEveryFault) {
  constexpr int kCalls = 5;  // wwfrf
  for (bool old : {true, false})
    for (Fault fault : {Fault::enospc, Fault::eio, Fault::interrupted, Fault::short_write, Fault::short_then_full})
      for (int at = 0; at < kCalls; ++at) {
        SCOPED_TRACE(testing::Message() << "fault " << int(fault) << " at call " << at << (old ? " over a file" : ""));
        TempFolder folder;
        if (old) write_text(folder / "a", kOld);
        std::optional<Error> error;
        std::string sequence;
        {
          FileFaults faults(fault, at);
          error = error_of([&] { write_in_pieces(folder / "a", FileFaults::calls()); });
          sequence = FileFaults::sequence();
        }
        const bool renamed = sequence.find("rf") != std::string::npos;
        EXPECT_EQ(std::filesystem::exists(folder / "a"), old || renamed);
        EXPECT_EQ(read_text(folder / "a"), renamed ? kNew : old ? kOld : "");
        EXPECT_FALSE(std::filesystem::exists(folder / "a.part"));

        const bool harmless = fault == Fault::interrupted ? sequence[size_t(at)] != 'r' : fault == Fault::short_write;
        const bool past_the_end = fault == Fault::short_then_full && at == kCalls - 1;
        EXPECT_EQ(error.has_value(), !harmless && !past_the_end);
        if (error) {
          EXPECT_EQ(error->code(), ErrorCode::io);
          EXPECT_TRUE(has(error, folder / "a")) << error->what();
          EXPECT_TRUE(fault != Fault::enospc || has(error, "free some space")) << error->what();
          EXPECT_EQ(renamed, has(error, "complete, but")) << error->what();
        }
        write_in_pieces(folder / "a", kSystemFileCalls);  // the next attempt succeeds
        EXPECT_EQ(read_text(folder / "a"), kNew);
      }
}

TEST(AtomicFile, KeepsThePreviousContentWhenKilledAtEveryCall) {
  for (int at = 0; at < 5; ++at) {
    TempFolder folder;
    write_text(folder / "a", kOld);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FileFaults faults(Fault::killed, at);
      write_in_pieces(folder / "a", FileFaults::calls());
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == FileFaults::kKilledExit) << "at call " << at;
    EXPECT_EQ(read_text(folder / "a"), at < 4 ? kOld : kNew) << "at call " << at;
    EXPECT_EQ(std::filesystem::exists(folder / "a.part"), at < 4);
    write_in_pieces(folder / "a", kSystemFileCalls);  // takes over the dead process's file
    EXPECT_EQ(read_text(folder / "a"), kNew);
    EXPECT_FALSE(std::filesystem::exists(folder / "a.part"));
  }
}

TEST(AtomicFile, RejectsASecondWriter) {
  TempFolder folder;
  {
    AtomicFile first(folder / "a");
    first.write(new_bytes());
    EXPECT_TRUE(has(error_of([&] { AtomicFile second(folder / "a"); }), "another process"));
    first.commit();
  }
  EXPECT_EQ(read_text(folder / "a"), kNew);
  AtomicFile second(folder / "a");
  EXPECT_EQ(read_text(folder / "a"), kNew);
}

TEST(AtomicFile, ReportsWriteErrors) {
  TempFolder folder;
  EXPECT_TRUE(has(error_of([&] { AtomicFile(folder / "none/a"); }), "create the folder first"));
  std::filesystem::create_directory(folder / "inner");
  write_text(folder / "inner/x", kOld);
  EXPECT_TRUE(has(error_of([&] { AtomicFile(folder / "inner").commit(); }), "move the folder away"));
  EXPECT_EQ(read_text(folder / "inner/x"), kOld);
  EXPECT_FALSE(std::filesystem::exists(folder / "inner.part"));

  AtomicFile file(folder / "a");
  file.commit();
  EXPECT_TRUE(has(error_of([&] { file.write(new_bytes()); }), "open it again"));
  EXPECT_TRUE(has(error_of([&] { file.commit(); }), "open it again"));
}

TEST(AtomicFile, StaysFailedAfterAFault) {
  TempFolder folder;
  write_text(folder / "a", kOld);
  FileFaults faults(Fault::eio, 0);
  AtomicFile file(folder / "a", FileFaults::calls());
  EXPECT_TRUE(error_of([&] { file.write(new_bytes()); }));
  EXPECT_TRUE(error_of([&] { file.write(new_bytes()); }));
  EXPECT_TRUE(error_of([&] { file.commit(); }));
  EXPECT_EQ(read_text(folder / "a"), kOld);
}

// --svg with the name of a text by mistake must not lose it.
TEST(AtomicFile, PicturesReplaceNothingButPictures) {
  TempFolder folder;
  write_text(folder / "text", "the quick brown fox"), write_text(folder / "picture", "<svg xmlns=..."), write_text(folder / "empty", "");
  EXPECT_TRUE(has(error_of([&] { check_picture_place(folder / "text"); }), "is not a picture"));
  for (auto* check : {check_folder_of, check_picture_place}) EXPECT_TRUE(has(error_of([&] { check(folder / "absent/picture"); }), "create the folder first"));
  check_folder_of(""), check_folder_of("step.json"), check_folder_of(folder / "text");
  for (const char* name : {"picture", "empty", "absent"}) EXPECT_FALSE(error_of([&] { check_picture_place(folder / name); })) << name;
}

}  // namespace
}  // namespace ridge
