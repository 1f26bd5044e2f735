// Sums over lists, computed in vector registers. A point of such a group is (sample, lane, target): weights vary over lanes and targets, states over samples
// and targets (or the index that a lane gives), and the sum runs over the lanes or over the samples. A vector holds samples, so a gathered state is one load.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "threads/task.h"

namespace ridge::cpu {

inline constexpr int64_t kPanelUnits = 8;  // vectors that one instruction computes at a time

enum class PanelCode : uint8_t { load, add, sub, sub_from, mul, div, div_into, neg, abs, sqrt, exp, tanh, sigmoid, sum, sum_product, store, store_first };
// How an instruction's operand is read for the vectors that are computed together: one number or one vector for all of them, numbers or vectors at a stride, or
// consecutive vectors. Listed operands are at the byte offset (i32) that a list has for the lane: picked vectors each at the offset of a lane of their own, a
// row's vectors consecutively at one lane's.
enum class PanelKind : uint8_t { number, numbers, vector, vectors, consecutive, picked, row };

// An instruction changes the current value x, or stores it, or adds it (times the operand) to sum number `sum`.
struct PanelInstr {
  PanelCode code = PanelCode::load;
  PanelKind kind = PanelKind::vector;
  int slot = 0, sum = 0;
};

// Where an operand's vectors are: p + target · n + lane · l + sample · s + u · u for the u-th of the vectors that are computed together; strides in bytes.
struct PanelSlot {
  std::byte* p = nullptr;
  int64_t n = 0, l = 0, s = 0, u = 0;
  const int32_t* offsets = nullptr;  // by lane, of a listed operand
};

struct PanelFrame {
  const PanelSlot* slots = nullptr;
  float* sums = nullptr;  // [sum][samples of a vector]
  bool halves = false;    // vectors of two lanes: the last one's second lane is left out of the sums
};

// Runs a program for `count` vectors (1 … kPanelUnits) from (target, lane, sample) on.
using PanelRun = void (*)(const std::vector<PanelInstr>& program, const PanelFrame& frame, int64_t target, int64_t lane, int64_t sample, int64_t count);

struct PanelHandlers {
  PanelRun run = nullptr;
  void (*add_totals)(float* sums, float* totals, int64_t n) = nullptr;  // adds the samples of n sums to n totals, and clears the sums
  int64_t width = 1;                                                    // samples of a vector
};

// Vectors of one or two lanes. Two lanes are interleaved: sample 0 of both, sample 1 of both, …; a number is a pair, and states are stored twice.
struct PanelLanes {
  PanelRun run = nullptr;  // with the lane as number of the vector
  int64_t lanes = 1;
  void (*spread)(const float* rows, float* twice, int64_t n) = nullptr;  // n vectors of samples; null for one lane
  void (*fold)(const float* sums, float* totals, int64_t n) = nullptr;   // adds the lanes of n vectors
};

}  // namespace ridge::cpu
