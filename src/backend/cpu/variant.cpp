#include "backend/cpu/variant.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "backend/attention_desc.h"
#include "backend/cpu/matmul_kernels.h"
#include "backend/cpu/panel_kernel.h"
#include "base/error.h"
#include "compile/program.h"
#include "io/checksum.h"

namespace ridge::cpu {
namespace {

using V = KernelVariant;
constexpr Tunable kProduct = Tunable::product, kFused = Tunable::fused, kAttend = Tunable::attention, kAttendGrad = Tunable::attention_grad,
                  kLoop = Tunable::loop;

// Those that gain most often come first: a search that runs out of time has then seen them.
constexpr NamedVariant kVariants[] = {
    {"columns/2", kProduct, true, [](V& v) { v.unit_columns = -1; }},
    {"rows*2", kProduct, true, [](V& v) { v.unit_rows = 1; }},
    {"b=direct", kProduct, true, [](V& v) { v.b = V::Feed::direct; }},
    {"b=packed", kProduct, true, [](V& v) { v.b = V::Feed::packed; }},
    {"columns*2", kProduct, true, [](V& v) { v.unit_columns = 1; }},
    {"rows/2", kProduct, true, [](V& v) { v.unit_rows = -1; }},
    {"a=direct", kProduct, true, [](V& v) { v.a = V::Feed::direct; }},
    {"a=packed", kProduct, true, [](V& v) { v.a = V::Feed::packed; }},
    {"transposed", kProduct, false, [](V& v) { v.transposed = true; }},
    {"depth=1024", kProduct, false, [](V& v) { v.depth = 1024; }},
    {"depth=256", kProduct, false, [](V& v) { v.depth = 256; }},
    {"epilogue=apart", kProduct, false, [](V& v) { v.epilogue = false; }},
    {"band=all", kProduct, true, [](V& v) { v.band = V::Band::all; }},
    {"band=one", kProduct, true, [](V& v) { v.band = V::Band::one; }},
    {"few=tiles", kProduct, false, [](V& v) { v.few_rows = false; }},
    {"pairs=off", kProduct, false, [](V& v) { v.pairs = false; }},
    {"points/4", kFused, true, [](V& v) { v.unit = -2; }},
    {"points*4", kFused, true, [](V& v) { v.unit = 2; }},
    {"ahead=off", kFused, true, [](V& v) { v.ahead = false; }},
    {"stream=off", kFused, true, [](V& v) { v.streams = false; }},
    {"block*2", kFused, false, [](V& v) { v.block_rows = 1; }},
    {"block/2", kFused, false, [](V& v) { v.block_rows = -1; }},
    {"parts*2", kFused, false, [](V& v) { v.parts = 1; }},
    {"parts/2", kFused, false, [](V& v) { v.parts = -1; }},
    {"queries*2", kAttend, true, [](V& v) { v.unit = 1; }},
    {"queries/2", kAttend, true, [](V& v) { v.unit = -1; }},
    {"chunks*2", kAttendGrad, false, [](V& v) { v.unit = -1; }},
    {"chunks/2", kAttendGrad, false, [](V& v) { v.unit = 1; }},
    {"rows*2", kLoop, true, [](V& v) { v.unit = 1; }},
    {"rows/2", kLoop, true, [](V& v) { v.unit = -1; }},
};

// The nearest power of two.
int64_t anchor(int64_t size) { return size < 1 ? 0 : int64_t(1) << std::lround(std::log2(double(size))); }

template <class Loops>
int64_t extent(const Loops& loops) {
  int64_t n = 1;
  for (const auto& l : loops) n *= l.size;
  return n;
}

// How an operand's elements follow each other: the letter of the loop in which it is contiguous.
char order_of(const ContractionLoops& loops, int64_t ContractionLoops::Loop::*stride, char row, const std::vector<ContractionLoops::Loop>& rows) {
  if (!loops.k.empty() && loops.k.back().*stride == 1) return 'k';
  return !rows.empty() && rows.back().*stride == 1 ? row : '?';
}

void add_structure(const TileGroup& g, std::string& text) {
  text += fmt::format("{}{}{}:", int(g.form), g.reduced, g.accumulator >= 0 ? "+" : "");
  for (const TileAccess& a : g.accesses) {
    text += fmt::format("{}{}{}", int(a.dtype), a.gather >= 0 ? "g" : "", a.streaming ? "s" : "");
    for (int64_t s : a.strides) text += s == 0 ? '0' : s == 1 ? '1' : 'n';
  }
  for (const TileNode& n : g.nodes) text += fmt::format("{},{},{},{},{};", int(n.kind), int(n.op), n.in[0], n.in[1], n.in[2]);
}

std::string short_sum(const std::string& text) { return checksum_of(text).substr(0, 8); }

}  // namespace

std::span<const NamedVariant> kernel_variants() { return kVariants; }

namespace {

Tunable kind_of_key(std::string_view key) {
  for (const auto& [word, kind] : {std::pair<std::string_view, Tunable>{"product ", kProduct},
                                   {"fused ", kFused},
                                   {"attention ", kAttend},
                                   {"attention_grad ", kAttendGrad},
                                   {"loop ", kLoop}})
    if (key.starts_with(word)) return kind;
  return Tunable::none;
}

}  // namespace

bool applies(const NamedVariant& v, std::string_view key) {
  if (v.kind != kind_of_key(key)) return false;
  if (v.kind != kProduct) return true;
  char type[8] = {}, epilogue = 0;
  long long batch = 0, m = 0, n = 0, k = 0;
  const std::string text(key);
  const bool fused = std::sscanf(text.c_str(), "product %7[a-z0-9] %c %lldx %lldx%lldx%lld", type, &epilogue, &batch, &m, &n, &k) == 6 && epilogue == '+';
  if (!fused && std::sscanf(text.c_str(), "product %7[a-z0-9] %lldx %lldx%lldx%lld", type, &batch, &m, &n, &k) != 5) return false;
  const KernelVariant variant = variant_of(key, v.name);
  if (!variant.epilogue) return fused;
  if (variant.transposed) return !fused;
  if (!variant.pairs) return std::string_view(type) == "bf16" && pair_kernels(isa_tier());
  if (!variant.few_rows) return std::min(m, n) <= 16;
  const long long depth = !std::string_view(type).compare("bf16") && pair_kernels(isa_tier()) ? k / 2 : k;
  return variant.depth == 0 || depth > std::min<long long>(variant.depth, MatmulModel().depth);
}

KernelVariant variant_of(std::string_view key, std::string_view name) {
  const Tunable kind = kind_of_key(key);
  for (const NamedVariant& v : kVariants)
    if (v.kind == kind && v.name == name) {
      KernelVariant variant;
      v.set(variant);
      return variant;
    }
  fail(ErrorCode::io, "[tune] the stored choice {} of kernel {} is not known", name, key);
}

std::string kernel_key(const Program& program, const ProgramKernel& kernel) {
  const Graph& g = program.graph;
  std::string form;
  for (const TileGroup& t : kernel.tiles) add_structure(t, form);
  if (kernel.loop) {
    const LoopProgram& loop = *kernel.loop;
    int64_t widest = 0;
    for (const ProgramKernel& k : loop.body.kernels) form += k.name + ' ';
    for (const ProgramBuffer& b : loop.body.buffers) widest = std::max(widest, b.bytes);
    return fmt::format("loop {} steps {} B {}", anchor(loop.frame.steps()), anchor(widest), short_sum(form));
  }
  if (kernel.group.kind == Group::Kind::matmul) {
    const NodeId id = kernel.group.node;
    if (g[id].op != Op::matmul) return {};
    const ContractionLoops& l = kernel.loops;
    return fmt::format("product {} {}{}x {}x{}x{} {}{}{}", name(g.dtype(g[id].in[0])), kernel.tiles.empty() ? "" : "+ ", anchor(extent(l.batch)),
                       anchor(extent(l.m)), anchor(extent(l.n)), anchor(extent(l.k)), order_of(l, &ContractionLoops::Loop::a, 'm', l.m),
                       order_of(l, &ContractionLoops::Loop::b, 'n', l.n), form.empty() ? "" : " " + short_sum(form));
  }
  if (kernel.group.kind == Group::Kind::tile) {
    if (kernel.tiles.size() == 1 && runs_as_panel(kernel.tiles[0])) return {};
    int64_t points = 0, last = 0;
    for (const TileGroup& t : kernel.tiles) {
      int64_t n = 1;
      for (int64_t size : t.domain) n *= size;
      points += n, last = std::max(last, t.domain.rank() ? t.domain[t.domain.rank() - 1] : 1);
    }
    return fmt::format("fused {} {} points of {} {}", kernel.tiles.size(), anchor(points), anchor(last), short_sum(form));
  }
  const Op op = g[kernel.group.node].op;
  if (op != Op::attention && op != Op::attention_grad) return {};
  const AttentionDesc d = attention_desc(program, kernel);
  return fmt::format("{} {} {}x{}x{} {}/{}{}", op == Op::attention ? "attention" : "attention_grad", name(d.dtype), anchor(d.batch * d.heads),
                     anchor(d.queries), anchor(d.keys), anchor(d.dim), d.kv_heads == d.heads ? "" : "shared ", d.causal ? "causal" : "all");
}

}  // namespace ridge::cpu
