// Our own matmul kernel, for any strides, any number of loops, and f32, bf16 and f16 mixed. It uses the matrix units if both factors have the same 16-bit type.
// It runs where the library cannot, is not installed, or leaves most of the chip idle: for small results of deep sums.
#pragma once
#include <array>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/chip.h"
#include "backend/cuda/kernel.h"
#include "backend/gpu/matmul_epilogue.h"

namespace ridge::cuda {

inline constexpr int kMatmulLoops = 6;  // of each kind, after merging

// The kernel's only parameter; the text declares the same struct.
struct MatmulArguments {
  DevicePointer a = 0, b = 0, result = 0, bias = 0, addend = 0, aux = 0, parts = 0;
  int64_t batches = 1, rows = 0, columns = 0, depth = 0;
  int64_t part = 0;  // depth of one block's sums
  struct Axis {
    int64_t size[kMatmulLoops] = {}, x[kMatmulLoops] = {}, y[kMatmulLoops] = {}, z[kMatmulLoops] = {};
  } batch, m, n, k;  // strides: batch a, b, result; m a, result; n b, result; k a, b
  int64_t addend_batch = 0, addend_row = 0, aux_batch = 0, aux_row = 0;
  float alpha = 1;
  float pad = 0;
};

class OwnMatmul {
 public:
  // Alignments are those of the operands' addresses, in bytes.
  OwnMatmul(const MatmulProblem& problem, const MatmulEpilogue& epilogue, const Chip& chip, int64_t alignment_a, int64_t alignment_b);

  // Whether it is the better choice by the product's shape. A rule and not a measurement, because it rounds in other places than the library.
  static bool suits(const MatmulProblem& problem);

  std::vector<KernelText> texts() const;  // the product and, if its depth is split, the kernel that adds the parts
  int64_t workspace_bytes() const;        // for the parts
  int launches() const { return empty_ ? 0 : parts_ > 1 ? 2 : 1; }
  void load(Loader& loader);
  // Operand addresses, offsets included.
  struct Addresses {
    DevicePointer a, b, result, bias = 0, addend = 0, aux = 0, workspace = 0;
  };
  void enqueue(const Addresses& at, StreamHandle stream) const;
  std::string list_key() const;  // products with equal keys may be in one list; empty: in none

 private:
  friend class OwnMatmulList;
  MatmulArguments arguments(const Addresses& at) const;
  std::string head(const std::array<int, 4>& loops, int axis_loops) const;  // of a text: loops of the batch, m, n and k
  std::array<int, 4> list_loops() const;
  int64_t tiles() const;
  int64_t finish_blocks() const;

  MatmulArguments arguments_;
  std::string constants_, tiles_;
  std::array<int, 4> loops_ = {};
  bool matrix_units_ = false, empty_ = false, a_fast_ = false, b_fast_ = false;
  int64_t tile_rows_ = 64, tile_columns_ = 64, parts_ = 1;
  int threads_ = 256;
  int result_type_ = 0;
  const Driver* driver_ = nullptr;
  FunctionHandle product_ = nullptr, finish_ = nullptr;
};

// Deep sums of small results, such as the gradients of all weights of a small network, in two launches. Every sum has the bits that it has alone.
class OwnMatmulList {
 public:
  explicit OwnMatmulList(std::vector<const OwnMatmul*> products);  // of equal keys; they outlive the list
  const std::vector<KernelText>& texts() const { return texts_; }
  int launches() const;
  void load(Loader& loader);
  void enqueue(std::span<const OwnMatmul::Addresses> at, LaunchSink& sink) const;

 private:
  int64_t argument_bytes() const;

  std::vector<const OwnMatmul*> products_;
  int axis_loops_ = 1, entries_ = 1;  // entries of a launch, at most
  std::vector<KernelText> texts_;
  FunctionHandle product_ = nullptr, finish_ = nullptr;
};

}  // namespace ridge::cuda
