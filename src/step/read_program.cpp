#include "step/read_program.h"

#include "backend/backend.h"
#include "base/error.h"
#include "compile/autocast.h"
#include "compile/plan_memory.h"

namespace ridge {
namespace {

constexpr uint32_t kReadStream = 0x52000000;  // outside the range of a step's own streams

}  // namespace

ReadProgram::ReadProgram(TrainStep& step, const std::vector<Type>& inputs, const Build& build, std::optional<size_t> kept)
    : step_(step), in_place_(kept.has_value()) {
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
  for (size_t i = 0; i < kept.value_or(0); ++i) options.state.push_back({int(parameters.size() + kNumbers + i), int(i)});
  program_ = std::make_unique<Executable>(g, all, outputs, options);

  memory_ = std::make_unique<Arena>(*o.backend);
  int64_t offset = 0;
  auto place = [&](const Type& type) { at_.push_back(offset), offset += (type.bytes() + kAlignment - 1) / kAlignment * kAlignment; };
  for (size_t i = parameters.size(); i < (in_place_ ? parameters.size() + kNumbers : all.size()); ++i) place(g.type(all[i]));
  if (!in_place_)
    for (NodeId id : outputs) place(g.type(id));
  memory_->require(offset);
}

// Binds the parameters and the numbers that draws depend on.
void ReadProgram::bind_first(size_t inputs, size_t outputs, uint64_t seed, int64_t number) {
  const size_t parameters = step_.model().parameters.size(), all = program_->input_types().size();
  if (parameters + kNumbers + inputs != all || outputs != program_->output_types().size())
    fail(ErrorCode::binding, "[read] got {} inputs and {} outputs, the program has {} and {}", inputs, outputs, all - parameters - kNumbers,
         program_->output_types().size());
  in_.clear(), out_.clear();
  for (size_t i = 0; i < parameters; ++i) in_.push_back(step_.parameter_place(i));
  const std::array<int64_t, kNumbers> numbers = {int64_t(seed), number, 0};
  if (numbers != numbers_)
    for (size_t k = 0; k < kNumbers; ++k) step_.device().upload(memory_->data() + at_[k], &numbers[k], sizeof numbers[k]);
  numbers_ = numbers;
  for (size_t k = 0; k < kNumbers; ++k) in_.push_back(memory_->data() + at_[k]);
}

void ReadProgram::run_in_place(std::span<const void* const> inputs, std::span<void* const> outputs, uint64_t seed, int64_t number) {
  bind_first(inputs.size(), outputs.size(), seed, number);
  in_.insert(in_.end(), inputs.begin(), inputs.end());
  program_->run(in_, outputs);
}

void ReadProgram::run(std::span<const void* const> inputs, std::span<void* const> outputs, uint64_t seed, int64_t number) {
  if (step_.pending() > 0) fail(ErrorCode::usage, "[read] {} steps are enqueued and may be changing the weights; collect them first", step_.pending());
  bind_first(inputs.size(), outputs.size(), seed, number);
  const std::vector<Type>&in_types = program_->input_types(), &out_types = program_->output_types();
  Backend& device = step_.device();
  size_t k = kNumbers;
  for (const void* from : inputs) {
    std::byte* to = memory_->data() + at_[k];
    device.upload(to, from, in_types[in_.size()].bytes());
    in_.push_back(to), ++k;
  }
  for (size_t i = 0; i < outputs.size(); ++i) out_.push_back(memory_->data() + at_[k + i]);
  program_->run(in_, out_);
  for (size_t i = 0; i < outputs.size(); ++i) device.download(outputs[i], out_[i], out_types[i].bytes());
}

int64_t ReadProgram::bytes() const { return memory_->bytes() + program_->report().planned_bytes; }

}  // namespace ridge
