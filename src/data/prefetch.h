// Prepares the next batches on a separate thread, in a bounded queue.
#pragma once
#include <memory>
#include <vector>

#include "data/batch_source.h"

namespace ridge {

class Prefetcher {
 public:
  struct Options {
    int64_t first = 0;                   // number of the first batch
    std::vector<int64_t> left_out = {};  // numbers to skip
    int depth = 2;                       // batches ahead of the current one
    bool threaded = true;                // false: made on demand
    int64_t part = 0;                    // samples to make at a time, if the source supports parts; 0: whole batches
  };
  Prefetcher(const BatchSource& source, Options options);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;

  struct Batch {
    int64_t number = 0, first = 0;  // its number, and its first sample if batches are split into parts
    std::span<const void* const> tensors;
  };
  // The next batch, or the next part of one. Valid until the next call. Rethrows what fill() threw; the call after that continues with the following batch.
  // ErrorCode::value: past the source's last batch.
  Batch next();
  bool wait(double seconds);      // waits up to `seconds` until next() would not block; whether it would not. Always true without a thread
  double waited_seconds() const;  // time spent here waiting for data
  int64_t bytes() const;          // of all buffers; they are mapped by the constructor

  static int64_t bytes_for(const BatchSource& source, const Options& options);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
