// Windows: a batch depends only on its number, an epoch contains each of its windows once, and over epochs every offset occurs.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "data/dataset.h"
#include "data/permutation.h"
#include "data/prefetch.h"
#include "machine/expect_error.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

using test::TempFolder;

// Tokens 0, 1, 2, …: a window's first token is its position.
TokenArray counted(const TempFolder& folder, int64_t tokens) {
  std::vector<uint32_t> all(static_cast<size_t>(tokens));
  for (size_t i = 0; i < all.size(); ++i) all[i] = uint32_t(i);
  const std::string path = folder / ("tokens_" + std::to_string(tokens));
  test::write_text(path, {reinterpret_cast<const char*>(all.data()), all.size() * 4});
  return TokenArray({{path, 0, tokens}}, 4, std::max<int64_t>(tokens, 1));
}

struct Batch {
  explicit Batch(const BatchSource& source, int64_t number = 0)
      : inputs(size_t(source.types()[0].shape.numel()), -1), targets(size_t(source.types()[1].shape.numel()), -1) {
    std::byte* tensors[] = {reinterpret_cast<std::byte*>(inputs.data()), reinterpret_cast<std::byte*>(targets.data())};
    source.fill(number, tensors);
  }
  std::vector<int64_t> inputs, targets;
};

TEST(Permutation, VisitsEveryPositionOnce) {
  for (uint64_t n : {1, 2, 3, 4, 5, 7, 15, 16, 17, 63, 64, 65, 1000, 4097}) {
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t to = permuted(i, n, {7, 3, 1});
      EXPECT_LT(to, n);
      seen.insert(to);
    }
    EXPECT_EQ(seen.size(), n);
  }
}

TEST(Permutation, LooksRandom) {
  // Neighbours are separated, different keys give different orders, and an index is about equally likely to land anywhere.
  constexpr uint64_t n = 1000;
  double distance = 0;
  for (uint64_t i = 0; i + 1 < n; ++i) distance += std::abs(double(permuted(i, n, {1, 0, 1})) - double(permuted(i + 1, n, {1, 0, 1})));
  EXPECT_NEAR(distance / (n - 1), n / 3.0, n / 20.0);  // the mean distance of two random positions is n / 3, with a standard deviation of 0.24 n / 31 here
  std::vector<int> hits(8);
  for (uint32_t epoch = 0; epoch < 8000; ++epoch) ++hits[permuted(3, 8, {1, epoch, 1})];
  for (int h : hits) EXPECT_NEAR(h, 1000, 5 * 30);  // five standard deviations
}

TEST(TrainingWindows, AnEpochVisitsEveryWindowOnce) {
  const TempFolder folder;
  for (int64_t tokens : {9, 10, 15, 16, 17, 24, 25, 100, 1001})
    for (int64_t block : {1, 3, 8}) {
      Dataset data;
      data.train = counted(folder, tokens);
      const auto windows = training_windows(data, 1, block, 42);
      const int64_t per_epoch = std::max<int64_t>(tokens / block - 1, 1);
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        std::set<int64_t> starts;
        for (int64_t i = 0; i < per_epoch; ++i) {
          const Batch batch(*windows, epoch * per_epoch + i);
          for (size_t t = 0; t < batch.inputs.size(); ++t) {
            EXPECT_EQ(batch.inputs[t], batch.inputs[0] + int64_t(t));
            EXPECT_EQ(batch.targets[t], batch.inputs[t] + 1);
          }
          starts.insert(batch.inputs[0]);
        }
        ASSERT_EQ(int64_t(starts.size()), per_epoch) << tokens << " tokens, block " << block;
        for (int64_t start : starts) EXPECT_EQ((start - *starts.begin()) % block, 0);
        EXPECT_EQ(*starts.rbegin() - *starts.begin(), (per_epoch - 1) * block);
      }
    }
}

TEST(TrainingWindows, CoverEveryOffsetAndToken) {
  const TempFolder folder;
  Dataset data;
  const int64_t tokens = 101, block = 8;
  data.train = counted(folder, tokens);
  const auto windows = training_windows(data, 1, block, 3);
  std::set<int64_t> starts;
  std::map<int64_t, int> seen;
  const int64_t per_epoch = tokens / block - 1;
  for (int64_t i = 0; i < 400 * per_epoch; ++i) {
    const Batch batch(*windows, i);
    starts.insert(batch.inputs[0]);
    for (int64_t t : batch.targets) ++seen[t];
  }
  EXPECT_EQ(int64_t(starts.size()), tokens - block);                                 // every possible window
  EXPECT_EQ(int64_t(seen.size()), tokens - 1);                                       // all but the first token can be targets
  for (int64_t t = 2 * block; t < tokens - 2 * block; ++t) EXPECT_EQ(seen[t], 400);  // away from the ends, once in every epoch
}

TEST(TrainingWindows, SamplesDoNotDependOnTheBatch) {
  const TempFolder folder;
  Dataset data;
  data.train = counted(folder, 500);
  const auto one = training_windows(data, 1, 16, 9), six = training_windows(data, 6, 16, 9), other = training_windows(data, 6, 16, 10);
  std::vector<int64_t> singles;
  for (int64_t i = 0; i < 60; ++i) {
    const Batch batch(*one, i);
    singles.insert(singles.end(), batch.inputs.begin(), batch.inputs.end());
  }
  std::vector<int64_t> sixes, others;
  for (int64_t i = 0; i < 10; ++i) {
    const Batch batch(*six, i), again(*six, i), with_other_seed(*other, i);
    EXPECT_EQ(batch.inputs, again.inputs);
    sixes.insert(sixes.end(), batch.inputs.begin(), batch.inputs.end());
    others.insert(others.end(), with_other_seed.inputs.begin(), with_other_seed.inputs.end());
  }
  EXPECT_EQ(singles, sixes);
  EXPECT_NE(others, sixes);
}

TEST(ValidationWindows, AreAllWindowsInOrder) {
  const TempFolder folder;
  Dataset data;
  data.validation = counted(folder, 41);
  const auto windows = validation_windows(data, 4, 4);
  ASSERT_EQ(windows->batches(), 3);
  EXPECT_EQ(windows->samples(0), 4);
  EXPECT_EQ(windows->samples(2), 2);
  int64_t next = 0;
  for (int64_t b = 0; b < windows->batches(); ++b) {
    const Batch batch(*windows, b);
    for (int64_t i = 0; i < windows->samples(b) * 4; ++i) {
      EXPECT_EQ(batch.inputs[size_t(i)], next++);
      EXPECT_EQ(batch.targets[size_t(i)], next);
    }
    for (size_t i = size_t(windows->samples(b) * 4); i < batch.inputs.size(); ++i) EXPECT_EQ(batch.inputs[i], 0);
  }
  EXPECT_EQ(next, 40);
}

TEST(ValidationWindows, SubsetsAreSpreadEvenly) {
  const TempFolder folder;
  Dataset data;
  data.validation = counted(folder, 100);
  data.window_starts = {0, 11, 20, 33, 44, 95, 97};  // too few tokens follow the last two
  const auto windows = validation_windows(data, 1, 8, 2);
  ASSERT_EQ(windows->batches(), 2);
  EXPECT_EQ(Batch(*windows, 0).inputs[0], 0);
  EXPECT_EQ(Batch(*windows, 1).inputs[0], 20);
  EXPECT_EQ(validation_windows(data, 1, 8)->batches(), 5);

  data.window_starts.resize(5);
  data.window_nats = {8, 16, 24, 0, 0};
  data.window_characters = {8, 8, 8, 8, 8};
  EXPECT_DOUBLE_EQ(*possible_loss(data, 0), 48 / 40.0);
  EXPECT_DOUBLE_EQ(*possible_loss(data, 2), (8 + 24) / 16.0);
}

TEST(Windows, TooFewTokensAreReportedWithNumbers) {
  const TempFolder folder;
  Dataset data;
  data.name = "my.txt";
  data.train = data.validation = counted(folder, 8);
  for (const Error& error : {error_of([&] { training_windows(data, 1, 8, 0); }), error_of([&] { validation_windows(data, 1, 8); })}) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_TRUE(mentions(error.what(), "my.txt")) << error.what();
    EXPECT_TRUE(mentions(error.what(), "has 8 tokens; a window of block 8 needs 9")) << error.what();
  }
  EXPECT_EQ(Batch(*training_windows(data, 1, 7, 0), 123456).inputs[0], 0);  // the only window
}

TEST(TokenArray, ReadsAcrossShardsOfEveryWidth) {
  const TempFolder folder;
  for (int width : {1, 2, 4}) {
    std::vector<TokenArray::Shard> shards;
    int64_t next = 0;
    for (int64_t tokens : {5, 0, 1, 70}) {
      std::string bytes(3, 'x');
      for (int64_t i = 0; i < tokens; ++i, ++next) bytes.append(reinterpret_cast<const char*>(&next), size_t(width));
      shards.push_back({folder / ("s" + std::to_string(width) + std::to_string(shards.size())), 3, tokens});
      test::write_text(shards.back().path, bytes);
    }
    const TokenArray all(shards, width, 76);
    ASSERT_EQ(all.size(), 76);
    std::vector<int64_t> out(12);
    for (int64_t first = 0; first + 12 <= 76; ++first) {
      all.copy(first, out);
      for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], first + int64_t(i));
    }
    const TokenArray middle = all.part(4, 6);
    middle.copy(1, std::span(out).first(5));
    EXPECT_EQ(out[0], 5);
    EXPECT_EQ(error_of([&] { middle.copy(2, std::span(out).first(5)); }).code(), ErrorCode::value);
    EXPECT_EQ(error_of([&] { all.part(70, 7); }).code(), ErrorCode::value);
    const TokenArray narrow(shards, width, 75);
    const Error beyond = error_of([&] { narrow.copy(70, std::span(out).first(6)); });
    EXPECT_TRUE(mentions(beyond.what(), "token 75 in a vocabulary of 75")) << beyond.what();
    shards.back().tokens = 71;
    EXPECT_TRUE(mentions(error_of([&] { TokenArray(shards, width, 76); }).what(), "truncated"));
  }
}

// Resident pages of the files below a folder, from /proc; -1: not available on this system.
int64_t resident_kib_of(const std::string& folder) {
  std::ifstream maps("/proc/self/smaps");
  int64_t kib = maps ? 0 : -1;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') != line.npos && line.find(" r") != line.npos) inside = line.find(folder) != line.npos;
    if (inside && line.starts_with("Rss:")) kib += std::stoll(line.substr(4));
  }
  return kib;
}

TEST(TokenArray, BoundsItsResidentMemory) {
  const TempFolder folder;
  const int64_t tokens = 4 << 20;  // 16 MiB
  counted(folder, tokens);
  const TokenArray all({{folder / "tokens_4194304", 0, tokens}}, 4, tokens, 1 << 20);
  EXPECT_EQ(all.resident_cap(), 1 << 20);
  EXPECT_EQ(all.mapped_bytes(), 16 << 20);
  std::vector<int64_t> out(33);
  int64_t most = 0;
  for (int64_t i = 0; i < 3000; ++i) {
    const int64_t first = int64_t(permuted(uint64_t(i), uint64_t(tokens - 33), {1, 2, 3}));
    all.copy(first, out);
    for (size_t k = 0; k < out.size(); ++k) ASSERT_EQ(out[k], first + int64_t(k));
    if (i % 50 == 0) most = std::max(most, resident_kib_of(folder.path()));
  }
  EXPECT_LE(most, 1024);
}

TEST(Windows, PartsMakeUpTheBatch) {
  const TempFolder folder;
  Dataset data;
  data.train = counted(folder, 1000), data.validation = counted(folder, 101);
  const auto training = training_windows(data, 10, 7, 3), validation = validation_windows(data, 10, 7);
  for (const BatchSource* source : {training.get(), validation.get()})
    for (int64_t part : {1, 3, 5, 9, 10, 11})
      for (bool threaded : {true, false}) {
        Prefetcher parts(*source, {.left_out = {0}, .threaded = threaded, .part = part});
        EXPECT_EQ(parts.bytes(), (threaded ? 3 : 1) * 2 * ((std::min<int64_t>(part, 10) * 7 * 8 + 63) / 64 * 64));
        for (int64_t number = 1; number < (source == training.get() ? 5 : 2); ++number) {
          const Batch whole(*source, number);
          std::vector<int64_t> inputs, targets;
          for (int64_t first = 0; first < 10; first += part) {
            const Prefetcher::Batch b = parts.next();
            EXPECT_EQ(b.number, number);
            EXPECT_EQ(b.first, first);
            const int64_t values = std::min(part, 10 - first) * 7;
            const auto *in = static_cast<const int64_t*>(b.tensors[0]), *out = static_cast<const int64_t*>(b.tensors[1]);
            inputs.insert(inputs.end(), in, in + values), targets.insert(targets.end(), out, out + values);
          }
          EXPECT_EQ(inputs, whole.inputs);
          EXPECT_EQ(targets, whole.targets);
        }
      }
}

}  // namespace
}  // namespace ridge
