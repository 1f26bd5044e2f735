// Things that are costly to make and to hold, by point of a space: those used last are kept within a limit of bytes.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "tune/search.h"

namespace ridge {

template <class T>
class RecentlyUsed {
 public:
  // Null: it is not held. What is found counts as used.
  T* find(const TunePoint& point) {
    const auto found = std::ranges::find(held_, point, &Held::point);
    if (found == held_.end()) return nullptr;
    std::rotate(found, found + 1, held_.end());
    return &held_.back().thing;
  }
  T& add(const TunePoint& point, T thing, int64_t bytes) { return held_.emplace_back(Held{point, std::move(thing), bytes}).thing; }
  void erase(const TunePoint& point) {
    std::erase_if(held_, [&](const Held& h) { return h.point == point; });
  }
  // Lets go of those used longest ago, until what is left takes at most this many bytes.
  void shrink_to(int64_t limit) {
    int64_t bytes = 0;
    for (const Held& h : held_) bytes += h.bytes;
    while (bytes > limit && !held_.empty()) bytes -= held_.front().bytes, held_.erase(held_.begin());
  }

 private:
  struct Held {
    TunePoint point;
    T thing;
    int64_t bytes = 0;
  };
  std::vector<Held> held_;  // most recently used last
};

}  // namespace ridge
