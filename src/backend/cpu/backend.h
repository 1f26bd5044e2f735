// The backend for the host's CPU cores.
#pragma once
#include <functional>

#include "backend/host_memory.h"

namespace ridge {
class ThreadTeam;
}

namespace ridge::cpu {

class CpuBackend : public HostBackend {
 public:
  explicit CpuBackend(ThreadTeam& team) : team_([&team]() -> ThreadTeam& { return team; }) {}
  explicit CpuBackend(std::function<ThreadTeam&()> team) : team_(std::move(team)) {}  // called when the team is first needed
  DeviceInfo info() const override;
  std::unique_ptr<Code> compile(Program program) override;

 private:
  std::function<ThreadTeam&()> team_;
};

}  // namespace ridge::cpu
