#include "ridge/profiler.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "backend/kernel_log.h"
#include "backend/kernel_work.h"
#include "base/error.h"
#include "compile/place.h"
#include "machine/memory_budget.h"
#include "profile/layers.h"
#include "profile/step_profile.h"
#include "ridge/tensor.h"

namespace ridge {
namespace {

double heap_bytes() {
#if defined(__GLIBC__)
  return double(mallinfo2().uordblks);
#else
  return 0;
#endif
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const size_t at = size_t(share * double(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(at), values.end());
  return values[at];
}

// What is found once about a program.
struct KnownProgram {
  size_t kernels = 0;
  int64_t arena_bytes = 0;
  std::vector<KernelOrigin> origins;
  std::vector<std::string> names, gradients;
  std::vector<KernelWork> work;
  ProgramMemory memory;
};

KnownProgram known_program(const Program& p) {
  KnownProgram k{p.kernels.size(), p.arena_bytes, origins_of(p), {}, gradients_among(p), {}, memory_over(p)};
  for (const ProgramKernel& kernel : p.kernels) k.names.push_back(kernel.name), k.work.push_back(work_of(p, kernel));
  return k;
}

float widened(const std::byte* at, DType dtype) {
  float value = 0;
  if (dtype == DType::f32) {
    std::memcpy(&value, at, 4);
  } else {  // bf16
    uint16_t half = 0;
    std::memcpy(&half, at, 2);
    const uint32_t bits = uint32_t(half) << 16;
    std::memcpy(&value, &bits, 4);
  }
  return value;
}

}  // namespace

struct Profiler::State final : KernelLog {
  StepProfile profile;
  std::function<void()> wait;
  Record record = Record::nothing;
  bool running = false, in_data = false;
  double steps = 0;  // of this stretch
  double begun = 0, data_begun = 0, heap = 0;
  double data = 0, runs_in_data = 0;  // of this step
  std::vector<double> plain, recorded, growth;
  double recorded_data = 0;
  std::mutex guard;  // for everything below, which add() changes
  std::map<const Program*, KnownProgram> programs;
  using Key = std::tuple<std::string, std::string, std::string>;
  std::map<Key, KernelRow> rows;
  std::map<std::string, PhaseRow> phases;
  std::vector<std::string> phase_order;
  double kernels = 0, gaps = 0, launches = 0, flops = 0, bytes = 0, runs = 0;
  std::vector<double> busy;

  KnownProgram& known(const Program& p) {
    auto found = programs.find(&p);
    if (found != programs.end() && (found->second.kernels != p.kernels.size() || found->second.arena_bytes != p.arena_bytes))
      programs.erase(found), found = programs.end();
    if (found == programs.end()) found = programs.emplace(&p, known_program(p)).first;
    return found->second;
  }

  void add(const LoggedRun& run) override {
    const std::lock_guard lock(guard);
    if (record != Record::times) return;
    const KnownProgram& p = known(*run.program);
    const size_t count = run.kernels.size(), threads = size_t(run.threads);
    double inside = 0;
    busy.resize(threads);
    profile.threads = run.threads;
    for (size_t i = 0; i < count; ++i) {
      const double seconds = run.kernels[i].end - run.kernels[i].begin;
      const KernelOrigin& origin = p.origins[i];
      KernelRow& row = rows[{origin.phase, origin.layer, p.names[i]}];
      row.name = p.names[i], row.layer = origin.layer, row.phase = origin.phase;
      row.calls += 1, row.seconds += seconds, row.flops += p.work[i].flops, row.bytes += p.work[i].bytes;
      if (!phases.contains(origin.phase)) phase_order.push_back(origin.phase);
      PhaseRow& phase = phases[origin.phase];
      phase.name = origin.phase, phase.seconds += seconds, phase.calls += 1;
      inside += seconds, flops += p.work[i].flops, bytes += p.work[i].bytes;
      KernelSpan span{p.names[i], origin.layer, origin.phase, run.kernels[i].begin - begun, run.kernels[i].end - begun, p.memory.live[i], {}};
      for (size_t t = 0; t < threads; ++t) span.busy.push_back(run.busy[t * count + i]), busy[t] += span.busy.back();
      profile.spans.push_back(std::move(span));
    }
    const int64_t live = p.memory.live.empty() ? 0 : *std::max_element(p.memory.live.begin(), p.memory.live.end());
    if (live > profile.live_bytes) profile.live_bytes = live, profile.arena_bytes = p.arena_bytes, profile.peak = p.memory.peak;
    const double whole = run.whole.end - run.whole.begin;
    kernels += inside, gaps += whole - inside, launches += double(run.launches), runs += 1;
    if (in_data) runs_in_data += whole;
  }

  bool looks() const override { return record == Record::values; }

  void look(const Program& p, size_t kernel, std::span<std::byte* const> bases) override {
    const std::lock_guard lock(guard);
    const KnownProgram& known_ = known(p);
    for (const ProgramOperand& o : p.kernels[kernel].operands) {
      if (!o.written || !o.owner) continue;
      const Type& type = p.graph.type(o.owner);
      if (type.dtype != DType::f32 && type.dtype != DType::bf16) continue;
      const Place place = place_of(p, {o.owner, 0, true});
      if (!place) continue;
      const std::byte* from = bases[size_t(place.base)] + place.offset;
      ValueRange r{
          fmt::format("{} {}", known_.names[kernel], to_string(type)), known_.origins[kernel].layer, known_.origins[kernel].phase, INFINITY, -INFINITY, 0};
      double squares = 0;
      const int64_t size = size_of(type.dtype);
      for (int64_t i = 0; i < type.shape.numel(); ++i) {
        const float value = widened(from + i * size, type.dtype);
        if (!std::isfinite(value)) {
          ++r.bad;
          continue;
        }
        r.low = std::min(r.low, double(value)), r.high = std::max(r.high, double(value)), squares += double(value) * double(value);
      }
      profile.ranges.push_back(std::move(r));
      const ProgramBuffer& b = p.buffer_of(o.owner);
      if (b.place != ProgramBuffer::Place::output || size_t(b.index) >= known_.gradients.size() || known_.gradients[size_t(b.index)].empty()) continue;
      const std::string& parameter = known_.gradients[size_t(b.index)];
      auto found = std::find_if(profile.gradients.begin(), profile.gradients.end(), [&](const GradientNorm& g) { return g.parameter == parameter; });
      if (found == profile.gradients.end()) found = profile.gradients.insert(found, {parameter, 0});
      found->norm = std::sqrt(squares);
    }
  }

  void end_step() {
    if (!running) return;
    if (wait && record == Record::nothing) wait();  // a recorded run has waited itself
    const double now = log_time(), seconds = (now - begun) / steps;
    if (in_data) data += now - data_begun, in_data = false;
    kernel_log.store(nullptr);
    running = false;
    if (record == Record::times) recorded.push_back(seconds), recorded_data += std::max(0.0, data - runs_in_data);
    if (record == Record::nothing) plain.push_back(seconds), growth.push_back((heap_bytes() - heap) / steps);
  }

  // Sums become figures per step.
  void finish() {
    StepProfile& p = profile;
    p.recorded = int(recorded.size()), p.unprofiled = int(plain.size());
    const double n = std::max(1.0, double(recorded.size()));
    p.recorded_seconds = quantile(recorded, 0.5);
    const std::vector<double>& yardstick = plain.empty() ? recorded : plain;
    p.step_seconds = quantile(yardstick, 0.5), p.low_seconds = quantile(yardstick, 0.1), p.high_seconds = quantile(yardstick, 0.9);
    p.heap_growth = quantile(growth, 0.5);
    p.kernel_seconds = kernels / n, p.gap_seconds = gaps / n, p.data_seconds = recorded_data / n;
    p.flops = flops / n, p.bytes = bytes / n, p.launches = launches / n, p.programs = runs / n;
    p.busy.clear(), p.kernels.clear(), p.phases.clear();
    for (double b : busy) p.busy.push_back(p.step_seconds > 0 ? b / n / p.step_seconds : 0);
    for (auto [key, row] : rows) {
      row.calls /= n, row.seconds /= n, row.flops /= n, row.bytes /= n;
      if (p.flops_rate > 0 && p.bytes_rate > 0 && row.seconds > 0) {
        const double arithmetic = row.flops / p.flops_rate, moving = row.bytes / p.bytes_rate, least = std::max(arithmetic, moving);
        constexpr double kShortCall = 20e-6;
        row.roof = least / row.seconds;
        row.bound = row.roof < 0.25 && row.seconds / row.calls < kShortCall ? "overhead" : arithmetic > moving ? "arithmetic" : "memory";
      }
      p.kernels.push_back(row);
    }
    std::stable_sort(p.kernels.begin(), p.kernels.end(), [](const KernelRow& a, const KernelRow& b) { return a.seconds > b.seconds; });
    for (const std::string& name : phase_order) {
      PhaseRow row = phases[name];
      row.seconds /= n, row.calls /= n;
      p.phases.push_back(row);
    }
    p.process_bytes = resident_bytes();
    const EagerStatistics pool = eager_statistics();
    p.pool_requests = pool.pool_requests, p.pool_reuses = pool.pool_reuses, p.pool_bytes = pool.pool_bytes, p.pool_peak = pool.pool_peak;
  }
};

Profiler::Profiler() : state_(std::make_unique<State>()) {}
Profiler::~Profiler() { state_->end_step(); }

void Profiler::begin_step(Record record) {
  State& s = *state_;
  s.end_step();
  if (current_log()) fail(ErrorCode::usage, "[profiler] another profiler is recording; end its step first");
  {
    const std::lock_guard lock(s.guard);
    s.record = record, s.data = s.runs_in_data = 0;
    if (record == Record::times) s.profile.spans.clear();
    if (record == Record::values) s.profile.ranges.clear(), s.profile.gradients.clear();
  }
  if (record == Record::nothing) s.heap = heap_bytes();
  if (s.wait) s.wait();
  s.running = true, s.steps = 1;
  s.begun = log_time();
  if (record != Record::nothing) kernel_log.store(&s);
}

void Profiler::next_step() {
  if (!state_->running || state_->record != Record::nothing) return begin_step(Record::nothing);
  state_->steps += 1;
}

void Profiler::set_wait(std::function<void()> wait) { state_->wait = std::move(wait); }

void Profiler::waiting_for_data(bool waits) {
  State& s = *state_;
  if (waits == s.in_data || !s.running) return;
  const double now = log_time();
  if (!waits) s.data += now - s.data_begun;
  s.in_data = waits, s.data_begun = now;
}

void Profiler::end_step() { state_->end_step(); }

void Profiler::end() {
  state_->end_step();
  state_->finish();
}

void Profiler::set_roof(double flops_per_second, double bytes_per_second) {
  state_->profile.flops_rate = flops_per_second, state_->profile.bytes_rate = bytes_per_second;
}
void Profiler::set_title(const std::string& title, int64_t planned_bytes) { state_->profile.title = title, state_->profile.planned_bytes = planned_bytes; }

const StepProfile& Profiler::profile() const { return state_->profile; }
std::string Profiler::text(int rows) const { return profile_text(profile(), rows); }
std::string Profiler::json() const { return profile_json(profile()); }
std::string Profiler::trace() const { return profile_trace(profile()); }
std::string Profiler::roofline_picture() const { return ridge::roofline_picture(profile()); }
std::string Profiler::memory_picture() const { return ridge::memory_picture(profile()); }
std::string Profiler::timeline_picture() const { return ridge::timeline_picture(profile()); }

}  // namespace ridge
