// Runs planned groups: defines their units, and loops over blocks, chunks and phases within a unit.
#include "backend/cpu/tile_kernel.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/panel_kernel.h"
#include "backend/cpu/tile_handlers.h"
#include "base/error.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace ridge::cpu {
namespace {

constexpr int kMaxAxes = kMaxRank + 2;
constexpr int64_t kUnitPoints = 32768;

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

void store_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// One thread's registers and position while it runs a plan's units.
class Runner {
 public:
  Runner(const TilePlan& plan, const Ref* operands, Worker& worker) : plan_(plan), slots_(reinterpret_cast<TileSlot*>(worker.scratch)) {
    const size_t accesses = plan.accesses.size();
    std::byte* p = worker.scratch + round_up(plan.slot_count() * int64_t(sizeof(TileSlot)), 64);
    bases_ = reinterpret_cast<std::byte**>(p);
    tiles_ = p + round_up(int64_t(accesses) * 8, 64);
    for (size_t a = 0; a < accesses; ++a) {
      const TilePlan::Access& access = plan.accesses[a];
      bases_[a] = access.operand >= 0 ? worker.at<std::byte>(operands[access.operand]) + access.offset : nullptr;
      slots_[a].row = access.row_stride;
    }
    TileSlot* s = slots_ + accesses;
    for (const TilePlan::Buffer& b : plan.buffers) *s++ = {tiles_ + b.offset, b.row};
    for (const int64_t& l : plan.literals) *s++ = {reinterpret_cast<std::byte*>(const_cast<int64_t*>(&l)), 0};
    for (const auto& phase : plan.phases) instructions_ += int64_t(phase.body.size());
    frame_.slots = slots_;
    frame_.index = index_;
    frame_.fault = worker.fault;
  }

  // Blocks of a map plan, numbered over (outer, rows, columns).
  void map_blocks(int64_t begin, int64_t end) {
    const int64_t rows = size(plan_.row), cols = size(plan_.col), down = ceil_div(rows, plan_.block_rows), across = ceil_div(cols, plan_.block_cols);
    int64_t col = begin % across, row = begin / across % down;
    set_outer(begin / across / down);
    for (int64_t b = begin; b < end; ++b) {
      index_[plan_.row] = row * plan_.block_rows, index_[plan_.col] = col * plan_.block_cols;
      point_accesses();
      set_extent(std::min(plan_.block_rows, rows - index_[plan_.row]), std::min(plan_.block_cols, cols - index_[plan_.col]));
      if (fresh_) run(plan_.outer_pre), fresh_ = false;
      look_ahead(b + 2 < end);
      run_body(plan_.phases[0].body);
      if (++col < across) continue;
      col = 0;
      if (++row < down) continue;
      row = 0;
      if (b + 1 < end) set_outer((b + 1) / across / down);
    }
  }

  // Part of a block of a matmul's result; operand offsets are relative to the whole result.
  void map_rect(int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols, const float* sums, int64_t ld) {
    index_[plan_.outer[0]] = batch;
    for (int64_t r = 0; r < rows; r += plan_.block_rows) {
      for (int64_t c = 0; c < cols; c += plan_.block_cols) {
        index_[plan_.row] = row + r, index_[plan_.col] = col + c;
        point_accesses();
        TileSlot& acc = slots_[plan_.accumulator];
        acc.p = reinterpret_cast<std::byte*>(const_cast<float*>(sums + r * ld + c)), acc.row = ld * 4;
        set_extent(std::min(plan_.block_rows, rows - r), std::min(plan_.block_cols, cols - c));
        if (fresh_) run(plan_.outer_pre), fresh_ = false;
        run(plan_.phases[0].body);
      }
    }
  }

  // Blocks of whole rows, numbered over (outer, rows).
  void row_blocks(int64_t begin, int64_t end) {
    const int64_t rows = size(plan_.row), down = ceil_div(rows, plan_.block_rows);
    for (int64_t b = begin; b < end; ++b) {
      set_outer(b / down);
      const int64_t first = b % down * plan_.block_rows;
      start_rows(first, std::min(plan_.block_rows, rows - first));
      look_ahead(first + 2 * plan_.block_rows <= rows);
      for (const TilePlan::Phase& phase : plan_.phases) {
        reset(phase, rows_);
        if (plan_.chunks == 1) {  // whole rows: all slots already point at the block
          run_body(phase.body), run(phase.after);
        } else {
          chunks(phase, 0, plan_.chunks), finish(phase);
        }
      }
    }
  }

  // All parts of one row, phase by phase: the same sums as by row_part and row_combine.
  void row_of_parts(int64_t row, std::byte* workspace, const struct SplitLayout& layout);

  // One part of one row: its partial results for a phase's reductions, written to partial[sum][row][part].
  void row_part(int phase, int64_t row, int64_t part, std::byte* workspace, const struct SplitLayout& layout);
  void row_combine(int phase, int64_t row, std::byte* workspace, const struct SplitLayout& layout);
  void column_part(int phase, int64_t strip, int64_t part, std::byte* workspace, const struct SplitLayout& layout);
  void column_combine(int phase, int64_t strip, std::byte* workspace, const struct SplitLayout& layout);

  void column_strip(int64_t strip) {
    start_strip(strip);
    for (const TilePlan::Phase& phase : plan_.phases) {
      reset(phase, cols_);
      chunks(phase, 0, plan_.chunks);
      finish_strip(phase);
    }
  }

 private:
  int64_t size(int axis) const { return plan_.sizes[size_t(axis)]; }

  void set_outer(int64_t number) {
    if (!fresh_ && number == outer_) return;
    outer_ = number, fresh_ = true;
    for (size_t i = plan_.outer.size(); i-- > 0;) {
      const int axis = plan_.outer[i];
      index_[axis] = number % size(axis), number /= size(axis);
    }
  }

  void set_extent(int64_t rows, int64_t cols) {
    rows_ = rows, cols_ = cols;
    extents_[kScalar] = {1, 1}, extents_[kRows] = {1, rows}, extents_[kColumns] = {1, cols}, extents_[kBlock] = {rows, cols};
  }

  void point_accesses() {
    for (size_t a = 0; a < plan_.accesses.size(); ++a) {
      std::byte* p = bases_[a];
      for (auto [axis, stride] : plan_.accesses[a].terms) p += index_[axis] * stride;
      slots_[a].p = p;
    }
  }

  void run(const std::vector<TileInstr>& list) {
    for (const TileInstr& in : list) in.run(in, frame_, extents_[in.shape].rows, extents_[in.shape].cols);
  }

  // Prefetches part of the next block's input before each instruction, so that memory stays busy.
  void run_body(const std::vector<TileInstr>& list) {
    for (const TileInstr& in : list) {
      if (ahead_steps_ > 0) fetch_ahead();
      in.run(in, frame_, extents_[in.shape].rows, extents_[in.shape].cols);
    }
  }

  void look_ahead(bool whole_block_follows) {
    ahead_steps_ = whole_block_follows && !plan_.ahead.empty() ? instructions_ : 0;
    ahead_step_ = 0;
  }

  void fetch_ahead() {
    for (const TilePlan::Ahead& ahead : plan_.ahead) {
      const std::byte* next = slots_[ahead.slot].p + ahead.bytes;
      const int64_t first = ahead.share * ahead_step_, end = std::min(first + ahead.share, ahead.bytes);
      for (int64_t k = first; k < end; k += 64) __builtin_prefetch(next + k);
    }
    if (++ahead_step_ == ahead_steps_) ahead_steps_ = 0;
  }

  void start_rows(int64_t first, int64_t rows) {
    index_[plan_.row] = first, index_[plan_.col] = 0;
    for (int axis : plan_.loop) index_[axis] = 0;
    point_accesses();
    set_extent(rows, std::min(plan_.block_cols, size(plan_.col)));
    if (fresh_) run(plan_.outer_pre), fresh_ = false;
    run(plan_.block_pre);
  }

  void start_strip(int64_t strip) {
    const int64_t cols = size(plan_.col), across = ceil_div(cols, plan_.block_cols);
    set_outer(strip / across);
    index_[plan_.col] = strip % across * plan_.block_cols, index_[plan_.row] = 0;
    for (int axis : plan_.loop) index_[axis] = 0;
    point_accesses();
    set_extent(1, std::min(plan_.block_cols, cols - index_[plan_.col]));
    run(plan_.outer_pre);
    fresh_ = true;  // the next strip has different columns
  }

  void reset(const TilePlan::Phase& phase, int64_t n) {
    for (const TileAccumulator& sum : phase.sums) {
      std::byte* p = slots_[sum.value].p;
      if (reg_bytes(sum.reg) == 8) {
        std::fill_n(reinterpret_cast<int64_t*>(p), n, sum.identity);
      } else {
        std::fill_n(reinterpret_cast<int32_t*>(p), n, int32_t(sum.identity));
      }
      if (sum.op >= TileReduce::arg_max) std::fill_n(reinterpret_cast<int64_t*>(slots_[sum.position].p), n, int64_t(-1));
    }
  }

  void chunks(const TilePlan::Phase& phase, int64_t begin, int64_t end) {
    if (phase.body.empty()) return;
    const bool by_row = plan_.form == TilePlan::Form::row;
    const int axis = by_row ? plan_.col : plan_.row;
    const int64_t step = by_row ? plan_.block_cols : plan_.block_rows, length = size(axis), across = ceil_div(length, step);
    for (int64_t k = begin; k < end; ++k) {
      int64_t loop = k / across;
      const int64_t first = k % across * step;
      frame_.reduced_base = loop * length + first;
      for (size_t i = plan_.loop.size(); i-- > 0;) index_[plan_.loop[i]] = loop % size(plan_.loop[i]), loop /= size(plan_.loop[i]);
      index_[axis] = first;
      point_accesses();
      if (by_row) {
        set_extent(rows_, std::min(step, length - first));
      } else {
        set_extent(std::min(step, length - first), cols_);
      }
      point_kept();
      run_body(phase.body);
    }
  }

  // Points buffers that span the reduction at the chunk's first point.
  void point_kept() {
    for (size_t b = 0; b < plan_.buffers.size(); ++b)
      if (plan_.buffers[b].kept) slots_[plan_.accesses.size() + b].p = tiles_ + plan_.buffers[b].offset + frame_.reduced_base * plan_.buffers[b].kept;
  }

  void finish(const TilePlan::Phase& phase) {
    index_[plan_.col] = 0;
    for (int axis : plan_.loop) index_[axis] = 0;
    point_accesses();
    run(phase.after);
  }

  void finish_strip(const TilePlan::Phase& phase) {
    index_[plan_.row] = 0;
    for (int axis : plan_.loop) index_[axis] = 0;
    point_accesses();
    set_extent(1, cols_);
    run(phase.after);
  }

  void sum_part(int phase, int64_t row, int64_t part, std::byte* workspace, const struct SplitLayout& layout);
  void join_parts(int phase, int64_t row, const std::byte* workspace, const struct SplitLayout& layout);

  // Loads the values of `n` rows or columns from `first` on that earlier phases left for this one.
  void fetch_carried(int phase, int64_t first, int64_t n, const std::byte* workspace, const struct SplitLayout& layout);
  void leave_carried(int phase, int64_t first, int64_t n, std::byte* workspace, const struct SplitLayout& layout);

  struct Extent {
    int64_t rows = 1, cols = 1;
  };
  const TilePlan& plan_;
  TileSlot* slots_;
  std::byte** bases_;
  std::byte* tiles_;
  TileFrame frame_;
  int64_t index_[kMaxAxes] = {};
  Extent extents_[4];
  int64_t rows_ = 1, cols_ = 1;
  int64_t instructions_ = 0;  // in all bodies
  int64_t ahead_steps_ = 0, ahead_step_ = 0;
  int64_t outer_ = 0;
  bool fresh_ = true;

  friend struct SplitLayout;
};

// Where the workspace holds the partial results of split reductions and the values that are passed between phases.
struct SplitLayout {
  struct Cell {
    int64_t value = 0, position = 0;  // byte offsets
  };
  std::vector<std::vector<Cell>> sums;        // [phase][sum]
  std::vector<std::vector<int64_t>> carried;  // [phase][value]
  int64_t results = 0;                        // rows, or all kept points of a column plan
  int64_t bytes = 0;

  explicit SplitLayout(const TilePlan& plan) {
    if (plan.parts == 1) return;
    const int kept = plan.form == TilePlan::Form::row ? plan.row : plan.col;
    results = plan.size_of(plan.outer) * plan.sizes[size_t(kept)];
    auto take = [&](int64_t n) {
      int64_t at = bytes;
      bytes += round_up(n, 64);
      return at;
    };
    for (const auto& phase : plan.phases) {
      sums.emplace_back(), carried.emplace_back();
      for (const auto& sum : phase.sums) {
        Cell cell;
        cell.value = take(results * plan.parts * reg_bytes(sum.reg));
        if (sum.op >= TileReduce::arg_max) cell.position = take(results * plan.parts * 8);
        sums.back().push_back(cell);
      }
      for (const auto& value : phase.carried) carried.back().push_back(take(results * value.bytes));
    }
  }
};

int64_t part_begin(const TilePlan& plan, int64_t part) { return plan.chunks * part / plan.parts; }

void Runner::row_part(int p, int64_t row, int64_t part, std::byte* workspace, const SplitLayout& layout) {
  const int64_t rows = size(plan_.row);
  set_outer(row / rows);
  start_rows(row % rows, 1);
  fetch_carried(p, row, 1, workspace, layout);
  sum_part(p, row, part, workspace, layout);
}

void Runner::sum_part(int p, int64_t row, int64_t part, std::byte* workspace, const SplitLayout& layout) {
  const TilePlan::Phase& phase = plan_.phases[size_t(p)];
  reset(phase, 1);
  chunks(phase, part_begin(plan_, part), part_begin(plan_, part + 1));
  for (size_t k = 0; k < phase.sums.size(); ++k) {
    const TileAccumulator& sum = phase.sums[k];
    const int64_t cell = row * plan_.parts + part, bytes = reg_bytes(sum.reg);
    std::memcpy(workspace + layout.sums[size_t(p)][k].value + cell * bytes, slots_[sum.value].p, size_t(bytes));
    if (sum.op >= TileReduce::arg_max) std::memcpy(workspace + layout.sums[size_t(p)][k].position + cell * 8, slots_[sum.position].p, 8);
  }
}

void Runner::row_combine(int p, int64_t row, std::byte* workspace, const SplitLayout& layout) {
  const int64_t rows = size(plan_.row);
  set_outer(row / rows);
  start_rows(row % rows, 1);
  fetch_carried(p, row, 1, workspace, layout);
  join_parts(p, row, workspace, layout);
  finish(plan_.phases[size_t(p)]);
  leave_carried(p, row, 1, workspace, layout);
}

void Runner::row_of_parts(int64_t row, std::byte* workspace, const SplitLayout& layout) {
  const int64_t rows = size(plan_.row);
  set_outer(row / rows);
  start_rows(row % rows, 1);
  for (int p = 0; p < int(plan_.phases.size()); ++p) {
    for (int64_t part = 0; part < plan_.parts; ++part) sum_part(p, row, part, workspace, layout);
    join_parts(p, row, workspace, layout);
    finish(plan_.phases[size_t(p)]);
  }
}

void Runner::join_parts(int p, int64_t row, const std::byte* workspace, const SplitLayout& layout) {
  const TilePlan::Phase& phase = plan_.phases[size_t(p)];
  reset(phase, 1);
  for (size_t k = 0; k < phase.sums.size(); ++k) {
    const TileAccumulator& sum = phase.sums[k];
    const int64_t first = row * plan_.parts, bytes = reg_bytes(sum.reg);
    const std::byte* value = workspace + layout.sums[size_t(p)][k].value + first * bytes;
    auto* position = reinterpret_cast<const int64_t*>(workspace + layout.sums[size_t(p)][k].position) + first;
    if (sum.op == TileReduce::sum && sum.reg == TileReg::f32) {
      double total = 0;  // double, so that the number of parts adds no error
      for (int64_t i = 0; i < plan_.parts; ++i) total += double(reinterpret_cast<const float*>(value)[i]);
      *reinterpret_cast<float*>(slots_[sum.value].p) = float(total);
      continue;
    }
    for (int64_t i = 0; i < plan_.parts; ++i)
      tile_combine(sum.op, sum.reg, slots_[sum.value].p, reinterpret_cast<int64_t*>(slots_[sum.position].p), value + i * bytes, position + i, 1);
  }
}

void Runner::column_part(int p, int64_t strip, int64_t part, std::byte* workspace, const SplitLayout& layout) {
  start_strip(strip);
  const int64_t column = outer_ * size(plan_.col) + index_[plan_.col];
  fetch_carried(p, column, cols_, workspace, layout);
  const TilePlan::Phase& phase = plan_.phases[size_t(p)];
  reset(phase, cols_);
  chunks(phase, part_begin(plan_, part), part_begin(plan_, part + 1));
  const int64_t first = part * layout.results + column;
  for (size_t k = 0; k < phase.sums.size(); ++k) {
    const TileAccumulator& sum = phase.sums[k];
    const SplitLayout::Cell& cell = layout.sums[size_t(p)][k];
    const int64_t bytes = reg_bytes(sum.reg);
    std::memcpy(workspace + cell.value + first * bytes, slots_[sum.value].p, size_t(cols_ * bytes));
    if (sum.op >= TileReduce::arg_max) std::memcpy(workspace + cell.position + first * 8, slots_[sum.position].p, size_t(cols_ * 8));
  }
}

void Runner::column_combine(int p, int64_t strip, std::byte* workspace, const SplitLayout& layout) {
  start_strip(strip);
  const int64_t column = outer_ * size(plan_.col) + index_[plan_.col];
  fetch_carried(p, column, cols_, workspace, layout);
  const TilePlan::Phase& phase = plan_.phases[size_t(p)];
  reset(phase, cols_);
  for (int64_t part = 0; part < plan_.parts; ++part) {
    const int64_t first = part * layout.results + column;
    for (size_t k = 0; k < phase.sums.size(); ++k) {
      const TileAccumulator& sum = phase.sums[k];
      const SplitLayout::Cell& cell = layout.sums[size_t(p)][k];
      tile_combine(sum.op, sum.reg, slots_[sum.value].p, reinterpret_cast<int64_t*>(slots_[sum.position].p),
                   workspace + cell.value + first * reg_bytes(sum.reg), reinterpret_cast<const int64_t*>(workspace + cell.position) + first, cols_);
    }
  }
  finish_strip(phase);
  leave_carried(p, column, cols_, workspace, layout);
}

void Runner::fetch_carried(int p, int64_t first, int64_t n, const std::byte* workspace, const SplitLayout& layout) {
  for (int q = 0; q < p; ++q) {
    const auto& values = plan_.phases[size_t(q)].carried;
    for (size_t k = 0; k < values.size(); ++k)
      if (values[k].until >= p)
        std::memcpy(slots_[values[k].slot].p, workspace + layout.carried[size_t(q)][k] + first * values[k].bytes, size_t(n * values[k].bytes));
  }
}

void Runner::leave_carried(int p, int64_t first, int64_t n, std::byte* workspace, const SplitLayout& layout) {
  const auto& values = plan_.phases[size_t(p)].carried;
  for (size_t k = 0; k < values.size(); ++k)
    std::memcpy(workspace + layout.carried[size_t(p)][k] + first * values[k].bytes, slots_[values[k].slot].p, size_t(n * values[k].bytes));
}

// One step of one group: a range of units that can run in parallel.
struct Stage {
  enum Kind { map, rows, row_part, row_combine, strips, column_part, column_combine } kind = map;
  int phase = 0;
  int64_t units = 0, per_unit = 1, items = 0;  // a unit has up to per_unit items
  double unit_ns = 0;
};

std::vector<Stage> stages_of(const TilePlan& plan, const KernelVariant& variant) {
  std::vector<Stage> stages;
  const int64_t outer = plan.size_of(plan.outer);
  const double points = double(plan.points());
  auto add = [&](Stage::Kind kind, int phase, int64_t items, int64_t points_each, double share) {
    Stage s;
    s.kind = kind, s.phase = phase, s.items = items;
    int64_t target = points > double(int64_t(1) << 24) ? 4 * kUnitPoints : kUnitPoints;
    target = variant.unit < 0 ? target >> -variant.unit : target << variant.unit;
    s.per_unit = std::max<int64_t>(1, target / std::max<int64_t>(points_each, 1));
    s.units = ceil_div(items, s.per_unit);
    // Calling a handler costs a few ns, whatever the size of its block.
    size_t instructions = plan.block_pre.size();
    for (const auto& p : plan.phases) instructions += p.body.size() + p.after.size();
    if (s.units)
      s.unit_ns = 40 + 3.5 * double(instructions) * double(s.per_unit < items ? s.per_unit : items) + points * plan.point_ns * share / double(s.units);
    stages.push_back(s);
  };
  const int64_t rows = plan.sizes[size_t(plan.row)], cols = plan.sizes[size_t(plan.col)];
  const double phases = double(plan.phases.size());
  switch (plan.form) {
    case TilePlan::Form::map:
      add(Stage::map, 0, outer * ceil_div(rows, plan.block_rows) * ceil_div(cols, plan.block_cols), plan.block_rows * plan.block_cols, 1);
      break;
    case TilePlan::Form::row:
      if (plan.parts == 1 || plan.whole_rows) {
        const int64_t length = plan.size_of(plan.loop) * cols;
        add(Stage::rows, 0, outer * ceil_div(rows, plan.block_rows), plan.block_rows * std::max<int64_t>(length, 16), 1);
        break;
      }
      for (int p = 0; p < int(plan.phases.size()); ++p) {
        if (!plan.phases[size_t(p)].body.empty()) add(Stage::row_part, p, outer * rows * plan.parts, kUnitPoints * 4, 1 / phases);
        if (!plan.phases[size_t(p)].sums.empty() || !plan.phases[size_t(p)].after.empty()) add(Stage::row_combine, p, outer * rows, 1024, 0);
      }
      break;
    case TilePlan::Form::column: {
      const int64_t strips = outer * ceil_div(cols, plan.block_cols), length = plan.size_of(plan.loop) * rows;
      if (plan.parts == 1) {
        add(Stage::strips, 0, strips, std::max<int64_t>(length, 1) * plan.block_cols, 1);
        break;
      }
      for (int p = 0; p < int(plan.phases.size()); ++p) {
        const TilePlan::Phase& phase = plan.phases[size_t(p)];
        if (!phase.body.empty()) add(Stage::column_part, p, strips * plan.parts, kUnitPoints * 4, 1 / phases);
        if (!phase.sums.empty() || !phase.after.empty()) add(Stage::column_combine, p, strips, plan.block_cols * plan.parts, 0);
      }
      break;
    }
  }
  return stages;
}

// One group of a launch, with its operands and its share of the workspace.
struct Member {
  const TilePlan* plan = nullptr;
  const SplitLayout* layout = nullptr;
  std::vector<Ref> operands;
  Ref workspace;
};

void run_stage(const Member& m, const Stage& s, int64_t begin, int64_t end, Worker& worker) {
  Runner runner(*m.plan, m.operands.data(), worker);
  const int64_t first = begin * s.per_unit, last = std::min(end * s.per_unit, s.items);
  std::byte* workspace = m.workspace ? worker.at<std::byte>(m.workspace) : nullptr;
  switch (s.kind) {
    case Stage::map: runner.map_blocks(first, last); break;
    case Stage::rows:
      if (m.plan->parts == 1) {
        runner.row_blocks(first, last);
        break;
      }
      for (int64_t i = first; i < last; ++i) runner.row_of_parts(i, workspace, *m.layout);
      break;
    case Stage::row_part:
      for (int64_t i = first; i < last; ++i) runner.row_part(s.phase, i / m.plan->parts, i % m.plan->parts, workspace, *m.layout);
      break;
    case Stage::row_combine:
      for (int64_t i = first; i < last; ++i) runner.row_combine(s.phase, i, workspace, *m.layout);
      break;
    case Stage::strips:
      for (int64_t i = first; i < last; ++i) runner.column_strip(i);
      break;
    case Stage::column_part:
      for (int64_t i = first; i < last; ++i) runner.column_part(s.phase, i / m.plan->parts, i % m.plan->parts, workspace, *m.layout);
      break;
    case Stage::column_combine:
      for (int64_t i = first; i < last; ++i) runner.column_combine(s.phase, i, workspace, *m.layout);
      break;
  }
  if (m.plan->streams) store_fence();
}

// The stages of several groups, run as one task.
struct Launch {
  std::vector<const Member*> members;
  std::vector<Stage> stages;
  std::vector<int64_t> ends;  // cumulative, by member
};

void run_launch(const void* args, int64_t begin, int64_t end, Worker& worker) {
  const Launch& launch = *static_cast<const Launch*>(args);
  size_t k = size_t(std::upper_bound(launch.ends.begin(), launch.ends.end(), begin) - launch.ends.begin());
  for (; begin < end; ++k) {
    const int64_t start = k ? launch.ends[k - 1] : 0, stop = std::min(end, launch.ends[k]);
    if (begin < stop) run_stage(*launch.members[k], launch.stages[k], begin - start, stop - start, worker);
    begin = std::max(begin, stop);
  }
}

class TileKernel : public Kernel {
 public:
  TileKernel(std::span<const TileGroup> groups, int threads, const KernelVariant& variant) {
    for (const TileGroup& group : groups) {
      plans_.push_back(plan_tile_group(group, false, threads, variant));
      layouts_.push_back(std::make_unique<SplitLayout>(*plans_.back()));
      stages_.push_back(stages_of(*plans_.back(), variant));
      scratch_ = std::max(scratch_, plans_.back()->scratch_bytes());
      workspace_ += round_up(layouts_.back()->bytes, 64);
    }
  }

  int64_t workspace_bytes() const override { return workspace_; }
  int64_t scratch_bytes() const override { return scratch_; }

  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    size_t next = 0, steps = 0;
    const size_t first_member = members_.size();
    for (size_t g = 0; g < plans_.size(); ++g) {
      auto member = std::make_unique<Member>();
      member->plan = plans_[g].get(), member->layout = layouts_[g].get();
      const size_t count = size_t(plans_[g]->operands);
      if (next + count > operands.size())
        fail(ErrorCode::binding, "[tile_kernel] {} operands given, group {} needs those up to {}", operands.size(), g, next + count);
      member->operands.assign(operands.begin() + long(next), operands.begin() + long(next + count));
      next += count;
      if (layouts_[g]->bytes) member->workspace = workspace, workspace.offset += round_up(layouts_[g]->bytes, 64);
      members_.push_back(std::move(member));
      steps = std::max(steps, stages_[g].size());
    }
    for (size_t step = 0; step < steps; ++step) {
      auto launch = std::make_unique<Launch>();
      int64_t units = 0;
      double ns = 0;
      for (size_t g = 0; g < plans_.size(); ++g) {
        if (step >= stages_[g].size() || stages_[g][step].units == 0) continue;
        const Stage& stage = stages_[g][step];
        launch->members.push_back(members_[first_member + g].get()), launch->stages.push_back(stage);
        units += stage.units, ns += stage.unit_ns * double(stage.units);
        launch->ends.push_back(units);
      }
      if (units == 0) continue;
      Task task;
      task.run = run_launch, task.args = launch.get(), task.units = units, task.unit_ns = ns / double(units);
      launches_.push_back(std::move(launch));
      tasks.push_back(task);
    }
  }

 private:
  std::vector<std::unique_ptr<TilePlan>> plans_;
  std::vector<std::unique_ptr<SplitLayout>> layouts_;
  std::vector<std::vector<Stage>> stages_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::unique_ptr<Launch>> launches_;
  int64_t scratch_ = 0, workspace_ = 0;
};

class Epilogue : public TileEpilogue {
 public:
  explicit Epilogue(const TileGroup& group) : plan_(plan_tile_group(group, true)) {
    if (group.accumulator < 0) fail(ErrorCode::internal, "[tile_epilogue] the group reads no sums");
  }
  int64_t scratch_bytes() const override { return plan_->scratch_bytes(); }
  MatmulEpilogue bind(std::span<const Ref> operands) override {
    operands_.assign(operands.begin(), operands.end());
    fetched_.clear();
    for (const TilePlan::Access& access : plan_->accesses) {
      if (access.operand < 0) continue;
      Fetched f{operands_[size_t(access.operand)], 0, 0, 0};
      f.from.offset += access.offset;
      for (auto [axis, stride] : access.terms) (axis == plan_->row ? f.row : axis == plan_->col ? f.col : f.batch) = stride;
      if (f.row != 0 && (f.col == 4 || f.col == 2)) fetched_.push_back(f);
    }
    return {run, this, fetch};
  }

 private:
  static void run(const void* context, Worker& worker, int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols, const float* acc, int64_t ld) {
    const Epilogue& e = *static_cast<const Epilogue*>(context);
    Runner runner(*e.plan_, e.operands_.data(), worker);
    runner.map_rect(batch, row, rows, col, cols, acc, ld);
    if (e.plan_->streams) store_fence();
  }

  static void fetch(const void* context, const Worker& worker, int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    for (const Fetched& f : static_cast<const Epilogue*>(context)->fetched_) {
      const std::byte* p = worker.at<const std::byte>(f.from) + batch * f.batch + row * f.row + col * f.col;
      for (int64_t r = 0; r < rows; ++r, p += f.row)
        for (int64_t b = 0; b < cols * f.col; b += 64) __builtin_prefetch(p + b, 0, 2);
    }
  }

  // An operand that varies over rows and is contiguous along the columns; strides in bytes.
  struct Fetched {
    Ref from;
    int64_t batch, row, col;
  };
  std::unique_ptr<TilePlan> plan_;
  std::vector<Ref> operands_;
  std::vector<Fetched> fetched_;
};

}  // namespace

std::unique_ptr<Kernel> make_tile_kernel(std::span<const TileGroup> groups, int threads, const KernelVariant& variant) {
  if (groups.size() == 1)
    if (std::unique_ptr<Kernel> kernel = make_panel_kernel(groups[0])) return kernel;
  return std::make_unique<TileKernel>(groups, threads, variant);
}
std::unique_ptr<TileEpilogue> make_tile_epilogue(const TileGroup& group) { return std::make_unique<Epilogue>(group); }

}  // namespace ridge::cpu
