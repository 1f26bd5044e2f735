// The backend for the host's CPU cores.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "backend/cpu/compiled.h"
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
  std::map<std::string, std::string> choices() const override;
  void use_choices(const std::map<std::string, std::string>& choices) override;
  std::unique_ptr<Backend> with_choices(const std::map<std::string, std::string>& choices) const override;
  std::vector<std::string> tunable_kernels() const override;
  std::vector<std::string> sharings() const override;
  void use_sharing(size_t way) override;
  std::vector<KernelCandidate> kernel_candidates(std::string_view key) const override;

 private:
  std::function<ThreadTeam&()> team_;
  std::unique_ptr<CompiledProgram::Choices> choices_;  // null: kernels are built as their models say
};

}  // namespace ridge::cpu
