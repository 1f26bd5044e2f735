// Attention on the GPU, forward and backward, over strided operands; only the log-sum-exp of each row is kept. Deterministic.
#pragma once
#include <array>
#include <memory>

#include "backend/attention_desc.h"
#include "backend/cuda/kernel.h"

namespace ridge::cuda {

bool has_attention(const AttentionDesc& desc);

// Operands in the CPU's order: q, k, v, [mask], [length], [seed, step, base], then out, lse; backward: out, lse, dout, dq, dk, dv. `aligned`: every operand
// starts at a 16-byte address.
std::unique_ptr<Kernel> make_attention(const AttentionDesc& desc, bool backward, bool aligned, const Chip& chip);

std::unique_ptr<Kernel> make_tiled_attention(const AttentionDesc& desc, bool backward, bool aligned, const Chip& chip);  // for any chip and every option
std::unique_ptr<Kernel> make_hopper_attention(const AttentionDesc& desc, bool backward, const Chip& chip);

// The sums over batches and positions of the gradients that backward stores, where these are the columns of one matrix: the gradient of a bias.
struct AttentionSums {
  int64_t columns = 0;
  std::array<int64_t, 3> first{};    // columns where dq, dk and dv begin
  size_t operands = 0, written = 0;  // that follow attention's, and which of them the sums are
};
std::unique_ptr<Kernel> make_hopper_attention_with_sums(const AttentionDesc& desc, const AttentionSums& sums, const Chip& chip);  // null: not in one kernel
bool has_hopper_attention(const AttentionDesc& desc, bool backward, bool aligned, const Chip& chip);

}  // namespace ridge::cuda
