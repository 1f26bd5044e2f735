// A lock that lets only one process at a time write to a folder.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

namespace ridge {

// Held until destroyed or until the process dies. Leaves no file behind.
class FolderLock {
 public:
  // Empty: another process holds it. On file systems without locks it succeeds, and problem() says so. ErrorCode::io: the folder cannot be opened.
  using Call = int (*)(int file, int operation);
  static std::optional<FolderLock> take(const std::filesystem::path& folder, Call lock = nullptr);  // null: the system's flock

  const std::string& problem() const { return problem_; }  // why other processes are not kept out, one line; empty: they are

  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int file) : file_(file) {}
  int file_;
  std::string problem_;
};

}  // namespace ridge
