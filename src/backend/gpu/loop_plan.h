// Whether a whole loop over time can be one kernel, and how. Each block of threads takes some rows of the batch through all steps, so blocks never wait for
// each other: carries stay in registers and shared memory, and so do the weights of products. Derived from the program of one step alone.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "backend/gpu/chip.h"
#include "compile/program.h"

namespace ridge::gpu {

// How a product's factors are rounded before they are multiplied.
enum class LoopFactor : uint8_t { f32, tf32, bf16, f16 };

// A value that a step computes or reads from the step before, as [rows, width].
//
// Element e of a row belongs to thread column e mod `columns`. A thread that reads only its own elements finds them in its registers; others are exchanged
// through shared memory, after a barrier.
struct LoopValue {
  DType dtype = DType::f32;
  int64_t width = 0;
  int carry = -1;                       // which carry; -1: lives for one step
  bool entering = false;                // the carry at the start of the step; otherwise at its end
  bool uniform = false;                 // one number for all rows, such as a time index: every thread computes it
  bool registers = true;                // every store is by the element's owner
  bool shared = false;                  // some thread reads elements of others
  bool factor = false;                  // matrix units multiply it: its rounded elements are in shared memory too
  LoopFactor format = LoopFactor::f32;  // of these
  int stage = -1;                       // that has computed it
  int first = -1, last = -1;            // stages that first write and last read it
};

// Where an access of a nest goes: to a value of the loop, or to memory through an operand of the scan.
struct LoopAccess {
  int value = -1, operand = -1;
  bool moves = false;  // in memory: has one part per step
  bool own = false;    // a value's element belongs to the thread that accesses it, `shift` slots after the point's own
  int64_t shift = 0;
};

// Sums over `depth` elements of a value, starting at `offset` in each row, times weights that are the same in all steps.
struct LoopProduct {
  int value = -1;
  int64_t offset = 0, stride = 1, depth = 0, columns = 0;
  int weights = -1;  // operand of the scan
  DType dtype = DType::f32;
  LoopFactor format = LoopFactor::f32;
  int64_t weight_offset = 0, depth_stride = 0, column_stride = 0;  // in elements
};

// One loop nest of the step: axes that number the rows, then those that number the points of a row, then reduced ones, then one of size 1.
struct LoopNest {
  TileGroup group;
  int row_axes = 0, point_axes = 0;
  int64_t points = 1, reduced = 1;  // per row; per point
  int stage = 0;                    // nests of a stage need no barrier between them
  bool uniform = false;             // computes uniform values, from others and from memory
  std::optional<LoopProduct> product;
  std::vector<LoopAccess> accesses;
  std::string name;
};

struct ResidentLoop {
  int64_t rows = 0;
  bool reverse = false;
  size_t carries = 0, inputs = 0, outputs = 0;  // of the step; inputs: carries, sequences, constants; outputs without carries
  std::vector<LoopValue> values;
  std::vector<LoopNest> nests;         // in the order in which they run
  std::vector<int> entering, leaving;  // values, by carry
  std::vector<char> last, stack;       // by carry: results that are needed
  int stages = 1;

  // A thread is (group of rows, column, lane). A group takes `rows_each` rows; lanes share the sums of a column. On matrix units, there are 4 groups of 2 rows
  // or a multiple of 2 and a warp takes 8 columns, so that a thread's sums of two slots of a column and two rows are a fragment of 16 lines of weights and
  // 8 rows of the value. More rows multiply each fragment of weights that is read more often, and keep fewer blocks busy. With two splits, half of the
  // threads multiply one half of the depth for the rows of all, and the other half the other: then registers hold twice as many weights.
  bool matrix = false;
  int cluster = 1;  // blocks that share the columns of their rows: each has the weights of its columns, and all have the values that threads exchange
  int columns = 1, padded_columns = 1, lanes = 1, groups = 1, rows_each = 1, splits = 1;
  bool sends = false;  // warps send their columns to the other blocks of a cluster, which wait for these alone; otherwise all wait for all stores of a stage
  int ahead = 4;       // steps whose inputs are in registers; 1: those of the next step, in a long step; 0: those of the next step as soon as the
                       // registers of this step's are free
  int weight_registers = 0;  // per thread; the remaining weights are in shared memory
  int threads() const { return groups * padded_columns * lanes / cluster; }
  int64_t blocks() const { return (rows + int64_t(groups) * rows_each - 1) / (int64_t(groups) * rows_each) * cluster; }
  // A nest of many points per row: all threads of a group take turns, and exchange everything.
  bool is_wide(const LoopNest& nest) const { return columns > 1 && !nest.product && slots(nest.points) > kMostSlotsOfNest; }
  static constexpr int kMostSlotsOfNest = 8;
  int slots(int64_t width) const { return int((width + columns - 1) / columns); }
  int tiles() const { return groups * rows_each / 8; }                                              // on matrix units: of 8 rows
  int sharers() const { return matrix ? 4 * splits : lanes; }                                       // threads that hold the weights of a column
  static int chunk(LoopFactor f) { return f == LoopFactor::bf16 || f == LoopFactor::f16 ? 8 : 4; }  // weights in the 16 bytes that a thread takes at a time
  int chunks(const LoopProduct& p) const { return int((p.depth + chunk(p.format) * sharers() - 1) / (chunk(p.format) * sharers())); }
  bool exchanges() const;            // threads meet at barriers
  bool meets_between_steps() const;  // there is one after the last stage
};

struct LoopCandidates {
  std::vector<ResidentLoop> loops;  // that differ in how they multiply and where weights are; some may need more registers than there are
  std::string refusal;              // why there is none
};
// `kernel` is the scan in the program that contains it.
LoopCandidates plan_loop(const ProgramKernel& kernel, const GpuChip& chip);

}  // namespace ridge::gpu
