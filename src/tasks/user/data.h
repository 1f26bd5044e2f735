// A user's data as batches by number.
#pragma once
#include <memory>
#include <string>

#include "data/batch_source.h"
#include "ridge/trainer.h"

namespace ridge {

struct Data::State {
  std::vector<Tensor> tensors;  // in memory, or
  std::vector<BatchSpec> batch;
  Fill fill;
  int64_t batches = -1;

  int64_t samples() const { return tensors[0].shape()[0]; }  // of tensors
};

// What a step takes when its batches have `batch` samples; 0: decided by the data. ErrorCode::usage where the two do not agree.
std::vector<BatchSpec> batch_specs(const Data& data, int64_t batch);

// For training: without end. Samples in memory are permuted, each epoch in its own way.
std::unique_ptr<BatchSource> training_batches(const Data& data, const std::vector<BatchSpec>& specs, uint64_t seed);

// For validation: all samples in their order, once; the last batch may have fewer.
std::unique_ptr<BatchSource> validation_batches(const Data& data, const std::vector<BatchSpec>& specs);

std::string identity(const Data& data);  // "60,000 samples 1f00…": changes with the values, or with the form where they are made by a function

}  // namespace ridge
