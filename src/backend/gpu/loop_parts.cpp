#include "backend/gpu/loop_parts.h"

#include <algorithm>

namespace ridge::gpu {
namespace {

using Kind = TileNode::Kind;

constexpr int kFixedRegisters = 24, kFixedAlone = 112;  // for values that are the same in all steps: next to weights of products, and without them
constexpr int64_t kMostParts = 32;                      // of a sum that a lane computes without a loop
constexpr int kAheadRegisters = 64;                     // for inputs of the next steps

}  // namespace

LoopParts::LoopParts(const ResidentLoop& loop, const KernelDialect& dialect) : loop_(loop), dialect_(dialect), shared_(loop_shared(loop)), ahead_(loop.ahead) {
  for (const LoopNest& nest : loop.nests) facts_.push_back(facts_of(nest.group));
  find_inputs();
}

int LoopParts::pointer(int operand) {
  const auto found = std::find(operands_.begin(), operands_.end(), operand);
  if (found != operands_.end()) return int(found - operands_.begin());
  operands_.push_back(operand);
  return int(operands_.size()) - 1;
}

std::string LoopParts::address(int operand, DType dtype, const char* time) {
  const int p = pointer(operand);
  const std::string type = fmt::format("@global {}*", TileWriter::memory(dtype));
  if (!time) return fmt::format("({})args.p[{}].at", type, p);
  return fmt::format("({})((@global char*)args.p[{}].at + {} * args.p[{}].step)", type, p, time, p);
}

std::string LoopParts::factor(LoopFactor format, const std::string& x, const std::string& y) {
  switch (format) {
    case LoopFactor::f32: break;
    case LoopFactor::tf32: return fmt::format("@tf32(float_bits({}))", x);
    case LoopFactor::bf16: return fmt::format("@bf16_pair({}, {})", x, y);
    case LoopFactor::f16: return fmt::format("@f16_pair({}, {})", x, y);
  }
  return x;
}

std::string LoopParts::store_factor(int v, const std::string& element, const std::string& x, bool sent_later) const {
  const int64_t pitch = shared_.factors.pitch[size_t(v)] * ResidentLoop::chunk(value(v).format) / 4,
                gap = LoopShared::kGroupGap * ResidentLoop::chunk(value(v).format) / 4;
  const std::string word = factor(value(v).format, x);
  return put(fmt::format("factor{}[group * {} + r * {} + {}]", v, loop_.rows_each * pitch + gap, pitch, element), factor_type(value(v).format), word,
             sent_later);
}

std::string LoopParts::put(const std::string& at, const char* type, const std::string& x, bool sent_later) const {
  if (loop_.cluster == 1 || (loop_.sends && sent_later)) return fmt::format("{} = ({}){};", at, type, x);
  return fmt::format("@cluster_store(&{}, ({}){}, {}u);", at, type, x, loop_.cluster);
}

std::string LoopParts::in_shared(int v, const std::string& element) const {
  return fmt::format("shared{}[{} * {} + {}]", v, row_in_block(), shared_.values.pitch[size_t(v)], element);
}

std::string LoopParts::inside_row(int64_t width) const {
  std::string text = loop_.padded_columns != loop_.columns ? fmt::format("n < {}", loop_.columns) : "";
  if (width % loop_.columns != 0) text += fmt::format("{}j * {} + n < {}", text.empty() ? "" : " && ", loop_.columns, width);
  return text;
}

void LoopParts::find_inputs() {
  int fixed = 0, ahead = 0;
  const bool products = loop_.columns == 1 || std::any_of(loop_.nests.begin(), loop_.nests.end(), [](const LoopNest& n) { return n.product.has_value(); });
  for (size_t i = 0; i < loop_.nests.size(); ++i) {
    const LoopNest& nest = loop_.nests[i];
    for (size_t n = 0; n < nest.group.nodes.size(); ++n) {
      const TileNode& node = nest.group.nodes[n];
      if (node.kind != Kind::load || node.in[0] >= 0 || int(node.access) == nest.group.accumulator) continue;
      const LoopAccess& to = nest.accesses[size_t(node.access)];
      const uint32_t mask = facts_[i].mask[n];
      if (to.value >= 0 || nest.group.accesses[size_t(node.access)].gather >= 0) continue;
      LoopInput input{int(i),
                      int(n),
                      to.moves,
                      (mask & axes(0, nest.row_axes)) != 0,
                      (mask & axes(nest.row_axes, nest.point_axes)) != 0,
                      0,
                      1,
                      index_limit(nest, int(n)),
                      {},
                      {{i, int(n)}}};
      if (to.moves) input.limit = -1;
      if (mask & axes(nest.row_axes + nest.point_axes, nest.group.domain.rank() - nest.row_axes - nest.point_axes)) {
        input.parts = int(parts_of(nest));
        if (input.moves || loop_.columns == 1 || loop_.is_wide(nest) || input.parts > kMostParts) continue;
        input.registers *= input.parts * (node.dtype == DType::i64 && input.limit < 0 ? 2 : 1);
      }
      if (input.by_point && loop_.is_wide(nest)) continue;
      if (input.by_row) input.registers *= loop_.rows_each;
      if (input.by_point) input.registers *= slots(nest.points);
      const auto same =
          std::find_if(inputs_.begin(), inputs_.end(), [&](const LoopInput& other) { return other.limit == input.limit && reads_the_same(other, input); });
      if (same != inputs_.end()) {
        same->readers.push_back(input.readers[0]);
        continue;
      }
      int& count = to.moves ? ahead : fixed;
      if (count + input.registers > (!to.moves ? products ? kFixedRegisters : kFixedAlone : ahead_ > 0 ? kAheadRegisters / 2 : kAheadRegisters)) continue;
      count += input.registers;
      input.name = fmt::format("{}{}_{}", to.moves ? "next" : "fixed", i, n);
      inputs_.push_back(std::move(input));
    }
  }
  while (ahead_ > 2 && ahead_ * ahead > kAheadRegisters) ahead_ /= 2;
}

bool LoopParts::reads_the_same(const LoopInput& a, const LoopInput& b) const {
  const LoopNest &x = loop_.nests[size_t(a.nest)], &y = loop_.nests[size_t(b.nest)];
  const int p = x.group.nodes[size_t(a.node)].access, q = y.group.nodes[size_t(b.node)].access;
  const TileAccess &from = x.group.accesses[size_t(p)], &other = y.group.accesses[size_t(q)];
  return x.accesses[size_t(p)].operand == y.accesses[size_t(q)].operand && x.row_axes == y.row_axes && x.point_axes == y.point_axes && x.uniform == y.uniform &&
         x.group.domain == y.group.domain && from.offset == other.offset && from.strides == other.strides && from.bounds.empty() && other.bounds.empty();
}

int64_t LoopParts::index_limit(const LoopNest& nest, int n) {
  int64_t limit = -1;
  for (size_t a = 0; a < nest.group.accesses.size(); ++a) {
    const TileAccess& access = nest.group.accesses[a];
    if (access.gather != n) continue;
    if (nest.accesses[a].value < 0 || (limit >= 0 && limit != access.gather_size)) return -1;
    limit = access.gather_size;
  }
  for (const TileNode& node : nest.group.nodes)
    if (std::find(node.in.begin(), node.in.end(), n) != node.in.end()) return -1;
  return limit;
}

const LoopInput* LoopParts::input_of(size_t nest, int node) const {
  for (const LoopInput& input : inputs_)
    if (std::find(input.readers.begin(), input.readers.end(), std::pair(nest, node)) != input.readers.end()) return &input;
  return nullptr;
}

std::string LoopParts::name_of(const LoopInput& input, const char* copy) {
  return fmt::format("{}{}{}[{}][{}]", input.name, copy, input.parts ? "[i]" : "", input.by_row ? "r" : "0", input.by_point ? "j" : "0");
}

void LoopParts::declare(const LoopInput& input, const std::string& copies, const char* suffix) {
  const LoopNest& nest = loop_.nests[size_t(input.nest)];
  const std::string parts = input.parts ? fmt::format("[{}]", input.parts) : "";
  line(fmt::format("{} {}{}{}{}[{}][{}];", input.limit < 0 ? TileWriter::type(nest.group.nodes[size_t(input.node)].dtype) : "int", input.name, suffix, copies,
                   parts, input.by_row ? loop_.rows_each : 1, input.by_point ? slots(nest.points) : 1));
}

void LoopParts::hold(const LoopInput& input) {
  const LoopNest& nest = loop_.nests[size_t(input.nest)];
  line("@unroll");
  line(fmt::format("for (int r = 0; r < {}; ++r)", input.by_row ? loop_.rows_each : 1));
  line("@unroll");
  line(fmt::format("  for (int j = 0; j < {}; ++j) {}held[r][j] = {}[0][r][j];", input.by_point ? slots(nest.points) : 1, input.name, input.name));
}

void LoopParts::load_input(const LoopInput& input) {
  const LoopNest& nest = loop_.nests[size_t(input.nest)];
  const TileNode& node = nest.group.nodes[size_t(input.node)];
  open("{");
  const TileAccess& access = nest.group.accesses[size_t(node.access)];
  line(fmt::format("@global const {}* p{} = {};", TileWriter::memory(access.dtype), node.access,
                   address(nest.accesses[size_t(node.access)].operand, access.dtype, input.moves ? "when" : nullptr)));
  std::string live = "true";
  if (input.by_row) begin_rows(nest), live = both(live, "live");
  if (input.by_point) begin_points(nest), live = both(live, inside_points(nest));
  if (input.parts) {
    line("@unroll");
    open(fmt::format("for (int i = 0; i < {}; ++i) {{", input.parts));
    line(fmt::format("const int q = i * {} + lane;", loop_.lanes));
    reduced_coordinates(nest, [&](const std::string& text) { line(text); });
    if (nest.reduced % loop_.lanes != 0) live = both(live, fmt::format("q < {}", nest.reduced));
  }
  TileWriter out(nest.group, facts_[size_t(input.nest)]);
  const std::string to = name_of(input, input.moves && ahead_ > 0 ? "[d]" : "");
  if (input.limit >= 0) line("i64 number;");
  out.target(input.node, input.limit < 0 ? to : "number");
  out.want(input.node, live);
  add(out);
  if (input.limit >= 0) line(fmt::format("{} = (int)checked_index(number, {}ll, {}, fault);", to, input.limit, both(live, "steps > 0")));
  if (input.parts) close();
  if (input.by_point) close();
  if (input.by_row) close();
  close();
}

int LoopParts::last_stage(const LoopInput& input) const {
  int stage = 0;
  for (const auto& [nest, node] : input.readers) stage = std::max(stage, loop_.nests[nest].stage);
  return stage;
}

void LoopParts::load_next(int stage) {
  if (stage >= 0 && std::none_of(inputs_.begin(), inputs_.end(), [&](const LoopInput& input) { return input.moves && last_stage(input) == stage; })) return;
  open(fmt::format("if (now + {} < steps) {{", std::max(ahead_, 1)));
  line(fmt::format("const int t = now + {};", std::max(ahead_, 1)));
  load_step(stage);
  close();
}

void LoopParts::load_step(int stage) {
  line(fmt::format("const i64 when = {};", loop_.reverse ? "steps - 1 - t" : "t"));
  line("(void)when;");
  for (const LoopInput& input : inputs_)
    if (input.moves && (stage < 0 || last_stage(input) == stage)) load_input(input);
}

void LoopParts::add(TileWriter& out) {
  std::string text = out.take();
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    line(text.substr(at, end - at));
    at = end + 1;
  }
}

void LoopParts::coordinates(const LoopNest& nest, int first, int count, const std::string& number) {
  std::string rest = number;
  for (int i = first + count - 1; i >= first; --i) {
    const int64_t size = nest.group.domain[i];
    if (i == first) {
      line(fmt::format("const int x{} = {};", i, rest));
    } else {
      line(fmt::format("const int x{} = (int)((u32)({}) % {}u), y{} = (int)((u32)({}) / {}u);", i, rest, size, i, rest, size));
      rest = fmt::format("y{}", i);
    }
  }
}

void LoopParts::begin_rows(const LoopNest& nest) {
  line("@unroll");
  open(fmt::format("for (int r = 0; r < {}; ++r) {{", loop_.rows_each));
  line("const int row = first_row + r;");
  line("const bool live = row < rows;");
  coordinates(nest, 0, nest.row_axes, "row");
}

void LoopParts::begin_points(const LoopNest& nest) {
  if (loop_.is_wide(nest)) {
    const int threads = loop_.padded_columns * loop_.lanes;
    line("@unroll 2");
    open(fmt::format("for (int e = n * {} + lane; e < {}; e += {}) {{", loop_.lanes, (nest.points + threads - 1) / threads * threads, threads));
    coordinates(nest, nest.row_axes, nest.point_axes, "e");
    return;
  }
  line("@unroll");
  open(fmt::format("for (int j = 0; j < {}; ++j) {{", slots(nest.points)));
  coordinates(nest, nest.row_axes, nest.point_axes, element_of_slot());
}

void LoopParts::each_element(int64_t width, const std::string& statement) {
  line("@unroll");
  open(fmt::format("for (int r = 0; r < {}; ++r) {{", loop_.rows_each));
  line("const int row = first_row + r;");
  line("const bool live = row < rows;");
  line("(void)live, (void)row;");
  line("@unroll");
  line(fmt::format("for (int j = 0; j < {}; ++j) {}", slots(width), statement));
  close();
}

}  // namespace ridge::gpu
