#include "backend/reference/backend.h"

#include "backend/reference/evaluate.h"
#include "compile/program.h"

namespace ridge::reference {
namespace {

class ReferenceCode : public Code {
 public:
  explicit ReferenceCode(Program program) : program_(std::move(program)) {}
  const Program& program() const override { return program_; }
  int64_t workspace_bytes() const override { return 0; }
  int64_t scratch_bytes() const override { return 0; }
  size_t loop_kernels(size_t) const override { return 0; }
  std::string dump() const override { return to_string(program_); }

  void run(std::byte*, std::span<const void* const> inputs, std::span<void* const> outputs) override {
    const Graph& graph = program_.graph;
    std::unordered_map<NodeId, Array> values;
    for (size_t i = 0; i < inputs.size(); ++i) values[program_.inputs[i]] = from_bytes(graph.type(program_.inputs[i]), inputs[i]);
    const std::vector<Array> results = evaluate(graph, program_.outputs, values, Rounding::stored);
    for (size_t i = 0; i < outputs.size(); ++i) to_bytes(results[i], outputs[i]);
  }

 private:
  Program program_;
};

}  // namespace

std::unique_ptr<Code> ReferenceBackend::compile(Program program) { return std::make_unique<ReferenceCode>(std::move(program)); }

}  // namespace ridge::reference
