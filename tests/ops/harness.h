// Runs a compiled graph with guarded memory, and compares its results with the reference.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "backend/registry.h"
#include "runtime/executable.h"
#include "support/samples.h"
#include "threads/thread_team.h"

namespace ridge::test {

using Bytes = std::vector<std::byte>;

// The CPU with teams of 1 to 4 threads, created once. Idle threads park immediately, because there are more of them than cores.
inline Backend& cpu_of(int threads) {
  static std::unique_ptr<ThreadTeam> teams[5];
  static std::unique_ptr<Backend> backends[5];
  if (!teams[threads]) {
    teams[threads] = std::make_unique<ThreadTeam>(TeamOptions{.threads = threads, .spin_us = 20});
    backends[threads] = cpu_backend(*teams[threads]);
  }
  return *backends[threads];
}

// Bytes around a buffer that must not be written.
class Guarded {
 public:
  Guarded(int64_t bytes, uint8_t seed) : bytes_(bytes), data_(size_t(bytes) + 2 * kGuard) {
    for (size_t i = 0; i < data_.size(); ++i) data_[i] = pattern(i, seed);
    seed_ = seed;
  }
  std::byte* get() { return data_.data() + kGuard; }
  bool intact() const {
    for (size_t i = 0; i < data_.size(); ++i)
      if ((i < kGuard || i >= kGuard + size_t(bytes_)) && data_[i] != pattern(i, seed_)) return false;
    return true;
  }

 private:
  static constexpr size_t kGuard = 128;
  static std::byte pattern(size_t i, uint8_t seed) { return std::byte(uint8_t(i * 37 + seed)); }
  int64_t bytes_;
  uint8_t seed_;
  std::vector<std::byte> data_;
};

// If set, all runs use this device instead of the CPU.
using Runner = std::function<std::vector<Bytes>(const Graph& graph, const std::vector<NodeId>& inputs, const std::vector<NodeId>& outputs, const Values& values,
                                                const std::string& passes)>;
inline Runner& other_device() {
  static Runner runner;
  return runner;
}

// The outputs' bytes. Runs twice, from differently filled memory: equal bits show that everything is written and nothing left by an earlier run is read.
inline std::vector<Bytes> run_compiled(const Graph& graph, const std::vector<NodeId>& inputs, const std::vector<NodeId>& outputs, const Values& values,
                                       const std::string& passes, int threads) {
  if (other_device()) return other_device()(graph, inputs, outputs, values, passes);
  CompileOptions options(cpu_of(threads));
  options.passes = passes;
  Executable exe(graph, inputs, outputs, options);
  std::vector<Bytes> in(inputs.size());
  std::vector<const void*> in_pointers;
  for (size_t i = 0; i < inputs.size(); ++i) {
    in[i].resize(size_t(graph.type(inputs[i]).bytes()));
    reference::to_bytes(values.at(inputs[i]), in[i].data());
    in_pointers.push_back(in[i].data());
  }
  std::vector<Bytes> before = in, first;
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<Guarded> out;
    std::vector<void*> out_pointers;
    for (NodeId o : outputs) out.emplace_back(graph.type(o).bytes(), uint8_t(turn * 101 + 7));
    for (Guarded& g : out) out_pointers.push_back(g.get());
    exe.run(in_pointers, out_pointers);
    std::vector<Bytes> got;
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_TRUE(out[i].intact()) << "wrote outside output " << i;
      got.emplace_back(out[i].get(), out[i].get() + graph.type(outputs[i]).bytes());
    }
    EXPECT_TRUE(before == in) << "an input was written";
    if (turn == 0)
      first = std::move(got);
    else
      EXPECT_EQ(first, got) << "a second run gives other bits";
  }
  return first;
}

// Allowed difference of two results: `relative` times the value plus `absolute`, both chosen from the dtype and the sum length.
struct Tolerance {
  double relative = 0, absolute = 0;
};

// Spacing of numbers just above 1: the effect of one rounding.
inline double spacing(DType t) {
  switch (t) {
    case DType::bf16: return 0x1p-7;
    case DType::f16: return 0x1p-10;
    case DType::f32: return 0x1p-23;
    default: return 0;
  }
}

// Smallest normal number; devices may flush anything below it to zero.
inline double smallest(DType t) { return t == DType::f16 ? 0x1p-24 : t == DType::f32 || t == DType::bf16 ? 0x1p-126 : 0; }

// Reports the first differing element, and how many differ.
inline ::testing::AssertionResult close(const reference::Array& got, const reference::Array& want, Tolerance t) {
  if (!(got.type == want.type)) return ::testing::AssertionFailure() << "type " << to_string(got.type) << ", expected " << to_string(want.type);
  int64_t wrong = 0, first = -1;
  for (int64_t k = 0; k < want.size(); ++k) {
    double g = got.at(k), w = want.at(k);
    bool same = want.floating() ? (std::isnan(w) ? std::isnan(g) : g == w || std::fabs(g - w) <= t.relative * std::fabs(w) + t.absolute)
                                : got.i[size_t(k)] == want.i[size_t(k)];
    if (!same && !wrong++) first = k;
  }
  if (!wrong) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << wrong << " of " << want.size() << " elements of " << to_string(want.type) << " differ, the first at " << first << ": "
                                       << got.at(first) << ", expected " << want.at(first) << " (tolerance " << t.relative << " relative, " << t.absolute
                                       << ")";
}

}  // namespace ridge::test
