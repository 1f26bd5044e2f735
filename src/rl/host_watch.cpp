#include "rl/host_watch.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

namespace ridge::rl {
namespace {

constexpr int kLooks = 4;  // within the time that a call may take

void end_process(const std::string& message) {
  std::fflush(stdout);
  std::fputs(fmt::format("\nridge: {}\n", message).c_str(), stderr);
  std::_Exit(1);
}

}  // namespace

HostWatch::HostWatch(std::string environment, double seconds, Report report)
    : environment_(std::move(environment)), seconds_(seconds), report_(report ? std::move(report) : end_process) {
  if (seconds_ > 0) thread_ = std::thread([this] { watch(); });
}

HostWatch::~HostWatch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::duration<double>(seconds_ / kLooks), [&] { return ends_; }))
    for (Call* call : running_)
      if (++call->seen_ > kLooks) {
        const std::string which =
            call->first_ == call->last_ ? fmt::format("instance {}", call->first_) : fmt::format("instances {} to {}", call->first_, call->last_);
        const std::string message = fmt::format(
            "[environment] {}: {}() of {} has not returned for {:g} seconds. The run ends here and can be resumed from its last checkpoint; if the environment "
            "only needs more time, set env_timeout=SECONDS (0: no limit)",
            environment_, call->function_, which, seconds_);
        lock.unlock();
        return report_(message);
      }
}

HostWatch::Call::Call(HostWatch& watch, const char* function, int64_t first, int64_t last) : watch_(watch), function_(function), first_(first), last_(last) {
  const std::lock_guard lock(watch_.mutex_);
  at_ = watch_.running_.insert(watch_.running_.end(), this);
}

HostWatch::Call::~Call() {
  const std::lock_guard lock(watch_.mutex_);
  watch_.running_.erase(at_);
}

}  // namespace ridge::rl
