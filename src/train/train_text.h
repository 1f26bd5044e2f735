// Formats a training's output: pure functions from numbers to text that fits a width in columns.
#pragma once
#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/decision.h"
#include "machine/utilisation.h"
#include "train/experiment.h"
#include "train/training_loop.h"

namespace ridge {

struct TerminalStyle {
  int width = 80;
  bool colour = false;
};

// The losses (an agent's scores) of a run of any length, condensed to a few means of neighbours. Allocates nothing.
class LossCurve {
 public:
  void add(double loss);  // ignores non-finite losses
  std::span<const double> points() const { return {points_.data(), used_}; }

 private:
  std::array<double, 64> points_ = {};
  size_t used_ = 0;
  int64_t each_ = 1, gathered_ = 0;  // losses per point, and in the next point so far
  double sum_ = 0;
};

// Everything reported at the end of a run.
struct RunSummary {
  std::string what;  // "GPT of 0.80 M parameters on builtin"
  Outcome outcome;
  std::string unit = "tokens";                             // what tokens_s counts
  double nats_per_character = 0;                           // of the best validation loss; 0: the data is not text
  std::optional<double> possible;                          // lower bound for any model, in nats per character
  std::vector<std::pair<std::string, double>> data_parts;  // what the time for data was spent on, in seconds; empty: it was waited for
  double sampled_tokens_s = 0;                             // while sampling; 0: no samples were drawn
  std::vector<std::string> results;                        // lines about the trained model, such as errors on test data
  std::vector<std::pair<std::string, double>> test;        // the same as numbers, for summary.json
  std::optional<TargetResult> target;                      // of a run that was to reach a score
  std::string device = "cpu", precision = "fp32", cores;   // cores: cores_text()
  std::optional<double> kernels;                           // share of the CPU threads' time in kernels; empty: a GPU computed
  int threads = 0;
  int64_t planned_bytes = 0;
  std::filesystem::path folder;                            // empty: nothing was written
  std::vector<std::pair<std::string, std::string>> files;  // in the folder: name and description
  std::vector<std::pair<std::string, std::string>> next;   // commands to try next, and what they do
};

// A step of the training loop is called an update where `unit` counts the steps of an environment: in runs of agents.
bool is_agent_unit(std::string_view unit);
std::string_view step_word(std::string_view unit);  // "step", "update"

std::string clock_text(double seconds);     // "0:07", "12:05", "1:02:03", "3 d 04 h"; "?" if unknown
std::string duration_text(double seconds);  // "250 µs", "1.25 ms", "12 ms", "8.4 s", "1 min 52 s", "2 h 05 min"
std::string count_text(double count);       // "812", "24.6k", "1.23M"

std::string score_text(const Score& score, double value);  // "0.9312", "93.1200 %"

std::string decision_table(std::span<const Decision> decisions, const TerminalStyle& style);

// The share of the roof: "63 % of roof". A share above 100 % means that the ceilings were measured too low; the text then says why instead.
// `others`: the share of the machine used by other programs during the measurement.
std::string roof_text(double roof, double others, std::string_view word = "roof");
// The same for files and JSON: `roof`, or null if it would be above 1, with the reason as `above_roof`.
bool is_above_roof(double roof);
std::string above_roof_text(double others);  // "measured while others used 40 %"

// An agent's score over time: when will it reach a target?
class ScoreTrend {
 public:
  void add(double seconds, double score);  // ignores unknown scores, and repeated ones
  // Seconds until then, if the recent scores rise clearly, and their line need not be continued for long; else empty.
  std::optional<double> until(double target, double seconds) const;

 private:
  std::vector<std::pair<double, double>> points_;
  int64_t each_ = 1, seen_ = 0;  // one score of this many is kept; scores so far
  double last_ = NAN;
};

// What an agent's lines show besides the figures of a step; empty texts are left out.
struct LiveNotes {
  std::string cores;   // "CPU 97 % (P 98 %, E 95 %)"
  std::string target;  // "target in 0:12"
};

// One line of at most `width` columns; drops the least important items first. An agent's line begins with its score, and `losses` are its scores.
std::string live_line(const Progress& progress, std::span<const double> losses, std::string_view unit, int width, const LiveNotes& notes = {});
// The same without a width limit, in nanoGPT's format: "iter 10: loss 2.3456, time 12.34ms, …".
std::string plain_line(const Progress& progress, std::string_view unit, const LiveNotes& notes = {});

std::string sample_frame(int64_t step, std::string_view text, const TerminalStyle& style);
std::string summary_text(const RunSummary& summary, std::span<const double> losses, const TerminalStyle& style);
nlohmann::ordered_json summary_json(const RunSummary& summary);
nlohmann::ordered_json decisions_json(std::span<const Decision> decisions);

// "CPU 97 % (P 98 %, E 95 %, balance 1.03×); ▇█▇█ from 95 to 99 %; this process kept 3.9 of 4 busy"
std::string cores_text(const Utilisation& use);

std::string_view name(Outcome::End end);  // finished, target, time, interrupted, terminated, diverged, unsaved

}  // namespace ridge
