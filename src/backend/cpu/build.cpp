#include "backend/cpu/build.h"

#include <algorithm>

#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/conv.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/node_kernels.h"
#include "backend/cpu/tile_kernel.h"
#include "base/error.h"

namespace ridge::cpu {
namespace {

// A matmul or a convolution and its epilogue. Operands: A, B, then the epilogue's; without an epilogue A, B, C.
class FusedProduct final : public Kernel {
 public:
  // make: creates the product for an epilogue that needs this much scratch; -1: none.
  template <class Make>
  FusedProduct(const ProgramKernel& kernel, const Make& make) {
    if (!kernel.tiles.empty()) epilogue_ = make_tile_epilogue(kernel.tiles[0]);
    product_ = make(epilogue_ ? epilogue_->scratch_bytes() : -1);
  }
  int64_t workspace_bytes() const override { return product_->workspace_bytes(); }
  int64_t scratch_bytes() const override { return product_->scratch_bytes(); }
  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    Ref abc[3] = {operands[0], operands[1], epilogue_ ? Ref{} : operands[2]};
    if (epilogue_) product_->set_epilogue(epilogue_->bind(operands.subspan(2)));
    product_->bind(abc, workspace, tasks);
  }

 private:
  std::unique_ptr<MatmulKernel> product_;
  std::unique_ptr<TileEpilogue> epilogue_;
};

int64_t set_result_strides(std::vector<MatmulLoop>& loops, int64_t step) {
  for (auto l = loops.rbegin(); l != loops.rend(); ++l) l->c = step, step *= l->size;
  return step;
}

// The same, but the epilogue runs when the whole product is in the workspace.
class ProductThenEpilogue final : public Kernel {
 public:
  ProductThenEpilogue(const ProgramKernel& kernel, MatmulDesc desc, const KernelVariant& variant) : epilogue_(make_tile_epilogue(kernel.tiles[0])) {
    cols_ = set_result_strides(desc.n, 1);
    const int64_t matrix = set_result_strides(desc.m, cols_);
    rows_ = cols_ > 0 ? matrix / cols_ : 0;
    sums_ = set_result_strides(desc.batch, matrix);
    product_ = make_matmul(desc, variant);
    sums_at_ = (product_->workspace_bytes() + 63) & ~int64_t(63);
    unit_rows_ = std::clamp<int64_t>(kUnitPoints / std::max<int64_t>(cols_, 1), 1, std::max<int64_t>(rows_, 1));
    row_units_ = (rows_ + unit_rows_ - 1) / unit_rows_;
  }
  int64_t workspace_bytes() const override { return sums_at_ + sums_ * int64_t(sizeof(float)); }
  int64_t scratch_bytes() const override { return std::max(product_->scratch_bytes(), epilogue_->scratch_bytes()); }
  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    sums_place_ = {workspace.base, workspace.offset + sums_at_};
    const Ref abc[3] = {operands[0], operands[1], sums_place_};
    product_->bind(abc, workspace, tasks);
    bound_ = epilogue_->bind(operands.subspan(2));
    if (sums_ > 0) tasks.push_back({run, this, sums_ / (rows_ * cols_) * row_units_, 100 + kPointNs * double(unit_rows_ * cols_)});
  }

 private:
  static constexpr int64_t kUnitPoints = 16384;
  static constexpr double kPointNs = 0.3;

  static void run(const void* args, int64_t begin, int64_t end, Worker& worker) {
    const auto& k = *static_cast<const ProductThenEpilogue*>(args);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t batch = unit / k.row_units_, row = unit % k.row_units_ * k.unit_rows_, rows = std::min(k.unit_rows_, k.rows_ - row);
      const float* const sums = worker.at<const float>(k.sums_place_) + (batch * k.rows_ + row) * k.cols_;
      k.bound_.run(k.bound_.context, worker, batch, row, rows, 0, k.cols_, sums, k.cols_);
    }
  }

  std::unique_ptr<TileEpilogue> epilogue_;
  std::unique_ptr<MatmulKernel> product_;
  MatmulEpilogue bound_;
  Ref sums_place_;
  int64_t rows_ = 0, cols_ = 0, sums_ = 0, sums_at_ = 0, unit_rows_ = 1, row_units_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_product_kernel(const Program& program, const ProgramKernel& kernel, std::vector<int64_t> row_blocks,
                                            const KernelVariant& variant) {
  const Graph& g = program.graph;
  NodeId id = kernel.group.node;
  if (g[id].op == Op::conv) return std::make_unique<FusedProduct>(kernel, [&](int64_t scratch) { return make_conv(conv_desc(program, kernel), scratch); });
  MatmulDesc desc;
  desc.a_type = g.dtype(g[id].in[0]), desc.b_type = g.dtype(g[id].in[1]);
  desc.c_type = kernel.tiles.empty() ? g.dtype(id) : DType::f32;
  auto copy = [](const std::vector<ContractionLoops::Loop>& from, std::vector<MatmulLoop>& to) {
    for (const auto& l : from) to.push_back({l.size, l.a, l.b, l.c});
  };
  desc.row_blocks = std::move(row_blocks);
  copy(kernel.loops.batch, desc.batch), copy(kernel.loops.m, desc.m), copy(kernel.loops.n, desc.n), copy(kernel.loops.k, desc.k);
  if (!variant.epilogue && !kernel.tiles.empty() && desc.row_blocks.empty()) return std::make_unique<ProductThenEpilogue>(kernel, std::move(desc), variant);
  return std::make_unique<FusedProduct>(kernel, [&](int64_t scratch) {
    desc.epilogue_scratch = scratch;
    return make_matmul(desc, variant);
  });
}

std::unique_ptr<Kernel> make_kernel(const Program& program, const ProgramKernel& kernel, int threads, const KernelVariant& variant) {
  switch (kernel.group.kind) {
    case Group::Kind::tile: return make_tile_kernel(kernel.tiles, threads, variant);
    case Group::Kind::matmul: return make_product_kernel(program, kernel, {}, variant);
    case Group::Kind::node: break;
  }
  Op op = program.graph[kernel.group.node].op;
  if (op == Op::attention) return make_attention(attention_desc(program, kernel), isa_tier(), variant);
  if (op == Op::attention_grad) return make_attention_grad(attention_desc(program, kernel), isa_tier(), variant);
  return make_node_kernel(program.graph, kernel.group.node);
}

}  // namespace ridge::cpu
