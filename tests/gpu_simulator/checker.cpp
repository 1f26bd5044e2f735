#include "checker.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <unordered_map>
#include <vector>

#include "memory.h"

namespace simulator::checker {
namespace {

constexpr size_t kPage = 4096;
constexpr int kWarp = 32, kMaxWarps = 512, kMaxRanks = 16;  // of a cluster

struct Access {
  uint64_t time = 0;  // the epoch; epochs of a launch are above its first
  uint32_t block = 0, meeting = 0;
  int32_t thread = -1;
  uint32_t rank = 0, turn = 0;  // its block in the cluster, and that block's barriers so far
};
struct Seen {  // for one byte
  Access write, reads[2];
};

struct Range {
  uint64_t begin = 0;
  size_t bytes = 0;
  bool has(uint64_t at) const { return at - begin < bytes; }
};

Range shared, fixed;
std::vector<Seen> shared_seen, fixed_seen;
std::unordered_map<uint64_t, std::vector<Seen>> pages;  // of device memory
uint64_t epoch = 1, launch_epoch = 1;
uint32_t block_number = 0, meetings[kMaxWarps] = {}, turns[kMaxRanks] = {};

int level() {
  const char* text = std::getenv("SIMULATED_GPU_CHECK");
  return text ? std::atoi(text) : 0;
}

// A byte that a thread is about to write and another thread has written: a race unless the value is the same.
struct Doubtful {
  const unsigned char* at;
  unsigned char value;
  std::string words;
};
std::vector<Doubtful> doubtful;

// Whether an access of the same launch is not ordered before this one.
bool races(const Access& a, const Access& mine, bool in_shared) {
  if (a.time < launch_epoch || a.thread < 0) return false;
  if (a.block != mine.block) return !in_shared;  // blocks run in any order
  if (a.thread == mine.thread || a.time != mine.time || (a.rank == mine.rank && a.turn != mine.turn)) return false;
  return a.thread / kWarp != mine.thread / kWarp || a.meeting == mine.meeting;
}

std::string words(const char* what, const Access& a, const Access& mine, bool in_shared, uint64_t offset) {
  auto who = [](const Access& x) { return "thread " + std::to_string(x.thread) + " of block " + std::to_string(x.block); };
  return "a race in " + std::string(in_shared ? "shared" : "the device's") + " memory at byte " + std::to_string(offset) + ": " + who(mine) + " " + what + " " +
         who(a) + ", with no barrier between them,";
}

}  // namespace

bool wanted() { return level() > 0; }

void begin_launch(const void* shared_at, size_t shared_bytes, const void* fixed_at, size_t fixed_bytes) {
  shared = {reinterpret_cast<uint64_t>(shared_at), shared_bytes}, fixed = {reinterpret_cast<uint64_t>(fixed_at), fixed_bytes};
  shared_seen.resize(std::max(shared_seen.size(), shared_bytes)), fixed_seen.resize(std::max(fixed_seen.size(), fixed_bytes));
  launch_epoch = ++epoch;
  constexpr size_t kMaxPages = 4096;
  if (pages.size() > kMaxPages) pages.clear();
}

void begin_block(uint64_t block) {
  block_number = uint32_t(block);
  ++epoch;
}

void barrier() { ++epoch; }
void barrier_of(unsigned rank) { ++turns[rank]; }
void meet(int warp) { ++meetings[warp]; }

std::string last_write() {
  std::string found;
  for (const Doubtful& d : doubtful)
    if (*d.at != d.value && found.empty()) found = d.words;
  doubtful.clear();
  return found;
}

std::string touch(const void* at, int bytes, bool write, int thread, unsigned rank) {
  if (std::string before = last_write(); !before.empty()) return before;
  const auto address = reinterpret_cast<uint64_t>(at);
  const bool in_shared = shared.has(address) || fixed.has(address);
  if (!in_shared && !on_device(address, size_t(bytes))) return {};  // the thread's own memory, or out of bounds
  const Access mine{epoch, block_number, meetings[thread / kWarp], thread, rank, turns[rank]};
  for (int i = 0; i < bytes; ++i) {
    const uint64_t byte = address + uint64_t(i);
    Seen* seen = nullptr;
    uint64_t offset = byte;
    if (shared.has(byte)) {
      seen = &shared_seen[size_t(offset = byte - shared.begin)];
    } else if (fixed.has(byte)) {
      seen = &fixed_seen[size_t(offset = byte - fixed.begin)];
    } else {
      std::vector<Seen>& page = pages[byte / kPage];
      if (page.empty()) page.resize(kPage);
      seen = &page[size_t(byte % kPage)];
    }
    // Idle lanes may read what another thread of their block overwrites: they do not use it.
    auto counts = [&](const Access& other) { return in_shared || other.block != mine.block || level() > 1; };
    if (races(seen->write, mine, in_shared)) {
      if (write)
        doubtful.push_back({reinterpret_cast<const unsigned char*>(byte), *reinterpret_cast<const unsigned char*>(byte),
                            words("writes what was written by", seen->write, mine, in_shared, offset)});
      else if (counts(seen->write))
        return words("reads what was written by", seen->write, mine, in_shared, offset);
    }
    if (!write) {
      // Two readers are kept, so that at least one differs from a later writer.
      Access& first = seen->reads[0];
      if (first.thread != thread && first.time == epoch && first.block == block_number) seen->reads[1] = first;
      first = mine;
      continue;
    }
    for (const Access& read : seen->reads)
      if (counts(read) && races(read, mine, in_shared)) return words("writes what was read by", read, mine, in_shared, offset);
    seen->write = mine;
  }
  return {};
}

}  // namespace simulator::checker
