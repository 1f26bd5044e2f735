// dynamic_update_slice, and pad with interior padding: copy rows to computed positions.
#include "backend/cpu/node_parts.h"

namespace ridge::cpu {
namespace {

class UpdateSliceKernel final : public Kernel {
 public:
  UpdateSliceKernel(const Graph& graph, NodeId id) {
    const Node& node = graph[id];
    whole_ = node.type().shape, part_ = graph.shape(node.in[1]);
    copy_.bytes = node.type().bytes();
    const int64_t size = size_of(node.type().dtype);
    for (int i = 0; i < whole_.rank(); ++i) limit_[i] = whole_[i] - part_[i], stride_[i] = contiguous_strides(whole_)[i] * size;
    // Axes that the update covers completely are contiguous in both arrays, together with the axis before them.
    row_axes_ = whole_.rank();
    while (row_axes_ > 0 && part_[row_axes_ - 1] == whole_[row_axes_ - 1]) --row_axes_;
    row_axes_ = std::max(row_axes_ - 1, 0);
    row_bytes_ = product(part_, row_axes_, part_.rank()) * size;
    rows_ = row_bytes_ == 0 ? 0 : product(part_, 0, row_axes_);
    row_parts_ = std::max<int64_t>(1, blocks(row_bytes_, kPartBytes));
    rows_per_unit_ = std::max<int64_t>(1, kPartBytes / std::max<int64_t>(row_bytes_, 1));
  }

  void bind(std::span<const Ref> operands, Ref, std::vector<Task>& tasks) override {
    copy_.from = operands[0], copy_.to = operands.back(), update_ = operands[1];
    std::copy(operands.begin() + 2, operands.end() - 1, starts_);
    copy_.append(tasks);
    append_task(tasks, run, this, blocks(rows_, rows_per_unit_) * row_parts_, 20 + double(std::min(rows_per_unit_ * row_bytes_, kPartBytes)) * 0.1);
  }

 private:
  static constexpr int64_t kPartBytes = 128 * 1024;

  static void run(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const UpdateSliceKernel*>(args);
    int64_t origin = 0;
    for (int i = 0; i < k.whole_.rank(); ++i) origin += std::clamp<int64_t>(*w.at<int64_t>(k.starts_[i]), 0, k.limit_[i]) * k.stride_[i];
    std::byte* out = w.at<std::byte>(k.copy_.to) + origin;
    const std::byte* update = w.at<std::byte>(k.update_);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t part = unit % k.row_parts_ * kPartBytes, bytes = std::min(k.row_bytes_ - part, kPartBytes);
      const int64_t first = unit / k.row_parts_ * k.rows_per_unit_;
      for (int64_t row = first; row < std::min(first + k.rows_per_unit_, k.rows_); ++row) {
        int64_t to = part, rest = row;
        for (int i = k.row_axes_ - 1; i >= 0; --i) to += rest % k.part_[i] * k.stride_[i], rest /= k.part_[i];
        std::memcpy(out + to, update + row * k.row_bytes_ + part, size_t(bytes));
      }
    }
  }

  Shape whole_, part_;
  int64_t limit_[kMaxRank] = {}, stride_[kMaxRank] = {};  // in bytes
  int row_axes_ = 0;                                      // axes before a row
  int64_t rows_ = 0, row_bytes_ = 0, row_parts_ = 1, rows_per_unit_ = 1;
  FlatCopy copy_;
  Ref update_, starts_[kMaxRank];
};

// Every row of the result is filled with the padding value, and may have one row of the operand spread over it.
class PadKernel final : public Kernel {
 public:
  PadKernel(const Graph& graph, NodeId id) {
    const Node& node = graph[id];
    const Shape &in = graph.shape(node.in[0]), &out = node.type().shape;
    const std::span<const int64_t> pads(node.attrs.ints);
    dtype_ = node.type().dtype;
    with_element(dtype_, [&]<class E>(E) {
      typename E::Stored fill;
      if constexpr (std::is_floating_point_v<typename E::Sum>)
        fill = E::store(typename E::Sum(node.attrs.reals[0]));
      else
        fill = dtype_ == DType::boolean ? int64_t(node.attrs.reals[0]) != 0 : typename E::Stored(int64_t(node.attrs.reals[0]));
      std::memcpy(&fill_, &fill, sizeof fill);
    });
    const int rank = in.rank();
    for (int i = 0; i < rank; ++i) axes_[i] = {in[i], out[i], pads[i], pads[2 * rank + i] + 1};
    rank_ = std::max(rank, 1);
    rows_ = out.numel() == 0 ? 0 : product(out, 0, rank - 1);
    parts_ = blocks(row().out, kElements), rows_per_unit_ = std::max<int64_t>(1, kElements / std::max<int64_t>(row().out, 1));
    unit_ns_ = 20 + double(std::min(row().out * rows_per_unit_, kElements)) * (row().step == 1 ? 0.2 : 0.3);
  }

  void bind(std::span<const Ref> operands, Ref, std::vector<Task>& tasks) override {
    x_ = operands[0], out_ = operands[1];
    with_word(dtype_, [&](auto word) { append_task(tasks, run<decltype(word)>, this, blocks(rows_, rows_per_unit_) * parts_, unit_ns_); });
  }

 private:
  static constexpr int64_t kElements = 32768;
  struct Axis {
    int64_t in = 1, out = 1, low = 0, step = 1;
  };
  const Axis& row() const { return axes_[rank_ - 1]; }

  // The operand's row for a row of the result, or -1.
  int64_t source_row(int64_t row) const {
    int64_t at = 0, scale = 1;
    for (int i = rank_ - 2; i >= 0; --i) {
      const Axis& a = axes_[i];
      const int64_t c = row % a.out - a.low;
      row /= a.out;
      if (c < 0 || c % a.step != 0 || c / a.step >= a.in) return -1;
      at += c / a.step * scale, scale *= a.in;
    }
    return at;
  }

  template <class T>
  static void run(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const PadKernel*>(args);
    const Axis& a = k.row();
    T fill;
    std::memcpy(&fill, &k.fill_, sizeof fill);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit % k.parts_ * kElements, last = std::min(first + kElements, a.out), top = unit / k.parts_ * k.rows_per_unit_;
      // The operand's elements that fall in [first, last).
      const int64_t from = std::max<int64_t>(0, blocks(first - a.low, a.step)), until = std::min(a.in, blocks(std::max<int64_t>(last - a.low, 0), a.step));
      for (int64_t r = top; r < std::min(top + k.rows_per_unit_, k.rows_); ++r) {
        T* out = w.at<T>(k.out_) + r * a.out;
        const int64_t source = k.source_row(r);
        if (source < 0 || from >= until) {
          std::fill(out + first, out + last, fill);
          continue;
        }
        const T* x = w.at<T>(k.x_) + source * a.in;
        if (a.step == 1) {
          std::fill(out + first, out + a.low + from, fill);
          std::memcpy(out + a.low + from, x + from, size_t(until - from) * sizeof(T));
          std::fill(out + a.low + until, out + last, fill);
        } else {
          std::fill(out + first, out + last, fill);
          for (int64_t i = from; i < until; ++i) out[a.low + i * a.step] = x[i];
        }
      }
    }
  }

  DType dtype_;
  uint64_t fill_ = 0;  // its first bytes hold the element
  Axis axes_[kMaxRank];
  int rank_ = 1;
  int64_t rows_ = 0, parts_ = 1, rows_per_unit_ = 1;
  double unit_ns_ = 0;
  Ref x_, out_;
};

}  // namespace

std::unique_ptr<Kernel> make_dynamic_update_slice(const Graph& graph, NodeId node) { return std::make_unique<UpdateSliceKernel>(graph, node); }
std::unique_ptr<Kernel> make_pad(const Graph& graph, NodeId node) { return std::make_unique<PadKernel>(graph, node); }

}  // namespace ridge::cpu
