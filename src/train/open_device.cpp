#include "train/open_device.h"

#include "backend/cuda/backend.h"
#include "base/error.h"

namespace ridge {

std::shared_ptr<Backend> open_device(const Device& device) {
  switch (device.kind) {
    case Device::Kind::cpu: return nullptr;
    case Device::Kind::cuda: return cuda::make_cuda_backend(device.index);
    case Device::Kind::metal: break;
  }
  fail(ErrorCode::unsupported, "[device] this build of Ridge has no kernels for {}; ask for cpu or cuda", to_string(device));
}

DeviceMemory device_memory(const Backend* backend) {
  const auto* cuda = dynamic_cast<const cuda::CudaBackend*>(backend);
  if (!cuda) return {};
  const cuda::MemoryUse use = cuda->memory();
  return {use.total, use.free, use.held()};
}

PrecisionChoice device_precision(std::string_view request, Fallback fallback, const Backend* backend, const RateLookup& rates) {
  const auto* cuda = dynamic_cast<const cuda::CudaBackend*>(backend);
  if (!cuda) return choose_precision(request, fallback, arithmetic_of({}, {}), rates);
  const cuda::Chip& chip = cuda->chip();
  return choose_precision(request, fallback, {.device = {Device::Kind::cuda, 0}, .name = chip.name, .capability = 10 * chip.major + chip.minor});
}

void choose_products(Backend* backend, Precision precision, std::string_view matmul_precision) {
  auto* cuda = dynamic_cast<cuda::CudaBackend*>(backend);
  if (!cuda) return;
  const bool bf16 = matmul_precision == "medium" && cuda->chip().bf16(), tf32 = precision == Precision::tf32 || matmul_precision == "high";
  cuda->use_f32_products(bf16 ? cuda::F32Products::bf16 : tf32 ? cuda::F32Products::tf32 : cuda::F32Products::exact);
}

Precision product_format(const Backend* backend, Precision precision) {
  const auto* cuda = dynamic_cast<const cuda::CudaBackend*>(backend);
  if (!cuda || precision == Precision::bf16 || precision == Precision::fp16) return precision;
  const cuda::F32Products products = cuda->chip().f32_products;
  return products == cuda::F32Products::bf16 ? Precision::bf16 : products == cuda::F32Products::tf32 ? Precision::tf32 : Precision::fp32;
}

void use_pinned_memory(Backend* backend, bool wanted) {
  if (auto* cuda = dynamic_cast<cuda::CudaBackend*>(backend)) cuda->use_pinned_memory(wanted);
}

std::string device_name(const Backend* backend) {
  const auto* cuda = dynamic_cast<const cuda::CudaBackend*>(backend);
  return cuda ? cuda->chip().name : std::string();
}

std::string device_remark(const Backend* backend) {
  const auto* cuda = dynamic_cast<const cuda::CudaBackend*>(backend);
  return cuda ? cuda->remark() : std::string();
}

}  // namespace ridge
