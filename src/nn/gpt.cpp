#include "nn/gpt.h"

#include <cmath>

#include "base/error.h"

namespace ridge {
namespace {

struct Sizes {
  int64_t heads, kv_heads, dim, hidden;
};

Sizes sizes_of(const GptConfig& c) {
  if (c.vocab < 1 || c.block < 1 || c.layers < 0 || c.heads < 1 || c.width < 1)
    fail(ErrorCode::value, "[gpt] vocab {}, block {}, layers {}, heads {}, width {}: sizes must be positive", c.vocab, c.block, c.layers, c.heads, c.width);
  if (c.padded_vocab && c.padded_vocab < c.vocab) fail(ErrorCode::value, "[gpt] padded_vocab {} is below vocab {}", c.padded_vocab, c.vocab);
  int64_t kv = c.kv_heads ? c.kv_heads : c.heads;
  if (c.width % c.heads) fail(ErrorCode::value, "[gpt] width {} is not a multiple of heads {}", c.width, c.heads);
  if (kv < 1 || c.heads % kv) fail(ErrorCode::value, "[gpt] heads {} is not a multiple of kv_heads {}", c.heads, kv);
  if (c.position == GptConfig::Position::rope && (c.width / c.heads) % 2)
    fail(ErrorCode::value, "[gpt] rope needs an even head size, got {}; change width {} or heads {}", c.width / c.heads, c.width, c.heads);
  return {c.heads, kv, c.width / c.heads, gpt_mlp_size(c)};
}

// Returns the parameter nodes in the order of gpt_parameters.
class Reader {
 public:
  explicit Reader(std::span<const NodeId> nodes) : nodes_(nodes) {}
  NodeId next() { return nodes_[at_++]; }
  NodeId next_if(bool present) { return present ? next() : kNone; }

 private:
  std::span<const NodeId> nodes_;
  size_t at_ = 0;
};

class Forward {
 public:
  Forward(Builder& b, const GptConfig& c, std::span<const NodeId> parameters, const std::optional<RandomOperands>& random, GptCache* cache)
      : b_(b), c_(c), s_(sizes_of(c)), read_(parameters), random_(c.dropout > 0 ? random : std::nullopt), cache_(cache) {}

  NodeId operator()(NodeId tokens) {
    batch_ = b_.shape(tokens)[0], time_ = b_.shape(tokens)[1];
    NodeId x = b_.take(read_.next(), tokens, 0);  // [B, T, C]
    if (c_.position == GptConfig::Position::learned) x = b_.add(x, position_rows(read_.next()));
    x = dropped(x);
    for (int64_t i = 0; i < c_.layers; ++i) {
      x = b_.add(x, attention(norm(x), i));
      x = b_.add(x, mlp(norm(x)));
    }
    return norm(x);
  }

 private:
  NodeId norm(NodeId x) {
    NodeId weight = read_.next();
    if (c_.norm == GptConfig::Norm::rms) return b_.rms_norm(x, weight, c_.epsilon);
    return b_.layer_norm(x, weight, read_.next_if(c_.bias), c_.epsilon);
  }

  NodeId linear(NodeId x) {
    NodeId weight = read_.next();
    return b_.linear(x, weight, read_.next_if(c_.bias));
  }

  // Splitting qkv and the heads takes only views: slices of one product, viewed as [B, heads, T, dim].
  NodeId heads(NodeId qkv, int64_t first, int64_t count) {
    NodeId part = b_.slice(qkv, -1, first * s_.dim, (first + count) * s_.dim);
    return b_.permute(b_.reshape(part, {batch_, time_, count, s_.dim}), {0, 2, 1, 3});
  }

  // i64 [T]
  NodeId positions() { return cache_ ? b_.add(b_.iota({time_}, 0), cache_->position) : b_.iota({time_}, 0); }

  // Tokens beyond the block, which only pad a program of fixed length, use its last position.
  NodeId position_rows(NodeId table) {
    if (!cache_) return b_.slice(table, 0, 0, time_);
    return b_.take(table, b_.binary(Op::minimum, positions(), double(c_.block - 1)), 0);
  }

  NodeId attention(NodeId x, int64_t layer) {
    NodeId qkv = linear(x);  // [B, T, (heads + 2 kv_heads) · dim]
    // Cast to the cache's dtype while the product is in registers; with RoPE, rotation must come first.
    if (cache_ && c_.position == GptConfig::Position::learned) qkv = b_.cast(qkv, b_.dtype(cache_->keys[size_t(layer)]));
    NodeId q = heads(qkv, 0, s_.heads), k = heads(qkv, s_.heads, s_.kv_heads), v = heads(qkv, s_.heads + s_.kv_heads, s_.kv_heads);
    if (c_.position == GptConfig::Position::rope) {
      NodeId position = positions();
      q = b_.rope(q, position, c_.rope_theta), k = b_.rope(k, position, c_.rope_theta);
    }
    AttentionOptions o;
    const DType type = b_.dtype(x);
    if (cache_) {
      NodeId zero = cache_->zero ? cache_->zero : b_.literal(DType::i64, 0), at[] = {zero, zero, cache_->position, zero};
      NodeId &keys = cache_->keys[size_t(layer)], &values = cache_->values[size_t(layer)];
      k = keys = b_.dynamic_update_slice(keys, k, at), v = values = b_.dynamic_update_slice(values, v, at);
      q = b_.cast(q, b_.dtype(k));
      o.length = cache_->length ? cache_->length : b_.add(cache_->position, double(time_));
    }
    o.causal = true;
    if (random_) o.dropout = c_.dropout, o.random = next_random(s_.heads * time_ * time_);
    NodeId y = b_.cast(b_.attention(q, k, v, o), type);
    y = b_.reshape(b_.permute(y, {0, 2, 1, 3}), {batch_, time_, c_.width});
    return dropped(linear(y));
  }

  NodeId mlp(NodeId x) {
    NodeId h = linear(x);
    if (c_.mlp == GptConfig::Mlp::gelu)
      h = b_.unary(Op::gelu_tanh, h);
    else
      h = b_.mul(b_.unary(Op::silu, b_.slice(h, -1, 0, s_.hidden)), b_.slice(h, -1, s_.hidden, 2 * s_.hidden));
    return dropped(linear(h));
  }

  NodeId dropped(NodeId x) { return random_ ? b_.dropout(x, c_.dropout, next_random(b_.shape(x).numel() / std::max<int64_t>(batch_, 1))) : x; }

  // Each call has its own stream, and numbers elements from the start of the global batch.
  RandomOperands next_random(int64_t elements_per_sequence) {
    RandomOperands r = *random_;
    r.stream += calls_++;
    r.base = b_.mul(r.base, double(elements_per_sequence));
    return r;
  }

  Builder& b_;
  const GptConfig& c_;
  Sizes s_;
  Reader read_;
  std::optional<RandomOperands> random_;
  GptCache* cache_;
  uint32_t calls_ = 0;
  int64_t batch_ = 0, time_ = 0;
};

void check_parameters(const Builder& b, const GptConfig& c, std::span<const NodeId> nodes) {
  std::vector<Parameter> wanted = gpt_parameters(c);
  if (wanted.size() != nodes.size()) fail(ErrorCode::value, "[gpt] {} parameters given, this configuration has {}", nodes.size(), wanted.size());
  for (size_t i = 0; i < nodes.size(); ++i)
    if (!(b.shape(nodes[i]) == wanted[i].shape))
      fail(ErrorCode::shape, "[gpt] parameter {} ({}) is {}, needs {}", i, wanted[i].name, to_string(b.shape(nodes[i])), to_string(wanted[i].shape));
}

// [B, T, width] -> [B, T, vocab plus padding].
NodeId head(Builder& b, const GptConfig& config, std::span<const NodeId> parameters, NodeId hidden) {
  return b.linear(hidden, config.tied ? parameters.front() : parameters.back());
}

}  // namespace

std::vector<Parameter> gpt_parameters(const GptConfig& c) {
  Sizes s = sizes_of(c);
  std::vector<Parameter> out;
  auto norm = [&](const std::string& name) {
    out.push_back({name + ".weight", {c.width}, 1, 0, false});
    if (c.bias && c.norm == GptConfig::Norm::layer) out.push_back({name + ".bias", {c.width}, 0, 0, false});
  };
  auto linear = [&](const std::string& name, int64_t to, int64_t from, double deviation) {
    out.push_back({name + ".weight", {to, from}, 0, deviation, true});
    if (c.bias) out.push_back({name + ".bias", {to}, 0, 0, false});
  };
  // Projections into the residual stream start smaller, so that its variance does not grow with depth.
  double into_residual = 0.02 / std::sqrt(2 * double(std::max<int64_t>(c.layers, 1)));
  auto per_token = [&](const char* name) {
    const bool padded = c.padded_vocab > c.vocab;
    out.push_back({name, {padded ? c.padded_vocab : c.vocab, c.width}, 0, 0.02, true, padded ? c.vocab : 0});
  };
  per_token("transformer.wte.weight");
  if (c.position == GptConfig::Position::learned) out.push_back({"transformer.wpe.weight", {c.block, c.width}, 0, 0.02, true});
  for (int64_t i = 0; i < c.layers; ++i) {
    std::string h = "transformer.h." + std::to_string(i);
    norm(h + ".ln_1");
    linear(h + ".attn.c_attn", (s.heads + 2 * s.kv_heads) * s.dim, c.width, 0.02);
    linear(h + ".attn.c_proj", c.width, c.width, into_residual);
    norm(h + ".ln_2");
    linear(h + ".mlp.c_fc", c.mlp == GptConfig::Mlp::gelu ? s.hidden : 2 * s.hidden, c.width, 0.02);
    linear(h + ".mlp.c_proj", c.width, s.hidden, into_residual);
  }
  norm("transformer.ln_f");
  if (!c.tied) per_token("lm_head.weight");
  return out;
}

int64_t gpt_mlp_size(const GptConfig& c) { return c.hidden ? c.hidden : c.mlp == GptConfig::Mlp::gelu ? 4 * c.width : (c.width + 2) / 3 * 8; }

std::vector<Parameter> gpt_stored_parameters(GptConfig config) {
  config.padded_vocab = 0;
  return gpt_parameters(config);
}

NodeId gpt_hidden(Builder& b, const GptConfig& config, std::span<const NodeId> parameters, NodeId tokens, const std::optional<RandomOperands>& random,
                  GptCache* cache) {
  check_parameters(b, config, parameters);
  if (b.shape(tokens).rank() != 2 || b.shape(tokens)[1] > config.block)
    fail(ErrorCode::shape, "[gpt] tokens {} need the form [batch, positions] with at most {} positions (block)", to_string(b.shape(tokens)), config.block);
  return Forward(b, config, parameters, random, cache)(tokens);
}

NodeId gpt_logits(Builder& b, const GptConfig& config, std::span<const NodeId> parameters, NodeId hidden) {
  return b.slice(head(b, config, parameters, hidden), -1, 0, config.vocab);
}

NodeId gpt_forward(Builder& b, const GptConfig& config, std::span<const NodeId> parameters, NodeId tokens, const std::optional<RandomOperands>& random) {
  return gpt_logits(b, config, parameters, gpt_hidden(b, config, parameters, tokens, random));
}

Builder::SumCount gpt_losses(Builder& b, const GptConfig& config, std::span<const NodeId> parameters, NodeId tokens, NodeId targets,
                             const std::optional<RandomOperands>& random) {
  NodeId logits = head(b, config, parameters, gpt_hidden(b, config, parameters, tokens, random));
  if (config.padded_vocab <= config.vocab) return b.cross_entropy(logits, targets);
  const NodeId real = b.binary(Op::less, b.iota(b.shape(logits), -1, DType::i32), double(config.vocab));
  Builder::SumCount losses = b.cross_entropy(b.select(real, logits, b.like(logits, -INFINITY)), targets);
  auto checked = [&](NodeId index) { return b.graph().add(Op::check_class, {index}, {{config.vocab}, {}, nullptr}); };  // zeros, or an error
  losses.sum = b.add(losses.sum, b.sum(b.add(checked(tokens), checked(targets))));
  return losses;
}

}  // namespace ridge
