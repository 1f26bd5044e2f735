#include "measure/ceilings.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <span>
#include <utility>

#include "base/error.h"
#include "machine/caches.h"
#include "measure/ceiling_kernels.h"
#include "runtime/buffer_pool.h"
#include "threads/thread_team.h"

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

constexpr int64_t kUnitFloats = 4096;
static_assert(kUnitFloats % kMoveGrain == 0);

struct Variant {
  Movement movement;
  Walk walk;
  bool streaming;
  int64_t ahead;
  float *to, *a, *b;

  void move(int64_t at, int64_t count, int64_t passes = 1) const {
    const CeilingKernels& kernels = ceiling_kernels();
    const MoveShape shape{count, ahead};
    switch (movement) {
      case Movement::copy:
        for (int64_t i = 0; i < passes; ++i) kernels.copy[int(walk)][streaming](to + at, a + at, shape);
        break;
      case Movement::triad:
        for (int64_t i = 0; i < passes; ++i) kernels.triad[int(walk)][streaming](to + at, a + at, b + at, shape);
        break;
      case Movement::read: {
        volatile float sink = kernels.read[int(walk)](a + at, shape, passes);
        (void)sink;
      }
    }
  }

  static void run(const void* args, int64_t begin, int64_t end, cpu::Worker&) {
    static_cast<const Variant*>(args)->move(begin * kUnitFloats, (end - begin) * kUnitFloats);
  }

  std::string name() const {
    constexpr const char* kWalkNames[kWalks] = {"1 stream", "2 streams", "4 streams", "tiles"};
    std::string text = kWalkNames[int(walk)];
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
  const FmaKernel* kernel = &ceiling_kernels().fma.front();
  int64_t iterations = 1;
  static void run(const void* args, int64_t begin, int64_t end, cpu::Worker&) {
    const auto& task = *static_cast<const FmaTask*>(args);
    for (int64_t i = begin; i < end; ++i) {
      volatile float sink = task.kernel->run(task.iterations);
      (void)sink;
    }
  }
};

// A calibrated task of a given length: many short units per thread, so that an interrupted thread loses little and the others take over.
struct FmaWork {
  FmaTask work;
  cpu::Task task;
  double flops = 0;

  FmaWork(const FmaKernel& kernel, int threads, double us) {
    constexpr int64_t kUnitsPerThread = 32;
    work.kernel = &kernel;
    work.iterations = 64;
    const double unit_us = us / double(kUnitsPerThread);
    double best = 1e30;
    for (int i = 0; i < 20; ++i) {
      const auto start = Clock::now();
      cpu::Worker worker;
      FmaTask::run(&work, 0, 1, worker);
      best = std::min(best, 1e6 * seconds_since(start));
      if (best < 5) work.iterations *= 2, best = 1e30;  // long enough for the clock's resolution
    }
    work.iterations = std::max<int64_t>(1, int64_t(double(work.iterations) * unit_us / best));
    task = {FmaTask::run, &work, kUnitsPerThread * threads, 1000 * unit_us};
    flops = double(task.units) * double(work.iterations) * kernel.flops;
  }
  FmaWork(const FmaWork&) = delete;  // the task points to this object

  double gflops(ThreadTeam& team) { return flops / run_seconds(team, task) * 1e-9; }
};

// Every thread traverses its own arrays this many times.
struct CacheTask {
  const Variant* variant;
  int64_t count;   // floats of one array
  int64_t stride;  // floats between the arrays of neighbouring threads
  int64_t passes;
  static void run(const void* args, int64_t begin, int64_t end, cpu::Worker&) {
    const auto& task = *static_cast<const CacheTask*>(args);
    for (int64_t unit = begin; unit < end; ++unit) task.variant->move(unit * task.stride, task.count, task.passes);
  }
};

// One unit per thread, and none ends before all have begun, so that each thread takes exactly one. A thread that does not show up (if there are fewer
// processors) is waited for at most a millisecond.
struct MeetTask {
  mutable std::atomic<int64_t> arrived{0};
  int64_t threads;
  static void run(const void* args, int64_t begin, int64_t end, cpu::Worker&) {
    const auto& task = *static_cast<const MeetTask*>(args);
    // The count only grows: a round ends at a multiple of the number of threads.
    const int64_t target = (task.arrived.fetch_add(end - begin) / task.threads + 1) * task.threads;
    for (Clock::time_point start = {}; task.arrived.load(std::memory_order_acquire) < target;) {
      for (int spin = 0; spin < 64 && task.arrived.load(std::memory_order_acquire) < target; ++spin) {
      }
      if (start == Clock::time_point{}) start = Clock::now();
      if (seconds_since(start) > 1e-3) return;
    }
  }
};

// The variants worth trying. Within a cache, streaming stores and prefetching only add cost.
std::vector<Variant> variants_of(Movement movement, float* const* base, bool cached) {
  const int arrays = arrays_of(movement);
  std::vector<Variant> variants;
  for (Walk walk : {Walk::one, Walk::two, Walk::four, Walk::tiles})
    for (bool streaming : {true, false})
      for (int64_t ahead : {0, 1024}) {
        if (cached && (streaming || ahead || walk == Walk::tiles)) continue;
        if (movement == Movement::read && (streaming || walk == Walk::tiles)) continue;
        variants.push_back({movement, walk, streaming, ahead, base[arrays - 1], base[0], base[std::min(1, arrays - 1)]});
      }
  return variants;
}

// Bytes per array, for this many arrays. A virtual machine may see one slice of a cache of which its host lets it use two, and pages are scattered, so the
// arrays together are at least eight times as large as the cache.
int64_t far_beyond_cache(int arrays) { return std::max(4 * last_level_cache_bytes(), 8 * last_level_cache_bytes() / arrays); }

}  // namespace

struct FmaWindow::State {
  ThreadTeam& team;
  FmaWork work;
};

FmaWindow::FmaWindow(ThreadTeam& team, double us, DType dtype) {
  if (!(us > 0)) fail(ErrorCode::value, "[fma_window] a window of {} microseconds", us);
  // The last variant is the fastest: native instructions come after conversions.
  const std::vector<FmaKernel>& kernels = ceiling_kernels().fma;
  const auto kernel = std::find_if(kernels.rbegin(), kernels.rend(), [&](const FmaKernel& k) { return k.dtype == dtype; });
  if (kernel == kernels.rend()) fail(ErrorCode::dtype, "[fma_window] no kernel multiplies {}; use f32", name(dtype));
  state_.reset(new State{team, {*kernel, team.size(), us}});  // NOLINT(modernize-make-unique): it cannot be moved
}

FmaWindow::~FmaWindow() = default;

double FmaWindow::gflops() { return state_->work.gflops(state_->team); }

Measured measure_fma(ThreadTeam& team, double seconds, DType dtype) {
  Measured best;
  std::vector<const FmaKernel*> kernels;
  for (const FmaKernel& kernel : ceiling_kernels().fma)
    if (kernel.dtype == dtype) kernels.push_back(&kernel);
  for (const FmaKernel* kernel : kernels) {
    FmaWork work(*kernel, team.size(), 500);
    std::vector<double> samples;
    const auto start = Clock::now();
    while (samples.size() < 5 || seconds_since(start) < seconds / double(kernels.size())) samples.push_back(work.gflops(team));
    if (Measured m = summarize(std::move(samples)); m.median > best.median) best = m, best.variant = kernel->way;
  }
  return best;
}

std::string_view name(Movement movement) { return movement == Movement::copy ? "copy" : movement == Movement::triad ? "triad" : "read"; }

int arrays_of(Movement movement) { return movement == Movement::copy ? 2 : movement == Movement::triad ? 3 : 1; }

int64_t array_bytes_of(Movement movement, int64_t working_set) {
  const int arrays = arrays_of(movement);
  return std::clamp<int64_t>(working_set / arrays, kUnitFloats * int64_t(sizeof(float)), far_beyond_cache(arrays));
}

struct BandwidthWindow::State {
  explicit State(ThreadTeam& t) : team(t) {}

  // A variant's recent results, as a fraction of the best at the same moment.
  struct Ranked {
    Variant variant;
    double score = 0;
  };

  ThreadTeam& team;
  BufferPool own_pool;
  std::vector<BufferPool::Buffer> memory;
  int64_t units = 1;  // per try
  int64_t parts = 1;  // of the arrays; each try takes the next part, so the data it reads was last used a whole round of tries ago
  int64_t turn = 0;
  double bytes = 0;  // moved per try
  std::vector<Ranked> ranked;
  size_t next = 0;  // next to be retried
  Measured measured;

  double rate(const Variant& v) {
    const int64_t at = turn++ % parts * units * kUnitFloats;
    Variant part = v;
    part.to += at, part.a += at, part.b += at;
    return bytes / run_seconds(team, {Variant::run, &part, units, 1500}) * 1e-9;
  }

  // A single thread is slow over arrays far larger than a big machine's cache, so it traverses one part at a time.
  void split(double seconds) {
    constexpr int64_t kProbed = 16, kMaxParts = 32;
    if (units < 2 * kMaxParts) return;
    const double tries = 2 * double(ranked.size()) + 9;  // two rounds, and a few checks
    const int64_t all = units;
    const double all_bytes = bytes;
    units = all / kProbed, bytes = all_bytes * double(units) / double(all), parts = kProbed;
    const double best = std::max(rate(ranked[0].variant), rate(ranked[0].variant));
    const double expected = tries * all_bytes / best * 1e-9;
    parts = expected < 2 * seconds ? 1 : std::clamp(int64_t(expected / (1.5 * seconds)) + 1, int64_t(1), kMaxParts);
    units = all / parts, bytes = all_bytes * double(units) / double(all);
  }

  // Tries each variant in `tries` once; returns the best rate.
  double compare(std::span<const size_t> tries) {
    std::array<double, 2 * 2 * kWalks> rates;  // one per variant
    double best = 0;
    for (size_t i = 0; i < tries.size(); ++i) best = std::max(best, rates[i] = rate(ranked[tries[i]].variant));
    constexpr double kMemory = 0.7;
    for (size_t i = 0; i < tries.size(); ++i) {
      double& score = ranked[tries[i]].score;
      score = score == 0 ? rates[i] / best : kMemory * score + (1 - kMemory) * rates[i] / best;
    }
    return best;
  }

  double measure_once() {
    size_t first = 0, second = 0;
    for (size_t v = 1; v < ranked.size(); ++v) {
      if (ranked[v].score > ranked[first].score)
        second = first, first = v;
      else if (second == first || ranked[v].score > ranked[second].score)
        second = v;
    }
    do next = (next + 1) % ranked.size();
    while (next == first || next == second);
    const size_t tries[] = {first, second, next};
    return compare(tries);
  }
};

BandwidthWindow::BandwidthWindow(ThreadTeam& team, Movement movement, double seconds, int64_t bytes, BufferPool* pool) : state_(std::make_unique<State>(team)) {
  State& s = *state_;
  const int arrays = arrays_of(movement);
  if (bytes == 0) bytes = far_beyond_cache(arrays);
  const int64_t unit_bytes = kUnitFloats * int64_t(sizeof(float));
  s.units = std::max<int64_t>(1, bytes / unit_bytes);
  s.bytes = double(arrays) * double(s.units * unit_bytes);

  // Arrays with the same alignment would collide in the same cache sets, so each begins a few pages and lines further on.
  constexpr int64_t kSkew = 3 * 4096 + 5 * 64;
  float* base[3] = {};
  for (int i = 0; i < arrays; ++i) {
    s.memory.push_back((pool ? *pool : s.own_pool).acquire(s.units * unit_bytes + 3 * kSkew + 4096));
    base[i] = reinterpret_cast<float*>(s.memory.back().data() + i * kSkew);
  }
  const Touch touch{base, arrays};  // each thread touches its own share
  run_seconds(team, {Touch::run, &touch, s.units, 5000});

  const auto start = Clock::now();
  for (const Variant& v : variants_of(movement, base, false)) s.ranked.push_back({v});
  s.split(seconds);
  rank();
  std::vector<double> samples;
  for (int round = 0; round < 3 || seconds_since(start) < seconds; ++round) samples.push_back(s.measure_once());
  s.measured = summarize(std::move(samples));
  s.measured.variant = variant();
}

BandwidthWindow::~BandwidthWindow() = default;
double BandwidthWindow::gbs() { return state_->measure_once(); }

void BandwidthWindow::rank() {
  std::vector<size_t> every;
  for (State::Ranked& r : state_->ranked) r.score = 0, every.push_back(every.size());
  for (int round = 0; round < 2; ++round) state_->compare(every);
}

const Measured& BandwidthWindow::measured() const { return state_->measured; }

std::string BandwidthWindow::variant() const {
  return std::max_element(state_->ranked.begin(), state_->ranked.end(), [](const auto& a, const auto& b) { return a.score < b.score; })->variant.name();
}

Measured measure_bandwidth(ThreadTeam& team, Movement movement, double seconds, int64_t bytes) {
  return BandwidthWindow(team, movement, seconds, bytes).measured();
}

Measured measure_cache(ThreadTeam& team, Movement movement, int64_t bytes_per_thread, double seconds) {
  const int arrays = arrays_of(movement);
  const int64_t element = int64_t(sizeof(float)), grain = kMoveGrain * element;
  const int64_t bytes = std::max(grain, bytes_per_thread / arrays / grain * grain);  // per array
  // Half a page apart, so that loads do not falsely alias preceding stores. Threads stay off each other's pages.
  constexpr int64_t kSkew = 2048 + 64, kPage = 4096;
  const int64_t stride = (arrays * (bytes + kSkew) + 2 * kPage) / kPage * kPage;
  BufferPool pool;
  BufferPool::Buffer memory = pool.acquire(stride * team.size(), BufferPool::Fill::zero);
  float* base[3] = {};
  for (int i = 0; i < arrays; ++i) base[i] = reinterpret_cast<float*>(memory.data() + i * (bytes + kSkew));

  struct Candidate {
    Variant variant;
    CacheTask task;
    std::vector<double> samples = {};
  };
  constexpr double kSampleSeconds = 150e-6;
  std::vector<Candidate> candidates;
  for (const Variant& v : variants_of(movement, base, true)) candidates.push_back({v, {nullptr, bytes / element, stride / element, 1}});
  auto sample = [&](Candidate& c) {
    c.task.variant = &c.variant;
    return run_seconds(team, {CacheTask::run, &c.task, team.size(), 1e9 * kSampleSeconds});
  };
  for (Candidate& c : candidates)
    for (double t = 0; (t = sample(c)) < kSampleSeconds && c.task.passes < 1 << 24;)
      c.task.passes = std::max(c.task.passes + 1, int64_t(double(c.task.passes) * std::min(8.0, 1.3 * kSampleSeconds / t)));
  const double moved = double(arrays) * double(bytes) * team.size();
  const auto start = Clock::now();
  for (int round = 0; round < 5 || seconds_since(start) < seconds; ++round)
    for (Candidate& c : candidates) c.samples.push_back(moved * double(c.task.passes) / sample(c) * 1e-9);
  Measured best;
  for (Candidate& c : candidates)
    if (Measured m = summarize(std::move(c.samples)); m.median > best.median) best = m, best.variant = c.variant.name();
  return best;
}

Measured measure_fork_join(ThreadTeam& team, double seconds) {
  MeetTask meet{.threads = team.size()};
  const cpu::Task task{MeetTask::run, &meet, team.size(), 1e6};  // declared long, so that it is shared
  std::vector<double> samples;
  for (int i = 0; i < 20; ++i) run_seconds(team, task);  // wakes all threads
  const auto start = Clock::now();
  while (samples.size() < 50 || (samples.size() < 20000 && seconds_since(start) < seconds)) samples.push_back(1e6 * run_seconds(team, task));
  return summarize(std::move(samples));
}

}  // namespace ridge
