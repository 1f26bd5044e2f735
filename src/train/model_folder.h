// Finds a trained model in what a user names: a run, one of its checkpoints, or a model folder.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint.h"

namespace ridge {

// The best checkpoint that is intact, or else the newest; empty: there is none. Damaged ones are skipped and named in `notices`, each once.
std::optional<StoredCheckpoint> best_or_newest(const std::filesystem::path& run, std::vector<std::string>& notices);

// Whether there is a file `description` in the folder itself, in a checkpoint of the run, or in the run's model folder. Nothing is read, so any word of a
// command line may be asked about.
bool has_description(const std::filesystem::path& model, const char* description);

// The folder with that file from which to load the model: the folder itself, the run's best checkpoint, or its model folder. Empty: there is none.
std::optional<std::filesystem::path> described_folder(const std::filesystem::path& model, const char* description, std::vector<std::string>& notices);

// Reads the description of the model there: load(folder, its text). ErrorCode::io, with the task's name: there is none, or it is damaged.
void load_described(const std::filesystem::path& model, const char* description, const char* task, std::vector<std::string>& notices,
                    const std::function<void(const std::filesystem::path& folder, const std::string& text)>& load);

// Suggests runs for a path that is not one: below it, next to it, or where new runs are created; closest names first. `task`: for the command that makes one.
std::string runs_instead_of(std::filesystem::path path, const char* task);

}  // namespace ridge
