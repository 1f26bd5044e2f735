// fold, the adjoint of windows: every element of the result gathers the taps that read it, in tap order.
#include <vector>

#include "backend/cpu/node_parts.h"

namespace ridge::cpu {
namespace {

class FoldKernel final : public Kernel {
 public:
  FoldKernel(const Graph& graph, NodeId id) {
    const Node& node = graph[id];
    const Shape& in = graph.shape(node.in[0]);
    const auto& a = node.attrs.ints;
    const int axis = int(a[0]);
    dtype_ = node.type().dtype, window_ = a[1], stride_ = a[2];
    out_view_ = AxisView(node.type().shape, axis), windows_ = in[axis];
    // Element s is tap w of window q if q * stride + w * dilation = s. For s = n * stride + r this means q = n + (r - w * dilation) / stride, if the division
    // is exact, so one table of taps serves all elements with the same residue.
    first_tap_.push_back(0);
    for (int64_t r = 0; r < stride_; ++r) {
      for (int64_t w = 0; w < window_; ++w)
        if ((r - w * a[3]) % stride_ == 0) taps_.push_back({(r - w * a[3]) / stride_, w});
      first_tap_.push_back(int64_t(taps_.size()));
    }
    rows_ = node.type().shape.numel() == 0 ? 0 : out_view_.outer * out_view_.size;
    columns_ = std::max<int64_t>(1, std::min(out_view_.inner, kElements));
    column_blocks_ = blocks(out_view_.inner, columns_), rows_per_unit_ = std::max<int64_t>(1, kElements / columns_);
    const double reads = double(in.numel()) / double(std::max<int64_t>(1, node.type().shape.numel()));
    unit_ns_ = double(std::min(rows_, rows_per_unit_)) * (4 + double(columns_) * (0.3 + 0.6 * reads));
  }

  int64_t scratch_bytes() const override { return window_ * 8; }

  void bind(std::span<const Ref> operands, Ref, std::vector<Task>& tasks) override {
    g_ = operands[0], out_ = operands[1];
    with_element(dtype_, [&]<class E>(E) { append_task(tasks, run<E>, this, blocks(rows_, rows_per_unit_) * column_blocks_, unit_ns_); });
  }

 private:
  static constexpr int64_t kElements = 8192;
  struct Tap {
    int64_t window, tap;  // window relative to s / stride
  };

  template <class E>
  static void run(const void* args, int64_t begin, int64_t end, Worker& w) {
    using Stored = typename E::Stored;
    const auto& k = *static_cast<const FoldKernel*>(args);
    const int64_t inner = k.out_view_.inner, window = k.window_;
    auto* reads = reinterpret_cast<const Stored**>(w.scratch);
    const bool any = k.windows_ > 0;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t column = unit % k.column_blocks_ * k.columns_, columns = std::min(k.columns_, inner - column);
      const int64_t first = unit / k.column_blocks_ * k.rows_per_unit_;
      for (int64_t row = first; row < std::min(first + k.rows_per_unit_, k.rows_); ++row) {
        const int64_t o = row / k.out_view_.size, s = row % k.out_view_.size, n = s / k.stride_, r = s % k.stride_;
        int64_t count = 0;
        for (int64_t i = k.first_tap_[size_t(r)]; any && i < k.first_tap_[size_t(r + 1)]; ++i) {
          const int64_t q = n + k.taps_[size_t(i)].window;
          if (q >= 0 && q < k.windows_) reads[count++] = w.at<Stored>(k.g_) + ((o * k.windows_ + q) * inner + column) * window + k.taps_[size_t(i)].tap;
        }
        Stored* out = w.at<Stored>(k.out_) + row * inner + column;
        for (int64_t m = 0; m < columns; ++m) {
          typename E::Sum sum = 0;
          for (int64_t i = 0; i < count; ++i) sum = E::add(sum, E::load(reads[i][m * window]));
          out[m] = E::store(sum);
        }
      }
    }
  }

  DType dtype_;
  int64_t window_ = 1, stride_ = 1, windows_ = 0;
  AxisView out_view_;
  std::vector<int64_t> first_tap_;  // by residue
  std::vector<Tap> taps_;
  int64_t rows_ = 0, rows_per_unit_ = 1, columns_ = 1, column_blocks_ = 1;
  double unit_ns_ = 0;
  Ref g_, out_;
};

}  // namespace

std::unique_ptr<Kernel> make_fold(const Graph& graph, NodeId node) { return std::make_unique<FoldKernel>(graph, node); }

}  // namespace ridge::cpu
