// How many random cases a test of kernels takes.
#pragma once
#include "support/sanitized.h"

namespace ridge::test {

// A quarter under sanitizers, which take many times as long for each and look for errors that most of them would have.
inline int rounds(int usual) { return sanitized() ? (usual + 3) / 4 : usual; }

}  // namespace ridge::test
