// A fused group: one loop nest over a domain in which every value is a function of the loop indices. The fuser passes it to a backend,
// which turns it into a kernel. It is independent of any device.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "graph/op.h"
#include "ridge/dtype.h"
#include "ridge/shape.h"

namespace ridge {

// How an operand is addressed from the domain: element = offset + sum over axes of index * stride (+ the gathered part).
struct TileAccess {
  int operand = -1;  // index among the group's operands; -1 for pure index arithmetic (index and random nodes)
  DType dtype = DType::f32;
  int64_t offset = 0;  // in elements
  Shape strides;       // one per domain axis, in elements; 0 where broadcast, negative where flipped
  struct Bound {
    int axis;
    int64_t low, high;
  };
  std::vector<Bound> bounds;  // a load is in range if low <= index < high for all of them; otherwise it returns its fallback
  int gather = -1;            // node whose integer value times gather_stride is added to the element
  int64_t gather_stride = 0;
  int64_t gather_size = 0;  // valid values are 0 … gather_size - 1; any other raises the run's fault flag and reads element 0
  bool streaming = false;   // store: bypass the cache, because the next reader comes after more bytes than the last-level cache holds
};

struct TileNode {
  enum class Kind : uint8_t {
    load,         // access; in[0] = fallback outside the bounds (-1: zero)
    literal,      // value
    index,        // the access's element number as i32 or i64
    random,       // op = random_uniform (f32) or random_bits (i32, the raw word); in = seed, step (i64 values); access: see rng.h;
                  // in[2] = i64 value added to the access's element number; stream in `stream`
    check,        // 0 if the integer in[0] is in 0 … value - 1, else NaN and the run's fault flag, which reports the access's element number
    elementwise,  // op over in[]; operands have the types the op requires (casts are separate nodes)
    reduce,       // op = reduce_sum … arg_min over the reduced axes of in[0]; arg_* return i64, the first of equals, NaN first
    store,        // in[0] to access; once per point of the axes that in[0] varies over
  };
  Kind kind = Kind::load;
  Op op = Op::add;
  DType dtype = DType::f32;  // of the value; f16 and bf16 values are rounded after every node
  std::array<int, 3> in{-1, -1, -1};
  int access = -1;
  uint32_t stream = 0;
  double value = 0;  // literal, limit of a check (integers up to 2^53 exactly)
};

struct TileGroup {
  // map:    no reductions.
  // row:    the last `reduced` axes are reduced.
  // column: the `reduced` axes before the last one are reduced, the last one is kept.
  // In both, a reduction's value may be used at every point of its row or column, and reduced again (softmax, norms). Rows and columns may
  // be larger than any cache.
  enum class Template : uint8_t { map, row, column } form = Template::map;
  Shape domain;  // slowest first; any size may be 0 or 1
  int reduced = 0;
  std::vector<TileAccess> accesses;
  std::vector<TileNode> nodes;  // operands come before their users
  int operands = 0;             // memory operands, inputs and outputs; an output may share the memory of an input that is read with
                                // the same access (in place)
  int accumulator = -1;         // access index that reads a matmul's finished sums (domain is [batch, rows, columns]); -1: none
};

std::string to_string(const TileGroup& group);
void verify(const TileGroup& group);  // throws ErrorCode::internal when it breaks the rules above

// Whether the element changes along a reduced loop. If it does not, it is written when the reduction has finished.
bool moves_in_reduction(const TileGroup& group, const TileAccess& access);

}  // namespace ridge
