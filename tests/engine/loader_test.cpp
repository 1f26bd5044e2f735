// The loader allocates nothing once it runs: windows are copied from mapped files into existing buffers.
#include <gtest/gtest.h>

#include "data/dataset.h"
#include "data/prefetch.h"
#include "support/allocations.h"
#include "support/temp_folder.h"

namespace ridge::engine {
namespace {

TEST(Loader, AllocatesNothingAfterItsFirstBatches) {
  const test::TempFolder folder;
  std::string tokens;
  for (int i = 0; i < 1 << 20; ++i) tokens += char(i * 7 % 251);
  test::write_text(folder / "tokens", tokens);
  Dataset data;
  // A resident cap small enough that pages are dropped now and then.
  data.train = TokenArray({{folder / "tokens", 0, int64_t(tokens.size())}}, 1, 256, 1 << 18);
  const auto windows = training_windows(data, 12, 64, 1337);
  for (bool threaded : {true, false}) {
    Prefetcher prefetcher(*windows, {.first = 3, .left_out = {7, 20}, .depth = 2, .threaded = threaded});
    for (int i = 0; i < 5; ++i) prefetcher.next();
    test::count_allocations();
    for (int i = 0; i < 200; ++i) prefetcher.next();
    EXPECT_EQ(test::allocations_counted(), 0);
  }
}

}  // namespace
}  // namespace ridge::engine
