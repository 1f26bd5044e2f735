// Kernel texts to machine code: compiled once, cached in files that are always verified, and clear errors.
#include "backend/cuda/cubins.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "backend/cuda/kernel.h"
#include "backend/cuda/prelude.h"
#include "base/error.h"
#include "support/nvrtc.h"
#include "support/temp_folder.h"

namespace ridge::cuda {
namespace {

namespace fs = std::filesystem;

KernelText add_number(int number) {
  return {.entry = "add", .body = fmt::format("extern \"C\" __global__ void add(float* x) {{ x[threadIdx.x] += {}.0f; }}\n", number)};
}

std::vector<fs::path> files_in(const std::string& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path());
  return out;
}

using KernelTexts = test::NvrtcTest;

TEST_F(KernelTexts, Compile) {
  const std::string code = compile_text(nvrtc(), add_number(1), "sm_86");
  ASSERT_GT(code.size(), 64u);
  EXPECT_EQ(code.substr(1, 3), "ELF");
  EXPECT_NE(nvrtc().version().find('.'), std::string::npos);
}

// Stored digests depend on the instructions, not on names.
TEST_F(KernelTexts, KeepTheirDigestWhenRenamed) {
  auto digest = [&](const KernelText& text) { return test::Cubin(compile_text(nvrtc(), text, "sm_86")).digest(); };
  KernelText renamed = add_number(1);
  renamed.entry = "x_add_of_another_name";
  renamed.body.replace(renamed.body.find("add"), 3, renamed.entry);
  const std::string one = digest(add_number(1));
  EXPECT_EQ(one.size(), 16u);
  EXPECT_EQ(digest(renamed), one);
  EXPECT_NE(digest(add_number(2)), one);
}

TEST_F(KernelTexts, ReportCompileErrorsWithLines) {
  try {
    compile_text(nvrtc(), {.entry = "broken", .body = "extern \"C\" __global__ void broken(float* x) { x[0] = no_such_name; }\n"}, "sm_86");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    const std::string what = error.what();
    EXPECT_NE(what.find("broken"), std::string::npos) << what;
    EXPECT_NE(what.find("sm_86"), std::string::npos) << what;
    EXPECT_NE(what.find("no_such_name"), std::string::npos) << what;
  }
  try {
    compile_text(nvrtc(), add_number(1), "sm_999");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
    EXPECT_NE(std::string(error.what()).find("newer NVRTC"), std::string::npos) << error.what();
  }
}

// The key covers exactly what changes the code.
TEST_F(KernelTexts, AreKeyedByContentCompilerAndChip) {
  Cubins a(nvrtc(), "sm_86", {.folder = {}}), b(nvrtc(), "sm_90a", {.folder = {}});
  KernelText text = add_number(1), more_shared = text, renamed = text;
  more_shared.shared = 1024, renamed.entry = "other";
  EXPECT_EQ(a.key(text), a.key(add_number(1)));
  EXPECT_EQ(a.key(text), a.key(more_shared));
  EXPECT_NE(a.key(text), a.key(renamed));
  EXPECT_NE(a.key(text), a.key(add_number(2)));
  EXPECT_NE(a.key(text), b.key(text));
}

TEST_F(KernelTexts, AreCompiledOnceThenCached) {
  const test::TempFolder folder;
  const std::vector<KernelText> texts = {add_number(1), add_number(2), add_number(1), add_number(3)};
  const CubinOptions options{.folder = folder.path(), .threads = 2};
  std::string first;
  {
    Cubins cubins(nvrtc(), "sm_80", options);
    cubins.ask(texts);
    std::vector<std::jthread> readers;  // several may want the same one
    for (int i = 0; i < 3; ++i) readers.emplace_back([&] { EXPECT_GT(cubins.get(add_number(1))->size(), 64u); });
    readers.clear();
    for (const KernelText& text : texts) EXPECT_GT(cubins.get(text)->size(), 64u);
    first = *cubins.get(add_number(2));
  }
  EXPECT_EQ(files_in(folder.path()).size(), 3u);
  Cubins again(nvrtc(), "sm_80", options);
  again.ask(texts);
  for (const KernelText& text : texts) again.get(text);
  EXPECT_EQ(*again.get(add_number(2)), first);
  EXPECT_EQ(again.statistics().compiled, 0);
  EXPECT_EQ(again.statistics().broken, 0);
}

TEST_F(KernelTexts, AreRecompiledIfTheCacheIsDamaged) {
  const test::TempFolder folder;
  const CubinOptions options{.folder = folder.path(), .threads = 1};
  const std::string good = *Cubins(nvrtc(), "sm_80", options).get(add_number(1));
  const fs::path file = files_in(folder.path()).at(0);
  const std::string whole = test::read_text(file.string());
  std::string flipped = whole;
  flipped[whole.size() / 2] ^= 1;
  for (const std::string& bad : {std::string(), whole.substr(0, 10), whole.substr(0, whole.size() - 1), flipped, whole + "x"}) {
    test::write_text(file.string(), bad);
    Cubins cubins(nvrtc(), "sm_80", options);
    EXPECT_EQ(*cubins.get(add_number(1)), good);
    EXPECT_EQ(cubins.statistics().broken, 1);
    EXPECT_EQ(cubins.statistics().compiled, 1);
  }
  EXPECT_EQ(test::read_text(file.string()), whole) << "mended";
}

// Machine code that others may have written is never loaded.
TEST_F(KernelTexts, IgnoreCacheFilesThatOthersCanWrite) {
  const test::TempFolder folder;
  const CubinOptions options{.folder = folder.path(), .threads = 1};
  Cubins(nvrtc(), "sm_80", options).get(add_number(1));
  const fs::path file = files_in(folder.path()).at(0);
  fs::permissions(file, fs::perms::others_write, fs::perm_options::add);
  {
    Cubins cubins(nvrtc(), "sm_80", options);
    cubins.get(add_number(1));
    EXPECT_EQ(cubins.statistics().compiled, 1);
    EXPECT_EQ(cubins.statistics().broken, 1);
  }
  EXPECT_EQ(fs::status(file).permissions() & fs::perms::others_write, fs::perms::none) << "replaced by the user's own";
  fs::permissions(folder.path(), fs::perms::all);
  Cubins cubins(nvrtc(), "sm_80", options);
  cubins.get(add_number(1)), cubins.get(add_number(2));
  EXPECT_EQ(cubins.statistics().compiled, 2);
  EXPECT_EQ(files_in(folder.path()).size(), 1u) << "nothing is written there";
}

TEST_F(KernelTexts, WorkWithoutACacheFolder) {
  Cubins cubins(nvrtc(), "sm_80", {.folder = "/proc/no/such/folder", .threads = 1});
  EXPECT_GT(cubins.get(add_number(1))->size(), 64u);
  EXPECT_EQ(cubins.statistics().compiled, 1);
}

TEST_F(KernelTexts, BoundTheCacheSize) {
  const test::TempFolder folder;
  int64_t size = 0;
  {
    Cubins cubins(nvrtc(), "sm_80", {.folder = folder.path(), .threads = 1});
    size = int64_t(cubins.get(add_number(1))->size()) + 100;
  }
  const fs::path old = files_in(folder.path()).at(0);
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(48));
  {
    Cubins cubins(nvrtc(), "sm_80", {.folder = folder.path(), .threads = 1, .max_bytes = 2 * size});
    cubins.get(add_number(2)), cubins.get(add_number(3));
  }
  EXPECT_EQ(files_in(folder.path()).size(), 2u);
  EXPECT_FALSE(fs::exists(old)) << "the one not used for longest goes";
}

TEST_F(KernelTexts, DropUnneededCompilations) {
  std::vector<KernelText> many;
  for (int i = 0; i < 200; ++i) many.push_back(add_number(i));
  Cubins cubins(nvrtc(), "sm_80", {.folder = {}, .threads = 1});
  cubins.ask(many);
  EXPECT_GT(cubins.get(many.back())->size(), 64u) << "whoever waits is served at once";
  EXPECT_LT(cubins.statistics().compiled, 150);
}

TEST_F(KernelTexts, StopWithTheirProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto leave_in_the_middle = [this] {
    std::vector<KernelText> many;
    for (int i = 0; i < 40; ++i) many.push_back(add_number(i));
    auto* cubins = new Cubins(nvrtc(), "sm_80", {.folder = {}, .threads = 8});  // never destroyed
    cubins->ask(many);
    cubins->get(many.back());
    std::exit(0);
  };
  EXPECT_EXIT(leave_in_the_middle(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ridge::cuda
