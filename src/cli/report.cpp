// ridge report: compares several runs, as a table and as a plot.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/command.h"
#include "cli/run_list.h"
#include "io/atomic_file.h"
#include "train/loss_plot.h"

namespace ridge::cli {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::vector<std::string> folders;
  std::string svg;
  bool json = false;
};

std::vector<RunGroup> read_all(const std::vector<std::string>& folders) {
  std::vector<fs::path> runs;
  for (const std::string& folder : folders) {
    if (!fs::is_directory(folder)) fail(ErrorCode::io, "[report] there is no folder {}; ridge runs lists the runs", folder);
    const std::vector<fs::path> found = find_runs(folder);
    if (found.empty()) fail(ErrorCode::io, "[report] {} contains no run (a folder with metrics.jsonl); ridge runs lists them", folder);
    for (const fs::path& run : found)  // the same run named twice is not a second seed
      if (std::none_of(runs.begin(), runs.end(), [&](const fs::path& other) { return fs::equivalent(run, other); })) runs.push_back(run);
  }
  return read_groups(runs);
}

// What runs with profile=true have written.
void show_profiles(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders)
    for (const fs::path& run : find_runs(folder)) {
      std::ifstream in(run / "profile.json");
      const auto j = nlohmann::json::parse(in, nullptr, false);
      if (!in || !j.is_object() || !j.contains("compute") || !j.contains("hardware") || !j.contains("kernels")) continue;
      const double roof = j["hardware"].value("roof", 0.0);  // 0: unknown
      fmt::print("\nProfile of {}: {:.3f} ms per step, {:.4f} TFLOP/s{}; slowest kernels:\n", run.string(), 1e3 * j["compute"].value("step_seconds", 0.0),
                 j["compute"].value("tflops", 0.0), roof > 0 ? fmt::format(", {:.1f} % of the roof", 100 * roof) : "");
      constexpr size_t kLeast = 10;  // and whatever takes a hundredth of a step
      for (size_t i = 0; i < j["kernels"].size(); ++i) {
        const auto& k = j["kernels"][i];
        if (i >= kLeast && k.value("share", 0.0) < 0.01) break;
        fmt::print("  {:>5.1f} %  {} {} {}\n", 100 * k.value("share", 0.0), k.value("phase", ""), k.value("layer", ""), k.value("name", ""));
      }
      std::error_code ignored;
      for (const char* picture : {"profile_roofline.svg", "profile_memory.svg", "profile_timeline.svg", "profile_trace.json"})
        if (fs::exists(run / picture, ignored)) fmt::print("  {}\n", (run / picture).string());
    }
}

int run_report(const ReportArguments& arguments) {
  check_picture_place(arguments.svg);
  const std::vector<RunGroup> groups = read_all(arguments.folders);
  if (!arguments.svg.empty()) {
    const std::string title = groups.size() == 1 ? groups[0].name : fmt::format("{} runs", groups.size());
    std::vector<LossPanel> panels = {train_panel(groups), validation_panel(groups)};
    for (LossPanel& panel : score_panels(groups)) panels.push_back(std::move(panel));
    write_atomically(arguments.svg, loss_svg(title, panels));
  }
  print_groups(groups, arguments.json);
  if (!arguments.json) show_profiles(arguments.folders);
  if (!arguments.svg.empty() && !arguments.json) fmt::print("\nThe picture is in {}\n", arguments.svg);
  return kOk;
}

const Command report_command("report", "compare runs in a table and a picture", [](Line line) {
  auto arguments = std::make_shared<ReportArguments>();
  line.words("RUN", arguments->folders, "run folders, or folders of runs; seeds of one run count as one");
  line.option("--svg", arguments->svg, "draw the losses into this file");
  line.flag("--json", arguments->json, "print one JSON document");
  return [arguments] { return run_report(*arguments); };
});

}  // namespace
}  // namespace ridge::cli
