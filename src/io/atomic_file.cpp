#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "io/checksum.h"

namespace ridge {
namespace {

constexpr size_t kMaxAtOnce = size_t(1) << 30;  // systems reject or shorten writes of 2 GiB and more
constexpr size_t kMaxToSum = size_t(1) << 20;   // alternating writes and checksums in pieces this small keeps the data in cache

int sync_to_disk(int file) {
#ifdef __APPLE__
  if (::fcntl(file, F_FULLFSYNC) == 0) return 0;  // on macOS, fsync alone stops at the drive's cache
#endif
  return ::fsync(file);
}

template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Locked by another process that is writing it.
bool is_locked(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  const bool locked = file >= 0 && ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (file >= 0) ::close(file);
  return locked;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

const FileCalls kSystemFileCalls = {::write, sync_to_disk, std::rename, ::mkdir, std::remove};

const char* file_remedy(int cause) {
  switch (cause) {
    case ENOSPC:
    case EDQUOT: return "free some space or choose another folder";
    case EACCES:
    case EPERM:
    case EROFS: return "choose a folder that you can write to";
    case ENOENT:
    case ENOTDIR: return "create the folder first";
    case EFBIG: return "raise the limit on the size of files (ulimit -f), or choose a file system that holds larger ones";
    case EISDIR: return "choose another name, or move the folder away";
    default: return "check the disk";
  }
}

int sync_path(const std::string& path, const FileCalls& calls) {
  const int handle = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  int cause = handle < 0 ? errno : 0;
  if (handle >= 0) {
    if (uninterrupted([&] { return calls.fsync(handle); }) != 0) cause = errno;
    ::close(handle);
  }
  return cause == EINVAL || cause == EACCES ? 0 : cause;
}

AtomicFile::AtomicFile(std::string path, const FileOptions& options) : path_(std::move(path)), temp_(path_ + ".part"), options_(options) { open_temp(); }

AtomicFile::~AtomicFile() { discard(); }

// A temporary file left by a killed process is reused; one being written is locked. Between opening and locking, the file may have been renamed to the path
// itself, which must not be touched: the temporary name then refers to another file. Anything else with that name, such as a link or another user's file, which
// that user may hold open, is removed and never written to.
void AtomicFile::open_temp() {
  for (int tries = 0; tries < 100; ++tries) {
    struct stat mine = {}, named = {};
    const bool there = ::lstat(temp_.c_str(), &named) == 0;
    if (there && !(S_ISREG(named.st_mode) && named.st_uid == ::geteuid() && named.st_nlink == 1)) {
      if (S_ISREG(named.st_mode) && is_locked(temp_)) break;
      if (::unlink(temp_.c_str()) != 0 && errno != ENOENT) give_up(fmt::format("{} is in the way and cannot be removed", temp_), errno);
      continue;
    }
    file_ = uninterrupted([&] { return ::open(temp_.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC | (there ? 0 : O_CREAT | O_EXCL), 0666); });
    if (file_ < 0 && (errno == EEXIST || errno == ELOOP || (there && errno == ENOENT)) && tries < 99) continue;  // it appeared, vanished or changed meanwhile
    if (file_ < 0) give_up("cannot be created", errno);
    const bool taken = ::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;  // no locking on file systems without locks
    const bool mine_by_name = ::fstat(file_, &mine) == 0 && ::lstat(temp_.c_str(), &named) == 0 && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
    if (!taken && mine_by_name) {
      if (::ftruncate(file_, 0) != 0) give_up("cannot be truncated", errno);
      return;
    }
    ::close(std::exchange(file_, -1));
    if (taken) break;
  }
  fail(ErrorCode::io, "[file] {}: is being written by another process, which holds {}; wait for it or choose another name", path_, temp_);
}

void AtomicFile::write(std::span<const std::byte> data) {
  if (file_ < 0) fail(ErrorCode::io, "[file] {}: written to after it was committed or failed; open it again", path_);
  while (!data.empty()) {
    const size_t most = options_.sum ? kMaxToSum : kMaxAtOnce;
    const ssize_t done = uninterrupted([&] { return options_.calls.write(file_, data.data(), std::min(data.size(), most)); });
    if (done <= 0) {
      const int cause = done < 0 ? errno : ENOSPC;
      give_up(fmt::format("writing failed after {} bytes", written_), cause);
    }
    if (options_.sum) options_.sum->add(data.first(size_t(done)));
    data = data.subspan(size_t(done));
    written_ += done;
  }
}

void AtomicFile::commit() {
  if (file_ < 0) fail(ErrorCode::io, "[file] {}: committed after it was committed or failed; open it again", path_);
  if (options_.sync && uninterrupted([&] { return options_.calls.fsync(file_); }) != 0) give_up("syncing failed", errno);
  if (options_.calls.rename(temp_.c_str(), path_.c_str()) != 0) give_up("renaming failed", errno);
  ::close(std::exchange(file_, -1));

  if (!options_.sync) return;
  if (const int cause = sync_path(folder_of(path_), options_.calls); cause != 0)
    fail(ErrorCode::io, "[file] {}: complete, but syncing its folder failed: {}; it may not survive a power cut: {}", path_, std::strerror(cause),
         file_remedy(cause));
}

void AtomicFile::discard() {
  if (file_ < 0) return;
  ::unlink(temp_.c_str());
  ::close(std::exchange(file_, -1));
}

void AtomicFile::give_up(const std::string& what, int cause) {
  discard();
  fail(ErrorCode::io, "[file] {}: {}: {}; {}", path_, what, std::strerror(cause), file_remedy(cause));
}

void write_atomically(const std::string& path, std::string_view text, const FileOptions& options) {
  AtomicFile file(path, options);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

void check_folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
    fail(ErrorCode::io, "[file] {}: cannot be created: there is no folder {}; create the folder first", path, folder.string());
}

void check_picture_place(const std::string& path) {
  check_folder_of(path);
  std::ifstream in(path, std::ios::binary);
  std::string start(4, ' ');
  if (path.empty() || !in.read(start.data(), 4) || start == "<svg" || start == "<?xm") return;
  fail(ErrorCode::usage, "[svg] {} exists and is not a picture, so it is not replaced; give another name", path);
}

}  // namespace ridge
