#include "machine/ceilings.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "machine/ceiling_kernels.h"
#include "runtime/buffer_pool.h"
#include "runtime/thread_team.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double run_seconds(ThreadTeam& team, const cpu::Task& task) {
  cpu::Fault fault;
  const auto start = Clock::now();
  team.run({&task, 1}, nullptr, fault);
  return seconds_since(start);
}

// One unit of a movement: 4096 floats, the grain that all variants divide evenly.
constexpr int64_t kUnitFloats = 4096;

// One way to move memory.
struct Variant {
  Movement movement;
  int streams;  // index: 1, 2 or 4 streams
  bool streaming;
  int64_t ahead;
  float *to, *a, *b;

  static void run(const void* args, int64_t begin, int64_t end, cpu::Worker&) {
    const auto& v = *static_cast<const Variant*>(args);
    const CeilingKernels& kernels = ceiling_kernels();
    const int64_t at = begin * kUnitFloats;
    const MoveShape shape{(end - begin) * kUnitFloats, v.ahead};
    switch (v.movement) {
      case Movement::copy: kernels.copy[v.streams][v.streaming](v.to + at, v.a + at, shape); break;
      case Movement::triad: kernels.triad[v.streams][v.streaming](v.to + at, v.a + at, v.b + at, shape); break;
      case Movement::read: {
        volatile float sink = kernels.read[v.streams](v.a + at, shape);
        (void)sink;
      }
    }
  }

  std::string name() const {
    std::string text = std::to_string(1 << streams) + (streams ? " streams" : " stream");
    if (movement != Movement::read) text += streaming ? ", streaming stores" : ", normal stores";
    return text + (ahead ? ", prefetched" : "");
  }
};

struct Touch {
  float* const* base;
  int arrays;
  static void run(const void* args, int64_t begin, int64_t end, cpu::Worker&) {
    const auto& t = *static_cast<const Touch*>(args);
    for (int i = 0; i < t.arrays; ++i) std::fill(t.base[i] + begin * kUnitFloats, t.base[i] + end * kUnitFloats, 1.0f);
  }
};

struct FmaTask {
  int64_t iterations = 1;
  static void run(const void* args, int64_t begin, int64_t end, cpu::Worker&) {
    for (int64_t i = begin; i < end; ++i) {
      volatile float sink = ceiling_kernels().fma(static_cast<const FmaTask*>(args)->iterations);
      (void)sink;
    }
  }
};

// Bytes of a cache as sysfs writes them: "32768K".
int64_t cache_size(const std::string& text) {
  char* end = nullptr;
  int64_t size = std::strtoll(text.c_str(), &end, 10);
  return size * (*end == 'K' ? 1 << 10 : *end == 'M' ? 1 << 20 : 1);
}

}  // namespace

Measured summarize(std::vector<double> samples) {
  Measured m;
  m.samples = int(samples.size());
  if (samples.empty()) return m;
  std::sort(samples.begin(), samples.end());
  auto quantile = [&](double q) {
    const double at = q * double(samples.size() - 1);
    const size_t i = size_t(at);
    return samples[i] + (at - double(i)) * (samples[std::min(i + 1, samples.size() - 1)] - samples[i]);
  };
  m.median = quantile(0.5);
  m.spread = m.median > 0 ? (quantile(0.75) - quantile(0.25)) / m.median : 0;
  return m;
}

struct FmaWindow::State {
  ThreadTeam& team;
  FmaTask work;
  cpu::Task task;
  double flops = 0;
};

FmaWindow::FmaWindow(ThreadTeam& team, double us) : state_(std::make_unique<State>(State{team, {}, {}, 0})) {
  if (!(us > 0)) fail(ErrorCode::value, "[fma_window] a window of {} microseconds", us);
  // Many short units per thread: one that is interrupted loses little, and the others take over.
  constexpr int64_t kUnitsPerThread = 32;
  FmaTask& work = state_->work;
  work.iterations = 64;
  const double unit_us = us / double(kUnitsPerThread);
  double best = 1e30;
  for (int i = 0; i < 20; ++i) {
    const auto start = Clock::now();
    cpu::Worker worker;
    FmaTask::run(&work, 0, 1, worker);
    best = std::min(best, 1e6 * seconds_since(start));
    if (best < 5) work.iterations *= 2, best = 1e30;  // long enough for the clock
  }
  work.iterations = std::max<int64_t>(1, int64_t(double(work.iterations) * unit_us / best));
  state_->task = {FmaTask::run, &work, kUnitsPerThread * team.size(), 1000 * unit_us};
  state_->flops = double(state_->task.units) * double(work.iterations) * ceiling_kernels().fma_flops;
}

FmaWindow::~FmaWindow() = default;

double FmaWindow::gflops() { return state_->flops / run_seconds(state_->team, state_->task) * 1e-9; }

Measured measure_fma(ThreadTeam& team, double seconds) {
  FmaWindow window(team, 500);
  std::vector<double> samples;
  const auto start = Clock::now();
  while (samples.size() < 5 || seconds_since(start) < seconds) samples.push_back(window.gflops());
  return summarize(samples);
}

std::string_view name(Movement movement) { return movement == Movement::copy ? "copy" : movement == Movement::triad ? "triad" : "read"; }

struct BandwidthWindow::State {
  explicit State(ThreadTeam& t) : team(t) {}

  ThreadTeam& team;
  BufferPool pool;
  std::vector<BufferPool::Buffer> memory;
  int64_t units = 1;
  double bytes = 0;  // moved by one pass
  Variant best{};
  Measured measured;

  double rate(const Variant& v) { return bytes / run_seconds(team, {Variant::run, &v, units, 1500}) * 1e-9; }
};

BandwidthWindow::BandwidthWindow(ThreadTeam& team, Movement movement, double seconds, int64_t bytes) : state_(std::make_unique<State>(team)) {
  State& s = *state_;
  if (bytes == 0) bytes = 4 * last_level_cache_bytes();
  const int64_t unit_bytes = kUnitFloats * int64_t(sizeof(float));
  s.units = std::max<int64_t>(1, bytes / unit_bytes);
  const int arrays = movement == Movement::copy ? 2 : movement == Movement::triad ? 3 : 1;
  s.bytes = double(arrays) * double(s.units * unit_bytes);

  // Arrays of the same alignment would meet in the same cache sets, so each begins some pages and lines farther.
  constexpr int64_t kSkew = 3 * 4096 + 5 * 64;
  float* base[3] = {};
  for (int i = 0; i < arrays; ++i) {
    s.memory.push_back(s.pool.acquire(s.units * unit_bytes + 3 * kSkew + 4096));
    base[i] = reinterpret_cast<float*>(s.memory.back().data() + i * kSkew);
  }
  const Touch touch{base, arrays};  // every thread its own share
  run_seconds(team, {Touch::run, &touch, s.units, 5000});

  std::vector<Variant> variants;
  for (int streams : {0, 1, 2})
    for (bool streaming : {true, false})
      for (int64_t ahead : {0, 1024})
        if (movement != Movement::read || !streaming)
          variants.push_back({movement, streams, streaming, ahead, base[arrays - 1], base[0], base[std::min(1, arrays - 1)]});

  // All get two tries, the best three the rest of the time, in turns.
  const auto start = Clock::now();
  std::vector<std::vector<double>> samples(variants.size());
  for (int round = 0; round < 2; ++round)
    for (size_t v = 0; v < variants.size(); ++v) samples[v].push_back(s.rate(variants[v]));
  std::vector<size_t> order(variants.size());
  for (size_t v = 0; v < order.size(); ++v) order[v] = v;
  auto peak = [&](size_t v) { return *std::max_element(samples[v].begin(), samples[v].end()); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return peak(a) > peak(b); });
  order.resize(3);
  for (size_t v : order) samples[v].clear();
  for (int round = 0; round < 3 || seconds_since(start) < seconds; ++round)
    for (size_t v : order) samples[v].push_back(s.rate(variants[v]));
  for (size_t v : order)
    if (Measured m = summarize(samples[v]); m.median > s.measured.median) {
      s.best = variants[v];
      s.measured = m;
      s.measured.variant = variants[v].name();
    }
}

BandwidthWindow::~BandwidthWindow() = default;
double BandwidthWindow::gbs() { return state_->rate(state_->best); }
const Measured& BandwidthWindow::measured() const { return state_->measured; }

Measured measure_bandwidth(ThreadTeam& team, Movement movement, double seconds, int64_t bytes) {
  return BandwidthWindow(team, movement, seconds, bytes).measured();
}

int64_t last_level_cache_bytes() {
  static const int64_t bytes = [] {
    int64_t largest = 0;
    for (int index = 0; index < 10; ++index) {
      std::string text;
      if (std::ifstream("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size") >> text) largest = std::max(largest, cache_size(text));
    }
    return largest ? largest : int64_t(32) << 20;
  }();
  return bytes;
}

}  // namespace ridge
