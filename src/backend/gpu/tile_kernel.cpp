#include "backend/gpu/tile_kernel.h"

#include <algorithm>
#include <cstring>

#include "backend/gpu/make.h"
#include "backend/gpu/tile_plan.h"
#include "base/error.h"

namespace ridge::gpu {
namespace {

class TileKernel : public Kernel {
 public:
  TileKernel(std::span<const TileGroup> groups, const GpuChip& chip) {
    TileSharing sharing;
    sharing.many = groups.size() > 1;
    for (const TileGroup& group : groups) sharing.wide_index = sharing.wide_index || !fits_32_bits(group);
    int operand = 0;
    std::vector<Planned> plans;
    for (const TileGroup& group : groups) {
      plans.push_back({plan_tile(group, chip, sharing), operand, group.operands, workspace_});
      workspace_ += plans.back().plan.workspace;
      operand += group.operands;
    }
    operands_ = size_t(operand);
    collect(plans);
  }

  TileKernel(TilePlan plan, int operands) : operands_(size_t(operands)) {
    workspace_ = plan.workspace;
    collect({{std::move(plan), 0, operands, 0}});
  }

  int64_t workspace_bytes() const override { return workspace_; }

  std::vector<KernelText> texts() const override {
    std::vector<KernelText> out;
    for (const Launch& l : launches_)
      if (std::find(out.begin(), out.end(), l.text) == out.end()) out.push_back(l.text);
    return out;
  }

  void load(Loader& loader) override {
    for (Launch& l : launches_) l.function = loader.loaded(l.text);
  }

  void bind(std::span<const Place> operands, Place workspace, Place fault) override {
    if (operands.size() != operands_) fail(ErrorCode::internal, "[tile_kernel] bound to {} operands, not {}", operands.size(), operands_);
    fault_ = fault;
    for (Launch& l : launches_)
      for (Entry& e : l.entries)
        for (Pointer& p : e.pointers) p.place = p.operand >= 0 ? operands[size_t(p.operand)] : Place{workspace.base, workspace.offset + p.offset};
  }

  void enqueue(Bases bases, LaunchSink& sink) const override {
    for (const Launch& l : launches_) {
      alignas(16) std::byte args[TileEntryLayout::kMax] = {};
      size_t at = 0;
      auto put = [&](auto value) { std::memcpy(args + at, &value, sizeof value), at += sizeof value; };
      put(gpu::at(bases, fault_));
      put(int64_t(l.entries.size()));
      for (const Entry& e : l.entries) {
        for (const Pointer& p : e.pointers) put(gpu::at(bases, p.place));
        if (e.pointers.empty()) put(Address(0));
        put(e.n), put(e.r), put(e.first), put(int32_t(0));
      }
      sink.launch(l.function, l.blocks, l.threads, l.text.shared, std::span(args).first(at));
    }
  }

  int launches() const override { return int(launches_.size()); }

 private:
  struct Planned {
    TilePlan plan;
    int first_operand, operands;
    int64_t workspace;  // offset
  };
  struct Pointer {
    int operand = -1;    // -1: in the workspace
    int64_t offset = 0;  // in the operand or the workspace
    Place place;
  };
  struct Entry {
    std::vector<Pointer> pointers;
    int64_t n = 0, r = 0;
    int32_t first = 0;  // block
  };
  struct Launch {
    KernelText text;
    int threads = 0;
    int64_t blocks = 0;
    std::vector<Entry> entries;
    KernelFunction function = nullptr;
  };

  // The k-th launches of all groups are combined if their texts are equal.
  void collect(const std::vector<Planned>& plans) {
    size_t steps = 0;
    for (const Planned& p : plans) steps = std::max(steps, p.plan.launches.size());
    for (size_t step = 0; step < steps; ++step) {
      const size_t begin = launches_.size();
      for (const Planned& p : plans) {
        if (step >= p.plan.launches.size()) continue;
        const TileLaunch& from = p.plan.launches[step];
        Launch& to = launch_for(begin, from, plans.size() > 1 ? TileEntryLayout::most(std::max<size_t>(from.pointers.size(), 1)) : 1);
        Entry entry;
        entry.n = from.n, entry.r = from.r, entry.first = int32_t(to.blocks);
        for (int id : from.pointers)
          entry.pointers.push_back(id < p.operands ? Pointer{p.first_operand + id, 0, {}}
                                                   : Pointer{-1, p.workspace + p.plan.pieces[size_t(id - p.operands)], {}});
        to.entries.push_back(std::move(entry));
        to.blocks += from.blocks;
      }
    }
  }

  Launch& launch_for(size_t begin, const TileLaunch& from, int most) {
    constexpr int64_t kMaxBlocks = (int64_t(1) << 31) - 1;
    if (from.blocks > kMaxBlocks) fail(ErrorCode::unsupported, "[tile_kernel] {} blocks in one launch; split the tensor", from.blocks);
    for (size_t i = begin; i < launches_.size(); ++i) {
      Launch& l = launches_[i];
      if (l.text == from.text && l.threads == from.threads && int(l.entries.size()) < most && l.blocks + from.blocks <= kMaxBlocks) return l;
    }
    launches_.push_back({from.text, from.threads, 0, {}, nullptr});
    return launches_.back();
  }

  std::vector<Launch> launches_;
  int64_t workspace_ = 0;
  size_t operands_ = 0;
  Place fault_;
};

}  // namespace

std::unique_ptr<Kernel> make_tile_kernel(std::span<const TileGroup> groups, const GpuChip& chip) { return std::make_unique<TileKernel>(groups, chip); }

std::unique_ptr<Kernel> make_row_kernel_with_sums(const TileGroup& row, std::span<const TileGroup* const> columns, std::span<const int> same,
                                                  std::span<const int> unread, const GpuChip& chip) {
  const std::optional<TileGroup> column = united_columns(columns);
  if (!column) return nullptr;
  std::optional<TilePlan> plan = plan_row_with_sums(row, *column, same, unread, chip);
  if (!plan) return nullptr;
  return std::make_unique<TileKernel>(std::move(*plan), row.operands + column->operands);
}

namespace {

std::vector<int> same_operands(const ProgramKernel& row, const ProgramKernel& column) {
  std::vector<int> same;
  for (const ProgramOperand& c : column.operands) {
    same.push_back(-1);
    for (size_t i = 0; i < row.operands.size(); ++i) {
      const ProgramOperand& r = row.operands[i];
      if (!c.written && r.owner && r.owner == c.owner && r.offset == c.offset) same.back() = int(i);
    }
  }
  return same;
}

bool is_single(const ProgramKernel& k, TileGroup::Template form) {
  return k.group.kind == Group::Kind::tile && k.tiles.size() == 1 && k.tiles[0].form == form && k.tiles[0].accumulator < 0;
}

}  // namespace

std::unique_ptr<Kernel> make_row_kernel_with_sums(const Program& program, size_t row, std::span<const size_t> columns, const GpuChip& chip) {
  std::vector<const TileGroup*> groups;
  std::vector<int> same;
  for (size_t j : columns) {
    groups.push_back(&program.kernels[j].tiles[0]);
    const std::vector<int> own = same_operands(program.kernels[row], program.kernels[j]);
    same.insert(same.end(), own.begin(), own.end());
  }
  std::vector<int> unread;  // only the sums read them
  const std::vector<ProgramOperand>& operands = program.kernels[row].operands;
  for (size_t o = 0; o < operands.size(); ++o) {
    if (!operands[o].written || !operands[o].owner || program.buffer_of(operands[o].owner).place != ProgramBuffer::Place::arena) continue;
    auto uses = [&](size_t k) { return std::ranges::any_of(program.kernels[k].operands, [&](const auto& x) { return x.owner == operands[o].owner; }); };
    bool read = false;
    for (size_t k = 0; k < program.kernels.size() && !read; ++k) read = k != row && !std::ranges::count(columns, k) && uses(k);
    if (!read) unread.push_back(int(o));
  }
  return make_row_kernel_with_sums(program.kernels[row].tiles[0], groups, same, unread, chip);
}

std::vector<size_t> columns_near(const Program& program, size_t kernel) {
  constexpr size_t kSearchDistance = 16;
  const std::vector<ProgramKernel>& kernels = program.kernels;
  // The sums are computed earlier or later than planned, so nothing else may use their memory in between, and their inputs must be available.
  auto may_move = [&](size_t from) {
    const std::vector<int> same = same_operands(kernels[kernel], kernels[from]);
    for (size_t o = 0; o < kernels[from].operands.size(); ++o) {
      const ProgramOperand& operand = kernels[from].operands[o];
      if (!operand.written) {
        if (same[o] < 0) return false;
        continue;
      }
      const ProgramBuffer& buffer = program.buffer_of(operand.owner);
      if (buffer.place != ProgramBuffer::Place::output || program.state_input[size_t(buffer.index)] >= 0) return false;
      for (size_t between = std::min(from, kernel); between <= std::max(from, kernel); ++between)
        for (const ProgramOperand& other : kernels[between].operands)
          if (between != from && other.owner == operand.owner) return false;
    }
    return true;
  };
  std::vector<size_t> columns;
  for (size_t j = kernel - std::min(kernel, kSearchDistance); j < std::min(kernels.size(), kernel + kSearchDistance); ++j)
    if (is_single(kernels[j], TileGroup::Template::column) && may_move(j)) columns.push_back(j);
  return columns;
}

std::vector<std::vector<size_t>> find_row_sums(const Program& program, const GpuChip& chip) {
  std::vector<std::vector<size_t>> takes_over(program.kernels.size());
  std::vector<char> taken(program.kernels.size(), 0);
  for (size_t i = 0; i < program.kernels.size(); ++i) {
    if (taken[i] || !is_single(program.kernels[i], TileGroup::Template::row)) continue;
    for (size_t j : columns_near(program, i)) {
      std::vector<size_t> columns = takes_over[i];
      columns.push_back(j);
      if (taken[j] || !make_row_kernel_with_sums(program, i, columns, chip)) continue;
      takes_over[i] = std::move(columns), taken[i] = taken[j] = 1;
    }
  }
  return takes_over;
}

std::unique_ptr<Kernel> make_epilogue_kernel(const TileGroup& group, const GpuChip& chip) {
  if (group.accumulator < 0) fail(ErrorCode::internal, "[tile_kernel] an epilogue reads no sums");
  TileGroup own = group;
  TileAccess& sums = own.accesses[size_t(group.accumulator)];
  sums.operand = own.operands++;
  sums.offset = 0, sums.strides = contiguous_strides(group.domain);
  own.accumulator = -1;
  return make_tile_kernel({&own, 1}, chip);
}

}  // namespace ridge::gpu
