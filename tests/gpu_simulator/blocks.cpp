#include "blocks.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "checker.h"

namespace simulator {
namespace {

constexpr size_t kPage = 4096, kStack = 128 << 10;
constexpr int kWarp = 32, kMaxNamed = 16;
constexpr unsigned char kUnset = 0xff;  // contents of unwritten shared memory: NaN, or -1
constexpr unsigned char kBorder = 0xa7;

// A saved position on a stack at which the host can resume.
#if defined(__x86_64__)
struct Context {
  void* stack = nullptr;
};
extern "C" void simulator_switch(void** from, void* to);
asm(R"(
.text
.globl simulator_switch
.hidden simulator_switch
.type simulator_switch, @function
simulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simulator_switch, .-simulator_switch
)");
void go(Context& from, Context& to) { simulator_switch(&from.stack, to.stack); }
void prepare(Context& context, char* stack, void (*begin)()) {
  auto* top = reinterpret_cast<void**>(stack + kStack);
  *--top = nullptr;                         // aligns the stack as at a function's entry
  *--top = reinterpret_cast<void*>(begin);  // the return address
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context.stack = top;
}
#else
struct Context {
  ucontext_t place;
};
void go(Context& from, Context& to) { swapcontext(&from.place, &to.place); }
void prepare(Context& context, char* stack, void (*begin)()) {
  getcontext(&context.place);
  context.place.uc_stack.ss_sp = stack;
  context.place.uc_stack.ss_size = kStack;
  context.place.uc_link = nullptr;
  makecontext(&context.place, begin, 0);
}
#endif

enum class Waits { no, barrier, warp };
enum Barrier { kSync, kSyncOr, kSyncAnd, kSyncCount, kNamed, kCluster };
enum Meeting { kMeet, kShuffle, kShuffleXor, kShuffleUp, kShuffleDown, kBallot, kExchange, kMatch };

struct Fiber {
  Context context;
  char* stack = nullptr;
};

struct Request {  // from a thread that synchronizes with its warp
  unsigned mask = 0;
  int kind = 0, bytes = 0, argument = 0, width = kWarp;
  const void* mine = nullptr;
  void* result = nullptr;
  unsigned answer = 0;
};

struct Thread {
  Index at;
  int number = 0;     // in the block, or in the cluster
  unsigned rank = 0;  // of its block in the cluster
  bool live = false;
  Waits waits = Waits::no;
  int barrier = 0, barrier_kind = 0;
  unsigned answer = 0;
  Request request;
  Fiber* fiber = nullptr;
};

struct Gathering {  // at a barrier
  int kind = -1, expected = 0;
  unsigned sum = 0;
  std::vector<Thread*> waiting;
};

struct Machine {
  Context scheduler;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> idle;
  Fiber* on = nullptr;        // the running fiber
  Thread* current = nullptr;  // the thread running on it
  std::vector<Thread> threads;
  std::vector<int> order;
  size_t next = 0;  // index in the order of the first thread that has not started
  int live = 0;
  std::vector<unsigned> alive;  // per warp: lanes that have not ended, started or not
  std::vector<Thread*> ready;
  size_t ready_at = 0;
  Gathering barriers[kMaxNamed];
  const Launch* launch = nullptr;
  Index block;  // the first one of a cluster
  unsigned char* shared = nullptr;
  size_t shared_of_block = 0;
  std::string trouble;
  long long ticks = 0;
};
Machine machine;

std::string place(const Index& at) { return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ")"; }

void run_threads();

Fiber* take_fiber() {
  if (!machine.idle.empty()) {
    Fiber* fiber = machine.idle.back();
    machine.idle.pop_back();
    return fiber;
  }
  auto fiber = std::make_unique<Fiber>();
  auto* whole = static_cast<char*>(::mmap(nullptr, kPage + kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (whole == MAP_FAILED) std::abort();
  ::mprotect(whole, kPage, PROT_NONE);
  fiber->stack = whole + kPage;
  prepare(fiber->context, fiber->stack, run_threads);
  machine.fibers.push_back(std::move(fiber));
  return machine.fibers.back().get();
}

// Switches from the running fiber to the scheduler.
void leave() { go(machine.on->context, machine.scheduler); }

// Aborts the launch: waiting threads are never resumed.
[[noreturn]] void give_up(const std::string& words) {
  if (machine.trouble.empty()) {
    machine.trouble = words;
    if (machine.current) machine.trouble += " in thread " + place(machine.current->at);
    machine.trouble += " of block " + place(machine.block);
  }
  leave();
  std::abort();
}

void wake(Thread* thread) {
  thread->waits = Waits::no;
  machine.ready.push_back(thread);
}

void settle_barrier(int id) {
  Gathering& g = machine.barriers[id];
  const int expected = g.kind == kNamed ? g.expected : machine.live;
  if (g.waiting.empty() || int(g.waiting.size()) < expected) return;
  checker::barrier();
  const unsigned answer = g.kind == kSyncAnd ? g.sum == g.waiting.size() : g.sum;
  for (Thread* thread : g.waiting) thread->answer = answer, wake(thread);
  g.waiting.clear();
  g.sum = 0, g.kind = -1;
}

// The lanes that must arrive before this one's request can be answered.
unsigned expected_of(const Thread& thread) { return thread.request.mask & machine.alive[size_t(thread.number / kWarp)]; }

void answer(Thread* const* lanes, unsigned all) {
  for (int i = 0; i < kWarp; ++i) {
    if (!(all >> i & 1)) continue;
    Request& mine = lanes[i]->request;
    const unsigned bytes = unsigned(mine.bytes);
    if (mine.kind >= kShuffle && mine.kind <= kShuffleDown) {
      const int first = i & ~(mine.width - 1), within = i - first;
      int from = i;
      if (mine.kind == kShuffle) from = first + (mine.argument & (mine.width - 1));
      if (mine.kind == kShuffleXor) from = (i ^ mine.argument) < first + mine.width ? i ^ mine.argument : i;
      if (mine.kind == kShuffleUp) from = within >= mine.argument ? i - mine.argument : i;
      if (mine.kind == kShuffleDown) from = within + mine.argument < mine.width ? i + mine.argument : i;
      if (from >= 0 && from < kWarp && (all >> from & 1))
        std::memcpy(mine.result, lanes[from]->request.mine, bytes);
      else
        std::memset(mine.result, kUnset, bytes);  // a missing lane gives an undefined value
    }
    if (mine.kind == kExchange)
      for (int j = 0; j < kWarp; ++j) {
        char* to = static_cast<char*>(mine.result) + size_t(j) * bytes;
        if (all >> j & 1)
          std::memcpy(to, lanes[j]->request.mine, bytes);
        else
          std::memset(to, kUnset, bytes);
      }
    if (mine.kind == kBallot || mine.kind == kMatch) {
      mine.answer = 0;
      for (int j = 0; j < kWarp; ++j)
        if (all >> j & 1)
          mine.answer |= unsigned(mine.kind == kBallot ? lanes[j]->request.argument != 0 : std::memcmp(mine.mine, lanes[j]->request.mine, bytes) == 0) << j;
    }
  }
}

// Answers the lanes waiting together with this one, if all have arrived. False: not yet.
bool settle_warp(Thread& thread) {
  const unsigned all = expected_of(thread);
  Thread* lanes[kWarp] = {};
  const int first = thread.number & ~(kWarp - 1);
  for (int i = 0; i < kWarp; ++i) {
    if (!(all >> i & 1)) continue;
    lanes[i] = &machine.threads[size_t(first + i)];
    if (lanes[i]->waits != Waits::warp) return false;
  }
  for (int i = 0; i < kWarp; ++i)
    if (lanes[i]) {
      const Request &a = thread.request, &b = lanes[i]->request;
      if (a.mask != b.mask || a.kind != b.kind || a.bytes != b.bytes || a.width != b.width) {
        char words[200];
        std::snprintf(words, sizeof words, "threads of a warp meet with different operations or masks (%08x and %08x)", a.mask, b.mask);
        give_up(words);
      }
    }
  answer(lanes, all);
  if (all == machine.alive[size_t(thread.number / kWarp)]) checker::meet(thread.number / kWarp);
  for (int i = 0; i < kWarp; ++i)
    if (lanes[i] && lanes[i] != machine.current) wake(lanes[i]);
  return true;
}

void go_on(Thread& thread) {
  const ModuleTable& module = *machine.launch->module;
  machine.current = &thread;
  *module.thread = thread.at, *module.block = machine.block;
  module.block->x += thread.rank;
  *module.shared_memory = machine.shared + thread.rank * machine.shared_of_block;
}

void begin_thread(Thread& thread) {
  thread.fiber = machine.on;
  go_on(thread);
}

void end_thread(Thread& thread) {
  thread.live = false;
  --machine.live;
  const int warp = thread.number / kWarp;
  machine.alive[size_t(warp)] &= ~(1u << (thread.number % kWarp));
  machine.current = nullptr;
  if (machine.live == 0) return;
  settle_barrier(0);
  if (!machine.alive[size_t(warp)]) return;
  // Lanes waiting for this one continue without it.
  for (int i = 0; i < kWarp; ++i)
    if (machine.alive[size_t(warp)] >> i & 1)
      if (Thread& other = machine.threads[size_t(warp * kWarp + i)]; other.waits == Waits::warp && (other.request.mask >> (thread.number % kWarp) & 1))
        settle_warp(other);
}

// A fiber runs unstarted threads, one after another, until one waits or none is left.
void run_threads() {
  for (;;) {
    while (machine.next < machine.order.size()) {
      Thread& thread = machine.threads[size_t(machine.order[machine.next++])];
      begin_thread(thread);
      machine.launch->entry->call(machine.launch->entry->function, machine.launch->args);
      end_thread(thread);
      if (machine.ready_at < machine.ready.size()) break;  // threads that can continue come first
    }
    machine.idle.push_back(machine.on);
    leave();
  }
}

void wait_here(Waits waits) {
  Thread& thread = *machine.current;
  thread.waits = waits;
  machine.current = nullptr;
  leave();
  go_on(thread);
}

unsigned barrier(int kind, int id, int threads, unsigned value) {
  ++machine.ticks;
  if (id < 0 || id >= kMaxNamed) give_up("a barrier's number is " + std::to_string(id));
  if (kind == kNamed && (threads <= 0 || threads % kWarp != 0)) give_up("a named barrier waits for " + std::to_string(threads) + " threads");
  if ((kind == kCluster) != (machine.launch->entry->cluster > 1)) give_up("a cluster's threads meet at a block's barrier, or a block's at a cluster's");
  Thread& thread = *machine.current;
  Gathering& g = machine.barriers[id];
  if (g.waiting.empty()) g.kind = kind, g.expected = threads, g.sum = 0;
  if (g.kind != kind || g.expected != threads) give_up("threads meet at different barriers");
  g.sum += value;
  g.waiting.push_back(&thread);
  settle_barrier(id);
  if (!g.waiting.empty()) {
    thread.barrier = id, thread.barrier_kind = kind;
    wait_here(Waits::barrier);
    return thread.answer;
  }
  // This was the last one: all of them are ready now.
  machine.ready.pop_back();
  thread.waits = Waits::no;
  return thread.answer;
}

unsigned warp(unsigned mask, int kind, const void* mine, void* result, int bytes, int argument, int width) {
  ++machine.ticks;
  Thread& thread = *machine.current;
  const int lane = thread.number % kWarp;
  if (!(mask >> lane & 1)) give_up("a thread meets its warp with a mask that does not name it");
  if (width < 1 || width > kWarp || (width & (width - 1))) give_up("a shuffle's width is " + std::to_string(width));
  thread.request = {mask, kind, bytes, argument, width, mine, result, 0};
  thread.waits = Waits::warp;
  if (settle_warp(thread))
    thread.waits = Waits::no;
  else
    wait_here(Waits::warp);
  return thread.request.answer;
}

void fail(const char* words) { give_up(words); }
int lane() { return machine.current->number % kWarp; }
unsigned active() { return machine.alive[size_t(machine.current->number / kWarp)]; }
long long clock() { return ++machine.ticks; }
unsigned cluster_rank() { return machine.current->rank; }
void* cluster_address(void* at, unsigned rank) {
  if (rank >= unsigned(machine.launch->entry->cluster)) give_up("a cluster has no block " + std::to_string(rank));
  return static_cast<unsigned char*>(at) + (std::ptrdiff_t(rank) - std::ptrdiff_t(machine.current->rank)) * std::ptrdiff_t(machine.shared_of_block);
}
void touch(const void* at, int bytes, int write) {
  if (!machine.current) return;
  if (const std::string race = checker::touch(at, bytes, write != 0, machine.current->number); !race.empty()) give_up(race);
}

// Describes which threads wait where, in a deadlock.
std::string deadlock() {
  int at_barrier = 0, in_warp = 0;
  const Thread *first = nullptr, *other = nullptr;
  for (const Thread& thread : machine.threads) {
    if (!thread.live) continue;
    if (thread.waits == Waits::barrier) ++at_barrier, first = first ? first : &thread;
    if (thread.waits == Waits::warp) ++in_warp, other = other ? other : &thread;
  }
  std::string words =
      "threads wait for each other in vain: of " + std::to_string(machine.live) + " that have not ended, " + std::to_string(at_barrier) + " are at a barrier";
  if (first) words += " (as thread " + place(first->at) + ")";
  words += ", " + std::to_string(in_warp) + " wait for their warp";
  if (other) words += " (as thread " + place(other->at) + ")";
  return words + " of block " + place(machine.block);
}

void* bad_address = nullptr;
[[noreturn]] void end_at_bad_address() {
  char words[100];
  std::snprintf(words, sizeof words, "an access to address %p, outside of all memory,", bad_address);
  give_up(words);
}

void on_bad_address(int number, siginfo_t* info, void* context) {
  if (!machine.on) return void(std::signal(number, SIG_DFL));  // not from a kernel
  bad_address = info->si_addr;
#if defined(__x86_64__)
  // After the handler returns, the kernel resumes in code that ends it.
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  registers[REG_RSP] = ((registers[REG_RSP] - 512) & ~15ll) - 8;  // as after a call
  registers[REG_RIP] = reinterpret_cast<greg_t>(&end_at_bad_address);
#else
  (void)context;
  end_at_bad_address();
#endif
}

class CatchBadAddresses {
 public:
  CatchBadAddresses() {
    struct sigaction action = {};
    action.sa_sigaction = on_bad_address;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigaction(SIGSEGV, &action, &segv_);
    ::sigaction(SIGBUS, &action, &bus_);
  }
  ~CatchBadAddresses() { ::sigaction(SIGSEGV, &segv_, nullptr), ::sigaction(SIGBUS, &bus_, nullptr); }

 private:
  struct sigaction segv_, bus_;
};

// The order in which threads and blocks start: a correct kernel gives the same result in any order.
void arrange(std::vector<int>& order, int count) {
  order.resize(size_t(count));
  std::iota(order.begin(), order.end(), 0);
  const char* text = std::getenv("SIMULATED_GPU_ORDER");
  if (!text) return;
  if (std::strcmp(text, "backward") == 0) std::reverse(order.begin(), order.end());
  if (std::strncmp(text, "random", 6) == 0) std::shuffle(order.begin(), order.end(), std::minstd_rand(unsigned(std::atoi(text + 6) + 1)));
}

void run_block() {
  const int count = int(machine.threads.size());
  machine.next = 0, machine.live = count;
  for (int i = 0; i < count; ++i) machine.threads[size_t(i)].live = true, machine.threads[size_t(i)].waits = Waits::no;
  for (size_t i = 0; i < machine.alive.size(); ++i) machine.alive[i] = count - int(i) * kWarp >= kWarp ? ~0u : (1u << (count % kWarp)) - 1;
  machine.ready.clear(), machine.ready_at = 0;
  while (machine.trouble.empty()) {
    if (machine.ready_at < machine.ready.size()) {
      Thread* thread = machine.ready[machine.ready_at++];
      if (machine.ready_at == machine.ready.size()) machine.ready.clear(), machine.ready_at = 0;
      machine.on = thread->fiber;
    } else if (machine.next < machine.order.size()) {
      machine.on = take_fiber();
    } else if (machine.live > 0) {
      machine.trouble = deadlock();
      break;
    } else {
      break;
    }
    go(machine.scheduler, machine.on->context);
    machine.on = nullptr;
  }
}

}  // namespace

Hooks hooks() { return {barrier, warp, fail, lane, active, clock, touch, cluster_rank, cluster_address}; }

std::string run(const Launch& launch) {
  const ModuleTable& module = *launch.module;
  const unsigned cluster = unsigned(std::max(launch.entry->cluster, 1)), each = launch.threads.x * launch.threads.y * launch.threads.z;
  const int count = int(each * cluster);
  machine.launch = &launch;
  machine.trouble.clear();
  machine.threads.assign(size_t(count), {});
  for (int i = 0; i < count; ++i) {
    const unsigned n = unsigned(i) % each, x = launch.threads.x, y = launch.threads.y;
    machine.threads[size_t(i)].at = {n % x, n / x % y, n / (x * y)};
    machine.threads[size_t(i)].number = i, machine.threads[size_t(i)].rank = unsigned(i) / each;
  }
  machine.alive.assign(size_t((count + kWarp - 1) / kWarp), 0);
  arrange(machine.order, count);

  // Shared memory ends at a page boundary, so that accesses past its end are caught.
  constexpr size_t kBefore = 256;
  machine.shared_of_block = (launch.shared + 127) / 128 * 128;
  const size_t bytes = (cluster - 1) * machine.shared_of_block + launch.shared, pages = (kBefore + bytes + kPage - 1) / kPage * kPage;
  auto* whole = static_cast<unsigned char*>(::mmap(nullptr, pages + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (whole == MAP_FAILED) return "no memory for the block's shared memory";
  ::mprotect(whole + pages, kPage, PROT_NONE);
  unsigned char* shared = machine.shared = whole + (pages - bytes) / 128 * 128;
  std::memset(whole, kBorder, pages);
  checker::begin_launch(shared, bytes, module.shared_begin, size_t(module.shared_end - module.shared_begin));
  *module.threads = launch.threads;
  *module.blocks = launch.blocks;
  {
    const CatchBadAddresses guard;
    const uint64_t blocks = uint64_t(launch.blocks.x) * launch.blocks.y * launch.blocks.z / cluster;
    const char* order = std::getenv("SIMULATED_GPU_ORDER");
    const bool backward = order && std::strcmp(order, "backward") == 0;
    for (uint64_t i = 0; i < blocks && machine.trouble.empty(); ++i) {
      const uint64_t n = (backward ? blocks - 1 - i : i) * cluster, x = launch.blocks.x, y = launch.blocks.y;
      machine.block = {unsigned(n % x), unsigned(n / x % y), unsigned(n / (x * y))};
      checker::begin_block(n);
      std::memset(shared, kUnset, bytes);
      std::memset(module.shared_begin, kUnset, size_t(module.shared_end - module.shared_begin));
      run_block();
      if (const std::string race = checker::last_write(); !race.empty() && machine.trouble.empty()) machine.trouble = race;
    }
  }
  auto untouched = [](const unsigned char* from, const unsigned char* to) { return std::all_of(from, to, [](unsigned char byte) { return byte == kBorder; }); };
  if (machine.trouble.empty() && (!untouched(whole, shared) || !untouched(shared + bytes, whole + pages)))
    machine.trouble = "a write beside the " + std::to_string(bytes) + " bytes of shared memory";
  ::munmap(whole, pages + kPage);
  if (!machine.trouble.empty()) {
    // Reset the fibers that still wait.
    machine.idle.clear();
    for (Gathering& g : machine.barriers) g = {};
    for (auto& fiber : machine.fibers) prepare(fiber->context, fiber->stack, run_threads), machine.idle.push_back(fiber.get());
  }
  machine.on = nullptr, machine.current = nullptr;
  return machine.trouble.empty() ? std::string() : "kernel " + launch.name + ": " + machine.trouble;
}

}  // namespace simulator
