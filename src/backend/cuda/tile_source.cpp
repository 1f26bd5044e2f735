#include "backend/cuda/tile_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/cuda/tile_writer.h"
#include "base/error.h"

namespace ridge::cuda {
namespace {

using Kind = TileNode::Kind;

bool is_arg(Op op) { return op == Op::arg_max || op == Op::arg_min; }

const char* joiner(Op op) {
  switch (op) {
    case Op::reduce_sum: return "Sum";
    case Op::reduce_max: return "Max";
    case Op::reduce_min: return "Min";
    case Op::reduce_prod: return "Product";
    case Op::arg_max: return "ArgMax";
    case Op::arg_min: return "ArgMin";
    default: fail(ErrorCode::internal, "[tile_kernel] {} is no reduction", name(op));
  }
}

// Nodes that are needed for the roots; `joined`: reductions are known without their operands.
std::vector<char> needed(const TileGroup& group, const std::vector<int>& roots, bool joined) {
  std::vector<char> alive(group.nodes.size(), 0);
  for (int n : roots) alive[size_t(n)] = 1;
  for (size_t n = group.nodes.size(); n-- > 0;) {
    if (!alive[n]) continue;
    const TileNode& node = group.nodes[n];
    if (joined && node.kind == Kind::reduce) continue;
    for (int in : node.in)
      if (in >= 0) alive[size_t(in)] = 1;
    if (node.access >= 0 && group.accesses[size_t(node.access)].gather >= 0) alive[size_t(group.accesses[size_t(node.access)].gather)] = 1;
  }
  return alive;
}

// What one phase must have computed: the operands of its reductions, in the last one the stores within rows.
std::vector<int> phase_roots(const TileGroup& group, const TileFacts& facts, int phase) {
  std::vector<int> roots;
  for (int n = 0; n < int(group.nodes.size()); ++n) {
    const TileNode& node = group.nodes[size_t(n)];
    if (node.kind == Kind::reduce && facts.phase[size_t(n)] == phase + 1) roots.push_back(node.in[0]);
    if (node.kind == Kind::store && facts.body(n) && phase == facts.phases) roots.push_back(n);
  }
  return roots;
}

// Nodes within rows that a phase computes, reductions being known.
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

// A kernel being written: what all skeletons share.
class Source {
 public:
  Source(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule) : g(group), f(facts), s(schedule), w(group, facts) {}

  TileText map();
  TileText row();
  TileText column();
  TileText combine();

 private:
  void use(const std::vector<int>& roots, bool joined = false);
  int pointer(int operand) const { return int(std::find(pointers_.begin(), pointers_.end(), operand) - pointers_.begin()); }
  void begin_function(const std::string& head);
  void declare_pointers();
  void coordinates(const std::vector<int>& axes, const std::string& number, bool narrow = false);
  bool narrow_reduced() const { return reduced_points(g) < (int64_t(1) << 31) - (1 << 22); }  // 32 bits do for positions in a row
  void kept_values_of(int phase, const std::string& live);
  void begin_accumulators(int phase);
  void accumulate(int phase, const std::string& here, const std::string& position);
  void finish_reduction(int n, const std::string& joined);
  std::string accumulator(int n) const;
  std::string aligned() const;
  TileText finish(const char* entry, const std::string& kernel, int64_t shared = 0);
  void row_function();
  void kept_pass(int phase, const TileKept& kept, const std::vector<char>& made);
  void loop_pass(int phase, const TileKept& kept, const std::vector<char>& made);
  void row_body(int phase, const std::string& here);
  std::string call() const;
  void body_stores(const std::string& here, const std::string& live);
  void kept_stores(const std::string& live);
  int64_t shared_layout();
  int index(int reduce) const;  // which of the group's reductions

  const TileGroup& g;
  const TileFacts& f;
  const TileSchedule& s;
  TileWriter w;
  std::vector<char> alive_;
  std::vector<int> pointers_;
  std::vector<std::string> shared_address_;
};

int Source::index(int reduce) const {
  const std::vector<int> all = reductions(g);
  return int(std::find(all.begin(), all.end(), reduce) - all.begin());
}

void Source::use(const std::vector<int>& roots, bool joined) {
  alive_ = needed(g, roots, joined);
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    if (!alive_[n] || g.nodes[n].access < 0) continue;
    const int operand = g.accesses[size_t(g.nodes[n].access)].operand;
    if (operand >= 0 && std::find(pointers_.begin(), pointers_.end(), operand) == pointers_.end()) pointers_.push_back(operand);
  }
}

void Source::begin_function(const std::string& head) {
  w.open(head);
  declare_pointers();
}

void Source::declare_pointers() {
  std::vector<char> done(g.accesses.size(), 0);
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    const TileNode& node = g.nodes[n];
    if (!alive_[n] || (node.kind != Kind::load && node.kind != Kind::store) || done[size_t(node.access)]) continue;
    done[size_t(node.access)] = 1;
    const TileAccess& access = g.accesses[size_t(node.access)];
    const std::string type = std::string(TileWriter::memory(access.dtype)) + "*";  // an access may be read and written
    w.line(fmt::format("{} p{} = ({})entry.p[{}];", type, node.access, type, pointer(access.operand)));
  }
}

// The indices of these axes from their number in row-major order. The slowest axis's size is nowhere in the text.
void Source::coordinates(const std::vector<int>& axes, const std::string& number, bool narrow) {
  const char *type = narrow ? "int" : "I", *whole = narrow ? "u32" : "N";
  std::string rest = number;
  for (size_t i = axes.size(); i-- > 0;) {
    const int64_t size = g.domain[axes[i]];
    if (i == 0) {
      w.line(fmt::format("const {} x{} = {};", type, axes[i], rest));
    } else if (size == 1) {
      w.line(fmt::format("const {} x{} = 0;", type, axes[i]));
    } else {
      w.line(fmt::format("const {} x{} = ({})(({})({}) % {}u), y{} = ({})(({})({}) / {}u);", type, axes[i], type, whole, rest, size, axes[i], type, whole, rest,
                         size));
      rest = fmt::format("y{}", axes[i]);
    }
  }
}

std::string Source::aligned() const {
  std::string text;
  std::vector<char> done(pointers_.size(), 0);
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    const TileNode& node = g.nodes[n];
    if (!alive_[n] || (node.kind != Kind::load && node.kind != Kind::store) || !f.wide(int(n))) continue;
    const size_t p = size_t(pointer(g.accesses[size_t(node.access)].operand));
    if (done[p]++) continue;
    text += fmt::format("{}(u64)entry.p[{}]", text.empty() ? "" : " | ", p);
  }
  return text.empty() ? "true" : "((" + text + ") & 15) == 0";
}

TileText Source::finish(const char* entry, const std::string& kernel, int64_t shared) {
  std::string text;
  text += s.wide_index ? "typedef i64 I;\ntypedef u64 N;\n" : "typedef int I;\ntypedef u32 N;\n";
  text += fmt::format("struct Entry {{ void* p[{}]; i64 n, r; int first, pad; }};\n", std::max<size_t>(pointers_.size(), 1));
  text += fmt::format("struct Args {{ Fault* fault; i64 count; Entry entry[{}]; }};\n", s.entries);
  text += w.take();
  text += fmt::format("extern \"C\" __global__ void __launch_bounds__({}) {}(const RIDGE_CONSTANT Args args) {{\n", s.threads, entry);
  if (s.entries > 1) {
    int step = 1;
    while (step * 2 < s.entries) step *= 2;
    text += "  int which = 0;\n#pragma unroll\n";
    text += fmt::format("  for (int step = {}; step > 0; step /= 2)\n", step);
    text += "    if (which + step < (int)args.count && args.entry[which + step].first <= (int)blockIdx.x) which += step;\n";
    text += "  const Entry& entry = args.entry[which];\n";
  } else {
    text += "  const Entry& entry = args.entry[0];\n";
  }
  text += "  Fault* fault = args.fault;\n  const I block = (I)((int)blockIdx.x - entry.first);\n";
  text += kernel + "}\n";
  return {{entry, std::move(text), shared}, pointers_};
}

std::string Source::accumulator(int n) const {
  const TileNode& node = g.nodes[size_t(n)];
  const char* type = TileWriter::type(g.nodes[size_t(node.in[0])].dtype);
  return is_arg(node.op) ? fmt::format("Arg<{}>", type) : type;
}

// Values of whole rows or columns that are known after `phase` reductions.
void Source::kept_values_of(int phase, const std::string& live) {
  for (int n = 0; n < int(g.nodes.size()); ++n) {
    const TileNode& node = g.nodes[size_t(n)];
    if (!alive_[size_t(n)] || f.body(n) || f.phase[size_t(n)] != phase || node.kind == Kind::store || node.kind == Kind::reduce) continue;
    w.want(n, live);
  }
}

void Source::begin_accumulators(int phase) {
  for (int n : reductions(g)) {
    if (f.phase[size_t(n)] != phase + 1 || !alive_[size_t(n)]) continue;
    w.line(fmt::format("{} a{}[V];", accumulator(n), n));
    w.line("#pragma unroll");
    w.line(fmt::format("for (int k = 0; k < V; ++k) {}::clear(a{}[k]);", joiner(g.nodes[size_t(n)].op), n));
  }
}

void Source::accumulate(int phase, const std::string& here, const std::string& position) {
  for (int n : reductions(g)) {
    if (f.phase[size_t(n)] != phase + 1 || !alive_[size_t(n)]) continue;
    const TileNode& node = g.nodes[size_t(n)];
    w.want(node.in[0], here);
    if (node.op == Op::reduce_sum && w.is_zero(node.in[0])) continue;
    std::string x = w.value(node.in[0]);
    const char* type = TileWriter::type(g.nodes[size_t(node.in[0])].dtype);
    x = is_arg(node.op) ? fmt::format("arg_at(({}){}, {})", type, x, position) : fmt::format("({}){}", type, x);
    w.line("#pragma unroll");
    w.line(fmt::format("for (int k = 0; k < V; ++k){} a{}[k] = {}::join(a{}[k], {});", here == "true" ? "" : " if (" + here + ")", n, joiner(node.op), n, x));
  }
}

// The reduction's value from the joined accumulator (in column groups an array of V).
void Source::finish_reduction(int n, const std::string& joined) {
  const TileNode& node = g.nodes[size_t(n)];
  const std::string at = f.wide(n) ? "[k]" : "";
  std::string value = is_arg(node.op) ? joined + at + ".at" : TileWriter::rounded(node.dtype, joined + at);
  w.line(fmt::format("{} v{}{};", TileWriter::type(node.dtype), n, f.wide(n) ? "[V]" : ""));
  if (f.wide(n)) w.line("#pragma unroll");
  w.line(fmt::format("{}v{}{} = {};", f.wide(n) ? "for (int k = 0; k < V; ++k) " : "", n, at, value));
  w.place(n, fmt::format("v{}", n));
  w.add_divisor(n);
}

// All reads before all values before all stores: what is stored may be the memory of what is read.
void Source::body_stores(const std::string& here, const std::string& live) {
  std::vector<int> stores;
  for (int n = 0; n < int(g.nodes.size()); ++n)
    if (g.nodes[size_t(n)].kind == Kind::store && alive_[size_t(n)] && f.body(n)) stores.push_back(n);
  for (bool loads : {true, false})
    for (int store : stores)
      for (int n : w.missing(g.nodes[size_t(store)].in[0]))
        if (!loads || g.nodes[size_t(n)].kind == Kind::load) w.want(n, here);
  for (int n : stores) w.store(n, live);
}

void Source::kept_stores(const std::string& live) {
  for (int n = 0; n < int(g.nodes.size()); ++n)
    if (g.nodes[size_t(n)].kind == Kind::store && alive_[size_t(n)] && !f.body(n)) w.store(n, live);
}

std::vector<int> all_stores(const TileGroup& g) {
  std::vector<int> roots;
  for (int n = 0; n < int(g.nodes.size()); ++n)
    if (g.nodes[size_t(n)].kind == Kind::store) roots.push_back(n);
  return roots;
}

// ---- map: a thread takes `unroll` vectors; it reads them all before it computes, so that many reads are on their way ----

TileText Source::map() {
  use(all_stores(g));
  // Loads by how many gathers come before them.
  std::vector<int> stage(g.nodes.size(), 0);
  int stages = 0;
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    const TileNode& node = g.nodes[n];
    for (int in : node.in)
      if (in >= 0) stage[n] = std::max(stage[n], stage[size_t(in)]);
    if (node.access >= 0 && g.accesses[size_t(node.access)].gather >= 0)
      stage[n] = std::max(stage[n], stage[size_t(g.accesses[size_t(node.access)].gather)] + 1);
    if (alive_[n] && node.kind == Kind::load && f.body(int(n))) stages = std::max(stages, stage[n] + 1);
  }
  std::vector<int> axes;
  for (int i = 0; i < g.domain.rank(); ++i) axes.push_back(i);
  begin_function("template <int V, int U> RIDGE_INLINE void run(const Entry& entry, Fault* fault, I first, I step, I end) {");
  w.line("const bool A = true;");
  kept_values_of(0, "true");
  auto is_early = [&](size_t n, int at) { return alive_[n] && g.nodes[n].kind == Kind::load && f.body(int(n)) && stage[n] == at; };
  for (int at = 0; at < stages; ++at)
    for (size_t n = 0; n < g.nodes.size(); ++n)
      if (is_early(n, at)) w.line(fmt::format("{} k{}[U]{};", TileWriter::type(g.nodes[n].dtype), n, f.wide(int(n)) ? "[V]" : ""));
  for (int at = 0; at <= stages; ++at) {
    w.line("#pragma unroll");
    w.open("for (int c = 0; c < U; ++c) {");
    w.line("const I i = first + c * step;");
    w.line("const bool live = i < end;");
    coordinates(axes, "i");
    const TileWriter::Scope scope = w.enter();
    for (size_t n = 0; n < g.nodes.size(); ++n)
      if (is_early(n, at)) w.target(int(n), fmt::format("k{}[c]", n)), w.want(int(n), "live");
    w.untarget();
    if (at == stages) {
      body_stores("live", "live");
      kept_stores("live");
    }
    w.leave(scope);
    for (size_t n = 0; n < g.nodes.size(); ++n)
      if (is_early(n, at)) w.place(int(n), fmt::format("k{}[c]", n));
    w.close();
  }
  w.close();
  const int64_t tile = int64_t(s.threads) * s.unroll * s.vector;
  std::string kernel = fmt::format("  const I total = (I)entry.n, start = block * (I){};\n", tile);
  if (s.vector == 1) {
    kernel += fmt::format("  run<1, {}>(entry, fault, start + (I)threadIdx.x, {}, total);\n", s.unroll, s.threads);
  } else {
    kernel += fmt::format("  const bool aligned = {};\n", aligned());
    kernel += fmt::format("  const I whole_end = total - total % {}, end = start + {} < total ? start + {} : total;\n", s.vector, tile, tile);
    kernel += fmt::format("  if (aligned) run<{}, {}>(entry, fault, start + (I)threadIdx.x * {}, {}, whole_end);\n", s.vector, s.unroll, s.vector,
                          s.threads * s.vector);
    kernel += "  const I rest = aligned ? whole_end : start;\n";
    kernel += fmt::format("#pragma unroll 1\n  for (I i = rest + (I)threadIdx.x; i < end; i += {}) run<1, 1>(entry, fault, i, 0, total);\n", s.threads);
  }
  return finish("tile_map", kernel);
}

// ---- row ----

// Shared memory for the loads of several phases, each a whole row; the addresses are of the thread's vector.
int64_t Source::shared_layout() {
  shared_address_.assign(g.nodes.size(), {});
  if (!s.keep_shared) return 0;
  const TileKept kept = kept_values(g, f);
  int64_t offset = 0;
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    if (!kept.loads[n]) continue;
    const DType t = g.accesses[size_t(g.nodes[n].access)].dtype;
    shared_address_[n] = fmt::format("({}*)(shared_memory + {}) + j", TileWriter::memory(t), offset);
    offset += (reduced_points(g) * size_of(t) + 127) / 128 * 128;
  }
  return offset;
}

// One phase of a row whose vectors stay in registers.
void Source::kept_pass(int phase, const TileKept& kept, const std::vector<char>& made) {
  const int64_t vectors = reduced_points(g) / s.vector, left = vectors - int64_t(s.chunks - 1) * s.lanes;
  w.line("#pragma unroll");
  w.open(fmt::format("for (int c = 0; c < {}; ++c) {{", s.chunks));
  w.line(fmt::format("const J j = (c * {} + lane) * V;", s.lanes));
  w.line(left == s.lanes ? "const bool here = true;" : fmt::format("const bool here = c < {} || lane < {};", s.chunks - 1, left));
  coordinates(reduced_axes(g), "j", narrow_reduced());
  const TileWriter::Scope scope = w.enter();
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    if (!kept.registers[n]) continue;
    const std::string place = fmt::format("k{}[c]", n);
    if (made[n])
      w.place(int(n), place);
    else
      w.target(int(n), place);
  }
  row_body(phase, "here");
  w.leave(scope);
  w.untarget();
  w.close();
}

void Source::row_body(int phase, const std::string& here) {
  if (phase == f.phases)
    body_stores(here, here == "true" ? "live" : here + " && live");
  else
    accumulate(phase, here, "(i64)(j + k)");
}

// One phase of a long row: some vectors are read, then computed with. Where comparisons of the position are decided for a whole vector, as
// they are for almost all, a copy of the code does without them.
void Source::loop_pass(int phase, const TileKept& kept, const std::vector<char>& made) {
  const std::vector<char> computes = phase_nodes(g, f, phase);
  std::vector<int> early;
  bool from_memory = false;
  for (int n = 0; n < int(g.nodes.size()); ++n) {
    const TileNode& node = g.nodes[size_t(n)];
    if (!computes[size_t(n)] || node.kind != Kind::load || node.in[0] >= 0) continue;
    const TileAccess& access = g.accesses[size_t(node.access)];
    if (access.gather >= 0 && f.body(access.gather)) continue;
    early.push_back(n);
    from_memory = from_memory || !(s.keep_shared && kept.loads[size_t(n)] && made[size_t(n)]);
  }
  int64_t bytes = 0;
  for (int n : early) bytes += (f.wide(n) ? s.vector : 1) * size_of(g.nodes[size_t(n)].dtype);
  const int batch = !from_memory ? 1 : bytes > 32 ? 2 : 4;
  w.line("#pragma unroll 1");
  w.open(fmt::format("for (J first = begin + lane * V; first < end; first += {} * V) {{", s.lanes * batch));
  for (int n : early) w.line(fmt::format("{} k{}[{}]{};", TileWriter::type(g.nodes[size_t(n)].dtype), n, batch, f.wide(n) ? "[V]" : ""));
  auto begin_vectors = [&] {
    w.line("#pragma unroll");
    w.open(fmt::format("for (int c = 0; c < {}; ++c) {{", batch));
    w.line(fmt::format("const J j = first + c * {} * V;", s.lanes));
    w.line("const bool here = j < end;");
    coordinates(reduced_axes(g), "j", narrow_reduced());
  };
  begin_vectors();
  const TileWriter::Scope scope = w.enter();
  for (int n : early) {
    const bool shared = s.keep_shared && kept.loads[size_t(n)];
    w.shared(n, shared && made[size_t(n)] ? shared_address_[size_t(n)] : "", false);
    w.target(n, fmt::format("k{}[c]", n));
    w.want(n, "here");
  }
  w.untarget();
  w.leave(scope);
  w.close();
  begin_vectors();
  for (int n : early) {
    w.place(n, fmt::format("k{}[c]", n));
    if (s.keep_shared && kept.loads[size_t(n)] && !made[size_t(n)]) w.line(fmt::format("store<V>({}, k{}[c], here, false);", shared_address_[size_t(n)], n));
  }
  for (int n = 0; n < int(g.nodes.size()); ++n)
    if (s.keep_shared && kept.loads[size_t(n)] && std::find(early.begin(), early.end(), n) == early.end())
      w.shared(n, shared_address_[size_t(n)], !made[size_t(n)]);
  const std::vector<TileWriter::Decision> decisions = s.vector > 1 ? w.decisions(computes) : std::vector<TileWriter::Decision>();
  if (decisions.empty()) {
    row_body(phase, "here");
  } else {
    std::string usual = "here";
    for (const auto& d : decisions) usual += " && " + d.test;
    w.open("if (" + usual + ") {");
    const TileWriter::Scope before = w.enter();
    for (const auto& d : decisions) w.decide(d);
    row_body(phase, "true");
    w.leave(before);
    w.close();
    w.open("else if (here) {");
    row_body(phase, "true");
    w.leave(before);
    w.close();
  }
  w.leave(scope);
  w.close();
  w.close();
}

void Source::row_function() {
  const bool keep = s.chunks > 0, whole_block = s.lanes == s.threads && s.threads > 32, parts = s.part > 0;
  const int64_t length = reduced_points(g);
  const TileKept kept = kept_values(g, f);
  begin_function("template <int V, bool A> RIDGE_INLINE void run(const Entry& entry, Fault* fault, I block) {");
  w.line(fmt::format("const int lane = (int)threadIdx.x % {};", s.lanes));
  w.line(fmt::format("typedef {} J;", narrow_reduced() ? "int" : "I"));
  w.line("const I rows = (I)entry.n;");
  if (parts) {
    w.line("const I part = block / rows, row = block % rows;");
    w.line("const bool live = true;");
    w.line(fmt::format("const J begin = (J)part * (J){}, length = (J)entry.r, end = begin + {} < length ? begin + {} : length;", s.part, s.part, s.part));
  } else {
    w.line(fmt::format("const I number = block * {} + (I)threadIdx.x / {};", s.threads / s.lanes, s.lanes));
    w.line("const bool live = number < rows;");
    w.line("const I row = live ? number : rows - 1;");
    w.line(fmt::format("const J begin = 0, end = {};", length));
  }
  w.line("(void)live, (void)row, (void)begin, (void)end;");
  coordinates(kept_axes(g), "row");
  kept_values_of(0, "true");
  if (keep)
    for (size_t n = 0; n < g.nodes.size(); ++n)
      if (kept.registers[n]) w.line(fmt::format("{} k{}[{}]{};", TileWriter::type(g.nodes[n].dtype), n, s.chunks, f.wide(int(n)) ? "[V]" : ""));
  std::vector<char> made(g.nodes.size(), 0);
  const int last = parts ? 0 : f.phases;
  for (int phase = 0; phase <= last; ++phase) {
    const std::vector<int> roots = phase_roots(g, f, phase);
    const bool final = phase == f.phases;
    if (!final) begin_accumulators(phase);
    if (!roots.empty()) {
      if (keep)
        kept_pass(phase, kept, made);
      else
        loop_pass(phase, kept, made);
      const std::vector<char> computes = phase_nodes(g, f, phase);
      for (size_t n = 0; n < g.nodes.size(); ++n) made[n] |= computes[n];
    }
    if (final) continue;
    std::vector<int> now;
    for (int n : reductions(g))
      if (f.phase[size_t(n)] == phase + 1 && alive_[size_t(n)]) now.push_back(n);
    for (int n : now) {
      const char* join = joiner(g.nodes[size_t(n)].op);
      w.line(fmt::format("{} s{} = joined_vector<{}, V>(a{});", accumulator(n), n, join, n));
      if (!whole_block) {
        w.line(fmt::format("s{} = joined_lanes<{}, {}>(s{});", n, join, s.lanes, n));
      } else {
        w.line(fmt::format("__shared__ {} t{}[32];", accumulator(n), n));
        w.line(fmt::format("put_joined<{}>(t{}, s{});", join, n, n));
      }
    }
    if (whole_block && !now.empty()) {
      w.line("__syncthreads();");
      for (int n : now) w.line(fmt::format("s{} = get_joined<{}, {}, {}>(t{});", n, joiner(g.nodes[size_t(n)].op), s.threads, accumulator(n), n));
    }
    if (parts) {
      for (int n : now) w.line(fmt::format("if (lane == 0) (({}*)entry.p[{}])[part * rows + row] = s{};", accumulator(n), pointer(g.operands + index(n)), n));
      continue;
    }
    for (int n : now) finish_reduction(n, fmt::format("s{}", n));
    kept_values_of(phase + 1, "true");
  }
  if (!parts) kept_stores("live && lane == 0");
  w.close();
}

// Sums run in the same order wherever the operands lie.
std::string Source::call() const {
  if (s.vector == 1) return "  run<1, true>(entry, fault, block);\n";
  return fmt::format("  if ({}) run<{}, true>(entry, fault, block);\n  else run<{}, false>(entry, fault, block);\n", aligned(), s.vector, s.vector);
}

TileText Source::row() {
  if (s.part > 0) {
    std::vector<int> roots;
    for (int n : reductions(g))
      if (f.phase[size_t(n)] == 1) roots.push_back(n);
    use(roots);
    for (int n : roots) pointers_.push_back(g.operands + index(n));
  } else {
    use(all_stores(g));
  }
  const int64_t shared = shared_layout();
  if (shared > 0) w.line("extern __shared__ __align__(128) unsigned char shared_memory[];");
  row_function();
  return finish("tile_row", call(), shared);
}

// ---- column: threads side by side take columns, threads behind each other take rows ----

TileText Source::column() {
  const bool parts = s.part > 0;
  if (parts) {
    std::vector<int> roots;
    for (int n : reductions(g))
      if (f.phase[size_t(n)] == 1) roots.push_back(n);
    use(roots);
    for (int n : roots) pointers_.push_back(g.operands + index(n));
  } else {
    use(all_stores(g));
  }
  const int inner = g.domain.rank() - 1, deep = s.threads / s.columns;
  const int64_t columns = g.domain[inner], rows = reduced_points(g), blocks = (columns + int64_t(s.columns) * s.vector - 1) / (int64_t(s.columns) * s.vector);
  const int64_t count = parts ? (rows + s.part - 1) / s.part : 1;
  std::vector<int> outer = kept_axes(g);
  outer.pop_back();
  int64_t shared = 0;
  w.line("extern __shared__ __align__(128) unsigned char shared_memory[];");
  begin_function("template <int V, bool A> RIDGE_INLINE void run(const Entry& entry, Fault* fault, I block) {");
  w.line(fmt::format("const int lane = (int)threadIdx.x % {}, row = (int)threadIdx.x / {};", s.columns, s.columns));
  w.line(fmt::format("typedef {} J;", narrow_reduced() ? "int" : "I"));
  w.line(fmt::format("const I strip = block % {}, part = block / {} % {}, other = block / {};", blocks, blocks, count, blocks * count));
  w.line(fmt::format("const J begin = (J)part * (J){}, end = begin + (J){} < (J){} ? begin + (J){} : (J){};", parts ? s.part : 0, parts ? s.part : rows, rows,
                     parts ? s.part : rows, rows));
  coordinates(outer, "other");
  w.line(fmt::format("const I column = (strip * {} + lane) * V;", s.columns));
  w.line(fmt::format("const bool live = column < {};", columns));
  w.line(fmt::format("const I x{} = live ? column : 0;", inner));
  w.line("(void)part, (void)other, (void)begin, (void)end;");
  kept_values_of(0, "true");
  const int last = parts ? 0 : f.phases;
  for (int phase = 0; phase <= last; ++phase) {
    const bool final = phase == f.phases;
    if (!final) begin_accumulators(phase);
    if (!phase_roots(g, f, phase).empty()) {
      w.line(final ? "#pragma unroll 2" : "#pragma unroll 4");
      w.open(fmt::format("for (J j = begin + row; j < end; j += {}) {{", deep));
      coordinates(reduced_axes(g), "j", narrow_reduced());
      const TileWriter::Scope scope = w.enter();
      if (final)
        body_stores("true", "live");
      else
        accumulate(phase, "true", "(i64)j");
      w.leave(scope);
      w.close();
    }
    if (final) continue;
    std::vector<int> now;
    for (int n : reductions(g))
      if (f.phase[size_t(n)] == phase + 1 && alive_[size_t(n)]) now.push_back(n);
    if (deep > 1) {
      for (int n : now) {
        w.line(fmt::format("{}* t{} = ({}*)(shared_memory + {});", accumulator(n), n, accumulator(n), shared));
        shared += s.threads * s.vector * accumulator_bytes(g, n);
        w.line("#pragma unroll");
        w.line(fmt::format("for (int k = 0; k < V; ++k) t{}[k * {} + threadIdx.x] = a{}[k];", n, s.threads, n));
      }
      w.line("#pragma unroll");
      w.open(fmt::format("for (int half = {}; half > 0; half /= 2) {{", deep / 2));
      w.line("__syncthreads();");
      w.open("if (row < half) {");
      for (int n : now) {
        w.line("#pragma unroll");
        w.line(fmt::format("for (int k = 0; k < V; ++k) t{}[k * {} + threadIdx.x] = a{}[k] = {}::join(a{}[k], t{}[k * {} + threadIdx.x + half * {}]);", n,
                           s.threads, n, joiner(g.nodes[size_t(n)].op), n, n, s.threads, s.columns));
      }
      w.close();
      w.close();
      w.line("__syncthreads();");
      for (int n : now) {
        w.line("#pragma unroll");
        w.line(fmt::format("for (int k = 0; k < V; ++k) a{}[k] = t{}[k * {} + lane];", n, n, s.threads));
      }
    }
    if (parts) {
      for (int n : now)
        w.line(fmt::format("if (row == 0 && live) for (int k = 0; k < V; ++k) (({}*)entry.p[{}])[(part * (I)entry.n + other) * (I){} + column + k] = a{}[k];",
                           accumulator(n), pointer(g.operands + index(n)), columns, n));
      continue;
    }
    for (int n : now) finish_reduction(n, f.wide(n) ? fmt::format("a{}", n) : fmt::format("a{}[0]", n));
    kept_values_of(phase + 1, "true");
  }
  if (!parts) kept_stores("live && row == 0");
  w.close();
  return finish("tile_column", call(), shared);
}

// ---- combine ----

TileText Source::combine() {
  use(all_stores(g), true);
  const int deep = s.threads / s.columns;
  std::vector<int> now;
  for (int n : reductions(g))
    if (alive_[size_t(n)]) now.push_back(n), pointers_.push_back(g.operands + index(n));
  begin_function("template <int V, bool A> RIDGE_INLINE void run(const Entry& entry, Fault* fault, I block) {");
  w.line(fmt::format("const int lane = (int)threadIdx.x % {}, row = (int)threadIdx.x / {};", s.columns, s.columns));
  w.line("const I points = (I)entry.n, parts = (I)entry.r;");
  w.line(fmt::format("const I number = block * {} + lane;", s.columns));
  w.line("const bool live = number < points;");
  w.line("const I point = live ? number : points - 1;");
  coordinates(kept_axes(g), "point");
  for (int n : now) {
    const char* join = joiner(g.nodes[size_t(n)].op);
    w.line(fmt::format("{} a{}[1];", accumulator(n), n));
    w.line(fmt::format("{}::clear(a{}[0]);", join, n));
    w.line("#pragma unroll 4");
    w.line(fmt::format("for (I part = row; part < parts; part += {}) a{}[0] = {}::join(a{}[0], ((const {}*)entry.p[{}])[part * points + point]);", deep, n,
                       join, n, accumulator(n), pointer(g.operands + index(n))));
    w.line(fmt::format("__shared__ {} t{}[{}];", accumulator(n), n, s.threads));
    w.line(fmt::format("t{}[threadIdx.x] = a{}[0];", n, n));
  }
  w.line("#pragma unroll");
  w.open(fmt::format("for (int half = {}; half > 0; half /= 2) {{", deep / 2));
  w.line("__syncthreads();");
  w.open("if (row < half) {");
  for (int n : now)
    w.line(fmt::format("t{}[threadIdx.x] = a{}[0] = {}::join(a{}[0], t{}[threadIdx.x + half * {}]);", n, n, joiner(g.nodes[size_t(n)].op), n, n, s.columns));
  w.close();
  w.close();
  w.line("if (row > 0) return;");
  kept_values_of(0, "live");
  for (int n : now) finish_reduction(n, f.wide(n) ? fmt::format("a{}", n) : fmt::format("a{}[0]", n));
  kept_stores("live");
  w.close();
  return finish("tile_combine", "  run<1, true>(entry, fault, block);\n");
}

}  // namespace

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
        if (group.nodes[n].kind == Kind::load)
          kept.loads[n] = facts.wide(int(n)) && !is_wide_gather(group, facts, group.accesses[size_t(group.nodes[n].access)]);
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

TileText map_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule) { return Source(group, facts, schedule).map(); }
TileText row_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule) { return Source(group, facts, schedule).row(); }
TileText column_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule) { return Source(group, facts, schedule).column(); }
TileText combine_text(const TileGroup& group, const TileFacts& facts, const TileSchedule& schedule) { return Source(group, facts, schedule).combine(); }

}  // namespace ridge::cuda
