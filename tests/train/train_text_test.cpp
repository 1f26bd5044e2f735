// Training messages fit the width, contain what they should, and drop the least important parts first.
#include "train/train_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace ridge {
namespace {

std::string without_colours(std::string text) {
  for (size_t at; (at = text.find("\033[")) != text.npos;) text.erase(at, text.find('m', at) + 1 - at);
  return text;
}

void expect_fits(const std::string& text, int width) {
  std::string line;
  for (std::istringstream lines(without_colours(text)); std::getline(lines, line);) EXPECT_LE(display_width(line), width) << line;
}

Progress some_progress() {
  Progress p;
  p.step = 1200, p.steps = 5000, p.loss = 1.23456, p.gradient_norm = 0.5217, p.lr = 9.3e-4, p.ms = 23.71, p.wall_ms = 23.74, p.tokens_s = 32390, p.roof = 0.63;
  p.eta_s = 83.4, p.elapsed_s = 30, p.resident_bytes = int64_t(405) << 20, p.planned_bytes = int64_t(412) << 20;
  return p;
}

std::vector<Decision> some_decisions() {
  return {{"device", "cpu", "default", "no GPU was found on this machine", "none"},
          {"threads", "2", "measured", "one on each core: 1 thread 1.00×, 2 threads 1.93×", "1 thread"},
          {"data", "/a/very/long/path/that/nobody/would/like/to/read/in/a/table/漢字.txt", "command line", ""},
          {"micro-batch", "1 x 12", "planned", ""}};
}

RunSummary some_summary() {
  RunSummary s;
  s.what = "GPT of 0.80 M parameters on builtin";
  Outcome& o = s.outcome;
  o.reason = "all 2000 steps done", o.steps = 2000, o.first_loss = 4.1744, o.final_train_loss = 0.8391;
  o.best_val_loss = 0.842, o.final_val_loss = 0.843, o.best_step = 1900;
  o.seconds = 112, o.tokens_s = 24630, o.compute_tokens_s = 26210, o.roof = 0.63, o.ms = 31.18, o.peak_bytes = int64_t(405) << 20;
  const double phases[kPhases] = {0.002, 100.4, 4.6, 1.1, 2.0};
  std::copy(std::begin(phases), std::end(phases), o.phase_seconds);
  s.nats_per_character = 0.842, s.possible = 0.811, s.cores = "CPU 97 % (P 98 %, E 95 %, balance 1.03×)", s.threads = 2;
  s.planned_bytes = int64_t(412) << 20, s.folder = "runs/gpt";
  s.files = {{"checkpoints/", "the newest two and the best"}, {"metrics.jsonl", "every step"}};
  s.next = {{"ridge sample runs/gpt --prompt \"Once\"", "text from this model"}, {"ridge train gpt preset=shakespeare-char", "a larger one"}};
  return s;
}

TEST(DecisionTable, FitsEveryWidthAndKeepsEveryReason) {
  for (int width : {40, 60, 80, 120, 200}) {
    const std::string table = decision_table(some_decisions(), {width, false});
    expect_fits(table, width);
    std::string joined;  // words in order, across line breaks
    std::istringstream words(table);
    for (std::string word; words >> word;) joined += word + " ";
    for (const char* needed : {"device", "no GPU was", "threads", "1.93×", "otherwise", "micro-batch", "command line"})
      EXPECT_TRUE(width < 60 || joined.find(needed) != std::string::npos) << needed << "\n" << table;
    EXPECT_EQ(without_colours(decision_table(some_decisions(), {width, true})), table);
  }
  EXPECT_EQ(decision_table({}, {80, false}), "setting  value  decided by  why\n");
}

TEST(LiveLine, ShowsEverythingIfThereIsRoom) {
  EXPECT_EQ(live_line(some_progress(), std::vector<double>{4, 3, 2, 1}, "tokens", 160),
            "step 1200/5000  loss 1.2346  norm 0.522  lr 9.30e-04  23.7 ms/step  32.4k tokens/s  63 % of roof  405 MiB of 412 MiB  ETA 1:23  █▆▃▁");
  EXPECT_EQ(live_line(some_progress(), std::vector<double>{4, 3, 2, 1}, "tokens", 60), "step 1200/5000  loss 1.2346  32.4k tokens/s  ETA 1:23");
  EXPECT_EQ(live_line(some_progress(), std::vector<double>{4, 3, 2, 1}, "tokens", 79),
            "step 1200/5000  loss 1.2346  23.7 ms/step  32.4k tokens/s  ETA 1:23  █▆▃▁");
}

// x86 produces NaNs with a sign, which has no meaning.
TEST(LiveLine, ShowsNoSignOfNaN) {
  Progress p = some_progress();
  p.loss = p.gradient_norm = -std::numeric_limits<double>::quiet_NaN();
  for (const std::string& line : {live_line(p, {}, "tokens", 160), plain_line(p, "tokens")}) {
    EXPECT_NE(line.find("norm nan"), std::string::npos) << line;
    EXPECT_EQ(line.find("-nan"), std::string::npos) << line;
  }
}

TEST(LiveLine, LeavesOutTheLeastImportantFirst) {
  const std::vector<double> losses(64, 2.0);
  Progress p = some_progress();
  for (double size : {1e-9, 1.0, 12345.0, 1e12}) {
    p.wall_ms = size, p.tokens_s = 1e6 * size, p.loss = size, p.gradient_norm = size;
    for (int width = 20; width < 170; ++width) {
      const std::string line = live_line(p, losses, "tokens", width);
      EXPECT_LE(display_width(line), width) << line;
      EXPECT_TRUE(width < 40 || line.find("loss ") != std::string::npos) << line;
    }
  }
}

TEST(LiveLine, HandlesUnknownValues) {
  Progress p;
  p.step = 1, p.steps = 10, p.loss = std::numeric_limits<double>::quiet_NaN(), p.eta_s = std::numeric_limits<double>::infinity();
  EXPECT_EQ(live_line(p, {}, "tokens", 100), "step  1/10  loss nan  norm 0  lr 0.00e+00  ETA ?");
  p.applied = false;
  EXPECT_NE(live_line(p, {}, "tokens", 100).find("skipped"), std::string::npos);
}

TEST(TrainText, KeepsTheDigitsOfASmallLoss) {
  Progress p = some_progress();
  p.loss = 4.3e-6;
  EXPECT_NE(live_line(p, {}, "sequences", 200).find("loss 4.30e-06  "), std::string::npos);
  EXPECT_TRUE(plain_line(p, "sequences").starts_with("iter 1200: loss 4.30e-06, time"));
  RunSummary s = some_summary();
  s.outcome.best_val_loss = 2.11e-5, s.outcome.final_train_loss = 4.3e-6, s.nats_per_character = 0;
  const std::string text = summary_text(s, std::vector<double>{1.5, 4.3e-6}, {140, false});
  for (const char* part : {"validation 2.11e-05 at step 1,900", "train 4.30e-06 ", "first 4.1744", "1.5000 █▁ 4.30e-06"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_EQ(score_text({}, 4.3e-6), "4.30e-06");
}

TEST(PlainLine, MatchesNanoGptsFormat) {
  const std::string line = plain_line(some_progress(), "tokens");
  EXPECT_TRUE(line.starts_with("iter 1200: loss 1.2346, time 23.71ms")) << line;
}

const std::vector<std::string> kAgentScalars = {"policy_loss", "value_loss", "entropy", "kl",       "clipped",    "score",
                                                "length",      "explained",  "playing", "learning", "environment"};

Progress agent_progress() {
  Progress p = some_progress();
  p.scalar_names = kAgentScalars, p.frames_s = 4 * p.tokens_s;
  const double values[] = {-0.01, 0.2345, 0.8456, 0.0107, 0.1216, -19.4074, 926.74, 0.4213, 0.15, 0.71, 0.06};
  std::copy(std::begin(values), std::end(values), p.scalars.begin());
  return p;
}

TEST(LiveLine, PutsTheScoreOfAnAgentFirst) {
  const Progress p = agent_progress();
  EXPECT_EQ(live_line(p, std::vector<double>{1, 2, 3, 4}, "steps", 300),
            "score -19.41  length 927  update 1200/5000  32.4k steps/s  130k frames/s  acting 9 % environment 6 % learning 71 % waiting 14 %  kl 0.0107  "
            "clipped 12 %  entropy 0.846  explained 0.42  learning takes the most time  policy loss -0.0100  value loss 0.2345  ETA 1:23  ▁▃▆█");
  EXPECT_EQ(live_line(p, {}, "steps", 60), "score -19.41  update 1200/5000  32.4k steps/s  ETA 1:23");
  for (int width = 20; width < 310; ++width) {
    const std::string line = live_line(p, std::vector<double>(64, 2.0), "steps", width);
    EXPECT_LE(display_width(line), width);
    EXPECT_TRUE(line.starts_with("score -19.41")) << line;
  }
}

TEST(PlainLine, PutsTheScoreOfAnAgentFirst) {
  Progress p = agent_progress();
  EXPECT_EQ(
      plain_line(p, "steps"),
      "update 1200: score -19.41, length 927, 32.4k steps/s, 130k frames/s, acting 9 %, environment 6 %, learning 71 %, waiting 14 %, "
      "learning takes the most time, kl 0.0107, clipped 12 %, entropy 0.846, explained 0.42, policy loss -0.0100, value loss 0.2345, lr 0.00093, ETA 1:23");
  p.scalars[5] = p.scalars[6] = NAN, p.frames_s = p.tokens_s;  // no episode has ended; a frame per decision
  EXPECT_TRUE(plain_line(p, "steps").starts_with("update 1200: score none, length none, 32.4k steps/s, acting")) << plain_line(p, "steps");
}

TEST(PlainLine, NamesWhatTakesMostOfAnAgentsTime) {
  Progress p = agent_progress();
  double &playing = p.scalars[8], &learning = p.scalars[9], &environment = p.scalars[10];
  auto says = [&](const char* text) { return plain_line(p, "steps").find(text) != std::string::npos; };
  environment = NAN, playing = 0.6, learning = 0.3;
  EXPECT_TRUE(says("playing 60 %, learning 30 %, waiting 10 %, playing takes the most time")) << "the environment's part is not known";
  environment = 0.5;
  EXPECT_TRUE(says("acting 10 %, environment 50 %, learning 30 %, waiting 10 %, the environment takes the most time"));
  environment = 0.1;
  EXPECT_TRUE(says("acting 50 %, environment 10 %") && says("acting takes the most time"));
  playing = 0.2, learning = 0.2;
  EXPECT_TRUE(says("waiting takes the most time"));
}

TEST(LiveLine, ShowsAnAgentsCoresAndItsTimeToTheTarget) {
  const Progress p = some_progress();
  const LiveNotes notes{"CPU 97 % (P 98 %, E 95 %, balance 1.03×)", "target in 0:12"};
  for (const std::string& line : {live_line(p, {}, "steps", 200, notes), plain_line(p, "steps", notes)}) {
    EXPECT_NE(line.find(notes.cores), std::string::npos) << line;
    EXPECT_LT(line.find(notes.target), line.find("ETA")) << line;
  }
  EXPECT_EQ(live_line(p, {}, "steps", 70, notes).find("CPU"), std::string::npos) << "what is less important goes first";
  EXPECT_NE(live_line(p, {}, "steps", 80, notes).find("target in 0:12"), std::string::npos);
}

// A time is named only if the scores rise clearly and the line through them need not be continued for long.
TEST(ScoreTrend, NamesATimeOnlyIfTheCurveSupportsIt) {
  ScoreTrend rising, noisy, falling, slow;
  for (int i = 0; i < 30; ++i) {
    const double noise = double(i * 7 % 5) - 2;
    rising.add(i, 2 * i + 0.1 * noise), noisy.add(i, 10 * noise), falling.add(i, -i), slow.add(i, 0.01 * i);
    rising.add(i, 2 * i + 0.1 * noise), rising.add(i, NAN);
    if (i < 7) {
      EXPECT_FALSE(rising.until(100, i)) << "too few scores";
    }
  }
  ASSERT_TRUE(rising.until(70, 29));
  EXPECT_NEAR(*rising.until(70, 29), 6, 0.2);
  EXPECT_EQ(*rising.until(50, 29), 0) << "it is above the target already";
  EXPECT_FALSE(rising.until(1000, 29)) << "far beyond what was seen";
  EXPECT_FALSE(noisy.until(30, 29));
  EXPECT_FALSE(falling.until(30, 29));
  EXPECT_FALSE(slow.until(30, 29));
  ScoreTrend lengthy;
  for (int i = 0; i < 100'000; ++i) lengthy.add(i, i);
  EXPECT_NEAR(*lengthy.until(110'000, 99'999), 10'001, 2) << "of a long run, some scores are enough";
}

TEST(Summary, SaysWhatAnAgentsTimeWasSpentOn) {
  RunSummary s = some_summary();
  s.unit = "steps", s.outcome.score = {"score", "", true}, s.outcome.best_score = 15.2, s.outcome.final_score = 14, s.outcome.best_step = 512;
  s.outcome.phase_seconds[size_t(Phase::data)] = 4, s.data_parts = {{"acting", 2.5}, {"environment", 1.4}};
  const std::string text = summary_text(s, std::vector<double>{-21, -3, 15}, {100, false});
  for (const char* part : {"updates in", "acting", "environment", "other data", "best evaluation 15.20 at update 512, last 14.00", "-21.00 ▁", "an update"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  for (const char* part : {"data wait", "loss", "a step"}) EXPECT_EQ(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_EQ(summary_json(s).at("data_seconds").at("acting"), 2.5);
}

TEST(LossCurve, IsBoundedAndKeepsTheMean) {
  LossCurve curve;
  double sum = 0;
  for (int64_t n = 1; n <= 1 << 17; ++n) {
    curve.add(double(n));
    sum += double(n);
    ASSERT_LE(curve.points().size(), 64u);
    if ((n & (n - 1)) == 0 && n >= 64) {  // at powers of two the points represent all losses
      double mean = 0;
      for (double p : curve.points()) mean += p / double(curve.points().size());
      EXPECT_NEAR(mean, sum / double(n), 1e-9 * sum / double(n) + (n > 64 ? double(n) / 64 : 0)) << n;
    }
  }
  EXPECT_TRUE(std::is_sorted(curve.points().begin(), curve.points().end()));
  const size_t size = curve.points().size();
  curve.add(NAN), curve.add(INFINITY);
  EXPECT_EQ(curve.points().size(), size);
}

TEST(SampleFrame, KeepsAnyTextWithinTheWidth) {
  std::string bytes;
  for (int c = 0; c < 256; ++c) bytes += char(c);
  const std::string wide = "漢字かな交じり文は二つの列を取るので幅の計算を誤りやすい。漢字かな交じり文は二つの列を取るので幅の計算を誤りやすい。";
  for (const std::string& text : {std::string(), std::string("\n\n"), std::string("Once upon a time.\n"), std::string(500, 'x'), bytes, wide,
                                  std::string("a b  c\n\n  indented"), std::string("word ") + std::string(300, 'y')})
    for (int width : {40, 60, 80, 120}) {
      const std::string frame = sample_frame(250, text, {width, false});
      expect_fits(frame, width);
      EXPECT_EQ(frame.find('\033'), std::string::npos);
      EXPECT_NE(frame.find("sample at step 250"), std::string::npos);
      EXPECT_LE(std::count(frame.begin(), frame.end(), '\n'), 19);
    }
  const std::string frame = sample_frame(7, "one\n\ntwo three", {40, false});
  EXPECT_NE(frame.find("│ one\n│ \n│ two three\n"), std::string::npos) << frame;
}

TEST(Summary, ComparesWithTheBestPossibleLoss) {
  const std::string text = summary_text(some_summary(), std::vector<double>{4, 2, 1, 0.84}, {100, false});
  for (const char* needed :
       {"loss 0.842 nats/char, possible 0.811: 96 %", "1.215 bits/char", "2,000 steps in 1 min 52 s: all 2000 steps done", "validation 0.8420 at step 1,900",
        "24.6k tokens/s in all; compute alone 26.2k tokens/s", "63 % of the roof", "step               1 min 40 s  89.6 %",
        "planned 412 MiB, peak 405 MiB (98 %)", "balance 1.03×", "data wait", "runs/gpt", "ridge sample runs/gpt"})
    EXPECT_NE(text.find(needed), std::string::npos) << needed << "\n" << text;
}

// If the device reports how long updates take, a step's time is broken down.
TEST(Summary, SplitsStepTimesIfKnown) {
  RunSummary s = some_summary();
  s.outcome.update_seconds = 10.4;
  const std::string text = summary_text(s, {}, {100, false});
  for (const char* needed : {"forward+backward   1 min 30 s  80.4 %", "optimizer              10.4 s   9.3 %", "validation", "checkpoints", "data wait"})
    EXPECT_NE(text.find(needed), std::string::npos) << needed << "\n" << text;
  EXPECT_EQ(text.find("step               "), std::string::npos) << text;
  EXPECT_EQ(summary_json(s)["update_seconds"], 10.4);
  expect_fits(text, 100);
}

TEST(Summary, FitsEveryWidth) {
  for (int width : {60, 80, 120}) {
    const std::string text = summary_text(some_summary(), std::vector<double>(64, 2.0), {width, false});
    expect_fits(text, width);
    EXPECT_EQ(without_colours(summary_text(some_summary(), std::vector<double>(64, 2.0), {width, true})), text);
  }
  RunSummary wordy = some_summary();
  wordy.results = {
      "test MSE 0.94 on 2,000 sequences; best possible 0.0931, reached within 1.234 x (a Kalman filter that knows the oscillator, on the same data)",
      "truth        low     high"};
  for (int width : {60, 80}) expect_fits(summary_text(wordy, {}, {width, false}), width);
  EXPECT_NE(summary_text(wordy, {}, {80, false}).find("truth        low     high\n"), std::string::npos) << "rows of a table keep their blanks";
  // Nothing is known except that it ended.
  expect_fits(summary_text({}, {}, {60, false}), 60);
}

TEST(Summary, ReportsTheCostOfReporting) {
  RunSummary s;
  s.outcome.seconds = 100, s.outcome.phase_seconds[int(Phase::step)] = 99.95, s.outcome.reporting_seconds = 0.05;
  EXPECT_NE(summary_text(s, {}, {80, false}).find("reporting               50 ms  0.05 %"), std::string::npos) << summary_text(s, {}, {80, false});
  for (int width : {60, 70, 80}) expect_fits(summary_text(s, {}, {width, false}), width);  // the bar covers nearly all the time
}

// Work before a resume counts in the run's steps and seconds, but not in this part's shares of time.
TEST(Summary, UsesTheTimeOfTheResumedPart) {
  RunSummary s;
  Outcome& o = s.outcome;
  o.resumed = true, o.steps = 400, o.own_steps = 100, o.seconds = 43, o.earlier_seconds = 33, o.phase_seconds[int(Phase::step)] = 9.999, o.ms = 99;
  const std::string text = summary_text(s, {}, {100, false});
  for (const char* needed :
       {"400 steps in 43.0 s", "this part: 100 steps in 10.0 s", "100.0 %", "99 ms a step (median of the last 31)", "mean of the last 50 steps"})
    EXPECT_NE(text.find(needed), std::string::npos) << needed << "\n" << text;
  EXPECT_EQ(text.find("other"), std::string::npos) << text;
}

TEST(Summary, HasTheKeysThatProgramsRead) {
  const nlohmann::ordered_json j = summary_json(some_summary());
  for (const char* key : {"best_val_loss", "final_train_loss", "steps", "seconds", "tokens_s", "planned_bytes", "peak_bytes", "device", "threads", "precision"})
    EXPECT_TRUE(j.contains(key)) << key;
  EXPECT_EQ(j["best_val_loss"], 0.842);
  EXPECT_FALSE(j.contains("kernel_share")) << "of a GPU's run";
  RunSummary on_cpu = some_summary();
  on_cpu.kernels = 0.912;
  EXPECT_EQ(summary_json(on_cpu)["kernel_share"], 0.912);
  EXPECT_NE(summary_text(on_cpu, {}, {100, false}).find("91 % of the threads' time in kernels"), std::string::npos);
  EXPECT_TRUE(summary_json({})["best_val_loss"].is_null());
}

TEST(Cores, AreListedOneByOne) {
  Utilisation use;
  use.counted = true, use.busy = 0.97, use.process = 1.94, use.cpus = {1, 0.5}, use.groups = {0.97}, use.names = {"cores"};
  EXPECT_EQ(cores_text(use), "CPU 97 %; █▄ from 50 to 100 %; this process kept 1.9 of 2 busy");
  use.cpus.assign(200, 0.25);
  EXPECT_EQ(cores_text(use), "CPU 97 %; from 25 to 25 %; this process kept 1.9 of 200 busy");
  EXPECT_EQ(cores_text({}), "CPU 0 % by this process");
}

TEST(Figures, AreShort) {
  EXPECT_EQ(clock_text(7.4), "0:07");
  EXPECT_EQ(clock_text(3599.6), "1:00:00");
  EXPECT_EQ(clock_text(3 * 86400 + 4 * 3600), "3 d 04 h");
  EXPECT_EQ(clock_text(NAN), "?");
  EXPECT_EQ(clock_text(2.8e9), "89 years");
  EXPECT_EQ(duration_text(86399.7), "1 d 00 h");
  EXPECT_EQ(duration_text(4.2e8), "13 years");
  EXPECT_EQ(duration_text(3e13), "951k years");
  EXPECT_EQ(duration_text(0.0123), "12 ms");
  EXPECT_EQ(duration_text(0), "0 ms");
  EXPECT_EQ(duration_text(117e-6), "117 µs");
  EXPECT_EQ(duration_text(0.00427), "4.27 ms");
  EXPECT_EQ(duration_text(59.96), "1 min 00 s");
  EXPECT_EQ(duration_text(7500), "2 h 05 min");
  EXPECT_EQ(count_text(812), "812");
  EXPECT_EQ(count_text(999.6), "1.00k");
  EXPECT_EQ(count_text(1234567), "1.23M");
}

// A utilisation above 100 % is not shown: the ceilings were measured too low, and the text says so.
TEST(TrainText, ExplainsValuesAboveTheRoof) {
  EXPECT_EQ(roof_text(0.634, 0), "63 % of roof");
  EXPECT_EQ(roof_text(1.004, 0.5, "the roof"), "100 % of the roof");
  EXPECT_EQ(roof_text(1.27, 0.4), "above roof (measured while others used 40 %)");
  EXPECT_EQ(roof_text(1.27, 0.05, "the roof"), "above the roof (measured while slower)");
  Progress p = some_progress();
  p.roof = 1.27, p.roof_others = 0.4;
  RunSummary s = some_summary();
  s.outcome.roof = 1.27, s.outcome.roof_others = 0.4;
  for (const std::string& text : {live_line(p, {}, "tokens", 200), plain_line(p, "tokens"), summary_text(s, {}, {200, false})}) {
    EXPECT_EQ(text.find("127"), std::string::npos) << text;
    EXPECT_NE(text.find("measured while others used 40 %"), std::string::npos) << text;
  }
  EXPECT_TRUE(summary_json(s).at("roof").is_null());
  EXPECT_EQ(summary_json(s).at("above_roof"), "measured while others used 40 %");
  EXPECT_EQ(summary_json(s).at("roof_others"), 0.4);
  s.outcome.roof = 1.004;
  EXPECT_EQ(summary_json(s).at("roof"), 1.0);
  EXPECT_FALSE(summary_json(s).contains("above_roof"));
}

}  // namespace
}  // namespace ridge
