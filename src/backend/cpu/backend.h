// The host's cores as a device.
#pragma once
#include "backend/host_memory.h"

namespace ridge {
class ThreadTeam;
}

namespace ridge::cpu {

class CpuBackend : public HostBackend {
 public:
  explicit CpuBackend(ThreadTeam& team) : team_(team) {}
  DeviceInfo info() const override;
  std::unique_ptr<Code> compile(Program program) override;

 private:
  ThreadTeam& team_;
};

}  // namespace ridge::cpu
