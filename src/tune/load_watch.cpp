#include "tune/load_watch.h"

#include <chrono>

namespace ridge {

LoadWatch::LoadWatch(std::function<double()> others, std::function<double()> now) : others_(std::move(others)), now_(std::move(now)) {
  if (!now_) now_ = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
}

bool LoadWatch::busy() {
  constexpr double kBetween = 0.15;  // seconds
  const double now = now_();
  if (looked_ < 0) {
    if (!others_) watch_ = std::make_shared<OthersWatch>(), others_ = [watch = watch_.get()] { return watch->others(); };
    looked_ = now;
  } else if (now - looked_ > kBetween) {
    busy_ = others_() > kQuiet, looked_ = now;
  }
  return busy_;
}

}  // namespace ridge
