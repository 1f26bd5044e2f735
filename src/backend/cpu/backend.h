// The host's cores as a device.
#pragma once
#include "backend/backend.h"

namespace ridge {
class ThreadTeam;
}

namespace ridge::cpu {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(ThreadTeam& team) : team_(team) {}
  DeviceInfo info() const override;
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* p, int64_t bytes) override;
  void upload(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, int64_t bytes) override;
  std::unique_ptr<Code> compile(Program program) override;

 private:
  ThreadTeam& team_;
};

}  // namespace ridge::cpu
