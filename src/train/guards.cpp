#include "train/guards.h"

namespace ridge {

// The offending batches are those of consecutive strikes.
Guards::Verdict Guards::judge(int64_t batch, bool applied, bool scale_search) {
  if (applied || offending_.size() == kStrikes) offending_.clear();  // start counting again after a good step or a verdict
  if (applied) return Verdict::good;
  ++skipped_;
  if (scale_search) return Verdict::skipped;
  offending_.push_back(batch);
  if (offending_.size() < kStrikes) return Verdict::skipped;
  if (roll_backs_ == kRollBacks) return Verdict::stop;
  ++roll_backs_;
  return Verdict::roll_back;
}

}  // namespace ridge
