// Turns SIGINT, SIGTERM and SIGHUP into stop requests that are checked between steps. A second SIGINT at least a second later ends the process immediately.
#pragma once
#include <csignal>
#include <optional>

namespace ridge {

// During its lifetime, writing to a closed pipe or past ulimit -f fails with an error instead of ending the process. An existing SIGXFSZ handler is
// left in place.
class WritesFail {
 public:
  WritesFail();
  ~WritesFail();
  WritesFail(const WritesFail&) = delete;

 private:
  struct sigaction pipe_, size_;  // previous handlers
};

// During its lifetime, signals are recorded instead of ending the process, and failing writes return errors. Only one may exist at a time.
class StopSignals {
 public:
  explicit StopSignals(bool active = true);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;

  int caught() const;  // the signal number; 0: none

 private:
  bool active_;
  std::optional<WritesFail> writes_;
};

}  // namespace ridge
