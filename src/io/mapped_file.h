// A whole file mapped read-only into memory.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace ridge {

// The bytes stay valid as long as the object, even if the path is replaced or removed. Truncating the file in place invalidates its readers' pages; Ridge
// itself only ever replaces files.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // ErrorCode::io: missing, not a regular file, or unreadable
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// Returns the pages of part of a mapped file to the system; they are reloaded when read again.
void drop_pages(std::span<const std::byte> bytes);

}  // namespace ridge
