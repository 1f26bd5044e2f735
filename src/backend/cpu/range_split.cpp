#include "backend/cpu/range_split.h"

namespace ridge::cpu {

RangeSplit::RangeSplit(int64_t outer, int64_t picks, int64_t inner, int64_t targets) : outer_(outer), picks_(picks), inner_(inner), targets_(targets) {
  while ((targets - 1) >> shift_ >= kRanges) ++shift_;
  ranges_ = ((targets - 1) >> shift_) + 1;
  chunk_ = std::max<int64_t>(8192, blocks(picks, 32)), chunks_ = blocks(picks, chunk_);
}

void RangeSplit::append(Ref index, Ref workspace, std::vector<Task>& tasks) {
  index_ = index, counts_ = workspace, order_ = {workspace.base, workspace.offset + lists() * chunks_ * kRanges * 8};
  append_task(tasks, run_count, this, lists() * chunks_, double(chunk_));
  append_task(tasks, run_place, this, lists() * chunks_, double(chunk_) * 2);
}

void RangeSplit::run_count(const void* args, int64_t begin, int64_t end, Worker& w) {
  const auto& k = *static_cast<const RangeSplit*>(args);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t list = unit / k.chunks_, first = unit % k.chunks_ * k.chunk_, last = std::min(first + k.chunk_, k.picks_);
    const int64_t* index = w.at<int64_t>(k.index_) + k.start(list);
    int64_t* counts = w.at<int64_t>(k.counts_) + unit * kRanges;
    std::fill_n(counts, kRanges, 0);
    for (int64_t i = first; i < last; ++i) {
      const int64_t t = index[i * k.inner_];
      if (uint64_t(t) < uint64_t(k.targets_))
        ++counts[t >> k.shift_];
      else
        w.fault->raise(t, k.targets_);
    }
  }
}

void RangeSplit::run_place(const void* args, int64_t begin, int64_t end, Worker& w) {
  const auto& k = *static_cast<const RangeSplit*>(args);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t list = unit / k.chunks_, chunk = unit % k.chunks_, first = chunk * k.chunk_, last = std::min(first + k.chunk_, k.picks_);
    const int64_t* index = w.at<int64_t>(k.index_) + k.start(list);
    const int64_t* counts = w.at<int64_t>(k.counts_) + list * k.chunks_ * kRanges;
    int64_t *order = w.at<int64_t>(k.order_) + list * k.picks_, next[kRanges], sum = 0;
    for (int64_t r = 0; r < k.ranges_; ++r) {  // after smaller ranges, and after this range in earlier chunks
      next[r] = sum;
      for (int64_t c = 0; c < k.chunks_; ++c) {
        sum += counts[c * kRanges + r];
        if (c < chunk) next[r] += counts[c * kRanges + r];
      }
    }
    for (int64_t i = first; i < last; ++i) {
      const int64_t t = index[i * k.inner_];
      if (uint64_t(t) < uint64_t(k.targets_)) order[next[t >> k.shift_]++] = i;
    }
  }
}

std::span<const int64_t> RangeSplit::picks(int64_t list, int64_t range, const Worker& w) const {
  const int64_t* counts = w.at<int64_t>(counts_) + list * chunks_ * kRanges;
  int64_t first = 0, count = 0;
  for (int64_t c = 0; c < chunks_; ++c) {
    for (int64_t r = 0; r < range; ++r) first += counts[c * kRanges + r];
    count += counts[c * kRanges + range];
  }
  return {w.at<int64_t>(order_) + list * picks_ + first, size_t(count)};
}

}  // namespace ridge::cpu
