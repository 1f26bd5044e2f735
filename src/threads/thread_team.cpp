#include "threads/thread_team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/error.h"
#include "base/mapped_memory.h"
#include "machine/affinity.h"
#include "machine/limits.h"
#include "threads/work_split.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;

// Sharing a task moves about six cache lines between cores: 0.35 µs on two quiet neighbours, up to 1 µs elsewhere. Two
// threads save half of the task's time at best, so sharing pays above twice that cost.
constexpr double kSharedNs = 2000;
// Waking a parked thread costs the leader a few µs and takes effect tens of µs later, so the leader first waits until this much shared work has passed without
// help.
constexpr double kWakeNs = 20000;
// On shared processors an idle thread takes time from a working one, so it yields repeatedly, then parks.
constexpr double kPassiveSpinUs = 50;
// An idle team costs nothing after 10 ms, whatever was requested.
constexpr double kLongestSpinUs = 8000;
// How often the leader spins before it yields its processor to the thread that still holds the last units; about 50 µs.
constexpr int kLeaderSpins = 1500;
// How often a passive leader yields before it sleeps.
constexpr int kLeaderOffers = 100;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// A clock that takes a few nanoseconds to read. Its rate is found by comparison with the system's clock.
inline int64_t ticks() {
#if defined(__x86_64__)
  return int64_t(__rdtsc());
#elif defined(__aarch64__)
  uint64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return int64_t(count);
#else
  return Clock::now().time_since_epoch().count();
#endif
}

struct alignas(128) KernelTicks {
  std::atomic<int64_t> sum{0};  // written by one thread
  void add_since(int64_t start) { sum.store(sum.load(std::memory_order_relaxed) + ticks() - start, std::memory_order_relaxed); }
};

// Flushes denormals on this thread while it exists.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(control()) { set_control(saved_ | kFlush); }
  ~FlushDenormals() { set_control(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  using Word = unsigned;
  static constexpr Word kFlush = 0x8040;  // FTZ | DAZ
  static Word control() { return _mm_getcsr(); }
  static void set_control(Word w) { _mm_setcsr(w); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kFlush = uint64_t(1) << 24;  // FZ
  static Word control() {
    Word w;
    asm volatile("mrs %0, fpcr" : "=r"(w));
    return w;
  }
  static void set_control(Word w) { asm volatile("msr fpcr, %0" ::"r"(w)); }
#else
  using Word = int;
  static constexpr Word kFlush = 0;
  static Word control() { return 0; }
  static void set_control(Word) {}
#endif
  Word saved_;
};

// Separate pages: no two threads share a cache line, and the system's count matches the plan, whatever the heap retains.
struct Unmap {
  int64_t bytes = 0;
  void operator()(std::byte* p) const { unmap_memory(p, bytes); }
};
using Scratch = std::unique_ptr<std::byte[], Unmap>;

}  // namespace

// A shared task is divided into grains (several units each), and these into one part per thread, the same in every run so that caches stay warm; see WorkSplit.
// A claim succeeds only while the task has unfinished grains, and the leader does not continue until all are finished, so a thread that holds a claim may read
// the task without a lock. A thread that arrives late or never is not waited for.
struct ThreadTeam::State {
  // The current shared task, written by the leader before the parts are filled. The split ends with the fields it writes for each task, so that a helper
  // fetches one cache line for both.
  alignas(128) WorkSplit split;
  const cpu::Task* task = nullptr;
  std::byte* const* bases = nullptr;
  cpu::Fault* fault = nullptr;

  alignas(128) std::vector<Scratch> scratch;  // one per thread
  std::vector<std::thread> threads;
  int64_t scratch_bytes = 0;
  std::chrono::duration<double, std::micro> spin{0};
  bool passive = false;
  int spare = 0;  // threads beyond the number of processors: this many may stay asleep, since waking them does not help
  std::exception_ptr error;

  alignas(128) std::atomic<int> round{0};  // incremented by every shared task; idle threads watch it
  std::atomic<bool> stop{false};
  alignas(128) std::atomic<int64_t> unfinished{0};
  std::atomic<bool> failed{false};
  std::atomic<int> used;  // threads that take part; the others wait for it to change
  alignas(128) std::atomic<int> parked{0};
  std::atomic<bool> busy{false};
  double alone_ns = 0;

  std::vector<KernelTicks> kernels;  // one per thread
  const int64_t first_tick = ticks();
  const Clock::time_point first_time = Clock::now();

  explicit State(std::span<const double> speeds) : split(speeds), scratch(speeds.size()), used(int(speeds.size())), kernels(speeds.size()) {}

  void run_chunk(const WorkSplit::Chunk& chunk, int id) {
    if (failed.load(std::memory_order_relaxed)) return;
    cpu::Worker worker{id, bases, scratch[size_t(id)].get(), fault};
    try {
      task->run(task->args, chunk.begin, chunk.end, worker);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  }

  // Runs everything that can be claimed of one part; returns the number of grains.
  int64_t run_part(int id, int distance) {
    WorkSplit::Chunk chunk = split.claim(id, distance);
    if (!chunk) return 0;
    const int64_t start = ticks();
    int64_t done = 0;
    do {
      run_chunk(chunk, id);
      done += chunk.grains;
    } while ((chunk = split.claim(id, distance)));
    kernels[size_t(id)].add_since(start);
    return done;
  }

  void report(int id, int64_t done) {
    if (done && unfinished.fetch_sub(done, std::memory_order_acq_rel) == done && passive && id != 0) unfinished.notify_one();
  }

  void help(int id) {
    report(id, run_part(id, 0));
    // Scanning all parts is slow in a large team, and the leader can skip it when nothing is left to do.
    int64_t done = 0;
    for (int distance = 1; distance < split.size(); ++distance) {
      if (id == 0 && done == 0 && unfinished.load(std::memory_order_acquire) == 0) return;
      done += run_part(id, distance);
    }
    report(id, done);
  }

  // The leader's side of one shared task.
  void share(const cpu::Task& t, double ns) {
    task = &t;
    unfinished.store(split.cut(t.units, t.unit_ns), std::memory_order_relaxed);
    split.deal();
    round.fetch_add(1);
    if (const int missing = parked.load() - spare; missing > 0) {
      alone_ns += ns;
      if (alone_ns >= kWakeNs) {
        alone_ns = 0;
        wake(missing);
      }
    }
    help(0);
    await_finish();
    if (failed.load(std::memory_order_relaxed)) {
      failed.store(false, std::memory_order_relaxed);
      std::rethrow_exception(std::exchange(error, nullptr));
    }
  }

  void wake(int count) {
    if (spare == 0) return round.notify_all();
    for (int i = 0; i < count; ++i) round.notify_one();
  }

  void await_finish() {
    for (int spins = 0;; ++spins) {
      const int64_t rest = unfinished.load(std::memory_order_acquire);
      if (rest == 0) return;
      if (!passive && spins <= kLeaderSpins)
        relax();
      else if (!passive || spins <= kLeaderOffers)
        std::this_thread::yield();
      else
        unfinished.wait(rest);
    }
  }

  // Returns when `round` differs from `seen`.
  void await_round(int seen) {
    const auto start = Clock::now();
    do {
      for (int i = 0; i < 64; ++i) {
        if (round.load(std::memory_order_acquire) != seen) return;
        relax();
      }
      if (passive) std::this_thread::yield();
    } while (Clock::now() - start < spin);
    parked.fetch_add(1);
    round.wait(seen);
    parked.fetch_sub(1);
  }

  void work(int id) {
    FlushDenormals flush;
    for (int seen = 0;;) {
      await_round(seen);
      seen = round.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      if (const int now = used.load(std::memory_order_acquire); id < now)
        help(id);
      else if (!stop.load(std::memory_order_acquire))  // finish() sets it before it changes `used`
        used.wait(now);
    }
  }

  void finish() {
    stop.store(true, std::memory_order_release);
    round.fetch_add(1);
    used.store(0, std::memory_order_release), used.notify_all();
    round.notify_all();
    for (std::thread& t : threads) t.join();
  }

  // Marks the team as busy while it exists.
  class Entry {
   public:
    Entry(State& state, const char* call) : state_(state) {
      if (state_.busy.exchange(true, std::memory_order_acquire))
        fail(ErrorCode::usage, "[thread_team] {} while a program of this team is running; call it after run has returned, from one thread at a time", call);
    }
    ~Entry() { state_.busy.store(false, std::memory_order_release); }
    Entry(const Entry&) = delete;

   private:
    State& state_;
  };
};

int usable_cpus() { return read_limits().threads(); }

ThreadTeam::ThreadTeam(const TeamOptions& options) {
  constexpr int kMaxThreads = 4096;
  if (options.threads < 0 || options.threads > kMaxThreads)
    fail(ErrorCode::value, "[thread_team] {} threads requested; use 1 to {}, or 0 for all usable processors", options.threads, kMaxThreads);
  const int usable = usable_cpus();
  const int size = options.threads ? options.threads : options.cpus.empty() ? usable : int(options.cpus.size());
  for (int cpu : options.cpus)
    if (cpu < 0) fail(ErrorCode::value, "[thread_team] cpu {} requested; processors are numbered from 0", cpu);
  for (size_t given : {options.cpus.size(), options.speeds.size()})
    if (given && given != size_t(size))
      fail(ErrorCode::value, "[thread_team] {} threads, but {} cpus or speeds; give one for each thread, or none", size, given);
  state_ = std::make_unique<State>(options.speeds.empty() ? std::vector<double>(size_t(size), 1.0) : options.speeds);
  state_->passive = options.wait == Wait::passive || (options.wait == Wait::automatic && size > usable);
  state_->spin = std::chrono::duration<double, std::micro>(std::min(options.spin_us, state_->passive ? kPassiveSpinUs : kLongestSpinUs));
  state_->spare = std::max(0, size - usable);
  state_->threads.reserve(size - 1);
  try {
    for (int i = 1; i < size; ++i) state_->threads.emplace_back([state = state_.get(), i] { state->work(i); });
  } catch (const std::system_error& e) {
    const size_t started = state_->threads.size();
    state_->finish();
    fail(ErrorCode::memory, "[thread_team] the system started only {} of {} threads ({}); use fewer", started + 1, size, e.what());
  }
  // Pinning is best-effort: without it the team is only slower.
  if (!options.cpus.empty())
    for (int i = 1; i < size; ++i) pin_thread(state_->threads[size_t(i - 1)].native_handle(), options.cpus[size_t(i)]);
}

ThreadTeam::~ThreadTeam() { state_->finish(); }

int ThreadTeam::size() const { return state_->split.size(); }
Wait ThreadTeam::wait() const { return state_->passive ? Wait::passive : Wait::active; }
int64_t ThreadTeam::scratch_bytes() const { return state_->scratch_bytes; }

void ThreadTeam::kernel_seconds(std::span<double> by_thread) const {
  const double passed = std::chrono::duration<double>(Clock::now() - state_->first_time).count();
  const double tick = passed / double(std::max<int64_t>(ticks() - state_->first_tick, 1));
  for (size_t i = 0; i < by_thread.size(); ++i) by_thread[i] = tick * double(state_->kernels[i].sum.load(std::memory_order_relaxed));
}

double ThreadTeam::kernel_seconds() const {
  std::vector<double> all(state_->kernels.size());
  kernel_seconds(all);
  return std::accumulate(all.begin(), all.end(), 0.0);
}

void ThreadTeam::reserve_scratch(int64_t bytes_per_thread) {
  State::Entry entry(*state_, "reserve_scratch");
  if (bytes_per_thread <= state_->scratch_bytes) return;
  const int64_t bytes = (bytes_per_thread + 4095) / 4096 * 4096;
  for (Scratch& s : state_->scratch) s.reset();
  state_->scratch_bytes = 0;
  for (Scratch& s : state_->scratch) {
    std::byte* p = reserve_memory(bytes);
    if (!p) fail(ErrorCode::memory, "[thread_team] no memory for {} bytes of scratch for each of {} threads; use fewer threads", bytes, size());
    s = Scratch(p, {bytes});
    std::memset(p, 0, size_t(bytes));
  }
  state_->scratch_bytes = bytes;
}

void ThreadTeam::use(const Sharing& sharing) {
  State::Entry entry(*state_, "use");
  state_->split.use(sharing.threads > 0 ? sharing.threads : size(), sharing.coarseness);
  state_->used.store(state_->split.used(), std::memory_order_release);
  state_->used.notify_all();
}

void ThreadTeam::run(std::span<const cpu::Task> program, std::byte* const* bases, cpu::Fault& fault) {
  State& s = *state_;
  State::Entry entry(s, "run");
  FlushDenormals flush;
  s.bases = bases;
  s.fault = &fault;
  const bool alone = s.split.used() == 1;
  cpu::Worker leader{0, bases, s.scratch[0].get(), &fault};
  int64_t start = ticks();
  for (const cpu::Task& t : program) {
    const double ns = double(t.units) * t.unit_ns;
    if (alone || !(ns >= kSharedNs) || t.units < 2) {
      if (t.units > 0) t.run(t.args, 0, t.units, leader);
    } else {
      s.kernels[0].add_since(start);
      s.share(t, ns);
      start = ticks();
    }
  }
  s.kernels[0].add_since(start);
}

}  // namespace ridge
