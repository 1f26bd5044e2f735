// Numbered batches: a batch depends only on its number, so a run can resume from a number without other state.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/graph.h"

namespace ridge {

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual const std::vector<Type>& types() const = 0;  // of the batch's tensors; the first axis is the sample
  // Writes the tensors of batch `number` (from 0), of which the first `samples()` samples are valid. Thread-safe.
  virtual void fill(int64_t number, std::span<std::byte* const> tensors) const = 0;
  // The same for `count` samples from `first` on, if the source supports it.
  virtual bool has_parts() const { return false; }
  virtual void fill_part(int64_t number, int64_t first, int64_t count, std::span<std::byte* const> tensors) const {
    (void)number, (void)first, (void)count, (void)tensors;
  }
  virtual int64_t batches() const { return -1; }  // how many there are; -1: endless
  virtual int64_t samples(int64_t number) const { return (void)number, types()[0].shape[0]; }
};

}  // namespace ridge
