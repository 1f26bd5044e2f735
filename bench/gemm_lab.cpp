// The matmul laboratory: shapes and blocking variants against the FMA ceiling measured just before and after each timing.
//
//   bench_gemm_lab                            the standard shapes
//   bench_gemm_lab shape=768x384x128-nt,64x64x64 threads=1 reps=15
//   bench_gemm_lab sweep=depth shape=1024x1024x1024
//   bench_gemm_lab type=bf16 out=f32          bf16 factors, and the result (bf16 too unless given)
//   bench_gemm_lab rival=openblas             the same rows from libopenblas, loaded by name
//
// Prints one JSON object per line. roof: median over repetitions of speed / mean of the two neighbouring FMA windows; best: fastest repetition / fastest
// window, for machines with other load.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "backend/cpu/matmul.h"
#include "backend/cpu/matmul_kernels.h"
#include "base/half.h"
#include "threads/thread_team.h"

namespace ridge::cpu {
namespace {

// A single thread is timed by its CPU time, so that other work on the machine disturbs less.
bool use_cpu_time = false;

double now_ns() {
  timespec t;
  clock_gettime(use_cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) * 1e9 + double(t.tv_nsec);
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// The ceiling: a tile kernel of twelve or more independent sums whose operands never leave L1

struct FmaWindow {
  const MatmulKernels* kernels;
  std::vector<float> a, b, c;
  int64_t depth = 64;
  double pair;  // products in a step

  FmaWindow(const MatmulKernels& k, bool pairs) : kernels(&k), a(16 * 64, 1e-3f), b(64 * 64, 1e-3f), c(16 * 64, 0.f), pair(pairs ? 2 : 1) {}

  static void run(const void* args, int64_t begin, int64_t end, Worker& worker) {
    const auto& w = *static_cast<const FmaWindow*>(args);
    const MatmulKernels& k = *w.kernels;
    TileArgs t;
    const int64_t width = k.lanes * k.tile_vectors;
    t.a = w.a.data(), t.b = w.b.data(), t.b_k = 0, t.k = w.depth * 64, t.cols = width, t.c_row = width;
    t.c = reinterpret_cast<float*>(worker.scratch);
    for (int64_t u = begin; u < end; ++u) k.strided[k.tile_rows][k.tile_vectors](t);
  }
  double flops_per_unit() const { return 2.0 * pair * double(kernels->tile_rows * kernels->lanes * kernels->tile_vectors) * double(depth * 64); }
};

struct Shape {
  int64_t m, n, k;
  std::string form;  // "", "nt", "tn"
  std::string name() const { return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + (form.empty() ? "" : "-" + form); }
};

Shape parse_shape(const std::string& text) {
  Shape s{};
  char form[8] = "";
  if (std::sscanf(text.c_str(), "%ldx%ldx%ld-%7s", &s.m, &s.n, &s.k, form) < 3) {
    std::fprintf(stderr, "shape %s is not MxNxK, MxNxK-nt or MxNxK-tn\n", text.c_str());
    std::exit(2);
  }
  s.form = form;
  return s;
}

struct Types {
  DType factors = DType::f32, result = DType::f32;
};

MatmulDesc describe(const Shape& s, Types types) {
  const bool ta = s.form == "tn", tb = s.form == "nt";
  MatmulDesc d;
  d.a_type = d.b_type = types.factors, d.c_type = types.result;
  d.m = {{s.m, ta ? 1 : s.k, 0, s.n}};
  d.n = {{s.n, 0, tb ? s.k : 1, 1}};
  d.k = {{s.k, ta ? s.m : 1, tb ? 1 : s.n, 0}};
  return d;
}

// Zero-filled, 64-byte aligned.
struct Buffer {
  std::byte* data;
  explicit Buffer(int64_t bytes) : data(static_cast<std::byte*>(std::aligned_alloc(4096, size_t((bytes + 8191) & ~int64_t(4095))))) {
    std::fill_n(data, bytes, std::byte{});
  }
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
};

void randomize(Buffer& b, int64_t n, uint32_t seed, DType type) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<float> dist(-1, 1);
  for (int64_t i = 0; i < n; ++i) {
    if (type == DType::bf16)
      reinterpret_cast<uint16_t*>(b.data)[i] = f32_to_bf16(dist(rng));
    else
      reinterpret_cast<float*>(b.data)[i] = dist(rng);
  }
}

struct Row {
  std::string name, variant;
  double us, gflops, roof, low, high, best, ceiling;
};

class Lab {
 public:
  Lab(int threads, int reps, Types types)
      : team_({.threads = threads}),
        reps_(reps),
        types_(types),
        pairs_(types.factors == DType::bf16 ? pair_kernels(isa_tier()) : nullptr),
        window_(pairs_ ? *pairs_ : matmul_kernels(isa_tier()), pairs_) {
    team_.reserve_scratch(1 << 16);
  }

  // GFLOP/s of the ceiling over about 300 µs on all threads.
  double ceiling() {
    const int64_t units = 16 * team_.size();
    Task task{FmaWindow::run, &window_, units, 3000};
    const double start = now_ns();
    std::byte* none = nullptr;
    Fault fault;
    team_.run({&task, 1}, &none, fault);
    return window_.flops_per_unit() * double(units) / (now_ns() - start);
  }

  Row measure(const Shape& s, const std::string& variant, const std::function<void()>& call) {
    const double flops = 2.0 * double(s.m) * double(s.n) * double(s.k);
    for (int i = 0; i < 3; ++i) call(), ceiling();
    const double start = now_ns();
    call();
    const int64_t loops = std::clamp<int64_t>(int64_t(1e6 / (now_ns() - start)), 1, 100000);
    std::vector<double> ratios, ns, ceilings;
    double peak = 0;
    for (int r = 0; r < reps_; ++r) {
      const double before = ceiling();
      const double t0 = now_ns();
      for (int64_t i = 0; i < loops; ++i) call();
      ns.push_back((now_ns() - t0) / double(loops));
      const double after = ceiling();
      ceilings.push_back((before + after) / 2);
      peak = std::max({peak, before, after});
      ratios.push_back(flops / ns.back() / ceilings.back());
    }
    std::vector<double> sorted = ratios;
    std::sort(sorted.begin(), sorted.end());
    return {s.name(),
            variant,
            median(ns) / 1e3,
            flops / median(ns),
            median(ratios),
            sorted[sorted.size() / 4],
            sorted[sorted.size() * 3 / 4],
            flops / *std::min_element(ns.begin(), ns.end()) / peak,
            median(ceilings)};
  }

  Row ridge(const Shape& s, const std::string& variant, const MatmulModel& model) {
    auto kernel = make_matmul_for(describe(s, types_), isa_tier(), model);
    team_.reserve_scratch(std::max<int64_t>(kernel->scratch_bytes(), 1 << 16));
    Buffer a(s.m * s.k * 4), b(s.k * s.n * 4), c(s.m * s.n * 4), workspace(kernel->workspace_bytes());
    randomize(a, s.m * s.k, 1, types_.factors), randomize(b, s.k * s.n, 2, types_.factors);
    std::byte* bases[] = {a.data, b.data, c.data, workspace.data};
    const Ref refs[] = {{0, 0}, {1, 0}, {2, 0}};
    std::vector<Task> tasks;
    kernel->bind(refs, {3, 0}, tasks);
    Fault fault;
    Row row = measure(s, variant, [&] { team_.run(tasks, bases, fault); });
    for (const Task& t : tasks) row.variant += " units=" + std::to_string(t.units) + "*" + std::to_string(int64_t(t.unit_ns)) + "ns";
    return row;
  }

  int threads() const { return team_.size(); }

 private:
  ThreadTeam team_;
  int reps_;
  Types types_;
  const MatmulKernels* pairs_;
  FmaWindow window_;
};

using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);

Row openblas(Lab& lab, const Shape& s) {
  static void* library = dlopen("libopenblas.so.0", RTLD_NOW);
  if (!library) {
    std::fprintf(stderr, "libopenblas.so.0 cannot be loaded; install libopenblas0\n");
    std::exit(1);
  }
  auto sgemm = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
  auto set_threads = reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
  set_threads(lab.threads());
  Buffer a(s.m * s.k * 4), b(s.k * s.n * 4), c(s.m * s.n * 4);
  randomize(a, s.m * s.k, 1, DType::f32), randomize(b, s.k * s.n, 2, DType::f32);
  const bool ta = s.form == "tn", tb = s.form == "nt";
  auto f = [](Buffer& x) { return reinterpret_cast<float*>(x.data); };
  return lab.measure(s, "openblas", [&] {
    sgemm(101, ta ? 112 : 111, tb ? 112 : 111, int(s.m), int(s.n), int(s.k), 1.f, f(a), int(ta ? s.m : s.k), f(b), int(tb ? s.k : s.n), 0.f, f(c), int(s.n));
  });
}

void print(const Row& r, int threads) {
  std::printf(
      "{\"suite\":\"gemm_lab\",\"name\":\"matmul/"
      "%s\",\"variant\":\"%s\",\"threads\":%d,\"median_us\":%.3f,\"gflops\":%.1f,\"roof\":%.3f,\"quartiles\":[%.3f,%.3f],\"best\":%.3f,"
      "\"ceiling\":%.1f}\n",
      r.name.c_str(), r.variant.c_str(), threads, r.us, r.gflops, r.roof, r.low, r.high, r.best, r.ceiling);
  std::fflush(stdout);
}

}  // namespace
}  // namespace ridge::cpu

int main(int argc, char** argv) {
  using namespace ridge::cpu;
  std::map<std::string, std::string> options = {{"threads", "0"}, {"reps", "21"}, {"rival", ""}, {"sweep", ""}, {"shape", ""}, {"type", "f32"}, {"out", ""}};
  for (int i = 1; i < argc; ++i) {
    std::string text = argv[i];
    const size_t eq = text.find('=');
    if (eq == std::string::npos || !options.contains(text.substr(0, eq))) {
      std::fprintf(stderr, "%s is not one of threads= reps= rival= sweep= shape= type= out=\n", argv[i]);
      return 2;
    }
    options[text.substr(0, eq)] = text.substr(eq + 1);
  }
  if (options["shape"].empty()) {
    options["shape"] =
        "512x512x512,1024x1024x1024,2048x2048x2048,"
        "768x384x128,768x512x128,768x128x512,"           // forward
        "768x128x384-nt,768x128x512-nt,768x512x128-nt,"  // dX = dY W^T
        "128x384x768-tn,128x512x768-tn,512x128x768-tn,"  // dW = X^T dY
        "64x64x64,1x64x64,1x64x64-nt,1x1024x1024,1x1024x1024-nt";
  }
  const auto type = [&](const std::string& key) { return options[key] == "bf16" ? ridge::DType::bf16 : ridge::DType::f32; };
  Lab lab(std::atoi(options["threads"].c_str()), std::atoi(options["reps"].c_str()), {type("type"), type(options["out"].empty() ? "type" : "out")});
  use_cpu_time = lab.threads() == 1;
  std::stringstream list(options["shape"]);
  for (std::string text; std::getline(list, text, ',');) {
    const Shape s = parse_shape(text);
    if (options["rival"] == "openblas") print(openblas(lab, s), lab.threads());
    if (options["sweep"] == "depth") {
      for (int64_t depth : {128, 192, 256, 384, 512, 768, 1024, 2048}) print(lab.ridge(s, "depth=" + std::to_string(depth), {.depth = depth}), lab.threads());
    } else if (options["sweep"] == "shared_bytes") {
      for (int64_t mib : {1, 2, 4, 8, 16, 32}) print(lab.ridge(s, "shared_bytes=" + std::to_string(mib), {.shared_bytes = mib << 20}), lab.threads());
    } else if (options["sweep"] == "read_ns") {
      for (double read : {0.0, 0.01, 0.02, 0.04, 0.08, 0.16}) print(lab.ridge(s, "read_ns=" + std::to_string(read), {.read_ns = read}), lab.threads());
    } else {
      print(lab.ridge(s, "ridge", {}), lab.threads());
    }
  }
}
