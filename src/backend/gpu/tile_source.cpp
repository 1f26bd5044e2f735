#include "backend/gpu/tile_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/gpu/tile_skeleton.h"
#include "base/error.h"

namespace ridge::gpu {

using Kind = TileNode::Kind;
namespace {

// The nodes that the roots need. The reductions of the first `known` phases are known, so their operands are not needed.
std::vector<char> needed(const TileGroup& group, const TileFacts& facts, const std::vector<int>& roots, int known) {
  std::vector<char> alive(group.nodes.size(), 0);
  for (int n : roots) alive[size_t(n)] = 1;
  for (size_t n = group.nodes.size(); n-- > 0;) {
    if (!alive[n]) continue;
    const TileNode& node = group.nodes[n];
    if (node.kind == Kind::reduce && facts.phase[n] <= known) continue;
    for (int in : node.in)
      if (in >= 0) alive[size_t(in)] = 1;
    if (node.access >= 0 && group.accesses[size_t(node.access)].gather >= 0) alive[size_t(group.accesses[size_t(node.access)].gather)] = 1;
  }
  return alive;
}

}  // namespace

bool is_arg(Op op) { return op == Op::arg_max || op == Op::arg_min; }

const char* joiner(Op op) {
  switch (op) {
    case Op::reduce_sum: return "Sum";
    case Op::reduce_max: return "Max";
    case Op::reduce_min: return "Min";
    case Op::reduce_prod: return "Product";
    case Op::arg_max: return "ArgMax";
    case Op::arg_min: return "ArgMin";
    default: fail(ErrorCode::internal, "[tile_kernel] {} is not a reduction", name(op));
  }
}

std::vector<int> phase_roots(const TileGroup& group, const TileFacts& facts, int phase) {
  std::vector<int> roots;
  for (int n = 0; n < int(group.nodes.size()); ++n) {
    const TileNode& node = group.nodes[size_t(n)];
    if (node.kind == Kind::reduce && facts.phase[size_t(n)] == phase + 1) roots.push_back(node.in[0]);
    if (node.kind == Kind::store && facts.body(n) && phase == facts.store_phase_of(n)) roots.push_back(n);
  }
  return roots;
}

std::vector<char> phase_nodes(const TileGroup& group, const TileFacts& facts, int phase) {
  std::vector<char> alive(group.nodes.size(), 0);
  for (int n : phase_roots(group, facts, phase)) alive[size_t(n)] = facts.body(n);
  for (size_t n = group.nodes.size(); n-- > 0;) {
    if (!alive[n]) continue;
    const TileNode& node = group.nodes[n];
    auto visit = [&](int in) {
      if (in >= 0 && facts.body(in) && group.nodes[size_t(in)].kind != Kind::literal) alive[size_t(in)] = 1;
    };
    for (int in : node.in) visit(in);
    if (node.access >= 0) visit(group.accesses[size_t(node.access)].gather);
  }
  return alive;
}

int TileSkeleton::index(int reduce) const {
  const std::vector<int> all = reductions(group_);
  return int(std::find(all.begin(), all.end(), reduce) - all.begin());
}

void TileSkeleton::use(const std::vector<int>& roots, int known) {
  alive_ = needed(group_, facts_, roots, known);
  for (size_t n = 0; n < group_.nodes.size(); ++n) {
    if (!alive_[n] || group_.nodes[n].access < 0) continue;
    const int operand = group_.accesses[size_t(group_.nodes[n].access)].operand;
    if (operand >= 0 && std::find(pointers_.begin(), pointers_.end(), operand) == pointers_.end()) pointers_.push_back(operand);
  }
}

void TileSkeleton::use_group() {
  if (schedule_.part == 0) return use(all_stores(group_));
  std::vector<int> roots;
  for (int n : reductions(group_))
    if (facts_.phase[size_t(n)] == schedule_.phase + 1) roots.push_back(n);
  for (int n : all_stores(group_))
    if (schedule_.phase == facts_.phases || (facts_.store_phase == 0 && facts_.body(n))) roots.push_back(n);
  use(roots, schedule_.phase);
  for (int n : reductions(group_))
    if (alive_[size_t(n)]) pointers_.push_back(group_.operands + index(n));
}

void TileSkeleton::begin_function(const std::string& head) {
  out_.open(head);
  declare_pointers();
}

void TileSkeleton::declare_pointers() {
  std::vector<char> done(group_.accesses.size(), 0);
  for (size_t n = 0; n < group_.nodes.size(); ++n) {
    const TileNode& node = group_.nodes[n];
    if (!alive_[n] || (node.kind != Kind::load && node.kind != Kind::store) || done[size_t(node.access)]) continue;
    done[size_t(node.access)] = 1;
    const TileAccess& access = group_.accesses[size_t(node.access)];
    const std::string type = "@global " + std::string(TileWriter::memory(access.dtype)) + "*";  // an access may be both read and written
    out_.line(fmt::format("{} p{} = ({})entry.p[{}];", type, node.access, type, pointer(access.operand)));
  }
}

// Computes the indices of these axes from their row-major number. The text does not depend on the size of the slowest axis.
void TileSkeleton::coordinates(const std::vector<int>& axes, const std::string& number, bool narrow) {
  const char *type = narrow ? "int" : "I", *whole = narrow ? "u32" : "N";
  std::string rest = number;
  for (size_t i = axes.size(); i-- > 0;) {
    const int64_t size = group_.domain[axes[i]];
    if (i == 0) {
      out_.line(fmt::format("const {} x{} = {};", type, axes[i], rest));
    } else if (size == 1) {
      out_.line(fmt::format("const {} x{} = 0;", type, axes[i]));
    } else {
      out_.line(fmt::format("const {} x{} = ({})(({})({}) % {}u), y{} = ({})(({})({}) / {}u);", type, axes[i], type, whole, rest, size, axes[i], type, whole,
                            rest, size));
      rest = fmt::format("y{}", axes[i]);
    }
  }
}

std::string TileSkeleton::aligned() const {
  std::string text;
  std::vector<char> done(pointers_.size(), 0);
  for (size_t n = 0; n < group_.nodes.size(); ++n) {
    const TileNode& node = group_.nodes[n];
    if (!alive_[n] || (node.kind != Kind::load && node.kind != Kind::store) || !facts_.wide(int(n))) continue;
    const size_t p = size_t(pointer(group_.accesses[size_t(node.access)].operand));
    if (done[p]++) continue;
    text += fmt::format("{}(u64)entry.p[{}]", text.empty() ? "" : " | ", p);
  }
  return text.empty() ? "true" : "((" + text + ") & 15) == 0";
}

std::string TileSkeleton::entry_types() const {
  return fmt::format("{}struct Entry {{ @global void* p[{}]; i64 n, r; int first, pad; }};\n",
                     schedule_.wide_index ? "typedef i64 I;\ntypedef u64 N;\n" : "typedef int I;\ntypedef u32 N;\n", std::max<size_t>(pointers_.size(), 1));
}

TileText TileSkeleton::finish(const char* entry, const std::string& kernel, int64_t shared) {
  std::string text = entry_types();
  text += fmt::format("struct Args {{ @global Fault* fault; i64 count; Entry entry[{}]; }};\n", schedule_.entries);
  text += out_.take();
  text += fmt::format("@entry({}; {}; const RIDGE_CONSTANT Args args) {{\n",
                      schedule_.blocks ? fmt::format("{}, {}", schedule_.threads, schedule_.blocks) : fmt::format("{}", schedule_.threads), entry);
  if (schedule_.entries > 1) {
    int step = 1;
    while (step * 2 < schedule_.entries) step *= 2;
    text += "  int which = 0;\n@unroll\n";
    text += fmt::format("  for (int step = {}; step > 0; step /= 2)\n", step);
    text += "    if (which + step < (int)args.count && args.entry[which + step].first <= (int)@block) which += step;\n";
    text += "  @constant const Entry& entry = args.entry[which];\n";
  } else {
    text += "  @constant const Entry& entry = args.entry[0];\n";
  }
  text += "  @global Fault* fault = args.fault;\n  const I block = (I)((int)@block - entry.first);\n";
  text += kernel + "}\n";
  return {{entry, schedule_.dialect->write(text), shared}, pointers_};
}

std::string TileSkeleton::accumulator(int n) const {
  const TileNode& node = group_.nodes[size_t(n)];
  const char* type = TileWriter::type(group_.nodes[size_t(node.in[0])].dtype);
  return is_arg(node.op) ? fmt::format("Arg<{}>", type) : type;
}

// Values of whole rows or columns that are available after `phase` reductions.
void TileSkeleton::kept_values_of(int phase, const std::string& live) {
  for (int n = 0; n < int(group_.nodes.size()); ++n) {
    const TileNode& node = group_.nodes[size_t(n)];
    if (!alive_[size_t(n)] || facts_.body(n) || facts_.phase[size_t(n)] != phase || node.kind == Kind::store || node.kind == Kind::reduce) continue;
    out_.want(n, live);
  }
}

void TileSkeleton::begin_accumulators(int phase) {
  for (int n : reductions(group_)) {
    if (facts_.phase[size_t(n)] != phase + 1 || !alive_[size_t(n)]) continue;
    out_.line(fmt::format("{} a{}[V];", accumulator(n), n));
    out_.line("@unroll");
    out_.line(fmt::format("for (int k = 0; k < V; ++k) {}::clear(a{}[k]);", joiner(group_.nodes[size_t(n)].op), n));
  }
}

void TileSkeleton::accumulate(int phase, const std::string& here, const std::string& position) {
  for (int n : reductions(group_)) {
    if (facts_.phase[size_t(n)] != phase + 1 || !alive_[size_t(n)]) continue;
    const TileNode& node = group_.nodes[size_t(n)];
    out_.want(node.in[0], here);
    if (node.op == Op::reduce_sum && out_.is_zero(node.in[0])) continue;
    std::string x = out_.value(node.in[0]);
    const char* type = TileWriter::type(group_.nodes[size_t(node.in[0])].dtype);
    x = is_arg(node.op) ? fmt::format("arg_at(({}){}, {})", type, x, position) : fmt::format("({}){}", type, x);
    out_.line("@unroll");
    out_.line(
        fmt::format("for (int k = 0; k < V; ++k){} a{}[k] = {}::join(a{}[k], {});", here == "true" ? "" : " if (" + here + ")", n, joiner(node.op), n, x));
  }
}

// The reduction's value from the joined accumulator (an array of V in column groups).
void TileSkeleton::finish_reduction(int n, const std::string& joined) {
  const TileNode& node = group_.nodes[size_t(n)];
  const std::string at = facts_.wide(n) ? "[k]" : "";
  std::string value = is_arg(node.op) ? joined + at + ".at" : TileWriter::rounded(node.dtype, joined + at);
  out_.line(fmt::format("{} v{}{};", TileWriter::type(node.dtype), n, facts_.wide(n) ? "[V]" : ""));
  if (facts_.wide(n)) out_.line("@unroll");
  out_.line(fmt::format("{}v{}{} = {};", facts_.wide(n) ? "for (int k = 0; k < V; ++k) " : "", n, at, value));
  out_.place(n, fmt::format("v{}", n));
  out_.add_divisor(n);
}

// All loads, then all values, then all stores, because a store may overwrite memory that is loaded.
void TileSkeleton::body_stores(int phase, const std::string& here, const std::string& live) {
  std::vector<int> stores;
  for (int n = 0; n < int(group_.nodes.size()); ++n)
    if (group_.nodes[size_t(n)].kind == Kind::store && alive_[size_t(n)] && facts_.body(n) && facts_.store_phase_of(n) == phase) stores.push_back(n);
  for (bool loads : {true, false})
    for (int store : stores)
      for (int n : out_.missing(group_.nodes[size_t(store)].in[0]))
        if (!loads || group_.nodes[size_t(n)].kind == Kind::load) out_.want(n, here);
  for (int n : stores) {
    if (!is_sum(n)) {
      out_.store(n, live);
      continue;
    }
    const std::string value = out_.value(group_.nodes[size_t(n)].in[0]);
    if (region_of_sum(n) < 0) {
      out_.line("@unroll");
      out_.line(fmt::format("for (int k = 0; k < V; ++k) if ({}) q{}[c][k] = add(q{}[c][k], {});", here, n, n, value));
      continue;
    }
    out_.line(fmt::format("float w{}[V];", n));
    out_.line(fmt::format("load<V>(w{}, q{} + c * 32 * V, {});", n, n, here));
    out_.line("@unroll");
    out_.line(fmt::format("for (int k = 0; k < V; ++k) w{}[k] = add(w{}[k], {});", n, n, value));
    out_.line(fmt::format("store<V>(q{} + c * 32 * V, w{}, {}, false);", n, n, here));
  }
}

bool TileSkeleton::is_sum(int store) const {
  return schedule_.sum_blocks > 0 && group_.accesses[size_t(group_.nodes[size_t(store)].access)].operand >= schedule_.first_sum;
}

void TileSkeleton::kept_stores(const std::string& live) {
  for (int n = 0; n < int(group_.nodes.size()); ++n)
    if (group_.nodes[size_t(n)].kind == Kind::store && alive_[size_t(n)] && !facts_.body(n)) out_.store(n, live);
}

std::vector<int> all_stores(const TileGroup& g) {
  std::vector<int> roots;
  for (int n = 0; n < int(g.nodes.size()); ++n)
    if (g.nodes[size_t(n)].kind == Kind::store) roots.push_back(n);
  return roots;
}

std::vector<int> reductions(const TileGroup& group) {
  std::vector<int> out;
  for (int n = 0; n < int(group.nodes.size()); ++n)
    if (group.nodes[size_t(n)].kind == Kind::reduce) out.push_back(n);
  return out;
}

int64_t accumulator_bytes(const TileGroup& group, int reduce) {
  const TileNode& node = group.nodes[size_t(reduce)];
  return is_arg(node.op) ? 16 : group.nodes[size_t(node.in[0])].dtype == DType::i64 ? 8 : 4;
}

bool stores_body(const TileGroup& group, const TileFacts& facts) {
  for (int n = 0; n < int(group.nodes.size()); ++n)
    if (group.nodes[size_t(n)].kind == Kind::store && facts.body(n)) return true;
  return false;
}

TileKept kept_values(const TileGroup& group, const TileFacts& facts) {
  const size_t nodes = group.nodes.size();
  TileKept kept{std::vector<char>(nodes, 0), 0, std::vector<char>(nodes, 0)};
  std::vector<std::vector<char>> computes;
  for (int phase = 0; phase <= facts.phases; ++phase) computes.push_back(phase_nodes(group, facts, phase));
  std::vector<int> first(nodes, -1), last(nodes, -1);
  for (int phase = 0; phase <= facts.phases; ++phase) {
    const auto& now = computes[size_t(phase)];
    auto early = [&](size_t n) { return first[n] >= 0 && first[n] < phase; };
    auto keep = [&](size_t n) { kept.registers[n] = 1, last[n] = phase; };
    for (size_t n = 0; n < nodes; ++n)
      if (now[n] && first[n] < 0) first[n] = phase;
    for (size_t n = 0; n < nodes; ++n) {
      if (!now[n]) continue;
      if (early(n)) {
        if (group.nodes[n].kind == Kind::load) kept.loads[n] = facts.wide(int(n)) && !is_wide_gather(facts, group.accesses[size_t(group.nodes[n].access)]);
        continue;
      }
      const TileNode& node = group.nodes[n];
      for (int in : node.in)
        if (in >= 0 && now[size_t(in)] && early(size_t(in))) keep(size_t(in));
      if (node.access >= 0 && group.accesses[size_t(node.access)].gather >= 0) {
        const size_t in = size_t(group.accesses[size_t(node.access)].gather);
        if (now[in] && early(in)) keep(in);
      }
    }
    for (int n : phase_roots(group, facts, phase))
      if (now[size_t(n)] && early(size_t(n))) keep(size_t(n));
  }
  for (int phase = 0; phase < facts.phases; ++phase) {
    int live = 0;
    for (size_t n = 0; n < nodes; ++n) live += kept.registers[n] && first[n] <= phase && last[n] > phase;
    kept.most = std::max(kept.most, live);
  }
  return kept;
}

TileText map_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule) { return TileSkeleton(group, facts, schedule).map(); }
TileText transposed_map_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule) {
  return TileSkeleton(group, facts, schedule).transposed_map();
}
TileText row_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule) { return TileSkeleton(group, facts, schedule).row(); }
TileText row_part_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule) { return TileSkeleton(group, facts, schedule).row_part(); }
TileText column_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule) { return TileSkeleton(group, facts, schedule).column(); }
TileText combine_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule) { return TileSkeleton(group, facts, schedule).combine(); }

}  // namespace ridge::gpu
