// scatter and scatter_add: copy the operand, then write or add along one axis. Elements of the index that share all coordinates except the axis form a line.
// Lines never overlap, so they are distributed over threads, and each is processed in index order.
#include "backend/cpu/range_split.h"

namespace ridge::cpu {
namespace {

constexpr int64_t kLines = 512;  // lines processed together, so that index and source are read in rows
constexpr int64_t kScatterUnit = 8192;

class ScatterKernel final : public Kernel {
 public:
  ScatterKernel(const Graph& graph, NodeId id) {
    const Node& node = graph[id];
    const Shape &x = graph.shape(node.in[0]), &index = graph.shape(node.in[1]);
    const int axis = int(node.attrs.ints[0]);
    dtype_ = node.type().dtype, adds_ = node.op == Op::scatter_add;
    numel_ = x.numel(), target_ = AxisView(x, axis), index_ = AxisView(index, axis);
    rank_ = index.rank();
    const Shape strides = contiguous_strides(x);
    for (int i = 0; i < rank_; ++i) dims_[i] = i == axis ? 1 : index[i], strides_[i] = strides[i];
    lines_ = index_.outer * index_.inner;
    if (index.numel() > 0) {
      const int64_t pieces = std::max<int64_t>(1, kScatterUnit / index_.size);
      lines_per_unit_ = std::min({kLines, pieces, lines_});
      line_units_ = blocks(lines_, lines_per_unit_);
      splits_ = RangeSplit::worthwhile(lines_, index_.size);
      if (splits_) split_ = RangeSplit(index_.outer, index_.size, index_.inner, target_.size);
    }
    // Half types are summed in an f32 copy of the operand.
    wide_ = adds_ && !sums_are_stored(dtype_) && index.numel() > 0;
  }

  // The f32 copy, then the split.
  int64_t workspace_bytes() const override { return copy_bytes() + (splits_ ? split_.workspace_bytes() : 0); }
  int64_t scratch_bytes() const override { return kLines * 8; }

  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    x_ = operands[0], i_ = operands[1], source_ = operands[2], out_ = operands[3], sums_ = wide_ ? workspace : out_;
    if (splits_) split_.append(i_, {workspace.base, workspace.offset + copy_bytes()}, tasks);
    copy_ = {x_, out_, numel_ * size_of(dtype_)};
    if (!wide_) copy_.append(tasks);
    if (!adds_) {
      with_word(dtype_, [&](auto word) { append_lines<PlainElement<decltype(word)>, false>(tasks); });
      return;
    }
    with_element(dtype_, [&]<class E>(E) {
      const int64_t units = blocks(numel_, kScatterUnit);
      const double convert_ns = double(std::min(numel_, kScatterUnit)) * 0.5;
      if (wide_) append_task(tasks, run_widen<E>, this, units, convert_ns);
      append_lines<E, true>(tasks);
      if (wide_) append_task(tasks, run_narrow<E>, this, units, convert_ns);
    });
  }

 private:
  int64_t copy_bytes() const { return wide_ ? blocks(numel_ * 4, 64) * 64 : 0; }

  template <class E, bool kAdd>
  void append_lines(std::vector<Task>& tasks) {
    if (splits_)
      append_task(tasks, run_ranges<E, kAdd>, this, lines_ * split_.ranges(), double(index_.size) / double(split_.ranges()) * 3);
    else
      append_task(tasks, run_lines<E, kAdd>, this, line_units_, double(index_.size * lines_per_unit_) * 3);
  }

  template <class E>
  static void run_widen(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const ScatterKernel*>(args);
    const auto* x = w.at<typename E::Stored>(k.x_);
    auto* sums = w.at<typename E::Sum>(k.sums_);
    for (int64_t i = begin * kScatterUnit; i < std::min(end * kScatterUnit, k.numel_); ++i) sums[i] = E::load(x[i]);
  }

  template <class E>
  static void run_narrow(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const ScatterKernel*>(args);
    const auto* sums = w.at<typename E::Sum>(k.sums_);
    auto* out = w.at<typename E::Stored>(k.out_);
    for (int64_t i = begin * kScatterUnit; i < std::min(end * kScatterUnit, k.numel_); ++i) out[i] = E::store(sums[i]);
  }

  // Where a line starts in the target: at its coordinates, with 0 on the axis.
  int64_t line_start(int64_t line) const {
    int64_t at = 0;
    for (int i = rank_ - 1; i >= 0; --i) at += line % dims_[i] * strides_[i], line /= dims_[i];
    return at;
  }

  // A target in its sum or storage type.
  template <class E, bool kAdd>
  using Target = std::conditional_t<kAdd, typename E::Sum, typename E::Stored>;
  template <class E, bool kAdd>
  static void write(Target<E, kAdd>& to, typename E::Stored x) {
    if constexpr (kAdd)
      to = E::add(to, E::load(x));
    else
      to = x;
  }

  template <class E, bool kAdd>
  static void run_lines(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const ScatterKernel*>(args);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t last = std::min((unit + 1) * k.lines_per_unit_, k.lines_);
      for (int64_t line = unit * k.lines_per_unit_; line < last;) {  // up to the end of an outer row
        const int64_t stop = std::min(last, (line / k.index_.inner + 1) * k.index_.inner);
        k.template walk<E, kAdd>(line, stop - line, w);
        line = stop;
      }
    }
  }

  template <class E, bool kAdd>
  void walk(int64_t line, int64_t count, Worker& w) const {
    auto* starts = reinterpret_cast<int64_t*>(w.scratch);
    for (int64_t j = 0; j < count; ++j) starts[j] = line_start(line + j);
    const int64_t from = line / index_.inner * index_.size * index_.inner + line % index_.inner, size = target_.size, step = target_.inner;
    const int64_t* index = w.at<int64_t>(i_) + from;
    const auto* source = w.at<typename E::Stored>(source_) + from;
    auto* out = w.at<Target<E, kAdd>>(sums_);
    for (int64_t a = 0; a < index_.size; ++a, index += index_.inner, source += index_.inner) {
      for (int64_t j = 0; j < count; ++j) {
        if (uint64_t(index[j]) < uint64_t(size))
          write<E, kAdd>(out[starts[j] + index[j] * step], source[j]);
        else
          w.fault->raise(index[j], size);
      }
    }
  }

  // For a few long lines: units own ranges of a line's targets.
  template <class E, bool kAdd>
  static void run_ranges(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const ScatterKernel*>(args);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t line = unit / k.split_.ranges(), from = k.split_.start(line), inner = k.index_.inner, step = k.target_.inner;
      const int64_t* index = w.at<int64_t>(k.i_) + from;
      const auto* source = w.at<typename E::Stored>(k.source_) + from;
      auto* out = w.at<Target<E, kAdd>>(k.sums_) + k.line_start(line);
      for (int64_t a : k.split_.picks(line, unit % k.split_.ranges(), w)) write<E, kAdd>(out[index[a * inner] * step], source[a * inner]);
    }
  }

  DType dtype_;
  bool adds_ = false, wide_ = false, splits_ = false;
  AxisView target_, index_;
  int rank_ = 0;
  int64_t dims_[kMaxRank] = {}, strides_[kMaxRank] = {};  // per line: the index's sizes, the target's strides
  int64_t numel_ = 0, lines_ = 0, lines_per_unit_ = 1, line_units_ = 0;
  Ref x_, i_, source_, out_, sums_;
  FlatCopy copy_;
  RangeSplit split_;
};

}  // namespace

std::unique_ptr<Kernel> make_scatter(const Graph& graph, NodeId node) { return std::make_unique<ScatterKernel>(graph, node); }

}  // namespace ridge::cpu
