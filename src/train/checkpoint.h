// Checkpoints of a run: each complete or absent, checked when read, at least two kept.
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

// What goes into one: files of tensors and files of text, by name. Those of tensors, and only they, end in .safetensors.
struct CheckpointContent {
  int64_t step = 0;
  std::map<std::string, std::vector<SafetensorView>> tensors;  // "model.safetensors", "optimizer.safetensors"
  std::map<std::string, std::string> texts;                    // "state.json", "config.json", "tokenizer.json"
  std::shared_ptr<const void> owner = {};                      // of tensors that nobody else holds
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
  // `folder` is made when the first one is saved. ErrorCode::value: fewer than two to be kept.
  explicit CheckpointStore(std::filesystem::path folder, int keep = 2, const FileCalls& calls = kSystemFileCalls);

  // Aside, synced, read back, renamed to step_N, folder synced, BEST, LATEST, then older ones pruned: all but the newest `keep` verified ones and the best.
  // What fails is an ErrorCode::io; what was newest before is still whole and is the newest, unless the new one is.
  // Returns what could not be removed, a line each, and that LATEST could not be written: both are tried again at the next save.
  std::vector<std::string> save(const CheckpointContent& content, bool best = false);

  // The one of the highest step that is whole, whatever LATEST says; empty: there is none. What is damaged is passed over and named in `notices`.
  std::optional<StoredCheckpoint> newest(std::vector<std::string>& notices) const;
  std::optional<StoredCheckpoint> best(std::vector<std::string>& notices) const;
  StoredCheckpoint load(int64_t step) const;  // ErrorCode::io: absent or damaged, and where
  std::vector<int64_t> steps() const;         // complete or not; in order

 private:
  std::filesystem::path write_aside(const CheckpointContent& content) const;
  void put_in_place(const std::filesystem::path& aside, const std::filesystem::path& path) const;
  void tidy_up(int64_t newest, std::vector<std::string>& notices);
  bool is_whole(int64_t step);

  std::filesystem::path folder_;
  int keep_;
  FileCalls calls_;
  std::set<int64_t> verified_;  // by this object, so that a save does not read old ones again
};

}  // namespace ridge
