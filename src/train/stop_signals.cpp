#include "train/stop_signals.h"

#include <csignal>

namespace ridge {
namespace {

volatile std::sig_atomic_t caught_signal = 0;
struct sigaction before_interrupt, before_terminate;

void note(int signal) {
  if (caught_signal == SIGINT && signal == SIGINT) {  // asked twice: no more patience
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  caught_signal = signal;
}

}  // namespace

StopSignals::StopSignals(bool active) : active_(active) {
  caught_signal = 0;
  if (!active) return;
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &before_interrupt);
  sigaction(SIGTERM, &action, &before_terminate);
}

StopSignals::~StopSignals() {
  if (!active_) return;
  sigaction(SIGINT, &before_interrupt, nullptr);
  sigaction(SIGTERM, &before_terminate, nullptr);
}

int StopSignals::caught() const { return caught_signal; }

}  // namespace ridge
