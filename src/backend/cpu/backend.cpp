#include "backend/cpu/backend.h"

#include <fmt/format.h>

#include "backend/cpu/compiled.h"
#include "backend/cpu/conv.h"
#include "backend/cpu/variant.h"
#include "backend/kernel_log.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/ops/class_error.h"
#include "machine/features.h"
#include "threads/thread_team.h"

namespace ridge::cpu {
namespace {

class CpuCode : public Code {
 public:
  CpuCode(Program program, ThreadTeam& team, CompiledProgram::Choices* choices) : team_(team), compiled_(std::move(program), team, choices) {}
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
std::unique_ptr<Code> CpuBackend::compile(Program program) { return std::make_unique<CpuCode>(std::move(program), team_(), choices_.get()); }

// Stored with this prefix, so that they are told from other choices of a run.
std::map<std::string, std::string> CpuBackend::choices() const {
  std::map<std::string, std::string> all;
  if (choices_)
    for (const auto& [key, variant] : choices_->used) all[std::string(kKernelChoice) + key] = variant;
  return all;
}

void CpuBackend::use_choices(const std::map<std::string, std::string>& choices) {
  choices_ = std::make_unique<CompiledProgram::Choices>();
  for (const auto& [word, variant] : choices) {
    if (!word.starts_with(kKernelChoice)) continue;
    const std::string key = word.substr(kKernelChoice.size());
    for (const KernelCandidate& c : kernel_candidates(key))
      if (c.name == variant) choices_->wanted[key] = variant;  // one of another version is left out, so that it shows among the choices that changed
  }
}

std::unique_ptr<Backend> CpuBackend::with_choices(const std::map<std::string, std::string>& choices) const {
  auto other = std::make_unique<CpuBackend>(team_);
  other->use_choices(choices);
  return other;
}

namespace {

// All threads, half, … one; then coarser grains for all.
std::vector<ThreadTeam::Sharing> ways_to_share(int threads) {
  std::vector<ThreadTeam::Sharing> ways;
  for (int n = threads; n >= 1; n /= 2) ways.push_back({.threads = n});
  if (threads > 1) ways.push_back({.threads = threads, .coarseness = 4});
  return ways;
}

}  // namespace

std::vector<std::string> CpuBackend::sharings() const {
  std::vector<std::string> words;
  for (const ThreadTeam::Sharing& way : ways_to_share(team_().size()))
    words.push_back(fmt::format("threads={}{}", way.threads, way.coarseness > 1 ? fmt::format(" grains={}", way.coarseness) : ""));
  return words;
}

void CpuBackend::use_sharing(size_t way) { team_().use(ways_to_share(team_().size())[way]); }

std::vector<std::string> CpuBackend::tunable_kernels() const {
  return choices_ ? std::vector<std::string>(choices_->seen.begin(), choices_->seen.end()) : std::vector<std::string>();
}

std::vector<KernelCandidate> CpuBackend::kernel_candidates(std::string_view key) const {
  std::vector<KernelCandidate> all;
  for (const NamedVariant& v : kernel_variants())
    if (applies(v, key)) all.push_back({std::string(v.name), v.same_bits});
  return all;
}

}  // namespace ridge::cpu
