// What a checkpoint holds of the collector, and the statistics that normalise observations and values.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "tasks/ppo/collector_parts.h"

namespace ridge {
namespace {

using Bytes = std::vector<std::byte>;

template <class Number>
StateTensor state_tensor(std::string name, DType dtype, Shape shape, const std::vector<Number>& values) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  return {std::move(name), dtype, std::move(shape), {bytes, bytes + values.size() * sizeof(Number)}};
}

// Doubles are stored bit by bit.
StateTensor state_doubles(std::string name, const std::vector<double>& values) {
  std::vector<int64_t> bits;
  for (double v : values) bits.push_back(std::bit_cast<int64_t>(v));
  return state_tensor(std::move(name), DType::i64, {int64_t(bits.size())}, bits);
}

void read_bytes(const SafetensorsFile& file, const std::string& name, void* to, size_t bytes) {
  const SafetensorView& view = file.at(name);
  if (view.data.size() != bytes)
    fail(ErrorCode::io, "[resume] {} of the checkpoint's state has {} bytes instead of {}: it was made with other settings", name, view.data.size(), bytes);
  std::memcpy(to, view.data.data(), bytes);
}

void read_doubles(const SafetensorsFile& file, const std::string& name, std::vector<double>& values) {
  static_assert(sizeof(double) == sizeof(int64_t));
  read_bytes(file, name, values.data(), values.size() * sizeof(double));
}

}  // namespace

std::vector<StateTensor> Collector::save() const {
  Buffers& b = *buffers_;
  if (device_) device_->read_state(b.carry, b.frames);
  std::vector<StateTensor> state;
  for (size_t i = 0; i < b.carry.size(); ++i) state.push_back({fmt::format("carry.{}", i), programs_->carry[i].dtype, programs_->carry[i].shape, b.carry[i]});
  if (const int64_t older = (b.stack - 1) * args_.instances * b.frame_bytes; older > 0)
    state.push_back({"frames", DType::u8, {older}, {b.frames.end() - older, b.frames.end()}});
  EpisodeScore score = score_;
  const int64_t kept = int64_t(score.returns().size());
  state.push_back(state_tensor("score.returns", DType::f32, {kept}, score.returns()));
  state.push_back(state_tensor("score.lengths", DType::f32, {kept}, score.lengths()));
  state.push_back(state_tensor("score.counts", DType::i64, {args_.instances}, score.counts()));
  for (const auto& [name, moments] : {std::pair("observations", &observations_), {"values", &values_}, {"returns", &returns_}}) {
    state.push_back(state_doubles(fmt::format("{}.mean", name), moments->mean));
    state.push_back(state_doubles(fmt::format("{}.variance", name), moments->variance));
  }
  if (programs_->host) std::ranges::move(programs_->host->save(), std::back_inserter(state));
  state.push_back(state_doubles("numbers", {observations_.count, values_.count, returns_.count, kl_.factor, double(rollouts_), double(since_validation_)}));
  return state;
}

void Collector::restore(const SafetensorsFile& file) {
  Buffers& b = *buffers_;
  for (size_t i = 0; i < b.carry.size(); ++i) read_bytes(file, fmt::format("carry.{}", i), b.carry[i].data(), b.carry[i].size());
  if (const int64_t older = (b.stack - 1) * args_.instances * b.frame_bytes; older > 0)
    read_bytes(file, "frames", b.frames.data() + int64_t(b.frames.size()) - older, size_t(older));
  read_bytes(file, "score.returns", score_.returns().data(), score_.returns().size() * sizeof(float));
  read_bytes(file, "score.lengths", score_.lengths().data(), score_.lengths().size() * sizeof(float));
  read_bytes(file, "score.counts", score_.counts().data(), score_.counts().size() * sizeof(int64_t));
  std::vector<double> numbers(6);
  read_doubles(file, "numbers", numbers);
  observations_.count = numbers[0], values_.count = numbers[1], returns_.count = numbers[2], kl_.factor = numbers[3];
  rollouts_ = int64_t(numbers[4]), since_validation_ = int64_t(numbers[5]);
  for (const auto& [name, moments] : {std::pair("observations", &observations_), {"values", &values_}, {"returns", &returns_}})
    read_doubles(file, fmt::format("{}.mean", name), moments->mean), read_doubles(file, fmt::format("{}.variance", name), moments->variance);
  if (programs_->host && !programs_->host->restore(file, args_.seed))
    for (Bytes& memory : b.carry) std::ranges::fill(memory, std::byte(0));  // a new episode begins without memories of the last one
  use_statistics();
  if (device_) device_->write_state(b.carry, b.frames);
}

void Collector::use_statistics_of(const RunningMoments& observations, const RunningMoments& values) {
  if (args_.normalize_observations) observations_ = observations;
  if (args_.normalize_values) values_ = values;
  use_statistics();
}

void Collector::use_statistics() {
  Buffers& b = *buffers_;
  for (size_t k = 0; k < b.shift.size(); ++k) b.shift[k] = float(observations_.mean[k]), b.scale[k] = float(1 / std::sqrt(observations_.variance[k] + 1e-8));
  b.value_scale[0] = float(values_.mean[0]), b.value_scale[1] = float(std::sqrt(values_.variance[0] + 1e-8));
}

}  // namespace ridge
