#include "data/prefetch.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/mapped_memory.h"

namespace ridge {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t samples_at_a_time(const BatchSource& source, const Prefetcher::Options& options) {
  const int64_t all = source.types()[0].shape[0];
  return options.part > 0 ? std::min(options.part, all) : all;
}

// Bytes of one of the batch's tensors, for as many samples as are made at a time.
int64_t tensor_bytes(const BatchSource& source, const Prefetcher::Options& options, const Type& type) {
  return aligned(options.part > 0 ? type.bytes() / type.shape[0] * samples_at_a_time(source, options) : type.bytes());
}

// The one in use, plus those ahead of it.
int slots_of(const Prefetcher::Options& options) { return options.threaded ? 1 + std::max(options.depth, 1) : 1; }

// Signals must go to the program's own threads.
std::thread start_without_signals(const std::function<void()>& work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::optional<std::thread> thread;
  std::exception_ptr failed;
  try {
    thread.emplace(work);
  } catch (...) {
    failed = std::current_exception();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed) std::rethrow_exception(failed);
  return std::move(*thread);
}

}  // namespace

struct Prefetcher::State {
  struct Slot {
    int64_t number = 0, first = 0;
    std::vector<std::byte*> tensors;
    std::vector<const void*> read;  // the same, for the reader
    std::exception_ptr error;
  };

  State(const BatchSource& s, Options o) : source(s), options(std::move(o)), next_number(options.first) {
    if (options.part > 0 && !source.has_parts()) fail(ErrorCode::usage, "[data] this source can only make whole batches");
    std::sort(options.left_out.begin(), options.left_out.end());
    memory_bytes = bytes_for(source, options);
    memory = map_memory(memory_bytes);
    std::byte* at = memory;
    slots.resize(size_t(slots_of(options)));
    for (Slot& slot : slots)
      for (const Type& type : source.types()) {
        slot.tensors.push_back(at);
        slot.read.push_back(at);
        at += tensor_bytes(source, options, type);
      }
  }

  ~State() {
    if (worker.joinable()) {
      {
        const std::lock_guard lock(mutex);
        stop = true;
      }
      changed.notify_all();
      worker.join();
    }
    unmap_memory(memory, memory_bytes);
  }

  void make(Slot& slot) {
    while (std::binary_search(options.left_out.begin(), options.left_out.end(), next_number)) ++next_number;
    slot.number = next_number, slot.first = next_first;
    slot.error = nullptr;
    const int64_t all_samples = source.types()[0].shape[0], count = std::min(samples_at_a_time(source, options), all_samples - slot.first);
    next_first += count;
    if (next_first == all_samples) ++next_number, next_first = 0;
    try {
      if (const int64_t all = source.batches(); all >= 0 && slot.number >= all)
        fail(ErrorCode::value, "[data] batch {} was requested, but there are {}", slot.number, all);
      if (options.part > 0)
        source.fill_part(slot.number, slot.first, count, slot.tensors);
      else
        source.fill(slot.number, slot.tensors);
    } catch (...) {
      next_number = slot.number + 1, next_first = 0;
      slot.error = std::current_exception();
    }
  }

  void work() {
    for (std::unique_lock lock(mutex);;) {
      changed.wait(lock, [&] { return stop || made - released < int64_t(slots.size()); });
      if (stop) return;
      Slot& slot = slots[size_t(made % int64_t(slots.size()))];
      lock.unlock();
      make(slot);
      lock.lock();
      ++made;
      changed.notify_all();
    }
  }

  const BatchSource& source;
  Options options;
  int64_t next_number, next_first = 0;  // used by the thread that makes batches
  std::byte* memory = nullptr;
  int64_t memory_bytes = 0;
  std::vector<Slot> slots;  // a ring

  std::mutex mutex;
  std::condition_variable changed;
  int64_t made = 0, taken = 0, released = 0;  // batches so far
  bool stop = false;
  double waited = 0;
  std::thread worker;
};

Prefetcher::Prefetcher(const BatchSource& source, Options options) : state_(std::make_unique<State>(source, std::move(options))) {
  if (state_->options.threaded) state_->worker = start_without_signals([state = state_.get()] { state->work(); });
}

Prefetcher::~Prefetcher() = default;

Prefetcher::Batch Prefetcher::next() {
  State& s = *state_;
  const auto begin = std::chrono::steady_clock::now();
  if (s.options.threaded) {
    std::unique_lock lock(s.mutex);
    s.released = s.taken;  // the one that was in use
    s.changed.notify_all();
    s.changed.wait(lock, [&] { return s.made > s.taken; });
  } else {
    s.make(s.slots[0]);
  }
  State::Slot& slot = s.slots[size_t(s.taken++ % int64_t(s.slots.size()))];
  s.waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (slot.error) std::rethrow_exception(std::exchange(slot.error, nullptr));
  return {slot.number, slot.first, slot.read};
}

bool Prefetcher::wait(double seconds) {
  State& s = *state_;
  if (!s.options.threaded) return true;
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(s.mutex);
  const bool ready = s.changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return s.made > s.taken; });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  s.waited += took.count();
  return ready;
}

double Prefetcher::waited_seconds() const { return state_->waited; }
int64_t Prefetcher::bytes() const { return state_->memory_bytes; }
int64_t Prefetcher::bytes_for(const BatchSource& source, const Options& options) {
  int64_t bytes = 0;
  for (const Type& type : source.types()) bytes += tensor_bytes(source, options, type);
  return bytes * slots_of(options);
}

}  // namespace ridge
