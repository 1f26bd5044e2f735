// Makes numbered batches from a user's data.
#pragma once
#include <memory>
#include <string>

#include "data/batch_source.h"
#include "ridge/trainer.h"

namespace ridge {

struct Data::State {
  std::vector<Tensor> tensors;  // samples in memory, or:
  std::vector<BatchSpec> batch;
  Fill fill;  // or `feed`
  int64_t batches = -1;
  std::shared_ptr<Feed> feed;

  int64_t samples() const { return tensors[0].shape()[0]; }  // if in memory
};

// The batch tensors of a step with `batch` samples; 0: decided by the data. ErrorCode::usage if the two disagree.
std::vector<BatchSpec> batch_specs(const Data& data, int64_t batch);

// For training: unlimited. Samples in memory are shuffled differently in each epoch. Null: the data has a feed.
std::unique_ptr<BatchSource> training_batches(const Data& data, const std::vector<BatchSpec>& specs, uint64_t seed);

// For validation: all samples once, in order; the last batch may be smaller.
std::unique_ptr<BatchSource> validation_batches(const Data& data, const std::vector<BatchSpec>& specs);

std::string identity(const Data& data);  // "f32[60000, 784] 1f00…": depends on the values or, for data made by a function or feed, on the shapes and types

}  // namespace ridge
