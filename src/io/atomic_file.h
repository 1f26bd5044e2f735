// Files that are complete or absent, whatever fails meanwhile: written aside, synced, renamed over the old one, folder synced.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ridge {

class Checksum;

// The system calls that can fail half-way. Tests put their own in their place.
struct FileCalls {
  ssize_t (*write)(int file, const void* data, size_t bytes);
  int (*fsync)(int file);
  int (*rename)(const char* from, const char* to);
  int (*mkdir)(const char* path, mode_t mode);
  int (*remove)(const char* path);  // a file or an empty folder
};
extern const FileCalls kSystemFileCalls;

// 0 or the errno. Folders that may be entered but not read cannot be opened, and some file systems sync no folders: nothing can be done then, so it is 0.
int sync_folder(const std::string& path, const FileCalls& calls);
const char* file_remedy(int cause);  // what a user can do about an errno

// Until commit() the path has its previous content, or none. What fails is an ErrorCode::io and leaves nothing aside; then the object is of no more use.
// One writer at a time: a second for the same path is refused, also one in another process.
class AtomicFile {
 public:
  // `sum`, where given, gets every byte that is written.
  explicit AtomicFile(std::string path, const FileCalls& calls = kSystemFileCalls, Checksum* sum = nullptr);
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
  Checksum* sum_;
  int file_ = -1;
  int64_t written_ = 0;
};

}  // namespace ridge
