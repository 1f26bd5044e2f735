// Lowers a fused group to instructions. tile_choose.cpp and tile_update.cpp choose what is computed where, what is written straight to memory and which
// operations share a pass; tile_emit.cpp writes the instructions; tile_plan.cpp sizes blocks and buffers.
#pragma once
#include <limits>
#include <optional>

#include "backend/cpu/tile_axes.h"
#include "backend/cpu/tile_handlers.h"

namespace ridge::cpu {

// A value before it is assigned memory.
struct VirtualRegister {
  int64_t bytes = 4;
  TileShape shape = kScalar;
  bool kept = false;  // spans the whole reduction instead of one chunk
  int list = 0;       // the list that defines it
  int64_t first = 0, last = 0;
  int buffer = -1;
};

class TilePlanner {
 public:
  TilePlanner(const TileGroup& group, bool fixed, int threads, const KernelVariant& variant);
  std::unique_ptr<TilePlan> run();

 private:
  using Kind = TileNode::Kind;
  static constexpr int64_t kRowBudget = 384 << 10;  // bytes; rows, and strips of columns, up to this size are computed once and kept
  static constexpr int64_t kStrip = 1024;           // columns that are reduced together
  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
  static constexpr uint32_t kVirtual = 1u << 24, kLiteral = 1u << 25;  // tags of slots that have no numbers yet
  static constexpr uint32_t kNone = ~0u;
  static constexpr int64_t kListSpan = int64_t(1) << 32;

  const TileNode& node(int n) const { return group_.nodes[size_t(n)]; }
  int nodes() const { return int(group_.nodes.size()); }
  uint32_t bit(int axis) const { return 1u << axis; }
  int64_t stride(int access, int axis) const { return axes_.strides[size_t(access)][size_t(axis)]; }
  bool bounded(int access) const;
  TileShape shape_of(uint32_t mask) const;
  TileShape shape(int n) const { return shape_of(mask_[size_t(n)]); }
  // The shape of a reduction's value.
  TileShape reduced_shape() const { return shape_of(bit(group_.form == TileGroup::Template::row ? plan_->row : plan_->col)); }
  uint32_t access_mask(int access) const;
  bool unit_stride(int access, TileShape shape) const;
  bool in_body(uint32_t mask) const;
  bool stored_in_body(int n) const { return node(n).kind == Kind::store && (group_.form == TileGroup::Template::map || in_body(mask_[size_t(n)])); }
  bool is_value(int n) const { return node(n).kind != Kind::store && node(n).kind != Kind::reduce; }
  bool hoisted(int n) const;  // the same for all blocks of a unit
  static bool one_per_row(TileShape instr, TileShape operand);

  // Lists in execution order: 0 outer_pre, 1 block_pre, then body and after of each phase.
  static int body_list(int phase) { return 2 + 2 * phase; }
  static int after_list(int phase) { return 3 + 2 * phase; }

  // tile_plan.cpp
  void set_axes();
  void set_accesses();
  void set_parts();
  void change_parts();
  void allocate();
  void choose_blocks();
  void place_buffers();
  void choose_ahead();
  void number_slots();
  void estimate();

  // tile_choose.cpp
  void analyse();
  bool is_direct(int n) const;
  bool keeps(int n) const;
  std::vector<bool> needed(int phase);
  void choose_kept();
  static int pair_first(Op op);
  static std::optional<PairSecond> pair_second(Op op, int which);
  bool same_list(int m, int n) const;
  void choose_fused();
  int computed_at(int n) const;
  int fused_operand(int n) const;
  void choose_joined();
  bool joins_rounding(int n, int store) const;
  void choose_direct_stores();
  void choose_narrow_stores(int last_read);
  bool streams(int store) const;
  bool aliases(int n) const;
  bool reads_memory(int n) const;

  // tile_update.cpp
  std::optional<TileUpdate> find_update() const;
  void emit_update(TileUpdate update);  // its scalars are nodes

  // tile_emit.cpp
  std::vector<TileInstr>& list(int id);
  int64_t now() { return list_ * kListSpan + 2 * (int64_t(list(list_).size()) + 1); }
  uint32_t new_register(int64_t bytes, TileShape shape, bool kept = false);
  VirtualRegister& reg(uint32_t slot) { return registers_[slot & (kVirtual - 1)]; }
  void use(uint32_t slot, bool clobbers);
  void emit(TileHandler run, TileShape shape, uint32_t d, uint32_t a, uint32_t b, uint32_t c, const void* aux, bool clobbers, uint32_t e = 0);
  uint32_t literal(const TileNode& n);
  uint32_t literal_bits(int64_t bits);
  uint32_t value(int n);
  uint32_t target(int n);
  void finish_narrow(int n);
  void emit_node(int n);
  uint32_t emit_load(int n);
  void set_block_axes(TileShape s, int& row_axis, int& col_axis) const;
  uint32_t emit_index(int n);
  void emit_rounding(int n, uint32_t d);
  uint32_t emit_cast(int n);
  uint32_t emit_elementwise(int n);
  void emit_reduce(int n, int phase);
  static int64_t identity(TileReduce op, TileReg reg);
  void emit_store(int n);
  uint32_t emit_pair(int m, int n);
  uint32_t emit_joined(int n);
  void emit_all();
  void emit_body(int phase);
  void emit_after(int phase);

  struct BufferKind {
    int64_t bytes;
    TileShape shape;
    bool kept;
    auto operator<=>(const BufferKind&) const = default;
  };

  const TileGroup& group_;
  const int threads_;
  const KernelVariant variant_;
  TileAxes axes_;
  const TileHandlers& handlers_;
  std::unique_ptr<TilePlan> plan_;

  uint32_t reduced_ = 0;
  int64_t length_ = 1;
  int64_t strip_ = kStrip;
  std::vector<uint32_t> mask_;
  std::vector<int> phase_;
  std::vector<bool> direct_;
  std::vector<std::vector<int>> users_;
  int phases_ = 0;
  bool single_ = false;

  enum class Keep { none, costly, all } keep_ = Keep::none;  // costly: functions such as exponentials
  std::vector<int> computed_, last_phase_;
  std::vector<std::vector<bool>> needs_;
  std::vector<int> direct_store_;  // the store that a node's instruction does as well, or instead of writing a register
  std::vector<char> narrows_;      // a node's result is written as bf16, so that its cast and the store need no instructions
  std::vector<char> skipped_;      // such a cast
  std::vector<bool> streamed_;     // by access
  std::vector<int> fused_into_;    // the only user of a node, which computes it in the same pass; -1: none
  // A function, with what its instruction does in the same pass; by the node whose instruction it is.
  struct Joined {
    int function = -1, a = -1, b = -1;
    uint8_t join = 0;
    int store = -1;  // of the rounded operand
  };
  std::vector<Joined> joined_;
  int final_list_ = 0;

  int list_ = 0;
  std::vector<uint32_t> value_;
  std::vector<VirtualRegister> registers_;
  std::vector<BufferKind> buffer_kinds_;
};

}  // namespace ridge::cpu
