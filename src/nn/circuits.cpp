// Circuits: layouts, timespans, lengths, directions and layers around the cells.
#include <cmath>

#include "base/error.h"
#include "eager/tensor_state.h"
#include "graph/ops/class_error.h"
#include "ridge/circuits.h"

namespace ridge {
namespace {

// x unchanged, but a run fails if an element's `code` is negative. No value comes back to the host for this.
Tensor guarded(const Tensor& x, int64_t limit, const std::function<NodeId(Builder&, NodeId)>& code) {
  return detail::lift1({x}, [&](Builder& b, std::span<const NodeId> n) {
    const NodeId zero = b.graph().add(Op::check_class, {code(b, n[0])}, {{limit}, {}, nullptr});
    return b.add(n[0], b.cast(zero, b.dtype(n[0])));
  });
}

Tensor checked_timespans(const Tensor& t) {
  return guarded(cast(t, DType::f32), kCheckTimespans, [](Builder& b, NodeId x) {
    const NodeId finite = b.unary(Op::is_finite, x), negative = b.binary(Op::less, x, 0.0);
    const NodeId size = b.cast(b.clamp(b.binary(Op::mul, b.unary(Op::abs, b.select(finite, x, b.like(x, 0))), 1e6), 0, 1e15), DType::i64);
    auto number = [&](double value) { return b.full(b.shape(x), DType::i64, value); };
    const NodeId other = b.select(b.binary(Op::not_equal, x, x), number(-1), b.select(negative, number(-3), number(-2)));
    return b.select(finite, b.select(negative, b.sub(number(-4), size), number(0)), other);
  });
}

Tensor checked_lengths(const Tensor& lengths, int64_t steps) {
  return guarded(lengths, kCheckLengths + steps, [&](Builder& b, NodeId n) {
    const NodeId zero = b.like(n, 0), beyond = b.select(b.binary(Op::greater, n, double(steps)), b.add(n, double(kCheckLengths)), zero);
    return b.select(b.binary(Op::less, n, 0.0), n, beyond);
  });
}

// Time first, with a column per sequence: [time] or [time, batch, 1]; a scalar stays one.
Tensor laid_out_timespans(const Tensor& t, int64_t batch, int64_t steps, bool batch_first, bool batched) {
  const Shape& s = t.shape();
  if (s.rank() == 0 || (s.rank() == 1 && s[0] == steps)) return checked_timespans(t);
  if (!batched && s == Shape{steps, 1}) return checked_timespans(reshape(t, {steps}));
  const Shape two = batch_first ? Shape{batch, steps} : Shape{steps, batch};
  if (batched && (s == two || s == Shape{two[0], two[1], 1})) {
    const Tensor flat = reshape(checked_timespans(t), two);
    return reshape(batch_first ? transpose(flat) : flat, {steps, batch, 1});
  }
  fail(ErrorCode::shape, "[circuit] timespans {} do not fit {}; use a scalar, [{}]{}", to_string(s),
       batched ? fmt::format("{} sequences of {} steps", batch, steps) : fmt::format("one sequence of {} steps", steps), steps,
       batched ? fmt::format(", {} or {}", to_string(two), to_string(Shape{two[0], two[1], 1})) : fmt::format(" or [{}, 1]", steps));
}

}  // namespace

std::vector<int64_t> Circuit::Track::states() const {
  std::vector<int64_t> sizes = cell->states();
  if (lstm) sizes.push_back(lstm->states()[1]);
  return sizes;
}

std::vector<Tensor> Circuit::Track::step(const Tensor& x, const std::vector<Tensor>& state, const Tensor& timespan, bool training) const {
  if (!lstm) return cell->step(x, state, timespan, training);
  const std::vector<Tensor> remembered = lstm->step(x, state, timespan, training);
  return {cell->step(x, {remembered[0]}, timespan, training)[0], remembered[1]};
}

Circuit::Circuit(CircuitArgs args) : Circuit(std::move(args), CellMaker()) {}

Circuit::Circuit(CircuitArgs args, const CellMaker& own) : args_(std::move(args)), own_cells_(own != nullptr) {
  if (args_.layers < 1 || args_.layers > 1000) fail(ErrorCode::value, "[circuit] layers is {}; use 1 to 1000", args_.layers);
  if (args_.projection < 0) fail(ErrorCode::value, "[circuit] projection is {}; use at least 1, or 0 for none", args_.projection);
  const size_t wirings = args_.wiring.size(), layers = size_t(args_.layers);
  if (wirings > 1 && wirings != layers) fail(ErrorCode::value, "[circuit] {} wirings for {} layers; give one, or one each", wirings, layers);
  if (wirings) args_.wiring.resize(layers, args_.wiring[0]);
  int64_t inputs = args_.inputs;
  if (wirings && !inputs) inputs = args_.wiring[0].inputs();
  if (wirings && !inputs)
    fail(ErrorCode::usage, "[circuit] a wiring of {} units is not built and inputs is 0; set inputs, or call build(inputs)", args_.wiring[0].units());
  args_.inputs = inputs;
  for (size_t layer = 0; layer < layers; ++layer) {
    Wiring* wiring = wirings ? &args_.wiring[layer] : nullptr;
    if (wiring && !wiring->built()) wiring->build(inputs);
    for (int64_t direction = 0; direction < directions(); ++direction) {
      Track track{own ? own(inputs) : make_cell(args_, inputs, wiring), nullptr};
      if (track.cell->inputs() != inputs) fail(ErrorCode::shape, "[circuit] layer {} has {} inputs, its cell takes {}", layer, inputs, track.cell->inputs());
      if (args_.mixed_memory) {
        const std::vector<int64_t>& states = track.cell->states();
        if (states.size() != 1 || !track.cell->timed() || (!own && args_.cell == "ctgru"))
          fail(ErrorCode::usage, "[circuit] mixed_memory needs a cell with one state per unit and continuous time; {} is not one", own ? "yours" : args_.cell);
        CircuitArgs memory;
        memory.cell = "lstm", memory.units = states[0];
        track.lstm = make_cell(memory, inputs);
      }
      tracks_.push_back(std::move(track));
    }
    inputs = 0;
    for (int64_t direction = 0; direction < directions(); ++direction) inputs += track(int64_t(layer), direction).cell->outputs();
  }
  if (args_.projection) fc_.emplace(inputs, args_.projection);
}

int64_t Circuit::outputs() const { return args_.projection ? args_.projection : directions() * tracks_.back().cell->outputs(); }

std::vector<Tensor> Circuit::zero_state(int64_t batch) const {
  std::vector<Tensor> zeros;
  for (const Track& t : tracks_)
    for (int64_t size : t.states()) zeros.push_back(full({batch, size}, 0));
  return zeros;
}

void Circuit::visit(Visitor& v) {
  // A single layer in one direction has the names of ncps; the others put theirs below layer_1, reverse, layer_1.reverse, …
  for (int64_t i = 0; i < int64_t(tracks_.size()); ++i) {
    const int64_t layer = i / directions();
    const std::string prefix = (layer ? "layer_" + std::to_string(layer) + "." : "") + (i % directions() ? "reverse." : "");
    Track& t = tracks_[size_t(i)];
    v(prefix + "rnn_cell", *t.cell);
    if (t.lstm) v(prefix + "lstm", *t.lstm);
  }
  if (fc_) v("fc", *fc_);
}

CircuitOutput Circuit::step(const Tensor& x, const std::vector<Tensor>& state, const Tensor& timespan) const {
  if (args_.bidirectional) fail(ErrorCode::usage, "[circuit] a bidirectional circuit needs whole sequences; single steps have no future");
  CircuitOutput out{x, {}};
  size_t at = 0, wanted = 0;
  for (const Track& t : tracks_) wanted += t.states().size();
  if (state.size() != wanted) fail(ErrorCode::shape, "[circuit] {} states given, the circuit has {}", state.size(), wanted);
  for (const Track& t : tracks_) {
    const size_t count = t.states().size();
    const std::vector<Tensor> next = t.step(out.output, {state.begin() + long(at), state.begin() + long(at + count)}, timespan, false);
    out.state.insert(out.state.end(), next.begin(), next.end());
    out.output = t.cell->output(next[0]), at += count;
  }
  if (fc_) out.output = (*fc_)(out.output);
  return out;
}

CircuitOutput Circuit::operator()(const Tensor& x, const SequenceArgs& args) const {
  const Shape& given = x.shape();
  const bool batched = given.rank() == 3;
  if ((given.rank() != 2 && !batched) || given.back() != args_.inputs)
    fail(ErrorCode::shape, "[circuit] sequences {} must be [{}, {}], or [time, {}] for one sequence", to_string(given),
         args_.batch_first ? "batch, time" : "time, batch", args_.inputs, args_.inputs);
  const int64_t steps = !batched ? given[0] : given[args_.batch_first ? 1 : 0], batch = !batched ? 1 : given[args_.batch_first ? 0 : 1];
  const bool flip = batched && args_.batch_first;
  Tensor sequence = !batched ? reshape(x, {steps, 1, args_.inputs}) : flip ? transpose(x, 0, 1) : x;  // [time, batch, features]

  Tensor timespans, valid;
  if (args.timespans.defined()) {
    if (!tracks_[0].cell->timed())
      fail(ErrorCode::usage, "[circuit] the {} cell does not use timespans; append them to its inputs, or use another cell", args_.cell);
    timespans = laid_out_timespans(args.timespans, batch, steps, args_.batch_first, batched);
  }
  if (args.lengths.defined()) {
    if (!batched || !(args.lengths.shape() == Shape{batch}) || !is_integer(args.lengths.dtype()))
      fail(ErrorCode::shape, "[circuit] lengths {}{} must be i64[{}], one for each of {} sequences in a batch", name(args.lengths.dtype()),
           to_string(args.lengths.shape()), batch, batch);
    valid = reshape(iota({steps, batch}, 0) < checked_lengths(cast(args.lengths, DType::i64), steps), {steps, batch, 1});
  }

  std::vector<Tensor> state = zero_state(batch);
  if (!args.state.empty() && args.state.size() != state.size())
    fail(ErrorCode::shape, "[circuit] {} states given, the circuit has {}", args.state.size(), state.size());
  for (size_t i = 0; i < args.state.size(); ++i) {
    const Shape wanted = batched ? state[i].shape() : Shape{state[i].shape()[1]};
    if (!(args.state[i].shape() == wanted))
      fail(ErrorCode::shape, "[circuit] state {} is {}, needs {}", i, to_string(args.state[i].shape()), to_string(wanted));
    state[i] = reshape(cast(args.state[i], DType::f32), state[i].shape());
  }

  CircuitOutput out;
  size_t at = 0;
  for (int64_t layer = 0; layer < args_.layers; ++layer) {
    const bool sequences = args_.return_sequences || layer + 1 < args_.layers;
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction < directions(); ++direction) {
      const Track& t = track(layer, direction);
      const size_t count = t.states().size();
      std::vector<Tensor> per_step = {sequence};
      const bool varying = timespans.defined() && timespans.shape().rank() > 0;
      if (varying) per_step.push_back(timespans);
      if (valid.defined()) per_step.push_back(valid);
      auto body = [&](const std::vector<Tensor>& carry, const std::vector<Tensor>& now) {
        std::vector<Tensor> next = t.step(now[0], carry, varying ? now[1] : timespans, args.training);
        if (valid.defined())
          for (size_t i = 0; i < next.size(); ++i) next[i] = where(now.back(), next[i], carry[i]);
        return ScanOutput{next, sequences ? std::vector<Tensor>{next[0]} : std::vector<Tensor>{}};
      };
      ScanOutput run = scan(body, {state.begin() + long(at), state.begin() + long(at + count)}, per_step, {}, direction == 1);
      out.state.insert(out.state.end(), run.carry.begin(), run.carry.end());
      outputs.push_back(t.cell->output(sequences ? run.outputs[0] : run.carry[0])), at += count;
    }
    sequence = outputs.size() > 1 ? concat(outputs, -1) : outputs[0];
    if (sequences && valid.defined()) sequence = where(valid, sequence, full(sequence.shape(), 0));
  }
  if (args_.return_sequences && flip) {  // before the projection, which then does not mix samples and steps: a training step may split the batch
    sequence = transpose(sequence, 0, 1);
    if (valid.defined()) valid = transpose(valid, 0, 1);
  }
  out.output = fc_ ? (*fc_)(sequence) : sequence;
  if (args_.return_sequences && fc_ && valid.defined()) out.output = where(valid, out.output, full(out.output.shape(), 0));
  if (!batched) {
    out.output = reshape(out.output, args_.return_sequences ? Shape{steps, this->outputs()} : Shape{this->outputs()});
    for (Tensor& s : out.state) s = reshape(s, {s.shape()[1]});
  }
  return out;
}

}  // namespace ridge
