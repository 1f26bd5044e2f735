#include "step/compiled_step.h"

#include <set>
#include <utility>

#include "backend/backend.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/nearest.h"
#include "eager/eager_device.h"
#include "eager/tensor_state.h"

namespace ridge {

Optimizer adamw(const AdamArgs& a) { return {Optimizer::Kind::adamw, a.lr, a.beta1, a.beta2, a.eps, a.decay}; }
Optimizer adam(const AdamArgs& a) { return {Optimizer::Kind::adam, a.lr, a.beta1, a.beta2, a.eps, a.decay}; }
Optimizer sgd(const SgdArgs& a) { return {Optimizer::Kind::sgd, a.lr, 0, 0, 0, a.decay, a.momentum, a.nesterov}; }
Optimizer muon(const MuonArgs& a) { return {Optimizer::Kind::muon, a.lr, a.beta1, a.beta2, a.eps, a.decay, a.momentum, a.nesterov, a.scale}; }

void detail::check_loss_arguments(size_t taken, size_t given) {
  if (given < taken) fail(ErrorCode::usage, "[step] the loss takes {} tensors, but the batch has {}", taken, given);
}

int64_t parse_bytes(const std::string& text) {
  if (const std::optional<int64_t> bytes = bytes_of(text)) return *bytes;
  fail(ErrorCode::usage, "[memory] \"{}\" is not a size; write for example 512MiB or 2GiB", text);
}

namespace {

StepModel::Loss traced(Step::LossFn loss, std::span<const Tensor> parameters) {
  const auto names = std::make_shared<std::vector<std::string>>();  // of the scalars
  ReadProgram::Build values = traced_function(
      [loss = std::move(loss), names](const std::vector<Tensor>& batch) {
        Loss l = loss(batch);
        std::vector<Tensor> all = {l.sum, l.count};
        names->clear();
        for (const NamedScalar& s : l.scalars) all.insert(all.end(), {s.sum, s.count}), names->push_back(s.name);
        return all;
      },
      parameters, "[step] the loss may use only parameters, the batch and numbers; it uses a");
  return [values = std::move(values), names](Builder& b, std::span<const NodeId> params, std::span<const NodeId> inputs, const RandomOperands& random) {
    const std::vector<NodeId> out = values(b, params, inputs, random);
    StepLoss traced(Builder::SumCount{out[0], out[1]});
    for (size_t i = 0; i < names->size(); ++i) traced.scalars.push_back({(*names)[i], {out[2 * i + 2], out[2 * i + 3]}});
    return traced;
  };
}

// Sets the format of f32 products while a step is compiled; eager tensors, which share the device, keep theirs.
class ProductFormat {
 public:
  ProductFormat(Backend& backend, Precision precision) : backend_(backend), before_(backend.f32_products()) {
    backend.use_f32_products(precision == Precision::tf32 ? Precision::tf32 : Precision::fp32);
  }
  ~ProductFormat() { backend_.use_f32_products(before_); }
  ProductFormat(const ProductFormat&) = delete;

 private:
  Backend& backend_;
  const Precision before_;
};

}  // namespace

// Parameters are held weakly because they will own the step.
ReadProgram::Build traced_function(TensorFunction function, std::span<const Tensor> parameters, std::string refusal) {
  std::vector<std::weak_ptr<detail::TensorState>> originals;
  for (const Tensor& p : parameters) originals.push_back(p.state());
  return [function = std::move(function), originals = std::move(originals), refusal = std::move(refusal)](
             Builder& b, std::span<const NodeId> params, std::span<const NodeId> inputs, const RandomOperands& random) -> std::vector<NodeId> {
    std::vector<Tensor> leaves;
    for (NodeId id : inputs) leaves.push_back(detail::placeholder(b.graph().type(id), b.graph().input_name(id)));
    detail::RandomSource source{detail::placeholder({DType::i64, {}}, "seed"), detail::placeholder({DType::i64, {}}, "step"),
                                detail::placeholder({DType::i64, {}}, "base"), 1};
    struct Restore {
      detail::RandomSource* before = detail::current_random();
      ~Restore() { detail::current_random() = before; }
    } restore;
    detail::current_random() = &source;
    const std::vector<Tensor> all = function(leaves);
    std::shared_ptr<detail::Lazy> lazy = detail::common_lazy(all);
    std::vector<NodeId> roots;
    for (const Tensor& t : all) roots.push_back(detail::node_in(lazy, t));
    std::unordered_map<NodeId, NodeId> known;
    auto bind = [&](const std::shared_ptr<detail::TensorState>& t, NodeId to) {
      if (auto it = lazy->node_of.find(t.get()); it != lazy->node_of.end()) known[it->second] = to;
    };
    for (size_t i = 0; i < leaves.size(); ++i) bind(leaves[i].state(), inputs[i]);
    for (size_t i = 0; i < originals.size(); ++i) bind(originals[i].lock(), params[i]);
    bind(source.seed.state(), random.seed), bind(source.step.state(), random.step), bind(source.base.state(), random.base);
    detail::bind_numbers(*lazy, roots, b, known, refusal);
    return import_nodes(b.graph(), lazy->graph, roots, known);
  };
}

detail::EagerDevice& step_device(const std::string& name) {
  return name.empty() ? detail::eager_device() : detail::eager_device(select_device(name, Fallback::forbid).device);
}

PrecisionChoice step_precision(const std::string& request, const detail::EagerDevice& device, const RateLookup& rates) {
  return choose_precision(request, Fallback::forbid, device.backend->arithmetic(), rates);
}

StepModel step_model(const Step& step, const std::vector<BatchSpec>& batch) {
  StepModel model;
  std::vector<Tensor> originals;
  std::set<std::string_view> names;
  for (const NamedTensor& p : step.parameters()) {
    if (!names.insert(p.name).second) fail(ErrorCode::value, "[step] two parameters are called {}; give them different names in visit()", p.name);
    if (p.tensor->dtype() != DType::f32) fail(ErrorCode::dtype, "[step] parameter {} is {}; parameters are f32", p.name, name(p.tensor->dtype()));
    p.tensor->eval();
    model.parameters.push_back({p.name, p.tensor->shape(), 0, 0, p.decay, 0, p.rule});
    originals.push_back(*p.tensor);
  }
  for (const BatchSpec& b : batch) model.batch.push_back({b.dtype, b.shape});
  model.loss = traced(step.loss(), originals);
  if (step.evaluate()) model.evaluate = traced(step.evaluate(), originals);
  return model;
}

std::shared_ptr<CompiledStep::State> compile_step(const Step& step, const std::vector<BatchSpec>& batch, StepOptions options, detail::EagerDevice& device) {
  StepModel model = step_model(step, batch);
  std::vector<Tensor> originals;
  for (const NamedTensor& p : step.parameters()) originals.push_back(*p.tensor);
  options.optimizer = step.optimizer();
  options.backend = device.backend.get();
  const ProductFormat format(*device.backend, options.precision);
  const std::vector<Parameter> parameters = model.parameters;
  return std::make_shared<CompiledStep::State>(TrainStep(std::move(model), std::move(options)), batch, parameters, step.optimizer().lr, originals);
}

void start_step(const std::shared_ptr<CompiledStep::State>& state, detail::EagerDevice& device, bool touch) {
  TrainStep& step = state->step;
  const ProductFormat format(*device.backend, step.options().precision);
  if (touch || step.options().precision == Precision::tf32) step.touch();  // some kernels are chosen only then, and must use this format too
  const std::vector<Tensor> tensors = std::exchange(state->tensors, {});
  std::vector<std::weak_ptr<detail::TensorState>> moved;  // weak: they own the step
  for (size_t i = 0; i < tensors.size(); ++i) {
    step.write(TrainStep::Held::parameter, i, {static_cast<const float*>(tensors[i].data()), size_t(tensors[i].size())});
    // The tensor keeps its identity; from now on its bytes belong to the step, and keep the step alive.
    const std::shared_ptr<std::byte> place(state, static_cast<std::byte*>(const_cast<void*>(step.parameter_place(i))));
    if (step.in_place())
      share_memory(*tensors[i].state(), place);
    else
      share_memory(*tensors[i].state(), place, device);
    moved.push_back(tensors[i].state());
  }
  step.before_parameters_change([moved = std::move(moved)] { detail::evaluate_readers(moved); });
}

CompiledStep Step::compile(const std::vector<BatchSpec>& batch, const CompileArgs& args) const {
  StepOptions o;
  o.clip = args.clip, o.micro = args.micro, o.seed = args.seed, o.evaluation = false;
  if (!args.memory.empty() && args.memory != "auto") o.memory = parse_bytes(args.memory);
  detail::EagerDevice& device = step_device(args.device);
  o.precision = step_precision(args.precision, device).precision;
  const std::shared_ptr<CompiledStep::State> state = compile_step(*this, batch, o, device);
  start_step(state, device, false);
  return CompiledStep(state);
}

StepResult CompiledStep::run(const std::vector<Tensor>& batch) { return run(batch, state_->lr); }

std::array<const void*, kMaxBatchTensors> batch_data(const std::vector<Tensor>& batch, const std::vector<BatchSpec>& specs) {
  if (batch.size() != specs.size()) fail(ErrorCode::binding, "[step] got {} batch tensors, the step was compiled for {}", batch.size(), specs.size());
  std::array<const void*, kMaxBatchTensors> data = {};
  if (batch.size() > data.size()) fail(ErrorCode::binding, "[step] at most {} batch tensors", data.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    const BatchSpec& want = specs[i];
    if (!(batch[i].shape() == want.shape) || batch[i].dtype() != want.dtype)
      fail(ErrorCode::shape, "[step] batch tensor {} is {}{}, the step was compiled for {}{}", i, name(batch[i].dtype()), to_string(batch[i].shape()),
           name(want.dtype), to_string(want.shape));
    data[i] = batch[i].data();
  }
  return data;
}

StepResult CompiledStep::run(const std::vector<Tensor>& batch, double lr) {
  const auto data = batch_data(batch, state_->batch);
  const StepMetrics m = state_->step.run({data.data(), batch.size()}, lr);
  StepResult result{m.loss, m.gradient_norm, m.applied, {}};
  const std::vector<std::string>& names = state_->step.scalars();
  for (size_t i = 0; i < names.size(); ++i) result.scalars.emplace_back(names[i], m.scalars[i]);
  return result;
}

double StepResult::scalar(std::string_view name) const {
  std::vector<std::string_view> names;
  for (const auto& [known, value] : scalars) {
    if (known == name) return value;
    names.push_back(known);
  }
  fail(ErrorCode::value, "[step] the loss reports no scalar \"{}\"; {}", name, nearest_hint(name, names, "add it with Loss::with"));
}

std::string CompiledStep::report() const { return state_->step.report(); }
std::string CompiledStep::dump() const { return state_->step.dump(); }
int64_t CompiledStep::planned_bytes() const { return state_->step.plan().planned_bytes; }
int64_t CompiledStep::micro_batch() const { return state_->step.plan().micro; }
int64_t CompiledStep::kernels() const { return state_->step.plan().kernels; }

}  // namespace ridge
