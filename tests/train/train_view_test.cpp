// What remains on a screen, in a pipe and for programs, whatever the order of events.
#include "train/train_view.h"
#include "support/patterns.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ridge {
namespace {

// The terminal features that the view uses: carriage return, clear to end of line, line feed.
struct FakeTerminal {
  std::vector<std::string> lines = {""};
  size_t column = 0, writes = 0;

  void write(std::string_view text) {
    ++writes;
    while (!text.empty()) {
      if (text.substr(0, 3) == "\033[K") {
        lines.back().resize(column);
        text.remove_prefix(3);
        continue;
      }
      const char c = text[0];
      text.remove_prefix(1);
      if (c == '\r') {
        column = 0;
      } else if (c == '\n') {
        lines.emplace_back(), column = 0;
      } else {
        if (lines.back().size() <= column) lines.back().resize(column + 1);
        lines.back()[column++] = c;
      }
    }
  }
  Screen screen(bool live) {
    return {[this](std::string_view text) { write(text); }, [] { return 80; }, live, false};
  }
};

Progress at_step(int64_t step, int64_t steps, double ms) {
  Progress p;
  p.step = step, p.steps = steps, p.loss = 3 - double(step) / double(steps), p.ms = ms, p.tokens_s = 1e6 / ms, p.elapsed_s = double(step) * ms / 1e3;
  return p;
}

TEST(TerminalView, KeepsTheDigitsOfASmallLoss) {
  FakeTerminal t;
  TerminalView view(t.screen(false));
  Progress p = at_step(1, 10, 1);
  p.loss = 4.3e-6;
  view.on_step(p), view.on_validation({1, 2.1e-6, true, 0.1});
  RunSummary summary;
  summary.outcome.best_val_loss = 2.1e-6;
  view.end(summary);
  for (const char* line : {"step 1: train loss 4.30e-06, val loss 2.10e-06, the best so far", "Best validation loss: 2.10e-06"})
    EXPECT_NE(std::find(t.lines.begin(), t.lines.end(), line), t.lines.end()) << line;
}

TEST(TerminalView, RedrawsAtMostTwiceASecond) {
  FakeTerminal t;
  TerminalView view(t.screen(true));
  for (int64_t i = 1; i <= 20000; ++i) view.on_step(at_step(i, 100000, 0.5));  // ten seconds
  EXPECT_LE(t.writes, 21u);
  EXPECT_GE(t.writes, 19u);
  EXPECT_EQ(t.lines.size(), 1u);
}

TEST(TerminalView, WrapsLongNoticesOnATerminalOnly) {
  std::string notice = "notice";
  while (notice.size() < 300) notice += " of many words";
  FakeTerminal t, log;
  TerminalView(t.screen(true)).on_notice(notice), TerminalView(log.screen(false)).on_notice(notice);
  EXPECT_EQ(t.lines.size(), 5u);
  for (const std::string& line : t.lines) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_EQ(log.lines.front(), notice);
}

TEST(TerminalView, PrintsEventsAboveTheLiveLine) {
  FakeTerminal t;
  TerminalView view(t.screen(true));
  view.begin(std::vector<Decision>{{"threads", "2", "measured", "faster"}});
  for (int64_t i = 1; i <= 1000; ++i) {
    view.on_step(at_step(i, 1000, 10));
    if (i == 250) view.on_validation({250, 1.5, true, 0.1});
    if (i == 300) view.on_notice("step 300 skipped: \033[31mloss nan");
    if (i == 500) view.on_sample(500, "Once upon\na time"), view.on_checkpoint(500, "runs/a/checkpoints", 0.02);
  }
  RunSummary summary;
  summary.outcome.reason = "all 1000 steps done", summary.outcome.steps = 1000;
  view.end(summary);
  std::vector<std::string> found;
  int live = 0;
  const test::Pattern live_line("^step +[0-9]+/1000");
  for (const std::string& line : t.lines) {
    EXPECT_EQ(line.find('\033'), std::string::npos);
    live += live_line.in(line);
    for (const char* event : {"threads", "step 250: train loss 2.8745, val loss 1.5000, the best so far", "step 300 skipped", "╭─ sample at step 500",
                              "│ Once upon", "│ a time", "step 500: checkpoint", "all 1000 steps done"})
      if (line.find(event) != std::string::npos) found.push_back(event);
  }
  EXPECT_EQ(live, 1);  // only the last one stays
  EXPECT_EQ(found.size(), 8u) << ::testing::PrintToString(t.lines);
}

TEST(TerminalView, WritesPlainLinesIntoAPipe) {
  const test::Pattern plain_line("^iter [0-9]+: loss [0-9.]+, time [0-9.]+ms");
  for (int64_t steps : {1, 7, 200, 5000, 123457}) {
    FakeTerminal t;
    TerminalView view(t.screen(false));
    for (int64_t i = 1; i <= steps; ++i) view.on_step(at_step(i, steps, 0.05));
    EXPECT_LE(t.writes, 103u) << steps;
    EXPECT_GE(t.writes, std::min<size_t>(size_t(steps), 40)) << steps;
    for (const std::string& line : t.lines) EXPECT_TRUE(line.empty() || plain_line.in(line)) << line;
  }
  // Slow steps are reported at least every ten seconds.
  FakeTerminal t;
  TerminalView view(t.screen(false));
  for (int64_t i = 1; i <= 30; ++i) view.on_step(at_step(i, 1000000, 11000));
  EXPECT_EQ(t.writes, 30u);
}

TEST(TerminalView, CallsAnAgentsStepsUpdates) {
  const std::vector<std::string> names = {"kl", "score"}, validated = {"score", "length"};
  for (const bool live : {false, true}) {
    FakeTerminal t;
    TerminalView view(t.screen(live), "steps");
    for (int64_t i = 1; i <= 3; ++i) {
      Progress p = at_step(i, 3, 1000);
      p.scalar_names = names, p.scalars[1] = double(i);
      view.on_step(p);
    }
    ValidationResult r{3, std::numeric_limits<double>::quiet_NaN(), true, 0.1};
    r.scalar_names = validated, r.scalars[0] = 15.2, r.scalars[1] = 1896, r.score = {"score", "", true}, r.value = 15.2;
    view.on_validation(r), view.on_checkpoint(3, "runs/a/checkpoints", 0.02);
    std::string all;
    for (const std::string& line : t.lines) all += line + "\n";
    for (const char* line : {"update 3: evaluation: score 15.20, length 1896, the best so far\n", "update 3: checkpoint (20 ms)\n", "score 3.00"})
      EXPECT_NE(all.find(line), std::string::npos) << line << all;
    EXPECT_EQ(all.find("step "), std::string::npos) << all;
    EXPECT_EQ(all.find("loss"), std::string::npos) << all;
  }
}

TEST(TerminalView, EndsAPipeInNanoGptsFormat) {
  FakeTerminal t;
  TerminalView view(t.screen(false));
  RunSummary s;
  s.outcome.best_val_loss = 1.4697, s.outcome.seconds = 90;
  view.end(s);
  std::string all;
  for (const std::string& line : t.lines) all += line + "\n";
  EXPECT_NE(all.find("\nBest validation loss: 1.4697\nTotal train time: 1.50 mins\n"), std::string::npos) << all;
}

TEST(JsonView, WritesOneObjectPerLine) {
  std::vector<nlohmann::json> events;
  JsonView view([&](std::string_view text) {
    ASSERT_EQ(text.back(), '\n');
    ASSERT_EQ(text.find('\n'), text.size() - 1);
    events.push_back(nlohmann::json::parse(text));
  });
  view.begin(std::vector<Decision>{{"threads", "2", "measured", "faster"}});
  Progress p = at_step(1, 10, 10);
  p.gradient_norm = std::numeric_limits<double>::infinity();
  view.on_step(p);
  view.on_validation({1, 1.5, true, 0.1});
  view.on_sample(1, "no \xff UTF-8\n");
  view.on_checkpoint(1, "runs/a", 0.1);
  view.on_notice("a notice");
  view.end({});
  std::vector<std::string> kinds;
  for (const auto& e : events) kinds.push_back(e.at("event"));
  EXPECT_EQ(kinds, (std::vector<std::string>{"decisions", "step", "validation", "sample", "checkpoint", "notice", "summary"}));
  EXPECT_TRUE(events[1]["gradient_norm"].is_null());
}

}  // namespace
}  // namespace ridge
