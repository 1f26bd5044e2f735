// Files that are either complete or absent, whatever fails: written to a temporary name, synced, renamed over the old file, then the folder is synced.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ridge {

class Checksum;

// The system calls that can fail part-way. Tests substitute their own.
struct FileCalls {
  ssize_t (*write)(int file, const void* data, size_t bytes);
  int (*fsync)(int file);
  int (*rename)(const char* from, const char* to);
  int (*mkdir)(const char* path, mode_t mode);
  int (*remove)(const char* path);  // a file or an empty folder
};
extern const FileCalls kSystemFileCalls;

// Before long work whose result goes to `path`: throws ErrorCode::io if its folder does not exist. Empty: there is no result.
void check_folder_of(const std::string& path);
// The same, and ErrorCode::usage if a picture would replace a file that is not one.
void check_picture_place(const std::string& path);

struct FileOptions {
  FileCalls calls;
  Checksum* sum;  // updated with every byte written; may be null
  bool sync;      // false: the caller writes many files into a folder not yet visible and syncs them together at the end, which is many times faster
  FileOptions(const FileCalls& calls = kSystemFileCalls, Checksum* sum = nullptr, bool sync = true) : calls(calls), sum(sum), sync(sync) {}
};

// Syncs a file or a folder; returns 0 or the errno. Returns 0 where a folder cannot be synced: it may be entered but not read, or the file system does not
// support it.
int sync_path(const std::string& path, const FileCalls& calls);
const char* file_remedy(int cause);  // what the user can do about an errno

// Until commit(), the path keeps its previous content, or stays absent. A failure is ErrorCode::io and removes the temporary file; the object is unusable
// afterwards. One writer at a time: a second writer for the same path is refused, even from another process.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path, const FileOptions& options = {});
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> data);
  // If the last call, the sync of the folder, fails, the path has the complete new content, which a power failure may still undo.
  void commit();

  const std::string& path() const { return path_; }
  int64_t written() const { return written_; }

 private:
  void open_temp();
  void discard();
  [[noreturn]] void give_up(const std::string& what, int cause);

  std::string path_, temp_;
  FileOptions options_;
  int file_ = -1;
  int64_t written_ = 0;
};

void write_atomically(const std::string& path, std::string_view text, const FileOptions& options = {});

}  // namespace ridge
