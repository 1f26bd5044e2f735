#include "tasks/gpt/parameters.h"

#include <algorithm>
#include <optional>

#include "backend/backend.h"
#include "base/error.h"
#include "base/half.h"
#include "runtime/arena.h"
#include "runtime/buffer_pool.h"

namespace ridge {

struct GptParameters::State {
  GptConfig config;
  DType storage = DType::f32;
  std::vector<Type> types;
  std::vector<const void*> data;
  BufferPool pool;
  BufferPool::Buffer memory;
  std::optional<Arena> device;  // used instead on a device with its own memory
  int64_t owned = 0;
};

namespace {

constexpr int64_t kLine = 64;
int64_t aligned(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Vectors (norms, biases) are small and stay f32.
DType storage_of(const Parameter& p, DType storage) { return p.shape.rank() >= 2 ? storage : DType::f32; }

}  // namespace

DType weight_storage(Precision precision) { return precision == Precision::bf16 ? DType::bf16 : precision == Precision::fp16 ? DType::f16 : DType::f32; }

GptParameters::GptParameters(const GptWeights& weights, DType storage, Backend& backend)
    : GptParameters(
          weights.config, storage, [&](size_t index, std::span<float> values) { weights.copy(index, values); }, backend) {}

GptParameters::GptParameters(const GptConfig& config, DType storage, const Fill& fill, Backend& backend) : state_(std::make_unique<State>()) {
  State& s = *state_;
  if (storage != DType::f32 && storage != DType::bf16 && storage != DType::f16)
    fail(ErrorCode::dtype, "[gpt] weights cannot be kept as {}; use f32, bf16 or f16", name(storage));
  s.config = config, s.storage = storage;
  const bool on_device = !backend.host_memory();
  const std::vector<Parameter> parameters = gpt_parameters(config);
  int64_t longest = 0;
  for (const Parameter& p : parameters) {
    s.types.push_back({storage_of(p, storage), p.shape});
    s.owned += aligned(s.types.back().bytes());
    if (on_device || s.types.back().dtype != DType::f32) longest = std::max(longest, p.shape.numel());
  }
  std::byte* at = nullptr;
  if (on_device) {
    s.device.emplace(backend).require(s.owned);
    at = s.device->data();
  } else {
    s.memory = s.pool.acquire(s.owned);
    at = s.memory.data();
  }
  std::vector<float> wide(static_cast<size_t>(longest));
  std::vector<uint16_t> narrow(on_device && storage != DType::f32 ? wide.size() : 0);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const size_t n = size_t(parameters[i].shape.numel());
    s.data.push_back(at);
    const bool whole = s.types[i].dtype == DType::f32;
    const std::span<float> values(whole && !on_device ? reinterpret_cast<float*>(at) : wide.data(), n);
    fill(i, values);
    if (!whole) {
      uint16_t* to = on_device ? narrow.data() : reinterpret_cast<uint16_t*>(at);
      for (size_t k = 0; k < n; ++k) to[k] = storage == DType::bf16 ? f32_to_bf16(values[k]) : f32_to_f16(values[k]);
    }
    if (on_device) backend.upload(at, whole ? static_cast<const void*>(wide.data()) : narrow.data(), s.types[i].bytes());
    at += aligned(s.types[i].bytes());
  }
}

GptParameters::GptParameters(const GptConfig& config, std::span<const std::span<float>> in_place) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.config = config;
  const std::vector<Parameter> parameters = gpt_parameters(config);
  if (parameters.size() != in_place.size()) fail(ErrorCode::value, "[gpt] {} parameters given, this configuration has {}", in_place.size(), parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (int64_t(in_place[i].size()) != parameters[i].shape.numel())
      fail(ErrorCode::shape, "[gpt] {} has {} values, its shape is {}", parameters[i].name, in_place[i].size(), to_string(parameters[i].shape));
    s.types.push_back({DType::f32, parameters[i].shape});
    s.data.push_back(in_place[i].data());
  }
}

GptParameters::GptParameters(const GptConfig& config, std::vector<const void*> in_place) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.config = config, s.data = std::move(in_place);
  for (const Parameter& p : gpt_parameters(config)) s.types.push_back({DType::f32, p.shape});
  if (s.types.size() != s.data.size()) fail(ErrorCode::value, "[gpt] {} parameters given, this configuration has {}", s.data.size(), s.types.size());
}

GptParameters::~GptParameters() = default;
GptParameters::GptParameters(GptParameters&&) noexcept = default;

const GptConfig& GptParameters::config() const { return state_->config; }
DType GptParameters::storage() const { return state_->storage; }
int64_t GptParameters::owned_bytes() const { return state_->owned; }
const std::vector<const void*>& GptParameters::data() const { return state_->data; }

// Only single rows are read of the position table, and of a token table that is not used for the logits.
int64_t GptParameters::bytes() const {
  const State& s = *state_;
  int64_t bytes = 0;
  for (size_t i = 0; i < s.types.size(); ++i) {
    const bool rows_only = (i == 0 && !s.config.tied) || (i == 1 && s.config.position == GptConfig::Position::learned);
    bytes += rows_only ? s.types[i].bytes() / s.types[i].shape[0] : s.types[i].bytes();
  }
  return bytes;
}

GptParameters::Nodes GptParameters::trace(Graph& graph) const {
  Nodes nodes;
  Builder b(graph);
  const std::vector<Parameter> parameters = gpt_parameters(state_->config);
  for (size_t i = 0; i < parameters.size(); ++i) {
    nodes.inputs.push_back(graph.input(state_->types[i], parameters[i].name));
    nodes.values.push_back(b.cast(nodes.inputs.back(), DType::f32));
  }
  return nodes;
}

}  // namespace ridge
