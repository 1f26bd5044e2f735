// A CUDA device in use: its context, work queue, staged copies, and its memory use as counted by the driver.
#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/chip.h"
#include "backend/cuda/kernel.h"
#include "drivers/cuda_driver.h"

namespace ridge::cuda {

// Device memory in bytes. A process holds what it requested plus what the driver takes for itself.
struct MemoryUse {
  int64_t total = 0, free = 0;
  int64_t asked = 0;    // through allocate()
  int64_t context = 0;  // taken by the driver when the process started using the device; 0: unknown
  int64_t modules = 0, graphs = 0, libraries = 0;
  int64_t held() const { return context + modules + graphs + libraries; }
};

// Counts how programs have run so far.
struct RunCounts {
  int64_t recordings = 0, replays = 0;
  int64_t direct = 0;  // without a recording: the first run with a set of addresses, or a run to locate an error
};

class Device {
 public:
  Device(int index, const std::string& driver);  // throws Errors that name what is missing and what to do
  ~Device();
  Device(const Device&) = delete;

  const Driver& driver() const { return driver_; }
  const Chip& chip() const { return chip_; }
  void use_f32_products(Precision products) { chip_.f32_products = products; }
  void use_libraries(bool cublas_lt, bool cudnn) { chip_.cublas_lt = cublas_lt, chip_.cudnn = cudnn; }
  void use_short_kernels(bool thin, bool joined, bool overlap) { chip_.thin = thin, chip_.joined = joined, chip_.overlap = overlap && driver_.launch_ex(); }
  void use_pinned(bool wanted);  // for later copies from and to the host; call inside use()
  StreamHandle stream() const { return stream_.get(); }
  StreamHandle stream(Queue queue);
  DevicePointer empty() const { return empty_.get(); }  // 256 bytes with no meaning

  // Runs `body` with the device current in this thread and locked against other threads. A lost device is reported as an Error that says so.
  template <class Body>
  decltype(auto) use(Body&& body) {
    std::lock_guard lock(mutex_);
    driver_.context_use(context_handle_);
    try {
      return body();
    } catch (const DriverError& error) {
      if (error.lost()) report_lost(error);
      throw;
    }
  }

  // As in Backend; call inside use().
  DevicePointer allocate(int64_t bytes);
  void release(DevicePointer p, int64_t bytes);
  std::byte* allocate_host(int64_t bytes);
  void release_host(std::byte* p);
  void upload(DevicePointer to, const void* from, int64_t bytes);
  void download(void* to, DevicePointer from, int64_t bytes);
  int64_t mark();
  void wait_for(int64_t mark);
  void wait();
  void order(Queue first, Queue then);

  // Records into which kernels write a bad index. They are in host memory that the device can access.
  FaultRecord* take_fault();
  void set_fault_record(FaultRecord* record);
  void raise_fault(FaultRecord& record);  // throws an Error if the record holds a fault
  void raise_faults();

  RunCounts counts;

  MemoryUse memory() const;
  int64_t free_bytes() const;
  // Adds the device memory that `body` takes to a field of memory().
  template <class Body>
  void metered(int64_t MemoryUse::*field, Body&& body) {
    const int64_t before = free_bytes();
    body();
    use_.*field += std::max<int64_t>(0, before - free_bytes());
  }

 private:
  struct Staging;
  [[noreturn]] void report_lost(const DriverError& error) const;
  void wait_event(int64_t mark);
  void finish_copies();  // in all queues, ignoring failures

  Driver driver_;
  std::recursive_mutex mutex_;
  Context context_;
  ContextHandle context_handle_ = nullptr;
  Chip chip_;
  Stream stream_, in_, out_;  // in_, out_: for copies; created on first use
  Event order_[3];            // the point each queue had reached when another was last made to wait for it
  DeviceMemory empty_;
  std::vector<Event> events_;  // of the most recent marks
  int64_t marks_ = 0, done_ = 0;
  bool pinned_ = true;
  std::unique_ptr<Staging> up_, down_;
  std::vector<PinnedMemory> fault_pages_;
  std::vector<FaultRecord*> free_faults_;
  MemoryUse use_;
};

}  // namespace ridge::cuda
