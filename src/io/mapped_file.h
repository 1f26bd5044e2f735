// A whole file in memory as the system pages it in, read-only.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace ridge {

// Bytes live as long as the object, also when the path is replaced or removed meanwhile. A file that is cut short in its place takes the
// pages of its readers away; Ridge itself only ever replaces files.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // ErrorCode::io: not there, not a plain file, not to be read
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// Gives the pages of a part of a mapped file back to the system; they come again when they are read.
void drop_pages(std::span<const std::byte> bytes);

}  // namespace ridge
