// What a training tells people: pure functions from figures to text that fits a width in columns.
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
#include "train/trainer.h"

namespace ridge {

struct Look {
  int width = 80;
  bool colour = false;
};

// The losses of a run in a few means of neighbours, however long it is. Allocates nothing.
class LossCurve {
 public:
  void add(double loss);  // one that is not finite is left out
  std::span<const double> points() const { return {points_.data(), used_}; }

 private:
  std::array<double, 64> points_ = {};
  size_t used_ = 0;
  int64_t each_ = 1, gathered_ = 0;  // losses in a point, and in the next one so far
  double sum_ = 0;
};

// All that is told at the end of a run.
struct RunSummary {
  std::string what;  // "GPT of 0.80 M parameters on builtin"
  Outcome outcome;
  std::string unit = "tokens";                            // what tokens_s counts
  double nats_per_character = 0;                          // of the best validation loss; 0: the data is no text
  std::optional<double> possible;                         // the least that any model can reach, in nats per character
  double sampled_tokens_s = 0;                            // of samples; 0: none were taken
  std::string device = "cpu", precision = "fp32", cores;  // cores: cores_text()
  int threads = 0;
  int64_t planned_bytes = 0;
  std::filesystem::path folder;                            // empty: nothing was written
  std::vector<std::pair<std::string, std::string>> files;  // in the folder: name, what it is
  std::vector<std::pair<std::string, std::string>> next;   // commands to try, and what they do
};

std::string clock_text(double seconds);     // "0:07", "12:05", "1:02:03", "3 d 04 h"; "?" when it is not known
std::string duration_text(double seconds);  // "250 µs", "1.25 ms", "12 ms", "8.4 s", "1 min 52 s", "2 h 05 min"
std::string count_text(double count);       // "812", "24.6k", "1.23M"

std::string score_text(const Score& score, double value);  // "0.9312", "93.1200 %"

std::string decision_table(std::span<const Decision> decisions, const Look& look);

// A share of the roof; "63 % of roof". A share above all of it means that the ceilings were measured too low: then why they were stands instead.
// `others`: the share of the machine that other programs had when it was measured.
std::string roof_text(double roof, double others, std::string_view word = "roof");
// What files and JSON hold, by the same rule: `roof`, which is null where it would be above 1, and then why as `above_roof`.
bool is_above_roof(double roof);
std::string above_roof_text(double others);  // "measured while others used 40 %"

// One line of at most `width` columns; what does not fit is left out, the least important first.
std::string live_line(const Progress& progress, std::span<const double> losses, std::string_view unit, int width);
// The same without an end of width, as nanoGPT writes it: "iter 10: loss 2.3456, time 12.34ms, …".
std::string plain_line(const Progress& progress, std::string_view unit);

std::string sample_frame(int64_t step, std::string_view text, const Look& look);
std::string summary_text(const RunSummary& summary, std::span<const double> losses, const Look& look);
nlohmann::ordered_json summary_json(const RunSummary& summary);
nlohmann::ordered_json decisions_json(std::span<const Decision> decisions);

// "CPU 97 % (P 98 %, E 95 %, balance 1.03×); ▇█▇█ from 95 to 99 %; this process kept 3.9 of 4 busy"
std::string cores_text(const Utilisation& use);

std::string_view name(Outcome::End end);  // finished, target, time, interrupted, terminated, diverged, unsaved

}  // namespace ridge
