// Work that follows a matmul, limited to forms that the library (and our own kernel) can apply while storing the sums.
#pragma once
#include <optional>
#include <string>

#include "backend/gpu/matmul_problem.h"
#include "compile/tile_group.h"

namespace ridge::gpu {

// result = function(alpha · sums + bias + addend). gelu may store its input in `aux`; gelu_grad multiplies the sums by the derivative of gelu (tanh form) at
// `aux`. Values are rounded only when they are stored.
struct MatmulEpilogue {
  enum class Function : uint8_t { none, relu, gelu, gelu_grad } function = Function::none;
  double alpha = 1;
  MatmulArray bias;    // varies only over columns
  MatmulArray addend;  // may be the same memory as the result
  MatmulArray aux;     // for gelu: absent, or a second result
  MatmulArray result;
  bool plain() const { return function == Function::none && alpha == 1 && !bias && !addend; }
  std::string name() const;  // "bias+gelu+aux"
};

// Matches a group that consists entirely of such an epilogue.
std::optional<MatmulEpilogue> match_epilogue(const TileGroup& group);

// A group that starts with such an epilogue and stores its result. The rest of the group reads that result, and nothing computed before it.
struct SplitEpilogue {
  MatmulEpilogue first;
  TileGroup rest;  // a separate group over the same operands
};
std::optional<SplitEpilogue> split_epilogue(const TileGroup& group);

// Splits a whole epilogue in two: the sums plus the addend are written to the result, and the rest then updates them in place. Valid only if the result does
// not share memory with `aux`.
std::optional<SplitEpilogue> finish_in_place(const MatmulEpilogue& whole, const Shape& domain, int operands);

// The group rewritten to read finished sums from memory through one more operand, added last, contiguous [batch, rows, columns]. If the group first rounds the
// sums to 16 bits, they are stored in that type.
struct DetachedEpilogue {
  DType sums = DType::f32;
  TileGroup group;
};
DetachedEpilogue detach_epilogue(const TileGroup& group);

}  // namespace ridge::gpu
