// A feed from a data set: a batch is a function of its number, so batches can be prefetched, and a position is a number.
#pragma once
#include <optional>

#include "data/prefetch.h"
#include "train/batch_feed.h"

namespace ridge {

class DataFeed : public BatchFeed {
 public:
  struct Options {
    int ahead = 2;         // batches to prefetch
    bool threaded = true;  // false: made on request
    int64_t part = 0;      // samples made at a time, for a source that supports parts; 0: whole batches
  };
  explicit DataFeed(const BatchSource& source) : DataFeed(source, Options()) {}
  DataFeed(const BatchSource& source, Options options) : source_(source), o_(options) {}  // the source must outlive the feed

  Batch next(int64_t step) override;
  int64_t position() const override { return position_; }
  void seek(int64_t position, const std::vector<int64_t>& left_out) override;
  bool in_parts() const override { return o_.part > 0; }
  std::span<const void* const> next_part() override { return loader_->next().tensors; }
  bool wait(double seconds) override { return loader_->wait(seconds); }
  double waited_seconds() const override { return waited_ + (loader_ ? loader_->waited_seconds() : 0); }

 private:
  const BatchSource& source_;
  Options o_;
  std::optional<Prefetcher> loader_;
  int64_t position_ = 0;
  double waited_ = 0;  // seconds spent waiting for earlier loaders
};

}  // namespace ridge
