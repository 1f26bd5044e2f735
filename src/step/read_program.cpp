#include "step/read_program.h"

#include "backend/backend.h"
#include "base/error.h"
#include "compile/autocast.h"
#include "compile/plan_memory.h"

namespace ridge {
namespace {

constexpr uint32_t kReadStream = 0x52000000;  // outside the range of a step's own streams
constexpr size_t kNumbers = 3;                // seed, number, base

}  // namespace

ReadProgram::ReadProgram(TrainStep& step, const std::vector<Type>& inputs, const Build& build) : step_(step) {
  Graph g;
  std::vector<NodeId> parameters, given;
  for (const Parameter& p : step.model().parameters) parameters.push_back(g.input({DType::f32, p.shape}, p.name));
  const RandomOperands random{g.input({DType::i64, {}}, "seed"), g.input({DType::i64, {}}, "number"), g.input({DType::i64, {}}, "base"), kReadStream};
  for (size_t i = 0; i < inputs.size(); ++i) given.push_back(g.input(inputs[i], fmt::format("input {}", i)));
  Builder b(g);
  std::vector<NodeId> outputs = build(b, parameters, given, random);
  const StepOptions& o = step.options();
  if (o.precision == Precision::bf16 || o.precision == Precision::fp16)  // as the step multiplies
    outputs = autocast(g, outputs, o.precision == Precision::bf16 ? DType::bf16 : DType::f16);
  std::vector<NodeId> all = parameters;
  all.insert(all.end(), {random.seed, random.step, random.base});
  all.insert(all.end(), given.begin(), given.end());
  CompileOptions options(*o.backend);
  options.passes = o.passes;
  program_ = std::make_unique<Executable>(g, all, outputs, options);

  memory_ = std::make_unique<Arena>(*o.backend);
  int64_t offset = 0;
  auto place = [&](const Type& type) { at_.push_back(offset), offset += (type.bytes() + kAlignment - 1) / kAlignment * kAlignment; };
  for (size_t i = parameters.size(); i < all.size(); ++i) place(g.type(all[i]));
  for (NodeId id : outputs) place(g.type(id));
  memory_->require(offset);
}

void ReadProgram::run(std::span<const void* const> inputs, std::span<void* const> outputs, uint64_t seed, int64_t number) {
  if (step_.pending() > 0) fail(ErrorCode::usage, "[read] {} steps are enqueued and may be changing the weights; collect them first", step_.pending());
  const std::vector<Type>&in_types = program_->input_types(), &out_types = program_->output_types();
  const size_t parameters = step_.model().parameters.size();
  if (parameters + kNumbers + inputs.size() != in_types.size() || outputs.size() != out_types.size())
    fail(ErrorCode::binding, "[read] got {} inputs and {} outputs, the program has {} and {}", inputs.size(), outputs.size(),
         in_types.size() - parameters - kNumbers, out_types.size());
  Backend& device = step_.device();
  in_.clear(), out_.clear();
  for (size_t i = 0; i < parameters; ++i) in_.push_back(step_.parameter_place(i));
  const int64_t numbers[kNumbers] = {int64_t(seed), number, 0};
  size_t k = 0;
  auto bring = [&](const void* from) {
    std::byte* to = memory_->data() + at_[k];
    device.upload(to, from, in_types[parameters + k].bytes());
    in_.push_back(to), ++k;
  };
  for (const int64_t& n : numbers) bring(&n);
  for (const void* from : inputs) bring(from);
  for (size_t i = 0; i < outputs.size(); ++i) out_.push_back(memory_->data() + at_[k + i]);
  program_->run(in_, out_);
  for (size_t i = 0; i < outputs.size(); ++i) device.download(outputs[i], out_[i], out_types[i].bytes());
}

int64_t ReadProgram::bytes() const { return memory_->bytes() + program_->report().planned_bytes; }

}  // namespace ridge
