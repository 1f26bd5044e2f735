#include "backend/cuda/matmul_library.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace ridge::cuda {
namespace {

using Function = MatmulEpilogue::Function;

// The library's constants.
constexpr int kF32 = 0, kF16 = 2, kBf16 = 14;
constexpr int kComputeF32 = 68, kComputeBf16 = 75, kComputeTf32 = 77;
namespace operation {
constexpr int kTransposeFirst = 3, kTransposeSecond = 4, kEpilogue = 7, kBias = 8, kAux = 11, kAuxStride = 12, kAuxBatchStride = 13, kAuxType = 22,
              kBiasType = 26;
}
namespace matrix {
constexpr int kBatches = 5, kBatchStride = 6;
}
namespace preference {
constexpr int kMaxWorkspace = 1, kReductions = 3, kAlignmentFirst = 5, kAlignmentSecond = 6, kAlignmentAddend = 7, kAlignmentResult = 8;
}
namespace reduction {
constexpr uint32_t kInPlace = 1, kF32 = 2, kResult = 4;
}
namespace epilogue {
constexpr uint32_t kNone = 1, kRelu = 2, kBias = 4, kGelu = 32, kGeluGrad = 64, kAux = 128;
}
namespace algorithm {
constexpr int kParts = 2, kReduction = 3, kStages = 6, kFirstOwnStages = 32;
}
constexpr int kInvalidValue = 7, kNotSupported = 15;

// 0 if the library does not know it.
int attribute(const CublasLt& lt, const LtAlgorithm& algorithm, int which) {
  int32_t value = 0;
  size_t written = 0;
  return lt.algorithm_get.quietly(&algorithm, which, &value, sizeof value, &written) == 0 ? value : 0;
}

int number_of(DType t) { return t == DType::f32 ? kF32 : t == DType::bf16 ? kBf16 : kF16; }

uint32_t epilogue_number(const MatmulEpilogue& e) {
  uint32_t bits = 0;
  if (e.bias) bits |= epilogue::kBias;
  if (e.function == Function::relu) bits |= epilogue::kRelu;
  if (e.function == Function::gelu) bits |= epilogue::kGelu | (e.aux ? epilogue::kAux : 0);
  if (e.function == Function::gelu_grad) bits |= epilogue::kGeluGrad | epilogue::kAux;
  return bits ? bits : epilogue::kNone;
}

}  // namespace

LibraryMatrix like_result(const LibraryProduct& p, const MatmulArray& a) {
  return {a.type, p.result.rows, p.result.columns, std::max(a.row, p.result.rows), a.batch};
}

int64_t bytes_of(const LibraryMatrix& m, int64_t batches) {
  return m.columns > 0 ? ((m.columns - 1) * m.stride + m.rows + (batches - 1) * m.batch_stride) * size_of(m.type) : 0;
}

double LibraryCall::flops() const {
  const int64_t depth = product.transpose_first ? product.first.rows : product.first.columns;
  return 2.0 * double(product.result.rows) * double(product.result.columns) * double(depth) * double(product.batches * product.calls());
}

std::string LibraryCall::key() const {
  const LibraryProduct& p = product;
  auto matrix = [](const LibraryMatrix& m) { return fmt::format("{}[{}x{}/{}+{}]", name(m.type), m.rows, m.columns, m.stride, m.batch_stride); };
  std::string text = fmt::format("{}{}·{}{}={} b{}", matrix(p.first), p.transpose_first ? "T" : "", matrix(p.second), p.transpose_second ? "T" : "",
                                 matrix(p.result), p.batches);
  if (f32_products != Precision::fp32) text += f32_products == Precision::tf32 ? " tf32" : " by bf16";
  if (!epilogue.name().empty()) text += " " + epilogue.name();
  if (epilogue.addend) text += fmt::format("/{}", epilogue.addend.row);
  if (epilogue.aux) text += fmt::format("/{}", epilogue.aux.row);
  return text + fmt::format(" @{},{},{},{},{}", alignment_first, alignment_second, alignment_result, alignment_addend, alignment_bias);
}

std::optional<LibraryCall> library_call(const MatmulProblem& problem, const MatmulEpilogue& e) {
  const std::optional<LibraryProduct> product = library_product(problem, e.result.type);
  if (!product) return std::nullopt;
  LibraryCall call;
  call.product = *product, call.epilogue = e, call.f32_products = problem.f32_products;
  if (e.bias || e.addend || e.aux) {
    if (!product->swapped || !product->outside.empty()) return std::nullopt;
    if (e.addend && e.addend.type != e.result.type) return std::nullopt;
    // Rows of gelu's stored input must be a multiple of 8 elements.
    if (e.aux && (e.aux.type != e.result.type || e.aux.row % 8 || e.aux.batch % 8 || e.aux.offset * size_of(e.aux.type) % 16)) return std::nullopt;
    if (e.bias && e.bias.type != e.result.type) {
      if (e.result.type == DType::f32 || e.bias.type != DType::f32) return std::nullopt;
      call.convert_bias = true;
    }
  }
  return call;
}

LibraryCall smaller(LibraryCall call, int64_t bytes) {
  LibraryProduct& p = call.product;
  auto total = [&] {
    int64_t n = bytes_of(p.first, p.batches) + bytes_of(p.second, p.batches) + bytes_of(p.result, p.batches);
    if (call.epilogue.addend) n += bytes_of(like_result(p, call.epilogue.addend), p.batches);
    if (call.epilogue.aux) n += bytes_of(like_result(p, call.epilogue.aux), p.batches);
    return n;
  };
  p.outside.clear();
  auto set_columns = [&](int64_t n) { p.result.columns = n, (p.transpose_second ? p.second.rows : p.second.columns) = n; };
  auto set_rows = [&](int64_t n) { p.result.rows = n, (p.transpose_first ? p.first.columns : p.first.rows) = n; };
  auto set_depth = [&](int64_t n) { (p.transpose_first ? p.first.rows : p.first.columns) = n, (p.transpose_second ? p.second.columns : p.second.rows) = n; };
  while (total() > bytes) {
    const int64_t depth = p.transpose_first ? p.first.rows : p.first.columns;
    if (p.batches > 1)
      p.batches = (p.batches + 1) / 2;
    else if (p.result.columns >= 2048 && p.result.columns >= p.result.rows)
      set_columns((p.result.columns / 2 + 127) / 128 * 128);
    else if (depth >= 8192 && depth >= p.result.rows)
      set_depth((depth / 2 + 127) / 128 * 128);
    else if (p.result.rows >= 2048)
      set_rows((p.result.rows / 2 + 127) / 128 * 128);
    else if (p.result.columns >= 2048)
      set_columns((p.result.columns / 2 + 127) / 128 * 128);
    else
      break;
  }
  return call;
}

LtSums sums_of(const CublasLt& lt, const LtAlgorithm& algorithm) {
  return {attribute(lt, algorithm, algorithm::kParts), attribute(lt, algorithm, algorithm::kReduction)};
}

// Recent algorithms choose the number of stages themselves.
bool is_recent(const CublasLt& lt, const LtAlgorithm& algorithm) { return attribute(lt, algorithm, algorithm::kStages) >= algorithm::kFirstOwnStages; }

LibraryMatmul::Layout LibraryMatmul::layout(const LibraryMatrix& m) const {
  LtLayout handle = nullptr;
  lt_.layout_create(&handle, number_of(m.type), uint64_t(m.rows), uint64_t(m.columns), m.stride);
  Layout out(handle, lt_.layout_destroy);
  if (call_.product.batches > 1) {
    const int32_t batches = int32_t(call_.product.batches);
    lt_.layout_set(handle, matrix::kBatches, &batches, sizeof batches);
    lt_.layout_set(handle, matrix::kBatchStride, &m.batch_stride, sizeof m.batch_stride);
  }
  return out;
}

LibraryMatmul::LibraryMatmul(const CublasLt& lt, const LibraryCall& call) : lt_(lt), call_(call) {
  const LibraryProduct& p = call_.product;
  const MatmulEpilogue& e = call_.epilogue;
  LtOperation handle = nullptr;
  const Precision products = p.first.type == DType::f32 ? call.f32_products : Precision::fp32;
  lt.operation_create(&handle, products == Precision::tf32 ? kComputeTf32 : products == Precision::bf16 ? kComputeBf16 : kComputeF32, kF32);
  operation_ = {handle, lt.operation_destroy};
  auto set = [&](int which, const auto& value) { lt.operation_set(handle, which, &value, sizeof value); };
  set(operation::kTransposeFirst, int32_t(p.transpose_first));
  set(operation::kTransposeSecond, int32_t(p.transpose_second));
  set(operation::kEpilogue, epilogue_number(e));
  if (e.bias) set(operation::kBiasType, int32_t(number_of(p.result.type)));
  if (e.aux) {
    set(operation::kAuxStride, std::max(e.aux.row, p.result.rows));
    if (p.batches > 1) set(operation::kAuxBatchStride, e.aux.batch);
  }
  first_ = layout(p.first), second_ = layout(p.second), result_ = layout(p.result);
  if (e.addend) addend_ = layout(like_result(p, e.addend));
}

std::vector<LtHeuristic> LibraryMatmul::proposals(int most, int64_t workspace_bytes) const {
  // The library infers alignment from the pointers; these are never dereferenced.
  const DevicePointer bias = DevicePointer(call_.alignment_bias), aux = 16;
  if (call_.epilogue.bias) lt_.operation_set(operation_.get(), operation::kBias, &bias, sizeof bias);
  if (call_.epilogue.aux) lt_.operation_set(operation_.get(), operation::kAux, &aux, sizeof aux);
  LtPreference handle = nullptr;
  lt_.preference_create(&handle);
  const Owned preference(handle, lt_.preference_destroy);
  auto set = [&](int which, const auto& value) { lt_.preference_set(handle, which, &value, sizeof value); };
  set(preference::kMaxWorkspace, uint64_t(workspace_bytes));
  // Parts of a depth are added in f32 and in a fixed order: in workspace, or in the result if it is f32.
  set(preference::kReductions, call_.product.result.type == DType::f32 ? reduction::kInPlace | reduction::kF32 | reduction::kResult : reduction::kF32);
  set(preference::kAlignmentFirst, uint32_t(call_.alignment_first)), set(preference::kAlignmentSecond, uint32_t(call_.alignment_second));
  set(preference::kAlignmentAddend, uint32_t(call_.epilogue.addend ? call_.alignment_addend : call_.alignment_result)),
      set(preference::kAlignmentResult, uint32_t(call_.alignment_result));
  std::vector<LtHeuristic> found(size_t(most), LtHeuristic{});
  int count = 0;
  const LtLayout addend = call_.epilogue.addend ? addend_.get() : result_.get();
  const int code =
      lt_.heuristics.quietly(lt_.handle(), operation_.get(), first_.get(), second_.get(), addend, result_.get(), handle, most, found.data(), &count);
  if (code == kNotSupported || code == kInvalidValue) return {};
  if (code != 0) lt_.refuse(lt_.heuristics.symbol(), code);
  found.resize(size_t(count));
  std::erase_if(found, [&](const LtHeuristic& h) { return h.state != 0 || h.workspace > size_t(workspace_bytes); });
  return found;
}

void LibraryMatmul::enqueue(const LtAlgorithm& algorithm, const LibraryAddresses& at, int64_t workspace_bytes, StreamHandle stream) const {
  const LibraryProduct& p = call_.product;
  const MatmulEpilogue& e = call_.epilogue;
  const float alpha = float(e.alpha), beta = e.addend ? 1 : 0;
  if (e.bias) lt_.operation_set(operation_.get(), operation::kBias, &at.bias, sizeof at.bias);
  if (e.aux) lt_.operation_set(operation_.get(), operation::kAux, &at.aux, sizeof at.aux);
  const int64_t calls = p.calls();
  for (int64_t i = 0; i < calls; ++i) {
    int64_t first = 0, second = 0, result = 0, index = i;
    for (auto l = p.outside.rbegin(); l != p.outside.rend(); ++l) {
      const int64_t digit = index % l->size;
      index /= l->size;
      first += digit * (p.swapped ? l->b : l->a), second += digit * (p.swapped ? l->a : l->b), result += digit * l->c;
    }
    const DevicePointer to = at.result + DevicePointer(result * size_of(p.result.type));
    lt_.matmul(lt_.handle(), operation_.get(), &alpha, at.first + DevicePointer(first * size_of(p.first.type)), first_.get(),
               at.second + DevicePointer(second * size_of(p.second.type)), second_.get(), &beta, e.addend ? at.addend : to,
               e.addend ? addend_.get() : result_.get(), to, result_.get(), &algorithm, at.workspace, size_t(workspace_bytes), stream);
  }
}

}  // namespace ridge::cuda
