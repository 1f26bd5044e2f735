// SIGINT, SIGTERM and SIGHUP as a wish to end: noticed between steps. A second SIGINT, a second later, ends the process at once.
#pragma once
#include <csignal>
#include <optional>

namespace ridge {

// While one lives, writing to a pipe that nobody reads, or past ulimit -f, fails with an error instead of ending the process. A handler of SIGXFSZ that is
// there stays.
class WritesFail {
 public:
  WritesFail();
  ~WritesFail();
  WritesFail(const WritesFail&) = delete;

 private:
  struct sigaction pipe_, size_;  // as they were
};

// While one lives, the signals are noticed instead of ending the process, and writes fail. One at a time.
class StopSignals {
 public:
  explicit StopSignals(bool active = true);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;

  int caught() const;  // the signal's number; 0: none

 private:
  bool active_;
  std::optional<WritesFail> writes_;
};

}  // namespace ridge
