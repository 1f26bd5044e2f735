// Laws of checkpoints: a checkpoint is complete or absent, whatever fails and whenever the process dies; damage is detected and the previous checkpoint is
// used.
#include "train/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <numeric>
#include <random>

#include "base/error.h"
#include "io/folder_lock.h"
#include "support/errors.h"
#include "support/file_faults.h"
#include "support/mutate.h"
#include "support/temp_folder.h"
#include "train/manifest.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::Fault;
using test::FileFaults;
using test::has;
using test::read_text;
using test::TempFolder;
using test::write_text;

// A checkpoint in which every byte depends on its step and `variant`.
struct StoredSample {
  std::vector<float> weights, moments;
  CheckpointContent content;

  explicit StoredSample(int64_t step, float variant = 0) : weights(21), moments(42) {
    std::iota(weights.begin(), weights.end(), float(step) + variant);
    std::iota(moments.begin(), moments.end(), -float(step) - variant);
    auto view = [](const char* name, Shape shape, std::span<const float> values) { return SafetensorView{{name, DType::f32, shape}, std::as_bytes(values)}; };
    content.step = step;
    content.tensors["model.safetensors"] = {view("weight", {3, 5}, std::span(weights).first(15)), view("bias", {6}, std::span(weights).subspan(15))};
    content.tensors["optimizer.safetensors"] = {view("moments", {2, 21}, moments)};
    content.texts["state.json"] = fmt::format("{{\"step\": {}, \"variant\": {}}}", step, variant);
    content.texts["config.json"] = "{}";
    content.texts["empty.txt"] = "";
  }
};

std::string bytes_of(const StoredCheckpoint& c, const std::string& file, const std::string& name) {
  const auto data = c.tensors.at(file).at(name).data;
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

void expect_holds(const std::optional<StoredCheckpoint>& found, int64_t step, float variant = 0) {
  ASSERT_TRUE(found) << "no checkpoint, where that of step " << step << " was expected";
  const StoredSample s(step, variant);
  EXPECT_EQ(found->step, step);
  EXPECT_EQ(found->texts, s.content.texts);
  ASSERT_EQ(found->tensors.size(), s.content.tensors.size());
  for (const auto& [file, tensors] : s.content.tensors)
    for (const SafetensorView& t : tensors) {
      EXPECT_EQ(found->tensors.at(file).at(t.name).shape, t.shape);
      EXPECT_EQ(bytes_of(*found, file, t.name), std::string(reinterpret_cast<const char*>(t.data.data()), t.data.size())) << t.name;
    }
}

std::optional<StoredCheckpoint> newest(const CheckpointStore& store) {
  std::vector<std::string> notices;
  return store.newest(notices);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;

TEST(Checkpoint, RoundTrips) {
  TempFolder folder;
  CheckpointStore store(folder / "run/checkpoints");
  std::vector<std::string> notices;
  EXPECT_FALSE(store.newest(notices));
  EXPECT_FALSE(store.best(notices));
  EXPECT_TRUE(store.steps().empty());
  EXPECT_TRUE(has(error_of([&] { store.load(7); }), "no checkpoint of step 7; it has none at all"));

  EXPECT_TRUE(store.save(StoredSample(7).content).empty());
  expect_holds(store.newest(notices), 7);
  EXPECT_FALSE(store.best(notices));
  EXPECT_TRUE(notices.empty());
  EXPECT_EQ(names_in(folder / "run/checkpoints"), (Names{"LATEST", "step_00000007"}));
  EXPECT_EQ(names_in(folder / "run/checkpoints/step_00000007"),
            (Names{"config.json", "empty.txt", "manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"}));
  EXPECT_EQ(read_text(folder / "run/checkpoints/LATEST"), "step_00000007\n");

  expect_holds(CheckpointStore(folder / "run/checkpoints").load(7), 7);
  EXPECT_TRUE(has(error_of([&] { store.load(8); }), "no checkpoint of step 8"));
}

TEST(Checkpoint, KeepsTheNewestAndTheBest) {
  TempFolder folder;
  CheckpointStore store(folder / "c");
  std::vector<std::string> notices;
  for (int64_t step = 1; step <= 9; ++step) {
    EXPECT_TRUE(store.save(StoredSample(step).content, step == 2 || step == 6).empty());
    expect_holds(store.newest(notices), step);
    if (step >= 2) expect_holds(store.best(notices), step < 6 ? 2 : 6);
  }
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{6, 8, 9}));
  EXPECT_TRUE(notices.empty());
  CheckpointStore more(folder / "c", 4);
  for (int64_t step = 10; step <= 14; ++step) more.save(StoredSample(step).content);
  EXPECT_EQ(more.steps(), (std::vector<int64_t>{6, 11, 12, 13, 14}));
  more.save(StoredSample(123456789012).content);
  expect_holds(more.newest(notices), 123456789012);
}

// A damaged checkpoint does not count: two intact ones are kept.
TEST(Checkpoint, PrunesOnlyWhenTwoOthersAreIntact) {
  TempFolder folder;
  for (int64_t step : {1, 2, 3}) CheckpointStore(folder / "c", 5).save(StoredSample(step).content);
  write_text(folder / "c/step_00000003/state.json", "damaged");
  CheckpointStore store(folder / "c");
  store.save(StoredSample(4).content);
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{2, 4}));
}

// A run resumed from before a damaged checkpoint reaches the same step again, and saves lower steps after higher ones.
TEST(Checkpoint, ReplacesTheSameStepAndDropsLaterOnes) {
  TempFolder folder;
  CheckpointStore store(folder / "c");
  for (int64_t step : {10, 20}) store.save(StoredSample(step).content);
  store.save(StoredSample(20, 0.5f).content);
  expect_holds(newest(store), 20, 0.5f);
  expect_holds(store.load(10), 10);
  store.save(StoredSample(15).content);
  expect_holds(newest(store), 15);
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{10, 15}));
  EXPECT_EQ(names_in(folder / "c"), (Names{"LATEST", "step_00000010", "step_00000015"}));
}

TEST(Checkpoint, SyncsEveryFileBeforeTheFolderGetsItsName) {
  TempFolder folder;
  CheckpointStore(folder / "c").save(StoredSample(1).content);
  FileFaults faults(Fault::none, 0);
  CheckpointStore(folder / "c", 2, FileFaults::calls()).save(StoredSample(2).content);
  // Make a temporary folder; write each file; sync each file and the folder; rename it and sync that; LATEST.
  EXPECT_EQ(FileFaults::sequence(), std::string("m") + "wwwr" + "wwr" + "wr" + "r" + "wr" + "wr" + "ffffff" + "f" + "rf" + "wr");
}

struct Case {
  const char* what;
  int64_t step;  // the step saved after 10 and 20
  bool best;
  int64_t best_before = 10;
};
constexpr Case kCases[] = {{"a later one", 30, false}, {"the best one", 30, true}, {"the same step again", 20, false}, {"the best step again", 20, false, 20}};

void prepare(const std::string& folder, int64_t best = 10) {
  CheckpointStore store(folder);
  for (const int64_t step : {10, 20}) store.save(StoredSample(step).content, step == best);
}

int calls_of(const Case& c) {
  TempFolder folder;
  prepare(folder / "c", c.best_before);
  FileFaults faults(Fault::none, 0);
  CheckpointStore(folder / "c", 2, FileFaults::calls()).save(StoredSample(c.step, 0.5f).content, c.best);
  return FileFaults::count();
}

// Whatever happened, the newest checkpoint is intact and either the new one or the one before it, two exist, and the next save succeeds and cleans up.
void expect_unharmed(const std::string& folder, const Case& c) {
  CheckpointStore store(folder);
  std::vector<std::string> notices;
  const auto found = store.newest(notices);
  ASSERT_TRUE(found);
  if (found->texts == StoredSample(c.step, 0.5f).content.texts)
    expect_holds(found, c.step, 0.5f);
  else
    expect_holds(found, 20);
  const auto best = store.best(notices);
  ASSERT_TRUE(best);
  EXPECT_TRUE(best->step == c.best_before || c.best);
  const float variant = best->texts == StoredSample(best->step).content.texts ? 0 : 0.5f;
  EXPECT_TRUE(variant == 0 || best->step == c.step);
  expect_holds(best, best->step, variant);
  for (const int64_t step : {40, 50, 60}) EXPECT_TRUE(store.save(StoredSample(step).content).empty());
  expect_holds(newest(store), 60);
  expect_holds(store.best(notices), best->step, variant);
  for (const std::string& name : names_in(folder)) EXPECT_TRUE(name == "LATEST" || name == "BEST" || name.starts_with("step_")) << name;
  for (int64_t step : store.steps()) EXPECT_NO_THROW(store.load(step));
  EXPECT_GE(store.steps().size(), 2u);
}

TEST(Checkpoint, KeepsThePreviousOneThroughEveryFault) {
  for (const Case& c : kCases) {
    const int calls = calls_of(c);
    ASSERT_GT(calls, 25);
    for (Fault fault : {Fault::enospc, Fault::eio, Fault::interrupted, Fault::short_write, Fault::short_then_full})
      for (int at = 0; at < calls; ++at) {
        SCOPED_TRACE(testing::Message() << c.what << ", fault " << int(fault) << " at call " << at);
        TempFolder folder;
        prepare(folder / "c", c.best_before);
        std::optional<Error> error;
        std::vector<std::string> notices;
        char kind = 0;
        {
          FileFaults faults(fault, at);
          error = error_of([&] { notices = CheckpointStore(folder / "c", 2, FileFaults::calls()).save(StoredSample(c.step, 0.5f).content, c.best); });
          kind = FileFaults::sequence()[size_t(at)];
        }
        if (error) {
          EXPECT_EQ(error->code(), ErrorCode::io);
          EXPECT_TRUE(has(error, folder / "c/")) << error->what();
          EXPECT_TRUE(fault != Fault::enospc || has(error, "No space left on device")) << error->what();
          EXPECT_TRUE(fault != Fault::enospc || has(error, "free some space")) << error->what();
          EXPECT_TRUE(has(error, "it needs")) << error->what();
        } else {
          expect_holds(newest(CheckpointStore(folder / "c")), c.step, 0.5f);
        }
        if (fault == Fault::short_write) {
          EXPECT_FALSE(error);
        }
        if (fault == Fault::enospc || fault == Fault::eio) {
          EXPECT_TRUE(error || !notices.empty()) << "at a call '" << kind << "'";
        }
        expect_unharmed(folder / "c", c);
      }
  }
}

TEST(Checkpoint, KeepsOneWhenKilledAtEveryCall) {
  for (const Case& c : kCases) {
    const int calls = calls_of(c);
    for (Fault fault : {Fault::killed, Fault::killed_within})
      for (int at = 0; at < calls; ++at) {
        SCOPED_TRACE(testing::Message() << c.what << ", killed at call " << at);
        TempFolder folder;
        prepare(folder / "c", c.best_before);
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
          FileFaults faults(fault, at);
          CheckpointStore(folder / "c", 2, FileFaults::calls()).save(StoredSample(c.step, 0.5f).content, c.best);
          _exit(0);
        }
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == FileFaults::kKilledExit);
        expect_unharmed(folder / "c", c);
      }
  }
}

// Replacing the only checkpoint with one of the same step: at every moment at least one exists.
TEST(Checkpoint, AlwaysHasOne) {
  int at = 0;
  for (bool done = false; !done; ++at) {
    SCOPED_TRACE(at);
    TempFolder folder;
    CheckpointStore(folder / "c").save(StoredSample(10).content);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FileFaults faults(Fault::killed, at);
      CheckpointStore(folder / "c", 2, FileFaults::calls()).save(StoredSample(10, 0.5f).content);
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    done = WEXITSTATUS(status) == 0;
    const auto found = newest(CheckpointStore(folder / "c"));
    ASSERT_TRUE(found);
    expect_holds(found, 10, found->texts == StoredSample(10).content.texts ? 0 : 0.5f);
  }
  EXPECT_GT(at, 25);
}

// Reports success but stores something else: only the n-th call changes a bit.
struct LyingDisk {
  static inline int left = 0;
  static ssize_t write(int file, const void* data, size_t bytes) {
    std::string copy(static_cast<const char*>(data), bytes);
    if (left-- == 0) copy[bytes / 2] ^= 1;
    return ::write(file, copy.data(), bytes);
  }
};

TEST(Checkpoint, IsVerifiedByReadingBack) {
  FileCalls calls = kSystemFileCalls;
  calls.write = LyingDisk::write;
  int refused = 0;
  for (bool lied = true; lied; ++refused) {
    TempFolder folder;
    prepare(folder / "c");
    LyingDisk::left = refused;
    const auto error = error_of([&] { CheckpointStore(folder / "c", 2, calls).save(StoredSample(30).content); });
    lied = error.has_value();
    if (lied) {
      EXPECT_TRUE(has(error, "damaged")) << error->what();
      expect_holds(newest(CheckpointStore(folder / "c")), 20);
    }
  }
  EXPECT_EQ(refused, 9);  // two headers, three tensors, two texts and the manifest; and LATEST, which is never rejected
}

// Flips one bit in every byte of every file.
TEST(Checkpoint, DetectsEveryFlippedBit) {
  TempFolder folder;
  prepare(folder / "c");
  const CheckpointStore store(folder / "c");
  for (const std::string& name : names_in(folder / "c/step_00000020")) {
    const std::string path = folder / ("c/step_00000020/" + name);
    std::string text = read_text(path);
    for (size_t i = 0; i < text.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "byte " << i << " of " << name);
      const char was = text[i];
      text[i] = char(was ^ 1 << (i * 5 + 3) % 8);
      write_text(path, text);
      text[i] = was;
      std::vector<std::string> notices;
      const auto found = store.newest(notices);
      ASSERT_TRUE(found);
      ASSERT_EQ(found->step, 10);
      ASSERT_EQ(notices.size(), 1u);
      ASSERT_NE(notices[0].find(name), std::string::npos) << notices[0];
      ASSERT_NE(notices[0].find("skipped"), std::string::npos) << notices[0];
      EXPECT_EQ(error_of([&] { store.load(20); })->code(), ErrorCode::io);
    }
    write_text(path, text);
  }
  expect_holds(newest(store), 20);
  std::string latest = read_text(folder / "c/LATEST");
  for (size_t i = 0; i < latest.size(); ++i) {
    std::string damaged = latest;
    damaged[i] = char(damaged[i] ^ 1 << i % 8);
    write_text(folder / "c/LATEST", damaged);
    expect_holds(newest(store), 20);
  }
  write_text(folder / "c/LATEST", latest);
  // A damaged BEST hint never leads to a damaged checkpoint; if no checkpoint is found, that is reported.
  const std::string best = read_text(folder / "c/BEST");
  for (size_t i = 0; i < best.size(); ++i) {
    std::string damaged = best;
    damaged[i] = char(damaged[i] ^ 1 << i % 8);
    write_text(folder / "c/BEST", damaged);
    std::vector<std::string> notices;
    if (const auto found = store.best(notices)) {
      expect_holds(found, found->step);
    } else {
      EXPECT_FALSE(notices.empty()) << damaged;
    }
    expect_holds(newest(store), 20);
  }
}

TEST(Checkpoint, DetectsTruncatedExtendedMissingAndMovedFiles) {
  TempFolder folder;
  prepare(folder / "c");
  const CheckpointStore store(folder / "c");
  const std::string newer = folder / "c/step_00000020";
  auto expect_previous = [&](const char* what) {
    SCOPED_TRACE(what);
    std::vector<std::string> notices;
    expect_holds(store.newest(notices), 10);
    EXPECT_FALSE(notices.empty());
  };
  for (const std::string& name : names_in(newer)) {
    const std::string path = newer + "/" + name, text = read_text(path);
    for (size_t size : {size_t(0), text.size() / 2, text.size() - 1})
      if (size < text.size()) write_text(path, text.substr(0, size)), expect_previous("cut short");
    write_text(path, text + "x");
    expect_previous("longer");
    fs::remove(path);
    expect_previous("missing");
    fs::create_directory(path);
    expect_previous("a folder in its place");
    fs::remove(path);
    write_text(path, text);
    expect_holds(newest(store), 20);
  }
  write_text(newer + "/notes.txt", "somebody's");
  expect_holds(newest(store), 20);
  fs::rename(newer, folder / "c/step_00000030");
  expect_previous("under another step's name");
  fs::remove(folder / "c/step_00000030/manifest.json");
  expect_previous("without a manifest");
  write_text(folder / "c/step_00000010/state.json", "");
  std::vector<std::string> notices;
  EXPECT_FALSE(store.newest(notices));
  EXPECT_FALSE(store.best(notices));
}

TEST(Checkpoint, TreatsLatestAsAHint) {
  TempFolder folder;
  prepare(folder / "c");
  const CheckpointStore store(folder / "c");
  for (const char* text : {"", "\n", "step_20", "step_00000099", "../../etc", "step_00000020\nmore", "step_-0000020", "step_99999999999999999999"}) {
    write_text(folder / "c/LATEST", text);
    std::vector<std::string> notices;
    expect_holds(store.newest(notices), 20);
    EXPECT_EQ(notices.size(), 1u) << text;
  }
  write_text(folder / "c/LATEST", std::string(1 << 20, 's'));
  expect_holds(newest(store), 20);
  fs::remove(folder / "c/LATEST");
  expect_holds(newest(store), 20);
}

// A power cut may lose the last LATEST and leave the checkpoint it named.
TEST(Checkpoint, IsTheNewestRegardlessOfLatest) {
  TempFolder folder;
  prepare(folder / "c");
  const CheckpointStore store(folder / "c");
  write_text(folder / "c/LATEST", "step_00000010\n");
  std::vector<std::string> notices;
  expect_holds(store.newest(notices), 20);
  EXPECT_TRUE(notices.empty()) << notices[0];
  fs::rename(folder / "c/step_00000020", folder / "c/.step_00000020.trash");  // moved aside for another of its step that was never written
  expect_holds(store.newest(notices), 20);
  expect_holds(store.load(10), 10);  // by name
}

// LATEST is only a hint, so a full disk there costs no checkpoint.
TEST(Checkpoint, IsSavedIfLatestCannotBeWritten) {
  TempFolder folder;
  prepare(folder / "c");
  fs::remove(folder / "c/LATEST");
  fs::create_directory(folder / "c/LATEST");
  CheckpointStore store(folder / "c");
  const std::vector<std::string> notices = store.save(StoredSample(30).content);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].find("LATEST"), std::string::npos) << notices[0];
  expect_holds(newest(store), 30);
}

TEST(Checkpoint, RemovesLeftoversOfDeadProcesses) {
  TempFolder folder;
  prepare(folder / "c");
  for (const char* name : {".step_00000020.trash", ".step_00000030.partial", ".step_00000025.partial"}) {
    fs::create_directories(folder / (std::string("c/") + name + "/inner"));
    write_text(folder / (std::string("c/") + name + "/inner/x"), "left");
  }
  write_text(folder / "c/mine.txt", "somebody's");
  CheckpointStore(folder / "c").save(StoredSample(30).content);
  EXPECT_EQ(names_in(folder / "c"), (Names{"BEST", "LATEST", "mine.txt", "step_00000010", "step_00000020", "step_00000030"}));
}

TEST(Checkpoint, ReportsErrors) {
  TempFolder folder;
  EXPECT_EQ(error_of([&] { CheckpointStore(folder / "c", 1); })->code(), ErrorCode::value);
  for (const char* name : {"", "a/b", "..", ".hidden", "manifest.json", "model.safetensors", "with blank"}) {
    StoredSample s(1);
    s.content.texts[name] = "x";
    EXPECT_EQ(error_of([&] { CheckpointStore(folder / "c").save(s.content); })->code(), ErrorCode::value) << name;
  }
  StoredSample s(1);
  s.content.tensors["model.bin"] = {};
  EXPECT_TRUE(has(error_of([&] { CheckpointStore(folder / "c").save(s.content); }), "model.bin"));
  EXPECT_TRUE(has(error_of([&] { CheckpointStore(folder / "c").save(StoredSample(-1).content); }), "steps count from 0"));

  write_text(folder / "file", "");
  const auto error = error_of([&] { CheckpointStore(folder / "file/c").save(StoredSample(1).content); });
  EXPECT_TRUE(has(error, "file") && has(error, "Not a directory")) << error->what();
  EXPECT_TRUE(has(error_of([&] { newest(CheckpointStore(folder / "file")); }), "check that it is a folder"));

  prepare(folder / "c");
  static int calls = 0;
  const auto unprotected = FolderLock::take(folder / "c", [](int, int) {
    errno = calls++ < 2 ? EINTR : ENOLCK;
    return -1;
  });
  EXPECT_EQ(calls, 3);
  ASSERT_TRUE(unprotected);
  EXPECT_NE(unprotected->problem().find("cannot be locked (No locks available)"), std::string::npos) << unprotected->problem();
  const auto held = FolderLock::take(folder / "c");
  EXPECT_TRUE(held && held->problem().empty());
  EXPECT_TRUE(held && !FolderLock::take(folder / "c"));
  EXPECT_TRUE(has(error_of([&] { CheckpointStore(folder / "c").save(StoredSample(30).content); }), "another process"));
  expect_holds(newest(CheckpointStore(folder / "c")), 20);
}

// Anything other than what was written is rejected.
TEST(Manifest, RejectsEveryOtherText) {
  Manifest manifest;
  manifest.step = 1000;
  manifest.files["model.safetensors"] = {123456, std::string(32, 'a')};
  manifest.files["state.json"] = {77, std::string(31, '0') + "f"};
  const std::string whole = format_manifest(manifest);
  EXPECT_EQ(parse_manifest(whole, "m"), manifest);
  EXPECT_EQ(parse_manifest(format_manifest({}), "m"), Manifest{});

  std::mt19937 random(3);
  int refused = 0;
  auto refuse = [&](const std::string& text) {
    const auto error = error_of([&] { parse_manifest(text, "the manifest"); });
    ASSERT_TRUE(error) << text;
    ASSERT_EQ(error->code(), ErrorCode::io) << error->what();
    ASSERT_TRUE(has(error, "the manifest"));
    ++refused;
  };
  for (int round = 0; round < 6'000; ++round) {
    const std::string text = test::mutated(whole, random);
    if (text != whole) refuse(text);
  }
  EXPECT_GT(refused, 5'000);
  for (const char* text : {"", "null", "3", "[]", "{}", "{\"files\":{}}", "{\"step\":-1,\"files\":{}}", "{\"step\":1e3,\"files\":{}}"}) refuse(text);
  refuse(std::string(kMaxManifestBytes, '['));
  refuse(std::string(kMaxManifestBytes + 1, ' '));
  Manifest foreign;
  foreign.files["../../etc/passwd"] = {0, std::string(32, '0')};
  refuse(format_manifest(foreign));
}

}  // namespace
}  // namespace ridge
