#include "runtime/buffer_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"

namespace ridge {
namespace {

using Buffer = BufferPool::Buffer;

// A source with a fixed amount of memory that checks what is returned.
class Limited : public BlockSource {
 public:
  explicit Limited(int64_t limit) : left_(limit) {}
  ~Limited() override { EXPECT_TRUE(sizes_.empty()) << "blocks were lost"; }
  std::byte* get(int64_t bytes, bool& zeroed) override {
    if (bytes > left_) return nullptr;
    left_ -= bytes;
    std::byte* p = system_blocks()->get(bytes, zeroed);
    sizes_[p] = bytes;
    return p;
  }
  void put(std::byte* p, int64_t bytes) override {
    ASSERT_EQ(sizes_.at(p), bytes);
    sizes_.erase(p);
    left_ += bytes;
    system_blocks()->put(p, bytes);
  }
  int64_t left() const { return left_; }

 private:
  int64_t left_;
  std::map<std::byte*, int64_t> sizes_;
};

TEST(BufferPool, WastesLittle) {
  for (int64_t bytes = 0; bytes < 5000; ++bytes) {
    int64_t size = BufferPool::class_bytes(bytes);
    ASSERT_GE(size, bytes);
    ASSERT_EQ(size % 64, 0);
    ASSERT_EQ(BufferPool::class_bytes(size), size);
    ASSERT_GE(BufferPool::class_bytes(bytes + 1), size);
    ASSERT_LE(double(size - bytes), std::max(64.0, double(bytes) / 16));
  }
  for (int64_t bytes = 5000; bytes < int64_t(1) << 45; bytes += bytes / 97) {
    int64_t size = BufferPool::class_bytes(bytes);
    ASSERT_GE(size, bytes);
    ASSERT_LE(double(size - bytes), double(bytes) / 15);
    ASSERT_EQ(BufferPool::class_bytes(size), size);
  }
}

TEST(BufferPool, AlignsAndSeparates) {
  BufferPool pool;
  std::vector<Buffer> buffers;
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    buffers.push_back(pool.acquire(int64_t(random() % (i % 20 ? 10000 : 5'000'000))));
    ASSERT_NE(buffers.back().data(), nullptr);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(buffers.back().data()) % 64, 0u);
    std::memset(buffers.back().data(), i, size_t(buffers.back().bytes()));
  }
  for (int i = 0; i < 200; ++i)
    for (int64_t k = 0; k < buffers[size_t(i)].bytes(); k += 61) ASSERT_EQ(buffers[size_t(i)].data()[k], std::byte(i));
}

// A recorded mix of 200 shapes with random lifetimes: each entry requests a shape and says when it is released.
struct Recording {
  struct Request {
    int64_t bytes;
    int lifetime;
  };
  std::vector<Request> requests;
};

Recording record(std::mt19937& random, const std::vector<int64_t>& shapes, int requests) {
  Recording recording;
  for (int i = 0; i < requests; ++i) recording.requests.push_back({shapes[random() % shapes.size()], 1 + int(random() % (random() % 8 ? 20 : 200))});
  return recording;
}

std::vector<int64_t> two_hundred_shapes(std::mt19937& random) {
  std::vector<int64_t> shapes;
  for (int i = 0; i < 200; ++i) {
    int64_t elements = 1;
    for (int axes = 1 + int(random() % 3); axes > 0; --axes) elements *= 1 + int64_t(random() % 60);
    shapes.push_back(4 * elements + 512);
  }
  return shapes;
}

// Returns the worst waste while at least a megabyte was in use.
double play(BufferPool& pool, const Recording& recording) {
  std::multimap<int, Buffer> live;
  double worst = 0;
  for (int t = 0; t < int(recording.requests.size()); ++t) {
    while (!live.empty() && live.begin()->first <= t) live.erase(live.begin());
    live.emplace(t + recording.requests[size_t(t)].lifetime, pool.acquire(recording.requests[size_t(t)].bytes));
    PoolStatistics s = pool.statistics();
    if (s.bytes_in_use > 1 << 20) worst = std::max(worst, s.waste());
  }
  return worst;
}

TEST(BufferPool, ReusesARecordedMix) {
  std::mt19937 random(3);
  std::vector<int64_t> shapes = two_hundred_shapes(random);
  Recording recording = record(random, shapes, 4000);
  BufferPool probe;
  play(probe, recording);
  BufferPool pool({.bound = probe.statistics().peak_bytes});
  play(pool, recording);
  PoolStatistics first = pool.statistics();
  double waste = 0;
  for (int pass = 0; pass < 5; ++pass) waste = std::max(waste, play(pool, recording));
  PoolStatistics after = pool.statistics();
  EXPECT_GE(double(after.reuses - first.reuses) / double(after.requests - first.requests), 0.99);
  EXPECT_LE(waste, 0.15);
  EXPECT_LE(after.peak_bytes, probe.statistics().peak_bytes);
  EXPECT_EQ(after.bytes_in_use, 0);
}

TEST(BufferPool, ReusesAMixWithOtherLifetimesEachTime) {
  std::mt19937 random(4);
  std::vector<int64_t> shapes = two_hundred_shapes(random);
  BufferPool pool({.bound = 64 << 20});
  play(pool, record(random, shapes, 8000));
  PoolStatistics first = pool.statistics();
  double waste = 0;
  for (int pass = 0; pass < 5; ++pass) waste = std::max(waste, play(pool, record(random, shapes, 8000)));
  PoolStatistics after = pool.statistics();
  EXPECT_GE(double(after.reuses - first.reuses) / double(after.requests - first.requests), 0.99);
  EXPECT_LE(waste, 0.15);
}

TEST(BufferPool, RespectsItsBound) {
  auto source = std::make_shared<Limited>(int64_t(1) << 40);
  BufferPool pool({.bound = 1 << 20, .source = source});
  Buffer a = pool.acquire(600'000);
  try {
    pool.acquire(600'000);
    FAIL() << "the bound was ignored";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::memory);
    EXPECT_NE(std::string(e.what()).find("600000"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("1048576"), std::string::npos) << e.what();
  }
  a.reset();
  EXPECT_NO_THROW(pool.acquire(900'000));  // the free block of another class makes room
  EXPECT_LE(pool.statistics().peak_bytes, 1 << 20);
  pool.set_bound(1000);
  EXPECT_EQ(pool.statistics().bytes_held, 0);
}

TEST(BufferPool, TrimsAndRetriesWhenTheSystemHasNoMemory) {
  auto source = std::make_shared<Limited>(1'000'000);
  BufferPool pool({.source = source});
  pool.acquire(700'000).reset();
  Buffer b = pool.acquire(400'000);  // fits only without the free block
  EXPECT_EQ(pool.statistics().bytes_held, b.capacity());
  try {
    pool.acquire(700'000);
    FAIL() << "memory from nowhere";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::memory);
  }
  b.reset();
  EXPECT_NO_THROW(pool.acquire(700'000));  // still usable
}

TEST(BufferPool, TrimsOnRequest) {
  auto source = std::make_shared<Limited>(int64_t(1) << 40);
  BufferPool pool({.source = source});
  Buffer kept = pool.acquire(100);
  for (int64_t bytes : {1000, 100'000, 10'000'000}) pool.acquire(bytes);
  EXPECT_GT(pool.statistics().bytes_held, 10'000'000);
  pool.trim();
  EXPECT_EQ(pool.statistics().bytes_held, kept.capacity());
  EXPECT_EQ(source->left(), (int64_t(1) << 40) - kept.capacity());
}

TEST(BufferPool, FillsWithZeros) {
  BufferPool pool;
  for (int64_t bytes : {100, 5000, 3'000'000}) {
    for (int round = 0; round < 3; ++round) {
      Buffer b = pool.acquire(bytes, BufferPool::Fill::zero);
      for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ(b.data()[i], std::byte(0));
      std::memset(b.data(), 0xff, size_t(bytes));
    }
  }
}

TEST(BufferPool, WaitsForWorkInFlight) {
  BufferPool pool;
  Buffer a = pool.acquire(5000);
  std::byte* at = a.data();
  a.used_by(7), a.used_by(3);
  a.reset();
  EXPECT_EQ(pool.statistics().bytes_pending, BufferPool::class_bytes(5000));
  Buffer b = pool.acquire(5000);
  EXPECT_NE(b.data(), at);
  pool.complete(6);
  Buffer c = pool.acquire(5000);
  EXPECT_NE(c.data(), at);
  pool.trim();
  EXPECT_EQ(pool.statistics().bytes_held, 3 * BufferPool::class_bytes(5000));
  pool.complete(7);
  Buffer d = pool.acquire(5000);
  EXPECT_EQ(d.data(), at);
  EXPECT_EQ(pool.statistics().bytes_pending, 0);
  EXPECT_EQ(pool.statistics().reuses, 1);
}

TEST(BufferPool, MayBeDestroyedBeforeItsBuffers) {
  auto source = std::make_shared<Limited>(int64_t(1) << 40);
  Buffer a, b;
  {
    BufferPool pool({.source = source});
    a = pool.acquire(100);
    b = pool.acquire(3'000'000);
    b.used_by(9);
  }
  std::memset(b.data(), 1, 3'000'000);
  b.reset();
  a.reset();
  EXPECT_EQ(source->left(), int64_t(1) << 40);
}

TEST(BufferPool, RejectsInvalidSizes) {
  BufferPool pool;
  EXPECT_THROW(pool.acquire(-1), Error);
  EXPECT_THROW(pool.acquire(std::numeric_limits<int64_t>::max()), Error);
  EXPECT_THROW(pool.set_bound(0), Error);
  EXPECT_NE(pool.acquire(0).data(), nullptr);
}

TEST(BufferPool, ServesManyThreads) {
  BufferPool pool({.bound = 64 << 20});
  std::atomic<uint64_t> ticket{0};
  std::atomic<bool> shared{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random{unsigned(t)};
      std::vector<Buffer> held;
      for (int i = 0; i < 2000; ++i) {
        if (held.size() > 20 || (!held.empty() && random() % 2)) {
          Buffer& b = held[random() % held.size()];
          if (b.data()[0] != std::byte(t) || b.data()[b.bytes() - 1] != std::byte(t)) shared = true;
          if (random() % 4 == 0) b.used_by(++ticket);
          std::swap(b, held.back());
          held.pop_back();
        } else {
          held.push_back(pool.acquire(1 + int64_t(random() % 20000), random() % 8 ? BufferPool::Fill::none : BufferPool::Fill::zero));
          std::memset(held.back().data(), t, size_t(held.back().bytes()));
        }
        if (i % 50 == 0) pool.complete(ticket);
        if (i % 500 == 0) pool.trim();
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_FALSE(shared);
  pool.complete(ticket);
  PoolStatistics s = pool.statistics();
  EXPECT_EQ(s.bytes_in_use, 0);
  EXPECT_EQ(s.bytes_asked, 0);
  EXPECT_EQ(s.bytes_pending, 0);
  pool.trim();
  EXPECT_EQ(pool.statistics().bytes_held, 0);
}

}  // namespace
}  // namespace ridge
