// Row kernels.
#include <fmt/format.h>

#include <algorithm>

#include "backend/gpu/tile_skeleton.h"
#include "base/error.h"

namespace ridge::gpu {

using Kind = TileNode::Kind;
namespace {

constexpr int kAheadVectors = 2;  // per thread and turn of a loop that does not wait for memory

}  // namespace

// ---- row ----

// Shared memory for the loads that several phases use, each a whole row; the addresses are those of the thread's vector.
int64_t TileSkeleton::shared_layout() {
  shared_address_.assign(group_.nodes.size(), {});
  if (!schedule_.keep_shared) return 0;
  const TileKept kept = kept_values(group_, facts_);
  int64_t offset = 0;
  for (size_t n = 0; n < group_.nodes.size(); ++n) {
    if (!kept.loads[n]) continue;
    const DType t = group_.accesses[size_t(group_.nodes[n].access)].dtype;
    shared_address_[n] = fmt::format("(@in_shared {}*)(shared_memory + {}) + j", TileWriter::memory(t), offset);
    offset += (reduced_points(group_) * size_of(t) + 127) / 128 * 128;
  }
  return offset;
}

void TileSkeleton::begin_kept_vectors() {
  const int64_t vectors = reduced_points(group_) / schedule_.vector, left = vectors - int64_t(schedule_.chunks - 1) * schedule_.lanes;
  out_.line("@unroll");
  out_.open(fmt::format("for (int c = 0; c < {}; ++c) {{", schedule_.chunks));
  out_.line(fmt::format("const J j = (c * {} + lane) * V;", schedule_.lanes));
  out_.line(left == schedule_.lanes ? "const bool here = true;" : fmt::format("const bool here = c < {} || lane < {};", schedule_.chunks - 1, left));
  coordinates(reduced_axes(group_), "j", narrow_reduced());
}

// One phase of a row whose vectors are kept in registers.
void TileSkeleton::kept_pass(int phase, const TileKept& kept, const std::vector<char>& made) {
  begin_kept_vectors();
  const TileWriter::Scope scope = out_.enter();
  for (size_t n = 0; n < group_.nodes.size(); ++n) {
    if (!kept.registers[n]) continue;
    const std::string place = fmt::format("k{}[c]", n);
    if (made[n])
      out_.place(int(n), place);
    else
      out_.target(int(n), place);
  }
  row_body(phase, "here");
  out_.leave(scope);
  out_.untarget();
  out_.close();
}

// Loads that do not depend on values computed within the row.
std::vector<int> TileSkeleton::plain_loads(const std::vector<char>& computes) const {
  std::vector<int> loads;
  for (int n = 0; n < int(group_.nodes.size()); ++n) {
    const TileNode& node = group_.nodes[size_t(n)];
    if (!computes[size_t(n)] || node.kind != Kind::load || node.in[0] >= 0) continue;
    const TileAccess& access = group_.accesses[size_t(node.access)];
    if (access.gather < 0 || !facts_.body(access.gather)) loads.push_back(n);
  }
  return loads;
}

// Issues the last phase's loads before its first store. A store might alias a later load, in which case each load would be waited for separately. Excludes
// loads whose address depends on earlier reductions.
void TileSkeleton::load_ahead(int phase, TileKept& kept, std::vector<char>& made) {
  constexpr int kMaxValues = 32;  // limit on the registers for them
  std::vector<int> ahead;
  int values = 0;
  for (int n : plain_loads(phase_nodes(group_, facts_, phase)))
    if (!made[size_t(n)] && facts_.wide(n) && facts_.phase[size_t(n)] < phase) ahead.push_back(n), values += schedule_.chunks * schedule_.vector;
  if (ahead.empty() || values > kMaxValues) return;
  for (int n : ahead) {
    if (kept.registers[size_t(n)]) continue;
    out_.line(fmt::format("{} k{}[{}][V];", TileWriter::type(group_.nodes[size_t(n)].dtype), n, schedule_.chunks));
    kept.registers[size_t(n)] = 1;
  }
  begin_kept_vectors();
  const TileWriter::Scope scope = out_.enter();
  for (int n : ahead) {
    out_.target(n, fmt::format("k{}[c]", n));
    out_.want(n, "here");
    made[size_t(n)] = 1;
  }
  out_.untarget();
  out_.leave(scope);
  out_.close();
}

void TileSkeleton::row_body(int phase, const std::string& here) {
  if (phase < facts_.phases) accumulate(phase, here, "(i64)(j + k)");
  body_stores(phase, here, here == "true" ? "live" : here + " && live");
}

// One phase of a long row: reads several vectors, then computes with them. If comparisons of the position are settled for a whole vector, as they almost always
// are, a copy of the code omits them.
void TileSkeleton::loop_pass(int phase, const TileKept& kept, const std::vector<char>& made) {
  const std::vector<char> computes = phase_nodes(group_, facts_, phase);
  const std::vector<int> early = plain_loads(computes);
  const bool ahead = schedule_.row_blocks > 0, last = phase == facts_.phases;
  auto in_shared = [&](int n) { return schedule_.keep_shared && kept.loads[size_t(n)] && (made[size_t(n)] || ahead); };
  const bool from_memory = !ahead && !std::all_of(early.begin(), early.end(), in_shared);
  int64_t bytes = 0;
  for (int n : early) bytes += (facts_.wide(n) ? schedule_.vector : 1) * size_of(group_.nodes[size_t(n)].dtype);
  const int batch = !from_memory || bytes > 32 ? kAheadVectors : 4;
  if (ahead && last) copied_row("next");
  out_.line("@unroll 1");
  out_.open(fmt::format("for (J first = begin + lane * V; first < end; first += {} * V) {{", schedule_.lanes * batch));
  if (ahead && phase == 0) out_.line(fmt::format("wait_for_copies((int)((end - 1 - first) / ({} * V)));", schedule_.lanes * batch));
  for (int n : early) out_.line(fmt::format("{} k{}[{}]{};", TileWriter::type(group_.nodes[size_t(n)].dtype), n, batch, facts_.wide(n) ? "[V]" : ""));
  auto begin_vectors = [&] {
    out_.line("@unroll");
    out_.open(fmt::format("for (int c = 0; c < {}; ++c) {{", batch));
    out_.line(fmt::format("const J j = first + c * {} * V;", schedule_.lanes));
    out_.line("const bool here = j < end;");
    coordinates(reduced_axes(group_), "j", narrow_reduced());
  };
  begin_vectors();
  const TileWriter::Scope scope = out_.enter();
  for (int n : early) {
    out_.shared(n, in_shared(n) ? shared_address_[size_t(n)] : "", false);
    out_.target(n, fmt::format("k{}[c]", n));
    out_.want(n, "here");
  }
  out_.untarget();
  out_.leave(scope);
  out_.close();
  begin_vectors();
  for (int n : early) {
    out_.place(n, fmt::format("k{}[c]", n));
    if (schedule_.keep_shared && kept.loads[size_t(n)] && !in_shared(n))
      out_.line(fmt::format("store<V>({}, k{}[c], here, false);", shared_address_[size_t(n)], n));
  }
  for (int n = 0; n < int(group_.nodes.size()); ++n)
    if (schedule_.keep_shared && kept.loads[size_t(n)] && std::find(early.begin(), early.end(), n) == early.end())
      out_.shared(n, shared_address_[size_t(n)], !made[size_t(n)]);
  const std::vector<TileWriter::Decision> decisions = schedule_.vector > 1 ? out_.decisions(computes) : std::vector<TileWriter::Decision>();
  if (decisions.empty()) {
    row_body(phase, "here");
  } else {
    std::string usual = "here";
    for (const auto& d : decisions) usual += " && " + d.test;
    out_.open("if (" + usual + ") {");
    const TileWriter::Scope before = out_.enter();
    for (const auto& d : decisions) out_.decide(d);
    row_body(phase, "true");
    out_.leave(before);
    out_.close();
    out_.open("else if (here) {");
    row_body(phase, "true");
    out_.leave(before);
    out_.close();
  }
  out_.leave(scope);
  out_.close();
  if (ahead && last) copy_vectors("next < rows");
  out_.close();
}

// Asks for a row's single values; what is computed from them can wait until the first pass has hidden the time that they take.
void TileSkeleton::kept_loads() {
  for (int n = 0; n < int(group_.nodes.size()); ++n)
    if (alive_[size_t(n)] && !facts_.body(n) && facts_.phase[size_t(n)] == 0 && group_.nodes[size_t(n)].kind == Kind::load) out_.want(n, "true");
}

// Where a row's data begins that is copied ahead.
void TileSkeleton::copied_row(const std::string& row) {
  const TileKept kept = kept_values(group_, facts_);
  for (size_t n = 0; n < group_.nodes.size(); ++n) {
    if (!kept.loads[n]) continue;
    const TileAccess& access = group_.accesses[size_t(group_.nodes[n].access)];
    const std::string type = "@global const " + std::string(TileWriter::memory(access.dtype)) + "*";
    out_.line(fmt::format("{} from{};", type, n));
    out_.open("{");
    coordinates(kept_axes(group_), row);
    out_.line(fmt::format("const I x{} = 0;", facts_.axis));
    out_.line(fmt::format("from{} = p{} + ({});", n, group_.nodes[n].access, out_.element(access, false)));
    out_.close();
  }
}

// Asks for the vectors of one turn of the loop.
void TileSkeleton::copy_vectors(const std::string& there) {
  const TileKept kept = kept_values(group_, facts_);
  out_.line("@unroll");
  out_.open(fmt::format("for (int c = 0; c < {}; ++c) {{", kAheadVectors));
  out_.line(fmt::format("const J j = first + c * {} * V;", schedule_.lanes));
  for (size_t n = 0; n < group_.nodes.size(); ++n)
    if (kept.loads[n]) out_.line(fmt::format("copy_ahead<V, A>({}, from{} + j, {} && j < end);", shared_address_[n], n, there));
  out_.close();
  out_.line("end_copies();");
}

// The reductions of one phase, from the parts that an earlier launch left. Every warp combines them in the same order.
void TileSkeleton::join_parts(int phase) {
  for (int n : reductions(group_)) {
    if (facts_.phase[size_t(n)] != phase + 1 || !alive_[size_t(n)]) continue;
    const char* join = joiner(group_.nodes[size_t(n)].op);
    out_.line(fmt::format("{} s{};", accumulator(n), n));
    out_.line(fmt::format("{}::clear(s{});", join, n));
    out_.line(fmt::format("for (I i = (I)@thread % 32; i < (I)parts; i += 32) s{} = {}::join(s{}, ((@global const {}*)entry.p[{}])[i * rows + row]);", n, join,
                          n, accumulator(n), pointer(group_.operands + index(n))));
    out_.line(fmt::format("s{} = joined_lanes<{}, 32>(s{});", n, join, n));
    finish_reduction(n, fmt::format("s{}", n));
  }
  kept_values_of(phase + 1, "true");
}

void TileSkeleton::row_function() {
  const bool keep = schedule_.chunks > 0, whole_block = schedule_.lanes == schedule_.threads && schedule_.threads > 32, parts = schedule_.part > 0;
  const int64_t length = reduced_points(group_);
  TileKept kept = kept_values(group_, facts_);
  begin_function("template <int V, bool A> RIDGE_INLINE void run(@constant const Entry& entry, @global Fault* fault, I block) {");
  out_.line(fmt::format("const int lane = (int)@thread % {};", schedule_.lanes));
  out_.line(fmt::format("typedef {} J;", narrow_reduced() ? "int" : "I"));
  out_.line("const I rows = (I)entry.n;");
  if (parts) {
    out_.line("const I part = block / rows, row = block % rows;");
    out_.line("const bool live = true;");
    out_.line(fmt::format("const J begin = (J)part * (J){}, length = (J)entry.r, end = begin + {} < length ? begin + {} : length;", schedule_.part,
                          schedule_.part, schedule_.part));
  } else if (schedule_.sum_blocks > 0) {
    begin_rows();
  } else if (schedule_.row_blocks > 0) {
    begin_rows_ahead();
  } else {
    out_.line(fmt::format("const I number = block * {} + (I)@thread / {};", schedule_.threads / schedule_.lanes, schedule_.lanes));
    out_.line("const bool live = number < rows;");
    out_.line("const I row = live ? number : rows - 1;");
  }
  if (!parts) out_.line(fmt::format("const J begin = 0, end = {};", length));
  out_.line("(void)live, (void)row, (void)begin, (void)end;");
  coordinates(kept_axes(group_), "row");
  if (schedule_.row_blocks > 0)
    kept_loads();
  else
    kept_values_of(0, "true");
  if (schedule_.phase > 0) out_.line(fmt::format("const J parts = (length + {}) / {};", schedule_.part - 1, schedule_.part));
  if (schedule_.phase > 0) out_.line("(void)parts;");
  for (int phase = 0; phase < schedule_.phase; ++phase) join_parts(phase);
  if (keep)
    for (size_t n = 0; n < group_.nodes.size(); ++n)
      if (kept.registers[n])
        out_.line(fmt::format("{} k{}[{}]{};", TileWriter::type(group_.nodes[n].dtype), n, schedule_.chunks, facts_.wide(int(n)) ? "[V]" : ""));
  std::vector<char> made(group_.nodes.size(), 0);
  const int last = parts ? schedule_.phase : facts_.phases;
  if (schedule_.loads_first && keep) load_ahead(last, kept, made);
  for (int phase = schedule_.phase; phase <= last; ++phase) {
    const std::vector<int> roots = phase_roots(group_, facts_, phase);
    const bool final = phase == facts_.phases;
    if (!final) begin_accumulators(phase);
    if (!roots.empty()) {
      if (keep)
        kept_pass(phase, kept, made);
      else
        loop_pass(phase, kept, made);
      const std::vector<char> computes = phase_nodes(group_, facts_, phase);
      for (size_t n = 0; n < group_.nodes.size(); ++n) made[n] |= computes[n];
    }
    if (schedule_.row_blocks > 0 && phase == 0) kept_values_of(0, "true");
    if (final) continue;
    if (keep && phase + 1 == facts_.phases) load_ahead(phase + 1, kept, made);
    std::vector<int> now;
    for (int n : reductions(group_))
      if (facts_.phase[size_t(n)] == phase + 1 && alive_[size_t(n)]) now.push_back(n);
    for (int n : now) {
      const char* join = joiner(group_.nodes[size_t(n)].op);
      out_.line(fmt::format("{} s{} = joined_vector<{}, V>(a{});", accumulator(n), n, join, n));
      if (!whole_block) {
        out_.line(fmt::format("s{} = joined_lanes<{}, {}>(s{});", n, join, schedule_.lanes, n));
      } else {
        out_.line(fmt::format("@shared {} t{}[32];", accumulator(n), n));
        out_.line(fmt::format("put_joined<{}>(t{}, s{});", join, n, n));
      }
    }
    if (whole_block && !now.empty()) {
      out_.line("@barrier;");
      for (int n : now)
        out_.line(fmt::format("s{} = get_joined<{}, {}, {}>(t{});", n, joiner(group_.nodes[size_t(n)].op), schedule_.threads, accumulator(n), n));
    }
    if (parts) {
      for (int n : now)
        out_.line(fmt::format("if (lane == 0) ((@global {}*)entry.p[{}])[part * rows + row] = s{};", accumulator(n), pointer(group_.operands + index(n)), n));
      continue;
    }
    for (int n : now) finish_reduction(n, fmt::format("s{}", n));
    kept_values_of(phase + 1, "true");
  }
  if (last == facts_.phases) kept_stores(parts ? "part == 0 && lane == 0" : "live && lane == 0");
  if (schedule_.sum_blocks > 0) end_rows();
  if (schedule_.row_blocks > 0) out_.close();
  out_.close();
}

// A block that iterates over rows in shared memory. A thread copies what it will read itself, so that no barrier is needed.
void TileSkeleton::begin_rows_ahead() {
  out_.open("{");
  out_.line(fmt::format("const J begin = 0, end = {};", reduced_points(group_)));
  copied_row("block");
  out_.open(fmt::format("for (J first = begin + lane * V; first < end; first += {} * V) {{", schedule_.lanes * kAheadVectors));
  copy_vectors("block < rows");
  out_.close();
  out_.close();
  out_.line("@unroll 1");
  out_.open(fmt::format("for (I row = block; row < rows; row += {}) {{", schedule_.row_blocks));
  out_.line("const bool live = true;");
  out_.line(fmt::format("const I next = row + {};", schedule_.row_blocks));
}

std::vector<int> TileSkeleton::sums_of_rows() const {
  std::vector<int> sums = all_stores(group_);
  std::erase_if(sums, [&](int n) { return !is_sum(n); });
  return sums;
}

// Sums in registers share the first region, one after another.
int64_t TileSkeleton::region_of_sum(int store) const {
  const std::vector<int> sums = sums_of_rows();
  const int64_t number = std::find(sums.begin(), sums.end(), store) - sums.begin();
  return number < schedule_.register_sums ? -1 : number - schedule_.register_sums + (schedule_.register_sums > 0);
}

// A block whose warps iterate over many rows and sum over them, column by column.
void TileSkeleton::begin_rows() {
  const int lanes = schedule_.lanes, warps = schedule_.threads / lanes;
  const int64_t length = reduced_points(group_), vectors = length / schedule_.vector;
  for (int n : sums_of_rows()) {
    const int64_t region = region_of_sum(n);
    if (region < 0) {
      out_.line(fmt::format("float q{}[{}][V];", n, schedule_.chunks));
      out_.line("@unroll");
      out_.line(fmt::format("for (int c = 0; c < {}; ++c) spread<V>(q{}[c], 0.f);", schedule_.chunks, n));
      continue;
    }
    out_.line(fmt::format("@in_shared float* q{} = (@in_shared float*)shared_memory + ({} + (int)@thread / 32) * {} + lane * V;", n, region * warps, length));
    out_.line("@unroll");
    out_.open(fmt::format("for (int c = 0; c < {}; ++c) {{", schedule_.chunks));
    out_.line("float zeros[V];");
    out_.line("spread<V>(zeros, 0.f);");
    out_.line(fmt::format("store<V>(q{} + c * 32 * V, zeros, c * 32 + lane < {}, false);", n, vectors));
    out_.close();
  }
  out_.line("@unroll 1");
  out_.open(fmt::format("for (I row = block * {} + (I)@thread / {}; row < rows; row += {}) {{", warps, lanes, schedule_.sum_blocks * warps));
  out_.line("const bool live = true;");
}

// Adds the warps' sums in order; the total is one part of the result.
void TileSkeleton::end_rows() {
  out_.close();
  const int64_t length = reduced_points(group_), vectors = length / schedule_.vector;
  if (schedule_.lanes > 32) {
    for (int n : sums_of_rows()) {
      const int operand = group_.accesses[size_t(group_.nodes[size_t(n)].access)].operand;
      out_.line("@unroll");
      out_.line(fmt::format(
          "for (int c = 0; c < {}; ++c) store<V, A>((@global float*)entry.p[{}] + block * (I){} + (c * {} + lane) * V, q{}[c], c * {} + lane < {}, false);",
          schedule_.chunks, pointer(operand), length, schedule_.lanes, n, schedule_.lanes, vectors));
    }
    return;
  }
  const int warps = schedule_.threads / 32;
  out_.line("@in_shared float* totals;");
  for (int n : sums_of_rows()) {
    const int64_t region = region_of_sum(n);
    out_.line(fmt::format("totals = (@in_shared float*)shared_memory + {};", std::max<int64_t>(region, 0) * warps * length));
    if (region < 0) {
      out_.line("@unroll");
      out_.line(fmt::format("for (int c = 0; c < {}; ++c) for (int k = 0; k < V; ++k)", schedule_.chunks));
      out_.line(fmt::format("  if (c * 32 + lane < {}) totals[(int)@thread / 32 * {} + (c * 32 + lane) * V + k] = q{}[c][k];", vectors, length, n));
    }
    out_.line("@barrier;");
    out_.open(fmt::format("for (int i = (int)@thread; i < {}; i += {}) {{", length, schedule_.threads));
    out_.line("float total = totals[i];");
    out_.line(fmt::format("for (int w = 1; w < {}; ++w) total = add(total, totals[w * {} + i]);", warps, length));
    const int operand = group_.accesses[size_t(group_.nodes[size_t(n)].access)].operand;
    out_.line(fmt::format("((@global float*)entry.p[{}])[block * (I){} + i] = total;", pointer(operand), length));
    out_.close();
    out_.line("@barrier;");
  }
}

// The order of sums does not depend on the operands' alignment.
std::string TileSkeleton::call() const {
  if (schedule_.vector == 1) return "  run<1, true>(entry, fault, block);\n";
  return fmt::format("  if ({}) run<{}, true>(entry, fault, block);\n  else run<{}, false>(entry, fault, block);\n", aligned(), schedule_.vector,
                     schedule_.vector);
}

TileText TileSkeleton::row() {
  use_group();
  int64_t shared = 0;
  if (schedule_.sum_blocks > 0)
    shared = row_sums_shared_bytes(group_, schedule_, int(sums_of_rows().size()));
  else
    shared = shared_layout();
  if (shared > 0) out_.line("@dynamic_shared;");
  if (schedule_.row_blocks > 0) out_.line("@row_copies");
  row_function();
  return finish("tile_row", call(), shared);
}

TileText TileSkeleton::row_part() {
  use_group();
  if (schedule_.keep_shared || schedule_.entries > 1 || schedule_.wide_index)
    fail(ErrorCode::internal, "[tile_kernel] this schedule is for a kernel of its own");
  row_function();
  std::string all;
  for (size_t p = 0; p < pointers_.size(); ++p) all += fmt::format("{}(u64)making.p[{}]", p ? " | " : "", p);
  const std::string call =
      schedule_.vector == 1
          ? std::string("  making::run<1, true>(making, fault, 0);\n")
          : fmt::format("  if ((({}) & 15) == 0) making::run<{}, true>(making, fault, 0);\n  else making::run<{}, false>(making, fault, 0);\n", all,
                        schedule_.vector, schedule_.vector);
  return {{call, schedule_.dialect->write(entry_types() + out_.take()), 0}, pointers_};
}

int64_t row_sums_shared_bytes(const TileGroup& group, const TileSchedule& schedule, int sums) {
  if (schedule.lanes > 32) return 0;  // each column has a thread of its own
  const int regions = std::max(0, sums - schedule.register_sums) + (schedule.register_sums > 0);
  return regions * (schedule.threads / 32) * reduced_points(group) * int64_t(sizeof(float));
}

}  // namespace ridge::gpu
