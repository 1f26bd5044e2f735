#include "io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/atomic_file.h"

namespace ridge {

std::optional<FolderLock> FolderLock::take(const std::filesystem::path& folder, Call call) {
  FolderLock lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.file_ < 0) {
    const int cause = errno;
    fail(ErrorCode::io, "[file] {}: cannot be opened: {}; {}", folder.string(), std::strerror(cause), file_remedy(cause));
  }
  int failure = 0;
  do failure = (call ? call : ::flock)(lock.file_, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  while (failure == EINTR);
  if (failure == EWOULDBLOCK) return {};
  if (failure != 0)
    lock.problem_ = fmt::format("{} cannot be locked ({}): make sure that no other process writes to it", folder.string(), std::strerror(failure));
  return lock;
}

FolderLock::FolderLock(FolderLock&& other) noexcept : file_(std::exchange(other.file_, -1)), problem_(std::move(other.problem_)) {}

FolderLock::~FolderLock() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace ridge
