// Checkpoints of a run: each complete or absent, checked when read, at least two kept.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/atomic_file.h"
#include "io/safetensors.h"

namespace ridge {

// What goes into one: files of tensors and files of text, by name.
struct CheckpointContent {
  int64_t step = 0;
  std::map<std::string, std::vector<SafetensorView>> tensors;  // "model.safetensors", "optimizer.safetensors"
  std::map<std::string, std::string> texts;                    // "state.json", "config.json", "tokenizer.json"
};

// One that was read back and whose checksums hold.
struct StoredCheckpoint {
  int64_t step = 0;
  std::filesystem::path folder;
  std::map<std::string, SafetensorsFile> tensors;
  std::map<std::string, std::string> texts;
};

class CheckpointStore {
 public:
  // `folder` is made when the first one is saved.
  explicit CheckpointStore(std::filesystem::path folder, int keep = 2, const FileCalls& calls = kSystemFileCalls);

  // Aside, synced, renamed to step_N, folder synced, LATEST, then older ones pruned: all but the newest `keep` verified ones and the best.
  // What fails is an ErrorCode::io; the previous checkpoints are then as they were.
  void save(const CheckpointContent& content, bool best = false);

  // The newest one that is whole; empty: there is none. What is damaged is passed over and named in `notices`.
  std::optional<StoredCheckpoint> newest(std::vector<std::string>& notices) const;
  std::optional<StoredCheckpoint> best(std::vector<std::string>& notices) const;
  StoredCheckpoint load(int64_t step) const;  // ErrorCode::io: absent or damaged, and where
  std::vector<int64_t> steps() const;         // complete or not; in order

 private:
  std::filesystem::path folder_;
  int keep_;
  FileCalls calls_;
};

}  // namespace ridge
