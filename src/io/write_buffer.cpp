#include "io/write_buffer.h"

#include <unistd.h>

#include <cerrno>

namespace ridge {

int WriteBuffer::flush(int file) {
  size_t done = 0;
  int cause = 0;
  while (done < waiting_.size() && cause == 0) {
    const ssize_t wrote = ::write(file, waiting_.data() + done, waiting_.size() - done);
    if (wrote > 0)
      done += size_t(wrote);
    else if (wrote == 0 || errno != EINTR)
      cause = wrote == 0 ? ENOSPC : errno;
  }
  waiting_.erase(0, done);
  return cause;
}

}  // namespace ridge
