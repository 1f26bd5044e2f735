#include "tasks/user/data.h"

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "data/permutation.h"
#include "step/compiled_step.h"

namespace ridge {
namespace {

constexpr int64_t kDefaultBatch = 32;
constexpr uint32_t kOrderStream = 0xda7a0003;  // outside the range of a step's streams

std::vector<Type> types_of(const std::vector<BatchSpec>& specs) {
  std::vector<Type> types;
  for (const BatchSpec& s : specs) types.push_back({s.dtype, s.shape});
  return types;
}

class MemorySource : public BatchSource {
 public:
  MemorySource(std::shared_ptr<const Data::State> data, const std::vector<BatchSpec>& specs) : data_(std::move(data)), types_(types_of(specs)) {
    samples_ = data_->samples(), batch_ = types_[0].shape[0];
    for (size_t i = 0; i < types_.size(); ++i) {
      rows_.push_back(static_cast<const std::byte*>(data_->tensors[i].data()));
      row_bytes_.push_back(types_[i].bytes() / batch_);
    }
  }
  const std::vector<Type>& types() const override { return types_; }

 protected:
  void copy(int64_t sample, int64_t to, std::span<std::byte* const> tensors) const {
    for (size_t i = 0; i < rows_.size(); ++i) std::memcpy(tensors[i] + to * row_bytes_[i], rows_[i] + sample * row_bytes_[i], size_t(row_bytes_[i]));
  }

  std::shared_ptr<const Data::State> data_;
  std::vector<Type> types_;
  std::vector<const std::byte*> rows_;
  std::vector<int64_t> row_bytes_;
  int64_t samples_ = 0, batch_ = 0;
};

class ShuffledSource : public MemorySource {
 public:
  ShuffledSource(std::shared_ptr<const Data::State> data, const std::vector<BatchSpec>& specs, uint64_t seed)
      : MemorySource(std::move(data), specs), seed_(seed) {}
  void fill(int64_t number, std::span<std::byte* const> tensors) const override {
    for (int64_t i = 0; i < batch_; ++i) {
      const int64_t taken = number * batch_ + i;  // counted over all epochs; a batch may span two of them
      const RandomKey epoch{seed_, uint32_t(taken / samples_), kOrderStream};
      copy(int64_t(permuted(uint64_t(taken % samples_), uint64_t(samples_), epoch)), i, tensors);
    }
  }

 private:
  uint64_t seed_;
};

class OrderedSource : public MemorySource {
 public:
  using MemorySource::MemorySource;
  int64_t batches() const override { return (samples_ + batch_ - 1) / batch_; }
  int64_t samples(int64_t number) const override { return std::min(batch_, samples_ - number * batch_); }
  void fill(int64_t number, std::span<std::byte* const> tensors) const override {
    // Samples beyond the end are not counted, but must be valid model input.
    for (int64_t i = 0; i < batch_; ++i) copy(std::min(number * batch_ + i, samples_ - 1), i, tensors);
  }
};

class FunctionSource : public BatchSource {
 public:
  FunctionSource(std::shared_ptr<const Data::State> data, const std::vector<BatchSpec>& specs, bool endless)
      : data_(std::move(data)), specs_(specs), types_(types_of(specs)), endless_(endless) {}
  const std::vector<Type>& types() const override { return types_; }
  int64_t batches() const override { return endless_ ? -1 : data_->batches; }
  void fill(int64_t number, std::span<std::byte* const> tensors) const override {
    BatchTensor batch[kMaxBatchTensors];
    for (size_t i = 0; i < specs_.size(); ++i) batch[i] = {specs_[i].shape, specs_[i].dtype, tensors[i]};
    data_->fill(data_->batches > 0 ? number % data_->batches : number, {batch, specs_.size()});
  }

 private:
  std::shared_ptr<const Data::State> data_;
  std::vector<BatchSpec> specs_;
  std::vector<Type> types_;
  bool endless_;
};

std::shared_ptr<Data::State> batches_of(std::vector<BatchSpec> batch) {
  if (batch.empty() || batch.size() > kMaxBatchTensors) fail(ErrorCode::value, "[data] a batch of {} tensors; give 1 to {}", batch.size(), kMaxBatchTensors);
  auto state = std::make_shared<Data::State>();
  state->batch = std::move(batch);
  return state;
}

template <class T>
std::span<T> values_of(const BatchTensor& t, DType dtype) {
  if (t.dtype != dtype) fail(ErrorCode::dtype, "[data] a batch tensor contains {}, not {}", name(t.dtype), name(dtype));
  return {static_cast<T*>(t.data), size_t(t.shape.numel())};
}

}  // namespace

std::span<float> BatchTensor::floats() const { return values_of<float>(*this, DType::f32); }
std::span<int64_t> BatchTensor::ints() const { return values_of<int64_t>(*this, DType::i64); }

Data::Data(std::vector<Tensor> tensors) {
  if (tensors.empty()) fail(ErrorCode::value, "[data] no tensors; give at least one whose first axis counts samples");
  for (const Tensor& t : tensors) {
    if (!t.defined()) fail(ErrorCode::value, "[data] a tensor is not defined");
    if (t.shape().rank() == 0 || t.shape()[0] < 1 || t.shape()[0] != tensors[0].shape()[0])
      fail(ErrorCode::shape, "[data] tensors need the same number of samples, at least one, as their first axis: {} and {}", to_string(tensors[0].shape()),
           to_string(t.shape()));
    t.eval();
  }
  auto state = std::make_shared<State>();
  state->tensors = std::move(tensors);
  state_ = std::move(state);
}

Data::Data(std::vector<BatchSpec> batch, Fill fill, int64_t batches) {
  if (!fill) fail(ErrorCode::value, "[data] the function that fills batches is empty");
  auto state = batches_of(std::move(batch));
  state->fill = std::move(fill), state->batches = batches;
  state_ = std::move(state);
}

Data::Data(std::vector<BatchSpec> batch, std::shared_ptr<Feed> feed) {
  if (!feed) fail(ErrorCode::value, "[data] the feed that makes batches is null");
  auto state = batches_of(std::move(batch));
  state->feed = std::move(feed);
  state_ = std::move(state);
}

std::vector<BatchSpec> batch_specs(const Data& data, int64_t batch) {
  const Data::State& d = *data.state();
  if (d.tensors.empty()) {
    if (batch > 0 && d.batch[0].shape.rank() > 0 && d.batch[0].shape[0] != batch)
      fail(ErrorCode::usage, "[data] batches of {} samples are requested, but the data has batches of {}", batch, d.batch[0].shape[0]);
    return d.batch;
  }
  std::vector<BatchSpec> specs;
  for (const Tensor& t : d.tensors) {
    specs.push_back({t.shape(), t.dtype()});
    specs.back().shape[0] = batch > 0 ? batch : std::min(kDefaultBatch, d.samples());
  }
  return specs;
}

std::unique_ptr<BatchSource> training_batches(const Data& data, const std::vector<BatchSpec>& specs, uint64_t seed) {
  if (data.state()->feed) return nullptr;
  if (data.state()->tensors.empty()) return std::make_unique<FunctionSource>(data.state(), specs, true);
  return std::make_unique<ShuffledSource>(data.state(), specs, seed);
}

std::unique_ptr<BatchSource> validation_batches(const Data& data, const std::vector<BatchSpec>& specs) {
  if (!data.state()->tensors.empty()) return std::make_unique<OrderedSource>(data.state(), specs);
  if (data.state()->feed) fail(ErrorCode::usage, "[data] a feed cannot be validation data; give tensors, a function, or TrainerArgs::validate");
  if (data.state()->batches < 1) fail(ErrorCode::usage, "[data] validation by a function needs the number of its batches");
  return std::make_unique<FunctionSource>(data.state(), specs, false);
}

std::string identity(const Data& data) {
  const Data::State& d = *data.state();
  std::string forms;
  if (d.tensors.empty()) {
    for (const BatchSpec& s : d.batch) forms += fmt::format("{}{}{}", forms.empty() ? "" : ", ", name(s.dtype), to_string(s.shape));
    return (d.feed ? "made by a feed: " : "made by a function: ") + forms;
  }
  uint64_t hash = 0;
  for (const Tensor& t : d.tensors) {
    forms += fmt::format("{}{}{}", forms.empty() ? "" : ", ", name(t.dtype()), to_string(t.shape()));
    hash = XXH3_64bits_withSeed(t.data(), size_t(Type{t.dtype(), t.shape()}.bytes()), hash);
  }
  return fmt::format("{} {:016x}", forms, hash);
}

}  // namespace ridge
