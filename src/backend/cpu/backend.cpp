#include "backend/cpu/backend.h"

#include <fmt/format.h>

#include "backend/cpu/compiled.h"
#include "backend/cpu/conv.h"
#include "backend/kernel_log.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/class_error.h"
#include "machine/features.h"
#include "threads/thread_team.h"

namespace ridge::cpu {
namespace {

class CpuCode : public Code {
 public:
  CpuCode(Program program, ThreadTeam& team) : team_(team), compiled_(std::move(program), team) {}
  const Program& program() const override { return compiled_.program(); }
  int64_t workspace_bytes() const override { return compiled_.workspace_bytes(); }
  int64_t scratch_bytes() const override { return compiled_.scratch_bytes() * team_.size(); }
  size_t loop_kernels(size_t kernel) const override { return compiled_.loop_kernels(kernel); }
  std::string dump() const override { return compiled_.dump(); }

  void prepare() override { team_.reserve_scratch(compiled_.scratch_bytes()); }

  void run(std::byte* arena, std::span<const void* const> inputs, std::span<void* const> outputs) override {
    team_.reserve_scratch(compiled_.scratch_bytes());
    fault_.raised = false;
    if (KernelLog* log = current_log())
      compiled_.run(arena, inputs, outputs, fault_, *log);
    else
      compiled_.run(arena, inputs, outputs, fault_);
    if (!fault_.raised) return;
    if (fault_.position >= 0) fail(ErrorCode::value, "{}", class_error(fault_.value, fault_.position, fault_.limit));
    fail(ErrorCode::value, "[run] index {} is out of range: valid are 0 to {}", fault_.value, fault_.limit - 1);
  }

 private:
  ThreadTeam& team_;
  CompiledProgram compiled_;
  Fault fault_;
};

}  // namespace

DeviceInfo CpuBackend::info() const { return {"cpu", fmt::format("{}, {}", name(isa_tier()), counted(team_().size(), "thread"))}; }
bool CpuBackend::runs(const Graph& graph, NodeId node) const { return graph[node].op != Op::conv || has_conv_kernel(graph, node); }
bool CpuBackend::stores_permuted(const Graph& graph, NodeId permuted) const { return sums_over_taps(conv_desc(graph, graph[permuted].in[0])); }
std::unique_ptr<Code> CpuBackend::compile(Program program) { return std::make_unique<CpuCode>(std::move(program), team_()); }

}  // namespace ridge::cpu
