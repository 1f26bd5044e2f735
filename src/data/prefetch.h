// The next batches, made ahead on a thread of its own; the queue is bounded.
#pragma once
#include <memory>
#include <vector>

#include "data/batch_source.h"

namespace ridge {

class Prefetcher {
 public:
  struct Options {
    int64_t first = 0;                   // number of the first batch
    std::vector<int64_t> left_out = {};  // numbers that are passed over
    int depth = 2;                       // batches ahead of the one in use
    bool threaded = true;                // false: made when asked for
    int64_t part = 0;                    // samples that are made at a time, of a source that has parts; 0: whole batches
  };
  Prefetcher(const BatchSource& source, Options options);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;

  struct Batch {
    int64_t number = 0, first = 0;  // its number, and its first sample where batches come in parts
    std::span<const void* const> tensors;
  };
  // The next batch, or the next part of one. Valid until the next call. What fill() threw is thrown here, and the next call tries the batch after it.
  // ErrorCode::value: past the source's last batch.
  Batch next();
  bool wait(double seconds);      // so long at most, for next() not to wait; whether it would not. Always, where batches are made when asked for
  double waited_seconds() const;  // here, for data
  int64_t bytes() const;          // of all buffers; they are mapped by the constructor

  static int64_t bytes_for(const BatchSource& source, const Options& options);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
