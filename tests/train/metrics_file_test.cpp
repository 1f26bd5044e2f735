// Laws of metrics.jsonl: only whole lines, of steps up to the one resumed from, wherever the file was cut off.
#include "train/metrics_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

using test::read_text;
using test::TempFolder;
using test::write_text;
using Row = nlohmann::ordered_json;

std::string line_of(int64_t step) { return fmt::format("{{\"step\":{},\"loss\":{}.5}}\n", step, 10 * step); }

std::string lines(int64_t first, int64_t last) {
  std::string out;
  for (int64_t step = first; step <= last; ++step) out += line_of(step);
  return out;
}

TEST(MetricsFile, AppendsOneLinePerRow) {
  TempFolder folder;
  write_text(folder / "m", "of an earlier run\n");
  {
    MetricsFile file(folder / "m", -1);
    for (int64_t step = 0; step < 3; ++step) file.add(Row{{"step", step}, {"loss", 10 * step + 0.5}});
    EXPECT_EQ(read_text(folder / "m"), "");
    file.flush();
    EXPECT_EQ(read_text(folder / "m"), lines(0, 2));
    file.add(Row{{"step", 3}, {"loss", 30.5}});
  }
  EXPECT_EQ(read_text(folder / "m"), lines(0, 3));
}

TEST(MetricsFile, ContainsOnlyFiniteNumbers) {
  TempFolder folder;
  using Limits = std::numeric_limits<double>;
  MetricsFile file(folder / "m", -1);
  file.add(Row{{"step", 1}, {"loss", Limits::quiet_NaN()}, {"norm", Limits::infinity()}, {"deep", {1.0, -Limits::infinity()}}});
  file.add(Row{{"step", 2}, {"sample", "a\nb\xff"}});
  file.flush();
  EXPECT_EQ(read_text(folder / "m"), "{\"step\":1,\"loss\":null,\"norm\":null,\"deep\":[1.0,null]}\n{\"step\":2,\"sample\":\"a\\nb\xef\xbf\xbd\"}\n");
}

// Truncated at every byte, resumed from every step.
TEST(MetricsFile, IsTruncatedToTheResumedStep) {
  TempFolder folder;
  const std::string whole = lines(1, 6);
  for (size_t size = 0; size <= whole.size(); ++size)
    for (int64_t last = 0; last <= 7; ++last) {
      write_text(folder / "m", whole.substr(0, size));
      {
        MetricsFile file(folder / "m", last);
        file.add(Row{{"step", 9}, {"loss", 90.5}});
      }
      const int64_t complete = std::count(whole.begin(), whole.begin() + int64_t(size), '\n');
      ASSERT_EQ(read_text(folder / "m"), lines(1, std::min(complete, last)) + line_of(9)) << size << " bytes, resumed from " << last;
    }
}

TEST(MetricsFile, DropsDamageInTheMiddle) {
  TempFolder folder;
  for (const std::string& damage :
       {std::string("\n"), std::string("{\"step\":2\n"), std::string("[3]\n"), std::string(5000, '\0') + "\n", std::string("{\"loss\":1}\n"),
        std::string("{\"step\":\"2\"}\n"), std::string(3 << 20, 'x') + "\n", line_of(99), std::string("\0\n", 2), std::string(1, '\0') + line_of(1)}) {
    write_text(folder / "m", lines(1, 3) + damage + lines(4, 6));
    { MetricsFile file(folder / "m", 5); }
    EXPECT_EQ(read_text(folder / "m"), lines(1, 5)) << damage.substr(0, 20);
  }
  { MetricsFile file(folder / "none", 5); }
  EXPECT_EQ(read_text(folder / "none"), "");
}

TEST(MetricsFile, WritesNothingWithoutAPath) {
  MetricsFile file("", -1);
  file.add(Row{{"step", 1}});
  file.flush();
}

TEST(MetricsFile, ReportsAFullDiskAndRecovers) {
  try {
    MetricsFile full("/dev/full", -1);
    full.add(Row{{"step", 1}});
    full.flush();
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::io);
    EXPECT_NE(std::string(e.what()).find("/dev/full: cannot be written: No space left on device; free some space"), std::string::npos) << e.what();
  }
  EXPECT_THROW(MetricsFile("/none/at/all", -1), Error);

  // A file size limit cuts a write inside a line, as a full disk does.
  TempFolder folder;
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old = {};
  getrlimit(RLIMIT_FSIZE, &old);
  MetricsFile file(folder / "m", -1);
  for (int64_t step = 0; step < 10; ++step) file.add(Row{{"step", step}, {"loss", 10 * step + 0.5}});
  const rlimit tight = {100, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tight);
  EXPECT_THROW(file.flush(), Error);
  int64_t refused = 0;
  for (int64_t step = 10; step < 10'000; ++step) try {
      file.add(Row{{"step", step}, {"loss", 10 * step + 0.5}});
    } catch (const Error&) {
      ++refused;
    }
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, before);
  file.flush();
  EXPECT_GT(refused, 0) << "the buffer has no bound";
  EXPECT_EQ(read_text(folder / "m"), lines(0, 9'999 - refused));
}

}  // namespace
}  // namespace ridge
