#include "drivers/cublas_lt.h"

#include "base/error.h"

namespace ridge::cuda {
namespace {

// The library's constants for types, compute modes and attributes.
constexpr int kF32 = 0, kF16 = 2, kBf16 = 14;
constexpr int kComputeF32 = 68, kComputeTf32 = 77;
constexpr int kTransposeA = 3, kMaxWorkspace = 1;
constexpr int kNotSupported = 15;

int type_of(Precision precision) {
  switch (precision) {
    case Precision::bf16: return kBf16;
    case Precision::fp16: return kF16;
    default: return kF32;
  }
}

FoundLibrary open(const LibrarySearch& search) {
  FoundLibrary found = open_library(Library::cublas_lt, search);
  if (!found.library) fail(ErrorCode::unsupported, "{}", found.missing);
  return found;
}

}  // namespace

int64_t element_bytes(Precision precision) { return type_of(precision) == kF32 ? 4 : 2; }

CublasLt::CublasLt(const LibrarySearch& search) : found_(open(search)) {
  LtHandle handle = nullptr;
  create(&handle);
  handle_ = {handle, destroy};
}

size_t CublasLt::version() const {
  size_t (*get)() = nullptr;
  return library().bind(get, "cublasLtGetVersion") ? get() : 0;
}

void CublasLt::throw_missing(const char* symbol) const { fail(ErrorCode::unsupported, "{} lacks {}: install cuBLAS 12 or newer", found_.path, symbol); }

void CublasLt::refuse(const char* symbol, int code) const {
  const char* (*status_name)(int) = nullptr;
  const char* text = library().bind(status_name, "cublasLtGetStatusName") ? status_name(code) : nullptr;
  constexpr int kNoMemory = 3;
  const char* remedy =
      code == kNoMemory ? "nvidia-smi shows which processes use the GPU's memory" : "the library may not match the driver or the GPU: install a newer one";
  fail(code == kNoMemory ? ErrorCode::memory : ErrorCode::io, "[{}] {} ({}); {}", symbol, text ? text : "unknown status", code, remedy);
}

SquareMatmul::SquareMatmul(const CublasLt& lt, Precision precision, int64_t n, bool transpose_a, int64_t workspace_bytes)
    : lt_(lt), workspace_bytes_(workspace_bytes) {
  LtOperation operation = nullptr;
  lt.operation_create(&operation, precision == Precision::tf32 ? kComputeTf32 : kComputeF32, kF32);
  operation_ = {operation, lt.operation_destroy};
  const int transpose = transpose_a;
  lt.operation_set(operation, kTransposeA, &transpose, sizeof transpose);
  LtLayout layout = nullptr;
  lt.layout_create(&layout, type_of(precision), uint64_t(n), uint64_t(n), n);
  layout_ = {layout, lt.layout_destroy};
}

std::vector<LtHeuristic> SquareMatmul::algorithms(int most) const {
  LtPreference handle = nullptr;
  lt_.preference_create(&handle);
  const Owned preference(handle, lt_.preference_destroy);
  const uint64_t bytes = uint64_t(workspace_bytes_);
  lt_.preference_set(handle, kMaxWorkspace, &bytes, sizeof bytes);
  std::vector<LtHeuristic> found(size_t(most), LtHeuristic{});
  int count = 0;
  const LtLayout layout = layout_.get();
  const int code = lt_.heuristics.quietly(lt_.handle(), operation_.get(), layout, layout, layout, layout, handle, most, found.data(), &count);
  if (code == kNotSupported) return {};
  if (code != 0) lt_.refuse(lt_.heuristics.symbol(), code);
  found.resize(size_t(count));
  std::erase_if(found, [](const LtHeuristic& h) { return h.state != 0; });
  return found;
}

void SquareMatmul::run(const LtAlgorithm& algorithm, DevicePointer a, DevicePointer b, DevicePointer d, DevicePointer workspace, StreamHandle stream) const {
  const float one = 1, zero = 0;
  const LtLayout layout = layout_.get();
  lt_.matmul(lt_.handle(), operation_.get(), &one, a, layout, b, layout, &zero, d, layout, d, layout, &algorithm, workspace, size_t(workspace_bytes_), stream);
}

}  // namespace ridge::cuda
