// Blocked attention, forward and backward, over strided operands; only the log-sum-exp of each row is kept.
#pragma once
#include <memory>

#include "backend/attention_desc.h"
#include "threads/task.h"

namespace ridge::cpu {

// Operands: q, k, v, [mask], [length], [seed, step, base], out, lse (f32, [batch, heads, queries], contiguous).
// A row that may attend to no key gives zeros and lse = -inf.
std::unique_ptr<Kernel> make_attention(const AttentionDesc& desc);

// Operands: q, k, v, [mask], [length], [seed, step, base], out, lse, dout, then dq, dk, dv. Deterministic: no atomics.
std::unique_ptr<Kernel> make_attention_grad(const AttentionDesc& desc);

}  // namespace ridge::cpu
