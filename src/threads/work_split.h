// How threads share one task: a part for each by its speed, taken in shrinking chunks, and help for whoever falls behind. There is
// no clock and no thread in it, so that tests run it on cores of any speed.
#pragma once
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

namespace ridge {

class WorkSplit {
 public:
  // One relative speed for each thread, above 0; equal neighbours are split in one go.
  explicit WorkSplit(std::span<const double> speeds);

  int size() const { return int(parts_.size()); }
  double speed(int thread) const { return parts_[size_t(thread)].speed; }

  // Cuts a task into grains of some units each and returns their number. One unit takes about `unit_ns` on a thread of speed 1.
  int64_t cut(int64_t units, double unit_ns);
  void deal();  // gives each thread its part; all grains of the task before must have been claimed

  struct Chunk {
    int64_t begin = 0, end = 0;  // units
    int64_t grains = 0;          // 0: there is nothing for this thread
    explicit operator bool() const { return grains > 0; }
  };

  // The next chunk for a thread: of its own part (distance 0), or to help the thread so far after it in the ring (distance 1 to
  // size() - 1). Who gets nothing at a distance goes on to the next. Threads may claim at any time, also between two tasks.
  Chunk claim(int thread, int distance);

 private:
  struct alignas(128) Part {  // two lines: processors fetch neighbours in pairs
    std::atomic<int64_t> left{0};
    std::atomic<int64_t> least{1};  // to be taken at once; may be the last task's for who has no claim
    int64_t end = 0;                // in grains; constant while some are left
    double speed = 1;
  };
  struct Run {  // neighbouring threads of one speed
    int first = 0, count = 0;
    double speed = 1;
    int64_t each = 0;  // grains for each of them
  };

  void fill(const Run& run, int64_t extra, int64_t& end);

  std::vector<Part> parts_;
  std::vector<Run> runs_;
  double total_speed_ = 0;
  int64_t helper_share_ = 2;  // a helper takes one part in so many of what is left
  int64_t least_ = 1;
  int64_t units_ = 0, grain_ = 1, grains_ = 0;
};

}  // namespace ridge
