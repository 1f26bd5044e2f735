// Files that are complete or absent, whatever fails meanwhile: written aside, synced, renamed over the old one, folder synced.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ridge {

// The system calls that can fail half-way. Tests put their own in their place.
struct FileCalls {
  ssize_t (*write)(int file, const void* data, size_t bytes);
  int (*fsync)(int file);
  int (*rename)(const char* from, const char* to);
};
extern const FileCalls kSystemFileCalls;

// Until commit() the path has its previous content, or none. What fails is an ErrorCode::io and leaves nothing aside; then the object is of no more use.
// One writer at a time: a second for the same path is refused, also one in another process.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path, const FileCalls& calls = kSystemFileCalls);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> data);
  // When this fails at its last call, the sync of the folder, the path has the complete new content, which a power cut may still undo.
  void commit();

  const std::string& path() const { return path_; }
  int64_t written() const { return written_; }

 private:
  void open_aside();
  void discard();
  [[noreturn]] void give_up(const std::string& what, int cause);

  std::string path_, aside_;
  FileCalls calls_;
  int file_ = -1;
  int64_t written_ = 0;
};

}  // namespace ridge
