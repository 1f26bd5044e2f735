// A lock that lets only one process at a time write to a folder.
#pragma once
#include <filesystem>
#include <optional>

namespace ridge {

// Held until destroyed or until the process dies. Leaves no file behind.
class FolderLock {
 public:
  // Empty: another process holds it. On file systems without locks it always succeeds. ErrorCode::io: the folder cannot be opened.
  static std::optional<FolderLock> take(const std::filesystem::path& folder);

  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int file) : file_(file) {}
  int file_;
};

}  // namespace ridge
