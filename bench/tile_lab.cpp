// A laboratory for the tile interpreter: fused groups, interleaved with measurements of the ceilings in the same process.
// Usage: bench_tile_lab [filter] [rounds] [one]; "one": a single thread, timed by its CPU time (for busy machines).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "backend/cpu/tile_kernel.h"
#include "threads/thread_team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using namespace ridge;
using namespace ridge::cpu;
using Kind = TileNode::Kind;
using Form = TileGroup::Template;

int64_t kLarge = int64_t(1) << 26;

bool one_thread = false;

double now() {
  if (one_thread) {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::byte* map_pages(int64_t bytes) {
  void* p = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) std::abort();
  madvise(p, size_t(bytes), MADV_HUGEPAGE);
  for (int64_t i = 0; i < bytes / 4; ++i) static_cast<float*>(p)[i] = float(i % 1000) * 0.002f - 1;
  return static_cast<std::byte*>(p);
}

struct Build {
  TileGroup g;
  Build(Form form, Shape domain, int reduced = 0) { g.form = form, g.domain = domain, g.reduced = reduced; }
  int push(Kind kind, Op op, int a, int b = -1, int c = -1) {
    TileNode n;
    n.kind = kind, n.op = op, n.in = {a, b, c};
    g.nodes.push_back(n);
    return int(g.nodes.size()) - 1;
  }
  int op(Op o, int a, int b = -1, int c = -1) { return push(Kind::elementwise, o, a, b, c); }
  int reduce(Op o, int a) { return push(Kind::reduce, o, a); }
  int literal(double v) {
    int n = push(Kind::literal, Op::add, -1);
    g.nodes.back().value = v;
    return n;
  }
  int access(Shape strides, bool streaming) {
    TileAccess a;
    a.operand = g.operands++, a.strides = strides, a.streaming = streaming;
    g.accesses.push_back(a);
    return int(g.accesses.size()) - 1;
  }
  int load(Shape strides) {
    int n = push(Kind::load, Op::add, -1);
    g.nodes.back().access = access(strides, false);
    return n;
  }
  int in() { return load(contiguous_strides(g.domain)); }
  void store(int v, Shape strides, bool streaming = true) {
    push(Kind::store, Op::add, v);
    g.nodes.back().access = access(strides, streaming);
  }
  void out(int v) { store(v, contiguous_strides(g.domain)); }
};

TileGroup layer_norm(int64_t rows, int64_t cols) {
  Build b(Form::row, {rows, cols}, 1);
  int x = b.in(), gamma = b.load({0, 1}), beta = b.load({0, 1}), scale = b.literal(1.0 / double(cols));
  int mean = b.op(Op::mul, b.reduce(Op::reduce_sum, x), scale), centred = b.op(Op::sub, x, mean);
  int var = b.op(Op::mul, b.reduce(Op::reduce_sum, b.op(Op::mul, centred, centred)), scale);
  int rstd = b.op(Op::rsqrt, b.op(Op::add, var, b.literal(1e-5)));
  b.out(b.op(Op::add, b.op(Op::mul, b.op(Op::mul, centred, rstd), gamma), beta));
  return b.g;
}

TileGroup softmax(int64_t rows, int64_t cols) {
  Build b(Form::row, {rows, cols}, 1);
  int x = b.in(), e = b.op(Op::exp, b.op(Op::sub, x, b.reduce(Op::reduce_max, x)));
  b.out(b.op(Op::div, e, b.reduce(Op::reduce_sum, e)));
  return b.g;
}

TileGroup unary(Op op, int64_t n) {
  Build b(Form::map, {n});
  b.out(b.op(op, b.in()));
  return b.g;
}

TileGroup binary(Op op, int64_t n, bool relu = false) {
  Build b(Form::map, {n});
  int x = b.in(), z = b.in(), y = b.op(op, x, z);
  b.out(relu ? b.op(Op::relu, y) : y);
  return b.g;
}

TileGroup affine(int64_t n) {
  Build b(Form::map, {n});
  int x = b.in(), scale = b.load({0}), shift = b.load({0});
  b.out(b.op(Op::add, b.op(Op::mul, x, scale), shift));
  return b.g;
}

TileGroup chain8(int64_t n) {
  Build b(Form::map, {n});
  int x = b.in(), y = b.in(), v = b.op(Op::mul, x, y);
  v = b.op(Op::add, v, x);
  v = b.op(Op::maximum, v, y);
  v = b.op(Op::sub, v, x);
  v = b.op(Op::mul, v, y);
  v = b.op(Op::minimum, v, x);
  v = b.op(Op::add, v, y);
  b.out(b.op(Op::neg, v));
  return b.g;
}

TileGroup chain(int64_t n, int length) {
  Build b(Form::map, {n});
  int x = b.in(), y = x;
  for (int k = 0; k < length; ++k) y = k % 2 ? b.op(Op::mul, y, b.literal(0.5)) : b.op(Op::add, y, x);
  b.out(y);
  return b.g;
}

TileGroup sum(int64_t n) {
  Build b(Form::row, {n}, 1);
  b.store(b.reduce(Op::reduce_sum, b.in()), {0}, false);
  return b.g;
}

TileGroup column_sum(int64_t rows, int64_t cols) {
  Build b(Form::column, {rows, cols}, 1);
  b.store(b.reduce(Op::reduce_sum, b.in()), {0, 1}, false);
  return b.g;
}

TileGroup transpose(int64_t rows, int64_t cols) {
  Build b(Form::map, {rows, cols});
  b.out(b.load({1, rows}));
  return b.g;
}

// The ceilings: plain loops in units of 128 KiB.
struct Stream {
  enum Kind { copy, triad, read } kind;
  const float *a, *b;
  float* out;
  bool streaming;
  mutable std::atomic<float> sink{0};
};

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void stream_units(const void* args, int64_t begin, int64_t end, Worker&) {
  const Stream& s = *static_cast<const Stream*>(args);
  constexpr int64_t kUnit = 131072;
  __m512 t0 = _mm512_setzero_ps(), t1 = t0, t2 = t0, t3 = t0;
  for (int64_t i = begin * kUnit; i < end * kUnit; i += 64) {
    __m512 v0 = _mm512_load_ps(s.a + i), v1 = _mm512_load_ps(s.a + i + 16), v2 = _mm512_load_ps(s.a + i + 32), v3 = _mm512_load_ps(s.a + i + 48);
    if (s.kind == Stream::read) {
      t0 = _mm512_add_ps(t0, v0), t1 = _mm512_add_ps(t1, v1), t2 = _mm512_add_ps(t2, v2), t3 = _mm512_add_ps(t3, v3);
      continue;
    }
    if (s.kind == Stream::triad) {
      v0 = _mm512_add_ps(v0, _mm512_load_ps(s.b + i)), v1 = _mm512_add_ps(v1, _mm512_load_ps(s.b + i + 16));
      v2 = _mm512_add_ps(v2, _mm512_load_ps(s.b + i + 32)), v3 = _mm512_add_ps(v3, _mm512_load_ps(s.b + i + 48));
    }
    if (s.streaming) {
      _mm512_stream_ps(s.out + i, v0), _mm512_stream_ps(s.out + i + 16, v1), _mm512_stream_ps(s.out + i + 32, v2), _mm512_stream_ps(s.out + i + 48, v3);
    } else {
      _mm512_store_ps(s.out + i, v0), _mm512_store_ps(s.out + i + 16, v1), _mm512_store_ps(s.out + i + 32, v2), _mm512_store_ps(s.out + i + 48, v3);
    }
  }
  float last[16];
  _mm512_storeu_ps(last, _mm512_add_ps(_mm512_add_ps(t0, t1), _mm512_add_ps(t2, t3)));
  if (s.kind == Stream::read) s.sink = last[0];
}
#endif
void plain_units(const void* args, int64_t begin, int64_t end, Worker&) {
  const Stream& s = *static_cast<const Stream*>(args);
  constexpr int64_t kUnit = 131072;
  float t = 0;
  for (int64_t i = begin * kUnit; i < end * kUnit; ++i) {
    if (s.kind == Stream::read)
      t += s.a[i];
    else
      s.out[i] = s.kind == Stream::triad ? s.a[i] + s.b[i] : s.a[i];
  }
  s.sink = t;
}

auto stream_function() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return stream_units;
#endif
  return plain_units;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

struct Row {
  std::string name;
  std::vector<Task> tasks;
  double bytes = 0;
  std::string ceiling;
  std::vector<double> seconds;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  one_thread = argc > 3;
  if (one_thread) kLarge = int64_t(1) << 24;
  TeamOptions options;
  if (one_thread) options.threads = 1;
  ThreadTeam team(options);
  std::vector<std::byte*> bases;
  for (int i = 0; i < 3; ++i) bases.push_back(map_pages(kLarge * 4));
  bases.push_back(map_pages(1 << 20));
  bases.push_back(map_pages(1 << 24));
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Row> rows;
  int64_t scratch = 0;

  auto ceiling = [&](const char* name, Stream::Kind kind, bool streaming, double bytes) {
    auto s = std::unique_ptr<Stream>(
        new Stream{kind, reinterpret_cast<float*>(bases[0]), reinterpret_cast<float*>(bases[1]), reinterpret_cast<float*>(bases[2]), streaming, {}});
    Task t;
    t.run = stream_function(), t.args = s.get(), t.units = kLarge / 131072, t.unit_ns = 1e5;
    streams.push_back(std::move(s));
    rows.push_back({name, {t}, bytes, "", {}});
  };
  auto add = [&](const std::string& name, const TileGroup& g, double bytes, const char* against, std::vector<int> where) {
    if (name.find(filter) == std::string::npos) return;
    kernels.push_back(make_tile_kernel({&g, 1}));
    std::vector<Ref> refs;
    for (int w : where) refs.push_back({w, 0});
    Row row{name, {}, bytes, against, {}};
    kernels.back()->bind(refs, {4, 0}, row.tasks);
    scratch = std::max(scratch, kernels.back()->scratch_bytes());
    rows.push_back(row);
  };

  const double n = double(kLarge) * 4;
  ceiling("copy stream", Stream::copy, true, 2 * n);
  ceiling("copy plain", Stream::copy, false, 2 * n);
  ceiling("triad stream", Stream::triad, true, 3 * n);
  ceiling("triad plain", Stream::triad, false, 3 * n);
  ceiling("read", Stream::read, true, n);
  add("add", binary(Op::add, kLarge), 3 * n, "triad", {0, 1, 2});
  add("mul", binary(Op::mul, kLarge), 3 * n, "triad", {0, 1, 2});
  add("add_relu", binary(Op::add, kLarge, true), 3 * n, "triad", {0, 1, 2});
  add("chain8", chain8(kLarge), 3 * n, "triad", {0, 1, 2});
  add("affine", affine(kLarge), 2 * n, "copy", {0, 3, 3, 2});
  add("gelu_tanh", unary(Op::gelu_tanh, kLarge), 2 * n, "copy", {0, 2});
  add("gelu_erf", unary(Op::gelu_erf, kLarge), 2 * n, "copy", {0, 2});
  add("exp", unary(Op::exp, kLarge), 2 * n, "copy", {0, 2});
  add("tanh", unary(Op::tanh, kLarge), 2 * n, "copy", {0, 2});
  add("silu", unary(Op::silu, kLarge), 2 * n, "copy", {0, 2});
  add("sum", sum(kLarge), n, "read", {0, 3});
  const int64_t row_count = kLarge / 1024;
  const double rows_bytes = double(row_count) * 768 * 4;
  add("layer_norm", layer_norm(row_count, 768), 2 * rows_bytes, "copy", {0, 3, 3, 2});
  add("softmax", softmax(row_count, 768), 2 * rows_bytes, "copy", {0, 2});
  add("softmax50257", softmax(kLarge / 65536, 50257), 2.0 * double(kLarge / 65536) * 50257 * 4, "copy", {0, 2});
  add("column_sum", column_sum(row_count, 768), rows_bytes, "read", {0, 3});
  add("transpose", transpose(kLarge / 8192, 8192), 2 * n, "copy", {0, 2});
  const size_t large = rows.size();
  team.reserve_scratch(std::max<int64_t>(scratch, 64));
  Fault fault;
  for (int r = 0; r < rounds; ++r) {
    for (size_t k = 0; k < large; ++k) {
      double start = now();
      team.run(rows[k].tasks, bases.data(), fault);
      rows[k].seconds.push_back(now() - start);
    }
  }
  auto rate = [&](const Row& row) { return row.bytes / median(row.seconds) * 1e-9; };
  double copy = 0, triad = 0, read = 0;
  for (size_t k = 0; k < large; ++k) {
    if (rows[k].name.starts_with("copy")) copy = std::max(copy, rate(rows[k]));
    if (rows[k].name.starts_with("triad")) triad = std::max(triad, rate(rows[k]));
    if (rows[k].name == "read") read = rate(rows[k]);
  }
  for (size_t k = 0; k < large; ++k) {
    const Row& row = rows[k];
    double top = row.ceiling == "copy" ? copy : row.ceiling == "triad" ? triad : read;
    std::printf("%-14s %8.2f ms %7.2f GB/s", row.name.c_str(), median(row.seconds) * 1e3, rate(row));
    if (!row.ceiling.empty()) std::printf("  %.3f of %s", rate(row) / top, row.ceiling.c_str());
    std::printf("\n");
  }

  // Small groups, called directly: the overhead of a kernel.
  std::vector<std::byte> room(1 << 20);
  Worker worker;
  worker.bases = bases.data(), worker.fault = &fault;
  worker.scratch = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
  auto small = [&](const char* name, const TileGroup& g, std::vector<int> where, int ops) {
    if (std::string(name).find(filter) == std::string::npos) return;
    auto kernel = make_tile_kernel({&g, 1});
    std::vector<Ref> refs;
    for (int w : where) refs.push_back({w, 0});
    std::vector<Task> tasks;
    kernel->bind(refs, {4, 0}, tasks);
    std::vector<double> times;
    const int reps = std::max(1, 2000 / ops);
    for (int r = 0; r < 15; ++r) {
      double start = now();
      for (int i = 0; i < reps; ++i)
        for (const Task& t : tasks) t.run(t.args, 0, t.units, worker);
      times.push_back((now() - start) / reps);
    }
    std::printf("%-22s %9.1f ns, %.2f ns an op (said %.0f)\n", name, median(times) * 1e9, median(times) * 1e9 / ops, tasks[0].unit_ns * double(tasks[0].units));
  };
  small("small add 64", binary(Op::add, 64), {0, 1, 2}, 1);
  small("small exp 64", unary(Op::exp, 64), {0, 2}, 1);
  small("small softmax 4x64", softmax(4, 64), {0, 2}, 1);
  small("small layer_norm 4x64", layer_norm(4, 64), {0, 3, 3, 2}, 1);
  small("small softmax 16x768", softmax(16, 768), {0, 2}, 1);
  small("small layer_norm 16x768", layer_norm(16, 768), {0, 3, 3, 2}, 1);
  small("small column 64x64", column_sum(64, 64), {0, 3}, 1);
  small("small chain 1000x64", chain(64, 1000), {0, 2}, 1000);
  small("small add 4096", binary(Op::add, 4096), {0, 1, 2}, 1);
  small("small add 32768", binary(Op::add, 32768), {0, 1, 2}, 1);
  small("small chain8 32768", chain8(32768), {0, 1, 2}, 8);
  small("small gelu 4096", unary(Op::gelu_tanh, 4096), {0, 2}, 1);
  small("small exp 4096", unary(Op::exp, 4096), {0, 2}, 1);
  small("small tanh 4096", unary(Op::tanh, 4096), {0, 2}, 1);
  return 0;
}
