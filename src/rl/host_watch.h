// Notices that an environment does not return.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

namespace ridge::rl {

class HostWatch {
 public:
  // `report` is called from the watch's own thread, once. Without one, the message goes to stderr and the process ends with exit code 1: a function that hangs
  // cannot be stopped in any other way.
  using Report = std::function<void(const std::string& message)>;
  HostWatch(std::string environment, double seconds, Report report = {});  // 0 seconds: watches nothing
  ~HostWatch();
  HostWatch(const HostWatch&) = delete;

  // A call of the environment, for instances first to last.
  class Call {
   public:
    Call(HostWatch& watch, const char* function, int64_t first, int64_t last);
    ~Call();
    Call(const Call&) = delete;

   private:
    friend HostWatch;
    HostWatch& watch_;
    const char* function_;
    int64_t first_, last_;
    int seen_ = 0;  // how often the watch found it running: the clock also runs while a process is stopped
    std::list<Call*>::iterator at_;
  };

 private:
  void watch();

  const std::string environment_;
  const double seconds_;
  const Report report_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Call*> running_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace ridge::rl
