#include "tune/live_choice.h"

#include <algorithm>

#include "measure/statistics.h"
#include "tune/search.h"

namespace ridge {
namespace {

constexpr size_t kLiveBlock = 2;     // steps measured before the way changes again; one more before them is not
constexpr size_t kLiveSamples = 14;  // of each way
constexpr size_t kLiveFewest = 4;    // before a way is given up
constexpr double kLiveBehind = 1.1;  // by the least of its samples
constexpr double kLiveSure = 0.95;   // of each median's interval
constexpr double kStepsOfTrial = 2.0 * double(kLiveSamples) * double(kLiveBlock + 1) / double(kLiveBlock);

}  // namespace

LiveChoice::LiveChoice(size_t ways, const Limits& limits) : limits_(limits), ways_(ways), wait_(limits.first) {}

void LiveChoice::begin(size_t candidate) {
  present_.clear(), other_.clear();
  candidate_ = candidate, now_ = current_, skip_ = 1, in_block_ = 0;
}

std::optional<LiveChoice::Switch> LiveChoice::end(bool adopt) {
  std::optional<Switch> change;
  if (adopt) change = Switch{current_, candidate_, summary_of(present_).median, summary_of(other_).median};
  const size_t tried = candidate_;
  if (adopt) current_ = candidate_;
  size_t next = tried + 1;
  if (next == current_) ++next;
  if (next < ways_) {
    begin(next);
  } else {
    candidate_ = now_ = current_, skip_ = 0;
    wait_ = std::max(limits_.pause, tried_for_ / limits_.share), since_ = tried_for_ = 0;
  }
  return change;
}

std::optional<LiveChoice::Switch> LiveChoice::add(double seconds) {
  if (ways_ < 2) return {};
  if (candidate_ == current_) {
    since_ += seconds;
    present_.push_back(seconds);
    if (present_.size() > kLiveSamples) present_.erase(present_.begin());
    if (since_ < wait_ || present_.size() < kLiveSamples) return {};
    if (since_ < kStepsOfTrial * double(ways_ - 1) * summary_of(present_).median / limits_.share) return {};
    begin(current_ == 0 ? 1 : 0);
    return {};
  }
  tried_for_ += seconds;
  if (skip_ > 0) return --skip_, std::nullopt;
  (now_ == current_ ? present_ : other_).push_back(seconds);
  if (++in_block_ == kLiveBlock) now_ = now_ == current_ ? candidate_ : current_, in_block_ = 0, skip_ = 1;
  if (other_.size() >= kLiveFewest && *std::ranges::min_element(other_) > kLiveBehind * *std::ranges::min_element(present_)) return end(false);
  if (present_.size() < kLiveSamples || other_.size() < kLiveSamples) return {};
  const Interval a = median_interval(present_, kLiveSure), b = median_interval(other_, kLiveSure);
  return end(b.high < a.low && summary_of(other_).median <= (1 - kTuneGain) * summary_of(present_).median);
}

}  // namespace ridge
