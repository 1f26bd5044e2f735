// Losses and scores over steps as a picture: a curve for each run, with a band where it is a mean over seeds.
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

// The mean of several curves and its standard error. Curves of more than `most` points become means of neighbours; between its points a
// curve is straight, and before its first and after its last it does not count.
std::vector<BandPoint> band_of(std::span<const LossPoints> curves, int most = 300);

struct PlotSeries {
  std::string name;
  std::vector<LossPoints> curves;  // one for each seed
};
struct LossPanel {
  std::string title;
  std::vector<PlotSeries> series;
  Score score = {};  // what the curves show: the axis is titled by it, and the best of a curve is its lowest or highest
};
std::string loss_svg(const std::string& title, std::span<const LossPanel> panels);  // one above the other

LossPanel train_panel(std::span<const RunGroup> groups);
LossPanel validation_panel(std::span<const RunGroup> groups);
// Of runs that are judged by another score than the loss, as their names say it first: in training where it is known there, and in validation.
std::vector<LossPanel> score_panels(std::span<const RunGroup> groups);

// train_loss.svg and val_loss.svg, and score.svg where runs are judged by another score; ErrorCode::io: cannot be written, or no run.
void write_loss_plots(const std::filesystem::path& out, const std::vector<std::filesystem::path>& run_folders);

}  // namespace ridge
