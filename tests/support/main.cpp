// Runs GoogleTest with the keys and presets of all tasks registered, as in the ridge program.
#include <gtest/gtest.h>

#include "tasks/registry.h"

int main(int argc, char** argv) {
  ridge::register_tasks();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
