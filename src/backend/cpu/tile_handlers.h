// The vector code of the tile interpreter: one table of handlers per instruction tier.
#pragma once
#include <iterator>

#include "backend/cpu/panel_program.h"
#include "backend/cpu/tile_program.h"
#include "base/rng.h"
#include "machine/features.h"

namespace ridge::cpu {

inline constexpr int kTileRegs = 3;
inline constexpr int kTileOps = int(Op::input);  // all elementwise operations, which come first

// Two cheap operations in one pass, d = second(first(a, b), c): the intermediate value stays in a register.
inline constexpr Op kPairFirst[] = {Op::add, Op::sub, Op::mul, Op::maximum, Op::minimum};
enum class PairSecond : uint8_t { add, sub, sub_from, mul, maximum, minimum, neg, relu, exp, count };  // sub_from: c - first

// Operations that can write their result as bf16; others would only add code.
constexpr bool can_narrow(Op op) {
  switch (op) {
    case Op::add:
    case Op::sub:
    case Op::mul:
    case Op::div:
    case Op::relu:
    case Op::gelu_tanh:
    case Op::silu: return true;
    default: return false;
  }
}

struct TileHandlers {
  int lanes = 1;             // f32 per vector
  bool native_bf16 = false;  // the processor converts to bf16, which `narrow`, `joined`, `add_rounded` and `round_store` need
  // [op][register type of the operands (of the second one for select)][bit i: operand i has one value per row]
  TileHandler op[kTileOps][kTileRegs][8] = {};
  TileHandler joined[kTileOps] = {};            // functions of f32 that take TileInstr::join into account
  TileHandler add_rounded = nullptr;            // d = a + b rounded to bf16
  TileHandler cast[kTileRegs][kTileRegs] = {};  // [from][to]
  TileHandler truth[kTileRegs] = {};            // x != 0
  TileHandler round[kDTypes] = {};              // in place, to the precision of a storage type: f16, bf16, u8
  TileHandler round_store = nullptr;            // in f32, to the precision of bf16, and also stored as bf16 at e
  TileHandler round_native = nullptr;           // as round of bf16
  TileHandler copy[kTileRegs][2] = {};          // [register][one value per row]
  TileRectLoad load[kDTypes] = {};              // contiguous columns
  TileRectLoad load_strided[kDTypes] = {};
  TileGather gather_words = nullptr;
  TileRectLoad load_transposed = nullptr;    // 4-byte elements that are contiguous along the rows
  TileRectStore store[kDTypes][2] = {};      // contiguous columns, [one value per row]
  TileRectStore store_native = nullptr;      // as store of bf16
  TileRectStore store_stream[kDTypes] = {};  // non-temporal where aligned
  TileRectStore store_strided[kDTypes][2] = {};
  TileHandler row_reduce[kTileReduces][kTileRegs] = {};                     // over the columns of a, into d[row]
  TileHandler row_dot = nullptr;                                            // sum of a * b over the columns, each product rounded
  TileHandler scale_shift[8] = {};                                          // d = a * b * c + e, each step rounded; bits: b, c, e have one value per row
  TileHandler exp_sum[2] = {};                                              // d = exp(a - b), and e[row] += its sum over the columns; [b has one value per row]
  TileHandler pair[std::size(kPairFirst)][int(PairSecond::count)][4] = {};  // [bit 0: b, bit 1: c has one value per row]
  TileHandler column_reduce[kTileReduces][kTileRegs] = {};                  // over the rows of a, into d[col]
  TileHandler update = nullptr;                                             // aux is a TileUpdate
  TileRandom random = nullptr;
  PanelLanes panel_lanes;
  PanelSamples panel_samples[2];  // with vectors of at most eight samples, with whole vectors
  PanelHandlers panel_after;      // with vectors of at most eight samples
};

const TileHandlers& tile_handlers(IsaTier tier);

// Handlers without vector code; aux is a TileLoad, TileStore or TileIndex.
void tile_load(const TileInstr&, const TileFrame&, int64_t rows, int64_t cols);
void tile_store(const TileInstr&, const TileFrame&, int64_t rows, int64_t cols);
template <class T>
void tile_index(const TileInstr&, const TileFrame&, int64_t rows, int64_t cols);
void tile_check(const TileInstr&, const TileFrame&, int64_t rows, int64_t cols);
void tile_random(const TileInstr&, const TileFrame&, int64_t rows, int64_t cols);

// value (+) other for n partial values of a reduction; positions are used only for arg_*.
void tile_combine(TileReduce op, TileReg reg, void* value, int64_t* position, const void* other, const int64_t* other_position, int64_t n);

}  // namespace ridge::cpu
