#include "backend/gpu/loop_kernel.h"

#include <fmt/format.h>

#include <cstring>

#include "backend/gpu/loop_text.h"

namespace ridge::gpu {
namespace {

class ResidentKernel final : public Kernel {
 public:
  ResidentKernel(const ResidentLoop& loop, const LoopProgram& program, const KernelDialect& dialect)
      : made_(loop_text(loop, dialect)), steps_(program.frame.steps()), rows_(loop.rows), blocks_(loop.blocks()), threads_(loop.threads()) {
    const std::vector<int64_t> bytes = loop_operand_bytes(program);
    const size_t carries = program.frame.carries(), results = program.body.inputs.size();
    for (int operand : made_.operands) {
      const size_t o = size_t(operand);
      const bool moves = (o >= carries && o < carries + program.frame.sequences()) || o >= results + carries;
      step_bytes_.push_back(moves && steps_ > 0 ? bytes[o] / steps_ : 0);
    }
    places_.resize(made_.operands.size());
    int products = 0;
    for (const LoopNest& nest : loop.nests) products += nest.product.has_value();
    note_ = fmt::format("resident: {} blocks of {} threads, {} rows each, {} stages, {} products{}, {} weights of a thread in registers, {} bytes shared",
                        blocks_, threads_, int64_t(loop.groups) * loop.rows_each, loop.stages, products,
                        loop.cluster > 1 ? fmt::format(" on matrix units of {} blocks{}", loop.cluster, loop.sends ? " that send their columns" : "")
                        : loop.matrix    ? " on matrix units"
                                         : "",
                        loop.weight_registers, made_.text.shared);
  }

  std::vector<KernelText> texts() const override { return {made_.text}; }
  void load(Loader& loader) override { function_ = loader.loaded(made_.text); }
  void bind(std::span<const Place> operands, Place, Place fault) override {
    for (size_t i = 0; i < places_.size(); ++i) places_[i] = operands[size_t(made_.operands[i])];
    fault_ = fault;
  }
  void enqueue(Bases bases, LaunchSink& sink) const override {
    std::vector<int64_t> args = {int64_t(at(bases, fault_)), steps_, rows_};
    for (size_t i = 0; i < places_.size(); ++i) args.push_back(int64_t(at(bases, places_[i]))), args.push_back(step_bytes_[i]);
    if (places_.empty()) args.insert(args.end(), 2, 0);
    sink.launch(function_, blocks_, threads_, made_.text.shared, std::as_bytes(std::span(args)));
  }
  std::string note() const override { return note_; }

 private:
  LoopText made_;
  int64_t steps_, rows_, blocks_;
  int threads_;
  std::vector<int64_t> step_bytes_;
  std::vector<Place> places_;
  Place fault_;
  std::string note_;
  KernelFunction function_ = nullptr;
};

}  // namespace

std::vector<int64_t> loop_operand_bytes(const LoopProgram& loop) {
  const Program& body = loop.body;
  const int64_t steps = loop.frame.steps();
  const size_t carries = loop.frame.carries(), moving = carries + loop.frame.sequences();
  std::vector<int64_t> bytes;
  auto add = [&](NodeId id, int64_t times) { bytes.push_back(body.graph.type(id).bytes() * times); };
  for (size_t i = 0; i < body.inputs.size(); ++i) add(body.inputs[i], i >= carries && i < moving ? steps : 1);
  for (size_t i = 0; i < body.outputs.size(); ++i) add(body.outputs[i], i < carries ? 1 : steps);
  for (size_t c = 0; c < carries; ++c) add(body.inputs[c], steps);
  return bytes;
}

LoopKernels make_loop_kernels(const ProgramKernel& kernel, const GpuChip& chip) {
  constexpr size_t kMostArguments = 4096;  // bytes that every driver supports
  LoopKernels made;
  if (24 + 16 * kernel.operands.size() > kMostArguments) return {{}, fmt::format("it has {} operands", kernel.operands.size())};
  const LoopCandidates candidates = plan_loop(kernel, chip);
  made.refusal = candidates.refusal;
  for (const ResidentLoop& loop : candidates.loops) made.kernels.push_back(std::make_unique<ResidentKernel>(loop, *kernel.loop, *chip.dialect));
  return made;
}

}  // namespace ridge::gpu
