#include "machine/core_slots.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/core.h>

#include "io/trust.h"

namespace ridge {
namespace {

// Closes a file descriptor on destruction.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

std::string system_error() { return std::strerror(errno); }

// Opens the folder, creating it if needed. Others must not be able to create files there: /tmp is shared, and a lock that somebody else can hold or replace is
// meaningless. Returns -1 and the reason on failure.
int open_folder(const std::filesystem::path& folder, std::string& reason) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    reason = fmt::format("{} cannot be created ({})", folder.string(), system_error());
    return -1;
  }
  Descriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (fd.get() < 0 || fstat(fd.get(), &info) != 0) {
    reason = fmt::format("{} cannot be opened ({})", folder.string(), system_error());
    return -1;
  }
  if (reason = why_untrusted(info, folder); !reason.empty()) return -1;
  return fd.release();
}

}  // namespace

std::filesystem::path run_folder() {
  // The variable may be left over from another session (after su, or in a container), and the folder may not exist.
  const char* run = std::getenv("XDG_RUNTIME_DIR");
  if (run && *run == '/' && access(run, W_OK | X_OK) == 0) return std::filesystem::path(run) / "ridge";
  std::error_code none;
  std::filesystem::path temporary = std::filesystem::temp_directory_path(none);
  return (none ? "/tmp" : temporary) / fmt::format("ridge-{}", geteuid());
}

CoreSlots::~CoreSlots() {
  for (int fd : locks_) close(fd);
}

CoreSlots::CoreSlots(CoreSlots&& other) noexcept { *this = std::move(other); }

CoreSlots& CoreSlots::operator=(CoreSlots&& other) noexcept {
  std::swap(held_, other.held_);
  std::swap(foreign_, other.foreign_);
  std::swap(locks_, other.locks_);
  std::swap(remark_, other.remark_);
  return *this;
}

CoreSlots CoreSlots::take(const std::vector<int>& cores, const std::filesystem::path& folder) {
  CoreSlots slots;
  std::string reason;
  const Descriptor at(open_folder(folder, reason));
  for (int core : cores) {
    if (!reason.empty()) break;
    Descriptor fd(openat(at.get(), fmt::format("core-{}", core).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (fd.get() < 0) {
      reason = fmt::format("{}/core-{} cannot be opened ({})", folder.string(), core, system_error());
      break;
    }
    struct stat info {};
    if (fstat(fd.get(), &info) == 0) reason = why_untrusted(info, folder / fmt::format("core-{}", core));
    if (!reason.empty()) break;
    int failed = flock(fd.get(), LOCK_EX | LOCK_NB);
    while (failed && errno == EINTR) failed = flock(fd.get(), LOCK_EX | LOCK_NB);
    if (!failed) {
      slots.held_.push_back(core);
      slots.locks_.push_back(fd.release());
    } else if (errno == EWOULDBLOCK) {
      slots.foreign_.push_back(core);
    } else {
      reason = fmt::format("{}/core-{} cannot be locked ({})", folder.string(), core, system_error());
    }
  }
  if (!reason.empty()) {
    slots = CoreSlots();
    slots.remark_ = "core slots are off: " + reason + "; several Ridge processes may use the same cores";
  }
  return slots;
}

void CoreSlots::keep(const std::vector<int>& cores) {
  for (size_t i = held_.size(); i-- > 0;)
    if (std::find(cores.begin(), cores.end(), held_[i]) == cores.end()) release(i);
}

void CoreSlots::release(size_t index) {
  close(locks_[index]);
  locks_.erase(locks_.begin() + long(index));
  held_.erase(held_.begin() + long(index));
}

}  // namespace ridge
