// The state of a tile kernel while its text is written, shared by the skeletons. Used only by tile_source and the skeleton files.
#pragma once
#include <string>
#include <vector>

#include "backend/gpu/tile_source.h"
#include "backend/gpu/tile_writer.h"

namespace ridge::gpu {

const char* joiner(Op op);  // the name of its join function in the prelude
bool is_arg(Op op);

// The nodes that a phase must compute: the operands of its reductions, and in the last phase the stores within rows.
std::vector<int> phase_roots(const TileGroup& group, const TileFacts& facts, int phase);
// The nodes within rows that a phase computes, given the results of earlier reductions.
std::vector<char> phase_nodes(const TileGroup& group, const TileFacts& facts, int phase);
std::vector<int> all_stores(const TileGroup& group);

class TileSkeleton {
 public:
  TileSkeleton(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule)
      : group_(group), facts_(facts), schedule_(schedule), out_(group, facts) {}

  TileText map();
  TileText transposed_map();
  TileText row();
  TileText row_part();
  TileText column();
  TileText combine();

 private:
  void use(const std::vector<int>& roots, int known = 0);
  int pointer(int operand) const { return int(std::find(pointers_.begin(), pointers_.end(), operand) - pointers_.begin()); }
  void use_group();  // the whole group, or only one phase if its reductions are split
  void begin_function(const std::string& head);
  void declare_pointers();
  void coordinates(const std::vector<int>& axes, const std::string& number, bool narrow = false);
  bool narrow_reduced() const { return reduced_points(group_) < (int64_t(1) << 31) - (1 << 22); }  // positions in a row fit in 32 bits
  void kept_values_of(int phase, const std::string& live);
  void begin_accumulators(int phase);
  void accumulate(int phase, const std::string& here, const std::string& position);
  void finish_reduction(int n, const std::string& joined);
  std::string accumulator(int n) const;
  std::string aligned() const;
  std::string entry_types() const;
  TileText finish(const char* entry, const std::string& kernel, int64_t shared = 0);
  void row_function();
  void join_parts(int phase);
  void begin_kept_vectors();
  std::vector<int> plain_loads(const std::vector<char>& computes) const;
  void load_ahead(int phase, TileKept& kept, std::vector<char>& made);
  void kept_pass(int phase, const TileKept& kept, const std::vector<char>& made);
  void kept_loads();
  void copied_row(const std::string& row);
  void copy_vectors(const std::string& there);
  void loop_pass(int phase, const TileKept& kept, const std::vector<char>& made);
  void begin_rows();
  void begin_rows_ahead();
  void end_rows();
  bool is_sum(int store) const;            // a sum over rows, kept until the block finishes
  std::vector<int> sums_of_rows() const;   // such stores
  int64_t region_of_sum(int store) const;  // of shared memory, in regions of a row for each warp; -1: the sum stays in registers
  void row_body(int phase, const std::string& here);
  std::string call() const;
  void body_stores(int phase, const std::string& here, const std::string& live);
  void kept_stores(const std::string& live);
  int64_t shared_layout();
  int index(int reduce) const;  // index among the group's reductions

  const TileGroup& group_;
  const TileFacts& facts_;
  const TileSchedule& schedule_;
  TileWriter out_;
  std::vector<char> alive_;
  std::vector<int> pointers_;
  std::vector<std::string> shared_address_;
};

}  // namespace ridge::gpu
