#include "backend/cpu/row_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "backend/cpu/build.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/panel_kernel.h"
#include "backend/cpu/tile_kernel.h"
#include "base/text.h"
#include "compile/pipeline.h"
#include "compile/place.h"

namespace ridge::cpu {
namespace {

constexpr int64_t kAlign = 64;
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// An axis of a kernel's loop nest that runs over rows: `inner` of its indices belong to each row.
struct RowAxis {
  int axis = -1;
  int64_t inner = 1;
};

// Whether every kernel of a body computes a row of its results from the same row of the values that the loop writes. Values are [rows, …]; whatever the loop
// only reads (sequences, constants) may be read anywhere.
class RowCheck {
 public:
  explicit RowCheck(const LoopProgram& loop) : p_(loop.body), carries_(loop.frame.carries()), first_constant_(carries_ + loop.frame.sequences()) {
    for (NodeId id : p_.outputs) written_.push_back(id);
    for (const ProgramKernel& k : p_.kernels)
      for (const ProgramOperand& o : k.operands)
        if (o.written && o.owner) written_.push_back(o.owner);
    for (size_t c = 0; c < carries_; ++c) written_.push_back(p_.inputs[c]);
    std::sort(written_.begin(), written_.end());
    written_.erase(std::unique(written_.begin(), written_.end()), written_.end());
  }

  // Returns why not; empty if so.
  std::string run() {
    if (!p_.row_blocks) return "switched off";
    if (carries_ == 0) return "it has no carry";
    const Shape& first = p_.graph.shape(p_.inputs[0]);
    rows_ = first.rank() ? first[0] : 0;
    for (NodeId id : written_) {
      const Shape& s = p_.graph.shape(id);
      if (s.rank() == 0 || s[0] != rows_ || s.numel() == 0)
        return fmt::format("{} {} has no axis of {} in front", name_of(id), to_string(p_.graph.type(id)), counted(rows_, "row"));
    }
    for (size_t k = 0; k < p_.kernels.size(); ++k) {
      const ProgramKernel& kernel = p_.kernels[k];
      std::string why = kernel.group.kind == Group::Kind::node     ? "runs for all rows at once"
                        : kernel.group.kind == Group::Kind::matmul ? check_product(kernel)
                                                                   : check_tiles(kernel);
      if (!why.empty()) return fmt::format("kernel {} ({}) {}", k, kernel.name, why);
    }
    return "";
  }

  int64_t rows() const { return rows_; }
  int64_t weight_bytes() const { return weight_bytes_; }
  bool panels() const { return panels_; }  // sums over lists, whose vectors hold rows
  int64_t row_bytes() const {              // of a row of everything that a step writes
    int64_t bytes = 0;
    for (NodeId id : written_) bytes += p_.graph.type(id).bytes() / rows_;
    return bytes;
  }
  double kernel_points() const { return row_points_ / double(axes_.size()); }         // of a row, on average
  double row_points() const { return row_points_; }                                   // of all kernels that are not products
  const std::vector<RowAxis>& axes(size_t kernel) const { return axes_.at(kernel); }  // by tile group

 private:
  std::string name_of(NodeId id) const {
    return p_.graph[id].op == Op::input ? fmt::format("\"{}\"", p_.graph.input_name(id)) : std::string(name(p_.graph[id].op));
  }
  bool is_written(NodeId owner) const { return std::binary_search(written_.begin(), written_.end(), owner); }
  int64_t row_size(NodeId owner) const { return p_.graph.shape(owner).numel() / rows_; }

  // Whether the elements that row 0 reaches lie in row 0, and the next row's are one row further. Loops: (first index, last index, stride).
  struct Loop {
    int64_t first, last, stride;
  };
  static bool stays(int64_t offset, std::span<const Loop> loops, int64_t row_step, int64_t row_size) {
    int64_t low = offset, high = offset;
    for (const Loop& l : loops) low += std::min(l.first * l.stride, l.last * l.stride), high += std::max(l.first * l.stride, l.last * l.stride);
    return row_step == row_size && low >= 0 && high < row_size;
  }

  std::string check_product(const ProgramKernel& kernel) {
    const Node& n = p_.graph[kernel.group.node];
    if (n.op == Op::conv) return "runs for all rows at once";
    const ContractionLoops& loops = kernel.loops;
    int64_t rows = 1;
    for (const auto& l : loops.m) rows *= l.size;
    for (const auto& l : loops.batch)
      if (l.size != 1) return "is a batch of products";
    const NodeId right = kernel.operands[1].owner;
    const ProgramBuffer& b = p_.buffer_of(right);
    if (b.place != ProgramBuffer::Place::input || size_t(b.index) < first_constant_) return "multiplies by a value that changes with the step";
    size_t at = 0;
    while (at < loops.m.size() && loops.m[at].size == 1) ++at;
    if (rows_ > 1 && (at == loops.m.size() || loops.m[at].size != rows_)) return "has its rows in another order";
    const int64_t inner = rows / rows_;
    auto in_row = [&](NodeId owner, int64_t offset, int64_t ContractionLoops::Loop::*stride, std::span<const ContractionLoops::Loop> others) {
      if (!is_written(owner)) return true;
      std::vector<Loop> inside;
      for (size_t i = at + 1; i < loops.m.size(); ++i) inside.push_back({0, loops.m[i].size - 1, loops.m[i].*stride});
      for (const auto& l : others) inside.push_back({0, l.size - 1, l.*stride});
      return stays(offset, inside, rows_ > 1 ? loops.m[at].*stride : row_size(owner), row_size(owner));
    };
    const int64_t a_size = size_of(p_.graph.dtype(n.in[0]));
    if (!in_row(kernel.operands[0].owner, kernel.operands[0].offset / a_size, &ContractionLoops::Loop::a, loops.k)) return "reads other rows";
    if (kernel.tiles.empty()) {
      if (!in_row(kernel.operands[2].owner, kernel.operands[2].offset / size_of(n.type().dtype), &ContractionLoops::Loop::c, loops.n))
        return "writes other rows";
      axes_.push_back({});
    } else {
      if (!check_group(kernel.tiles[0], std::span(kernel.operands).subspan(2), {1, inner})) return "has an epilogue that mixes rows";
      axes_.push_back({{1, inner}});
    }
    weight_bytes_ += p_.graph.type(right).bytes();
    return "";
  }

  std::string check_tiles(const ProgramKernel& kernel) {
    std::vector<RowAxis> found;
    size_t first = 0;
    for (const TileGroup& t : kernel.tiles) {
      const auto operands = std::span(kernel.operands).subspan(first, size_t(t.operands));
      first += size_t(t.operands);
      RowAxis row;
      for (int a = 0; a < t.domain.rank() && row.axis < 0; ++a)
        if (t.domain[a] % rows_ == 0 && t.domain[a] > 0 && check_group(t, operands, {a, t.domain[a] / rows_})) row = {a, t.domain[a] / rows_};
      if (row.axis < 0) return "mixes rows";
      found.push_back(row);
      panels_ |= kernel.tiles.size() == 1 && runs_as_panel(t);
      row_points_ += double(t.domain.numel()) / double(rows_);
    }
    axes_.push_back(std::move(found));
    return "";
  }

  bool check_group(const TileGroup& t, std::span<const ProgramOperand> operands, RowAxis row) const {
    const int rank = t.domain.rank(), last = t.form == TileGroup::Template::column ? rank - 1 : rank;
    if (t.form != TileGroup::Template::map && row.axis >= last - t.reduced && row.axis < last) return false;
    for (size_t i = 0; i < t.accesses.size(); ++i) {
      const TileAccess& a = t.accesses[i];
      if (int(i) == t.accumulator) continue;
      std::vector<Loop> loops;
      bool empty = false;
      for (int x = 0; x < rank; ++x) {
        int64_t low = 0, high = t.domain[x];
        for (const TileAccess::Bound& b : a.bounds)
          if (b.axis == x) low = std::max(low, b.low), high = std::min(high, b.high);
        if (x == row.axis && (low > 0 || high < t.domain[x])) return false;
        empty |= low >= high;
        loops.push_back({low, x == row.axis ? row.inner - 1 : high - 1, a.strides[x]});
      }
      if (a.operand < 0 || empty || !is_written(operands[size_t(a.operand)].owner)) continue;
      if (a.gather >= 0) loops.push_back({0, a.gather_size - 1, a.gather_stride});
      const ProgramOperand& o = operands[size_t(a.operand)];
      const int64_t row_step = rows_ > 1 ? a.strides[row.axis] * row.inner : row_size(o.owner);
      if (!stays(a.offset + o.offset / size_of(a.dtype), loops, row_step, row_size(o.owner))) return false;
    }
    return true;
  }

  const Program& p_;
  size_t carries_, first_constant_;
  std::vector<NodeId> written_;  // owners, sorted
  int64_t rows_ = 0, weight_bytes_ = 0;
  double row_points_ = 0;
  bool panels_ = false;
  std::vector<std::vector<RowAxis>> axes_;
};

// Whether blocks are expected to be faster than all rows step by step, over several numbers of threads: too few blocks leave threads idle, but each kernel of a
// step costs the team a meeting.
bool blocks_pay(const RowCheck& check, size_t blocks, size_t kernels) {
  constexpr double kFlopsPerNs = 100, kPointNs = 0.4, kMeetNs = 1500, kStartNs = 100;
  const double step = double(check.rows()) * (double(check.weight_bytes()) / 4 * 2 / kFlopsPerNs + check.row_points() * kPointNs);
  double in_blocks = 0, in_steps = 0;
  for (size_t threads : {1, 2, 4}) {
    in_blocks += step * double((blocks + threads - 1) / threads) / double(blocks);
    in_steps += step / double(threads) + double(kernels) * (threads > 1 ? kMeetNs : kStartNs);
  }
  return in_blocks < in_steps;
}

// The first row of each block, then the number of rows. Blocks of products have two or more register tiles of rows, more if the weights do not fit in L2;
// without products a block is a few thousand points, fewer if a row has many values: a block's state should stay in L2, next to the tiles.
std::vector<int64_t> choose_blocks(const RowCheck& check, const KernelVariant& variant) {
  constexpr int64_t kRows = 16, kRowsOfLarge = 32, kL2 = 1 << 20;
  constexpr int64_t kStateBytes = 160 << 10, kFewRows = 256;
  constexpr double kPoints = 4096;
  int64_t rows =
      std::clamp(check.rows() / 4, kRows / 2, check.weight_bytes() > kL2 / 2 ? kRowsOfLarge : kRows);  // at least four blocks, if that leaves a tile each
  if (check.weight_bytes() == 0 && check.panels()) rows = kRows / 2;
  if (check.weight_bytes() == 0 && !check.panels()) {
    rows = std::max<int64_t>(1, int64_t(kPoints / std::max(1., check.kernel_points())));
    rows = std::min(rows, std::max(kFewRows, kStateBytes / std::max<int64_t>(1, check.row_bytes())));
  }
  rows = std::max<int64_t>(1, variant.unit < 0 ? rows >> -variant.unit : rows << variant.unit);
  const int64_t blocks = std::max<int64_t>(1, (check.rows() + rows - 1) / rows);
  std::vector<int64_t> first;
  for (int64_t i = 0; i <= blocks; ++i) first.push_back(check.rows() * i / blocks);
  return first;
}

// The group for some of its rows. Each access gets an operand of its own, as accesses may step differently from row to row.
TileGroup rows_of(TileGroup t, RowAxis row, int64_t first, int64_t rows) {
  t.domain[row.axis] = rows * row.inner, t.operands = 0;
  for (TileAccess& a : t.accesses)
    if (a.operand >= 0)
      a.operand = t.operands++;
    else
      a.offset += first * row.inner * a.strides[row.axis];
  return t;
}

bool depends_on_position(const TileGroup& t, RowAxis row) {
  return std::any_of(t.accesses.begin(), t.accesses.end(), [&](const TileAccess& a) { return a.operand < 0 && a.strides[row.axis] != 0; });
}

class RowBlocks final : public RowBlockLoop {
 public:
  RowBlocks(LoopProgram& loop, const RowCheck& check, std::vector<int64_t> first)
      : frame_(std::move(loop.frame)), body_(std::move(loop.body)), first_(std::move(first)) {
    body_.shares_memory = false;  // blocks are at different steps and kernels at the same time
    plan(body_, std::vector<int64_t>(body_.kernels.size(), 0));
    find_columns(check);
    space_ = aligned(body_.arena_bytes);
    auto workspace = [&](const Kernel& kernel) {
      const int64_t at = space_;
      space_ += aligned(kernel.workspace_bytes());
      scratch_ = std::max(scratch_, kernel.scratch_bytes());
      return kernel.workspace_bytes() ? Ref{0, at} : Ref{};
    };
    for (size_t k = 0; k < body_.kernels.size(); ++k) {
      const ProgramKernel& kernel = body_.kernels[k];
      std::vector<Ref> refs;
      for (const ProgramOperand& o : kernel.operands) refs.push_back(place_of(body_, o));
      Step step;
      if (kernel.group.kind == Group::Kind::matmul) {
        const int64_t inner = check.axes(k).empty() ? product_rows(kernel) / check.rows() : check.axes(k)[0].inner;
        std::vector<int64_t> blocks;
        for (int64_t first : first_) blocks.push_back(first * inner);
        kernels_.push_back(make_product_kernel(body_, kernel, blocks));
        std::vector<Task> tasks;
        kernels_.back()->bind(refs, workspace(*kernels_.back()), tasks);
        step.product = tasks.back(), tasks.pop_back();
        once_.insert(once_.end(), tasks.begin(), tasks.end());
      } else {
        bind_tiles(kernel, check.axes(k), refs, step, workspace);
      }
      steps_.push_back(std::move(step));
    }
    for (const Step& s : steps_) {
      step_ns_ += s.product.run ? s.product.unit_ns : 0;
      if (!s.product.run)
        for (size_t i = 0; i < s.ends[0]; ++i) step_ns_ += double(s.tasks[i].units) * s.tasks[i].unit_ns;
    }
    workspace_ = frame_.lay_out(space_);
    table_ = aligned(int64_t(sizeof(std::byte*)) * int64_t(1 + body_.inputs.size() + body_.outputs.size()));
  }

  int64_t workspace_bytes() const override { return workspace_; }
  int64_t scratch_bytes() const override { return table_ + scratch_; }
  const Program& body() const override { return body_; }
  std::string describe() const override {
    int64_t most = 0;
    for (size_t i = 0; i + 1 < first_.size(); ++i) most = std::max(most, first_[i + 1] - first_[i]);
    return fmt::format("{} of up to {}", counted(int64_t(first_.size()) - 1, "block"), counted(most, "row"));
  }

  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    operands_.assign(operands.begin(), operands.end()), place_ = workspace ? workspace : Ref{0, 0};
    for (size_t i = 0; i < once_.size() && frame_.steps() > 0; ++i) {
      before_.push_back(std::make_unique<Before>(Before{this, once_[i]}));
      tasks.push_back({run_before, before_.back().get(), once_[i].units, once_[i].unit_ns});
    }
    tasks.push_back({run_blocks, this, int64_t(first_.size()) - 1, 200 + double(frame_.steps()) * step_ns_});
  }

 private:
  // A kernel of the body: a product, whose unit i is block i, or tasks of each block.
  struct Step {
    Task product;
    std::vector<Task> tasks;
    std::vector<size_t> ends;  // by block
  };
  struct Before {
    const RowBlocks* loop;
    Task task;
  };

  // What only panels write and read inside a step is stored by columns, as they compute it: the rows of a block next to each other.
  void find_columns(const RowCheck& check) {
    for (size_t b = 0; b + 1 < first_.size(); ++b)
      if (first_[b + 1] - first_[b] != kColumnRows) return;
    std::set<NodeId> never;
    for (const ProgramBuffer& b : body_.buffers)
      if (b.alias >= 0) never.insert({b.owner, body_.buffers[size_t(b.alias)].owner});
    for (size_t k = 0; k < body_.kernels.size(); ++k) {
      const ProgramKernel& kernel = body_.kernels[k];
      const bool tiles = kernel.group.kind != Group::Kind::matmul && kernel.tiles.size() == 1;
      const bool panel = tiles && check.axes(k)[0].inner == 1 && runs_as_panel(kernel.tiles[0]);
      for (const ProgramOperand& o : kernel.operands) {
        if (!o.owner) continue;
        const bool fits = panel && o.offset == 0 && body_.graph.dtype(o.owner) == DType::f32 && body_.buffer_of(o.owner).place == ProgramBuffer::Place::arena;
        (fits ? columns_ : never).insert(o.owner);
      }
    }
    for (NodeId id : never) columns_.erase(id);
  }
  // The groups of a kernel, with the accesses to values by columns adapted.
  std::vector<TileGroup> by_columns(const ProgramKernel& kernel, const std::vector<RowAxis>& axes) const {
    std::vector<TileGroup> groups = kernel.tiles;
    size_t first = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (TileAccess& a : groups[g].accesses) {
        if (a.operand < 0 || !columns_.count(kernel.operands[first + size_t(a.operand)].owner)) continue;
        for (int x = 0; x < groups[g].domain.rank(); ++x) a.strides[x] = x == axes[g].axis ? 1 : a.strides[x] * kColumnRows;
        a.offset *= kColumnRows, a.gather_stride *= kColumnRows;
      }
      first += size_t(groups[g].operands);
    }
    return groups;
  }

  static int64_t product_rows(const ProgramKernel& kernel) {
    int64_t rows = 1;
    for (const auto& l : kernel.loops.m) rows *= l.size;
    return rows;
  }

  template <class Workspace>
  void bind_tiles(const ProgramKernel& kernel, const std::vector<RowAxis>& axes, const std::vector<Ref>& refs, Step& step, const Workspace& workspace) {
    bool fixed = true;
    const std::vector<TileGroup> tiles = by_columns(kernel, axes);
    for (size_t g = 0; g < kernel.tiles.size(); ++g) fixed &= !depends_on_position(kernel.tiles[g], axes[g]);
    std::map<int64_t, Kernel*> by_rows;
    for (size_t block = 0; block + 1 < first_.size(); ++block) {
      const int64_t first = first_[block], rows = first_[block + 1] - first;
      Kernel*& made = by_rows[fixed ? rows : -1 - first];
      if (!made) {
        std::vector<TileGroup> groups;
        for (size_t g = 0; g < kernel.tiles.size(); ++g) groups.push_back(rows_of(tiles[g], axes[g], first, rows));
        kernels_.push_back(make_tile_kernel(groups));
        made = kernels_.back().get();
      }
      std::vector<Ref> operands;
      std::vector<char> fixed;
      size_t group_at = 0;
      for (size_t g = 0; g < kernel.tiles.size(); ++g) {
        for (const TileAccess& a : kernel.tiles[g].accesses) {
          if (a.operand < 0) continue;
          Ref r = refs[group_at + size_t(a.operand)];
          r.offset += first * axes[g].inner * a.strides[axes[g].axis] * size_of(a.dtype);
          operands.push_back(r), fixed.push_back(is_constant(kernel.operands[group_at + size_t(a.operand)].owner));
        }
        group_at += size_t(kernel.tiles[g].operands);
      }
      const size_t before = step.tasks.size();
      made->bind(operands, workspace(*made), step.tasks);
      const auto first_task = step.tasks.begin() + long(before), again = first_task + made->tasks_once(fixed);
      prepare_.resize(first_.size() - 1);
      prepare_[block].insert(prepare_[block].end(), first_task, again);
      step.tasks.erase(first_task, again);
      step.ends.push_back(step.tasks.size());
    }
  }

  bool is_constant(NodeId owner) const {
    if (!owner) return false;
    const ProgramBuffer& b = body_.buffer_of(owner);
    return b.place == ProgramBuffer::Place::input && size_t(b.index) >= frame_.carries() + frame_.sequences();
  }

  // The body's table of base addresses, in scratch; sequences, carries and outputs are set by the frame.
  std::byte** start(Worker& worker) const {
    auto table = reinterpret_cast<std::byte**>(worker.scratch);
    table[0] = worker.at<std::byte>(place_);
    for (size_t i = 0; i < body_.inputs.size(); ++i) table[1 + i] = address(worker, i);
    worker.scratch += table_;
    return table;
  }
  std::byte* address(const Worker& worker, size_t operand) const { return operands_[operand] ? worker.at<std::byte>(operands_[operand]) : nullptr; }

  static void run_before(const void* args, int64_t begin, int64_t end, Worker& worker) {
    const Before& b = *static_cast<const Before*>(args);
    Worker inner = worker;
    inner.bases = b.loop->start(inner);
    b.task.run(b.task.args, begin, end, inner);
  }

  static void run_blocks(const void* args, int64_t begin, int64_t end, Worker& worker) {
    for (int64_t block = begin; block < end; ++block) static_cast<const RowBlocks*>(args)->run_block(size_t(block), worker);
  }

  void run_block(size_t block, const Worker& worker) const {
    Worker inner = worker;
    std::byte** table = start(inner);
    inner.bases = table;
    std::byte **in = table + 1, **out = in + body_.inputs.size();
    const int64_t first = first_[block], rows = first_[block + 1] - first, all = first_.back();
    auto copy = [&](std::byte* to, const std::byte* from, int64_t bytes) {
      if (to != from) std::memcpy(to + bytes / all * first, from + bytes / all * first, size_t(bytes / all * rows));
    };
    if (block < prepare_.size() && frame_.steps() > 0)
      for (const Task& t : prepare_[block]) t.run(t.args, 0, t.units, inner);
    frame_.run_steps(
        table[0], in, out, [&](size_t operand) { return address(worker, operand); }, copy,
        [&] {
          for (const Step& s : steps_) {
            if (s.product.run) {
              s.product.run(s.product.args, int64_t(block), int64_t(block) + 1, inner);
              continue;
            }
            for (size_t i = block ? s.ends[block - 1] : 0; i < s.ends[block]; ++i) s.tasks[i].run(s.tasks[i].args, 0, s.tasks[i].units, inner);
          }
        });
  }

  static constexpr int64_t kColumnRows = 8;

  ScanFrame frame_;
  Program body_;
  std::set<NodeId> columns_;
  std::vector<int64_t> first_;  // row of each block, then the number of rows
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<Step> steps_;
  std::vector<Task> once_;                  // pack the weights
  std::vector<std::vector<Task>> prepare_;  // by block: what its tiles do before the first step
  std::vector<std::unique_ptr<Before>> before_;
  std::vector<Ref> operands_;
  Ref place_;
  int64_t space_ = 0, workspace_ = 0, scratch_ = 0, table_ = 0;
  double step_ns_ = 0;
};

}  // namespace

std::unique_ptr<RowBlockLoop> make_row_blocks(LoopProgram& loop, std::string& why, const KernelVariant& variant) {
  RowCheck check(loop);
  why = check.run();
  if (!why.empty()) return nullptr;
  std::vector<int64_t> first = choose_blocks(check, variant);
  if (!blocks_pay(check, choose_blocks(check, {}).size() - 1, loop.body.kernels.size())) {
    why = fmt::format("too few rows for blocks ({})", check.rows());
    return nullptr;
  }
  return std::make_unique<RowBlocks>(loop, check, std::move(first));
}

}  // namespace ridge::cpu
