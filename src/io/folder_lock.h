// A folder that one process at a time writes to.
#pragma once
#include <filesystem>
#include <optional>

namespace ridge {

// Held until it is destroyed, or the process dies. It leaves no file behind.
class FolderLock {
 public:
  // Empty: another one holds it. File systems without locks are used without. ErrorCode::io: the folder cannot be opened.
  static std::optional<FolderLock> take(const std::filesystem::path& folder);

  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int file) : file_(file) {}
  int file_;
};

}  // namespace ridge
