#include "step/train_step.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>

#include "backend/backend.h"
#include "base/error.h"
#include "base/text.h"
#include "compile/plan_memory.h"
#include "step/step_planner.h"

namespace ridge {
namespace {

int64_t round_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// State that the device carries from one step to the next.
struct Carried {
  int64_t applied = 0, age = 0;
  float scale = 1, unused = 0;
};

// Scalars that a step reads and writes, in one small block.
struct Scalars {
  struct Given {  // set by the host for each micro-batch
    int64_t seed = 0, step = 0, base = 0;
    float lr = 0, unused = 0;
  } given;
  Carried now, next;
  float loss = 0, norm = 0, factor = 0;
  uint8_t good = 0, lowered = 0;
  struct Sums {
    float sum = 0, count = 0;
  } sums;  // of the loss; followed by those of named scalars
};
static_assert(offsetof(Scalars, sums) + sizeof(Scalars::Sums) == sizeof(Scalars), "named scalars follow the loss");

}  // namespace

struct TrainStep::State {
  StepModel model;
  StepOptions options;
  StepPlan plan;
  StepState now;                         // after the last collected step
  std::vector<std::string> all_scalars;  // with those of a feed
  std::optional<StepPrograms> programs;
  PlannedStep made;
  Backend& device;
  const bool in_host_memory;  // the device works in host memory
  std::unique_ptr<Arena> memory;
  Arena samples;  // parameters, gradients, moments, scalars; and the micro-batch, if it must be copied to the device
  std::vector<int64_t> parameter_at, gradient_at, batch_at;
  std::vector<std::vector<int64_t>> moment_at;
  int64_t scalars_at = 0, losses_at = 0, staging_at = 0;
  bool offloaded = false;  // moments are in host memory
  static constexpr int64_t kStages = 3;
  std::byte* host_moments = nullptr;
  std::vector<StepPlanner::Range> parts;
  std::vector<int64_t> part_at;  // offset of each part in host memory, and the end of the last one
  std::vector<const void*> in, part;
  std::vector<void*> out;
  bool carried_known = false;  // the device's Carried is up to date

  // Results of steps: a ring of slots that the device writes to.
  std::byte* slots = nullptr;
  int64_t marks[kMaxPending] = {};
  int64_t enqueued = 0, collected = 0;
  double update_seconds = 0, shortest_update = 0;  // of the updates that were timed
  int64_t updates_timed = 0;
  bool time_update = false;  // time the next update
  std::function<void()> before_change = [] {};

  State(StepModel m, StepOptions o)
      : model(std::move(m)), options(std::move(o)), device(*options.backend), in_host_memory(device.host_memory()), samples(device) {}

  ~State() {
    if (!slots) return;
    try {
      device.wait();
    } catch (const std::exception&) {  // a destructor cannot report it
    }
    device.release_host(slots, kMaxPending * slot_bytes());
    if (host_moments) device.release_host(host_moments, plan.host_bytes);
  }

  // Size of the sums of the loss and all named scalars, in training and in evaluation.
  static int64_t sums_bytes(const std::vector<std::string>& scalars) { return int64_t((1 + scalars.size()) * sizeof(Scalars::Sums)); }
  int64_t slot_bytes() const { return int64_t(offsetof(Scalars, sums)) + sums_bytes(programs->scalars()); }
  int64_t max_sums_bytes() const { return std::max(sums_bytes(programs->scalars()), sums_bytes(programs->evaluation_scalars())); }

  template <class T>
  T* at(int64_t offset) {
    return reinterpret_cast<T*>(memory->data() + offset);
  }
  Scalars& scalars() { return *at<Scalars>(scalars_at); }  // a device address: never dereferenced here

  int64_t padded_bytes(size_t i) const { return round_up(model.parameters[i].shape.numel() * int64_t(sizeof(float))); }

  // visit(offset, parameter) for all moments of parameters [first, last), in the order of the programs' inputs.
  template <class Visit>
  void each_moment(size_t first, size_t last, Visit visit) {
    for (int m = 0; m < StepPrograms::kMaxMoments; ++m)
      for (size_t i = first; i < last; ++i)
        if (m < programs->moments(i)) visit(moment_at[size_t(m)][i], i);
  }

  void lay_out() {
    plan.parameter_bytes = plan.gradient_bytes = plan.optimizer_bytes = plan.host_bytes = plan.staging_bytes = 0;
    parameter_at.clear(), gradient_at.clear(), moment_at.clear(), parts.clear(), part_at.clear();
    memory = std::make_unique<Arena>(device);
    int64_t offset = 0;
    auto place = [&](std::vector<int64_t>& list, int moment = 0) {  // moments count from 1; where the optimizer keeps fewer, the offset is unused
      int64_t start = offset;
      for (size_t i = 0; i < model.parameters.size(); ++i) {
        list.push_back(offset);
        if (moment <= programs->moments(i)) offset += padded_bytes(i);
      }
      return offset - start;
    };
    plan.parameter_bytes = place(parameter_at);
    plan.gradient_bytes = place(gradient_at);
    moment_at.resize(StepPrograms::kMaxMoments);
    if (offloaded) {
      plan.staging_bytes = lay_out_parts();
      plan.optimizer_bytes = kStages * plan.staging_bytes;
      staging_at = offset, offset += plan.optimizer_bytes;
    } else {
      for (int m = 0; m < StepPrograms::kMaxMoments; ++m) plan.optimizer_bytes += place(moment_at[size_t(m)], m + 1);
    }
    scalars_at = offset, offset += round_up(int64_t(offsetof(Scalars, sums)) + max_sums_bytes());
    losses_at = offset;
    plan.losses_bytes = options.evaluation ? round_up(plan.batch * sums_bytes(programs->evaluation_scalars())) : 0;
    offset += plan.losses_bytes;
    memory->require(offset);
  }

  // Moments in host memory are stored part by part, in transfer order. Returns the size of the largest part.
  int64_t lay_out_parts() {
    // Large enough for efficient transfers, and enough parts for transfers and computation to overlap.
    constexpr int64_t kMin = int64_t(4) << 20, kMax = int64_t(256) << 20, kParts = 24;
    const int64_t part_bytes = std::clamp(plan.parameter_bytes / kParts, kMin, kMax);
    const size_t count = model.parameters.size();
    for (auto& list : moment_at) list.resize(count);
    int64_t most = 0, offset = 0;
    for (size_t first = 0, last = 0; first < count; first = last) {
      int64_t bytes = 0;
      for (last = first; last < count && (last == first || bytes + padded_bytes(last) <= part_bytes); ++last) bytes += padded_bytes(last);
      parts.push_back({first, last});
      part_at.push_back(offset);
      each_moment(first, last, [&](int64_t& at_, size_t i) { at_ = offset, offset += padded_bytes(i); });
      most = std::max(most, offset - part_at.back());
    }
    part_at.push_back(offset);
    plan.host_bytes = offset;
    return most;
  }

  void make_plan() {
    plan.programs.clear(), plan.kernels = 0, plan.flops = 0;
    lay_out();
    plan.updates = programs->updates();
    made = StepPlanner(model, options, *programs, memory->bytes(), plan, parts).make();
    if (offloaded)
      plan.decisions.insert(plan.decisions.begin(),
                            fmt::format("moments are in host memory ({}) and pass through the device in {}: {}", size_rounded_up(plan.host_bytes),
                                        counted(int64_t(parts.size()), "part"), options.offload ? "asked for" : "nothing else fits"));
  }

  // Room for the most samples that any program takes at a time.
  void lay_out_samples() {
    if (in_host_memory) return;
    int64_t most = plan.micro, offset = 0;
    for (const StepBody& body : made.evaluations) most = std::max(most, body.samples);
    for (const Type& t : model.batch) batch_at.push_back(offset), offset += round_up(t.bytes() / t.shape[0] * most);
    samples.require(offset);
  }

  template <class Visit>
  void each_program(Visit visit) {
    for (auto* list : {&made.bodies, &made.evaluations})
      for (StepBody& body : *list) visit(*body.exe);
    visit(*made.update);
    for (PlannedStep::Part& part : made.parts) visit(*part.exe);
  }

  void map() {
    memory->data(), samples.data();
    if (offloaded && !host_moments) host_moments = device.allocate_host(plan.host_bytes);
    if (!slots) slots = device.allocate_host(kMaxPending * slot_bytes());
  }

  // The tensors of a whole batch, starting at sample `first`.
  std::span<const void* const> from_sample(std::span<const void* const> batch, int64_t first) {
    part.clear();
    for (size_t i = 0; i < batch.size(); ++i) part.push_back(static_cast<const std::byte*>(batch[i]) + first * row_bytes(i));
    return part;
  }
  int64_t row_bytes(size_t i) const { return model.batch[i].bytes() / model.batch[i].shape[0]; }

  // Binds the leading inputs of every model program for `count` samples starting at `first`; `tensors` belong to these samples.
  // No rate: they are in device memory, and so is the rate.
  void bind(std::span<const void* const> tensors, int64_t first, int64_t count, std::optional<double> lr, bool scale) {
    Scalars& s = scalars();
    const Scalars::Given given{int64_t(options.seed), now.attempted + pending(), first, float(lr.value_or(0)), 0};
    device.upload(&s.given, &given, lr ? int64_t(sizeof given) : int64_t(offsetof(Scalars::Given, lr)));
    in.clear(), out.clear();
    for (int64_t at_ : parameter_at) in.push_back(at<float>(at_));
    in.insert(in.end(), {&s.given.seed, &s.given.step, &s.given.base});
    if (scale) in.push_back(&s.now.scale);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::byte* from = static_cast<const std::byte*>(tensors[i]);
      if (!in_host_memory && (lr || count < plan.batch)) {  // parts of a batch have the same address, so one recording serves them all
        std::byte* to = samples.data() + batch_at[i];
        lr ? device.upload(to, from, count * row_bytes(i)) : device.copy(to, from, count * row_bytes(i));
        from = to;
      }
      in.push_back(from);
    }
  }

  void put_sums(const std::vector<std::string>& named) {
    Scalars::Sums* sums = &scalars().sums;
    for (size_t i = 0; i <= named.size(); ++i) out.insert(out.end(), {&sums[i].sum, &sums[i].count});
  }

  void run_body(StepBody& body, std::span<const void* const> tensors, int64_t first, std::optional<double> lr) {
    bind(tensors, first, body.samples, lr, programs->scaled());
    for (int64_t at_ : gradient_at) out.push_back(at<float>(at_));
    put_sums(programs->scalars());
    if (plan.micro < plan.batch) in.insert(in.end(), out.begin(), out.end());
    body.exe->run(in, out);
  }

  // The moments of a part are copied to one of three device buffers while the previous part is computed, and back during the next part.
  void run_update_in_parts() {
    Scalars& s = scalars();
    in.clear(), out.clear();
    for (int64_t at_ : gradient_at) in.push_back(at<float>(at_));
    in.insert(in.end(), {&s.now.applied, &s.given.lr, &s.sums.sum, &s.sums.count});
    out.insert(out.end(), {&s.next.applied, &s.loss, &s.norm, &s.good, &s.factor});
    if (programs->scaled()) {
      in.insert(in.end(), {&s.now.scale, &s.now.age});
      out.insert(out.end(), {&s.next.scale, &s.next.age, &s.lowered});
    }
    made.update->run(in, out);
    const size_t count = made.parts.size();
    auto stage = [&](size_t k) { return at<std::byte>(staging_at) + int64_t(k % kStages) * plan.staging_bytes; };
    auto bytes = [&](size_t k) { return part_at[k + 1] - part_at[k]; };
    auto bring = [&](size_t k) { device.upload_later(stage(k), host_moments + part_at[k], bytes(k), Queue::in); };
    auto take_back = [&](size_t k) { device.download_later(host_moments + part_at[k], stage(k), bytes(k), Queue::out); };
    device.order(Queue::out, Queue::in);
    bring(0);
    for (size_t k = 0; k < count; ++k) {
      device.order(Queue::in, Queue::work);
      device.order(Queue::out, Queue::in);  // the next part's buffer is free again: its copy back was queued two parts ago
      if (k + 1 < count) bring(k + 1);
      device.order(Queue::work, Queue::out);
      if (k > 0) take_back(k - 1);
      run_part(made.parts[k], stage(k) - part_at[k]);
    }
    device.order(Queue::work, Queue::out);
    take_back(count - 1);
  }

  void run_part(PlannedStep::Part& part, std::byte* moments) {
    Scalars& s = scalars();
    in.clear(), out.clear();
    for (size_t i = part.first; i < part.last; ++i) in.push_back(at<float>(parameter_at[i]));
    each_moment(part.first, part.last, [&](int64_t at_, size_t) { in.push_back(moments + at_); });
    for (const void* p : in) out.push_back(const_cast<void*>(p));
    for (size_t i = part.first; i < part.last; ++i) in.push_back(at<float>(gradient_at[i]));
    in.insert(in.end(), {&s.now.applied, &s.given.lr, &s.good, &s.factor});
    part.exe->run(in, out);
  }

  void run_update() {
    if (offloaded) return run_update_in_parts();
    Scalars& s = scalars();
    in.clear(), out.clear();
    for (int64_t at_ : parameter_at) in.push_back(at<float>(at_));
    each_moment(0, model.parameters.size(), [&](int64_t at_, size_t) { in.push_back(at<float>(at_)); });
    for (const void* p : in) out.push_back(const_cast<void*>(p));
    for (int64_t at_ : gradient_at) in.push_back(at<float>(at_));
    in.insert(in.end(), {&s.now.applied, &s.given.lr, &s.sums.sum, &s.sums.count});
    out.insert(out.end(), {&s.next.applied, &s.loss, &s.norm, &s.good});
    if (programs->scaled()) {
      in.insert(in.end(), {&s.now.scale, &s.now.age});
      out.insert(out.end(), {&s.next.scale, &s.next.age, &s.lowered});
    }
    made.update->run(in, out);
  }

  template <class Parts>
  void enqueue(const Parts& part_of, std::optional<double> lr) {
    before_change();
    map();
    Scalars& s = scalars();
    if (!carried_known) {
      const Carried carried{now.applied, now.scale_age, float(now.loss_scale), 0};
      device.upload(&s.now, &carried, sizeof carried);
      carried_known = true;
    }
    if (plan.micro < plan.batch) {
      device.clear(at<std::byte>(gradient_at[0]), plan.gradient_bytes);
      device.clear(&s.sums, sums_bytes(programs->scalars()));
    }
    int64_t first = 0;
    for (int64_t i = 0; i < plan.repeats; ++i, first += plan.micro) run_body(made.bodies[0], part_of(first, plan.micro), first, lr);
    if (plan.remainder) run_body(made.bodies[1], part_of(first, plan.remainder), first, lr);
    const bool behind = device.behind(), timed = !behind || std::exchange(time_update, false);
    if (timed && behind) device.wait_for(device.mark());
    const auto start = std::chrono::steady_clock::now();
    run_update();
    if (timed && behind) device.wait();
    if (timed) {
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      shortest_update = updates_timed++ ? std::min(shortest_update, seconds) : seconds;
      update_seconds += seconds;
    }
    const size_t slot = size_t(enqueued % kMaxPending);
    device.download_later(slots + int64_t(slot) * slot_bytes(), &s, slot_bytes());
    device.copy(&s.now, &s.next, programs->scaled() ? sizeof(Carried) : sizeof s.next.applied);
    marks[slot] = device.mark();
    ++enqueued;
  }

  int pending() const { return int(enqueued - collected); }

  StepMetrics collect() {
    const size_t slot = size_t(collected % kMaxPending);
    ++collected;  // even if the wait throws
    device.wait_for(marks[slot]);
    const Scalars& v = *reinterpret_cast<const Scalars*>(slots + int64_t(slot) * slot_bytes());
    const bool scaled = programs->scaled();
    StepMetrics metrics{v.loss, v.norm, v.good != 0, now.loss_scale, scaled && v.lowered != 0, {}, double(v.given.lr), !std::isfinite(v.given.lr)};
    const Scalars::Sums* sums = &v.sums;
    for (size_t i = 0; i < programs->scalars().size(); ++i) metrics.scalars[i] = double(sums[i + 1].sum) / double(sums[i + 1].count);
    ++now.attempted, now.applied = v.next.applied;
    if (scaled) now.loss_scale = v.next.scale, now.scale_age = v.next.age;
    return metrics;
  }

  void check(std::span<const void* const> batch) const {
    if (batch.size() != model.batch.size()) fail(ErrorCode::binding, "[step] got {} batch tensors, the step has {}", batch.size(), model.batch.size());
  }

  void check_next(double lr) const {
    if (!(lr >= 0) || !std::isfinite(float(lr)))
      fail(ErrorCode::value, "[step] the learning rate of step {1} is {0}; use a finite number of at least 0", lr, now.attempted + pending());
    if (pending() == kMaxPending) fail(ErrorCode::usage, "[step] {} steps are enqueued already; collect one first", kMaxPending);
  }

  int64_t place_of(Held what, size_t index) const { return what == Held::parameter ? parameter_at[index] : moment_at[size_t(what) - 1][index]; }
  void fits(size_t index, size_t count) const {
    if (int64_t(count) > model.parameters[index].shape.numel())
      fail(ErrorCode::shape, "[step] {} values for {}, which has {}", count, model.parameters[index].name, model.parameters[index].shape.numel());
  }
  std::span<float> in_place(int64_t offset, size_t index) {
    if (!in_host_memory) fail(ErrorCode::usage, "[step] {} is on {}: read and write copies of it", model.parameters[index].name, device.info().name);
    return {at<float>(offset), size_t(model.parameters[index].shape.numel())};
  }
};

TrainStep::TrainStep(StepModel model, StepOptions options) : state_(std::make_unique<State>(std::move(model), std::move(options))) {
  State& s = *state_;
  if (s.model.parameters.empty()) fail(ErrorCode::value, "[step] the model has no parameters to train");
  if (s.model.batch.empty()) fail(ErrorCode::value, "[step] the batch has no tensors");
  for (const Type& t : s.model.batch)
    if (t.shape.rank() == 0 || t.shape[0] != s.model.batch[0].shape[0] || t.shape[0] < 1)
      fail(ErrorCode::shape, "[step] batch tensors need the samples as their first axis: {} and {}", to_string(s.model.batch[0]), to_string(t));
  s.plan.batch = s.model.batch[0].shape[0];
  s.programs.emplace(s.model, s.options);
  const bool can_offload = !s.in_host_memory && s.programs->moments(0) > 0;
  s.offloaded = can_offload && s.options.offload.value_or(false);
  try {
    s.make_plan();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::memory || !can_offload || s.options.offload) throw;
    s.offloaded = true;
    s.make_plan();
  }
  s.options.balance = {};  // its captures may not outlive the constructor
  s.lay_out_samples();
  if (s.programs->scaled()) s.now.loss_scale = s.options.loss_scale.initial;
  size_t most = 4 * s.model.parameters.size() + s.model.batch.size() + 16 + 4 * kMaxScalars;
  s.in.reserve(most), s.out.reserve(most), s.part.reserve(s.model.batch.size());
}

TrainStep::~TrainStep() = default;
TrainStep::TrainStep(TrainStep&&) noexcept = default;

StepMetrics TrainStep::run(std::span<const void* const> batch) { return run(batch, state_->options.optimizer.lr); }

StepMetrics TrainStep::run(std::span<const void* const> batch, double lr) {
  while (pending() > 0) collect();
  enqueue(batch, lr);
  return collect();
}

void TrainStep::enqueue(std::span<const void* const> batch, double lr) {
  state_->check(batch);
  state_->check_next(lr);
  state_->enqueue([&](int64_t first, int64_t) { return state_->from_sample(batch, first); }, lr);
}

void TrainStep::enqueue_in_place(std::span<const void* const> batch) {
  state_->check(batch);
  state_->check_next(0);
  state_->enqueue([&](int64_t first, int64_t) { return state_->from_sample(batch, first); }, {});
}

TrainStep::Places TrainStep::places() {
  state_->map();
  Scalars& s = state_->scalars();
  return {&s.given.lr, &(&s.sums)[1].sum, &s.good};
}

std::span<const void* const> TrainStep::from_sample(std::span<const void* const> batch, int64_t first) {
  state_->check(batch);
  return state_->from_sample(batch, first);
}

void TrainStep::enqueue(const Parts& part, double lr) {
  state_->check_next(lr);
  auto checked = [&](int64_t first, int64_t count) {
    const std::span<const void* const> tensors = part(first, count);
    state_->check(tensors);
    return tensors;
  };
  state_->enqueue(checked, lr);
}

int TrainStep::pending() const { return state_->pending(); }
double TrainStep::update_seconds() const {
  const State& s = *state_;
  // If only some updates were timed, extrapolate from the shortest, so that an interrupted one does not distort the total.
  return s.updates_timed >= s.collected ? s.update_seconds : s.shortest_update * double(s.collected);
}
void TrainStep::time_next_update() { state_->time_update = true; }
bool TrainStep::behind() const { return state_->device.behind(); }

StepMetrics TrainStep::collect() {
  if (pending() == 0) fail(ErrorCode::usage, "[step] there is no enqueued step to collect");
  return state_->collect();
}

void TrainStep::discard() {
  while (pending() > 0) collect();
}

void TrainStep::check_evaluation(int64_t samples) const {
  const State& s = *state_;
  if (s.made.evaluations.empty()) fail(ErrorCode::usage, "[step] this step was planned without evaluation; set StepOptions::evaluation");
  if (samples < 0 || samples > s.plan.batch) fail(ErrorCode::shape, "[step] {} samples of a batch of {} cannot be evaluated", samples, s.plan.batch);
  if (s.made.evaluations.size() == 1 && samples % s.made.evaluations[0].samples)
    fail(ErrorCode::unsupported, "[step] {} samples cannot be evaluated separately: {}; evaluate whole batches of {}", samples,
         s.programs->evaluation_coupling(), s.plan.batch);
}

TrainStep::Losses TrainStep::evaluate(std::span<const void* const> batch, int64_t samples) {
  State& s = *state_;
  s.check(batch);
  check_evaluation(samples);
  s.map();
  Scalars& v = s.scalars();
  const std::vector<std::string>& named = s.programs->evaluation_scalars();
  const int64_t each = int64_t(1 + named.size());
  Scalars::Sums* parts = s.at<Scalars::Sums>(s.losses_at);
  int64_t first = 0, count = 0;
  for (StepBody& body : s.made.evaluations)
    for (; samples - first >= body.samples; first += body.samples) {
      s.bind(s.from_sample(batch, first), first, body.samples, 0, false);
      s.put_sums(named);
      body.exe->run(s.in, s.out);
      s.device.copy(parts + each * count++, &v.sums, s.sums_bytes(named));
    }
  Losses total;
  constexpr int64_t kRead = 64;
  static_assert(kRead > int64_t(kMaxScalars));
  Scalars::Sums read[kRead];
  for (int64_t i = 0, n; i < count; i += n) {
    n = std::min(kRead / each, count - i);
    s.device.download(read, parts + each * i, n * s.sums_bytes(named));
    for (const Scalars::Sums* sums = read; sums < read + each * n; sums += each) {
      total.sum += double(sums[0].sum), total.count += double(sums[0].count);
      for (size_t k = 0; k < named.size(); ++k) total.scalars[k].sum += double(sums[k + 1].sum), total.scalars[k].count += double(sums[k + 1].count);
    }
  }
  return total;
}

StepState TrainStep::state() const { return state_->now; }

void TrainStep::leave_out() {
  if (pending() > 0) fail(ErrorCode::usage, "[step] {} steps are enqueued; collect them before leaving one out", pending());
  ++state_->now.attempted;
}

void TrainStep::restore(const StepState& state) {
  discard();
  state_->now = state;
  if (!state_->programs->scaled()) state_->now.loss_scale = 1, state_->now.scale_age = 0;
  state_->carried_known = false;
}

void TrainStep::compile_ahead() {
  state_->each_program([](Executable& program) { program.compile_ahead(); });
}

void TrainStep::touch() {
  State& s = *state_;
  compile_ahead();
  s.each_program([](Executable& program) { program.prepare(); });  // before allocating: measuring kernels may need memory
  s.map(), s.made.activations->data();
}

const std::vector<std::string>& TrainStep::scalars() const { return state_->programs->scalars(); }
std::span<const std::string> TrainStep::scalars_and(std::span<const std::string> others) {
  state_->all_scalars = scalars();
  state_->all_scalars.insert(state_->all_scalars.end(), others.begin(), others.end());
  return state_->all_scalars;
}
const std::vector<std::string>& TrainStep::evaluation_scalars() const { return state_->programs->evaluation_scalars(); }
const StepModel& TrainStep::model() const { return state_->model; }
const StepOptions& TrainStep::options() const { return state_->options; }
Backend& TrainStep::device() { return state_->device; }
const StepPlan& TrainStep::plan() const { return state_->plan; }

std::map<std::string, std::string> TrainStep::choices() const {
  std::map<std::string, std::string> all = state_->device.choices();
  for (const auto& [what, value] : state_->plan.choices.words()) all[what] = value;
  return all;
}

bool TrainStep::in_place() const { return state_->in_host_memory; }
std::span<float> TrainStep::parameter(size_t i) { return state_->in_place(state_->parameter_at[i], i); }
std::span<float> TrainStep::gradient(size_t i) { return state_->in_place(state_->gradient_at[i], i); }
std::span<float> TrainStep::moment(size_t i, int which) { return state_->in_place(state_->moment_at[size_t(which)][i], i); }
const void* TrainStep::parameter_place(size_t i) { return state_->at<float>(state_->parameter_at[i]); }

void TrainStep::read(Held what, size_t index, std::span<float> to) {
  State& s = *state_;
  s.fits(index, to.size()), s.map();
  if (what == Held::parameter || !s.offloaded) return s.device.download(to.data(), s.at<float>(s.place_of(what, index)), int64_t(to.size_bytes()));
  s.device.wait();
  std::memcpy(to.data(), s.host_moments + s.place_of(what, index), to.size_bytes());
}

std::shared_ptr<float> TrainStep::host_memory(size_t count) {
  Backend& device = state_->device;
  const int64_t bytes = int64_t(std::max<size_t>(count, 1) * sizeof(float));
  std::byte* memory = device.allocate_host(bytes);
  return {reinterpret_cast<float*>(memory), [&device, memory, bytes](float*) { device.release_host(memory, bytes); }};
}

void TrainStep::read_straight(Held what, size_t index, std::span<float> to) {
  State& s = *state_;
  if (what != Held::parameter && s.offloaded) return read(what, index, to);
  s.fits(index, to.size()), s.map();
  s.device.download_later(to.data(), s.at<float>(s.place_of(what, index)), int64_t(to.size_bytes()));
  s.device.wait_for(s.device.mark());
}

void TrainStep::write(Held what, size_t index, std::span<const float> from) {
  State& s = *state_;
  if (what == Held::parameter) s.before_change();
  s.fits(index, from.size()), s.map();
  if (what == Held::parameter || !s.offloaded) return s.device.upload(s.at<float>(s.place_of(what, index)), from.data(), int64_t(from.size_bytes()));
  s.device.wait();
  std::memcpy(s.host_moments + s.place_of(what, index), from.data(), from.size_bytes());
}

void TrainStep::fill_parameter(size_t index, const std::function<void(std::span<float>)>& fill) {
  state_->before_change();
  if (in_place()) return fill(parameter(index));
  std::vector<float> values(size_t(state_->model.parameters[index].shape.numel()));
  fill(values);
  write(Held::parameter, index, values);
}

void TrainStep::before_parameters_change(std::function<void()> call) { state_->before_change = std::move(call); }

int TrainStep::moments(size_t i) const { return state_->programs->moments(i); }

std::vector<KernelRun> TrainStep::kernels() const {
  const State& s = *state_;
  std::vector<KernelRun> all;
  auto add = [&](const Executable& exe, int64_t times) {
    for (const KernelReport& k : exe.report().kernels) all.push_back({k, times});
  };
  for (const StepBody& body : s.made.bodies) add(*body.exe, body.samples == s.plan.micro ? s.plan.repeats : 1);
  add(*s.made.update, 1);
  for (const PlannedStep::Part& part : s.made.parts) add(*part.exe, 1);
  return all;
}

double TrainStep::min_seconds(double flops_per_second, double bytes_per_second) const {
  double sum = 0;
  for (const auto& [kernel, times] : kernels())
    sum += double(times) * std::max(kernel.algorithmic_flops / flops_per_second, kernel.unavoidable_bytes / bytes_per_second);
  return sum;
}

std::string TrainStep::dump() const { return state_->made.bodies[0].exe->dump() + "update\n" + state_->made.update->dump(); }

std::string TrainStep::report() const {
  const State& s = *state_;
  const StepPlan& p = s.plan;
  std::string text = fmt::format("step: batch {} = {} x {}{}, recompute {}, {}\n", p.batch, p.repeats, p.micro,
                                 p.remainder ? fmt::format(" + {}", p.remainder) : "", name(p.recompute), name(p.choices.precision));
  auto line = [&](const char* what, int64_t bytes) { text += fmt::format("  {:<12} {:>12}\n", what, size_rounded_up(bytes)); };
  line("parameters", p.parameter_bytes), line("gradients", p.gradient_bytes), line("optimizer", p.optimizer_bytes), line("activations", p.activation_bytes),
      line("scratch", p.scratch_bytes);
  line("planned", p.planned_bytes);
  std::map<std::string, std::pair<int, double>> kinds;
  for (const KernelReport& k : s.made.bodies[0].exe->report().kernels) {
    auto& [count, flops] = kinds[k.name.substr(0, k.name.find_first_of("[+x"))];
    ++count, flops += k.flops;
  }
  text += fmt::format("kernels: {} in a step, {:.3g} MFLOP, compiled in {:.0f} ms;", p.kernels, p.flops / 1e6, p.compile_ms);
  for (auto& [kind, sums] : kinds) text += fmt::format(" {} {}", sums.first, kind);
  text += fmt::format("; update {}\n", s.made.update->report().kernels.size());
  if (!p.updates.empty()) text += fmt::format("  muon: {}\n", p.updates);
  for (const std::string& d : p.decisions) text += "  " + d + "\n";
  return text;
}

}  // namespace ridge
