// What the text of a loop's kernel is made of: lines, addresses, inputs that are read ahead, and the loops over a thread's rows and points.
#pragma once
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "backend/gpu/loop_text.h"
#include "backend/gpu/tile_skeleton.h"

namespace ridge::gpu {

// A load from memory whose value is known before the loop or before the step: kept in registers.
struct LoopInput {
  int nest, node;  // the first that reads it
  bool moves, by_row, by_point;
  int parts;  // of a sum that a lane computes: one value for each; 0: the same for all
  int registers;
  int64_t limit;  // of an index: it is checked when it is loaded; -1: another value
  std::string name;
  std::vector<std::pair<size_t, int>> readers;
};

class LoopParts {
 protected:
  LoopParts(const ResidentLoop& loop, const KernelDialect& dialect);

  void line(const std::string& text) { text_.append(size_t(depth_) * 2, ' ') += text + "\n"; }
  void open(const std::string& text) { line(text), ++depth_; }
  void close() { --depth_, line("}"); }

  // ---- what the text uses ----

  int pointer(int operand);
  // The address of an operand, in the step `time` if it has one part per step.
  std::string address(int operand, DType dtype, const char* time);
  int last_operand(int carry) const { return int(loop_.inputs) + carry; }
  int stack_operand(int carry) const { return int(loop_.inputs + loop_.carries + loop_.outputs) + carry; }

  int slots(int64_t width) const { return loop_.slots(width); }
  const LoopValue& value(int v) const { return loop_.values[size_t(v)]; }
  std::string row_in_block() const { return loop_.groups > 1 ? fmt::format("(group * {} + r)", loop_.rows_each) : "r"; }
  // On matrix units, products take words of rounded numbers: of one or of two.
  static std::string factor(LoopFactor format, const std::string& x, const std::string& y = "0.f");
  static const char* factor_type(LoopFactor format) { return ResidentLoop::chunk(format) == 8 ? "u16" : "u32"; }
  // Stores the element of the thread's row r in its group of two.
  std::string store_factor(int v, const std::string& element, const std::string& x, bool sent_later = true) const;
  // Stores what other threads read, in all blocks of a cluster unless the warp sends it later.
  std::string put(const std::string& at, const char* type, const std::string& x, bool sent_later = true) const;
  const char* barrier() const { return loop_.cluster > 1 ? "@cluster_barrier;" : "@barrier;"; }
  std::string in_shared(int v, const std::string& element) const;
  // The conditions under which column n has an element in slot j of `width`; empty: always.
  std::string inside_row(int64_t width) const;
  static std::string both(const std::string& a, const std::string& b) { return a.empty() || a == "true" ? b : b.empty() || b == "true" ? a : a + " && " + b; }
  // The same for the points of a nest.
  std::string inside_points(const LoopNest& nest) const { return loop_.is_wide(nest) ? fmt::format("e < {}", nest.points) : inside_row(nest.points); }
  std::string element_of_slot() const { return loop_.columns == 1 ? "j" : fmt::format("(j * {} + n)", loop_.columns); }
  std::string one_lane() const { return loop_.lanes > 1 ? "lane == 0" : ""; }

  // ---- inputs that are read ahead ----

  uint32_t axes(int from, int count) const { return count == 0 ? 0u : ((1u << count) - 1) << from; }

  void find_inputs();
  bool reads_the_same(const LoopInput& a, const LoopInput& b) const;
  // The limit of a value that is an index of the loop's values and nothing else; -1 if it is not.
  static int64_t index_limit(const LoopNest& nest, int n);
  const LoopInput* input_of(size_t nest, int node) const;
  // How many points of a sum each lane takes.
  int64_t parts_of(const LoopNest& nest) const { return (nest.reduced + loop_.lanes - 1) / loop_.lanes; }
  static std::string name_of(const LoopInput& input, const char* copy);
  // Where a step reads it.
  std::string read(const LoopInput& input) const { return name_of(input, !input.moves || ahead_ == 0 ? "" : ahead_ > 1 ? "[d]" : "held"); }
  void declare(const LoopInput& input, const std::string& copies, const char* suffix = "");
  void hold(const LoopInput& input);
  void load_input(const LoopInput& input);
  // Reads inputs for a later step: those that this stage is the last to use; -1: all.
  void load_next(int stage = -1);
  void load_step(int stage = -1);
  int last_stage(const LoopInput& input) const;

  void add(TileWriter& out);

  // ---- loops over a thread's rows and points, with the indices of the nest's axes ----

  void coordinates(const LoopNest& nest, int first, int count, const std::string& number);
  template <class Line>
  static void reduced_coordinates(const LoopNest& nest, const Line& put) {  // from their number q
    const int first = nest.row_axes + nest.point_axes;
    std::string rest = "q";
    for (int i = nest.group.domain.rank() - 2; i >= first; --i) {
      const int64_t size = nest.group.domain[i];
      if (i == first) {
        put(fmt::format("const int x{} = {};", i, rest));
      } else {
        put(fmt::format("const int x{} = (int)((u32){} % {}u), y{} = (int)((u32){} / {}u);", i, rest, size, i, rest, size));
        rest = fmt::format("y{}", i);
      }
    }
  }
  void begin_rows(const LoopNest& nest);
  void begin_points(const LoopNest& nest);
  void each_element(int64_t width, const std::string& statement);  // of rows

  const ResidentLoop& loop_;
  const KernelDialect& dialect_;
  LoopShared shared_;
  std::vector<TileFacts> facts_;
  std::vector<LoopInput> inputs_;
  std::vector<int> operands_;
  std::string text_;
  int depth_ = 0, ahead_;
};

}  // namespace ridge::gpu
