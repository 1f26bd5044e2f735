// Plots losses and scores over steps: one curve per run, with an error band if it is a mean over seeds.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "train/experiment.h"

namespace ridge {

struct BandPoint {
  double step = 0, mean = 0, error = 0;
};

// The mean of several curves and its standard error. Curves of more than `most` points are averaged over neighbours. Curves are interpolated
// linearly between points and ignored outside their range.
std::vector<BandPoint> band_of(std::span<const LossPoints> curves, int most = 300);

struct PlotSeries {
  std::string name;
  std::vector<LossPoints> curves;  // one per seed
};
struct LossPanel {
  std::string title;
  std::vector<PlotSeries> series;
  Score score = {};  // what the curves show: gives the axis title, and whether the lowest or highest point is best
  std::string x_title = "step";
  bool names_last = false;  // the legend names the last value instead of the best
};
std::string loss_svg(const std::string& title, std::span<const LossPanel> panels);  // stacked vertically

LossPanel train_panel(std::span<const RunGroup> groups);
LossPanel validation_panel(std::span<const RunGroup> groups);
// For runs with a score other than the loss (the first one found): its curves in training, where known, and in validation.
std::vector<LossPanel> score_panels(std::span<const RunGroup> groups);

// Writes train_loss.svg and val_loss.svg, and score.svg if the score is not the loss (then val_loss.svg only if there is such a loss). ErrorCode::io if there
// is no run or a file cannot be written.
void write_loss_plots(const std::filesystem::path& out, const std::vector<std::filesystem::path>& run_folders);

}  // namespace ridge
