#include "tasks/ppo/device_rollout.h"

#include <algorithm>
#include <array>
#include <limits>

#include "backend/backend.h"
#include "compile/plan_memory.h"
#include "rl/numbers.h"
#include "step/compiled_step.h"
#include "tasks/ppo/kl_control.h"
#include "tasks/ppo/rollout.h"

namespace ridge {
namespace {

using rl::num;
using rl::whole;

constexpr long kEntropy = 6;              // place of the weight of the entropy in a minibatch (ppo_batch)
constexpr uint32_t kPickStream = 0x504F;  // of the order in which decisions are learnt from

// How a rollout's updates go on, in device memory: KlControl, then the number of updates so far. Each is a tensor of its own, so that a single kernel may
// read all of them and write those that change.
enum Control { kFactor, kSum, kApplied, kMade, kStopped, kUpdate, kControls };

// Those that change with every update, then the others: the order in which programs take them and put them out.
struct ControlOrder {
  explicit ControlOrder(const PpoArgs& args) {
    auto add = [&](bool changes, std::initializer_list<Control> some) {
      if (changes) first.insert(first.end(), some);
    };
    add(args.adaptive_kl > 0, {kFactor});
    add(args.target_kl > 0, {kStopped});
    add(!first.empty(), {kSum, kApplied, kMade});
    add(true, {kUpdate});
    all = first;
    for (int c = 0; c < kControls; ++c)
      if (std::ranges::find(all, c) == all.end()) all.push_back(Control(c));
  }
  std::array<Tensor, kControls> sorted(const std::vector<Tensor>& in) const {
    std::array<Tensor, kControls> control;
    for (size_t i = 0; i < kControls; ++i) control[all[i]] = in[i];
    return control;
  }
  std::vector<Control> first, all;
};

// What the last update tells: its KL divergence as sum and count, and whether it was applied.
struct LastUpdate {
  Tensor sum, count, applied;
};

KlControl<Tensor> control_after(const std::array<Tensor, kControls>& control, const LastUpdate& last, const PpoArgs& args) {
  const Tensor made = control[kUpdate] > num(0);
  const KlControl<Tensor> before{control[kFactor], control[kSum], control[kApplied], control[kMade], control[kStopped]};
  return after_update(before, made, logical_and(made, last.applied), last.sum / last.count, args);
}

// The new values of those that change.
std::vector<Tensor> changed(const ControlOrder& order, const KlControl<Tensor>& c, const Tensor& updates) {
  const std::array<Tensor, kControls> all = {c.factor, c.sum, c.applied, c.made, c.stopped, updates};
  std::vector<Tensor> out;
  for (Control i : order.first) out.push_back(all[i]);
  return out;
}

Tensor moments(const Tensor& rows) {  // [n, width]: means, then sums of squares
  const Tensor mean = ridge::mean(rows, {0}, true);
  return reshape(concat({mean, sum(square(rows - mean), {0}, true)}, 0), {2 * rows.shape()[1]});
}

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

struct DeviceRollout::State {
  State(TrainStep& s, std::shared_ptr<const Policy> p, std::span<const Tensor> w, const Instances& i, const PpoArgs& a, std::vector<Type> c, size_t e)
      : step(s),
        device(s.device()),
        policy(std::move(p)),
        weights(w.begin(), w.end()),
        instances(i),
        args(a),
        order(a),
        carry(std::move(c)),
        environment(e),
        memory(s.device()) {
    const std::vector<std::string>& names = step.scalars();
    kl_at = size_t(std::ranges::find(names, "kl") - names.begin());
    frame = Type{instances.spec().dtype, instances.spec().observation};
    stack = instances.options().stack;
    EnvOptions endless = instances.options();
    endless.time_limit = 0;
    cut_once = instances.options().time_limit >= args.horizon && !Instances(instances.environment_pointer(), endless).may_truncate();
    make_programs();
  }
  ~State() {
    if (told) device.release_host(told, told_bytes());
  }

  int64_t rows() const { return args.instances; }
  int64_t decisions() const { return args.decisions(); }
  int64_t segments() const { return decisions() / args.segment; }
  Tensor flat(const Tensor& x) const {  // [horizon, instances, …] -> [decisions, …]
    std::vector<int64_t> shape = {decisions()};
    for (int i = 2; i < x.shape().rank(); ++i) shape.push_back(x.shape()[i]);
    return reshape(x, Shape(shape));
  }

  void make_programs() {
    // Inputs and outputs begin with what is carried from rollout to rollout.
    std::vector<Type> in = carry;
    Shape older = frame.shape;
    older.insert(0, rows()), older.insert(0, stack - 1);
    if (stack > 1) in.push_back({frame.dtype, older});
    carried = in.size();
    const int64_t width = frame.shape.numel();
    if (args.normalize_observations) in.insert(in.end(), 2, Type{DType::f32, {width}});
    in.insert(in.end(), {{DType::f32, {2}}, {DType::f32, {}}});
    play = std::make_unique<ReadProgram>(step, in, traced_function([this](const std::vector<Tensor>& x) { return played(x); }, weights), carried);
    const std::vector<Type>& made = play->output_types();
    std::vector<Type> picked(kControls, {DType::f32, {}});
    picked.insert(picked.end(), {{DType::f32, {}}, {DType::f32, {}}, {DType::boolean, {}}});
    auto factor = [this](const std::vector<Tensor>& x) { return std::vector<Tensor>{control_after(order.sorted(x), last_of(x), args).factor}; };
    if (args.adaptive_kl > 0) closing = std::make_unique<ReadProgram>(step, picked, traced_function(factor, weights), 1);
    picked.push_back({DType::f32, {args.updates()}});
    picked.insert(picked.end(), made.begin() + long(carried), made.end() - 1);
    pick = std::make_unique<ReadProgram>(step, picked, traced_function([this](const std::vector<Tensor>& x) { return picked_from(x); }, weights),
                                         order.first.size());

    auto place = [&](const Type& t) {
      const int64_t at = memory.bytes();
      memory.require(at + aligned(t.bytes()));
      return at;
    };
    for (const Type& t : in) play_in.push_back(place(t));
    for (size_t i = carried; i < made.size(); ++i) tables.push_back(place(made[i]));
    told_count = made.back().shape.numel();
    control_at = place({DType::f32, {int64_t(kControls)}}), rates_at = place(picked[kControls + 3]);
    const std::vector<Type>& batch = pick->output_types();
    for (size_t i = order.first.size(); i + 1 < batch.size(); ++i) batch_at.push_back(place(batch[i]));
    entropy_at = place({DType::f32, {args.minibatch}});
    batch_at.insert(batch_at.begin() + kEntropy, entropy_at);
  }

  // Carry and older frames, [shift, scale,] value scale, reward factor -> the same carry, then tables of decisions, and at the end what the host reads.
  std::vector<Tensor> played(const std::vector<Tensor>& in) const {
    const int64_t E = rows(), T = args.horizon, N = decisions();
    size_t at = carried;
    Scales scales;
    if (args.normalize_observations) scales.shift = in[at++], scales.scale = in[at++];
    scales.value = in[at++];
    const Tensor reward_factor = in[at];
    const std::vector<Tensor> r = roll_out(*policy, instances, args, scales, {in.data(), carry.size()}, environment);
    at = carry.size();
    const Tensor last_value = r[at++], frames = r[at++], action = r[at++], log_p = r[at++], value = r[at++];
    Tensor reward = r[at++];
    const Tensor terminated = r[at++], truncated = r[at++], episode_return = r[at++], episode_length = r[at++];
    const Tensor age = stack > 1 ? flat(r[at++]) : Tensor(), final_frame = instances.may_truncate() ? flat(r[at++]) : Tensor(),
                 discounted = args.scale_rewards ? r[at++] : Tensor();
    const std::vector<Tensor> states(r.begin() + long(at), r.end());

    std::vector<Tensor> out(r.begin(), r.begin() + long(carry.size()));
    Tensor seen = flat(frames);
    if (stack > 1) {
      const Tensor all = concat({in[carry.size()], frames}, 0);
      out.push_back(slice(all, 0, T, T + stack - 1));
      Shape rows_of = frame.shape;
      rows_of.insert(0, (T + stack - 1) * E);
      seen = reshape(all, rows_of);
    }
    if (args.scale_rewards) reward = reward * reward_factor;
    const Tensor final_value = final_frame.defined() ? final_values(scales, seen, age, truncated, final_frame, states) : full({T, E}, 0);
    const auto [advantage, goal] = advantages(reward, value, terminated, truncated, final_value, last_value, args.gamma, args.lambda);
    const Tensor mean = slice(scales.value, 0, 0, 1), deviation = slice(scales.value, 0, 1, 2);
    out.push_back(stack > 1 ? seen : flat(scales.observation(frames)));
    if (stack > 1) out.push_back(age);
    out.insert(out.end(), {flat(action), flat(log_p), flat((value - mean) / deviation), flat(advantage), flat((goal - mean) / deviation)});

    // A new order for every epoch: of random numbers that no instance draws. The first instance's counter numbers the rollouts.
    const Tensor epoch = reshape(slice(instances.counter({in.begin(), in.begin() + long(environment)}), 0, 0, 1), {1, 1}) * whole(args.epochs) +
                         reshape(iota({args.epochs}), {args.epochs, 1});
    out.push_back(reshape(argsort(uniform_at(epoch, reshape(iota({segments()}), {1, segments()}), kPickStream), 1), {args.epochs * segments()}));

    if (policy->has_memory()) {
      const Tensor ended = cast(logical_or(terminated, truncated), DType::f32), none = full({1, E}, 0);
      const Tensor begins = T > 1 ? concat({none, slice(ended, 0, 0, T - 1)}, 0) : none;
      out.push_back(flat(begins));
      for (size_t m = 0; m < states.size(); ++m) {
        const Tensor first = reshape(in[environment + m], {1, E, states[m].shape()[2]});
        const Tensor before = T > 1 ? concat({first, slice(states[m], 0, 0, T - 1)}, 0) : first;
        out.push_back(flat(before * (num(1) - reshape(begins, {T, E, 1}))));
      }
    }
    std::vector<Tensor> host = {flat(episode_return), flat(episode_length)};
    if (args.normalize_observations) host.push_back(moments(reshape(frames, {N, frame.shape.numel()})));
    host.push_back(moments(reshape(goal, {N, 1}))), host.push_back(moments(reshape(advantage, {N, 1})));
    if (args.scale_rewards) host.push_back(moments(reshape(discounted, {N, 1})));
    out.push_back(concat(host, 0));
    return out;
  }

  // Values of the last observations of truncated episodes [horizon, instances]. A time limit that is not shorter than the rollout cuts off at most one episode
  // of an instance, so one row per instance is enough.
  Tensor final_values(const Scales& scales, const Tensor& seen, const Tensor& age, const Tensor& truncated, const Tensor& final_frame,
                      const std::vector<Tensor>& states) const {
    const int64_t E = rows(), T = args.horizon;
    Tensor from = iota({decisions()});
    if (cut_once) from = sum(where(truncated, reshape(iota({T}), {T, 1}), whole(0)), {0}) * whole(E) + iota({E});
    const int64_t count = from.shape()[0];
    Tensor observation = take(final_frame, from);
    if (stack > 1) {                                                  // oldest first; the newest is the final one
      const Tensor ago = reshape(iota({stack - 1}), {1, stack - 1});  // frame k was seen stack - 2 - k decisions before the last one
      const Tensor back = minimum(whole(stack - 2) - ago, reshape(take(age, from), {count, 1}));
      const Tensor earlier = take(seen, reshape(from, {count, 1}) + (whole(stack - 1) - back) * whole(E));
      Shape newest = frame.shape;
      newest.insert(0, 1), newest.insert(0, count);
      observation = concat({earlier, reshape(observation, newest)}, 1);
    }
    std::vector<Tensor> memory;
    for (const Tensor& s : states) memory.push_back(take(flat(s), from));
    const Tensor value = scales.real_value(policy->step(scales.observation(observation), memory).value);
    return cut_once ? expand(reshape(value, {1, E}), {T, E}) : reshape(value, {T, E});
  }

  // Control, the last update's KL divergence and whether it was applied, rates, tables -> control, a minibatch without the weight of the entropy, which is the
  // same for all of a rollout, the rate of its update.
  std::vector<Tensor> picked_from(const std::vector<Tensor>& in) const {
    const int64_t L = args.segment, E = rows(), count = args.minibatch / L;
    const std::array<Tensor, kControls> before = order.sorted(in);
    const KlControl<Tensor> control = control_after(before, last_of(in), args);
    const Tensor update = cast(before[kUpdate], DType::i64);
    size_t at = kControls + 3;
    const Tensor rates = in[at++];
    const Tensor seen = in[at++], age = stack > 1 ? in[at++] : Tensor(), action = in[at++], log_p = in[at++], value = in[at++], advantage = in[at++],
                 goal = in[at++];
    Tensor first = take(in[at++], iota({count}) + update * whole(count));  // segments
    if (L > 1) first = first + cast(floor(cast(first, DType::f32) / num(double(E))), DType::i64) * whole((L - 1) * E);
    const Tensor from = reshape(first, {count, 1}) + reshape(iota({L}) * whole(E), {1, L});
    std::vector<Tensor> out = changed(order, control, before[kUpdate] + num(1));
    if (stack > 1) {
      const Tensor back = minimum(whole(stack - 1) - reshape(iota({stack}), {1, 1, stack}), reshape(take(age, from), {count, L, 1}));
      out.push_back(take(seen, reshape(from, {count, L, 1}) + (whole(stack - 1) - back) * whole(E)));
    } else {
      out.push_back(take(seen, from));
    }
    out.push_back(take(action, from));
    const Tensor gain = take(advantage, from), apart = gain - mean(gain);
    const Tensor deviation = sqrt(sum(square(apart)) * num(1 / double(std::max<int64_t>(1, args.minibatch - 1))));
    out.insert(out.end(), {take(log_p, from), take(value, from), apart / (deviation + num(1e-8)), take(goal, from)});
    if (policy->has_memory()) {
      out.push_back(take(in[at++], from) * cast(reshape(iota({L}), {1, L}) > whole(0), DType::f32));
      for (; at < in.size(); ++at) out.push_back(take(in[at], first));
    }
    const Tensor rate = reshape(take(rates, reshape(update, {1})), {}) * control.factor;
    out.push_back(where(control.stopped > num(0), num(std::numeric_limits<double>::infinity()), rate));
    return out;
  }

  std::byte* at(int64_t offset) { return memory.data() + offset; }
  void put(int64_t to, const void* from, size_t bytes) {
    if (bytes) device.upload(at(to), from, int64_t(bytes));
  }
  int64_t told_bytes() const { return told_count * int64_t(sizeof(float)); }

  static LastUpdate last_of(const std::vector<Tensor>& in) { return {in[kControls], in[kControls + 1], in[kControls + 2]}; }
  std::byte* control(Control c) { return at(control_at + int64_t(c) * int64_t(sizeof(float))); }

  // The places of the control state and of what the last update tells, and of what changes.
  std::vector<const void*> last_update() {
    const TrainStep::Places p = step.places();
    std::vector<const void*> in;
    for (Control c : order.all) in.push_back(control(c));
    in.insert(in.end(), {&p.scalars[2 * kl_at], &p.scalars[2 * kl_at + 1], p.applied});
    return in;
  }
  std::vector<void*> changing() {
    std::vector<void*> out;
    for (Control c : order.first) out.push_back(control(c));
    return out;
  }

  TrainStep& step;
  Backend& device;
  std::shared_ptr<const Policy> policy;
  std::vector<Tensor> weights;
  Instances instances;
  PpoArgs args;
  ControlOrder order;
  std::vector<Type> carry;
  size_t environment, carried = 0, kl_at = 0;
  Type frame;
  int64_t stack = 1;
  bool cut_once = false;
  std::unique_ptr<ReadProgram> play, pick, closing;  // closing: the rate's factor after the last update; null: it stays the same
  Arena memory;
  std::vector<int64_t> play_in, tables, batch_at;
  int64_t control_at = 0, rates_at = 0, entropy_at = 0, told_count = 0;
  float rate_factor = 1;      // at the beginning of the rollout
  std::byte* told = nullptr;  // the host's copy of the last table
  std::vector<const void*> batch;
};

DeviceRollout::DeviceRollout(TrainStep& step, std::shared_ptr<const Policy> policy, std::span<const Tensor> weights, const Instances& instances,
                             const PpoArgs& args, std::vector<Type> carry, size_t environment)
    : state_(std::make_unique<State>(step, std::move(policy), weights, instances, args, std::move(carry), environment)) {}
DeviceRollout::~DeviceRollout() = default;

int64_t DeviceRollout::bytes() const {
  const State& s = *state_;
  return s.play->bytes() + s.pick->bytes() + (s.closing ? s.closing->bytes() : 0) + s.memory.bytes();
}

void DeviceRollout::read_state(std::vector<Bytes>& carry, Bytes& frames) {
  State& s = *state_;
  for (size_t i = 0; i < carry.size(); ++i) s.device.download(carry[i].data(), s.at(s.play_in[i]), int64_t(carry[i].size()));
  if (!frames.empty()) s.device.download(frames.data(), s.at(s.play_in[carry.size()]), int64_t(frames.size()));
}

void DeviceRollout::write_state(const std::vector<Bytes>& carry, const Bytes& frames) {
  State& s = *state_;
  for (size_t i = 0; i < carry.size(); ++i) s.put(s.play_in[i], carry[i].data(), carry[i].size());
  if (!frames.empty()) s.put(s.play_in[carry.size()], frames.data(), frames.size());
}

DeviceRollout::Results DeviceRollout::collect(const Given& given) {
  State& s = *state_;
  if (!s.told) s.told = s.device.allocate_host(s.told_bytes());
  size_t at = s.carried;
  if (s.args.normalize_observations)
    s.put(s.play_in[at++], given.shift.data(), given.shift.size_bytes()), s.put(s.play_in[at++], given.scale.data(), given.scale.size_bytes());
  s.put(s.play_in[at++], given.value_scale.data(), given.value_scale.size_bytes());
  s.put(s.play_in[at], &given.reward_factor, sizeof(float));
  float control[kControls] = {};
  control[kFactor] = s.rate_factor = given.rate_factor;
  s.put(s.control_at, control, sizeof control);
  s.put(s.rates_at, given.rates.data(), given.rates.size() * sizeof(float));
  const std::vector<float> entropy(size_t(s.args.minibatch), given.entropy);
  s.put(s.entropy_at, entropy.data(), entropy.size() * sizeof(float));
  std::vector<const void*> in;
  std::vector<void*> out;
  for (int64_t i : s.play_in) in.push_back(s.at(i));
  for (size_t i = 0; i < s.carried; ++i) out.push_back(s.at(s.play_in[i]));
  for (int64_t i : s.tables) out.push_back(s.at(i));
  s.play->run_in_place(in, out, s.args.seed);
  s.device.download_later(s.told, out.back(), s.told_bytes());
  s.device.wait_for(s.device.mark());  // so that the time of a rollout is known

  Results r;
  std::span<const float> rest(reinterpret_cast<const float*>(s.told), size_t(s.told_count));
  auto take = [&](size_t n) {
    const std::span<const float> some = rest.first(n);
    rest = rest.subspan(n);
    return some;
  };
  auto moments = [&](size_t width) {
    const std::span<const float> mean = take(width);
    return Moments{mean, take(width)};
  };
  const size_t n = size_t(s.decisions());
  r.episode_return = take(n), r.episode_length = take(n);
  if (s.args.normalize_observations) r.observation = moments(size_t(s.frame.shape.numel()));
  r.goal = moments(1), r.advantage = moments(1);
  if (s.args.scale_rewards) r.discounted = moments(1);
  return r;
}

std::span<const void* const> DeviceRollout::pick() {
  State& s = *state_;
  std::vector<const void*> in = s.last_update();
  in.push_back(s.at(s.rates_at));
  for (size_t i = 0; i + 1 < s.tables.size(); ++i) in.push_back(s.at(s.tables[i]));
  std::vector<void*> out = s.changing();
  s.batch.clear();
  for (const int64_t i : s.batch_at) {
    if (i != s.entropy_at) out.push_back(s.at(i));
    s.batch.push_back(s.at(i));
  }
  out.push_back(s.step.places().rate);
  s.pick->run_in_place(in, out);
  return s.batch;
}

float DeviceRollout::close() {
  State& s = *state_;
  if (!s.closing) return s.rate_factor;
  float factor = 1;
  void* out[] = {s.control(kFactor)};
  s.closing->run_in_place(s.last_update(), out);
  s.device.download(&factor, s.control(kFactor), sizeof factor);
  return factor;
}

}  // namespace ridge
