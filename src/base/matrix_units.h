#pragma once
// The matrix units of a CPU (AMX): eight tile registers of up to 16 rows of 64 bytes per thread, and the same in plain code for tests on CPUs without them.
#include <cstdint>
#include <cstring>

#include "hwy/base.h"

namespace ridge {

// What LDTILECFG reads.
struct alignas(64) TileForms {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Not by the compiler's intrinsics: those of GCC 12 do not say which memory they read, so that it drops what was written there.
struct HardwareUnits {
  static HWY_INLINE void configure(const TileForms& forms) { asm volatile("ldtilecfg %0" ::"m"(forms)); }
  static HWY_INLINE void release() { asm volatile("tilerelease"); }
  template <int T>
  static HWY_INLINE void load(const float* p, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(row_bytes), "i"(T) : "memory");
  }
  template <int T>
  static HWY_INLINE void store(float* p, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(row_bytes), "i"(T) : "memory");
  }
  template <int T>
  static HWY_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  // sums += a * b, in pairs of bf16
  template <int Sums, int A, int B>
  static HWY_INLINE void add_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(B));
  }
};

class SimulatedUnits {
 public:
  static void configure(const TileForms& forms) { state() = {.forms = forms}; }
  static void release() { state() = {}; }
  template <int T>
  static void load(const float* p, int64_t row_bytes) {
    State& s = state();
    std::memset(s.tiles[T], 0, sizeof(s.tiles[T]));
    for (int r = 0; r < s.forms.rows[T]; ++r) std::memcpy(s.tiles[T][r], reinterpret_cast<const char*>(p) + r * row_bytes, s.forms.row_bytes[T]);
  }
  template <int T>
  static void store(float* p, int64_t row_bytes) {
    const State& s = state();
    for (int r = 0; r < s.forms.rows[T]; ++r) std::memcpy(reinterpret_cast<char*>(p) + r * row_bytes, s.tiles[T][r], s.forms.row_bytes[T]);
  }
  template <int T>
  static void zero() {
    std::memset(state().tiles[T], 0, sizeof(state().tiles[T]));
  }
  template <int Sums, int A, int B>
  static void add_products() {
    State& s = state();
    const int rows = s.forms.rows[Sums], columns = s.forms.row_bytes[Sums] / 4, pairs = s.forms.row_bytes[A] / 4;
    for (int r = 0; r < rows; ++r)
      for (int k = 0; k < pairs; ++k)
        for (int c = 0; c < columns; ++c)
          for (int half = 0; half < 2; ++half) s.tiles[Sums][r][c] += element(s.tiles[A][r][k], half) * element(s.tiles[B][k][c], half);
  }

 private:
  struct State {
    TileForms forms;
    float tiles[8][16][16] = {};
  };
  static State& state() {
    static thread_local State of_this_thread;
    return of_this_thread;
  }
  static float element(float pair, int half) {
    uint32_t bits;
    std::memcpy(&bits, &pair, 4);
    bits = half ? bits & 0xffff0000u : bits << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
};

}  // namespace ridge
