#include "tasks/gpt/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "backend/backend.h"
#include "base/error.h"
#include "compile/autocast.h"
#include "runtime/arena.h"
#include "runtime/executable.h"

namespace ridge {

double GptEvaluation::bits_per_byte() const { return nats / bytes / std::log(2.0); }

int64_t evaluation_batch(const GptConfig& c, const Backend& backend) {
  const int64_t more = !backend.host_memory() ? 16 : 1, tokens = more * 4096, logits = more << 24;
  return std::clamp<int64_t>(std::min(tokens, logits / c.vocab) / c.block, 1, more * 64);
}

GptEvaluation evaluate_gpt(const GptParameters& parameters, const BatchSource& batches, const Tokenizer* tokenizer, Backend& backend) {
  constexpr int64_t kNoTarget = -1;
  const GptConfig& c = parameters.config();
  const std::vector<Type>& types = batches.types();
  if (types.size() != 2 || types[0].dtype != DType::i64 || types[0].shape.rank() != 2 || !(types[0] == types[1]))
    fail(ErrorCode::shape, "[evaluate] batches must be tokens and targets, i64 [batch, block]");
  Graph g;
  Builder b(g);
  GptParameters::Nodes nodes = parameters.trace(g);
  NodeId in = g.input(types[0], "tokens"), target = g.input(types[1], "targets");
  NodeId logits = gpt_forward(b, c, nodes.values, in);
  const bool on_device = !backend.host_memory();
  if (on_device && parameters.storage() != DType::f32) logits = keep_wide(g, autocast(g, {&logits, 1}, parameters.storage())[0]);  // as in the sampler
  Builder::SumCount loss = b.cross_entropy(logits, target, kNoTarget);
  std::vector<NodeId> inputs = nodes.inputs;
  inputs.insert(inputs.end(), {in, target});
  Executable program(g, inputs, {b.cast(loss.sum, DType::f32), b.cast(loss.count, DType::f32)}, backend);

  // Text lengths of each token, so that losses can be given per character and byte, independent of the tokenizer.
  std::vector<std::pair<int, int>> sizes;  // characters that begin in the token, bytes
  for (int64_t t = 0; tokenizer && t < tokenizer->vocab_size(); ++t) {
    const std::string_view text = tokenizer->bytes_of(Token(t));
    sizes.emplace_back(std::count_if(text.begin(), text.end(), [](char x) { return (x & 0xc0) != 0x80; }), text.size());
  }
  const int64_t rows = types[0].shape[0], block = types[0].shape[1];
  std::vector<int64_t> tokens(size_t(rows * block)), targets(tokens.size());
  std::byte* const filled[] = {reinterpret_cast<std::byte*>(tokens.data()), reinterpret_cast<std::byte*>(targets.data())};
  std::vector<const void*> data = parameters.data();
  float sums[2] = {};  // sum and count of losses
  std::vector<void*> out = {&sums[0], &sums[1]};
  Arena device(backend);  // tokens, targets, sums
  const int64_t bytes = types[0].bytes(), place = (bytes + 63) / 64 * 64;
  if (on_device) {
    device.require(2 * place + int64_t(sizeof sums));
    data.insert(data.end(), {device.data(), device.data() + place});
    out = {device.data() + 2 * place, device.data() + 2 * place + sizeof(float)};
    program.prepare();
  } else {
    data.insert(data.end(), {tokens.data(), targets.data()});
  }
  GptEvaluation result;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < batches.batches(); ++i) {
    batches.fill(i, filled);
    const int64_t live = batches.samples(i) * block;
    std::fill(tokens.begin() + live, tokens.end(), 0);
    std::fill(targets.begin() + live, targets.end(), kNoTarget);
    for (int64_t k = 0; k < live; ++k)
      for (int64_t t : {tokens[size_t(k)], targets[size_t(k)]})
        if (t < 0 || t >= c.vocab)
          fail(ErrorCode::io, "[evaluate] token {} is not in the model's vocabulary of {}; is this the model's tokenizer?", t, c.vocab);
    if (on_device) backend.upload(device.data(), tokens.data(), bytes), backend.upload(device.data() + place, targets.data(), bytes);
    program.run(data, out);
    if (on_device) backend.download(sums, out[0], sizeof sums), backend.wait();
    result.nats += sums[0], result.tokens += int64_t(sums[1]), result.windows += batches.samples(i);
    for (int64_t k = 0; tokenizer && k < live; ++k)
      if (const size_t t = size_t(targets[size_t(k)]); t < sizes.size()) result.characters += sizes[t].first, result.bytes += sizes[t].second;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace ridge
