#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace ridge {

MappedFile::MappedFile(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // do not block on a pipe
  if (file < 0) fail(ErrorCode::io, "[file] {}: cannot be opened: {}; check the path", path, std::strerror(errno));
  struct stat status = {};
  void* at = nullptr;
  int cause = 0;
  if (::fstat(file, &status) != 0) cause = errno;
  const bool plain = S_ISREG(status.st_mode);
  if (cause == 0 && plain && status.st_size > 0) {
    at = ::mmap(nullptr, size_t(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    if (at == MAP_FAILED) cause = errno;
  }
  ::close(file);
  if (cause != 0) fail(ErrorCode::io, "[file] {}: {} bytes cannot be mapped: {}; check the disk", path, int64_t(status.st_size), std::strerror(cause));
  if (!plain) fail(ErrorCode::io, "[file] {}: is {}; name a regular file", path, S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
  bytes_ = {static_cast<const std::byte*>(at), at ? size_t(status.st_size) : 0};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

void drop_pages(std::span<const std::byte> bytes) {
  const uintptr_t page = uintptr_t(::sysconf(_SC_PAGESIZE)), first = (reinterpret_cast<uintptr_t>(bytes.data()) + page - 1) / page * page,
                  end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size()) / page * page;
  if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

}  // namespace ridge
