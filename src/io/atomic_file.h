// Files that are complete or absent, whatever fails meanwhile: written aside, synced, renamed over the old one, folder synced.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

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

// How a file is written.
struct FileOptions {
  FileCalls calls;
  Checksum* sum;  // gets every byte that is written; null: none
  bool sync;      // false: who writes many files into a folder that has no name yet syncs them all at the end, which takes a disk a fraction of the time
  FileOptions(const FileCalls& calls = kSystemFileCalls, Checksum* sum = nullptr, bool sync = true) : calls(calls), sum(sum), sync(sync) {}
};

// A file or a folder; 0 or the errno. Folders that may be entered but not read cannot be opened, and some file systems sync no folders: nothing can be
// done then, so it is 0.
int sync_path(const std::string& path, const FileCalls& calls);
const char* file_remedy(int cause);  // what a user can do about an errno

// Until commit() the path has its previous content, or none. What fails is an ErrorCode::io and leaves nothing aside; then the object is of no more use.
// One writer at a time: a second for the same path is refused, also one in another process.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path, const FileOptions& options = {});
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
  FileOptions options_;
  int file_ = -1;
  int64_t written_ = 0;
};

void write_atomically(const std::string& path, std::string_view text, const FileOptions& options = {});

}  // namespace ridge
