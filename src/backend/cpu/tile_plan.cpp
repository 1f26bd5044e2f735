// Determines the sizes for a fused group's instructions: axes, tile registers by live range, blocks, buffers.
#include <algorithm>
#include <map>

#include "backend/cpu/tile_planner.h"
#include "graph/ops/table.h"

namespace ridge::cpu {
namespace {

constexpr int64_t kTileBudget = 16 << 10;                                 // half of L1
constexpr int64_t kFetchLines = 20;                                       // the most lines to prefetch at a time
constexpr int64_t kPartedRow = 16384, kRowPart = 2048, kRowChunk = 2048;  // elements: of rows that may be split, of a part at least, and of a chunk of a part
constexpr double kSplitCost = 1.25;                                       // the time of a row in parts, which keep nothing, to that of a whole row

}  // namespace

TilePlanner::TilePlanner(const TileGroup& group, bool fixed, int threads, const KernelVariant& variant)
    : group_(group),
      threads_(threads),
      variant_(variant),
      axes_(arrange_axes(group, fixed)),
      handlers_(tile_handlers(isa_tier())),
      plan_(std::make_unique<TilePlan>()) {}

std::unique_ptr<TilePlan> TilePlanner::run() {
  set_axes();
  set_accesses();
  analyse();
  set_parts(), change_parts();
  emit_all();
  allocate();
  choose_blocks();
  place_buffers();
  choose_ahead();
  number_slots();
  estimate();
  return std::move(plan_);
}

bool TilePlanner::bounded(int access) const {
  return std::any_of(axes_.bounds[size_t(access)].begin(), axes_.bounds[size_t(access)].end(), [](const auto& b) { return b.bounded(); });
}

TileShape TilePlanner::shape_of(uint32_t mask) const {
  const TileShape s = TileShape((mask >> plan_->row & 1) | (mask >> plan_->col & 1) << 1);
  return s == kColumns && axes_.sizes[size_t(plan_->row)] == 1 ? kBlock : s;  // a single row is a block
}

void TilePlanner::set_axes() {
  plan_->form = TilePlan::Form(group_.form);
  plan_->sizes = axes_.sizes;
  plan_->outer = axes_.outer, plan_->loop = axes_.loop, plan_->row = axes_.row, plan_->col = axes_.col;
  plan_->operands = group_.operands;
  plan_->accumulator = group_.accumulator;
  reduced_ = 0;
  for (int axis : axes_.loop) reduced_ |= bit(axis);
  if (group_.form == TileGroup::Template::row) reduced_ |= bit(axes_.col);
  if (group_.form == TileGroup::Template::column) reduced_ |= bit(axes_.row);
  length_ = 1;  // of a reduction
  for (int axis = 0; axis < int(axes_.sizes.size()); ++axis)
    if (reduced_ & bit(axis)) length_ *= axes_.sizes[size_t(axis)];
}

void TilePlanner::set_accesses() {
  for (int a = 0; a < int(group_.accesses.size()); ++a) {
    const TileAccess& from = group_.accesses[size_t(a)];
    TilePlan::Access to;
    const int64_t bytes = size_of(from.dtype);
    to.operand = from.operand;
    to.offset = from.offset * bytes;
    for (int axis = 0; axis < int(axes_.sizes.size()); ++axis)
      if (stride(a, axis)) to.terms.push_back({axis, stride(a, axis) * bytes});
    to.row_stride = stride(a, plan_->row) * bytes;
    plan_->accesses.push_back(to);
  }
}

uint32_t TilePlanner::access_mask(int access) const {
  uint32_t mask = 0;
  for (int axis = 0; axis < int(axes_.sizes.size()); ++axis)
    if (stride(access, axis) || axes_.bounds[size_t(access)][size_t(axis)].bounded()) mask |= bit(axis);
  return mask;
}

bool TilePlanner::unit_stride(int access, TileShape shape) const {
  if (shape & kColumns) return stride(access, plan_->col) == 1;
  return shape == kScalar || stride(access, plan_->row) == 1;
}

bool TilePlanner::in_body(uint32_t mask) const {
  if (group_.form == TileGroup::Template::map) return mask & (bit(plan_->row) | bit(plan_->col));
  return mask & reduced_;
}

bool TilePlanner::hoisted(int n) const {  // the same for all blocks of a unit
  const uint32_t mask = mask_[size_t(n)];
  if (phase_[size_t(n)] > 0) return false;
  switch (group_.form) {
    case TileGroup::Template::map: return !in_body(mask);
    case TileGroup::Template::row: return !(mask & bit(plan_->row)) && (!in_body(mask) || single_);
    case TileGroup::Template::column: return !in_body(mask);
  }
  return false;
}

// Splits reductions into parts if there are few long ones. A row with several phases is best computed by one thread, which keeps what it computes for the next
// phase, unless that leaves threads idle.
void TilePlanner::set_parts() {
  int64_t results = 1;
  for (int axis : plan_->outer) results *= plan_->sizes[size_t(axis)];
  if (group_.form == TileGroup::Template::row) {
    results *= plan_->sizes[size_t(plan_->row)];
    const bool several = phases_ > 1;
    const int64_t part = several ? kRowPart : length_ < 65536 ? 8192 : 32768, most = length_ < kPartedRow ? 1 : length_ / part, units = several ? 256 : 128;
    if (results > 0 && results < units / 4 && most >= 2) plan_->parts = std::min<int64_t>(most, (units + results - 1) / results);
    plan_->whole_rows = several && plan_->parts > 1 && double((results + threads_ - 1) / threads_ * threads_) <= kSplitCost * double(results);
  } else if (group_.form == TileGroup::Template::column) {
    const int64_t cols = plan_->sizes[size_t(plan_->col)];
    auto strips = [&] { return results * ((cols + strip_ - 1) / strip_); };
    // With several phases, narrow strips stay in the cache between phases; use them if there are enough.
    if (phases_ > 1) {
      strip_ = std::clamp<int64_t>(kRowBudget / (std::max<int64_t>(length_, 1) * 8) / 64 * 64, 64, kStrip);
      if (strip_ * length_ * 8 <= 2 * kRowBudget && strips() >= 16) return;
      strip_ = kStrip;
    }
    const int64_t most = strips() > 0 ? length_ * std::min(cols, strip_) / 16384 : 1;
    if (strips() > 0 && strips() < 64 && most >= 2) plan_->parts = std::min<int64_t>(std::min(most, length_), (64 + strips() - 1) / strips());
  }
}

// A split that a variant wants finer or coarser; unsplit reductions stay so.
void TilePlanner::change_parts() {
  if (plan_->parts > 1) plan_->parts = std::max<int64_t>(2, variant_.parts < 0 ? plan_->parts / 2 : plan_->parts << variant_.parts);
}

bool TilePlanner::one_per_row(TileShape instr, TileShape operand) {
  if (instr & kColumns) return !(operand & kColumns);
  return instr == kRows && operand == kScalar;
}

void TilePlanner::allocate() {
  std::vector<size_t> order(registers_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) { return registers_[x].first < registers_[y].first; });
  std::map<BufferKind, std::vector<std::pair<int64_t, int>>> free;  // end of the last value, buffer
  for (size_t i : order) {
    VirtualRegister& r = registers_[i];
    const BufferKind kind{r.bytes, r.shape, r.kept};
    auto& spare = free[kind];
    auto found = std::find_if(spare.begin(), spare.end(), [&](const auto& s) { return s.first <= r.first; });
    if (found == spare.end()) {
      buffer_kinds_.push_back(kind);
      found = spare.insert(spare.end(), {0, int(buffer_kinds_.size()) - 1});
    }
    r.buffer = found->second;
    found->first = std::max(r.last, r.first + 1);
  }
  for (size_t i = 0; i < registers_.size(); ++i) {
    const VirtualRegister& r = registers_[i];
    const int home = r.list == -1 ? int((r.first / kListSpan - 2) / 2) : r.list >= 3 && r.list % 2 ? (r.list - 3) / 2 : -1;
    if (home < 0 || r.shape != reduced_shape()) continue;
    const int until = r.last == kForever ? phases_ - 1 : int((r.last / kListSpan - 2) / 2);
    if (until > home) plan_->phases[size_t(home)].carried.push_back({kVirtual | uint32_t(i), r.bytes, until});
  }
}

void TilePlanner::choose_blocks() {
  int64_t tile = 0, kept = 0;  // bytes per point of a block, and of a whole row
  for (const BufferKind& k : buffer_kinds_) {
    if (k.shape != kBlock) continue;
    (k.kept ? kept : tile) += k.bytes;
  }
  // Inputs that several instructions read in place should stay in the cache, like tiles.
  for (int n = 0; n < nodes(); ++n)
    if (direct_[size_t(n)] && shape(n) == kBlock && users_[size_t(n)].size() > 1) tile += reg_bytes(reg_of(node(n).dtype));
  const int64_t rows = plan_->sizes[size_t(plan_->row)], cols = plan_->sizes[size_t(plan_->col)];
  int64_t points = std::clamp<int64_t>(kTileBudget / std::max<int64_t>(tile, 4) / 64 * 64, 256, 4096);
  int64_t& r = plan_->block_rows;
  int64_t& c = plan_->block_cols;
  switch (plan_->form) {
    case TilePlan::Form::map:
      c = std::min(cols, axes_.transposes ? std::min<int64_t>(points, 64) : points);
      r = std::clamp<int64_t>(points / std::max<int64_t>(round_up(c, 16), 1), 1, 256);
      break;
    case TilePlan::Form::row: {
      c = single_ ? cols : std::min(cols, tile ? std::min<int64_t>(points, 2048) : 8192);
      int64_t row_bytes = (tile + 4) * c + kept * length_;
      r = std::clamp<int64_t>(5 * kTileBudget / 2 / std::max<int64_t>(row_bytes, 1), 1, 64);
      // The next block is prefetched between instructions; more lines than the core can have in flight would stall it.
      int64_t instructions = 0, fetched = 1;
      for (const auto& phase : plan_->phases) instructions += int64_t(phase.body.size());
      for (int n = 0; n < nodes(); ++n)
        if (node(n).kind == Kind::load && shape(n) == kBlock) fetched += c * size_of(group_.accesses[size_t(node(n).access)].dtype);
      if (c >= 256) r = std::clamp<int64_t>(kFetchLines * 64 * instructions / fetched, 1, r);
      if (plan_->parts > 1) {
        r = 1;
        if (phases_ > 1) c = std::min(cols, kRowChunk);  // the same, and so the same sums, whatever is kept
      }
      break;
    }
    case TilePlan::Form::column:
      c = std::min(cols, strip_);
      r = tile ? std::clamp<int64_t>(points / std::max<int64_t>(round_up(c, 16), 1), 4, 256) : 8;
      break;
  }
  if (plan_->parts == 1 || plan_->form != TilePlan::Form::row) r = variant_.block_rows < 0 ? r / 2 : r << variant_.block_rows;
  c = std::max<int64_t>(c, 1);
  r = std::max<int64_t>(std::min(r, rows), 1);
  int64_t loops = 1;
  for (int axis : plan_->loop) loops *= plan_->sizes[size_t(axis)];
  if (plan_->form == TilePlan::Form::row) plan_->chunks = loops * ((cols + c - 1) / c);
  if (plan_->form == TilePlan::Form::column) plan_->chunks = loops * ((rows + r - 1) / r);
  plan_->parts = std::max<int64_t>(std::min(plan_->parts, plan_->chunks), 1);
}

void TilePlanner::place_buffers() {
  auto row_of = [](int64_t cols, int64_t bytes) {
    if (cols < 16 || (cols < 128 && cols % 16)) return cols * bytes;  // dense: narrow blocks run as one long row
    int64_t row = round_up(cols * bytes, 64);
    return row % 4096 ? row : row + 64;  // puts rows in different cache sets
  };
  int64_t offset = 0;
  for (const BufferKind& k : buffer_kinds_) {
    TilePlan::Buffer b;
    b.offset = offset;
    int64_t bytes = 0;
    switch (k.shape) {
      case kScalar: bytes = k.bytes; break;
      case kRows: bytes = k.bytes * plan_->block_rows, b.row = k.bytes; break;
      case kColumns: bytes = k.bytes * plan_->block_cols; break;
      case kBlock: {
        const bool down = plan_->form == TilePlan::Form::column;  // the direction of reductions
        b.row = row_of(k.kept && !down ? length_ : plan_->block_cols, k.bytes);
        b.kept = !k.kept ? 0 : down ? b.row : k.bytes;
        bytes = b.row * (k.kept && down ? length_ : plan_->block_rows);
        break;
      }
    }
    if (k.kept && k.shape == kColumns) bytes = k.bytes * length_, b.kept = k.bytes;
    offset += round_up(std::max<int64_t>(bytes, 1), 64);
    plan_->buffers.push_back(b);
  }
  plan_->tile_bytes = offset;
}

// Inputs whose next block follows the current one in memory are prefetched while this one is computed.
void TilePlanner::choose_ahead() {
  if (!variant_.ahead) return;
  const int64_t cols = plan_->sizes[size_t(plan_->col)];
  const bool whole_rows = plan_->block_cols == cols;
  if (plan_->form == TilePlan::Form::map ? plan_->phases[0].body.size() < 2 || (!whole_rows && plan_->block_rows > 1)
                                         : plan_->form == TilePlan::Form::column || !single_)
    return;
  int64_t instructions = 0;
  for (const auto& phase : plan_->phases) instructions += int64_t(phase.body.size());
  for (int n = 0; n < nodes(); ++n) {
    const int access = node(n).access;
    if (node(n).kind != Kind::load || shape(n) != kBlock || bounded(access) || group_.accesses[size_t(access)].gather >= 0) continue;
    const int64_t bytes = size_of(group_.accesses[size_t(access)].dtype), row = plan_->accesses[size_t(access)].row_stride;
    if (stride(access, plan_->col) != 1 || (whole_rows && row != cols * bytes)) continue;
    const int64_t span = plan_->block_rows * plan_->block_cols * bytes;
    if (span < 1024) continue;
    // A share is prefetched before each instruction. Where that is more lines than the core can have in flight, exponentials, which leave memory idle the
    // longest, prefetch as they run; so do they for narrow rows, which are often in a cache already.
    const int64_t share = round_up((span + instructions - 1) / instructions, 64);
    bool fetched = false;
    if (plan_->block_cols < 256 || share > kFetchLines * 64)
      for (auto& phase : plan_->phases)
        for (TileInstr& in : phase.body)
          if (in.a == uint32_t(access) && (in.run == handlers_.exp_sum[0] || in.run == handlers_.exp_sum[1])) in.ahead = span, fetched = true;
    if (!fetched) plan_->ahead.push_back({uint32_t(access), span, share});
  }
}

void TilePlanner::number_slots() {
  auto number = [&](uint32_t& slot) {
    if (slot & kLiteral)
      slot = uint32_t(plan_->accesses.size() + plan_->buffers.size()) + (slot & (kLiteral - 1));
    else if (slot & kVirtual)
      slot = uint32_t(plan_->accesses.size()) + uint32_t(reg(slot).buffer);
  };
  auto number_list = [&](std::vector<TileInstr>& list) {
    for (TileInstr& in : list) number(in.d), number(in.a), number(in.b), number(in.c), number(in.e);
  };
  number_list(plan_->outer_pre), number_list(plan_->block_pre);
  for (auto& phase : plan_->phases) {
    number_list(phase.body), number_list(phase.after);
    for (auto& sum : phase.sums) number(sum.value), number(sum.position);
    for (auto& carried : phase.carried) number(carried.slot);
  }
  for (auto& update : plan_->updates) {
    number(update->good);
    for (uint32_t& f : update->factors) number(f);
  }
}

// A rough estimate: the time for memory at one core's bandwidth or for the instructions, whichever is longer.
void TilePlanner::estimate() {
  double compute = 0, bytes = 0;
  for (const auto& phase : plan_->phases) compute += 0.05 * double(phase.body.size());
  for (int n = 0; n < nodes(); ++n) {
    if (node(n).kind == Kind::load || node(n).kind == Kind::store)
      if (shape(n) == kBlock) bytes += double(size_of(group_.accesses[size_t(node(n).access)].dtype));
    if (node(n).kind == Kind::random) compute += 1;
    if (node(n).kind == Kind::elementwise && shape(n) == kBlock && row(node(n).op).has(OpRow::real)) compute += 0.25;
  }
  double total = bytes;
  for (int64_t s : plan_->sizes) total *= double(s);
  plan_->point_ns = std::max(compute, bytes * (total > (8 << 20) ? 0.08 : 0.011));
}

int64_t TilePlan::size_of(const std::vector<int>& list) const {
  int64_t n = 1;
  for (int axis : list) n *= sizes[size_t(axis)];
  return n;
}

int64_t TilePlan::points() const {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

int64_t TilePlan::scratch_bytes() const {
  return round_up(slot_count() * int64_t(sizeof(TileSlot)), 64) + round_up(int64_t(accesses.size()) * 8, 64) + tile_bytes;
}

std::unique_ptr<TilePlan> plan_tile_group(const TileGroup& group, bool fixed, int threads, const KernelVariant& variant) {
  verify(group);
  return TilePlanner(group, fixed, threads, variant).run();
}

}  // namespace ridge::cpu
