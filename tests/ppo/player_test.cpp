// Single games of agents: the same games as in an evaluation, with pictures that can be recorded.
#include <gif_lib.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ridge/trainer.h"
#include "step/compiled_step.h"
#include "tasks/ppo/gif.h"
#include "tasks/ppo/player.h"
#include "tasks/ppo/task.h"

namespace ridge {
namespace {

TrainedAgent new_agent(const std::string& environment, const EnvOptions& options = {}, const std::string& memory = "none") {
  TrainedAgent t;
  t.instances = std::make_unique<Instances>(make_environment(environment), options);
  PolicyArgs p;
  p.hidden = 8, p.memory = memory, p.memory_units = 5;
  p.observation = t.instances->observation_shape(), p.dtype = t.instances->spec().dtype, p.actions = t.instances->spec().actions;
  seed(7);
  t.policy = std::make_shared<Policy>(p);
  t.args.seed = 11, t.args.instances = t.args.horizon = t.args.minibatch = t.args.epochs = 1;
  t.observations = RunningMoments(size_t(t.instances->spec().observation.numel()));
  return t;
}

TEST(AgentPlayer, PlaysTheGamesOfAnEvaluation) {
  for (const char* memory : {"none", "lstm"})
    for (const bool sampled : {true, false}) {
      SCOPED_TRACE(testing::Message() << memory << " " << sampled);
      const TrainedAgent agent = new_agent("cartpole", {.sticky = 0.2, .noops = 3}, memory);
      const auto held = agent.hold("cpu");
      Collector collector(held->step, agent.policy, agent.tensors(), *agent.instances, agent.args);
      collector.begin();
      std::vector<float> expected = collector.play(20, sampled)->lengths, lengths;
      PpoArgs same = agent.args;
      same.seed = collector.evaluation_seed();
      AgentPlayer player(held->step, agent.policy, agent.tensors(), *agent.instances, same, {.sampled = sampled, .decisions = 7});
      for (int64_t i = 0; i < 20; ++i) {
        player.begin(kFirstEvaluated + i);
        for (float n = 0; n < 1000;) {
          const std::vector<PlayedDecision> played = player.play();
          const auto end = std::ranges::find_if(played, [](const PlayedDecision& d) { return d.ended; });
          n += float(end - played.begin());
          if (end == played.end()) continue;
          EXPECT_EQ(end->episode_return, n + 1);
          lengths.push_back(n + 1);
          break;
        }
      }
      std::ranges::sort(expected), std::ranges::sort(lengths);
      EXPECT_EQ(lengths, expected);
    }
}

TEST(AgentPlayer, LetsAPersonContinueAGame) {
  const TrainedAgent agent = new_agent("pong");
  const auto held = agent.hold("cpu");
  const Instances two(make_pong({.two_players = true}), agent.instances->options());
  AgentPlayer alone(held->step, agent.policy, agent.tensors(), *agent.instances, agent.args, {});
  AgentPlayer against(held->step, agent.policy, agent.tensors(), two, agent.args, {.two_players = true});
  auto paddle = [](const std::vector<uint8_t>& picture) {  // the rows of the left paddle, which is lighter than the background
    double sum = 0, count = 0;
    for (size_t y = 0; y < 160; ++y)
      if (picture[3 * (160 * y + 18)] > 150) sum += double(y), ++count;
    return sum / count;
  };
  alone.begin(1);
  for (int i = 0; i < 30; ++i) alone.play();
  ASSERT_TRUE(against.can_continue(alone));
  against.continue_from(alone);
  EXPECT_EQ(against.present_picture(), alone.present_picture());
  for (int i = 0; i < 20; ++i) against.play(1);
  const double high = paddle(against.present_picture());
  EXPECT_LT(high, 15) << "held up";
  for (int i = 0; i < 40; ++i) against.play(2);
  EXPECT_GT(paddle(against.present_picture()), 145) << "held down";
}

// Reads back what a decoder shows, with the library that wrote it.
TEST(GifWriter, KeepsPicturesAndTimes) {
  constexpr int kWidth = 13, kHeight = 9, kFrames = 40;
  std::mt19937 random(2);
  std::vector<std::vector<uint8_t>> frames;
  std::vector<uint8_t> frame(size_t(3 * kWidth * kHeight), 16), all;
  for (int i = 0; i < kFrames; ++i) {
    for (uint32_t n = random() % 5; n-- > 0;) {  // few colours, in steps that they keep
      const size_t at = 3 * (random() % (kWidth * kHeight));
      for (size_t k = 0; k < 3; ++k) frame[at + k] = uint8_t(8 * (random() % 4 + 4 * k));
    }
    frames.push_back(frame), all.insert(all.end(), frame.begin(), frame.end());
  }
  GifWriter writer(kWidth, kHeight, all);
  for (const auto& f : frames) writer.add(f, 7);
  const std::string bytes = writer.finish();
  struct Source {
    const std::string& bytes;
    size_t at = 0;
  } source{bytes};
  int error = 0;
  GifFileType* gif = DGifOpen(
      &source,
      [](GifFileType* file, GifByteType* to, int count) {
        auto& s = *static_cast<Source*>(file->UserData);
        const size_t n = std::min(size_t(count), s.bytes.size() - s.at);
        std::copy_n(s.bytes.begin() + long(s.at), n, reinterpret_cast<char*>(to));
        s.at += n;
        return int(n);
      },
      &error);
  ASSERT_NE(gif, nullptr) << error;
  ASSERT_EQ(DGifSlurp(gif), GIF_OK);
  EXPECT_EQ(gif->SWidth, kWidth);
  EXPECT_EQ(gif->SHeight, kHeight);
  std::vector<uint8_t> shown(frame.size());
  int64_t time = 0;
  for (int i = 0; i < gif->ImageCount; ++i) {
    const SavedImage& image = gif->SavedImages[i];
    GraphicsControlBlock control = {};
    ASSERT_EQ(DGifSavedExtensionToGCB(gif, i, &control), GIF_OK);
    const GifImageDesc& d = image.ImageDesc;
    for (int y = 0; y < d.Height; ++y)
      for (int x = 0; x < d.Width; ++x) {
        const int index = image.RasterBits[y * d.Width + x];
        if (index == control.TransparentColor) continue;
        const GifColorType& c = gif->SColorMap->Colors[index];
        uint8_t* to = &shown[size_t(3 * ((d.Top + y) * kWidth + d.Left + x))];
        to[0] = c.Red, to[1] = c.Green, to[2] = c.Blue;
      }
    EXPECT_EQ(control.DelayTime % 7, 0);
    for (int64_t k = time / 7; k < (time + control.DelayTime) / 7; ++k) EXPECT_EQ(shown, frames[size_t(k)]) << k;
    time += control.DelayTime;
  }
  EXPECT_EQ(time, 7 * kFrames);
  EXPECT_LT(gif->ImageCount, kFrames) << "frames without a change are not written";
  DGifCloseFile(gif, &error);
}

TEST(GifWriter, RecordsAGame) {
  const TrainedAgent agent = new_agent("pong");
  const auto held = agent.hold("cpu");
  AgentPlayer player(held->step, agent.policy, agent.tensors(), *agent.instances, agent.args, {.decisions = 50});
  const Recording r = record_episodes(player, *agent.instances, 3, 1, 120);
  EXPECT_EQ(r.decisions, 120);
  EXPECT_TRUE(r.returns.empty());
  EXPECT_EQ(r.gif.substr(0, 6), "GIF89a");
  EXPECT_LT(r.gif.size(), 120u * 500);
  EXPECT_EQ(record_episodes(player, *agent.instances, 3, 1, 120).gif, r.gif) << "the same game";
  EXPECT_NE(record_episodes(player, *agent.instances, 4, 1, 120).gif, r.gif) << "another game";
}

}  // namespace
}  // namespace ridge
