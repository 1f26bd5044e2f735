#include "io/tensorboard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "support/event_file.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
using test::field;
using test::records;

TEST(Tensorboard, ChecksumsMatchTheStandard) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(Tensorboard, ScalarsAreReadBack) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  std::filesystem::path path;
  {
    TensorboardFile file(root / "a" / "b");
    path = file.path();
    file.scalar("loss/train", 1, 2.5);
    file.scalar("loss/train", 300, 1e-30);
    file.scalar("lr", int64_t(1) << 40, -0.0);
    file.scalar("lr", 5, NAN);
    file.scalar("lr", 6, std::numeric_limits<double>::infinity());
  }
  EXPECT_TRUE(path.filename().string().starts_with("events.out.tfevents."));
  const std::vector<std::string> all = records(path);
  ASSERT_EQ(all.size(), 4u) << "what is not finite is left out";
  EXPECT_EQ(field(all[0], 3)->bytes, "brain.Event:2");
  const struct {
    const char* tag;
    int64_t step;
    float value;
  } wanted[] = {{"loss/train", 1, 2.5f}, {"loss/train", 300, 1e-30f}, {"lr", int64_t(1) << 40, -0.0f}};
  for (size_t i = 0; i < 3; ++i) {
    const std::string& event = all[i + 1];
    const double when = std::bit_cast<double>(field(event, 1)->value);
    EXPECT_GT(when, 1.6e9);
    EXPECT_LT(when, 1e11);
    EXPECT_EQ(int64_t(field(event, 2)->value), wanted[i].step);
    const std::string value = field(field(event, 5)->bytes, 1)->bytes;
    EXPECT_EQ(field(value, 1)->bytes, wanted[i].tag);
    EXPECT_EQ(uint32_t(field(value, 2)->value), std::bit_cast<uint32_t>(wanted[i].value));
  }
}

TEST(Tensorboard, TextsAreTensorsOfOneString) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  TensorboardFile file(root);
  const std::string words = "once upon a time\n\"ä\"" + std::string(100000, 'x');
  file.text("sample", 7, words);
  file.flush();
  const std::vector<std::string> all = records(file.path());
  ASSERT_EQ(all.size(), 2u);
  const std::string value = field(field(all[1], 5)->bytes, 1)->bytes;
  EXPECT_EQ(field(value, 1)->bytes, "sample");
  const std::string tensor = field(value, 8)->bytes;
  EXPECT_EQ(field(tensor, 1)->value, 7u);
  EXPECT_EQ(field(field(field(tensor, 2)->bytes, 2)->bytes, 1)->value, 1u);
  EXPECT_EQ(field(tensor, 8)->bytes, words);
  EXPECT_EQ(field(field(field(value, 9)->bytes, 1)->bytes, 1)->bytes, "text");
}

TEST(Tensorboard, AResumedRunMarksItsStart) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  TensorboardFile first(root), second(root, 120);
  EXPECT_NE(first.path(), second.path());
  const std::vector<std::string> all = records(second.path());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(field(all[1], 2)->value, 120u);
  EXPECT_EQ(field(field(all[1], 7)->bytes, 1)->value, 1u);
}

// Nothing is lost in the meantime, as long as there is space in the buffer; after that events are refused.
TEST(Tensorboard, RetriesCreatingItsFolder) {
  const test::TempFolder folder;
  const fs::path root = folder.path();
  std::ofstream(root / "file") << "x";
  TensorboardFile file(root / "file" / "events");
  file.scalar("a", 1, 1);
  EXPECT_THROW(file.flush(), Error);
  EXPECT_EQ(file.path(), "");
  fs::remove(root / "file");
  file.scalar("a", 2, 1);
  file.flush();
  EXPECT_EQ(records(file.path()).size(), 3u);
  const fs::path full = root / "full";
  std::ofstream(full) << "x";
  TensorboardFile refused(full / "events");
  int64_t added = 0;
  EXPECT_THROW(for (; added < 100'000; ++added) refused.scalar("a", added, 1), Error);
  EXPECT_GT(added, 100);
}

}  // namespace
}  // namespace ridge
