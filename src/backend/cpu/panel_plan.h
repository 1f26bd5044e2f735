// Decides whether a group is a sum over lists that runs as a panel program (panel_program.h), and writes that program.
#pragma once
#include <array>
#include <optional>
#include <vector>

#include "backend/cpu/panel_program.h"
#include "backend/cpu/tile_axes.h"
#include "compile/tile_group.h"

namespace ridge::cpu {

// An operand of a program before its memory is known. Strides are in elements.
struct PanelLeaf {
  enum class Source : uint8_t { weight, state, pair, both, literal, temp, total, output } source = Source::weight;
  int access = -1;            // weight, state, output
  int number = 0;             // of a state, pair, both, literal, temp, total or output
  int index_access = -1;      // of a gathered operand
  int64_t size = 0, row = 0;  // of the gathered axis, and its stride
  bool by_lane = false;       // a state with a row for each lane
  int scale = -1;             // a state of PanelPlan::scales
  int computed = -1;          // a weight that is a value of PanelPlan::computed
};

struct PanelPlan {
  bool sums_samples = false;  // else lanes
  int64_t samples = 0, lanes = 0, targets = 0;
  int sample_axis = 0, lane_axis = 0, target_axis = 0;
  TileAxes axes;
  std::vector<PanelInstr> main, after;
  std::vector<PanelLeaf> leaves;  // by slot
  struct State {
    int access;
    int64_t rows;    // targets, or the size of the gathered axis
    int64_t stride;  // from one row to the next
  };
  std::vector<State> states;  // transposed before the sums
  struct Pair {               // a · u + b · v
    int weights[2], states[2];
  };
  std::vector<Pair> pairs;
  struct Both {  // x · a and x · b, whose totals are 2 i and 2 i + 1
    PanelLeaf weights[2];
  };
  std::vector<Both> boths, scales;  // (state - a) · b
  std::vector<int> outputs;         // accesses
  // What only weights decide is computed once for each target and lane, while the lists are packed: a weight, a number, or an operation on earlier ones.
  struct Computed {
    Op op = Op::add;
    std::array<int, 3> in{-1, -1, -1};
    int access = -1;
    float number = 0;
  };
  std::vector<Computed> computed;
  std::vector<float> literals;
  int temps = 0, totals = 0, operands = 0;
  // Which results are 0 whatever the states are, because a weight is: steps in order, the last ones for all sums (of lanes) or all results (of samples).
  struct Zero {
    enum class Rule : uint8_t { weight, same, either, both } rule = Rule::weight;
    int a = -1, b = -1;  // steps
    PanelLeaf leaf;      // of a weight
  };
  std::vector<Zero> zeros;
  std::vector<int> zero_results;  // steps; empty: no entry can be left out
};

std::optional<PanelPlan> plan_panel(const TileGroup& group);

}  // namespace ridge::cpu
