#include "train/tensorboard_view.h"

#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "support/event_file.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
using test::field;

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> out;
  if (fs::exists(folder))
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) out.push_back(entry.path());
  return out;
}

// tag -> step -> value, or the text
struct Seen {
  std::map<std::string, std::map<int64_t, float>> scalars;
  std::map<std::string, std::map<int64_t, std::string>> texts;
};

Seen read(const fs::path& path) {
  Seen seen;
  for (const std::string& event : test::records(path)) {
    const auto summary = field(event, 5);
    if (!summary) continue;
    const int64_t step = int64_t(field(event, 2)->value);
    const std::string value = field(summary->bytes, 1)->bytes, tag = field(value, 1)->bytes;
    if (const auto scalar = field(value, 2)) seen.scalars[tag][step] = std::bit_cast<float>(uint32_t(scalar->value));
    if (const auto tensor = field(value, 8)) seen.texts[tag][step] = field(tensor->bytes, 8)->bytes;
  }
  return seen;
}

TEST(TensorboardView, WritesEvents) {
  const test::TempFolder folder;
  const fs::path root = folder / "events";
  {
    TensorboardView view(root);
    view.on_notice("first");
    view.on_notice("second");
    EXPECT_TRUE(files_in(root).empty()) << "a run that never starts leaves no file";
    for (int64_t step = 1; step <= 3; ++step) {
      Progress p;
      p.step = step, p.loss = 4.0 / double(step), p.gradient_norm = 1, p.lr = 0.5, p.tokens_s = 100;
      view.on_step(p);
    }
    view.on_validation({.step = 3, .loss = 2, .best = true});
    view.on_sample(3, "one\ntwo");
  }
  const std::vector<fs::path> files = files_in(root);
  ASSERT_EQ(files.size(), 1u);
  const Seen seen = read(files[0]);
  EXPECT_EQ(seen.scalars.at("loss/train"), (std::map<int64_t, float>{{1, 4}, {2, 2}, {3, 4.0f / 3}}));
  EXPECT_EQ(seen.scalars.at("loss/validation").at(3), 2);
  EXPECT_EQ(seen.scalars.at("optimizer/lr").size(), 3u);
  EXPECT_FALSE(seen.scalars.contains("speed/roof")) << "it is not known";
  EXPECT_EQ(seen.texts.at("sample").at(3), "    one\n    two");
  EXPECT_EQ(seen.texts.at("notices").at(1), "    first\n    second");
}

TEST(TensorboardView, NeverShowsARoofAboveOne) {
  const test::TempFolder folder;
  {
    TensorboardView view(folder / "events");
    for (const auto& [step, roof] : std::map<int64_t, double>{{1, 0.5}, {2, 1.27}, {3, 1.3}, {4, 1.004}}) {
      Progress p;
      p.step = step, p.roof = roof, p.roof_others = 0.4;
      view.on_step(p);
    }
  }
  const Seen seen = read(files_in(folder / "events").at(0));
  EXPECT_EQ(seen.scalars.at("speed/roof"), (std::map<int64_t, float>{{1, 0.5f}, {4, 1.0f}}));
  EXPECT_EQ(seen.texts.at("speed/roof").size(), 1u) << "once";
  EXPECT_EQ(seen.texts.at("speed/roof").at(2), "    no value: above roof (measured while others used 40 %)");
}

TEST(TensorboardView, AResumedRunUsesANewFile) {
  const test::TempFolder folder;
  const fs::path root = folder / "events";
  for (const int64_t step : {1, 101}) {
    TensorboardView view(root);
    Progress p;
    p.step = step;
    view.on_step(p);
  }
  const std::vector<fs::path> files = files_in(root);
  ASSERT_EQ(files.size(), 2u);
  int restarts = 0;
  for (const fs::path& path : files)
    for (const std::string& event : test::records(path))
      if (field(event, 7)) {
        ++restarts;
        EXPECT_EQ(field(event, 2)->value, 101u);
      }
  EXPECT_EQ(restarts, 1);
}

}  // namespace
}  // namespace ridge
