// Runs GoogleTest with the keys and presets of all tasks, as the program has them.
#include <gtest/gtest.h>

#include "tasks/registry.h"

int main(int argc, char** argv) {
  ridge::register_tasks();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
