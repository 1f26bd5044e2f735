// cumsum along one axis, from the front or from the back. If there are few long rows, they are split into chunks: first the totals of the chunks, then their
// running sums, then each chunk separately, starting from the sum of those before it.
#include "backend/cpu/node_parts.h"

namespace ridge::cpu {
namespace {

constexpr int64_t kCumsumColumns = 256;  // adjacent rows that are processed together
constexpr int64_t kCumsumUnit = 16384;
constexpr int64_t kManyUnits = 64;

class CumsumKernel final : public Kernel {
 public:
  CumsumKernel(const Graph& graph, NodeId id) {
    const Node& node = graph[id];
    dtype_ = node.type().dtype, view_ = AxisView(node.type().shape, int(node.attrs.ints[0])), reverse_ = node.attrs.ints[1] != 0;
    if (node.type().shape.numel() == 0) return;
    columns_ = std::min(view_.inner, kCumsumColumns), column_blocks_ = blocks(view_.inner, columns_), chunk_ = view_.size;
    const int64_t lines = view_.outer * column_blocks_;
    if (lines < kManyUnits && view_.size * columns_ > kCumsumUnit) chunk_ = std::max<int64_t>(1, kCumsumUnit / columns_);
    chunks_ = blocks(view_.size, chunk_);
    // Short rows share a unit.
    pieces_ = lines * chunks_, pieces_per_unit_ = std::max<int64_t>(1, kCumsumUnit / (chunk_ * columns_));
  }

  int64_t workspace_bytes() const override { return chunks_ > 1 ? view_.outer * chunks_ * view_.inner * sum_bytes(dtype_) : 0; }
  int64_t scratch_bytes() const override { return kCumsumColumns * 8; }

  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    x_ = operands[0], out_ = operands[1], totals_ = workspace;
    const int64_t units = blocks(pieces_, pieces_per_unit_);
    const double unit_ns = double(std::min(pieces_, pieces_per_unit_) * chunk_ * columns_) * (columns_ > 4 ? 0.3 : 1);
    with_element(dtype_, [&]<class E>(E) {
      if (chunks_ > 1) {
        append_task(tasks, run<E, false>, this, units, unit_ns * 0.8);
        append_task(tasks, run_joins<E>, this, view_.outer * column_blocks_, double(chunks_ * columns_));
      }
      append_task(tasks, run<E, true>, this, units, unit_ns);
    });
  }

 private:
  template <class E, bool kWrites>
  static void run(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const CumsumKernel*>(args);
    const int64_t last = std::min(end * k.pieces_per_unit_, k.pieces_);
    for (int64_t piece = begin * k.pieces_per_unit_; piece < last; ++piece) k.template walk<E, kWrites>(piece, w);
  }

  // One chunk of adjacent rows: its totals or, with kWrites, its running sums.
  template <class E, bool kWrites>
  void walk(int64_t piece, Worker& w) const {
    using Stored = typename E::Stored;
    using Sum = typename E::Sum;
    const int64_t column = piece % column_blocks_ * columns_, columns = std::min(columns_, view_.inner - column), rest = piece / column_blocks_;
    const int64_t chunk = rest % chunks_, o = rest / chunks_, first = chunk * chunk_, count = std::min(chunk_, view_.size - first);
    // Chunk 0 is where the sum starts: the back if the sum runs backwards.
    const int64_t from = (o * view_.size + (reverse_ ? view_.size - 1 - first : first)) * view_.inner + column, step = reverse_ ? -view_.inner : view_.inner;
    const Stored* x = w.at<Stored>(x_) + from;
    Stored* out = kWrites ? w.at<Stored>(out_) + from : nullptr;
    Sum* totals = chunks_ > 1 ? w.at<Sum>(totals_) + (o * chunks_ + chunk) * view_.inner + column : nullptr;
    if (columns == 1) {
      Sum sum = kWrites && totals ? *totals : Sum(0);
      for (int64_t i = 0; i < count; ++i) {
        sum = E::add(sum, E::load(x[i * step]));
        if constexpr (kWrites) out[i * step] = E::store(sum);
      }
      if constexpr (!kWrites) *totals = sum;
      return;
    }
    Sum* sums = reinterpret_cast<Sum*>(w.scratch);
    if (kWrites && totals)
      std::copy_n(totals, columns, sums);
    else
      std::fill_n(sums, columns, Sum(0));
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t c = 0; c < columns; ++c) {
        sums[c] = E::add(sums[c], E::load(x[i * step + c]));
        if constexpr (kWrites) out[i * step + c] = E::store(sums[c]);
      }
    }
    if constexpr (!kWrites) std::copy_n(sums, columns, totals);
  }

  // Turns the chunks' totals into their starting values.
  template <class E>
  static void run_joins(const void* args, int64_t begin, int64_t end, Worker& w) {
    using Sum = typename E::Sum;
    const auto& k = *static_cast<const CumsumKernel*>(args);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t column = unit % k.column_blocks_ * k.columns_, columns = std::min(k.columns_, k.view_.inner - column);
      Sum *sums = reinterpret_cast<Sum*>(w.scratch), *totals = w.at<Sum>(k.totals_) + unit / k.column_blocks_ * k.chunks_ * k.view_.inner + column;
      std::fill_n(sums, columns, Sum(0));
      for (int64_t chunk = 0; chunk < k.chunks_; ++chunk, totals += k.view_.inner) {
        for (int64_t c = 0; c < columns; ++c) {
          const Sum before = sums[c];
          sums[c] = E::add(before, totals[c]);
          totals[c] = before;
        }
      }
    }
  }

  DType dtype_;
  AxisView view_;
  bool reverse_ = false;
  int64_t columns_ = 1, column_blocks_ = 1, chunk_ = 1, chunks_ = 0, pieces_ = 0, pieces_per_unit_ = 1;
  Ref x_, out_, totals_;
};

}  // namespace

std::unique_ptr<Kernel> make_cumsum(const Graph& graph, NodeId node) { return std::make_unique<CumsumKernel>(graph, node); }

}  // namespace ridge::cpu
