// take_grad: out[o, index[k], :] += g[o, k, :]. For wide rows, a counting sort groups the rows by target. Units own equal parts of the sorted order, so even a
// token that fills half of a batch is summed by many threads. A target whose rows span several parts gets partial sums, which are added afterwards. For narrow
// rows, units own ranges of targets.
#include "backend/cpu/range_split.h"
#include "backend/cpu/row_sums.h"

namespace ridge::cpu {
namespace {

constexpr int64_t kNarrow = 8;            // shorter rows are added element by element
constexpr int64_t kSummedColumns = 1024;  // columns of a wide row that one unit sums
constexpr int64_t kPartElements = 32768;  // size of a part of the sorted order times its columns
constexpr int64_t kZeroBytes = 128 * 1024;

template <class E>
void sum_rows_scalar(const void* rows, int64_t stride, const int64_t* which, int64_t count, int64_t columns, void* out, bool) {
  const auto* p = static_cast<const typename E::Stored*>(rows);
  auto* sums = static_cast<typename E::Sum*>(out);  // these types are summed in their storage type
  for (int64_t c = 0; c < columns; ++c) sums[c] = E::load(p[which[0] * stride + c]);
  for (int64_t k = 1; k < count; ++k)
    for (int64_t c = 0; c < columns; ++c) sums[c] = E::add(sums[c], E::load(p[which[k] * stride + c]));
}

SumRows sum_rows_of(DType dtype) {
  if (dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16) return sum_rows(dtype);
  return with_element(dtype, []<class E>(E) -> SumRows { return sum_rows_scalar<E>; });
}

struct Problem {
  DType dtype;
  int64_t outer = 1, picks = 0, targets = 0, inner = 1;  // g [outer, picks, inner], index [picks], out [outer, targets, inner]
  int64_t element() const { return size_of(dtype); }
};

class WideTakeGrad final : public Kernel {
 public:
  explicit WideTakeGrad(const Problem& p) : p_(p) {
    columns_ = std::min(p.inner, kSummedColumns), column_blocks_ = blocks(p.inner, columns_);
    part_ = std::clamp<int64_t>(kPartElements / columns_, 32, 1024), parts_ = blocks(p.picks, part_);
    rows_per_zero_unit_ = std::max<int64_t>(1, kZeroBytes / (p.inner * p.element())), zero_units_ = blocks(p.targets, rows_per_zero_unit_);
    sum_ = sum_rows_of(p.dtype);
  }

  // starts [targets + 1], order [picks], then partial sums [outer, parts, first or last, inner]
  int64_t workspace_bytes() const override { return index_bytes() + p_.outer * parts_ * 2 * p_.inner * sum_bytes(p_.dtype); }

  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    g_ = operands[0], index_ = operands[1], out_ = operands[2];
    starts_ = workspace, order_ = {workspace.base, workspace.offset + (p_.targets + 1) * 8}, partial_ = {workspace.base, workspace.offset + index_bytes()};
    const int64_t sums = p_.outer * parts_ * column_blocks_, zeros = p_.outer * zero_units_;
    const double sum_ns = double(p_.outer * p_.picks * p_.inner * p_.element()) * 0.06,
                 zero_ns = double(p_.outer * p_.targets * p_.inner * p_.element()) * 0.09;
    append_task(tasks, run_order, this, 1, double(p_.picks) * 2 + double(p_.targets) * 0.7);
    append_task(tasks, run_sums, this, sums + zeros, (sum_ns + zero_ns) / double(std::max<int64_t>(sums + zeros, 1)));
    if (parts_ > 1) append_task(tasks, run_joins, this, sums, 30 + double(columns_));
  }

 private:
  int64_t index_bytes() const { return (p_.targets + 1 + p_.picks + 7) / 8 * 64; }

  static void run_order(const void* args, int64_t begin, int64_t end, Worker& w) {
    if (begin == end) return;
    const auto& k = *static_cast<const WideTakeGrad*>(args);
    const int64_t* index = k.p_.picks > 0 ? w.at<int64_t>(k.index_) : nullptr;
    int64_t *starts = w.at<int64_t>(k.starts_), *order = w.at<int64_t>(k.order_), sum = 0;
    const auto targets = uint64_t(k.p_.targets);
    std::memset(starts, 0, size_t(targets + 1) * 8);
    for (int64_t i = 0; i < k.p_.picks; ++i) {
      if (uint64_t(index[i]) < targets)
        ++starts[index[i] + 1];
      else
        w.fault->raise(index[i], k.p_.targets);
    }
    // The start of each target is stored one place late, so that placing its rows moves it to the right place.
    for (uint64_t t = 0; t < targets; ++t) {
      const int64_t count = starts[t + 1];
      starts[t + 1] = sum, sum += count;
    }
    for (int64_t i = 0; i < k.p_.picks; ++i)
      if (uint64_t(index[i]) < targets) order[starts[index[i] + 1]++] = i;
  }

  // Part `part` of the sorted order, from its first to its last position.
  struct Span {
    int64_t first, last;
  };
  Span span_of(int64_t part, const int64_t* starts) const { return {part * part_, std::min((part + 1) * part_, starts[p_.targets])}; }
  int64_t partial_at(int64_t o, int64_t part, int64_t which) const { return ((o * parts_ + part) * 2 + which) * p_.inner * sum_bytes(p_.dtype); }

  struct Unit {
    int64_t o, part, column, columns;
  };
  Unit unit_of(int64_t unit) const {
    const int64_t column = unit % column_blocks_ * columns_, part = unit / column_blocks_;
    return {part / parts_, part % parts_, column, std::min(columns_, p_.inner - column)};
  }

  static void run_sums(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const WideTakeGrad*>(args);
    const int64_t sums = k.p_.outer * k.parts_ * k.column_blocks_;
    for (int64_t unit = begin; unit < end; ++unit) {
      if (unit < sums)
        k.sum_part(k.unit_of(unit), w);
      else
        k.zero_rows((unit - sums) / k.zero_units_, (unit - sums) % k.zero_units_, w);
    }
  }

  void zero_rows(int64_t o, int64_t block, Worker& w) const {
    const int64_t* starts = w.at<int64_t>(starts_);
    const int64_t bytes = p_.inner * p_.element(), last = std::min((block + 1) * rows_per_zero_unit_, p_.targets);
    std::byte* out = w.at<std::byte>(out_) + o * p_.targets * bytes;
    for (int64_t t = block * rows_per_zero_unit_; t < last;) {
      int64_t stop = t;
      while (stop < last && starts[stop] == starts[stop + 1]) ++stop;
      if (stop > t) std::memset(out + t * bytes, 0, size_t((stop - t) * bytes));
      t = stop + 1;
    }
  }

  void sum_part(const Unit& u, Worker& w) const {
    const int64_t *starts = w.at<int64_t>(starts_), *order = w.at<int64_t>(order_), *index = w.at<int64_t>(index_);
    const std::byte* g = w.at<std::byte>(g_) + (u.o * p_.picks * p_.inner + u.column) * p_.element();
    std::byte* out = w.at<std::byte>(out_) + (u.o * p_.targets * p_.inner + u.column) * p_.element();
    std::byte* partial = parts_ > 1 ? w.at<std::byte>(partial_) + u.column * sum_bytes(p_.dtype) : nullptr;
    const Span s = span_of(u.part, starts);
    for (int64_t at = s.first; at < s.last;) {
      const int64_t t = index[order[at]], stop = std::min(starts[t + 1], s.last);
      const bool whole = starts[t] >= s.first && starts[t + 1] <= s.last;
      std::byte* to = whole ? out + t * p_.inner * p_.element() : partial + partial_at(u.o, u.part, starts[t] >= s.first);
      sum_(g, p_.inner, order + at, stop - at, u.columns, to, !whole);
      at = stop;
    }
  }

  // Adds the partial sums of a target that starts in this part and ends in a later one.
  static void run_joins(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const WideTakeGrad*>(args);
    const int64_t *starts = w.at<int64_t>(k.starts_), *order = w.at<int64_t>(k.order_), *index = w.at<int64_t>(k.index_);
    for (int64_t unit = begin; unit < end; ++unit) {
      const Unit u = k.unit_of(unit);
      const Span s = k.span_of(u.part, starts);
      if (s.first >= s.last) continue;
      const int64_t t = index[order[s.last - 1]];
      if (starts[t] < s.first || starts[t + 1] <= s.last) continue;
      with_element(k.p_.dtype, [&]<class E>(E) {
        auto partial = [&](int64_t part, int64_t which) {
          return reinterpret_cast<typename E::Sum*>(w.at<std::byte>(k.partial_) + k.partial_at(u.o, part, which)) + u.column;
        };
        auto* sums = partial(u.part, 1);
        for (int64_t part = u.part + 1; part * k.part_ < starts[t + 1]; ++part) {
          const auto* more = partial(part, 0);
          for (int64_t c = 0; c < u.columns; ++c) sums[c] = E::add(sums[c], more[c]);
        }
        auto* out = w.at<typename E::Stored>(k.out_) + (u.o * k.p_.targets + t) * k.p_.inner + u.column;
        for (int64_t c = 0; c < u.columns; ++c) out[c] = E::store(sums[c]);
      });
    }
  }

  Problem p_;
  int64_t columns_ = 1, column_blocks_ = 1, part_ = 1, parts_ = 0, rows_per_zero_unit_ = 1, zero_units_ = 0;
  SumRows sum_ = nullptr;
  Ref g_, index_, out_, starts_, order_, partial_;
};

class NarrowTakeGrad final : public Kernel {
 public:
  explicit NarrowTakeGrad(const Problem& p) : p_(p), splits_(RangeSplit::worthwhile(p.outer, p.picks)), range_(p.targets) {
    if (splits_) split_ = RangeSplit(1, p.picks, 1, p.targets), ranges_ = split_.ranges(), range_ = split_.range_size();
  }

  int64_t workspace_bytes() const override { return splits_ ? split_.workspace_bytes() : 0; }
  int64_t scratch_bytes() const override { return sums_are_stored(p_.dtype) ? 0 : range_ * p_.inner * 4; }

  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    g_ = operands[0], index_ = operands[1], out_ = operands[2];
    if (splits_) split_.append(index_, workspace, tasks);
    const double unit_ns = double(p_.picks * (1 + p_.inner) + p_.targets * p_.inner) * 1.5 / double(ranges_);
    with_element(p_.dtype, [&]<class E>(E) { append_task(tasks, run<E>, this, p_.outer * ranges_, unit_ns); });
  }

 private:
  template <class E>
  static void run(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const NarrowTakeGrad*>(args);
    const Problem& p = k.p_;
    constexpr bool kStored = sizeof(typename E::Sum) == sizeof(typename E::Stored);
    const int64_t* index = p.picks > 0 ? w.at<int64_t>(k.index_) : nullptr;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t o = unit / k.ranges_, range = unit % k.ranges_, low = range * k.range_, high = std::min(low + k.range_, p.targets);
      auto* out = w.at<typename E::Stored>(k.out_) + (o * p.targets + low) * p.inner;
      const auto* g = p.picks > 0 ? w.at<typename E::Stored>(k.g_) + o * p.picks * p.inner : nullptr;
      typename E::Sum* sums;
      if constexpr (kStored)
        sums = out;
      else
        sums = reinterpret_cast<typename E::Sum*>(w.scratch);
      std::fill_n(sums, (high - low) * p.inner, typename E::Sum(0));
      auto add = [&](int64_t i) {
        auto* to = sums + (index[i] - low) * p.inner;
        for (int64_t c = 0; c < p.inner; ++c) to[c] = E::add(to[c], E::load(g[i * p.inner + c]));
      };
      if (k.splits_) {
        for (int64_t i : k.split_.picks(0, range, w)) add(i);
      } else {
        for (int64_t i = 0; i < p.picks; ++i) {
          if (uint64_t(index[i]) < uint64_t(p.targets))
            add(i);
          else
            w.fault->raise(index[i], p.targets);
        }
      }
      if constexpr (!kStored)
        for (int64_t c = 0; c < (high - low) * p.inner; ++c) out[c] = E::store(sums[c]);
    }
  }

  Problem p_;
  bool splits_;
  RangeSplit split_;
  int64_t ranges_ = 1, range_;
  Ref g_, index_, out_;
};

// There is nothing to write; with rows but no targets, every index is bad.
class EmptyTakeGrad final : public Kernel {
 public:
  explicit EmptyTakeGrad(const Problem& p) : faulty_(p.targets == 0 && p.outer * p.picks * p.inner > 0) {}
  void bind(std::span<const Ref> operands, Ref, std::vector<Task>& tasks) override {
    index_ = operands[1];
    if (faulty_) append_task(tasks, run, this, 1, 10);
  }

 private:
  static void run(const void* args, int64_t begin, int64_t end, Worker& w) {
    const auto& k = *static_cast<const EmptyTakeGrad*>(args);
    if (begin < end) w.fault->raise(*w.at<int64_t>(k.index_), 0);
  }

  bool faulty_;
  Ref index_;
};

}  // namespace

std::unique_ptr<Kernel> make_take_grad(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  const int axis = int(node.attrs.ints[0]);
  const AxisView out(node.type().shape, axis);
  const Problem p{node.type().dtype, out.outer, graph.shape(node.in[1]).numel(), out.size, out.inner};
  if (node.type().shape.numel() == 0) return std::make_unique<EmptyTakeGrad>(p);
  if (p.inner < kNarrow) return std::make_unique<NarrowTakeGrad>(p);
  return std::make_unique<WideTakeGrad>(p);
}

}  // namespace ridge::cpu
