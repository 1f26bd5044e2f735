#include "train/data_feed.h"

namespace ridge {

BatchFeed::Batch DataFeed::next(int64_t) {
  const Prefetcher::Batch batch = loader_->next();
  position_ = batch.number + 1;
  return {batch.number, batch.tensors};
}

void DataFeed::seek(int64_t position, const std::vector<int64_t>& left_out) {
  waited_ = waited_seconds();
  loader_.reset();  // free its buffers before allocating new ones
  loader_.emplace(source_, Prefetcher::Options{position, left_out, o_.ahead, o_.threaded, o_.part});
  position_ = position;
}

}  // namespace ridge
