// What the command line says to mistakes, and its exit codes.
#include <gtest/gtest.h>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

TEST(CommandLine, ErrorsGoToStderrAlone) {
  const Answer answer = RidgeProgram()({"no-such-command"});
  EXPECT_EQ(answer.code, 2) << answer.all();
  EXPECT_EQ(answer.out, "");
  EXPECT_TRUE(answer.says("unknown command 'no-such-command'")) << answer.all();
}

}  // namespace
}  // namespace ridge::test
