// SIGINT, SIGTERM and SIGHUP as a wish to end: noticed between steps. A second SIGINT, a second later, ends the process at once.
#pragma once

namespace ridge {

// While one lives, the signals are noticed instead of ending the process. One at a time.
class StopSignals {
 public:
  explicit StopSignals(bool active = true);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;

  int caught() const;  // the signal's number; 0: none

 private:
  bool active_;
};

}  // namespace ridge
