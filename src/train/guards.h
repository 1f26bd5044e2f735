// Decides what to do after steps that were skipped because of non-finite values.
#pragma once
#include <cstdint>
#include <vector>

namespace ridge {

class Guards {
 public:
  enum class Verdict { good, skipped, roll_back, stop };

  // Records one attempted step: its batch, whether it was applied, and whether the skip only lowered a loss scale that is still above its floor
  // (which is not a strike). Three strikes in a row roll back; the fourth rollback stops the run.
  Verdict judge(int64_t batch, bool applied, bool scale_search);

  const std::vector<int64_t>& offending() const { return offending_; }  // batches of the strikes behind the last verdict, to be left out
  int64_t skipped() const { return skipped_; }
  int roll_backs() const { return roll_backs_; }
  // Consecutive bad steps so far, fewer than lead to a verdict.
  std::vector<int64_t> strikes() const { return offending_.size() < kStrikes ? offending_ : std::vector<int64_t>(); }
  void restore(int64_t skipped, int roll_backs, std::vector<int64_t> strikes) { skipped_ = skipped, roll_backs_ = roll_backs, offending_ = std::move(strikes); }

  static constexpr int kStrikes = 3, kRollBacks = 3;

 private:
  std::vector<int64_t> offending_;
  int64_t skipped_ = 0;
  int roll_backs_ = 0;
};

}  // namespace ridge
