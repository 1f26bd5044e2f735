#include "train/stop_signals.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <iterator>
#include <tuple>

namespace ridge {
namespace {

volatile std::sig_atomic_t caught_signal = 0;
timespec caught_at;
bool user_is_waiting = false;  // stderr is a terminal; a step may take minutes
constexpr char kPatience[] = "\nstopping after this step; press Ctrl-C again to stop at once\n";
constexpr int kNoticed[] = {SIGINT, SIGTERM, SIGHUP};
struct sigaction before[std::size(kNoticed)];

// Shells and timeout(1) may send the same signal twice in quick succession; only a later second one means "stop now".
void note(int signal) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (caught_signal == SIGINT && signal == SIGINT) {
    if (double(now.tv_sec - caught_at.tv_sec) + 1e-9 * double(now.tv_nsec - caught_at.tv_nsec) < 1) return;
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
    return;
  }
  caught_signal = signal, caught_at = now;
  if (signal == SIGINT && user_is_waiting) {
    const int error = errno;                        // the interrupted code may read it
    pollfd terminal = {STDERR_FILENO, POLLOUT, 0};  // a paused terminal (Ctrl-S) must not block the run
    if (poll(&terminal, 1, 0) == 1) std::ignore = ::write(STDERR_FILENO, kPatience, sizeof kPatience - 1);
    errno = error;
  }
}

}  // namespace

WritesFail::WritesFail() {
  struct sigaction ignore = {};
  sigemptyset(&ignore.sa_mask);
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &pipe_);
  sigaction(SIGXFSZ, nullptr, &size_);
  if (size_.sa_handler == SIG_DFL) sigaction(SIGXFSZ, &ignore, nullptr);
}

WritesFail::~WritesFail() {
  sigaction(SIGPIPE, &pipe_, nullptr);
  sigaction(SIGXFSZ, &size_, nullptr);
}

StopSignals::StopSignals(bool active) : active_(active) {
  caught_signal = 0, user_is_waiting = isatty(STDERR_FILENO);
  if (!active) return;
  struct sigaction action = {};
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(kNoticed); ++i) {
    sigaction(kNoticed[i], nullptr, &before[i]);
    action.sa_handler = kNoticed[i] == SIGHUP && before[i].sa_handler == SIG_IGN ? SIG_IGN : note;  // respect nohup
    sigaction(kNoticed[i], &action, nullptr);
  }
  writes_.emplace();
}

StopSignals::~StopSignals() {
  if (!active_) return;
  for (size_t i = 0; i < std::size(kNoticed); ++i) sigaction(kNoticed[i], &before[i], nullptr);
}

int StopSignals::caught() const { return caught_signal; }

}  // namespace ridge
