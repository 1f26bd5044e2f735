#include "backend/cuda/backend.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "backend/cuda/code.h"
#include "backend/cuda/make.h"
#include "backend/cuda/modules.h"
#include "backend/gpu/compiled.h"
#include "base/error.h"
#include "drivers/cublas_lt.h"
#include "drivers/cudnn.h"

namespace ridge::cuda {
namespace {

DevicePointer address(const void* p) { return DevicePointer(reinterpret_cast<uintptr_t>(p)); }
std::byte* pointer(DevicePointer p) { return reinterpret_cast<std::byte*>(uintptr_t(p)); }

// On a lost device there is nothing left to release, so its error is ignored.
template <class Body>
void unless_lost(Body&& body) {
  try {
    body();
  } catch (const DriverError& error) {
    if (!error.lost()) throw;
  }
}

}  // namespace

bool CudaOptions::cudnn_wanted() {
  const char* value = std::getenv("RIDGE_CUDNN");
  const std::string_view text = value ? value : "";
  if (text.empty() || text == "1") return true;
  if (text != "0") fail(ErrorCode::usage, "RIDGE_CUDNN is '{}'; valid: 0 (do not use cuDNN) and 1 (use it)", text);
  return false;
}

std::vector<std::string> CudaOptions::switched_off() {
  const char* value = std::getenv("RIDGE_CUDA_OFF");
  std::vector<std::string> words;
  std::istringstream text(value ? value : "");
  for (std::string word; std::getline(text, word, ',');) {
    if (word != "thin" && word != "joined" && word != "overlap") fail(ErrorCode::usage, "RIDGE_CUDA_OFF names '{}'; valid: thin, joined, overlap", word);
    words.push_back(word);
  }
  return words;
}

bool CudaOptions::debug_wanted() {
  const char* value = std::getenv("RIDGE_CUDA_DEBUG");
  return value && *value && std::string_view(value) != "0";
}

int CudaOptions::timed_run() {
  const char* value = std::getenv("RIDGE_CUDA_PROFILE");
  return value ? std::atoi(value) : 0;
}

CudaBackend::CudaBackend(const CudaOptions& options) : options_(options), device_(std::make_unique<Device>(options.device, options.driver)) {
  const LibrarySearch search = options.libraries ? *options.libraries : library_search(device_->driver().version());
  device_->use([&] {
    modules_ = std::make_unique<Modules>(*device_, search, options.cubins);
    try {
      device_->metered(&MemoryUse::libraries, [&] { lt_ = std::make_unique<CublasLt>(search); });
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      remark_ = fmt::format("{}; Ridge's own matmul kernels are used", error.what());
    }
    // Programs without convolutions do not need cuDNN; the plans of programs with convolutions report that it is missing.
    try {
      if (!options.cudnn) fail(ErrorCode::unsupported, "cuDNN is switched off (RIDGE_CUDNN=0)");
      cudnn_ = std::make_unique<Cudnn>(search);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      no_cudnn_ = error.what();
    }
    device_->use_libraries(lt_ != nullptr, cudnn_ != nullptr);
    auto on = [&](const char* word) { return std::ranges::find(options.off, word) == options.off.end(); };
    device_->use_short_kernels(on("thin"), on("joined"), on("overlap"));
  });
}

CudaBackend::~CudaBackend() {
  unless_lost([&] { device_->use([&] { cudnn_.reset(); }); });
  lt_.reset(), modules_.reset();
}

DeviceInfo CudaBackend::info() const {
  const Chip& chip = device_->chip();
  return {"cuda", fmt::format("{}, compute capability {}.{}, {} multiprocessors", chip.name, chip.major, chip.minor, chip.multiprocessors), chip.name};
}

ridge::DeviceMemory CudaBackend::memory() const {
  const MemoryUse use = memory_use();
  return {use.total, use.free, use.held()};
}

ArithmeticUnit CudaBackend::arithmetic() const {
  const Chip& chip = device_->chip();
  return {.device = {ridge::Device::Kind::cuda, 0}, .name = chip.name, .capability = 10 * chip.major + chip.minor};
}

void CudaBackend::use_f32_products(Precision format) { device_->use_f32_products(format); }
Precision CudaBackend::f32_products() const { return device_->chip().f32_products; }

std::byte* CudaBackend::allocate(int64_t bytes) {
  return device_->use([&] { return pointer(device_->allocate(bytes)); });
}
void CudaBackend::release(std::byte* p, int64_t bytes) {
  unless_lost([&] { device_->use([&] { device_->release(address(p), bytes); }); });
}
void CudaBackend::upload(void* to, const void* from, int64_t bytes) {
  device_->use([&] { device_->upload(address(to), from, bytes); });
}
void CudaBackend::download(void* to, const void* from, int64_t bytes) {
  device_->use([&] { device_->download(to, address(from), bytes); });
}
void CudaBackend::copy(void* to, const void* from, int64_t bytes) {
  if (bytes) device_->use([&] { device_->driver().copy_on_device(address(to), address(from), size_t(bytes), device_->stream()); });
}
void CudaBackend::clear(void* to, int64_t bytes) {
  if (bytes) device_->use([&] { device_->driver().fill_bytes(address(to), 0, size_t(bytes), device_->stream()); });
}
int64_t CudaBackend::mark() {
  return device_->use([&] { return device_->mark(); });
}
void CudaBackend::wait_for(int64_t mark) {
  device_->use([&] { device_->wait_for(mark); });
}
void CudaBackend::wait() {
  device_->use([&] { device_->wait(); });
}
std::byte* CudaBackend::allocate_host(int64_t bytes) {
  return device_->use([&] { return device_->allocate_host(bytes); });
}
void CudaBackend::release_host(std::byte* p, int64_t) {
  unless_lost([&] { device_->use([&] { device_->release_host(p); }); });
}
void CudaBackend::upload_later(void* to, const void* from, int64_t bytes, Queue queue) {
  if (bytes) device_->use([&] { device_->driver().copy_to_device(address(to), from, size_t(bytes), device_->stream(queue)); });
}
void CudaBackend::download_later(void* to, const void* from, int64_t bytes, Queue queue) {
  if (bytes) device_->use([&] { device_->driver().copy_to_host(to, address(from), size_t(bytes), device_->stream(queue)); });
}
void CudaBackend::order(Queue first, Queue then) {
  device_->use([&] { device_->order(first, then); });
}

bool CudaBackend::runs(const Graph& graph, NodeId node) const { return has_kernel(graph, node, device_->chip()); }
bool CudaBackend::channels_last(const Graph& graph, NodeId conv) const { return conv_channels_last(graph, conv, device_->chip()); }
bool CudaBackend::stores_permuted(const Graph& graph, NodeId permuted) const { return conv_stores_permuted(graph, permuted, device_->chip()); }
std::map<std::string, std::string> CudaBackend::choices() const {
  std::map<std::string, std::string> all = device_->use([&] { return modules_->used_choices(); });
  // A different library or compiler version gives different bits.
  all["cublasLt"] = lt_ ? std::to_string(lt_->version()) : "none";
  all["nvrtc"] = modules_->nvrtc().version();
  return all;
}
void CudaBackend::use_choices(const std::map<std::string, std::string>& choices) {
  device_->use([&] { modules_->use_choices(choices); });
}
std::unique_ptr<Code> CudaBackend::compile(Program program) {
  return std::make_unique<CudaCode>(std::move(program), *device_, *modules_, lt_.get(), cudnn_.get(),
                                    CodeOptions{.debug = options_.debug, .timed = options_.timed});
}

const Chip& CudaBackend::chip() const { return device_->chip(); }
void CudaBackend::use_pinned_memory(bool wanted) {
  device_->use([&] { device_->use_pinned(wanted); });
}
const RunCounts& CudaBackend::counts() const { return device_->counts; }
MemoryUse CudaBackend::memory_use() const {
  return device_->use([&] { return device_->memory(); });
}
Cubins::Statistics CudaBackend::kernels() const { return modules_->cubins().statistics(); }

std::unique_ptr<CudaBackend> make_cuda_backend(int device) {
  CudaOptions options;
  options.device = device;
  return std::make_unique<CudaBackend>(options);
}

}  // namespace ridge::cuda
