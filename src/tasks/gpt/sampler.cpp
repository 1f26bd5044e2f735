#include "tasks/gpt/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "backend/backend.h"
#include "base/error.h"
#include "base/mapped_memory.h"
#include "base/rng.h"
#include "compile/autocast.h"
#include "machine/features.h"
#include "runtime/arena.h"
#include "runtime/buffer_pool.h"
#include "runtime/executable.h"

namespace ridge {
namespace {

constexpr uint32_t kDrawStream = 0x5a3b1e;  // distinct from the streams of models
constexpr int64_t kChunk = 64;              // prompt tokens computed at a time
constexpr size_t kFewTokens = 4;            // fewer are fed one by one
constexpr size_t kGiven = 4;                // numbers that a run is given: position, valid tokens, position behind the program's tokens, zero

// Keys and values of all layers: [1, kv_heads, room, dim] each, 64-byte aligned.
struct CacheLayout {
  Type type;
  int64_t bytes = 0;
  CacheLayout(const GptConfig& c, DType storage, int64_t room) {
    const int64_t kv = c.kv_heads ? c.kv_heads : c.heads;
    type = {storage, {1, kv, room, c.width / c.heads}};
    bytes = (type.bytes() + 63) / 64 * 64;
  }
};

// Processes `length` tokens from a position, of which the first `live` are valid. Updates caches in place; the logits follow the last valid token.
Executable compile(const GptParameters& parameters, const CacheLayout& layout, int64_t length, const std::shared_ptr<Arena>& arena, Backend& backend) {
  const GptConfig& c = parameters.config();
  Graph g;
  Builder b(g);
  GptParameters::Nodes nodes = parameters.trace(g);
  std::vector<NodeId> inputs = nodes.inputs;
  NodeId tokens = g.input({DType::i64, {1, length}}, "tokens"), live = g.input({DType::i64, {}}, "live");
  GptCache cache;
  // Inputs rather than results of arithmetic, which would be kernels.
  cache.position = g.input({DType::i64, {}}, "position"), cache.length = g.input({DType::i64, {}}, "length"), cache.zero = g.input({DType::i64, {}}, "zero");
  inputs.insert(inputs.end(), {tokens, cache.position, live, cache.length, cache.zero});
  const size_t first = inputs.size();
  for (int64_t i = 0; i < c.layers; ++i) {
    cache.keys.push_back(g.input(layout.type, "keys")), cache.values.push_back(g.input(layout.type, "values"));
    inputs.insert(inputs.end(), {cache.keys.back(), cache.values.back()});
  }
  NodeId hidden = gpt_hidden(b, c, nodes.values, tokens, {}, &cache);
  if (length > 1) {
    NodeId at[] = {cache.zero, b.sub(live, 1.0), cache.zero};
    hidden = b.dynamic_slice(hidden, at, {1, 1, c.width});
  }
  std::vector<NodeId> outputs = {b.reshape(gpt_logits(b, c, nodes.values, hidden), {-1})};
  CompileOptions options(backend);
  options.arena = arena;
  for (int64_t i = 0; i < c.layers; ++i)
    for (NodeId id : {cache.keys[size_t(i)], cache.values[size_t(i)]}) {
      options.state.push_back({int(first + outputs.size() - 1), int(outputs.size())});
      outputs.push_back(id);
    }
  if (!backend.host_memory() && parameters.storage() != DType::f32) {
    // The CPU's products widen weights as they read them; other devices take both operands in 16 bits.
    outputs = autocast(g, outputs, parameters.storage());
    outputs[0] = keep_wide(g, outputs[0]);
  }
  return Executable(g, inputs, outputs, options);
}

}  // namespace

Precision kept_precision(DType weights, const Backend& backend, std::string_view requested) {
  const bool widens = backend.host_memory() && (has_avx512(isa_tier()) || isa_tier() == IsaTier::avx2);
  const Precision usual = weights == DType::bf16 ? Precision::bf16 : weights == DType::f16 || widens ? Precision::fp16 : Precision::fp32;
  return parse_precision(requested).value_or(usual);
}

Token draw_token(std::span<const float> logits, const SampleOptions& o, uint64_t index) {
  if (!(o.temperature >= 0) || !std::isfinite(o.temperature)) fail(ErrorCode::value, "[sample] temperature {} is not 0 or more", o.temperature);
  if (o.top_k < 0) fail(ErrorCode::value, "[sample] top_k {} is negative", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1)) fail(ErrorCode::value, "[sample] top_p {} is not above 0 and at most 1", o.top_p);
  if (o.tokens > 0 && o.tokens < int64_t(logits.size())) logits = logits.first(size_t(o.tokens));
  if (logits.empty()) fail(ErrorCode::value, "[sample] there are no logits: feed a token first");
  for (float x : logits)
    if (!std::isfinite(x)) fail(ErrorCode::value, "[sample] the model's logits are not finite: its weights are damaged or it has diverged");
  const auto more_likely = [&](Token a, Token b) { return logits[size_t(a)] != logits[size_t(b)] ? logits[size_t(a)] > logits[size_t(b)] : a < b; };
  std::vector<Token> kept(logits.size());
  std::iota(kept.begin(), kept.end(), 0);
  if (o.temperature == 0) return *std::min_element(kept.begin(), kept.end(), more_likely);
  if (o.top_k && o.top_k < int64_t(kept.size())) {
    std::nth_element(kept.begin(), kept.begin() + (o.top_k - 1), kept.end(), more_likely);
    kept.resize(size_t(o.top_k));
  }
  if (o.top_p < 1)
    std::sort(kept.begin(), kept.end(), more_likely);
  else
    std::sort(kept.begin(), kept.end());
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weight(kept.size());
  for (size_t i = 0; i < kept.size(); ++i) weight[i] = std::exp((double(logits[size_t(kept[i])]) - top) / o.temperature);
  double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  if (o.top_p < 1) {  // the shortest prefix with enough probability
    size_t n = 0;
    double front = 0;
    while (n < weight.size() && front < o.top_p * total) front += weight[n++];
    weight.resize(n), total = front;
  }
  const RandomKey key{o.seed, 0, kDrawStream};
  double left = (double(random_word(key, 2 * index)) + double(random_word(key, 2 * index + 1)) * 0x1p-32) * 0x1p-32 * total;
  for (size_t i = 0; i < weight.size(); ++i)
    if ((left -= weight[i]) < 0) return kept[i];
  return kept[weight.size() - 1];
}

struct GptSampler::State {
  std::shared_ptr<const GptParameters> parameters;
  int64_t chunk;
  CacheLayout layout;
  std::shared_ptr<Arena> arena;  // shared by both programs
  Executable one, many;
  Backend* gpu;  // a device with its own memory; null: host memory is used in place
  BufferPool pool;
  BufferPool::Buffer cache;
  Arena device;                                 // the cache, then the inputs and outputs of a run
  std::vector<const void*> inputs, one_inputs;  // of the program for several tokens, of that for one
  std::vector<void*> outputs;
  std::vector<int64_t> given;  // inputs of a run: kGiven numbers, then the tokens
  int64_t position = 0;
  bool fresh = false;          // logits match the current context
  std::vector<Token> history;  // the tokens in the cache
  std::vector<float> logits;
  float* stored_logits = nullptr;   // where runs store them: host memory, to which a GPU writes as well
  int64_t* given_to_one = nullptr;  // in host memory that the GPU reads; null: `given` is copied to it

  State(std::shared_ptr<const GptParameters> p, Backend& backend, std::optional<DType> kept)
      : parameters(std::move(p)),
        chunk(std::min(kChunk, parameters->config().block)),
        layout(parameters->config(), kept.value_or(weight_storage(kept_precision(parameters->storage(), backend))), parameters->config().block + chunk),
        arena(std::make_shared<Arena>(backend)),
        one(compile(*parameters, layout, 1, arena, backend)),
        many(compile(*parameters, layout, chunk, arena, backend)),
        gpu(backend.host_memory() ? nullptr : &backend),
        device(backend),
        given(size_t(chunk) + kGiven),
        logits(gpu ? 0 : size_t(parameters->config().vocab)) {
    history.reserve(size_t(parameters->config().block) + 1);
    if (gpu) device.require(cache_bytes() + given_bytes());
  }
  ~State() {
    if (gpu && stored_logits) gpu->release_host(reinterpret_cast<std::byte*>(stored_logits), host_bytes());
  }
  State(const State&) = delete;

  int64_t parts() const { return 2 * parameters->config().layers; }
  // A large cache uses whole huge pages, because all of it is read for every token.
  int64_t cache_bytes() const {
    const int64_t bytes = std::max<int64_t>(1, parts()) * layout.bytes;
    return gpu || bytes < kHugePage / 2 ? bytes : (bytes + kHugePage - 1) / kHugePage * kHugePage;
  }
  int64_t logit_bytes() const { return (parameters->config().vocab * int64_t(sizeof(float)) + 63) / 64 * 64; }
  int64_t host_bytes() const { return logit_bytes() + int64_t((kGiven + 1) * sizeof(int64_t)); }
  // A copy takes longer than it takes the first kernel to read the host's memory. Attention reads its numbers ahead if a block has all keys of a head, and RoPE
  // would read them again in every layer.
  bool reads_host() const {
    constexpr int64_t kElementsOfBlock = 32768;
    const GptConfig& c = parameters->config();
    const Shape& rows = layout.type.shape;
    return rows[2] * int64_t(std::bit_ceil(uint64_t(rows[3]))) <= kElementsOfBlock && rows[1] == c.heads && size_of(layout.type.dtype) == 2 &&
           c.position == GptConfig::Position::learned;
  }
  int64_t given_bytes() const { return (int64_t(given.size() * sizeof(int64_t)) + 63) / 64 * 64; }

  void map() {
    if (!inputs.empty()) return;
    std::byte* at = gpu ? device.data() : nullptr;
    inputs = parameters->data();
    const int64_t* words = given.data();
    if (gpu) {
      words = reinterpret_cast<const int64_t*>(at + cache_bytes());
      if (!stored_logits) stored_logits = reinterpret_cast<float*>(gpu->allocate_host(host_bytes()));
      if (reads_host()) given_to_one = reinterpret_cast<int64_t*>(stored_logits) + logit_bytes() / int64_t(sizeof(int64_t));
    } else {
      cache = pool.acquire(cache_bytes(), BufferPool::Fill::zero);
      at = cache.data();
      stored_logits = logits.data();
    }
    outputs = {stored_logits};
    one_inputs = inputs;
    for (auto* all : {&inputs, &one_inputs}) {
      const int64_t* from = all == &one_inputs && given_to_one ? given_to_one : words;
      all->insert(all->end(), {from + kGiven, from, from + 1, from + 2, from + 3});
      for (int64_t i = 0; i < parts(); ++i) all->push_back(at + i * layout.bytes);
    }
    for (int64_t i = 0; i < parts(); ++i) outputs.push_back(at + i * layout.bytes);
  }

  // The tokens must fit into the block.
  void run(std::span<const Token> fed) {
    while (!fed.empty()) {
      const bool by_one = fed.size() < kFewTokens || chunk == 1;
      const int64_t live = by_one ? 1 : std::min(chunk, int64_t(fed.size()));
      std::fill(given.begin(), given.end(), 0);
      given[0] = position, given[1] = live, given[2] = position + (by_one ? 1 : chunk), given[3] = 0;
      std::copy_n(fed.begin(), live, given.begin() + kGiven);
      const size_t numbers = kGiven + size_t(by_one ? 1 : chunk);
      if (by_one && given_to_one)
        std::copy_n(given.begin(), numbers, given_to_one);
      else if (gpu)
        gpu->upload(device.data() + cache_bytes(), given.data(), int64_t(numbers * sizeof(int64_t)));
      (by_one ? one : many).run(by_one ? one_inputs : inputs, outputs);
      // The next run overwrites what this one reads.
      if (gpu && (int64_t(fed.size()) == live || (by_one && given_to_one))) gpu->wait();
      position += live, fresh = true;
      fed = fed.subspan(size_t(live));
    }
  }
};

GptSampler::GptSampler(std::shared_ptr<const GptParameters> parameters, Backend& backend, std::optional<DType> kept)
    : state_(std::make_unique<State>(std::move(parameters), backend, kept)) {}
GptSampler::~GptSampler() = default;
GptSampler::GptSampler(GptSampler&&) noexcept = default;

void GptSampler::feed(std::span<const Token> fed) {
  State& s = *state_;
  const int64_t vocab = s.parameters->config().vocab, block = s.parameters->config().block;
  for (Token t : fed)
    if (t < 0 || t >= vocab) fail(ErrorCode::value, "[sample] token {} is not in the vocabulary of {}", t, vocab);
  if (fed.empty()) return;
  s.map();
  s.history.insert(s.history.end(), fed.begin(), fed.end());
  if (int64_t(s.history.size()) <= block) return s.run(fed);
  const int64_t kept = std::max<int64_t>(1, block / 2);
  s.history.erase(s.history.begin(), s.history.end() - kept);
  s.position = 0;
  s.run(s.history);
}

std::span<const float> GptSampler::logits() const {
  return state_->fresh ? std::span<const float>(state_->stored_logits, size_t(state_->parameters->config().vocab)) : std::span<const float>();
}
int64_t GptSampler::position() const { return state_->position; }

void GptSampler::rewind(int64_t position) {
  if (position < 0 || position > state_->position) fail(ErrorCode::value, "[sample] position {} is not in the context of {}", position, state_->position);
  state_->position = position;
  state_->history.resize(size_t(position));
  state_->fresh = false;
}

void GptSampler::generate(std::span<const Token> prompt, int64_t count, const SampleOptions& options, const std::function<bool(Token)>& sink) {
  if (prompt.empty()) fail(ErrorCode::value, "[sample] the prompt is empty; a model continues from at least one token");
  feed(prompt);
  for (int64_t i = 0; i < count; ++i) {
    const Token token = draw_token(logits(), options, uint64_t(i));
    if (!sink(token)) return;
    if (i + 1 < count) feed({&token, 1});
  }
}

void GptSampler::compile_ahead() { state_->one.compile_ahead(), state_->many.compile_ahead(); }

void GptSampler::prepare() {
  compile_ahead();
  state_->one.prepare(), state_->many.prepare();
  state_->map();
}

int64_t GptSampler::planned_bytes() const {
  const State& s = *state_;
  const Report &one = s.one.report(), &many = s.many.report();
  return (s.gpu ? s.device.bytes() : s.cache_bytes()) + std::max(one.planned_bytes, many.planned_bytes);
}

int64_t GptSampler::bytes_read(int64_t position) const {
  const State& s = *state_;
  const Shape& shape = s.layout.type.shape;
  return s.parameters->bytes() + 2 * s.parameters->config().layers * (position + 1) * shape[1] * shape[3] * size_of(s.layout.type.dtype);
}

int GptSampler::kernels() const { return int(state_->one.launches()); }

}  // namespace ridge
