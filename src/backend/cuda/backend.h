// The backend for one NVIDIA GPU.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "backend/cuda/cubins.h"
#include "backend/cuda/device.h"
#include "drivers/cuda_libraries.h"

namespace ridge::cuda {

class CublasLt;
class Cudnn;
class Modules;

struct CudaOptions {
  int device = 0;
  std::string driver = driver_library();
  std::optional<LibrarySearch> libraries = {};  // empty: the standard locations
  CubinOptions cubins = {};
  bool cudnn = cudnn_wanted();                    // if it is installed
  std::vector<std::string> off = switched_off();  // of what shortens chains of short kernels: thin, joined, overlap
  bool debug = debug_wanted();                    // wait and check after every launch
  int timed = timed_run();                        // the run of each program whose kernels are timed and printed; 0: none

  static bool cudnn_wanted();                      // unless RIDGE_CUDNN=0
  static std::vector<std::string> switched_off();  // RIDGE_CUDA_OFF, separated by commas
  static bool debug_wanted();                      // RIDGE_CUDA_DEBUG=1
  static int timed_run();                          // RIDGE_CUDA_PROFILE=N
};

// A backend must outlive its executables and tensors. Runs and copies are enqueued on one queue and return immediately; a bad index or a failing kernel is
// reported as an Error by the next call that waits, or by the next run. A lost device is reported as a DriverError with lost().
class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options = {});  // throws ErrorCode::unsupported, naming what is missing and how to get it
  ~CudaBackend() override;

  DeviceInfo info() const override;
  std::string remark() const override { return remark_; }
  ridge::DeviceMemory memory() const override;
  ArithmeticUnit arithmetic() const override;
  void use_f32_products(Precision format) override;
  Precision f32_products() const override;
  void use_pinned_memory(bool wanted) override;  // allocate_host() returns memory that the device can access either way
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* p, int64_t bytes) override;
  void upload(void* to, const void* from, int64_t bytes) override;
  void download(void* to, const void* from, int64_t bytes) override;
  void copy(void* to, const void* from, int64_t bytes) override;
  void clear(void* to, int64_t bytes) override;
  int64_t mark() override;
  void wait_for(int64_t mark) override;
  void wait() override;
  std::byte* allocate_host(int64_t bytes) override;
  void release_host(std::byte* p, int64_t bytes) override;
  void upload_later(void* to, const void* from, int64_t bytes, Queue queue = Queue::work) override;
  void download_later(void* to, const void* from, int64_t bytes, Queue queue = Queue::work) override;
  void order(Queue first, Queue then) override;
  bool behind() const override { return true; }
  bool convolutions() const override { return true; }
  bool convolutions_read_bytes() const override { return true; }
  bool runs(const Graph& graph, NodeId node) const override;
  bool channels_last(const Graph& graph, NodeId conv) const override;
  bool stores_permuted(const Graph& graph, NodeId permuted) const override;
  std::map<std::string, std::string> choices() const override;
  void use_choices(const std::map<std::string, std::string>& choices) override;
  std::unique_ptr<Code> compile(Program program) override;

  const Chip& chip() const;
  const RunCounts& counts() const;
  MemoryUse memory_use() const;                              // by category, as counted by the driver
  const std::string& no_cudnn() const { return no_cudnn_; }  // why convolutions do not use it
  Cubins::Statistics kernels() const;                        // compiled and found in the cache so far
  Device& device() { return *device_; }
  const CublasLt* cublas_lt() const { return lt_.get(); }

 private:
  CudaOptions options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Modules> modules_;
  std::unique_ptr<CublasLt> lt_;
  std::unique_ptr<Cudnn> cudnn_;
  std::string remark_, no_cudnn_;
};

std::unique_ptr<CudaBackend> make_cuda_backend(int device = 0);

}  // namespace ridge::cuda
