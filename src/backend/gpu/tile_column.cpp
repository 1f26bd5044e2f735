// Column kernels, and the kernels that combine partial results.
#include <fmt/format.h>

#include <algorithm>

#include "backend/gpu/tile_skeleton.h"
#include "base/error.h"

namespace ridge::gpu {

using Kind = TileNode::Kind;

// ---- column: the threads of a block form a grid over columns and rows; adjacent threads take adjacent columns ----

TileText TileSkeleton::column() {
  const bool parts = schedule_.part > 0;
  use_group();
  const int inner = group_.domain.rank() - 1, deep = schedule_.threads / schedule_.columns;
  const int64_t columns = group_.domain[inner], rows = reduced_points(group_),
                blocks = (columns + int64_t(schedule_.columns) * schedule_.vector - 1) / (int64_t(schedule_.columns) * schedule_.vector);
  const int64_t count = parts ? (rows + schedule_.part - 1) / schedule_.part : 1;
  std::vector<int> outer = kept_axes(group_);
  outer.pop_back();
  int64_t shared = 0;
  out_.line("@dynamic_shared;");
  begin_function("template <int V, bool A> RIDGE_INLINE void run(@constant const Entry& entry, @global Fault* fault, I block) {");
  out_.line(fmt::format("const int lane = (int)@thread % {}, row = (int)@thread / {};", schedule_.columns, schedule_.columns));
  out_.line(fmt::format("typedef {} J;", narrow_reduced() ? "int" : "I"));
  out_.line(fmt::format("const I strip = block % {}, part = block / {} % {}, other = block / {};", blocks, blocks, count, blocks * count));
  out_.line(fmt::format("const J begin = (J)part * (J){}, end = begin + (J){} < (J){} ? begin + (J){} : (J){};", parts ? schedule_.part : 0,
                        parts ? schedule_.part : rows, rows, parts ? schedule_.part : rows, rows));
  coordinates(outer, "other");
  out_.line(fmt::format("const I column = (strip * {} + lane) * V;", schedule_.columns));
  out_.line(fmt::format("const bool live = column < {};", columns));
  out_.line(fmt::format("const I x{} = live ? column : 0;", inner));
  out_.line("(void)part, (void)other, (void)begin, (void)end;");
  kept_values_of(0, "true");
  const int last = parts ? 0 : facts_.phases;
  for (int phase = 0; phase <= last; ++phase) {
    const bool final = phase == facts_.phases;
    if (!final) begin_accumulators(phase);
    if (!phase_roots(group_, facts_, phase).empty()) {
      out_.line(final ? "@unroll 2" : "@unroll 4");
      out_.open(fmt::format("for (J j = begin + row; j < end; j += {}) {{", deep));
      coordinates(reduced_axes(group_), "j", narrow_reduced());
      const TileWriter::Scope scope = out_.enter();
      if (!final) accumulate(phase, "true", "(i64)j");
      body_stores(phase, "true", "live");
      out_.leave(scope);
      out_.close();
    }
    if (final) continue;
    std::vector<int> now;
    for (int n : reductions(group_))
      if (facts_.phase[size_t(n)] == phase + 1 && alive_[size_t(n)]) now.push_back(n);
    if (deep > 1) {
      for (int n : now) {
        out_.line(fmt::format("@in_shared {}* t{} = (@in_shared {}*)(shared_memory + {});", accumulator(n), n, accumulator(n), shared));
        shared += schedule_.threads * schedule_.vector * accumulator_bytes(group_, n);
        out_.line("@unroll");
        out_.line(fmt::format("for (int k = 0; k < V; ++k) t{}[k * {} + @thread] = a{}[k];", n, schedule_.threads, n));
      }
      out_.line("@unroll");
      out_.open(fmt::format("for (int half = {}; half > 0; half /= 2) {{", deep / 2));
      out_.line("@barrier;");
      out_.open("if (row < half) {");
      for (int n : now) {
        out_.line("@unroll");
        out_.line(fmt::format("for (int k = 0; k < V; ++k) t{}[k * {} + @thread] = a{}[k] = {}::join(a{}[k], t{}[k * {} + @thread + half * {}]);", n,
                              schedule_.threads, n, joiner(group_.nodes[size_t(n)].op), n, n, schedule_.threads, schedule_.columns));
      }
      out_.close();
      out_.close();
      out_.line("@barrier;");
      for (int n : now) {
        out_.line("@unroll");
        out_.line(fmt::format("for (int k = 0; k < V; ++k) a{}[k] = t{}[k * {} + lane];", n, n, schedule_.threads));
      }
    }
    if (parts) {
      for (int n : now)
        out_.line(fmt::format(
            "if (row == 0 && live) for (int k = 0; k < V; ++k) ((@global {}*)entry.p[{}])[(part * (I)entry.n + other) * (I){} + column + k] = a{}[k];",
            accumulator(n), pointer(group_.operands + index(n)), columns, n));
      continue;
    }
    for (int n : now) finish_reduction(n, facts_.wide(n) ? fmt::format("a{}", n) : fmt::format("a{}[0]", n));
    kept_values_of(phase + 1, "true");
  }
  if (!parts) kept_stores("live && row == 0");
  out_.close();
  return finish("tile_column", call(), shared);
}

// ---- combine ----

TileText TileSkeleton::combine() {
  use(all_stores(group_), facts_.phases);
  const int deep = schedule_.threads / schedule_.columns;
  std::vector<int> now;
  for (int n : reductions(group_))
    if (alive_[size_t(n)]) now.push_back(n), pointers_.push_back(group_.operands + index(n));
  begin_function("template <int V, bool A> RIDGE_INLINE void run(@constant const Entry& entry, @global Fault* fault, I block) {");
  out_.line(fmt::format("const int lane = (int)@thread % {}, row = (int)@thread / {};", schedule_.columns, schedule_.columns));
  out_.line("const I points = (I)entry.n, parts = (I)entry.r;");
  out_.line(fmt::format("const I number = block * {} + lane;", schedule_.columns));
  out_.line("const bool live = number < points;");
  out_.line("const I point = live ? number : points - 1;");
  coordinates(kept_axes(group_), "point");
  for (int n : now) {
    const char* join = joiner(group_.nodes[size_t(n)].op);
    out_.line(fmt::format("{} a{}[1];", accumulator(n), n));
    out_.line(fmt::format("{}::clear(a{}[0]);", join, n));
    out_.line("@unroll 4");
    out_.line(fmt::format("for (I part = row; part < parts; part += {}) a{}[0] = {}::join(a{}[0], ((@global const {}*)entry.p[{}])[part * points + point]);",
                          deep, n, join, n, accumulator(n), pointer(group_.operands + index(n))));
    out_.line(fmt::format("@shared {} t{}[{}];", accumulator(n), n, schedule_.threads));
    out_.line(fmt::format("t{}[@thread] = a{}[0];", n, n));
  }
  out_.line("@unroll");
  out_.open(fmt::format("for (int half = {}; half > 0; half /= 2) {{", deep / 2));
  out_.line("@barrier;");
  out_.open("if (row < half) {");
  for (int n : now)
    out_.line(
        fmt::format("t{}[@thread] = a{}[0] = {}::join(a{}[0], t{}[@thread + half * {}]);", n, n, joiner(group_.nodes[size_t(n)].op), n, n, schedule_.columns));
  out_.close();
  out_.close();
  out_.line("if (row > 0) return;");
  kept_values_of(0, "live");
  for (int n : now) finish_reduction(n, facts_.wide(n) ? fmt::format("a{}", n) : fmt::format("a{}[0]", n));
  kept_stores("live");
  out_.close();
  return finish("tile_combine", "  run<1, true>(entry, fault, block);\n");
}

}  // namespace ridge::gpu
