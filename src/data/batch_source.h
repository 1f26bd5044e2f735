// Batches by number: a batch is a function of its number alone, so a run goes on from a number and needs no other state.
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
  virtual const std::vector<Type>& types() const = 0;  // of the batch's tensors; their first axis counts samples
  // Writes the tensors of batch `number`, 0 and up, of which the first `samples()` samples count. Any thread may call it at any time.
  virtual void fill(int64_t number, std::span<std::byte* const> tensors) const = 0;
  // The same for the samples from `first` on alone, as many as `count`, where a source can do that.
  virtual bool has_parts() const { return false; }
  virtual void fill_part(int64_t number, int64_t first, int64_t count, std::span<std::byte* const> tensors) const {
    (void)number, (void)first, (void)count, (void)tensors;
  }
  virtual int64_t batches() const { return -1; }  // how many there are; -1: without end
  virtual int64_t samples(int64_t number) const { return (void)number, types()[0].shape[0]; }
};

}  // namespace ridge
