// How many random cases a test of kernels takes.
#pragma once

namespace ridge::test {

// A quarter under sanitizers, which take many times as long for each and look for errors that most of them would have.
constexpr int rounds(int usual) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return (usual + 3) / 4;
#else
  return usual;
#endif
}

}  // namespace ridge::test
