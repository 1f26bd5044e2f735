// Splits long lists of indices by target range, so that a thread that owns a range need not read all indices.
#pragma once
#include "backend/cpu/node_parts.h"

namespace ridge::cpu {

// The lists of an index tensor [outer, picks, inner]: outer * inner lists, each with stride inner. A range holds 2^shift targets. Picks within a range keep
// their order; out-of-range indices are reported and skipped.
class RangeSplit {
 public:
  static constexpr int64_t kRanges = 32;
  static bool worthwhile(int64_t lists, int64_t picks) { return lists < 16 && picks > 32768; }

  RangeSplit() = default;
  RangeSplit(int64_t outer, int64_t picks, int64_t inner, int64_t targets);
  int64_t ranges() const { return ranges_; }
  int64_t range_size() const { return int64_t(1) << shift_; }
  int64_t workspace_bytes() const { return lists() * (chunks_ * kRanges + picks_) * 8; }
  void append(Ref index, Ref workspace, std::vector<Task>& tasks);

  int64_t start(int64_t list) const { return list / inner_ * picks_ * inner_ + list % inner_; }  // where a list starts in the index tensor
  std::span<const int64_t> picks(int64_t list, int64_t range, const Worker& w) const;            // positions in the list

 private:
  int64_t lists() const { return outer_ * inner_; }
  static void run_count(const void* args, int64_t begin, int64_t end, Worker& w);
  static void run_place(const void* args, int64_t begin, int64_t end, Worker& w);

  int64_t outer_ = 0, picks_ = 0, inner_ = 1, targets_ = 0, ranges_ = 1, chunk_ = 1, chunks_ = 0;
  int shift_ = 0;
  Ref index_, counts_, order_;  // counts [lists, chunks, kRanges], order [lists, picks]
};

}  // namespace ridge::cpu
