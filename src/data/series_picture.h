// Pictures of sequences: predictions and truth over time, or a table of classes.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/series.h"

namespace ridge {

struct SeriesPanel {
  std::string name;                             // of the variable
  std::vector<double> time, truth, prediction;  // NaN: none
};
// One panel per output; then, step by step, what was predicted next to the truth, in the units of the source.
std::vector<SeriesPanel> series_panels(const SeriesForm& form);
void add_step(std::vector<SeriesPanel>& panels, const Series& series, const SeriesSample& sample, size_t step, double time, const float* outputs);

// The first six panels below each other, with times as `time_text` writes them; empty: as numbers. `free_from`: the time from which predictions feed on
// themselves.
std::string series_svg(const std::string& title, const std::string& subtitle, std::span<const SeriesPanel> panels,
                       const std::function<std::string(double)>& time_text, std::optional<double> free_from = {});

// Lines of text, one per true class, with how often each class was predicted: `counts` [classes, classes]. Of more than 6 classes, how often each was right
// and what it was mostly taken for, for the 12 with the most mistakes.
std::vector<std::string> confusion_table(const std::vector<std::string>& classes, std::span<const int64_t> counts);

}  // namespace ridge
