// How threads share one task: a part for each according to its speed, taken in shrinking chunks, and help for threads that fall behind. It uses no clock and no
// threads, so that tests can simulate cores of any speed.
#pragma once
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

namespace ridge {

class WorkSplit {
 public:
  // One relative speed per thread, above 0; neighbours of equal speed are split together.
  explicit WorkSplit(std::span<const double> speeds);

  int size() const { return int(parts_.size()); }
  // From now on only the first threads get work, in grains of this many times the usual length. All grains must have been claimed.
  void use(int threads, int64_t coarseness);
  int used() const { return used_; }
  double speed(int thread) const { return parts_[size_t(thread)].speed; }

  // Divides a task into grains of several units each and returns their number. One unit takes about `unit_ns` on a thread of speed 1.
  int64_t cut(int64_t units, double unit_ns);
  void deal();  // gives each thread its part; all grains of the previous task must have been claimed

  struct Chunk {
    int64_t begin = 0, end = 0;  // units
    int64_t grains = 0;          // 0: nothing for this thread
    explicit operator bool() const { return grains > 0; }
  };

  // The next chunk for a thread: from its own part (distance 0), or from the part of the thread `distance` after it in the ring (1 to size() - 1). A thread
  // that gets nothing at one distance tries the next. Threads may claim at any time, even between two tasks.
  Chunk claim(int thread, int distance);

 private:
  struct alignas(128) Part {  // two cache lines: processors fetch neighbours in pairs
    std::atomic<int64_t> left{0};
    std::atomic<int64_t> least{1};  // minimum chunk; a thread without a claim may see the previous task's value
    int64_t end = 0;                // in grains; constant while any are left
    double speed = 1;
  };
  struct Run {  // neighbouring threads of one speed
    int first = 0, count = 0;
    double speed = 1;
    int64_t each = 0;  // grains per thread
  };

  void fill(const Run& run, int64_t extra, int64_t& end);

  std::vector<Part> parts_;
  std::vector<Run> runs_;
  double total_speed_ = 0;
  int used_ = 0;
  int64_t coarseness_ = 1;
  int64_t helper_share_ = 2;  // a helper takes 1/helper_share_ of what is left
  int64_t least_ = 1;
  int64_t units_ = 0, grain_ = 1, grains_ = 0;
};

}  // namespace ridge
