#include "drivers/cudnn.h"

#include <fmt/core.h>

#include "base/error.h"

namespace ridge::cuda {
namespace {

constexpr int kDnnOldest = 8500;

// The library's constants for descriptors, types and attributes.
enum DnnKind {
  kDnnOperator = 1,
  kDnnEngine = 2,
  kDnnConfig = 3,
  kDnnHeuristic = 4,
  kDnnPlan = 5,
  kDnnForward = 10,
  kDnnByWeights = 11,
  kDnnByX = 12,
  kDnnGraph = 15,
  kDnnPack = 16,
  kDnnTensor = 17
};
enum DnnType {
  kDnnHandleType = 0,
  kDnnDataType = 1,
  kDnnI64 = 3,
  kDnnF32 = 4,
  kDnnPointer = 6,
  kDnnMode = 7,
  kDnnHeuristicMode = 8,
  kDnnNote = 11,
  kDnnDescriptor = 15,
  kDnnBehaviour = 19
};
enum DnnAttribute {
  kDnnComputeType = 100,
  kDnnOperatorMode,
  kDnnDilations,
  kDnnStrides,
  kDnnPaddingsAfter,
  kDnnPaddingsBefore,
  kDnnSpatial,
  kDnnHeuristicKind = 200,
  kDnnHeuristicGraph,
  kDnnHeuristicResults,
  kDnnConfigEngine = 300,
  kDnnPlanHandle = 400,
  kDnnPlanConfig,
  kDnnPlanWorkspace,
  kDnnForwardAlpha = 700,
  kDnnForwardBeta,
  kDnnForwardOperator,
  kDnnForwardW,
  kDnnForwardX,
  kDnnForwardY,
  kDnnByXAlpha,
  kDnnByXBeta,
  kDnnByXOperator,
  kDnnByXW,
  kDnnByXResult,
  kDnnByXY,
  kDnnByWeightsAlpha,
  kDnnByWeightsBeta,
  kDnnByWeightsOperator,
  kDnnByWeightsResult,
  kDnnByWeightsX,
  kDnnByWeightsY,
  kDnnGraphHandle = 800,
  kDnnGraphOperations,
  kDnnTensorAlignment = 900,
  kDnnTensorType,
  kDnnTensorSizes,
  kDnnTensorStrides,
  kDnnTensorId = 906,
  kDnnPackIds = 1000,
  kDnnPackPointers,
  kDnnPackWorkspace = 1003,
  kDnnEngineNumber = 1301,
  kDnnEngineNotes = 1303,
  kDnnEngineBehaviours = 1305,
};
constexpr int kDnnCorrelation = 1;
constexpr uint64_t kDnnIsCompiled = 1;              // one of the behaviour notes
constexpr int kDnnBestFirst = 3, kDnnFallback = 2;  // kinds of heuristics
enum DnnNote { kDnnMatrixUnits = 0, kDnnNarrowsFactors = 1, kDnnNarrowSums = 2, kDnnFourier = 3, kDnnNondet = 4, kDnnWinograd = 5, kDnnWinogradLast = 8 };

int cudnn_type(DType t) { return t == DType::f32 ? 0 : t == DType::f16 ? 2 : 9; }

FoundLibrary open_cudnn(const LibrarySearch& search) {
  FoundLibrary found = open_library(Library::cudnn, search);
  if (!found.library) fail(ErrorCode::unsupported, "{}", found.missing);
  return found;
}

std::string array_text(const CudnnArray& a) {
  std::string text = fmt::format("{} {}", name(a.type), a.alignment);
  for (size_t i = 0; i < 4; ++i) text += fmt::format(" {}:{}", a.sizes[i], a.strides[i]);
  return text;
}

}  // namespace

Cudnn::Cudnn(const LibrarySearch& search) : found_(open_cudnn(search)) {}

int Cudnn::version() const {
  size_t (*get)() = nullptr;
  return library().bind(get, "cudnnGetVersion") ? int(get()) : 0;
}

CudnnHandle Cudnn::handle() const {
  if (started()) return handle_.get();
  if (!failure_.empty()) fail(ErrorCode::unsupported, "{}", failure_);
  try {
    start();
  } catch (const Error& error) {
    failure_ = error.what();
    throw;
  }
  return handle_.get();
}

void Cudnn::start() const {
  // It loads these itself, and aborts the process if it cannot.
  for (const std::string& part : found_.parts)
    if (!parts_.emplace_back(part)) fail(ErrorCode::unsupported, "cuDNN cannot be used ({}); reinstall it", parts_.back().error());
  const int v = version();
  if (v < kDnnOldest)
    fail(ErrorCode::unsupported, "{} is cuDNN {}.{}, too old: install 8.5 or newer (pip install nvidia-cudnn-cu13 or nvidia-cudnn-cu12)", found_.path, v / 1000,
         v % 1000 / 100);
  CudnnHandle handle = nullptr;
  if (const int code = create.quietly(&handle); code != 0)
    fail(ErrorCode::unsupported, "[{}] {} could not be started (status {}); it may not match the driver or the GPU: install another version", create.symbol(),
         found_.path, code);
  handle_ = {handle, destroy};
}

void Cudnn::throw_missing(const char* symbol) const { fail(ErrorCode::unsupported, "{} lacks {}: install cuDNN 8.5 or newer", found_.path, symbol); }

void Cudnn::refuse(const char* symbol, int code) const {
  const char* (*status_name)(int) = nullptr;
  const char* text = library().bind(status_name, "cudnnGetErrorString") ? status_name(code) : nullptr;
  // Version 9: out of host or device memory; then version 8.
  const bool memory = code == 4003 || code == 4004 || code == 2;
  fail(memory ? ErrorCode::memory : ErrorCode::io, "[{}] {} ({}); RIDGE_CUDNN=0 uses Ridge's own kernels instead", symbol, text ? text : "unknown status",
       code);
}

std::string CudnnConv::key() const {
  std::string text = fmt::format("{} x {} w {} y {}", int(result), array_text(x), array_text(w), array_text(y));
  for (const Axes& a : {stride, low, high, dilation}) text += fmt::format(" {},{}", a[0], a[1]);
  return text + (exact ? " exact" : "");
}

CudnnConvolution::Descriptor CudnnConvolution::make(int kind) const {
  CudnnDescriptor descriptor = nullptr;
  cudnn_.descriptor_create(kind, &descriptor);
  return {descriptor, cudnn_.descriptor_destroy};
}

template <class T>
void CudnnConvolution::set(const Descriptor& descriptor, int attribute, int type, const T& value) const {
  constexpr bool array = requires { value.size(); };
  if constexpr (array)
    cudnn_.descriptor_set(descriptor.get(), attribute, type, int64_t(value.size()), value.data());
  else
    cudnn_.descriptor_set(descriptor.get(), attribute, type, 1, &value);
}

CudnnConvolution::Descriptor CudnnConvolution::tensor(const CudnnArray& array, int64_t id) const {
  Descriptor t = make(kDnnTensor);
  set(t, kDnnTensorType, kDnnDataType, cudnn_type(array.type));
  set(t, kDnnTensorSizes, kDnnI64, array.sizes), set(t, kDnnTensorStrides, kDnnI64, array.strides);
  set(t, kDnnTensorId, kDnnI64, id), set(t, kDnnTensorAlignment, kDnnI64, array.alignment);
  cudnn_.descriptor_finish(t.get());
  return t;
}

CudnnConvolution::CudnnConvolution(const Cudnn& cudnn, const CudnnConv& conv) : cudnn_(cudnn), conv_(conv) {
  CudnnHandle handle = cudnn.handle();
  x_ = tensor(conv.x, 1), w_ = tensor(conv.w, 2), y_ = tensor(conv.y, 3);
  operator_ = make(kDnnOperator);
  set(operator_, kDnnSpatial, kDnnI64, int64_t(2));
  set(operator_, kDnnComputeType, kDnnDataType, cudnn_type(DType::f32)), set(operator_, kDnnOperatorMode, kDnnMode, kDnnCorrelation);
  set(operator_, kDnnStrides, kDnnI64, conv.stride), set(operator_, kDnnDilations, kDnnI64, conv.dilation);
  set(operator_, kDnnPaddingsBefore, kDnnI64, conv.low), set(operator_, kDnnPaddingsAfter, kDnnI64, conv.high);
  cudnn.descriptor_finish(operator_.get());

  using Result = CudnnConv::Result;
  const Result r = conv.result;
  operation_ = make(r == Result::y ? kDnnForward : r == Result::x ? kDnnByX : kDnnByWeights);
  set(operation_, r == Result::y ? kDnnForwardX : r == Result::x ? kDnnByXResult : kDnnByWeightsX, kDnnDescriptor, x_.get());
  set(operation_, r == Result::y ? kDnnForwardW : r == Result::x ? kDnnByXW : kDnnByWeightsResult, kDnnDescriptor, w_.get());
  set(operation_, r == Result::y ? kDnnForwardY : r == Result::x ? kDnnByXY : kDnnByWeightsY, kDnnDescriptor, y_.get());
  set(operation_, r == Result::y ? kDnnForwardOperator : r == Result::x ? kDnnByXOperator : kDnnByWeightsOperator, kDnnDescriptor, operator_.get());
  set(operation_, r == Result::y ? kDnnForwardAlpha : r == Result::x ? kDnnByXAlpha : kDnnByWeightsAlpha, kDnnF32, 1.f);
  set(operation_, r == Result::y ? kDnnForwardBeta : r == Result::x ? kDnnByXBeta : kDnnByWeightsBeta, kDnnF32, 0.f);
  cudnn.descriptor_finish(operation_.get());

  graph_ = make(kDnnGraph);
  set(graph_, kDnnGraphOperations, kDnnDescriptor, operation_.get()), set(graph_, kDnnGraphHandle, kDnnHandleType, handle);
  cudnn.descriptor_finish(graph_.get());
}

std::vector<CudnnConvolution::Proposal> CudnnConvolution::proposals() const {
  std::vector<Proposal> all;
  // Notes that cannot be read are treated as all bits set, which qualifies for nothing.
  auto bits = [&](CudnnDescriptor engine, int attribute, int type) {
    int values[64] = {};
    int64_t count = 0;
    if (cudnn_.descriptor_get.quietly(engine, attribute, type, 64, &count, values) != 0) return ~uint64_t(0);
    uint64_t set = 0;
    for (int64_t i = 0; i < std::min<int64_t>(count, 64); ++i) set |= uint64_t(1) << (values[i] & 63);
    return set;
  };
  for (int mode : {kDnnBestFirst, kDnnFallback}) {
    const Descriptor heuristic = make(kDnnHeuristic);
    set(heuristic, kDnnHeuristicGraph, kDnnDescriptor, graph_.get()), set(heuristic, kDnnHeuristicKind, kDnnHeuristicMode, mode);
    if (cudnn_.descriptor_finish.quietly(heuristic.get()) != 0) continue;
    int64_t count = 0;
    if (cudnn_.descriptor_get.quietly(heuristic.get(), kDnnHeuristicResults, kDnnDescriptor, 0, &count, nullptr) != 0 || count <= 0) continue;
    const size_t before = all.size();
    std::vector<CudnnDescriptor> configs;
    for (int64_t i = 0; i < count; ++i) all.emplace_back().config = make(kDnnConfig), configs.push_back(all.back().config.get());
    if (cudnn_.descriptor_get.quietly(heuristic.get(), kDnnHeuristicResults, kDnnDescriptor, count, &count, configs.data()) != 0) count = 0;
    all.resize(before + size_t(count));
  }
  for (Proposal& p : all) {
    const Descriptor engine = make(kDnnEngine);
    CudnnDescriptor handle = engine.get();
    int64_t count = 0;
    if (cudnn_.descriptor_get.quietly(p.config.get(), kDnnConfigEngine, kDnnDescriptor, 1, &count, &handle) != 0) continue;
    if (cudnn_.descriptor_get.quietly(handle, kDnnEngineNumber, kDnnI64, 1, &count, &p.engine) != 0) continue;
    const uint64_t notes = bits(handle, kDnnEngineNotes, kDnnNote);
    auto has = [&](int note) { return (notes >> note & 1) != 0; };
    p.allowed = !(bits(handle, kDnnEngineBehaviours, kDnnBehaviour) & kDnnIsCompiled) && !has(kDnnNondet) && !has(kDnnNarrowsFactors) && !has(kDnnNarrowSums) &&
                !has(kDnnFourier);
    for (int n = kDnnWinograd; n <= kDnnWinogradLast; ++n) p.allowed &= !has(n);
    if (conv_.exact && conv_.x.type == DType::f32) p.allowed &= !has(kDnnMatrixUnits);
  }
  return all;
}

std::optional<CudnnConvolution::Plan> CudnnConvolution::plan(Proposal proposal) const {
  Plan plan{std::move(proposal.config), make(kDnnPlan)};
  set(plan.descriptor, kDnnPlanHandle, kDnnHandleType, cudnn_.handle()), set(plan.descriptor, kDnnPlanConfig, kDnnDescriptor, plan.config.get());
  int64_t count = 0;
  if (cudnn_.descriptor_finish.quietly(plan.descriptor.get()) != 0) return std::nullopt;
  if (cudnn_.descriptor_get.quietly(plan.descriptor.get(), kDnnPlanWorkspace, kDnnI64, 1, &count, &plan.workspace_bytes) != 0) return std::nullopt;
  return plan;
}

void CudnnConvolution::enqueue(const Plan& plan, const Addresses& at, StreamHandle stream) const {
  const Descriptor pack = make(kDnnPack);
  const std::array<int64_t, 3> ids{1, 2, 3};
  const std::array<DevicePointer, 3> pointers{at.x, at.w, at.y};
  set(pack, kDnnPackIds, kDnnI64, ids), set(pack, kDnnPackPointers, kDnnPointer, pointers), set(pack, kDnnPackWorkspace, kDnnPointer, at.workspace);
  cudnn_.descriptor_finish(pack.get());
  cudnn_.set_stream(cudnn_.handle(), stream);
  cudnn_.execute(cudnn_.handle(), plan.descriptor.get(), pack.get());
}

}  // namespace ridge::cuda
