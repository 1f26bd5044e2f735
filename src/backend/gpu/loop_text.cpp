#include "backend/gpu/loop_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/gpu/loop_parts.h"

namespace ridge::gpu {
namespace {

using Kind = TileNode::Kind;

class LoopWriter : LoopParts {
 public:
  LoopWriter(const ResidentLoop& loop, const KernelDialect& dialect)
      : LoopParts(loop, dialect), in_registers_(chunks_in_registers(loop)), groups_(product_groups(loop)) {}

  LoopText write() {
    begin();
    load_weights();
    load_carries();
    for (const LoopInput& input : inputs_)
      if (!input.moves) declare(input, ""), load_input(input);
    for (const LoopInput& input : inputs_)
      if (input.moves) declare(input, ahead_ > 0 ? fmt::format("[{}]", ahead_) : "");
    for (const LoopInput& input : inputs_)
      if (input.moves && ahead_ == 1) declare(input, "", "held");
    line("@unroll");
    open(fmt::format("for (int d = 0; d < {}; ++d) {{", std::max(ahead_, 1)));
    open("if (d < steps) {");
    line("const int t = d;");
    load_step();
    close(), close();
    if (loop_.exchanges()) line(barrier());
    line("@unroll 1");
    open(fmt::format("for (int begin = 0; begin < steps; begin += {}) {{", std::max(ahead_, 1)));
    line("@unroll");
    open(fmt::format("for (int d = 0; d < {}; ++d) {{", std::max(ahead_, 1)));
    line("const int now = begin + d;");
    line("if (now >= steps) break;");
    line(fmt::format("const i64 time = {};", loop_.reverse ? "steps - 1 - now" : "now"));
    if (ahead_ == 1) {
      for (const LoopInput& input : inputs_)
        if (input.moves) hold(input);
      load_next();
    }
    step();
    if (ahead_ > 1) load_next();
    close(), close();
    store_carries();
    close();
    return finish();
  }

 private:
  // ---- the kernel around the steps ----

  void begin() {
    ++depth_;
    line("using loop::sigmoid;");
    line("using loop::div;");
    if (shared_.bytes > 0) line("@dynamic_shared;");
    line("@global Fault* fault = args.fault;");
    line("const int steps = (int)args.steps, rows = (int)args.rows, thread = (int)@thread;");
    if (loop_.cluster > 1) line("const u32 rank = @cluster_rank;");
    if (loop_.matrix)
      line(fmt::format("const int lane = 0, n = {} / 4{}, group = thread % 4{}, sharer = group;",
                       loop_.splits > 1 ? fmt::format("thread % {}", loop_.threads() / loop_.splits) : "thread",
                       loop_.cluster > 1 ? fmt::format(" + (int)rank * {}", loop_.padded_columns / loop_.cluster) : "",
                       loop_.splits > 1 ? fmt::format(" + thread / {} * 4", loop_.threads() / loop_.splits) : ""));
    else
      line(fmt::format("const int lane = thread % {}, n = thread / {} % {}, group = thread / {}, sharer = lane;", loop_.lanes, loop_.lanes,
                       loop_.padded_columns, loop_.lanes * loop_.padded_columns));
    line(fmt::format("const int first_row = ((int)@block / {} * {} + group) * {};", loop_.cluster, loop_.groups, loop_.rows_each));
    if (loop_.sends) {
      line(fmt::format("u64* const barriers = (u64*)(shared_memory + {});", shared_.barriers));
      line("u32 turn = 0;");
      line(fmt::format("@cluster_prepare(barriers, {}u);", loop_.threads() / 32));
    }
    if (loop_.cluster > 1) line(barrier());  // all blocks of the cluster have started
    line("(void)fault, (void)lane, (void)n, (void)group, (void)thread, (void)sharer;");
  }

  // A word of the weights of the thread's column in slot j, from four (the q-th of them): one number or two neighbours along the depth.
  std::string weight(size_t nest, const std::string& j, const std::string& q) const {
    const LoopProduct& p = *loop_.nests[nest].product;
    std::string inside = inside_row(p.columns);
    if (const size_t at = inside.find("j *"); at != std::string::npos) inside.replace(at, 1, j);
    auto one = [&](const std::string& e) {
      return fmt::format("load_one(from{} + ((k + {}) * {} + ({} * {} + n) * {}), {})", nest, e, p.depth_stride, j, loop_.columns, p.column_stride,
                         both(fmt::format("k + {} < {}", e, p.depth), inside));
    };
    return ResidentLoop::chunk(p.format) == 4 ? factor(p.format, one(q)) : factor(p.format, one("2 * " + q), one("2 * " + q + " + 1"));
  }
  void weights_pointer(size_t nest) {
    const LoopProduct& p = *loop_.nests[nest].product;
    line(fmt::format("@global const {}* from{} = {} + {};", TileWriter::memory(p.dtype), nest, address(p.weights, p.dtype, nullptr), p.weight_offset));
  }

  // Fragments of a group's weights: of two lines, words 0 and 1 of both, then words 2 and 3; of a line alone, words 0 and 1 as of the first line, and 2 and 3
  // as of the second.
  struct Line {
    size_t nest;
    int slot;
  };
  std::vector<Line> lines_of(const std::vector<size_t>& group) const {
    std::vector<Line> lines;
    for (size_t i : group)
      for (int j = 0; j < slots(loop_.nests[i].points); ++j) lines.push_back({i, j});
    return lines;
  }
  void load_fragments() {
    int64_t at = shared_.weights;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const LoopProduct& p = *loop_.nests[groups_[g][0]].product;
      const std::vector<Line> lines = lines_of(groups_[g]);
      const int all = loop_.chunks(p), kept = in_registers_[groups_[g][0]];
      for (size_t l = 0; l < lines.size(); l += 2) {
        const bool alone = l + 1 == lines.size();
        const int words = alone ? 4 : 8;
        if (kept > 0) line(fmt::format("u32 weight{}_{}[{}][{}];", g, l / 2, kept, words));
        if (kept < all) line(fmt::format("@in_shared Quad* const far{}_{} = (@in_shared Quad*)(shared_memory + {});", g, l / 2, at));
        at += int64_t(words / 4) * (all - kept) * loop_.threads() * 16;
        open("{");
        weights_pointer(lines[l].nest);
        if (!alone && lines[l + 1].nest != lines[l].nest) weights_pointer(lines[l + 1].nest);
        auto word = [&](int q) {
          const Line& of = alone ? lines[l] : lines[l + size_t(q % 2)];
          return weight(of.nest, std::to_string(of.slot), std::to_string(alone ? q % 2 * 2 + q / 2 : q / 2));
        };
        const std::string first = fmt::format("const int k = (i * {} + sharer) * {};", loop_.sharers(), ResidentLoop::chunk(p.format));
        if (kept > 0) {
          line("@unroll");
          open(fmt::format("for (int i = 0; i < {}; ++i) {{", kept));
          line(first);
          for (int q = 0; q < words; ++q) line(fmt::format("weight{}_{}[i][{}] = {};", g, l / 2, q, word(q)));
          close();
        }
        if (kept < all) {
          line("@unroll 1");
          open(fmt::format("for (int i = {}; i < {}; ++i) {{", kept, all));
          line(first);
          line("Quad w;");
          for (int q = 0; q < words; ++q) {
            line(fmt::format("w.{} = {};", "xyzw"[q % 4], word(q)));
            if (q % 4 == 3) line(fmt::format("far{}_{}[((i - {}) * {} + {}) * {} + thread] = w;", g, l / 2, kept, words / 4, q / 4, loop_.threads()));
          }
          close();
        }
        close();
      }
    }
  }

  void load_weights() {
    if (loop_.matrix) return load_fragments();
    int64_t at = shared_.weights;
    for (size_t i = 0; i < loop_.nests.size(); ++i) {
      if (!loop_.nests[i].product) continue;
      const LoopProduct& p = *loop_.nests[i].product;
      const int all = loop_.chunks(p), kept = in_registers_[i], s = slots(p.columns);
      if (kept > 0) line(fmt::format("float weight{}[{}][{}];", i, s, 4 * kept));
      if (kept < all) line(fmt::format("@in_shared Quad* const far{} = (@in_shared Quad*)(shared_memory + {});", i, at));
      at += int64_t(s) * (all - kept) * loop_.threads() * 16;
      open("{");
      weights_pointer(i);
      // Four neighbours along the depth; the lanes of a column take turns, so that they read neighbouring words of a value.
      const std::string first = fmt::format("const int k = (i * {} + lane) * 4;", loop_.lanes);
      line("@unroll");
      open(fmt::format("for (int j = 0; j < {}; ++j) {{", s));
      if (kept > 0) {
        line("@unroll");
        open(fmt::format("for (int i = 0; i < {}; ++i) {{", kept));
        line(first);
        line("@unroll");
        line(fmt::format("for (int q = 0; q < 4; ++q) weight{}[j][4 * i + q] = {};", i, weight(i, "j", "q")));
        close();
      }
      if (kept < all) {
        line("@unroll 1");
        open(fmt::format("for (int i = {}; i < {}; ++i) {{", kept, all));
        line(first);
        line(fmt::format("Quad w;"));
        line(fmt::format("w.x = {};", weight(i, "j", "0"))), line(fmt::format("w.y = {};", weight(i, "j", "1")));
        line(fmt::format("w.z = {};", weight(i, "j", "2"))), line(fmt::format("w.w = {};", weight(i, "j", "3")));
        line(fmt::format("far{}[(j * {} + i - {}) * {} + thread] = w;", i, all - kept, kept, loop_.threads()));
        close();
      }
      close(), close();
    }
  }

  // Where a carry's two copies are in a step; `t` is the step that reads it.
  void shared_pointers(const char* t) {
    for (size_t v = 0; v < loop_.values.size(); ++v) {
      const LoopValue& x = value(int(v));
      if (!x.shared) continue;
      const char* type = TileWriter::type(x.dtype);
      const std::string turn = x.carry < 0 ? "" : fmt::format(" + ({}{} & 1) * {}", t, x.entering ? "" : " + 1", shared_.values.copy[v]);
      line(fmt::format("@in_shared {}* const shared{} = (@in_shared {}*)(shared_memory + {}){};", type, v, type, shared_.values.at[v], turn));
    }
    for (size_t v = 0; v < loop_.values.size(); ++v)
      if (value(int(v)).factor) line(factor_pointer(v, value(int(v)).carry < 0 ? "" : fmt::format("({}{} & 1)", t, value(int(v)).entering ? "" : " + 1")));
  }
  std::string factor_pointer(size_t v, const std::string& copy) const {
    const char* type = factor_type(value(int(v)).format);
    const std::string turn = copy.empty() ? "" : fmt::format(" + {} * {}", copy, 4 * shared_.factors.copy[v]);
    return fmt::format("@in_shared {}* const factor{} = (@in_shared {}*)(shared_memory + {}{});", type, v, type, shared_.factors.at[v], turn);
  }

  void load_carries() {
    for (size_t c = 0; c < loop_.carries; ++c) {
      const int v = loop_.entering[c];
      const LoopValue& x = value(v);
      if (x.registers) line(fmt::format("{} value{}[{}][{}];", TileWriter::type(x.dtype), v, loop_.rows_each, slots(x.width)));
      open("{");
      if (x.shared)
        line(fmt::format("@in_shared {}* const shared{} = (@in_shared {}*)(shared_memory + {});", TileWriter::type(x.dtype), v, TileWriter::type(x.dtype),
                         shared_.values.at[size_t(v)]));
      if (x.factor) line(factor_pointer(size_t(v), ""));
      line(fmt::format("@global const {}* from = {};", TileWriter::memory(x.dtype), address(int(c), x.dtype, nullptr)));
      const std::string inside = inside_row(x.width);
      std::string put =
          fmt::format("{{ const {} x = load_one(from + (row * {} + {}), {});", TileWriter::type(x.dtype), x.width, element_of_slot(), both("live", inside));
      if (x.registers) put += fmt::format(" value{}[r][j] = x;", v);
      if (x.shared)
        put += fmt::format(" if ({}) {}", either(both(one_lane(), inside)), this->put(in_shared(v, element_of_slot()), TileWriter::type(x.dtype), "x", false));
      if (x.factor) put += fmt::format(" if ({}) {}", either(inside), store_factor(v, element_of_slot(), "x", false));
      each_element(x.width, put + " }");
      close();
    }
  }
  static std::string either(const std::string& condition) { return condition.empty() ? "true" : condition; }

  void store_carry(int v, int operand, const char* time) {
    const LoopValue& x = value(v);
    open("{");
    line(fmt::format("@global {}* to = {};", TileWriter::memory(x.dtype), address(operand, x.dtype, time)));
    const std::string from = x.registers ? fmt::format("value{}[r][j]", v) : in_shared(v, element_of_slot());
    const std::string live = both(both("live", one_lane()), inside_row(x.width));
    each_element(x.width, fmt::format("if ({}) narrow(to[row * {} + {}], {});", live, x.width, element_of_slot(), from));
    close();
  }
  void store_carries() {
    if (std::find(loop_.last.begin(), loop_.last.end(), 1) == loop_.last.end()) return;
    open("{");
    shared_pointers("steps");
    for (size_t c = 0; c < loop_.carries; ++c)
      if (loop_.last[c]) store_carry(loop_.entering[c], last_operand(int(c)), nullptr);
    close();
  }

  // ---- one step ----

  void step() {
    shared_pointers(ahead_ > 0 && ahead_ % 2 == 0 ? "d" : "now");
    for (size_t c = 0; c < loop_.carries; ++c)
      if (loop_.stack[c]) store_carry(loop_.entering[c], stack_operand(int(c)), "time");
    for (size_t v = 0; v < loop_.values.size(); ++v)
      if (const LoopValue& x = value(int(v)); x.registers && !x.entering)
        line(fmt::format("{} value{}[{}][{}];", TileWriter::type(x.dtype), v, loop_.rows_each, slots(x.width)));
    for (int stage = 0; stage < loop_.stages; ++stage) {
      products(stage);
      for (size_t i = 0; i < loop_.nests.size(); ++i)
        if (loop_.nests[i].stage == stage) run(i);
      if (loop_.exchanges() && (stage + 1 < loop_.stages || loop_.meets_between_steps())) meet(stage);
      if (ahead_ == 0) load_next(stage);
    }
    for (size_t c = 0; c < loop_.carries; ++c) {
      const LoopValue& x = value(loop_.entering[c]);
      if (!x.registers) continue;
      each_element(x.width, fmt::format("value{}[r][j] = value{}[r][j];", loop_.entering[c], loop_.leaving[c]));
    }
  }

  // The barrier after a stage, before which a warp's columns of what the stage has computed are sent to the other blocks, if they do not have them yet.
  void meet(int stage) {
    if (!loop_.sends) return line(barrier());
    line("@warp_barrier;");
    int64_t bytes = 0;
    for (size_t v = 0; v < loop_.values.size(); ++v) {
      const LoopValue& x = loop_.values[v];
      if (x.entering || x.stage != stage) continue;
      const int64_t rows = int64_t(loop_.groups) * loop_.rows_each;
      auto send_all = [&](const std::string& from, int64_t size, int64_t group_pitch, int64_t pitch) {  // all but `size` and bytes: of elements
        const int64_t quads = size / 2;                                                                 // of a warp's 8 columns
        const int64_t count = quads * 4 * loop_.rows_each * slots(x.width);
        line("@unroll");
        open(fmt::format("for (int c = thread & 31; c < {}; c += 32) {{", (count + 31) / 32 * 32));
        if (count % 32 != 0) open(fmt::format("if (c < {}) {{", count));
        // Neighbouring lanes take a row of each group, which are in different banks.
        line(fmt::format("const int of = group / 4 * 4 + c / {} % 4, r = c / {} % {}, j = c / {};", quads, 4 * quads, loop_.rows_each,
                         4 * quads * loop_.rows_each));
        line(fmt::format("@in_shared Quad* const at = (@in_shared Quad*)({} + (of * {} + r * {} + j * {} + n / 8 * 8)) + c % {};", from, group_pitch, pitch,
                         loop_.columns, quads));
        line(fmt::format("@cluster_send(at, *at, barriers, turn, rank, {}u);", loop_.cluster));
        if (count % 32 != 0) close();
        close();
        bytes += rows * x.width * size / loop_.cluster * (loop_.cluster - 1);
      };
      if (x.shared) send_all(fmt::format("shared{}", v), 4, loop_.rows_each * shared_.values.pitch[v], shared_.values.pitch[v]);
      if (x.factor) {
        const int64_t size = 16 / ResidentLoop::chunk(x.format), pitch = shared_.factors.pitch[v] * 4 / size;
        send_all(fmt::format("factor{}", v), size, loop_.rows_each * pitch + LoopShared::kGroupGap * 4 / size, pitch);
      }
    }
    line(fmt::format("@cluster_meet(barriers, turn, {}u);", bytes));
    line("++turn;");
  }

  // The sums of a stage's products.
  void products(int stage) {
    for (const std::vector<size_t>& group : groups_)
      if (loop_.nests[group[0]].stage == stage) loop_.matrix ? multiply_matrix(group) : multiply(group);
    if (loop_.splits > 1) join_splits(stage);
  }

  void multiply(const std::vector<size_t>& nests) {
    const LoopProduct& p = *loop_.nests[nests[0]].product;
    const int all = loop_.chunks(p), rows = loop_.rows_each;
    int sums = 0;
    for (size_t i : nests) sums += slots(loop_.nests[i].points);
    const int chains = sums == 1 ? 4 : sums < 4 ? 2 : 1;  // few sums would wait for each addition
    for (size_t i : nests) line(fmt::format("float sum{0}[{1}][{2}], chain{0}[{1}][{2}][{3}] = {{}};", i, slots(loop_.nests[i].points), rows, chains));
    line("@unroll");
    open(fmt::format("for (int i = 0; i < {}; ++i) {{", all));
    line(fmt::format("const int k = (i * {} + lane) * 4;", loop_.lanes));
    line(fmt::format("Quad h[{}];", rows));
    line("@unroll");
    open(fmt::format("for (int r = 0; r < {}; ++r) {{", rows));
    const std::string at = in_shared(p.value, fmt::format("{} + k", p.offset));
    constexpr const char* kParts = "xyzw";
    if (p.stride != 1) {
      for (int q = 0; q < 4; ++q)
        line(fmt::format("h[r].{} = k + {} < {} ? {} : 0.f;", kParts[q], q, p.depth,
                         in_shared(p.value, fmt::format("({} + (k + {}) * {})", p.offset, q, p.stride))));
    } else if (p.offset % 4 == 0) {
      line(fmt::format("h[r] = *(@in_shared const Quad*)&{};", at));
    } else {
      line(fmt::format("@in_shared const float* const from = &{};", at));
      line("h[r].x = from[0], h[r].y = from[1], h[r].z = from[2], h[r].w = from[3];");
    }
    if (p.stride == 1 && p.depth % (4 * loop_.lanes) != 0) {
      open(fmt::format("if (i == {}) {{", all - 1));
      for (int q = 0; q < 4; ++q) line(fmt::format("if (k + {} >= {}) h[r].{} = 0.f;", q, p.depth, kParts[q]));
      close();
    }
    close();
    for (size_t i : nests) {
      const int kept = in_registers_[i];
      line("@unroll");
      open(fmt::format("for (int j = 0; j < {}; ++j) {{", slots(loop_.nests[i].points)));
      line("Quad w;");
      const std::string near =
          fmt::format("w.x = weight{0}[j][4 * {1}], w.y = weight{0}[j][4 * {1} + 1], w.z = weight{0}[j][4 * {1} + 2], w.w = weight{0}[j][4 * {1} + 3];", i,
                      kept < all ? fmt::format("(i < {} ? i : 0)", kept) : "i");
      const std::string far = fmt::format("w = far{}[(j * {} + i - {}) * {} + thread];", i, all - kept, kept, loop_.threads());
      line(kept == all ? near : kept == 0 ? far : fmt::format("if (i < {}) {{ {} }} else {}", kept, near, far));
      line("@unroll");
      open(fmt::format("for (int r = 0; r < {}; ++r) {{", rows));
      for (int q = 0; q < 4; ++q) line(fmt::format("chain{0}[j][r][{1}] = fmaf(h[r].{2}, w.{2}, chain{0}[j][r][{1}]);", i, q % chains, kParts[q]));
      close(), close();
    }
    close();
    for (size_t i : nests) {
      line("@unroll");
      line(fmt::format("for (int j = 0; j < {}; ++j)", slots(loop_.nests[i].points)));
      line("@unroll");
      line(fmt::format("  for (int r = 0; r < {}; ++r) sum{}[j][r] = joined_lanes<Sum, {}>(joined_vector<Sum>(chain{}[j][r]));", rows, i, loop_.lanes, i));
    }
  }

  // The same by a warp for tiles of 8 rows: its lines of weights are pairs of slots of its columns, whichever product they belong to.
  void multiply_matrix(const std::vector<size_t>& nests) {
    const size_t g = size_t(std::find(groups_.begin(), groups_.end(), nests) - groups_.begin());
    const std::vector<Line> lines = lines_of(nests);
    const int tiles = loop_.tiles();
    for (size_t i : nests) line(fmt::format("float sum{}[{}][{}];", i, slots(loop_.nests[i].points), loop_.rows_each));
    const LoopProduct& p = *loop_.nests[nests[0]].product;
    const int all = loop_.chunks(p), kept = in_registers_[nests[0]], pairs = int(lines.size() + 1) / 2, chains = all == 1 || pairs > 1 ? 2 : 4;
    const char* kind = p.format == LoopFactor::tf32 ? "tf32" : p.format == LoopFactor::bf16 ? "bf16" : "f16";
    open("{");
    line(fmt::format("float tile[{}][{}][{}][4] = {{}};", pairs, tiles, chains));
    line("@unroll");
    open(fmt::format("for (int i = 0; i < {}; ++i) {{", all));
    load_factor(p, all);
    for (int pair = 0; pair < pairs; ++pair) {
      const bool alone = size_t(2 * pair + 1) == lines.size();
      const int words = alone ? 4 : 8;
      open("{");
      line(fmt::format("u32 a[{}];", words));
      std::string near, far;
      for (int q = 0; q < words; ++q)
        near += fmt::format("a[{}] = weight{}_{}[{}][{}]; ", q, g, pair, kept < all ? fmt::format("i < {} ? i : 0", kept) : "i", q);
      for (int q = 0; q < words / 4; ++q) {
        far += fmt::format("const Quad w{} = far{}_{}[((i - {}) * {} + {}) * {} + thread]; ", q, g, pair, kept, words / 4, q, loop_.threads());
        for (int e = 0; e < 4; ++e) far += fmt::format("a[{}] = w{}.{}; ", 4 * q + e, q, "xyzw"[e]);
      }
      line(kept == all ? near : kept == 0 ? far : fmt::format("if (i < {}) {{ {}}} else {{ {}}}", kept, near, far));
      for (int half = 0; half < 2; ++half) {
        // A line alone multiplies the same fragment twice: the first product is right in its first line, the second one in the second, and only these are used.
        const int w = alone ? 0 : 4 * half;
        line(fmt::format("const u32 a{0}[4] = {{a[{1}], a[{2}], a[{3}], a[{4}]}};", half, w, w + 1, w + 2, w + 3));
        for (int t = 0; t < tiles; ++t)
          line(fmt::format("@multiply_{}(tile[{}][{}][(2 * i + {}) % {}], a{}, b[{}][{}], b[{}][{}]);", kind, pair, t, half, chains, half, t, 2 * half, t,
                           2 * half + 1));
      }
      close();
    }
    close();
    // Of the thread's rows, which are the tiles of its half of the threads.
    auto sum_of = [&](size_t l, int tile, int r) {
      const bool alone = l % 2 == 0 && l + 1 == lines.size();
      auto chain = [&](int c) { return fmt::format("tile[{}][{}][{}][{}]", l / 2, tile, c, (alone ? c % 2 : int(l % 2)) * 2 + r % 2); };
      return fmt::format("{} + {}{}", chain(0), chain(1), chains == 4 ? fmt::format(" + ({} + {})", chain(2), chain(3)) : "");
    };
    if (loop_.splits > 1) line(fmt::format("const int other = group < 4 ? thread + {0} : thread - {0};", loop_.threads() / 2));
    for (size_t l = 0; l < lines.size(); ++l)
      for (int r = 0; r < loop_.rows_each; ++r) {
        const std::string to = fmt::format("sum{}[{}][{}]", lines[l].nest, lines[l].slot, r);
        if (loop_.splits == 1) {
          line(fmt::format("{} = {};", to, sum_of(l, r / 2, r)));
          continue;
        }
        line(fmt::format("const float x{0}_{1} = {2}, y{0}_{1} = {3};", l, r, sum_of(l, r / 2, r), sum_of(l, (loop_.rows_each + r) / 2, r)));
        line(fmt::format("{0} = group < 4 ? x{1}_{2} : y{1}_{2};", to, l, r));
        line(fmt::format("{0}[{1} + other] = group < 4 ? y{2}_{3} : x{2}_{3};", partials(g), (int(l) * loop_.rows_each + r) * loop_.threads(), l, r));
      }
    close();
  }

  // With two splits: adds what the other half of the threads has summed for this thread's rows.
  void join_splits(int stage) {
    bool met = false;
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (loop_.nests[groups_[g][0]].stage != stage) continue;
      if (!std::exchange(met, true)) line("@barrier;");
      const std::vector<Line> lines = lines_of(groups_[g]);
      for (size_t l = 0; l < lines.size(); ++l)
        for (int r = 0; r < loop_.rows_each; ++r)
          line(
              fmt::format("sum{}[{}][{}] += {}[{} + thread];", lines[l].nest, lines[l].slot, r, partials(g), (int(l) * loop_.rows_each + r) * loop_.threads()));
    }
  }
  std::string partials(size_t group) const { return fmt::format("((@in_shared float*)(shared_memory + {}))", shared_.partials[group]); }

  // Words b[tile][4] of chunk i of the value that products multiply: of row lane / 4 of each tile, elements that the lane's weights belong to. A thread's rows
  // of a tile are two of its group's.
  void load_factor(const LoopProduct& p, int all) {
    const int per = ResidentLoop::chunk(p.format), in_word = per / 4;
    const int64_t pitch = shared_.factors.pitch[size_t(p.value)] * in_word;
    line(fmt::format("const int k = (i * {} + sharer) * {};", loop_.sharers(), per));
    line(fmt::format("u32 b[{}][4];", loop_.tiles()));
    line("@unroll");
    open(fmt::format("for (int tile = 0; tile < {}; ++tile) {{", loop_.tiles()));
    line(fmt::format("@in_shared const {}* const from = factor{} + ((tile / {} * 4 + n % 8 / 2) * {} + (tile % {} * 2 + n % 2) * {}){};", factor_type(p.format),
                     p.value, loop_.rows_each / 2, loop_.rows_each * pitch + LoopShared::kGroupGap * in_word, loop_.rows_each / 2, pitch,
                     p.offset ? fmt::format(" + {}", p.offset) : ""));
    if (p.stride == 1 && p.offset % per == 0) {
      line("const Quad h = *(@in_shared const Quad*)(from + k);");
      line("b[tile][0] = h.x, b[tile][1] = h.y, b[tile][2] = h.z, b[tile][3] = h.w;");
      if (p.depth % (per * loop_.sharers()) != 0) {
        open(fmt::format("if (i == {}) {{", all - 1));
        for (int q = 0; q < 4; ++q) {
          line(fmt::format("if (k + {} >= {}) b[tile][{}] = 0;", q * in_word, p.depth, q));
          if (in_word == 2 && p.depth % 2 != 0) line(fmt::format("if (k + {} >= {}) b[tile][{}] &= 0xffffu;", q * in_word + 1, p.depth, q));
        }
        close();
      }
    } else {
      auto element = [&](int e) { return fmt::format("(k + {} < {} ? (u32)from[(k + {}) * {}] : 0u)", e, p.depth, e, p.stride); };
      for (int q = 0; q < 4; ++q)
        line(fmt::format("b[tile][{}] = {}{};", q, element(in_word * q), in_word == 2 ? fmt::format(" | {} << 16", element(2 * q + 1)) : ""));
    }
    close();
  }

  // ---- one nest ----

  void run(size_t index) {
    const LoopNest& nest = loop_.nests[index];
    const TileFacts& facts = facts_[index];
    open("{");
    std::vector<char> done(nest.group.accesses.size(), 0);
    for (size_t n = 0; n < nest.group.nodes.size(); ++n) {
      const TileNode& node = nest.group.nodes[n];
      if (node.access < 0 || (node.kind != Kind::load && node.kind != Kind::store) || done[size_t(node.access)] || input_of(index, int(n))) continue;
      const LoopAccess& to = nest.accesses[size_t(node.access)];
      if (to.operand < 0) continue;
      done[size_t(node.access)] = 1;
      const DType dtype = nest.group.accesses[size_t(node.access)].dtype;
      line(fmt::format("@global {}* p{} = {};", TileWriter::memory(dtype), node.access, address(to.operand, dtype, to.moves ? "time" : nullptr)));
    }
    if (nest.uniform) {
      line("const bool here = true;");
    } else {
      begin_rows(nest);
      begin_points(nest);
      line(fmt::format("const bool here = {};", both("live", inside_points(nest))));
    }
    line("(void)here;");
    TileWriter out(nest.group, facts);
    for (int phase = 0; phase <= facts.phases; ++phase) reduce(index, out, phase);
    for (int n : all_stores(nest.group))
      if (nest.group.reduced == 0 || !facts.body(n)) store(index, out, n, true);
    add(out);
    if (!nest.uniform) close(), close();
    close();
  }

  // A phase of reductions, and in the last phase the stores of what varies within them.
  void reduce(size_t index, TileWriter& out, int phase) {
    const LoopNest& nest = loop_.nests[index];
    const TileFacts& facts = facts_[index];
    std::vector<int> sums, stores;
    for (int n : reductions(nest.group))
      if (facts.phase[size_t(n)] == phase + 1) sums.push_back(n);
    for (int n : all_stores(nest.group))
      if (nest.group.reduced > 0 && facts.body(n) && phase == facts.store_phase) stores.push_back(n);
    if (sums.empty() && stores.empty()) return;
    auto type = [&](int n) {
      const char* of = TileWriter::type(nest.group.nodes[size_t(nest.group.nodes[size_t(n)].in[0])].dtype);
      return is_arg(nest.group.nodes[size_t(n)].op) ? fmt::format("Arg<{}>", of) : std::string(of);
    };
    // What does not vary within the reduction is computed once.
    for (int n : phase_roots(nest.group, facts, phase))
      for (int m : out.missing(n))
        if (!facts.body(m) && nest.group.nodes[size_t(m)].kind != Kind::store) need(index, out, m);
    for (int n : sums) {
      out.line(fmt::format("{} a{};", type(n), n));
      out.line(fmt::format("{}::clear(a{});", joiner(nest.group.nodes[size_t(n)].op), n));
    }
    const bool wide = loop_.is_wide(nest), alone = loop_.columns == 1 || wide, partial = !alone && nest.reduced % loop_.lanes != 0;
    // Lanes beyond the last point compute with the others, so that the parts of a sum overlap, and join nothing.
    const bool joins = partial && stores.empty();
    const std::string within = fmt::format("q < {}", nest.reduced);
    if (joins) out.line(fmt::format("const bool whole{} = here;", phase));
    out.line((alone ? wide : parts_of(nest) > kMostParts) ? "@unroll 4" : "@unroll");
    if (alone) {
      out.open(fmt::format("for (int q = 0; q < {}; ++q) {{", nest.reduced));
    } else {
      out.open(fmt::format("for (int i = 0; i < {}; ++i) {{", parts_of(nest)));
      out.line(fmt::format("const int q = i * {} + lane;", loop_.lanes));
      if (partial && !joins) out.open(fmt::format("if ({}) {{", within));
      if (joins) out.line(fmt::format("const bool here = whole{} && {};", phase, within)), out.line("(void)here;"), part_ = within;
    }
    reduced_coordinates(nest, [&](const std::string& text) { out.line(text); });
    const TileWriter::Scope scope = out.enter();
    for (int n : sums) {
      const TileNode& node = nest.group.nodes[size_t(n)];
      need(index, out, node.in[0]);
      std::string x = out.value(node.in[0]);
      const char* of = TileWriter::type(nest.group.nodes[size_t(node.in[0])].dtype);
      x = is_arg(node.op) ? fmt::format("arg_at(({}){}, (i64)q)", of, x) : fmt::format("({}){}", of, x);
      out.line(fmt::format("{}a{} = {}::join(a{}, {});", joins ? fmt::format("if ({}) ", within) : "", n, joiner(node.op), n, x));
    }
    for (int n : stores) store(index, out, n, false);
    part_.clear();
    if (partial && !joins) out.close();
    out.close();
    out.leave(scope);
    for (int n : sums) {
      const TileNode& node = nest.group.nodes[size_t(n)];
      if (loop_.lanes > 1 && !wide) out.line(fmt::format("a{} = joined_lanes<{}, {}>(a{});", n, joiner(node.op), loop_.lanes, n));
      out.line(fmt::format("const {} v{} = {};", TileWriter::type(node.dtype), n,
                           is_arg(node.op) ? fmt::format("a{}.at", n) : TileWriter::rounded(node.dtype, fmt::format("a{}", n))));
      out.place_one(n, fmt::format("v{}", n));
      out.add_divisor(n);
    }
  }

  // Writes a node and what it depends on; values of the loop come from registers and shared memory.
  void need(size_t index, TileWriter& out, int node) {
    const LoopNest& nest = loop_.nests[index];
    for (int m : out.missing(node))
      if (nest.group.nodes[size_t(m)].kind == Kind::load && !out.has(m)) place(index, out, m);
    out.want(node, "here");
  }

  void place(size_t index, TileWriter& out, int n) {
    const LoopNest& nest = loop_.nests[index];
    const TileNode& node = nest.group.nodes[size_t(n)];
    if (node.access == nest.group.accumulator) return out.place_one(n, fmt::format("sum{}[j][r]", index));
    if (const LoopInput* input = input_of(index, n)) return out.place_one(n, read(*input));
    const LoopAccess& to = nest.accesses[size_t(node.access)];
    if (to.value < 0) return;  // from memory
    if (value(to.value).uniform) return out.place_one(n, fmt::format("value{}[0][0]", to.value));
    const TileAccess& access = nest.group.accesses[size_t(node.access)];
    std::string otherwise = "0";
    if (node.in[0] >= 0) need(index, out, node.in[0]), otherwise = out.value(node.in[0]);
    std::string element = fmt::format("{}", access.offset), bounds;
    for (int i = nest.row_axes; i < nest.group.domain.rank(); ++i)
      if (access.strides[i] != 0 && nest.group.domain[i] != 1) element += fmt::format(" + x{} * {}", i, access.strides[i]);
    if (access.gather >= 0) {
      need(index, out, access.gather);
      const LoopInput* checked = input_of(index, access.gather);
      const std::string number = checked && checked->limit >= 0
                                     ? out.value(access.gather)
                                     : fmt::format("(int)checked_index({}, {}ll, here, fault)", out.value(access.gather), access.gather_size);
      element += fmt::format(" + {} * {}", number, access.gather_stride);
    }
    for (const auto& b : access.bounds) {
      if (b.low > 0) bounds = both(bounds, fmt::format("x{} >= {}", b.axis, b.low));
      if (b.high < nest.group.domain[b.axis]) bounds = both(bounds, fmt::format("x{} < {}", b.axis, b.high));
    }
    const std::string type = TileWriter::type(value(to.value).dtype);
    std::string from;
    if (to.own) {
      const int count = slots(value(to.value).width);
      std::string slot = loop_.columns == 1 ? element : fmt::format("j + {}", to.shift);
      if (!bounds.empty()) slot = fmt::format("({0}) >= 0 && ({0}) < {1} ? ({0}) : 0", slot, count);
      from = fmt::format("value{}[r][{}]", to.value, slot);
    } else {
      bounds = both(both(bounds, inside_points(nest)), part_);  // beyond the row there is no memory
      from = in_shared(to.value, fmt::format("({})", element));
    }
    if (!bounds.empty()) from = fmt::format("({}) ? {} : ({})({})", bounds, from, type, otherwise);
    out.line(fmt::format("const {} l{} = {};", type, n, from));
    out.place_one(n, fmt::format("l{}", n));
  }

  void store(size_t index, TileWriter& out, int n, bool once) {
    const LoopNest& nest = loop_.nests[index];
    const TileNode& node = nest.group.nodes[size_t(n)];
    const LoopAccess& to = nest.accesses[size_t(node.access)];
    const TileAccess& access = nest.group.accesses[size_t(node.access)];
    need(index, out, node.in[0]);
    const std::string lane = nest.uniform ? "thread == 0 && (int)@block == 0" : once && !loop_.is_wide(nest) ? one_lane() : "";
    if (to.value >= 0 && nest.uniform) {
      out.line(fmt::format("value{}[0][0] = {};", to.value, TileWriter::rounded(value(to.value).dtype, out.value(node.in[0]))));
    } else if (to.value >= 0) {
      const LoopValue& x = value(to.value);
      std::string element = fmt::format("{}", access.offset);
      for (int i = nest.row_axes; i < nest.group.domain.rank(); ++i)
        if (access.strides[i] != 0 && nest.group.domain[i] != 1) element += fmt::format(" + x{} * {}", i, access.strides[i]);
      const std::string from = TileWriter::rounded(x.dtype, out.value(node.in[0]));
      if (x.registers) out.line(fmt::format("value{}[r][{}] = {};", to.value, loop_.columns == 1 ? element : fmt::format("j + {}", to.shift), from));
      if (x.shared)
        out.line(
            fmt::format("if ({}) {}", either(both(lane, inside_points(nest))), put(in_shared(to.value, "(" + element + ")"), TileWriter::type(x.dtype), from)));
      if (x.factor) out.line(fmt::format("if ({}) {}", either(inside_points(nest)), store_factor(to.value, element, from)));
    }
    if (to.operand >= 0) out.store(n, both("here", lane));
  }

  LoopText finish() {
    std::string text = loop_.matrix ? "@matrix_units\n" : "";
    if (loop_.cluster > 1) text += "@clusters\n";
    text += fmt::format("typedef int I;\nstruct @aligned(16) Quad {{ {} x, y, z, w; }};\n", loop_.matrix ? "u32" : "float");
    text += "struct Moving { @global void* at; i64 step; };\n";
    text += fmt::format("struct Args {{ @global Fault* fault; i64 steps, rows; Moving p[{}]; }};\n", std::max<size_t>(operands_.size(), 1));
    // A step waits for each function that it computes, so these have no branches for denormal numbers, which would also keep them from overlapping.
    text +=
        "@near_division\nnamespace loop {\n"
        "RIDGE_INLINE float sigmoid(float x) { return near_reciprocal(1.f + expf(-x)); }\n"
        "template <class A, class B> RIDGE_INLINE A div(A a, const B& b) { return ::div(a, b); }\n"
        "RIDGE_INLINE float div(float a, float b) { return full_quotient(a, b); }\n}\n";
    // One block per multiprocessor: all registers are for its threads.
    text += fmt::format("@entry({}; resident_loop; const RIDGE_CONSTANT Args args) {{\n",
                        loop_.cluster > 1 ? fmt::format("{}, 1, {}", loop_.threads(), loop_.cluster) : fmt::format("{}, 1", loop_.threads()));
    return {{"resident_loop", dialect_.write(text + text_), shared_.bytes}, operands_};
  }
  std::vector<int> in_registers_;
  std::vector<std::vector<size_t>> groups_;
  std::string part_;  // the condition under which a lane has a part of the sum that is being written
};

}  // namespace

LoopText loop_text(const ResidentLoop& loop, const KernelDialect& dialect) { return LoopWriter(loop, dialect).write(); }

}  // namespace ridge::gpu
