#include "backend/gpu/tile_plan.h"

#include <algorithm>
#include <bit>

namespace ridge::gpu {
namespace {

using Kind = TileNode::Kind;
using Form = TileGroup::Template;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t power_of_two_above(int64_t x) { return int64_t(std::bit_ceil(uint64_t(std::max<int64_t>(x, 1)))); }

constexpr int64_t kFewRows = 256;    // fewer rows do not fill a chip, so long ones are split
constexpr int64_t kRowPart = 16384;  // elements per part
constexpr int64_t kLongRow = 2 * kRowPart;
constexpr int64_t kFewLongRows = 32, kLongRowBlocks = 256, kLeastPart = 2048;  // rows of several phases to split, into about so many blocks of parts
constexpr int64_t kColumnBlocks = 1024;                                        // blocks to aim for when splitting a column reduction
constexpr int64_t kWarpRow = 1024;                                             // elements of the longest row for a single warp
constexpr int64_t kSumRegisters = 96;                                          // per thread, for values of a row and for sums over rows
constexpr int64_t kSumValues = 128;                                            // and for values alone
constexpr int64_t kOtherRegisters = 44;                                        // addresses and temporaries
constexpr int kMostAheadThreads = 640;                                         // of a block that copies rows ahead; two leave 48 registers each
constexpr int kKeptRegisters = 40;                                             // per thread, for values of a row

class Planner {
 public:
  Planner(const TileGroup& group, const GpuChip& chip, const TileSharing& sharing) : original_(group), chip_(chip), sharing_(sharing) {
    sharing_.wide_index = sharing.wide_index || !fits_32_bits(group);
  }

  // The group is a row group; its last stores are the values that the column group `own` sums.
  std::optional<TilePlan> run_with_sums(const TileGroup& own, int sums) {
    const TileGroup g = simplified(original_), columns = simplified(own);
    TileFacts f = facts_of(g);
    f.early.assign(g.nodes.size(), 0);
    for (size_t n = 0; n < g.nodes.size(); ++n)
      if (g.nodes[n].kind == Kind::store && g.accesses[size_t(g.nodes[n].access)].operand >= own.operands + sums) f.early[n] = 1;
    const int64_t rows = kept_points(g), length = reduced_points(g);
    TileSchedule s;
    s.vector = vector_width(g, f, false);
    s.threads = 128, s.lanes = 32, s.blocks = 3;
    s.chunks = int(ceil_div(length / s.vector, 32));
    const int64_t values = int64_t(s.chunks) * s.vector, kept = kept_values(g, f).most;
    s.register_sums = int(std::clamp<int64_t>(kSumRegisters / values - kept, 0, sums));
    if (f.phases > 1 && values * (kept + sums) > kSumValues) {  // too many for a warp; two hold all sums in registers
      s.threads = s.lanes = 64, s.register_sums = sums;
      s.chunks = int(ceil_div(length / s.vector, s.lanes));
      s.blocks = int(std::max<int64_t>(65536 / (s.lanes * (s.chunks * s.vector * (kept + sums) + kOtherRegisters)), 1));
    }
    // Every block sums about the same number of rows.
    auto turns = [&](int64_t per) { return ceil_div(rows, per * chip_.multiprocessors * (s.threads / s.lanes)); };
    if (s.lanes == 32 && values * (kept + s.register_sums) <= kSumRegisters / 2 && turns(4) * 4 < turns(3) * 3) s.blocks = 4;
    const int64_t blocks = s.blocks * chip_.multiprocessors;
    s.sum_blocks = blocks, s.first_sum = own.operands + sums;
    if (g.reduced != 1 || columns.domain.rank() != 2 || length < 128 || length > kWarpRow || rows < 16 * blocks ||
        (s.lanes == 32 && values * kept > kSumValues))
      return {};
    if (s.blocks * (row_sums_shared_bytes(g, s, sums) + 1024) > chip_.shared_bytes_per_multiprocessor) return {};
    if (row_sums_shared_bytes(g, s, sums) > chip_.shared_bytes) return {};
    split(columns, facts_of(columns), blocks, [&](const TileGroup&, const TileFacts&) {
      TileText text = written(row_text, g, f, s);
      add(std::move(text), s, blocks, rows, length);
    });
    return std::move(plan_);
  }

  TilePlan run() {
    const TileGroup g = simplified(original_);
    bool empty = kept_points(g) == 0 || (g.form == Form::map && g.domain.numel() == 0);
    if (!empty) {
      switch (g.form) {
        case Form::map: map(g); break;
        case Form::row: row(g); break;
        case Form::column: column(g); break;
      }
    }
    return std::move(plan_);
  }

 private:
  void add(TileText text, const TileSchedule& s, int64_t blocks, int64_t n, int64_t r) {
    plan_.launches.push_back({std::move(text.text), s.threads, blocks, n, r, std::move(text.pointers)});
  }

  // The length of the schedule's table depends on the number of pointers, which is known once the text is written.
  template <class Make>
  TileText written(Make make, const TileGroup& g, const TileFacts& f, TileSchedule& s) {
    s.wide_index = sharing_.wide_index, s.dialect = chip_.dialect;
    TileText text = make(g, f, s);
    if (!sharing_.many) return text;
    s.entries = TileEntryLayout::most(std::max<size_t>(text.pointers.size(), 1));
    return make(g, f, s);
  }

  int piece(int64_t bytes) {
    plan_.pieces.push_back(plan_.workspace);
    plan_.workspace += (bytes + 255) / 256 * 256;
    return int(plan_.pieces.size()) - 1;
  }

  void map(const TileGroup& g) {
    const TileFacts f = facts_of(g);
    const int64_t points = g.domain.numel();
    TileSchedule s;
    if (const Transposed turned = transposed_loads(g, f); turned.axis >= 0) {
      s.across = turned.axis;
      TileText text = written(transposed_map_text, g, f, s);
      const int64_t square = ceil_div(g.domain.back(), 64) * ceil_div(g.domain[turned.axis], 64), others = points / (g.domain.back() * g.domain[turned.axis]);
      return add(std::move(text), s, square * others, others, 1);
    }
    s.vector = vector_width(g, f, g.domain.rank() == 1);
    int64_t bytes = 0;  // read by a thread per vector
    for (size_t n = 0; n < g.nodes.size(); ++n)
      if (g.nodes[n].kind == Kind::load && f.mask[n] == full_mask(g)) bytes += (f.wide(int(n)) ? s.vector : 1) * size_of(g.nodes[n].dtype);
    s.unroll = int(std::bit_floor(uint64_t(std::clamp<int64_t>(64 / std::max<int64_t>(bytes, 1), 1, 4))));
    if (!sharing_.many && points < (int64_t(1) << 19)) s.unroll = 1, s.threads = points < (1 << 15) ? 128 : 256;
    TileText text = written(map_text, g, f, s);
    add(std::move(text), s, ceil_div(points, int64_t(s.threads) * s.unroll * s.vector), points, 1);
  }

  void row(TileGroup g) {
    const TileFacts f = facts_of(g);
    const int64_t rows = kept_points(g), length = reduced_points(g);
    const TileKept kept = kept_values(g, f);
    const bool again = std::any_of(kept.registers.begin(), kept.registers.end(), [](char k) { return k; });  // some value is used in several phases
    TileSchedule s;
    const bool many_phases = f.phases > 1 || !stores_early(g, f);
    int64_t shared = 0;
    for (size_t n = 0; n < g.nodes.size(); ++n)
      if (kept.loads[n]) shared += (length * size_of(g.nodes[n].dtype) + 127) / 128 * 128;
    const bool fits = shared <= chip_.shared_bytes - 8192;
    const bool flat = sharing_.many && rows == 1 && g.reduced == 1 && f.phases == 1 && !stores_body(g, f) && length > 0;  // one text for all groups
    const bool split = flat || (length >= kLongRow && rows < kFewRows && (!many_phases || !fits || (rows <= 8 && length >= 8 * kLongRow)));
    if (split) return split_row(g, f);
    if (many_phases && length >= kLongRow && rows <= kFewLongRows) return split_phases(g, f);
    s.vector = vector_width(g, f, false);
    const int64_t vectors = length / s.vector;
    auto registers = [&](int64_t lanes) { return ceil_div(vectors, lanes) * s.vector * std::max(kept.most, 1); };
    if (length <= kWarpRow && registers(32) <= 2 * kKeptRegisters) {
      s.lanes = int(std::min<int64_t>(32, power_of_two_above(vectors)));
      s.chunks = int(std::max<int64_t>(ceil_div(vectors, s.lanes), 1));
      s.threads = s.chunks >= 4 ? 64 : 128;
    } else {
      s.threads = 128;
      while (s.threads < 1024 && registers(s.threads) > kKeptRegisters / 2) s.threads *= 2;
      s.lanes = s.threads;
      const int64_t need = registers(s.threads);
      if (again && need > (s.threads == 1024 ? 24 : kKeptRegisters)) {
        s.keep_shared = shared > 0 && fits;
        const bool two = 2 * (shared + 2048) <= chip_.shared_bytes_per_multiprocessor;  // one block computes while the other reads
        s.threads = s.lanes = s.keep_shared && !two ? 1024 : 512;
        if (s.keep_shared && two) s.blocks = 2;
        const int64_t row_blocks = 2 * chip_.multiprocessors;
        if (s.keep_shared && two && f.phases > 1 && rows >= 4 * row_blocks && can_copy_ahead(g, kept, s.vector)) {
          s.row_blocks = row_blocks;
          for (size_t n = 0; n < g.nodes.size(); ++n)  // no row is read again while it is in the cache
            if (g.nodes[n].kind == Kind::store && f.body(int(n))) g.accesses[size_t(g.nodes[n].access)].streaming = true;
          for (int threads = 512; threads <= kMostAheadThreads; threads += 32)
            if (ceil_div(vectors, 2 * threads) * threads < ceil_div(vectors, 2 * s.threads) * s.threads) s.threads = s.lanes = threads;
        }
      } else if (again || need <= kKeptRegisters) {
        s.chunks = int(std::max<int64_t>(ceil_div(vectors, s.lanes), 1));
      } else {
        s.threads = s.lanes = length >= 16384 ? 512 : 256;
      }
    }
    if (length == 0) s.chunks = 0, s.vector = 1, s.keep_shared = false;
    TileText text = written(row_text, g, f, s);
    add(std::move(text), s, s.row_blocks > 0 ? s.row_blocks : ceil_div(rows, s.threads / s.lanes), rows, length);
  }

  // Whether all data that is read again is addressed by its place in the row alone.
  static bool can_copy_ahead(const TileGroup& g, const TileKept& kept, int vector) {
    if (g.reduced != 1) return false;
    for (size_t n = 0; n < g.nodes.size(); ++n) {
      if (!kept.loads[n]) continue;
      const TileAccess& access = g.accesses[size_t(g.nodes[n].access)];
      if (g.nodes[n].in[0] >= 0 || access.gather >= 0 || !access.bounds.empty() || access.strides.back() != 1) return false;
      if (vector * size_of(access.dtype) % 16 != 0) return false;
    }
    return true;
  }

  // The group, with finished reductions read from memory; `finished` is by node.
  TileGroup with_results(const TileGroup& g, const std::vector<int>& operand, const std::vector<char>& finished) const {
    TileGroup out = g;
    for (int n : reductions(g)) {
      if (!finished[size_t(n)]) continue;
      TileNode& node = out.nodes[size_t(n)];
      node = {};
      node.kind = Kind::load, node.dtype = g.nodes[size_t(n)].dtype;
      node.access = int(out.accesses.size());
      out.accesses.push_back(result_access(g, n, operand));
    }
    return out;
  }

  static TileAccess result_access(const TileGroup& g, int n, const std::vector<int>& operand) {
    TileAccess access;
    access.operand = operand[size_t(n)], access.dtype = g.nodes[size_t(n)].dtype;
    access.strides = Shape::filled(g.domain.rank(), 0);
    int64_t stride = 1;
    const std::vector<int> axes = kept_axes(g);
    for (size_t i = axes.size(); i-- > 0;) access.strides[axes[i]] = stride, stride *= g.domain[axes[i]];
    return access;
  }

  static void drop_stores(TileGroup& g, const TileFacts& f, bool body, bool kept) {
    for (int n = 0; n < int(g.nodes.size()); ++n)
      if (g.nodes[size_t(n)].kind == Kind::store && (f.body(n) ? body : kept)) g.nodes[size_t(n)] = {.kind = Kind::literal};
  }

  // Computes reductions in parts and combines them, phase by phase, and then everything that uses their values.
  template <class Part>
  void split(TileGroup g, const TileFacts& f, int64_t parts, Part part) {
    const int64_t points = kept_points(g);
    const std::vector<int> all = reductions(g);
    const int own = g.operands;
    std::vector<int> operand(g.nodes.size(), -1);
    for (size_t i = 0; i < all.size(); ++i) operand[size_t(all[i])] = own + piece(points * size_of(g.nodes[size_t(all[i])].dtype));
    g.operands = own + int(all.size());
    std::vector<char> finished(g.nodes.size(), 0);
    const bool early = stores_early(g, f), body = stores_body(g, f) && !early;
    for (int phase = 0; phase < f.phases; ++phase) {
      TileGroup now = with_results(g, operand, finished);
      const TileFacts before = facts_of(now);
      drop_stores(now, before, !early, body || phase + 1 < f.phases);
      TileGroup joining = now;
      drop_stores(joining, before, true, false);
      for (int n : all) {
        if (f.phase[size_t(n)] != phase + 1) continue;
        finished[size_t(n)] = 1;
        if (!body && phase + 1 == f.phases) continue;
        TileNode store;
        store.kind = Kind::store, store.dtype = g.nodes[size_t(n)].dtype, store.in[0] = n, store.access = int(joining.accesses.size());
        joining.accesses.push_back(result_access(g, n, operand));
        joining.nodes.push_back(store);
      }
      const std::vector<int> open = reductions(now);  // their parts are numbered after the group's operands
      std::vector<int> place(open.size(), -1);
      auto settle = [&](TileLaunch& launch) {
        for (int& p : launch.pointers) {
          if (p < g.operands) continue;
          int& at = place[size_t(p - g.operands)];
          if (at < 0) at = own + piece(parts * points * accumulator_bytes(now, open[size_t(p - g.operands)]));
          p = at;
        }
      };
      TileFacts facts = facts_of(now);
      if (early) facts.store_phase = 0;
      part(now, facts);
      settle(plan_.launches.back());
      combine(joining, points, parts);
      settle(plan_.launches.back());
    }
    if (!body) return;
    TileGroup rest = with_results(g, operand, finished);
    TileGroup kept = rest;
    drop_stores(rest, f, false, true);
    rest.form = Form::map, rest.reduced = 0;
    map(simplified(rest));
    drop_stores(kept, f, true, false);
    if (std::none_of(kept.nodes.begin(), kept.nodes.end(), [](const TileNode& n) { return n.kind == Kind::store; })) return;
    kept_map(kept, f);
  }

  // Whether no store within a row or column depends on a reduction, so that all can be done in the only pass over memory.
  static bool stores_early(const TileGroup& g, const TileFacts& f) {
    if (f.phases != 1) return false;
    for (int n = 0; n < int(g.nodes.size()); ++n)
      if (g.nodes[size_t(n)].kind == Kind::store && f.body(n) && f.phase[size_t(n)] > 0) return false;
    return true;
  }

  // The stores of one value per row or column, as a separate map over the kept axes.
  void kept_map(TileGroup g, const TileFacts& f) {
    const std::vector<int> axes = kept_axes(g);
    auto only_kept = [&](const Shape& from) {
      Shape to;
      for (int i : axes) to.push_back(from[i]);
      return to;
    };
    for (int n = 0; n < int(g.nodes.size()); ++n)
      if (f.body(n)) g.nodes[size_t(n)] = {.kind = Kind::literal};
    for (TileAccess& access : g.accesses) {
      access.strides = only_kept(access.strides);
      std::erase_if(access.bounds, [&](const auto& b) { return std::find(axes.begin(), axes.end(), b.axis) == axes.end(); });
      for (auto& b : access.bounds) b.axis = int(std::find(axes.begin(), axes.end(), b.axis) - axes.begin());
    }
    g.domain = only_kept(g.domain);
    g.form = Form::map, g.reduced = 0;
    map(simplified(g));
  }

  void combine(const TileGroup& g, int64_t points, int64_t parts) {
    const TileFacts f = facts_of(g);
    TileSchedule s;
    s.threads = 512;
    s.columns = int(std::min<int64_t>(8, std::bit_floor(uint64_t(points))));  // one memory sector of floats
    TileText text = written(combine_text, g, f, s);
    add(std::move(text), s, ceil_div(points, s.columns), points, parts);
  }

  void split_row(const TileGroup& g, const TileFacts& f) {
    const int64_t rows = kept_points(g), length = reduced_points(g), parts = ceil_div(length, kRowPart);
    split(g, f, parts, [&](const TileGroup& now, const TileFacts& facts) {
      TileSchedule s;
      s.vector = vector_width(now, facts, false);
      s.threads = s.lanes = 256;
      s.part = kRowPart;
      TileText text = written(row_text, now, facts, s);
      add(std::move(text), s, rows * parts, rows, length);
    });
  }

  // One launch for each phase. A block combines the parts of the earlier phases itself, which is cheap for few parts and saves a launch for each phase.
  void split_phases(const TileGroup& g, const TileFacts& f) {
    const int64_t rows = kept_points(g), length = reduced_points(g), most = std::min<int64_t>(ceil_div(kLongRowBlocks, rows), 32);
    const int64_t part = ceil_div(ceil_div(length, most), kLeastPart) * kLeastPart, parts = ceil_div(length, part);
    for (int n : reductions(g)) piece(parts * rows * accumulator_bytes(g, n));  // numbered like the reductions
    auto launch = [&](const TileGroup& now, int phase, int64_t blocks) {
      TileSchedule s;
      s.vector = vector_width(now, f, false);
      s.threads = s.lanes = 256;
      s.part = part, s.phase = phase;
      TileText text = written(row_text, now, f, s);
      add(std::move(text), s, blocks, rows, length);
    };
    for (int phase = 0; phase < f.phases; ++phase) launch(g, phase, rows * parts);
    const bool body = stores_body(g, f), apart = body && may_overwrite_kept(g, f);
    TileGroup within = g, kept = g;
    if (apart) drop_stores(within, f, false, true), drop_stores(kept, f, true, false);
    launch(within, f.phases, body ? rows * parts : rows);
    if (apart) launch(kept, f.phases, rows);
  }

  // Whether a row's value may be stored over one of its operands, which the blocks of other parts of the row still read.
  static bool may_overwrite_kept(const TileGroup& g, const TileFacts& f) {
    auto access_of = [&](const TileNode& n) -> const TileAccess& { return g.accesses[size_t(n.access)]; };
    for (int s = 0; s < int(g.nodes.size()); ++s) {
      if (g.nodes[size_t(s)].kind != Kind::store || f.body(s)) continue;
      const TileAccess& to = access_of(g.nodes[size_t(s)]);
      for (const TileNode& n : g.nodes)
        if (n.kind == Kind::load && access_of(n).dtype == to.dtype && access_of(n).offset == to.offset && access_of(n).strides == to.strides) return true;
    }
    return false;
  }

  void column(const TileGroup& g) {
    TileFacts f = facts_of(g);
    if (stores_early(g, f)) f.store_phase = 0;
    const int64_t columns = g.domain.back(), rows = reduced_points(g), outer = columns > 0 ? kept_points(g) / columns : 0;
    TileSchedule s;
    s.vector = std::min(4, vector_width(g, f, false));  // gives more strips, so fewer parts
    int64_t bytes = 0;                                  // of shared memory, per thread and column
    for (int n : reductions(g)) bytes += accumulator_bytes(g, n);
    while (s.vector > 1 && bytes * 256 * s.vector > 40960) s.vector /= 2;
    const int64_t across = power_of_two_above(ceil_div(columns, s.vector));
    int64_t deep = rows >= 64 ? 8 : std::bit_floor(uint64_t(std::clamp<int64_t>(rows / 4, 1, 8)));
    s.columns = int(std::min(across, 256 / deep));
    s.threads = 256;
    if (rows < 256 / s.columns) s.threads = int(std::max<int64_t>(32, s.columns * power_of_two_above(rows)));
    deep = s.threads / s.columns;
    while (bytes * s.threads * s.vector > 45056 && s.threads > s.columns && s.threads > 32) s.threads /= 2, deep = s.threads / s.columns;
    const int64_t blocks = outer * ceil_div(columns, int64_t(s.columns) * s.vector);
    const int64_t most = rows / (deep * 8);
    if (blocks < kColumnBlocks / 2 && most >= 2) {
      const int64_t parts = std::min(most, ceil_div(kColumnBlocks, blocks));
      s.part = ceil_div(ceil_div(rows, parts), deep) * deep;
      return split(g, f, ceil_div(rows, s.part), [&](const TileGroup& now, const TileFacts& facts) {
        TileSchedule t = s;
        t.vector = std::min(s.vector, vector_width(now, facts, false));
        TileText text = written(column_text, now, facts, t);
        add(std::move(text), t, outer * ceil_div(columns, int64_t(t.columns) * t.vector) * ceil_div(rows, t.part), outer, rows);
      });
    }
    TileText text = written(column_text, g, f, s);
    add(std::move(text), s, blocks, outer, rows);
  }

  const TileGroup& original_;
  const GpuChip& chip_;
  TileSharing sharing_;
  TilePlan plan_;
};

// The row group, with the values that the column group sums as stores to operands from `first_sum` on, in the order of the column group's reductions.
std::optional<TileGroup> with_column_sums(const TileGroup& row, const TileGroup& column, std::span<const int> same, int first_sum) {
  const TileFacts facts = facts_of(column);
  const int rank = row.domain.rank();
  if (row.form != Form::row || row.reduced != 1 || column.form != Form::column || column.reduced != rank - 1 || row.domain != column.domain) return {};
  if (facts.phases != 1 || stores_body(column, facts)) return {};
  TileGroup out = row;
  std::vector<int> moved(column.nodes.size(), -1);
  auto value_of = [&](const TileAccess& access) {  // what the row group reads or writes there
    for (int n = 0; n < int(row.nodes.size()); ++n) {
      const TileNode& node = row.nodes[size_t(n)];
      const bool stores = node.kind == Kind::store;
      if (!stores && (node.kind != Kind::load || node.in[0] >= 0)) continue;
      const TileAccess& a = row.accesses[size_t(node.access)];
      if (a.operand >= 0 && a.operand == same[size_t(access.operand)] && a.dtype == access.dtype && a.offset == access.offset && a.strides == access.strides &&
          a.bounds.empty() && a.gather < 0)
        return stores ? node.in[0] : n;
    }
    return -1;
  };
  std::vector<char> wanted(column.nodes.size(), 0);
  for (size_t n = column.nodes.size(); n-- > 0;) {
    const TileNode& node = column.nodes[n];
    if (node.kind == Kind::reduce) {
      if (node.op != Op::reduce_sum || column.nodes[size_t(node.in[0])].dtype != DType::f32) return {};
      if (!facts.body(node.in[0]) || !facts.wide(node.in[0])) return {};
      wanted[size_t(node.in[0])] = 1;
    }
    if (!wanted[n]) continue;
    for (int in : node.in)
      if (in >= 0) wanted[size_t(in)] = 1;
  }
  for (int n = 0; n < int(column.nodes.size()); ++n) {
    TileNode node = column.nodes[size_t(n)];
    if (!wanted[size_t(n)]) continue;
    if (node.kind == Kind::load) {
      const TileAccess& access = column.accesses[size_t(node.access)];
      if (!access.bounds.empty() || access.gather >= 0 || node.in[0] >= 0) return {};
      moved[size_t(n)] = value_of(access);
      if (moved[size_t(n)] >= 0) continue;
      if (facts.body(n)) return {};  // reads memory that the row group neither reads nor writes
      out.accesses.push_back(access);
      out.accesses.back().operand += row.operands;
      node.access = int(out.accesses.size()) - 1;
    } else if (node.kind != Kind::literal && node.kind != Kind::elementwise) {
      return {};
    }
    for (int& in : node.in)
      if (in >= 0) in = moved[size_t(in)];
    moved[size_t(n)] = int(out.nodes.size());
    out.nodes.push_back(node);
  }
  const std::vector<int> sums = reductions(column);
  for (size_t i = 0; i < sums.size(); ++i) {
    TileAccess to;
    to.operand = first_sum + int(i), to.strides = contiguous_strides(row.domain);
    TileNode store;
    store.kind = Kind::store, store.in[0] = moved[size_t(column.nodes[size_t(sums[i])].in[0])], store.access = int(out.accesses.size());
    out.accesses.push_back(to);
    out.nodes.push_back(store);
  }
  out.operands = first_sum + int(sums.size());
  return out;
}

}  // namespace

std::optional<TileGroup> united_columns(std::span<const TileGroup* const> columns) {
  TileGroup all = *columns[0];
  for (const TileGroup* column : columns.subspan(1)) {
    if (column->form != all.form || column->domain != all.domain || column->reduced != all.reduced) return {};
    const int first_node = int(all.nodes.size()), first_access = int(all.accesses.size());
    for (TileAccess access : column->accesses) {
      if (access.operand >= 0) access.operand += all.operands;
      if (access.gather >= 0) access.gather += first_node;
      all.accesses.push_back(std::move(access));
    }
    for (TileNode node : column->nodes) {
      for (int& in : node.in)
        if (in >= 0) in += first_node;
      if (node.access >= 0) node.access += first_access;
      all.nodes.push_back(node);
    }
    all.operands += column->operands;
  }
  return all;
}

std::optional<TilePlan> plan_row_with_sums(const TileGroup& row, const TileGroup& column, std::span<const int> same, std::span<const int> unread,
                                           const GpuChip& chip) {
  TileGroup own = column;
  for (TileAccess& access : own.accesses)
    if (access.operand >= 0) access.operand += row.operands;
  own.operands = row.operands + column.operands;
  const int sums = int(reductions(column).size());
  std::optional<TileGroup> both = with_column_sums(row, column, same, own.operands + sums);
  if (!both) return {};
  for (TileNode& node : both->nodes)
    if (node.kind == Kind::store && std::ranges::count(unread, both->accesses[size_t(node.access)].operand)) node = {.kind = Kind::literal};
  return Planner(*both, chip, {}).run_with_sums(own, sums);
}

TilePlan plan_tile(const TileGroup& group, const GpuChip& chip, const TileSharing& sharing) { return Planner(group, chip, sharing).run(); }

}  // namespace ridge::gpu
