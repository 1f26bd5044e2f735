// What follows a product's sums, as far as it is of the kind that the library (and our own kernel) can do while it stores them.
#pragma once
#include <optional>
#include <string>

#include "backend/gpu/matmul_problem.h"
#include "compile/tile_group.h"

namespace ridge::gpu {

// result = function(alpha · sums + bias + addend). gelu may store what it is taken of in `aux`; gelu_grad multiplies the sums by the slope
// of gelu (the tanh form) at `aux`. Values are rounded where they are stored, and nowhere before.
struct MatmulEpilogue {
  enum class Function : uint8_t { none, relu, gelu, gelu_grad } function = Function::none;
  double alpha = 1;
  MatmulArray bias;    // varies over columns alone
  MatmulArray addend;  // may be the result's own memory
  MatmulArray aux;     // of gelu: absent, or a result as well
  MatmulArray result;
  bool plain() const { return function == Function::none && alpha == 1 && !bias && !addend; }
  std::string name() const;  // "bias+gelu+aux"
};

// A group that is such an epilogue as a whole.
std::optional<MatmulEpilogue> match_epilogue(const TileGroup& group);

// A group that begins with such an epilogue, whose result it stores and reads no further back than: what is left to do reads that result.
struct SplitEpilogue {
  MatmulEpilogue first;
  TileGroup rest;  // a group of its own over the same operands
};
std::optional<SplitEpilogue> split_epilogue(const TileGroup& group);

// A whole epilogue in two: sums with the addend go where its result does, and the rest works on them there. Right only where the result is
// not in the same memory as `aux`.
std::optional<SplitEpilogue> finish_in_place(const MatmulEpilogue& whole, const Shape& domain, int operands);

// The group as one that reads finished sums from memory: one more operand, put last, contiguous [batch, rows, columns]. Sums that the
// group rounds to 16 bits before anything else are stored so.
struct DetachedEpilogue {
  DType sums = DType::f32;
  TileGroup group;
};
DetachedEpilogue detach_epilogue(const TileGroup& group);

}  // namespace ridge::gpu
