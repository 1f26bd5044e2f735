#include "backend/gpu/loop_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <unordered_map>

#include "backend/gpu/loop_text.h"
#include "backend/gpu/matmul_problem.h"

namespace ridge::gpu {
namespace {

using Kind = TileNode::Kind;
using Form = TileGroup::Template;

constexpr int64_t kWidest = 1 << 14, kDeepest = 1024;       // points of a row; of a product
constexpr int64_t kNarrow = 16, kNarrowSum = 64;            // rows that one thread can take: of each value, of all together
constexpr int kMostSlots = 128;                             // values of a thread in registers
constexpr int kMostThreads = 512, kFullThreads = 256;       // of a block that exchanges values; that can use all registers
constexpr int kMostSums = 32;                               // of a thread, for products
constexpr int kMostTiles = 4;                               // of 8 rows that a block takes, on matrix units
constexpr int64_t kMatrixColumns = 64;                      // on matrix units: 8 warps, which can use all registers
constexpr int64_t kReach = (int64_t(1) << 31) - (1 << 20);  // element numbers are 32 bits

struct LoopRefusal {
  std::string why;
};
template <class... Args>
[[noreturn]] void refuse_loop(fmt::format_string<Args...> text, Args&&... args) {
  throw LoopRefusal{fmt::format(text, std::forward<Args>(args)...)};
}

// The group over kept axes, then reduced ones, then one of size 1, so that no value is a vector to the writer.
TileGroup with_last_axis(const TileGroup& group) {
  const int rank = group.domain.rank(), inner = group.form == Form::column;
  std::vector<int> kept, reduced;
  for (int i = 0; i < rank; ++i) {
    const int from_end = rank - 1 - i - inner;
    const bool is_reduced = group.form != Form::map && from_end >= 0 && from_end < group.reduced;
    bool bounded = false;
    for (const TileAccess& a : group.accesses)
      for (const auto& b : a.bounds) bounded |= b.axis == i && (b.low > 0 || b.high < 1);
    if (group.domain[i] == 1 && !bounded) continue;
    (is_reduced ? reduced : kept).push_back(i);
  }
  if (kept.size() + reduced.size() + 1 > size_t(kMaxRank)) refuse_loop("a loop nest of {} axes", kept.size() + reduced.size());
  TileGroup out = group;
  std::vector<int> order = kept;
  order.insert(order.end(), reduced.begin(), reduced.end());
  std::vector<int> place(size_t(rank), -1);
  out.domain = {};
  for (int axis : order) place[size_t(axis)] = out.domain.rank(), out.domain.push_back(group.domain[axis]);
  out.domain.push_back(1);
  out.form = group.form == Form::map ? Form::map : Form::row;
  out.reduced = group.form == Form::map ? 0 : int(reduced.size()) + 1;
  for (TileAccess& access : out.accesses) {
    const TileAccess from = access;
    access.strides = {}, access.bounds.clear();
    for (int axis : order) access.strides.push_back(from.strides[axis]);
    access.strides.push_back(0);
    for (const auto& b : from.bounds)
      if (place[size_t(b.axis)] >= 0) access.bounds.push_back({place[size_t(b.axis)], b.low, b.high});
  }
  return out;
}

// A product without an epilogue, as the epilogue that stores its sums.
TileGroup plain_store(const MatmulProblem& p, DType result) {
  TileGroup group;
  group.domain = {1, p.rows, p.columns};
  auto stride = [](const std::vector<MatmulLoop>& loops) { return loops.empty() ? int64_t(0) : loops[0].c; };
  group.accesses.resize(2);
  group.accesses[0].strides = {0, p.columns, 1};
  group.accesses[1].operand = 0, group.accesses[1].dtype = result, group.accesses[1].strides = {0, stride(p.m), stride(p.n)};
  group.accumulator = 0, group.operands = 1;
  group.nodes.push_back({.kind = Kind::load, .access = 0});
  if (result != DType::f32) group.nodes.push_back({.kind = Kind::elementwise, .op = Op::cast, .dtype = result, .in = {0, -1, -1}});
  group.nodes.push_back({.kind = Kind::store, .dtype = result, .in = {int(group.nodes.size()) - 1, -1, -1}, .access = 1});
  return group;
}

class LoopPlanner {
 public:
  LoopPlanner(const ProgramKernel& scan, const GpuChip& chip, int64_t rows, int cluster, int tiles, bool few)  // cluster 0: without matrix units
      : scan_(scan), frame_(scan.loop->frame), body_(scan.loop->body), chip_(chip), tiles_(tiles), few_(few) {
    loop_.rows = rows, loop_.reverse = frame_.reverse(), loop_.matrix = cluster > 0, loop_.cluster = std::max(cluster, 1);
  }

  std::vector<ResidentLoop> plan() {
    add_values();
    for (const ProgramKernel& kernel : body_.kernels) add(kernel);
    if (loop_.matrix && std::none_of(loop_.nests.begin(), loop_.nests.end(), [](const LoopNest& n) { return n.product.has_value(); }))
      refuse_loop("there are no products");
    choose_columns();
    find_places();
    order_stages();
    choose_threads();
    loop_.sends = sends();
    std::vector<ResidentLoop> loops;
    int64_t least = INT64_MAX;
    for (int budget : budgets_) {
      loop_.weight_registers = budget;
      const int64_t bytes = loop_shared(loop_).bytes;
      least = std::min(least, bytes);
      if (bytes <= chip_.shared_bytes) loops.push_back(loop_);
    }
    if (loops.empty())
      refuse_loop("weights and carries take {} KB of a block's shared memory, next to {} registers of a thread for weights; there are {} KB", least >> 10,
                  budgets_[0], chip_.shared_bytes >> 10);
    return loops;
  }

 private:
  void add_values() {
    loop_.carries = frame_.carries(), loop_.inputs = body_.inputs.size(), loop_.outputs = body_.outputs.size() - loop_.carries;
    for (size_t c = 0; c < loop_.carries; ++c) {
      for (bool entering : {true, false}) {
        const NodeId owner = entering ? body_.inputs[c] : body_.outputs[c];
        (entering ? loop_.entering : loop_.leaving).push_back(value(owner));
        LoopValue& v = loop_.values.back();
        v.carry = int(c), v.entering = entering;
        if (v.uniform) refuse_loop("a carry has no rows");
      }
      const size_t results = body_.inputs.size();
      loop_.last.push_back(scan_.operands[results + c].owner != kNone);
      loop_.stack.push_back(scan_.operands[results + body_.outputs.size() + c].owner != kNone);
    }
  }

  // The loop's value in this buffer.
  int value(NodeId owner) {
    const auto [known, added] = value_of_.try_emplace(owner, int(loop_.values.size()));
    if (!added) return known->second;
    const Type& type = body_.graph.type(owner);
    const int64_t count = type.shape.numel();
    if (count == 1 && loop_.rows > 1) return loop_.values.push_back({.dtype = type.dtype, .width = 1, .uniform = true}), known->second;
    if (count % loop_.rows != 0 || count == 0) refuse_loop("{} is not made of {} rows", to_string(type), loop_.rows);
    if (count >= kReach) refuse_loop("{} has more than 2^31 elements", to_string(type));
    if (count / loop_.rows > kWidest)
      refuse_loop("a row of {} has {} elements; at most {} stay on a multiprocessor", to_string(type), count / loop_.rows, kWidest);
    loop_.values.push_back({.dtype = type.dtype, .width = count / loop_.rows});
    return known->second;
  }

  // What an operand of a step's kernel is for the loop.
  LoopAccess access_to(const ProgramOperand& operand, bool written) {
    const ProgramBuffer& buffer = body_.buffer_of(operand.owner);
    LoopAccess to;
    if (buffer.place == ProgramBuffer::Place::input && size_t(buffer.index) >= loop_.carries) {
      to.operand = buffer.index, to.moves = size_t(buffer.index) < loop_.carries + frame_.sequences();
      return to;
    }
    const bool output = buffer.place == ProgramBuffer::Place::output && size_t(buffer.index) >= loop_.carries;
    const int result = int(body_.inputs.size()) + buffer.index;
    if (output && written && scan_.operands[size_t(result)].owner) to.operand = result, to.moves = true;
    if (!output || is_read(operand.owner)) to.value = value(operand.owner);
    return to;
  }
  bool is_read(NodeId owner) const {
    for (const ProgramKernel& k : body_.kernels)
      for (const ProgramOperand& o : k.operands)
        if (o.owner == owner && !o.written) return true;
    return false;
  }

  void add(const ProgramKernel& kernel) {
    switch (kernel.group.kind) {
      case Group::Kind::node: refuse_loop("{} has no form inside a resident loop", kernel.name);
      case Group::Kind::matmul: return add_product(kernel);
      case Group::Kind::tile: break;
    }
    size_t first = 0;
    for (const TileGroup& group : kernel.tiles) {
      add_nest(kernel, group, first);
      first += size_t(group.operands);
    }
  }

  void add_product(const ProgramKernel& kernel) {
    const ProgramOperand &a = kernel.operands[0], &b = kernel.operands[1];
    const Node& node = body_.graph[kernel.group.node];
    const DType left = body_.graph.dtype(node.in[0]), right = body_.graph.dtype(node.in[1]);
    const MatmulProblem p = make_problem(kernel.loops, left, right);
    if (p.batches != 1) refuse_loop("a batch of {} products", p.batches);
    if (p.rows != loop_.rows || p.m.size() > 1 || p.n.size() > 1 || p.k.size() > 1)
      refuse_loop("{}: a product of [{}, {}] and [{}, {}] is not one of {} rows", kernel.name, p.rows, p.depth, p.depth, p.columns, loop_.rows);
    if (p.depth == 0 || p.columns > kDeepest || p.depth > kDeepest)
      refuse_loop("{}: a product over {} elements to {} columns", kernel.name, p.depth, p.columns);
    LoopProduct product;
    const LoopAccess from = access_to(a, false), weights = access_to(b, false);
    if (from.value < 0) refuse_loop("{}: a product of values that are known before the loop", kernel.name);
    if (weights.value >= 0 || weights.moves) refuse_loop("{}: a product of two values that differ from step to step", kernel.name);
    const LoopValue& v = loop_.values[size_t(from.value)];
    auto stride = [](const std::vector<MatmulLoop>& loops, int64_t MatmulLoop::*of) { return loops.empty() ? int64_t(0) : loops[0].*of; };
    product.value = from.value, product.offset = a.offset / size_of(left);
    product.depth = p.depth, product.columns = p.columns;
    if (p.depth > 1) product.stride = stride(p.k, &MatmulLoop::a);
    const int64_t end = product.offset + product.stride * (p.depth - 1);
    if (!is_float(v.dtype) || (loop_.rows > 1 && stride(p.m, &MatmulLoop::a) != v.width) || std::min(product.offset, end) < 0 ||
        std::max(product.offset, end) >= v.width)
      refuse_loop("{}: a product reads other rows than its own", kernel.name);
    product.weights = weights.operand, product.dtype = right;
    product.weight_offset = b.offset / size_of(right);
    product.depth_stride = stride(p.k, &MatmulLoop::b), product.column_stride = stride(p.n, &MatmulLoop::b);
    if (!kernel.tiles.empty())
      add_nest(kernel, kernel.tiles[0], 2);
    else
      add_nest(kernel, plain_store(p, node.type().dtype), 2);
    read_factor(product, left, kernel.name);
    loop_.nests.back().product = product;
  }

  // Matrix units read rounded elements, which whoever computes a value stores; and a cast to them is such a rounding.
  void read_factor(LoopProduct& product, DType left, const std::string& name) {
    if (!loop_.matrix) {
      loop_.values[size_t(product.value)].shared = true;
      return;
    }
    product.format = format_of(left, product.dtype);
    if (const auto wide = cast_of_.find(product.value); wide != cast_of_.end() && store_factor(wide->second, product.format))
      product.value = wide->second;
    else if (!store_factor(product.value, product.format))
      refuse_loop("{}: a value is multiplied in two formats", name);
  }
  LoopFactor format_of(DType left, DType right) const {
    if (left == right && left == DType::bf16) return LoopFactor::bf16;
    if (left == right && left == DType::f16) return LoopFactor::f16;
    if (chip_.f32_products == Precision::fp32) refuse_loop("matrix units do not multiply f32 numbers exactly");
    return chip_.f32_products == Precision::bf16 ? LoopFactor::bf16 : LoopFactor::tf32;
  }
  // The two ends of a carry are in the same places.
  bool store_factor(int value, LoopFactor format) {
    LoopValue& v = loop_.values[size_t(value)];
    std::vector<int> both = {value};
    if (v.carry >= 0) both = {loop_.entering[size_t(v.carry)], loop_.leaving[size_t(v.carry)]};
    for (int i : both)
      if (loop_.values[size_t(i)].factor && loop_.values[size_t(i)].format != format) return false;
    for (int i : both) loop_.values[size_t(i)].factor = true, loop_.values[size_t(i)].format = format;
    return true;
  }
  // Remembers values that are other values of the loop in 16 bits, element by element.
  void find_casts(const LoopNest& nest) {
    for (const TileNode& store : nest.group.nodes) {
      if (store.kind != Kind::store || size_of(store.dtype) != 2) continue;
      const TileNode& cast = nest.group.nodes[size_t(store.in[0])];
      if (cast.kind != Kind::elementwise || cast.op != Op::cast || cast.dtype != store.dtype) continue;
      const TileNode& load = nest.group.nodes[size_t(cast.in[0])];
      if (load.kind != Kind::load || load.dtype != DType::f32 || load.access == nest.group.accumulator) continue;
      const TileAccess &from = nest.group.accesses[size_t(load.access)], &to = nest.group.accesses[size_t(store.access)];
      const int wide = nest.accesses[size_t(load.access)].value, narrow = nest.accesses[size_t(store.access)].value;
      if (wide < 0 || narrow < 0 || from.gather >= 0 || !from.bounds.empty() || from.offset != to.offset || !(from.strides == to.strides)) continue;
      if (nest.group.domain.numel() == loop_.rows * loop_.values[size_t(narrow)].width && !nest.uniform) cast_of_[narrow] = wide;
    }
  }

  void add_nest(const ProgramKernel& kernel, const TileGroup& group, size_t first_operand) {
    LoopNest nest;
    nest.name = kernel.name;
    nest.group = with_last_axis(group);
    const Shape& domain = nest.group.domain;
    const int kept = domain.rank() - std::max(nest.group.reduced, 1);
    int64_t rows = 1;
    nest.uniform = loop_.rows > 1 && domain.numel() == 1 && group.accumulator < 0;
    while (nest.row_axes < kept && rows < loop_.rows) rows *= domain[nest.row_axes++];
    if (rows != loop_.rows && !nest.uniform)
      refuse_loop("{} runs over {}, which does not begin with {} rows", kernel.name, to_string(group.domain), loop_.rows);
    nest.point_axes = kept - nest.row_axes;
    for (int i = nest.row_axes; i < kept; ++i) nest.points *= domain[i];
    for (int i = kept; i < domain.rank(); ++i) nest.reduced *= domain[i];
    if (nest.points > kWidest) refuse_loop("{} has {} points per row; at most {}", kernel.name, nest.points, kWidest);
    for (size_t a = 0; a < nest.group.accesses.size(); ++a) {
      TileAccess& access = nest.group.accesses[a];
      LoopAccess to;
      if (access.operand >= 0) {
        const ProgramOperand& operand = kernel.operands[first_operand + size_t(access.operand)];
        access.offset += operand.offset / size_of(access.dtype);
        to = access_to(operand, operand.written);
        if (to.value >= 0 && nest.uniform && !loop_.values[size_t(to.value)].uniform) refuse_loop("{}: rows mix", kernel.name);
        if (to.value >= 0 && !loop_.values[size_t(to.value)].uniform) check_rows(nest, access, loop_.values[size_t(to.value)]);
        if (to.operand >= 0) check_reach(nest, access);
      }
      nest.accesses.push_back(to);
    }
    find_casts(nest);
    loop_.nests.push_back(std::move(nest));
  }

  // A row reads and writes only its own row.
  void check_rows(const LoopNest& nest, const TileAccess& access, const LoopValue& v) const {
    int64_t stride = v.width, low = access.offset, high = access.offset;
    for (int i = nest.row_axes - 1; i >= 0; --i) {
      if (access.strides[i] != stride) refuse_loop("{}: rows mix", nest.name);
      stride *= nest.group.domain[i];
    }
    for (int i = nest.row_axes; i < nest.group.domain.rank(); ++i) {
      int64_t first = 0, last = nest.group.domain[i] - 1;
      for (const auto& b : access.bounds)
        if (b.axis == i) first = std::max(first, b.low), last = std::min(last, b.high - 1);
      if (last < first) return;  // never accessed
      low += std::min(access.strides[i] * first, access.strides[i] * last);
      high += std::max(access.strides[i] * first, access.strides[i] * last);
    }
    for (const auto& b : access.bounds)
      if (b.axis < nest.row_axes) refuse_loop("{}: rows mix", nest.name);
    if (access.gather >= 0) {
      if (access.gather_size > kWidest || access.gather_stride < 0) refuse_loop("{} indexes a value of the loop by a number without a small limit", nest.name);
      high += access.gather_stride * std::max<int64_t>(access.gather_size - 1, 0);
    }
    if (low < 0 || high >= v.width) refuse_loop("{}: rows mix", nest.name);
  }

  static void check_reach(const LoopNest& nest, const TileAccess& access) {
    double reach = double(std::abs(access.offset)) + (access.gather >= 0 ? double(std::abs(access.gather_stride)) * double(access.gather_size) : 0);
    for (int i = 0; i < nest.group.domain.rank(); ++i) reach += double(std::abs(access.strides[i])) * double(nest.group.domain[i]);
    if (reach >= double(kReach) && access.gather_size < (int64_t(1) << 62)) refuse_loop("{}: a step of more than 2^31 elements", nest.name);
  }

  // Whether a point's thread owns the element, if element e of a row belongs to column e mod `columns`.
  static bool owns(const LoopNest& nest, const TileAccess& access, int64_t columns) {
    if (access.gather >= 0) return false;
    if (columns == 1) return true;
    int64_t stride = 1;
    for (int i = nest.group.domain.rank() - 1; i >= nest.row_axes; --i) {
      if (nest.group.domain[i] == 1) continue;
      const bool point = i < nest.row_axes + nest.point_axes;
      if (access.strides[i] != (point ? stride : 0)) return false;
      if (point) stride *= nest.group.domain[i];
    }
    return access.offset % columns == 0;
  }

  void choose_columns() {
    int64_t sum = 0, widest = 1;
    bool alone = true;
    std::set<int64_t> widths;
    for (const LoopValue& v : loop_.values) sum += v.width, widest = std::max(widest, v.width), widths.insert(v.width);
    for (const LoopNest& n : loop_.nests) {
      alone = alone && !n.product && n.points <= kNarrow && n.reduced <= kNarrow;
      widest = std::max(widest, n.points), widths.insert(n.points);
    }
    if (alone && widest <= kNarrow && sum <= kNarrowSum) return;  // a thread takes a row
    const int64_t most_columns = loop_.matrix ? kMatrixColumns * loop_.cluster : 256;
    if (loop_.matrix)
      for (int64_t width : std::set<int64_t>(widths))
        for (; width > most_columns && width % 2 == 0; width /= 2) widths.insert(width / 2);
    // The fewest exchanges, then the fewest idle threads, then the most threads.
    std::tuple<int64_t, int64_t, int64_t> best{INT64_MAX, 0, 0};
    for (int64_t columns : widths) {
      if (columns < std::min<int64_t>(8, widest) || columns > (loop_.matrix ? 2 : 1) * most_columns) continue;
      int64_t exchanges = 0, idle = 0;
      for (const LoopNest& n : loop_.nests) {
        idle += (n.points + columns - 1) / columns * columns - n.points + (columns > most_columns ? n.points : 0);
        for (size_t a = 0; a < n.accesses.size(); ++a)
          exchanges += n.accesses[a].value >= 0 && !loop_.values[size_t(n.accesses[a].value)].uniform && !owns(n, n.group.accesses[a], columns);
      }
      best = std::min(best, {exchanges, idle, -columns});
    }
    loop_.columns = std::get<0>(best) == INT64_MAX ? int(std::min<int64_t>(widest, most_columns)) : int(-std::get<2>(best));
  }

  // Which values are in registers, which are exchanged.
  void find_places() {
    for (LoopNest& nest : loop_.nests)
      for (const TileNode& node : nest.group.nodes) {
        if (node.access < 0 || (node.kind != Kind::load && node.kind != Kind::store)) continue;
        LoopAccess& to = nest.accesses[size_t(node.access)];
        if (to.value < 0) continue;
        const TileAccess& access = nest.group.accesses[size_t(node.access)];
        LoopValue& v = loop_.values[size_t(to.value)];
        to.own = v.uniform || (owns(nest, access, loop_.columns) && !loop_.is_wide(nest));
        to.shift = access.offset / loop_.columns;
        if (!to.own) v.shared = true, v.registers = v.registers && node.kind == Kind::load;
      }
    for (LoopValue& v : loop_.values) v.registers = v.registers && (loop_.columns == 1 || loop_.slots(v.width) <= ResidentLoop::kMostSlotsOfNest);
    for (size_t c = 0; c < loop_.carries; ++c) {
      LoopValue &in = loop_.values[size_t(loop_.entering[c])], &out = loop_.values[size_t(loop_.leaving[c])];
      in.registers = out.registers = in.registers && out.registers;
      in.shared = out.shared = in.shared || out.shared || !in.registers;
    }
    for (LoopValue& v : loop_.values) v.shared = v.shared || !v.registers;
    for (LoopNest& nest : loop_.nests)
      for (LoopAccess& to : nest.accesses)
        if (to.value >= 0) to.own = to.own && loop_.values[size_t(to.value)].registers;
  }

  // The value that an access of this kind goes to; -1: none.
  static int value_of(const LoopNest& nest, const TileNode& node, Kind kind) {
    return node.kind == kind && node.access >= 0 ? nest.accesses[size_t(node.access)].value : -1;
  }

  // A nest runs one stage after those whose values it exchanges, and in the stage of others that it reads.
  void order_stages() {
    for (LoopNest& nest : loop_.nests) {
      auto after = [&](int value, bool exchanged) {
        const LoopValue& v = loop_.values[size_t(value)];
        if (v.entering) return;
        if (v.stage < 0) refuse_loop("{} reads a value before it is computed", nest.name);
        nest.stage = std::max(nest.stage, v.stage + int(exchanged));
      };
      for (const TileNode& node : nest.group.nodes)
        if (const int v = value_of(nest, node, Kind::load); v >= 0) after(v, !nest.accesses[size_t(node.access)].own);
      if (nest.product) after(nest.product->value, true);
      for (const TileNode& node : nest.group.nodes)
        if (const int v = value_of(nest, node, Kind::store); v >= 0) {
          int& stage = loop_.values[size_t(v)].stage;
          stage = std::max(stage, nest.stage);
        }
      loop_.stages = std::max(loop_.stages, nest.stage + 1);
    }
    delay_wide_nests();
    std::stable_sort(loop_.nests.begin(), loop_.nests.end(), [](const LoopNest& a, const LoopNest& b) { return a.stage < b.stage; });
    for (LoopValue& v : loop_.values) v.stage = v.first = v.last = -1;
    for (const LoopNest& nest : loop_.nests)
      for (const TileNode& node : nest.group.nodes) {
        if (const int v = value_of(nest, node, Kind::load); v >= 0) loop_.values[size_t(v)].last = nest.stage;
        if (nest.product) loop_.values[size_t(nest.product->value)].last = nest.stage;
        if (const int v = value_of(nest, node, Kind::store); v >= 0) {
          LoopValue& x = loop_.values[size_t(v)];
          x.first = x.first < 0 ? nest.stage : x.first;
          x.stage = x.last = nest.stage;
        }
      }
  }

  // Wide nests run as late as their readers allow, so that fewer of their large values exist at a time.
  void delay_wide_nests() {
    for (size_t i = loop_.nests.size(); i-- > 0;) {
      LoopNest& nest = loop_.nests[i];
      int limit = INT32_MAX;
      for (const TileNode& node : nest.group.nodes) {
        const int v = value_of(nest, node, Kind::store);
        if (v < 0) continue;
        if (loop_.values[size_t(v)].carry >= 0) limit = nest.stage;
        for (const LoopNest& reader : loop_.nests) {
          for (const TileNode& other : reader.group.nodes)
            if (value_of(reader, other, Kind::load) == v) limit = std::min(limit, reader.stage - 1);
          if (reader.product && reader.product->value == v) limit = std::min(limit, reader.stage - 1);
        }
      }
      if (loop_.is_wide(nest) && limit != INT32_MAX) nest.stage = std::max(nest.stage, limit);
    }
  }

  // Every warp stores whole rows of its 8 columns of all values that are exchanged, and at least one in each stage that ends with a barrier.
  bool sends() const {
    if (loop_.cluster == 1 || loop_.padded_columns != loop_.columns) return false;
    std::vector<int64_t> bytes(size_t(loop_.stages), 0);
    for (const LoopValue& v : loop_.values) {
      if (v.entering || !(v.shared || v.factor)) continue;
      if (!v.registers || v.uniform || v.width % loop_.columns != 0 || size_of(v.dtype) > 4 || v.stage < 0) return false;
      bytes[size_t(v.stage)] += v.width * loop_.groups * loop_.rows_each * 8;
    }
    if (!loop_.meets_between_steps()) bytes.back() = 1;
    return std::all_of(bytes.begin(), bytes.end(), [](int64_t b) { return b > 0 && b < (1 << 20); });  // that a barrier can count
  }

  void set_lanes(int lanes) {
    loop_.lanes = lanes;
    loop_.padded_columns = loop_.columns;
    while (loop_.padded_columns * lanes % 32 != 0) ++loop_.padded_columns;
  }
  int64_t weights_of_thread() const {
    int64_t count = 0;
    for (const LoopNest& n : loop_.nests)
      if (n.product) count += int64_t(loop_.slots(n.points)) * loop_.chunks(*n.product) * 4;
    return count;
  }

  void choose_threads() {
    if (loop_.columns == 1) {
      loop_.groups = 32, loop_.ahead = 8;
      while (loop_.groups < 128 && loop_.rows / (2 * loop_.groups) >= chip_.multiprocessors) loop_.groups *= 2;
      return;
    }
    int64_t deepest = 1;
    for (const LoopNest& n : loop_.nests) deepest = std::max({deepest, n.reduced, n.product ? (n.product->depth + 3) / 4 : 1});
    // The number of lanes decides the order of sums, so it depends on the step alone and not on the number of rows.
    set_lanes(1);
    if (loop_.matrix) {
      const int part = 8 * loop_.cluster;
      loop_.padded_columns = (loop_.columns + part - 1) / part * part;
      loop_.splits = tiles_ % 2 == 0 && loop_.padded_columns / loop_.cluster * 8 <= kFullThreads ? 2 : 1;
      loop_.groups = 4 * loop_.splits, loop_.rows_each = 2 * tiles_ / loop_.splits;
    }
    for (int lanes = 2; !loop_.matrix && lanes <= 32 && lanes / 2 < deepest && loop_.threads() < kFullThreads; lanes *= 2) {
      const int before = loop_.lanes;
      set_lanes(lanes);
      if (loop_.threads() > kMostThreads) {
        set_lanes(before);
        break;
      }
    }
    int slots = 0, sums = 1, carried = 0;
    bool reduces = false;
    for (const LoopValue& v : loop_.values) slots += v.registers ? loop_.slots(v.width) : 0, carried += v.registers && v.carry >= 0 ? loop_.slots(v.width) : 0;
    for (const LoopNest& n : loop_.nests) sums += n.product ? loop_.slots(n.points) : 0, reduces |= n.reduced > 1;
    while (!loop_.matrix && loop_.rows_each < 8 && (loop_.rows + loop_.rows_each - 1) / loop_.rows_each > chip_.multiprocessors &&
           2 * loop_.rows_each * sums <= kMostSums)
      loop_.rows_each *= 2;
    if (slots * loop_.rows_each > kMostSlots) refuse_loop("a thread has {} values of a row; at most {} stay in registers", slots, kMostSlots);
    loop_.ahead = reduces ? 1 : tiles_ > 1 || loop_.cluster > 1 ? 0 : slots * loop_.rows_each > 24 ? 2 : 4;
    // How many registers a step needs besides weights is known only to the compiler: the most that weights can have, and candidates with fewer.
    const int registers = loop_.threads() <= kFullThreads ? 255 : 128;
    const int64_t most = registers - 44 - loop_.rows_each * (carried + (loop_.matrix ? 2 : 1) * sums);
    budgets_.clear();
    if (loop_.matrix && weights_of_thread() > most) loop_.ahead = std::min(loop_.ahead, 2);  // registers are scarce
    for (int64_t less : {0, 12, 28, 48, 72}) budgets_.push_back(int(std::clamp<int64_t>(most - less, 0, weights_of_thread()) / 4 * 4));
    budgets_.erase(std::unique(budgets_.begin(), budgets_.end()), budgets_.end());
  }

  const ProgramKernel& scan_;
  const ScanFrame& frame_;
  const Program& body_;
  const GpuChip& chip_;
  const int tiles_;  // of 8 rows, on matrix units
  const bool few_;   // candidates
  ResidentLoop loop_;
  std::unordered_map<NodeId, int> value_of_;
  std::unordered_map<int, int> cast_of_;  // values in 16 bits, of values in 32
  std::vector<int> budgets_ = {0};        // registers for weights
};

}  // namespace

bool ResidentLoop::exchanges() const {
  return std::any_of(values.begin(), values.end(), [](const LoopValue& v) { return v.shared || v.factor; });
}

// What the last stage writes or reads in shared memory is read or written in the first stage of the next step.
bool ResidentLoop::meets_between_steps() const {
  return std::any_of(values.begin(), values.end(),
                     [&](const LoopValue& v) { return (v.shared || v.factor) && (v.carry >= 0 || (v.first == 0 && v.last == stages - 1)); });
}

namespace {

int64_t matrix_blocks(int64_t rows, int cluster, int tiles) { return (rows + 8 * tiles - 1) / std::max(8 * tiles, 1) * cluster; }

}  // namespace

LoopCandidates plan_loop(const ProgramKernel& kernel, const GpuChip& chip) {
  const ScanFrame& frame = kernel.loop->frame;
  const Program& body = kernel.loop->body;
  LoopCandidates out;
  if (frame.carries() == 0) return {{}, "it carries nothing"};
  const Shape& shape = body.graph.shape(body.inputs[0]);
  if (shape.numel() == 0) return {{}, "it is empty"};
  if (shape.rank() == 0) out.refusal = "a carry has no rows";
  // Every element a row of its own where the step allows it; else fewer and longer rows, down to those of the first axis.
  int64_t rows = shape.numel();
  for (int axes = shape.rank(); axes > 0 && out.loops.empty(); --axes) {
    auto add = [&](int cluster, int tiles, bool few = false) {
      try {
        std::vector<ResidentLoop> loops = LoopPlanner(kernel, chip, rows, cluster, tiles, few).plan();
        std::move(loops.begin(), loops.end(), std::back_inserter(out.loops));
        return true;
      } catch (const LoopRefusal& refusal) {
        out.refusal = refusal.why;
        return false;
      }
    };
    auto add_fewest = [&](int cluster, bool few) {  // rows of a block such that all blocks run at the same time
      for (int tiles = 1; tiles <= kMostTiles; tiles *= 2)
        if (matrix_blocks(rows, cluster, tiles) <= chip.multiprocessors && add(cluster, tiles, few)) return tiles;
      return 0;
    };
    // The fewest blocks of a cluster that hold the weights while all rows run at the same time; if it takes several, twice as many too, which hold more in
    // registers. More rows leave a tenth of the multiprocessors idle: these are in groups whose number need not be a multiple of a cluster's. If there is no
    // such cluster, the fewest blocks that hold the weights.
    int first = 0;
    for (int cluster = 1; chip.matrix_units && cluster <= std::min(chip.blocks_of_cluster, first == 0 ? chip.blocks_of_cluster : 2 * first); cluster *= 2) {
      const size_t before = out.loops.size();
      const int tiles = add_fewest(cluster, first > 0);
      if (tiles > 0 && first == 0) out.loops.erase(out.loops.begin(), out.loops.begin() + int64_t(before));
      if (const int64_t most = chip.multiprocessors * 9 / 10; cluster > 1 && matrix_blocks(rows, cluster, tiles) > most)
        for (int more = tiles + 1; more <= std::min(2 * tiles, kMostTiles); ++more)
          if (matrix_blocks(rows, cluster, more) <= most) add(cluster, more, true);
      if (tiles > 0 && first == 0) first = cluster;
      if (first == 1) break;
      if (out.loops.empty()) add(cluster, 1);
    }
    add(0, 1);
    rows /= shape[axes - 1];
  }
  if (!out.loops.empty()) out.refusal.clear();
  return out;
}

}  // namespace ridge::gpu
