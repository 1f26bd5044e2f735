#include "train/stop_signals.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>

#include <gtest/gtest.h>

namespace ridge {
namespace {

// With stderr redirected to that file.
void interrupt(int file) {
  const int before = dup(STDERR_FILENO);
  dup2(file, STDERR_FILENO);
  {
    const StopSignals signals;
    EXPECT_EQ(signals.caught(), 0);
    std::raise(SIGINT);
    EXPECT_EQ(signals.caught(), SIGINT);
    std::raise(SIGINT);  // the same request, an instant later
  }
  dup2(before, STDERR_FILENO), close(before);
}

TEST(StopSignals, ReportAtATerminal) {
  const int own = posix_openpt(O_RDWR | O_NOCTTY);
  if (own < 0 || grantpt(own) || unlockpt(own)) GTEST_SKIP() << "no terminals here";
  const int terminal = open(ptsname(own), O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  interrupt(terminal);
  char text[256];
  const std::string printed(text, size_t(std::max<ssize_t>(0, read(own, text, sizeof text))));
  EXPECT_NE(printed.find("again to stop at once"), std::string::npos) << printed;
  close(terminal), close(own);
}

TEST(StopSignals, AreSilentElsewhere) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  interrupt(ends[1]);
  char byte;
  EXPECT_LT(read(ends[0], &byte, 1), 0);
  close(ends[0]), close(ends[1]);
}

}  // namespace
}  // namespace ridge
