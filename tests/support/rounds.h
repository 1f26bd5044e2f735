// How many random cases a kernel test runs.
#pragma once
#include "support/sanitized.h"

namespace ridge::test {

// A quarter under sanitizers: each case takes many times as long there, and most cases would show the same errors.
inline int rounds(int usual) { return sanitized() ? (usual + 3) / 4 : usual; }

}  // namespace ridge::test
