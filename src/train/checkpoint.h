// Checkpoints of a run: each is complete or absent, verified when read, and at least two are kept.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "io/atomic_file.h"
#include "io/safetensors.h"

namespace ridge {

// The content of a checkpoint: tensor files and text files, by name. Only tensor files end in .safetensors.
struct CheckpointContent {
  int64_t step = 0;
  std::map<std::string, std::vector<SafetensorView>> tensors;  // "model.safetensors", "optimizer.safetensors"
  std::map<std::string, std::string> texts;                    // "state.json", "config.json", "tokenizer.json"
  std::shared_ptr<const void> owner = {};                      // keeps tensors alive that have no other owner
};

// A checkpoint read back with valid checksums.
struct StoredCheckpoint {
  int64_t step = 0;
  std::filesystem::path folder;
  std::map<std::string, SafetensorsFile> tensors;
  std::map<std::string, std::string> texts;
};

class CheckpointStore {
 public:
  // `folder` is created by the first save. ErrorCode::value if `keep` is less than two.
  explicit CheckpointStore(std::filesystem::path folder, int keep = 2, const FileCalls& calls = kSystemFileCalls);

  // Writes to a temporary folder, syncs, reads back, renames to step_N, syncs the parent, writes BEST and LATEST, then deletes old checkpoints: all but the
  // newest `keep` verified ones and the best. Throws ErrorCode::io on failure; the newest checkpoint is then the new one if it is complete, else the previous.
  // Returns one line for each folder that could not be deleted, and one if LATEST could not be written: the next save tries both again.
  std::vector<std::string> save(const CheckpointContent& content, bool best = false);

  // The intact checkpoint with the highest step, regardless of LATEST; empty: there is none. Damaged ones are skipped and named in `notices`.
  std::optional<StoredCheckpoint> newest(std::vector<std::string>& notices) const;
  std::optional<StoredCheckpoint> best(std::vector<std::string>& notices) const;
  StoredCheckpoint load(int64_t step) const;  // ErrorCode::io if absent or damaged, and where
  std::vector<int64_t> steps() const;         // ascending, including incomplete ones

 private:
  std::filesystem::path write_temporary(const CheckpointContent& content) const;
  void put_in_place(const std::filesystem::path& temporary, const std::filesystem::path& path) const;
  void tidy_up(int64_t newest, std::vector<std::string>& notices);
  bool is_whole(int64_t step);

  std::filesystem::path folder_;
  int keep_;
  FileCalls calls_;
  std::set<int64_t> verified_;  // by this object, so that a save need not read old ones again
};

}  // namespace ridge
