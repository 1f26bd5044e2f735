#include "train/model_folder.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/nearest.h"
#include "train/experiment.h"

namespace ridge {

namespace fs = std::filesystem;

std::optional<StoredCheckpoint> best_or_newest(const fs::path& run, std::vector<std::string>& notices) {
  const CheckpointStore store(run / "checkpoints");
  if (std::optional<StoredCheckpoint> best = store.best(notices)) return best;
  std::vector<std::string> more;
  std::optional<StoredCheckpoint> newest = store.newest(more);
  for (std::string& notice : more)
    if (std::find(notices.begin(), notices.end(), notice) == notices.end()) notices.push_back(std::move(notice));
  return newest;
}

bool has_description(const fs::path& model, const char* description) {
  std::error_code ignored;
  if (model.empty() || !fs::is_directory(model, ignored)) return false;
  if (fs::exists(model / description, ignored) || fs::exists(model / "model" / description, ignored)) return true;
  for (auto entry = fs::directory_iterator(model / "checkpoints", ignored); entry != fs::directory_iterator(); entry.increment(ignored))
    if (fs::exists(entry->path() / description, ignored)) return true;
  return false;
}

std::optional<fs::path> described_folder(const fs::path& model, const char* description, std::vector<std::string>& notices) {
  std::error_code ignored;
  if (!has_description(model, description)) return {};
  if (fs::exists(model / description, ignored)) return model;
  if (fs::is_directory(model / "checkpoints", ignored))
    if (const std::optional<StoredCheckpoint> found = best_or_newest(model, notices); found && fs::exists(found->folder / description, ignored))
      return found->folder;
  if (fs::exists(model / "model" / description, ignored)) return model / "model";
  return {};
}

void load_described(const fs::path& model, const char* description, const char* task, std::vector<std::string>& notices,
                    const std::function<void(const fs::path& folder, const std::string& text)>& load) {
  const std::optional<fs::path> folder = described_folder(model, description, notices);
  if (!folder) fail(ErrorCode::io, "[{0}] {1} has no intact model of the task {0} ({2})", task, model.string(), description);
  std::ifstream in(*folder / description, std::ios::binary);
  try {
    load(*folder, std::string(std::istreambuf_iterator<char>(in), {}));
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorCode::io, "[{}] the description of {} is damaged: {}", task, model.string(), e.what());
  }
}

std::string runs_instead_of(fs::path path, const char* task) {
  path = path.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // a trailing "/"
  constexpr size_t kNamed = 3;
  std::vector<std::string> runs;
  std::error_code ignored;
  for (const fs::path& folder : {path, path.has_parent_path() ? path.parent_path() : fs::path("."), fs::path("runs")}) {
    auto consider = [&](const fs::path& run) {
      const std::string name = run.lexically_normal().string();
      if (run != path && fs::is_directory(run / "checkpoints", ignored) && std::find(runs.begin(), runs.end(), name) == runs.end()) runs.push_back(name);
    };
    if (!fs::is_directory(folder, ignored)) continue;
    if (folder != ".") consider(folder);
    for (auto entry = fs::directory_iterator(folder, ignored); entry != fs::directory_iterator(); entry.increment(ignored)) consider(entry->path());
    if (folder == path)  // an experiment contains data sets, which contain seeds
      for (const fs::path& run : find_runs(path)) consider(run);
    if (folder == path && !runs.empty()) break;
  }
  if (runs.empty())
    return fs::exists(path, ignored) ? fmt::format("ridge train {} makes a run", task)
                                     : fmt::format("ridge train {} --out {} makes a run there", task, path.string());
  auto distance = [&](const std::string& run) { return edit_distance(fs::path(run).filename().string(), path.filename().string()); };
  std::sort(runs.begin(), runs.end());
  std::stable_sort(runs.begin(), runs.end(), [&](const std::string& a, const std::string& b) { return distance(a) < distance(b); });
  std::string text = runs.size() == 1 ? "there is " : "there are ";
  for (size_t i = 0; i < std::min(runs.size(), kNamed); ++i) text += (i == 0 ? "" : ", ") + runs[i];
  if (runs.size() > kNamed) text += fmt::format(" and {} more", runs.size() - kNamed);
  return text;
}

}  // namespace ridge
