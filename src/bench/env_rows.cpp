#include "bench/env_rows.h"

#include <chrono>
#include <numeric>

#include <fmt/format.h>

#include "backend/backend.h"
#include "backend/registry.h"
#include "bench/device_ceilings.h"
#include "bench/loop_rows.h"
#include "eager/tensor_state.h"
#include "measure/ceilings.h"
#include "runtime/arena.h"
#include "runtime/executable.h"
#include "step/compiled_step.h"
#include "threads/thread_team.h"

namespace ridge::bench {

std::vector<EnvRow> env_rows() { return {{"pong-env/state", "pong", 16384, 64, false}, {"pong-env/pixels", "pong-pixels", 512, 16, true}}; }

namespace {

// Uniform over all actions; u is uniform in [0, 1).
Tensor random_action(const ActionSpace& space, const Tensor& u) {
  if (space.kind == ActionSpace::Kind::discrete) return cast(floor(u * full({}, double(space.choices[0]))), DType::i64);
  std::vector<Tensor> parts;  // the digits of u
  for (int64_t i = 0; i < space.components(); ++i) {
    const Tensor digits = u * full({}, double(int64_t(1) << (4 * i))), v = digits - floor(digits);
    const bool real = space.kind == ActionSpace::Kind::continuous;
    const double low = real ? space.low[size_t(i)] : 0, size = real ? space.high[size_t(i)] - low : double(space.choices[size_t(i)]);
    parts.push_back(real ? v * full({}, size) + full({}, low) : cast(floor(v * full({}, size)), DType::i64));
  }
  return stack(parts, 1);
}

}  // namespace

struct EnvProgram::State {
  std::unique_ptr<Executable> program;
  std::unique_ptr<Arena> memory;
  std::vector<const void*> in[2];  // two sets of states, which take turns
  std::vector<void*> out[2];
  size_t carries = 0;
  int turn = 0;
  Backend* backend = nullptr;
};

EnvProgram::EnvProgram(const EnvRow& row, Backend& backend) : game_(make_environment(row.environment), {.stack = 1}), state_(std::make_unique<State>()) {
  std::vector<int64_t> numbers(size_t(row.instances));
  std::iota(numbers.begin(), numbers.end(), 0);
  seed(1);
  EnvState first = game_.start(Tensor({row.instances}, std::span<const int64_t>(numbers)));
  first.insert(first.end(), 2, full({row.instances}, 0));  // sums over finished episodes: their returns, and their number
  detail::evaluate(first);
  const TensorFunction decide = [&](const std::vector<Tensor>& carry) {
    const ScanStep step = [&](const std::vector<Tensor>& c, const std::vector<Tensor>&) -> ScanOutput {
      const EnvState s(c.begin(), c.end() - 2);
      const Tensor action = random_action(game_.spec().actions, uniform_at(game_.counter(s), game_.instance(s), 100));
      const Instances::Decision d = game_.step(s, action);
      ScanOutput out{d.state, {}};
      const Tensor over = cast(logical_or(d.terminated, d.truncated), DType::f32);
      out.carry.insert(out.carry.end(), {c[c.size() - 2] + d.episode_return, c.back() + over});
      if (row.frames) out.outputs.push_back(game_.frame(d.state));
      return out;
    };
    const ScanOutput out = scan(step, carry, {full({row.decisions}, 0)});
    std::vector<Tensor> all = out.carry;
    all.insert(all.end(), out.outputs.begin(), out.outputs.end());
    return all;
  };
  Graph g;
  Builder b(g);
  const RandomOperands random{g.input({DType::i64, {}}, "seed"), g.input({DType::i64, {}}, "number"), g.input({DType::i64, {}}, "base"), 0};
  std::vector<NodeId> inputs;
  for (const Tensor& t : first) inputs.push_back(g.input({t.dtype(), t.shape()}, "state"));
  const std::vector<NodeId> outputs = traced_function(decide, {})(b, {}, inputs, random);
  inputs.insert(inputs.end(), {random.seed, random.step, random.base});
  State& s = *state_;
  s.backend = &backend, s.carries = first.size();
  s.program = std::make_unique<Executable>(g, inputs, outputs, backend);

  // Both sets of states, the three numbers, and what is put out.
  constexpr int64_t kAlign = 256;
  int64_t end = 0;
  std::vector<int64_t> at;
  auto place = [&](int64_t bytes) { at.push_back(end), end += (bytes + kAlign - 1) / kAlign * kAlign; };
  for (int set = 0; set < 2; ++set)
    for (size_t i = 0; i < s.carries; ++i) place(first[i].size() * size_of(first[i].dtype()));
  for (int i = 0; i < 3; ++i) place(8);
  for (size_t i = s.carries; i < outputs.size(); ++i) place(g.type(outputs[i]).bytes());
  s.memory = std::make_unique<Arena>(backend);
  s.memory->require(end);
  auto address = [&](size_t i) { return s.memory->data() + at[i]; };
  for (int set = 0; set < 2; ++set) {
    for (size_t i = 0; i < s.carries; ++i)
      s.in[set].push_back(address(size_t(set) * s.carries + i)), s.out[set].push_back(address(size_t(1 - set) * s.carries + i));
    for (size_t i = 0; i < 3; ++i) s.in[set].push_back(address(2 * s.carries + i));
    for (size_t i = s.carries; i < outputs.size(); ++i) s.out[set].push_back(address(s.carries + 3 + i));
  }
  const int64_t number[3] = {1, 0, 0};
  for (size_t i = 0; i < 3; ++i) backend.upload(address(2 * s.carries + i), &number[i], 8);
  for (size_t i = 0; i < s.carries; ++i) backend.upload(address(i), first[i].data(), first[i].size() * size_of(first[i].dtype()));
}

EnvProgram::~EnvProgram() = default;

void EnvProgram::run() {
  State& s = *state_;
  s.program->run(s.in[s.turn], s.out[s.turn]);
  s.turn = 1 - s.turn;
}

std::vector<float> EnvProgram::finished(bool returns) {
  State& s = *state_;
  const size_t i = s.carries - (returns ? 2 : 1);
  std::vector<float> v(size_t(s.program->input_types()[i].shape[0]));
  s.backend->download(v.data(), s.in[s.turn][i], int64_t(v.size()) * 4);
  return v;
}

std::vector<std::byte> EnvProgram::state() {
  State& s = *state_;
  std::vector<std::byte> all;
  for (size_t i = 0; i < s.carries; ++i) {
    const int64_t bytes = s.program->input_types()[i].bytes();
    all.resize(all.size() + size_t(bytes));
    s.backend->download(all.data() + all.size() - bytes, s.in[s.turn][i], bytes);
  }
  return all;
}

const Executable& EnvProgram::program() const { return *state_->program; }

TrainResult measure_environment(const EnvRow& row, const Options& o, ThreadTeam* team) {
  using Clock = std::chrono::steady_clock;
  auto since = [](Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const std::unique_ptr<Backend> host = team ? cpu_backend(*team) : nullptr;
  Backend& backend = host ? *host : *o.backend;
  EnvProgram program(row, backend);
  TrainResult r;
  r.threads = team ? team->size() : 0, r.device = o.device, r.batch = row.instances, r.planned_bytes = program.program().report().planned_bytes;
  r.time_steps = row.decisions,
  r.environment = fmt::format("{}; {} instances x {} decisions, random actions", program.game().describe(), row.instances, row.decisions);
  for (int i = 0; i < 3; ++i) program.run();
  std::vector<double> times;
  for (const auto start = Clock::now(); times.size() < 5 || since(start) < o.seconds;) {
    const auto begin = Clock::now();
    program.run();
    if (!team) program.finished(false);  // waits for the device
    inject_slowdown(begin);
    times.push_back(since(begin));
  }
  const Measured m = summarize(times);
  r.ms = 1e3 * m.median, r.spread = m.spread, r.samples = m.samples;
  for (double t : times) r.times_us.push_back(1e6 * t);
  r.steps_s = double(row.instances * row.decisions) / m.median, r.frames_s = r.steps_s * double(program.game().options().frame_skip);
  double gflops, gbs, least = 0;
  if (team) {
    gflops = FmaWindow(*team).gflops(), gbs = BandwidthWindow(*team, Movement::copy, 0.3, array_bytes_of(Movement::copy, r.planned_bytes)).gbs();
  } else {
    const DeviceCeilings c = measure_ceilings(backend, Precision::fp32);
    gflops = c.matmul_gflops, gbs = c.memory_gbs;
  }
  for (const KernelReport& k : program.program().report().kernels) {
    least += std::max(k.algorithmic_flops / (1e9 * gflops), k.unavoidable_bytes / (1e9 * gbs));
    r.tflops += 1e-12 * k.algorithmic_flops / m.median;
  }
  r.roof = least / m.median;
  const std::string dump = program.program().dump();
  r.loop = team ? "" : loops_in(dump);
  for (const std::string& line : program.program().report().scans)
    if (line.find("rows") != line.npos) r.loop = line.find("all steps at a time") != line.npos ? "resident" : "unrolled";
  return r;
}

}  // namespace ridge::bench
