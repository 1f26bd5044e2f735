#include "train/guards.h"

namespace ridge {

// The strikes in a row are the offending batches.
Guards::Verdict Guards::judge(int64_t batch, bool applied, bool scale_search) {
  if (applied || offending_.size() == kStrikes) offending_.clear();  // after a good step or a verdict they count anew
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
