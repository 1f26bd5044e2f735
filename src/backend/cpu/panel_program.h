// Sums over lists, computed in vector registers. A point of such a group is (sample, lane, target): weights vary over lanes and targets, states over samples
// and targets (or the index that a lane gives), and the sum runs over the lanes or over the samples. A vector holds samples, so a gathered state is one load.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace ridge::cpu {

inline constexpr int64_t kPanelUnits = 8;  // vectors that one instruction computes at a time

enum class PanelCode : uint8_t {
  load,
  add,
  sub,
  sub_from,
  mul,
  div,
  div_into,
  scale,
  sum_product,
  neg,
  abs,
  sqrt,
  exp,
  tanh,
  sigmoid,
  slope,
  sum,
  sum_pair,
  sum_both,
  store,
  store_first,
  end
};
constexpr bool has_operand(PanelCode code) { return code <= PanelCode::sum_product; }
// How an instruction's operand is read for the vectors that are computed together: one number or one vector for all of them, numbers or vectors at a stride, or
// consecutive vectors. Kept vectors are temporaries, the same wherever the program runs. Listed operands are at the byte offset that a list has for the lane:
// picked vectors each at the offsets of its lanes, own vectors at the one that all of its lanes have, a row's vectors consecutively at one lane's.
enum class PanelKind : uint8_t { number, numbers, vector, vectors, consecutive, kept, picked, own, row };
inline constexpr int kPanelCodes = int(PanelCode::end) + 1, kPanelKinds = int(PanelKind::row) + 1;

// An instruction changes the current value x (slope: to x · (1 - x)), or stores it, or adds it (times the operand) to sum number `sum`. The last one is `end`.
// scale loads a state, less the first and times the second of two numbers of the lane.
// A pair is a · u + b · v, of two numbers of a lane and of two states that it picks with one index; sum_pair adds x times the pair.
// sum_both adds x times two numbers of a lane to two sums: this one and the next.
struct PanelInstr {
  PanelCode code = PanelCode::load;
  PanelKind kind = PanelKind::vector;
  int slot = 0, sum = 0;
};

// Where an operand's vectors are: p + target · n + lane · l + u · u for the u-th of the vectors that are computed together; strides in bytes. In sums over
// samples, vectors also start at the first sample.
struct PanelSlot {
  std::byte* p = nullptr;
  int64_t n = 0, l = 0, u = 0;
  const int32_t* offsets = nullptr;  // by lane, of a listed operand
  const float* numbers = nullptr;    // by vector those of its lanes, twice: of scale; by lane two: of a pair and of sum_both
};

// An instruction with its operand's place, ready to run.
struct PanelStep {
  const void* run = nullptr;
  PanelSlot slot;
  int64_t sum = 0;  // in bytes
};

// Where a program runs.
struct PanelPlace {
  int64_t target = 0, lane = 0;
  int64_t sample = 0;             // in bytes of a row of states
  float* sums = nullptr;          // [sum][samples of a vector]
  const int32_t* into = nullptr;  // by vector: byte offsets of the sums that it is added to
};

// Programs come in forms that differ in what the places of operands depend on, and are made ready for a number of vectors: 1, 2, 4 or kPanelUnits.
enum class PanelForm : uint8_t {
  lanes,    // each vector has a lane of its own, or two, and sums of its own; always kPanelUnits vectors
  samples,  // vectors of samples of one lane; numbers depend on the lane only
  after,    // with strides over targets and lanes; no sums
};
struct PanelHandlers {
  void (*make_ready)(std::span<const PanelInstr> program, const PanelSlot* slots, int64_t vectors, PanelStep* steps) = nullptr;
  void (*run)(const PanelStep* steps, const PanelPlace& place) = nullptr;
  int64_t width = 1;  // samples of a vector
};

// Sums of a target by vector: of whole vectors, and of vectors of which only the first lane counts.
inline constexpr int64_t kPanelSums = 2;

// Vectors of one or two lanes. Two lanes are interleaved: sample 0 of both, sample 1 of both, …; a number is a pair, and states are stored twice. The two
// states of a pair are stored next to each other: interleaved if lanes are, otherwise as two vectors. So are the sums of sum_both, which are then one vector.
struct PanelLanes {
  PanelHandlers handlers, after;  // vectors of the program after the sums hold the samples of as many targets
  int64_t lanes = 1;
  void (*spread)(const float* rows, float* twice, int64_t n) = nullptr;            // n vectors of samples; null for one lane
  void (*join)(const float* u, const float* v, float* both, int64_t n) = nullptr;  // n vectors of samples of two states
  // Adds the kPanelSums and lanes of each target's n totals: [n][targets]. The first 2 · `both` totals are of sum_both, which interleaves its two sums if lanes
  // are.
  void (*fold)(const float* sums, float* totals, int64_t targets, int64_t n, int64_t both) = nullptr;
};

struct PanelSamples {
  PanelHandlers handlers;
  void (*add_totals)(float* sums, float* totals, int64_t n) = nullptr;  // adds the samples of n sums to n totals, and clears the sums
};

}  // namespace ridge::cpu
