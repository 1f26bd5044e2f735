// What to do about steps that were skipped because something was not finite.
#pragma once
#include <cstdint>
#include <vector>

namespace ridge {

class Guards {
 public:
  enum class Verdict { good, skipped, roll_back, stop };

  // One attempted step: its batch, whether it was applied, and whether the skip only lowered a loss scale that is still above its floor
  // (that is no strike). Three strikes in a row roll back, the fourth roll-back stops.
  Verdict judge(int64_t batch, bool applied, bool scale_search);

  const std::vector<int64_t>& offending() const { return offending_; }  // batches of the strikes that led to the last verdict, to be left out
  int64_t skipped() const { return skipped_; }
  int roll_backs() const { return roll_backs_; }
  // The bad steps in a row so far, below the number that leads to a verdict.
  std::vector<int64_t> strikes() const { return offending_.size() < kStrikes ? offending_ : std::vector<int64_t>(); }
  void restore(int64_t skipped, int roll_backs, std::vector<int64_t> strikes) { skipped_ = skipped, roll_backs_ = roll_backs, offending_ = std::move(strikes); }

  static constexpr int kStrikes = 3, kRollBacks = 3;

 private:
  std::vector<int64_t> offending_;
  int64_t skipped_ = 0;
  int roll_backs_ = 0;
};

}  // namespace ridge
