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
  bool convolutions() const override { return true; }
  bool convolutions_fuse() const override { return true; }
  bool runs(const Graph& graph, NodeId node) const override;
  bool stores_permuted(const Graph& graph, NodeId permuted) const override;
  std::unique_ptr<Code> compile(Program program) override;

 private:
  std::function<ThreadTeam&()> team_;
};

}  // namespace ridge::cpu
