// Plans attention: its units, their memory, and the order of operands.
#include "backend/cpu/attention.h"

#include <algorithm>

#include "backend/cpu/attention_kernels.h"
#include "base/error.h"

namespace ridge::cpu {
namespace {

constexpr int64_t kUnits = 16;           // large work is split into at least this many units
constexpr double kSmallUnitNs = 50'000;  // splitting into units shorter than this gains nothing

void check(const AttentionDesc& d) {
  if (d.dtype != DType::f32 && d.dtype != DType::bf16 && d.dtype != DType::f16)
    fail(ErrorCode::dtype, "[attention] dtype {} is not supported; cast to f32, bf16 or f16", name(d.dtype));
  if (d.batch < 0 || d.heads < 0 || d.queries < 0 || d.keys < 0 || d.dim < 0)
    fail(ErrorCode::shape, "[attention] a size is negative: batch {}, heads {}, queries {}, keys {}, dim {}", d.batch, d.heads, d.queries, d.keys, d.dim);
  if (d.kv_heads < 1 || d.heads % d.kv_heads != 0)
    fail(ErrorCode::shape, "[attention] {} query heads cannot share {} key heads; the second must divide the first", d.heads, d.kv_heads);
  if (!(d.dropout >= 0 && d.dropout <= 1)) fail(ErrorCode::value, "[attention] dropout {} is outside [0, 1]", d.dropout);
}

// The (query, key) pairs that one head computes for queries [begin, end); the causal edge is cut by vectors, not by lanes.
double pairs(const AttentionDesc& d, int64_t begin, int64_t end) {
  if (!d.causal || d.has_length) return double(end - begin) * double(d.keys);
  auto seen = [&](int64_t i) { return double(std::clamp<int64_t>(i + 9 + d.keys - d.queries, 0, d.keys)); };
  return end > begin ? (seen(begin) + seen(end - 1)) / 2 * double(end - begin) : 0;
}

// Times on one core: a pair takes `products` products of length dim plus the softmax; a query takes `moves` transposed rows.
struct Cost {
  double pair_ns, query_ns;
  Cost(const AttentionDesc& d, IsaTier tier, int products, int moves) {
    const double flops_per_ns = has_avx512(tier) ? 105 : tier == IsaTier::avx2 ? 95 : 35;
    double flops = products * 2.0 * double(d.dim) + 40;
    if (d.mask != AttentionDesc::Mask::none) flops += 50;
    if (d.dropout > 0) flops += 120;
    pair_ns = flops / flops_per_ns;
    query_ns = moves * double(d.dim) / 8;
  }
};

class AttentionBase : public Kernel {
 protected:
  AttentionBase(const AttentionDesc& desc) {
    check(desc);
    args_.desc = desc;
    args_.group = desc.heads / desc.kv_heads;
    args_.padded = (desc.dim + kAttentionFeatures - 1) / kAttentionFeatures * kAttentionFeatures;
  }

  // The operands that forward and backward have in common, which come first.
  size_t bind_inputs(std::span<const Ref> operands) {
    size_t i = 0;
    auto next = [&] {
      if (i == operands.size()) fail(ErrorCode::binding, "[attention] {} operands are too few", operands.size());
      return operands[i++];
    };
    args_.q = next(), args_.k = next(), args_.v = next();
    if (args_.desc.mask != AttentionDesc::Mask::none) args_.mask = next();
    if (args_.desc.has_length) args_.length = next();
    if (args_.desc.dropout > 0) args_.seed = next(), args_.step = next(), args_.base = next();
    return i;
  }
  void expect(size_t got, size_t wanted) const {
    if (got != wanted) fail(ErrorCode::binding, "[attention] {} operands where {} are described", got, wanted);
  }

  AttentionArgs args_;
};

class Attention final : public AttentionBase {
 public:
  Attention(const AttentionDesc& desc, IsaTier tier, const KernelVariant& variant)
      : AttentionBase(desc), run_(attention_kernel(tier, multiplies_pairs(desc, tier, false))) {
    const int64_t heads = desc.batch * desc.heads;
    int64_t& size = args_.unit_queries;
    auto units = [&] { return heads * ((desc.queries + size - 1) / size); };
    for (size = 128; size > 32 && units() < (size > 64 ? 4 : 1) * kUnits;) size /= 2;
    size = variant.unit < 0 ? std::max<int64_t>(32, size >> -variant.unit) : size << variant.unit;
    args_.query_units = (desc.queries + size - 1) / size;
    units_ = heads * args_.query_units;
    const Cost cost(desc, tier, 2, 2);
    if (units_) unit_ns_ = (pairs(desc, 0, desc.queries) * cost.pair_ns + double(desc.queries) * cost.query_ns) * double(heads) / double(units_) + 200;
  }
  int64_t scratch_bytes() const override { return AttentionScratch(args_.padded, 0).end * int64_t(sizeof(float)); }
  void bind(std::span<const Ref> operands, Ref, std::vector<Task>& tasks) override {
    const size_t i = bind_inputs(operands);
    expect(operands.size(), i + 2);
    args_.out = operands[i], args_.lse = operands[i + 1];
    tasks.push_back({run_, &args_, units_, unit_ns_});
  }

 private:
  AttentionRun run_;
  int64_t units_ = 0;
  double unit_ns_ = 0;
};

class Decoding final : public AttentionBase {
 public:
  Decoding(const AttentionDesc& desc, IsaTier tier) : AttentionBase(desc), run_(decode_kernel(tier, desc.dtype)) {}
  int64_t scratch_bytes() const override { return decode_scratch(args_.desc); }
  void bind(std::span<const Ref> operands, Ref, std::vector<Task>& tasks) override {
    const AttentionDesc& d = args_.desc;
    const size_t i = bind_inputs(operands);
    expect(operands.size(), i + 2);
    args_.out = operands[i], args_.lse = operands[i + 1];
    constexpr double kBytesPerNs = 20;
    tasks.push_back({run_, &args_, d.batch * d.heads, 200 + 2 * double(d.keys * d.dim * size_of(d.dtype)) / kBytesPerNs});
  }

 private:
  AttentionRun run_;
};

class AttentionGrad final : public AttentionBase {
 public:
  AttentionGrad(const AttentionDesc& desc, IsaTier tier, const KernelVariant& variant)
      : AttentionBase(desc), run_(attention_grad_kernels(tier, multiplies_pairs(desc, tier, true))) {
    const int64_t heads = desc.batch * desc.kv_heads, blocks = args_.query_blocks(), total = args_.group * blocks;
    std::vector<double> done(size_t(total) + 1, 0);  // work before each block of queries
    for (int64_t at = 0; at < total; ++at) {
      const int64_t first = at % blocks * kAttentionQueries;
      done[size_t(at) + 1] = done[size_t(at)] + pairs(desc, first, std::min(first + kAttentionQueries, desc.queries)) + 1;
    }
    const Cost cost(desc, tier, 5, 4);
    const double head_ns = done.back() * cost.pair_ns + double(desc.queries * args_.group) * cost.query_ns;
    int64_t chunks = heads ? (kUnits + heads - 1) / heads : 1;
    chunks = std::min(chunks, int64_t(head_ns / kSmallUnitNs));
    chunks = variant.unit < 0 ? std::max<int64_t>(chunks, 1) << -variant.unit : chunks >> variant.unit;
    chunks = std::clamp<int64_t>(chunks, 1, std::max<int64_t>(total, 1));
    args_.chunk_begin.assign(1, 0);
    for (int64_t chunk = 1; chunk < chunks; ++chunk) {
      const auto cut = std::lower_bound(done.begin(), done.end(), done.back() * double(chunk) / double(chunks));
      args_.chunk_begin.push_back(std::max<int64_t>(args_.chunk_begin.back(), cut - done.begin()));
    }
    args_.chunk_begin.push_back(total);
    units_ = heads * chunks;
    unit_ns_ = head_ns / double(chunks) + 400;
  }
  int64_t workspace_bytes() const override { return args_.chunks() > 1 ? units_ * args_.sums() * int64_t(sizeof(float)) : 0; }
  int64_t scratch_bytes() const override { return AttentionScratch(args_.padded, args_.scratch_sums()).end * int64_t(sizeof(float)); }
  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    const size_t i = bind_inputs(operands);
    expect(operands.size(), i + 6);
    args_.out = operands[i], args_.lse = operands[i + 1], args_.dout = operands[i + 2];
    args_.dq = operands[i + 3], args_.dk = operands[i + 4], args_.dv = operands[i + 5];
    args_.workspace = workspace;
    tasks.push_back({run_.backward, &args_, units_, unit_ns_});
    if (args_.chunks() == 1) return;
    const int64_t key_blocks = (args_.desc.keys + kAttentionKeys - 1) / kAttentionKeys;
    tasks.push_back({run_.reduce, &args_, args_.desc.batch * args_.desc.kv_heads * key_blocks, double(args_.chunks() * kAttentionKeys * args_.padded) / 4});
  }

 private:
  AttentionGradKernels run_;
  int64_t units_ = 0;
  double unit_ns_ = 0;
};

}  // namespace

bool multiplies_pairs(const AttentionDesc& desc, IsaTier tier, bool backward) {
  if (!has_bf16(tier) || desc.dtype != DType::bf16 || desc.dim % 2 || desc.dim == 0) return false;
  auto fits = [](const AttentionDesc::Strides& s) { return s[3] == 1 && s[2] % 2 == 0; };
  return fits(desc.q) && fits(desc.k) && fits(desc.v) && (!backward || (fits(desc.dout) && fits(desc.out)));
}

std::unique_ptr<Kernel> make_attention(const AttentionDesc& desc, IsaTier tier, const KernelVariant& variant) {
  if (is_decoding(desc)) return std::make_unique<Decoding>(desc, tier);
  return std::make_unique<Attention>(desc, tier, variant);
}
std::unique_ptr<Kernel> make_attention_grad(const AttentionDesc& desc, IsaTier tier, const KernelVariant& variant) {
  return std::make_unique<AttentionGrad>(desc, tier, variant);
}
std::unique_ptr<Kernel> make_attention(const AttentionDesc& desc) { return make_attention(desc, isa_tier()); }
std::unique_ptr<Kernel> make_attention_grad(const AttentionDesc& desc) { return make_attention_grad(desc, isa_tier()); }

}  // namespace ridge::cpu
