#include "runtime/thread_team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/error.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;

// Sharing a task moves about six cache lines between cores: 0.35 µs on two quiet neighbours, up to 1 µs elsewhere. Two
// threads save half of the task's time at best, so sharing pays above twice that cost.
constexpr double kSharedNs = 2000;
// No chunk is cut finer than this: claiming one costs up to 0.1 µs when its counter was last written by another core.
constexpr double kChunkNs = 1000;
// Waking a parked thread costs the leader a few µs and comes to effect tens of µs later, so it waits until this much
// shared work has gone by without help.
constexpr double kWakeNs = 20000;
// With more threads than processors an idle thread takes time from a working one.
constexpr double kCrowdedSpinUs = 50;
// Spins of the leader before it offers its processor to whoever holds the last units back; about 50 µs.
constexpr int kLeaderSpins = 1500;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Flushes denormals on this thread for its lifetime.
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

struct FreeAligned {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t(4096)); }
};
using Scratch = std::unique_ptr<std::byte[], FreeAligned>;

}  // namespace

// A shared task is cut into grains (some units each) and the grains into one part per thread, the same in every run,
// so caches stay warm. A part is a counter of grains not yet claimed; its owner takes half of what is left again and
// again, and a thread that is done with its own part helps the others in the same way. A claim succeeds only while
// the task has unfinished grains, and the leader does not go on before all are finished, so whoever holds a claim may
// read the task without a lock. A thread that comes late or never is not waited for.
struct ThreadTeam::State {
  struct alignas(128) Member {  // two lines: processors fetch neighbours in pairs
    std::atomic<int64_t> left{0};
    Scratch scratch;
  };

  std::vector<Member> members;
  std::vector<std::thread> threads;
  int64_t scratch_bytes = 0;
  double spin_us = 0;
  bool crowded = false;

  // The shared task at hand: written by the leader before the parts are filled.
  const cpu::Task* task = nullptr;
  std::byte* const* bases = nullptr;
  cpu::Fault* fault = nullptr;
  int64_t grain = 1, grains = 0, parts = 1;
  double unhelped_ns = 0;
  std::exception_ptr error;

  alignas(128) std::atomic<int> round{0};  // goes up with every shared task; idle threads watch it
  std::atomic<bool> stop{false};
  alignas(128) std::atomic<int64_t> unfinished{0};
  std::atomic<bool> failed{false};
  alignas(128) std::atomic<int> parked{0};
  std::atomic<bool> busy{false};

  explicit State(int size) : members(size) {}

  // The first grain of a part; the longer parts come first.
  int64_t part_begin(int64_t part) const { return grains / parts * part + std::min(part, grains % parts); }

  // Runs one chunk of a part; returns its number of grains, 0 when the part is used up.
  int64_t run_chunk(int part, int id) {
    std::atomic<int64_t>& left = members[part].left;
    int64_t have = left.load(std::memory_order_relaxed), take;
    do {
      if (have == 0) return 0;
      take = (have + 1) / 2;
    } while (!left.compare_exchange_weak(have, have - take, std::memory_order_acq_rel, std::memory_order_relaxed));
    if (!failed.load(std::memory_order_relaxed)) {
      int64_t begin = (part_begin(part + 1) - have) * grain, end = std::min(begin + take * grain, task->units);
      cpu::Worker worker{id, bases, members[id].scratch.get(), fault};
      try {
        task->run(task->args, begin, end, worker);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
    }
    return take;
  }

  void help(int id) {
    const int size = int(members.size());
    int64_t done = 0;
    for (int i = 0; i < size; ++i) {
      int part = id + i < size ? id + i : id + i - size;
      while (int64_t n = run_chunk(part, id)) done += n;
    }
    if (done) unfinished.fetch_sub(done, std::memory_order_acq_rel);
  }

  // The leader's side of one shared task.
  void share(const cpu::Task& t, double ns) {
    task = &t;
    grain = std::max<int64_t>(1, int64_t(std::min(kChunkNs / t.unit_ns, double(t.units))));
    grains = t.units / grain + (t.units % grain != 0);
    parts = std::min<int64_t>(int64_t(members.size()), grains);
    unfinished.store(grains, std::memory_order_relaxed);
    for (int64_t p = 0; p < parts; ++p) members[p].left.store(part_begin(p + 1) - part_begin(p), std::memory_order_release);
    round.fetch_add(1);
    if (parked.load() > 0) {
      unhelped_ns += ns;
      if (unhelped_ns >= kWakeNs) {
        unhelped_ns = 0;
        round.notify_all();
      }
    }
    help(0);
    for (int spins = 0; unfinished.load(std::memory_order_acquire) != 0; ++spins) {
      if (crowded || spins > kLeaderSpins)
        std::this_thread::yield();
      else
        relax();
    }
    if (failed.load(std::memory_order_relaxed)) {
      failed.store(false, std::memory_order_relaxed);
      std::rethrow_exception(std::exchange(error, nullptr));
    }
  }

  // Returns when `round` is no longer `seen`.
  void await_round(int seen) {
    const auto limit = std::chrono::duration<double, std::micro>(crowded ? std::min(spin_us, kCrowdedSpinUs) : spin_us);
    const auto start = Clock::now();
    do {
      for (int i = 0; i < 64; ++i) {
        if (round.load(std::memory_order_acquire) != seen) return;
        relax();
      }
      if (crowded) std::this_thread::yield();
    } while (Clock::now() - start < limit);
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
      help(id);
    }
  }

  void finish() {
    stop.store(true, std::memory_order_release);
    round.fetch_add(1);
    round.notify_all();
    for (std::thread& t : threads) t.join();
  }

  // Marks the team as busy for its lifetime.
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

namespace {

#if defined(__linux__)
// The processors that this thread may run on.
std::vector<int> allowed_cpus() {
  for (int size = 1024; size <= 1 << 20; size *= 2) {
    cpu_set_t* set = CPU_ALLOC(size);
    if (!set) break;
    size_t bytes = CPU_ALLOC_SIZE(size);
    std::vector<int> cpus;
    bool ok = sched_getaffinity(0, bytes, set) == 0;  // fails while the set is smaller than the kernel's
    for (int c = 0; ok && c < size; ++c)
      if (CPU_ISSET_S(c, bytes, set)) cpus.push_back(c);
    CPU_FREE(set);
    if (ok) return cpus;
  }
  return {};
}

void pin_to(std::thread& thread, int cpu) {
  cpu_set_t* set = CPU_ALLOC(cpu + 1);
  if (!set) return;
  size_t bytes = CPU_ALLOC_SIZE(cpu + 1);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(cpu, bytes, set);
  pthread_setaffinity_np(thread.native_handle(), bytes, set);  // pinning is a wish: without it the team is only slower
  CPU_FREE(set);
}

// The processors that a quota of one control group amounts to; 0 when it sets none.
double quota_of(const std::string& folder, bool v2) {
  double quota = 0, period = 0;
  if (v2) {
    std::ifstream file(folder + "/cpu.max");
    std::string first;
    if (!(file >> first >> period) || first == "max") return 0;
    quota = std::strtod(first.c_str(), nullptr);
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

// The tightest quota between this process's control group and the root; inside a container the group's own path is often not
// visible and the mount point stands for it.
double cgroup_quota() {
  double tightest = 0;
  auto consider = [&](double q) {
    if (q > 0 && (tightest == 0 || q < tightest)) tightest = q;
  };
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // hierarchy:controllers:path
    size_t a = line.find(':'), b = a == std::string::npos ? a : line.find(':', a + 1);
    if (b == std::string::npos) continue;
    std::string controllers = line.substr(a + 1, b - a - 1), path = line.substr(b + 1);
    bool v2 = controllers.empty(), cpu = v2;
    for (size_t i = 0, j; i <= controllers.size() && !cpu; i = j + 1) {
      j = std::min(controllers.find(',', i), controllers.size());
      cpu = controllers.substr(i, j - i) == "cpu";
    }
    if (!cpu) continue;
    for (const std::string& root : v2 ? std::vector<std::string>{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}
                                      : std::vector<std::string>{"/sys/fs/cgroup/" + controllers, "/sys/fs/cgroup/cpu"}) {
      for (std::string p = path == "/" ? "" : path;; p.resize(p.rfind('/'))) {
        consider(quota_of(root + p, v2));
        if (p.empty() || p.rfind('/') == std::string::npos) break;
      }
    }
  }
  return tightest;
}
#endif

}  // namespace

int usable_cpus() {
#if defined(__linux__)
  int cpus = int(allowed_cpus().size());
  if (cpus == 0) cpus = int(std::thread::hardware_concurrency());
  if (double quota = cgroup_quota(); quota > 0) cpus = int(std::min(double(cpus), std::ceil(quota - 1e-9)));
#else
  int cpus = int(std::thread::hardware_concurrency());
#endif
  return std::max(cpus, 1);
}

ThreadTeam::ThreadTeam(const TeamOptions& options) {
  constexpr int kMostThreads = 4096;
  if (options.threads < 0 || options.threads > kMostThreads)
    fail(ErrorCode::value, "[thread_team] {} threads asked for; give 1 to {}, or 0 for all usable processors", options.threads, kMostThreads);
  const int cpus = usable_cpus();
  const int size = options.threads ? options.threads : cpus;
  state_ = std::make_unique<State>(size);
  state_->spin_us = options.spin_us;
  state_->crowded = size > cpus;
  state_->threads.reserve(size - 1);
  try {
    for (int i = 1; i < size; ++i) state_->threads.emplace_back([state = state_.get(), i] { state->work(i); });
  } catch (const std::system_error& e) {
    const size_t started = state_->threads.size();
    state_->finish();
    fail(ErrorCode::memory, "[thread_team] the system gave {} of {} threads ({}); ask for fewer", started + 1, size, e.what());
  }
#if defined(__linux__)
  // The caller is not ours to pin; its first processor is left to it.
  if (std::vector<int> allowed = allowed_cpus(); options.pin && size <= int(allowed.size()))
    for (int i = 1; i < size; ++i) pin_to(state_->threads[i - 1], allowed[i]);
#endif
}

ThreadTeam::~ThreadTeam() { state_->finish(); }

int ThreadTeam::size() const { return int(state_->members.size()); }
int64_t ThreadTeam::scratch_bytes() const { return state_->scratch_bytes; }

void ThreadTeam::reserve_scratch(int64_t bytes_per_thread) {
  State::Entry entry(*state_, "reserve_scratch");
  if (bytes_per_thread <= state_->scratch_bytes) return;
  // Whole pages, so that no two threads ever share a line.
  const int64_t bytes = (bytes_per_thread + 4095) / 4096 * 4096;
  for (State::Member& m : state_->members) m.scratch.reset();
  state_->scratch_bytes = 0;
  for (State::Member& m : state_->members) {
    auto* p = static_cast<std::byte*>(::operator new[](size_t(bytes), std::align_val_t(4096), std::nothrow));
    if (!p) fail(ErrorCode::memory, "[thread_team] no memory for {} bytes of scratch for each of {} threads; use fewer threads", bytes, size());
    std::memset(p, 0, size_t(bytes));
    m.scratch.reset(p);
  }
  state_->scratch_bytes = bytes;
}

void ThreadTeam::run(std::span<const cpu::Task> program, std::byte* const* bases, cpu::Fault& fault) {
  State& s = *state_;
  State::Entry entry(s, "run");
  FlushDenormals flush;
  s.bases = bases;
  s.fault = &fault;
  const bool alone = s.members.size() == 1;
  cpu::Worker leader{0, bases, s.members[0].scratch.get(), &fault};
  for (const cpu::Task& t : program) {
    const double ns = double(t.units) * t.unit_ns;
    if (alone || !(ns >= kSharedNs) || t.units < 2) {
      if (t.units > 0) t.run(t.args, 0, t.units, leader);
    } else {
      s.share(t, ns);
    }
  }
}

}  // namespace ridge
