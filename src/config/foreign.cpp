#include "config/foreign.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/nearest.h"
#include "base/text.h"
#include "config/words.h"

namespace ridge::config {
namespace {

// Of config_gpu.ini, then of train.yaml. Within them names are looked up as if there were no section.
constexpr std::string_view kSections[] = {"gpu", "memory_management", "precision", "threads", "dataset", "training", "model", "paths", "logging"};

struct Foreign {
  std::string_view path;  // section.name, or a name without a section
  std::string_view key;   // what it sets; empty: nothing
  std::string_view remark = {};
};

constexpr Foreign kForeign[] = {
    {"dataset.path", "data"},
    {"dataset.name", "", "a dataset is named by its path here; set data"},
    {"dataset.size", "", "a dataset has the size of its files"},
    {"dataset.split", "", "the validation part is cut off by Ridge, the same for every run"},
    {"training.epochs", "", "training is counted in steps; set steps"},
    {"epochs", "", "training is counted in steps; set steps"},
    {"training.num_workers", "", "the loader's threads are chosen by Ridge; prefetch_factor says how far it is ahead"},
    {"num_workers", "", "the loader's threads are chosen by Ridge; prefetch_factor says how far it is ahead"},
    {"paths.checkpoints_dir", "", "checkpoints lie in the run folder; set runs_dir or out"},
    {"paths.data_dir", "", "data is named by its own path; set data"},
    {"logging.format", "", "both forms are written: log.txt and metrics.jsonl"},
    {"tag", "", "a run is named by its folder; set out"},
};

}  // namespace

Meaning meaning_of(std::string_view section, std::string_view name) {
  const std::string path = section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
  for (const Foreign& f : kForeign)
    if (f.path == path) return f.key.empty() ? Meaning{nullptr, f.remark} : Meaning{find_key(f.key)};
  if (const Key* key = find_key(name)) return {key};
  return {.problem = unknown_key(name)};
}

std::string section_problem(std::string_view section) {
  if (std::find(std::begin(kSections), std::end(kSections), section) != std::end(kSections)) return {};
  return fmt::format("unknown section {}; {}", shown(section), nearest_hint(lower_case(section), kSections));
}

}  // namespace ridge::config
