#include "ridge/profiler.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

#include "backend/kernel_log.h"
#include "backend/kernel_work.h"
#include "base/error.h"
#include "base/half.h"
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
  std::vector<KernelOrigin> origins;
  std::vector<std::string> names, gradients;
  std::vector<KernelWork> work;
  ProgramMemory memory;
  std::vector<char> masked;  // by node
};

KnownProgram known_program(const Program& p) {
  KnownProgram k{origins_of(p), {}, gradients_among(p), {}, memory_over(p), masked_values(p.graph)};
  for (const ProgramKernel& kernel : p.kernels) k.names.push_back(kernel.name), k.work.push_back(work_of(p, kernel));
  return k;
}

float widened(const std::byte* at, DType dtype) {
  float value = 0;
  uint16_t half = 0;
  if (dtype == DType::f32) return std::memcpy(&value, at, 4), value;
  std::memcpy(&half, at, 2);
  return dtype == DType::bf16 ? bf16_to_f32(half) : f16_to_f32(half);
}

std::vector<LayerRange> layers_of(const std::vector<ValueRange>& ranges, const std::vector<GradientNorm>& gradients) {
  std::vector<LayerRange> layers;
  auto layer_named = [&](const std::string& name) -> LayerRange& {
    const auto at = std::find_if(layers.begin(), layers.end(), [&](const LayerRange& l) { return l.layer == name; });
    return at != layers.end() ? *at : layers.emplace_back(LayerRange{.layer = name, .low = INFINITY, .high = -INFINITY});
  };
  for (const ValueRange& r : ranges) {
    LayerRange& layer = layer_named(r.layer);
    layer.bad += r.bad;
    if (r.phase == "forward") layer.low = std::min(layer.low, r.low), layer.high = std::max(layer.high, r.high);
  }
  for (const GradientNorm& g : gradients) {
    double& norm = layer_named(layer_of(g.parameter)).gradient_norm;
    norm = std::hypot(std::max(norm, 0.0), g.norm);
  }
  return layers;
}

}  // namespace

struct Profiler::State final : KernelLog {
  StepProfile profile;
  std::function<void()> wait;
  Record record = Record::nothing;
  bool running = false, in_data = false;
  double stretch = 0;  // steps that are timed together
  double begun = 0, data_begun = 0, heap = 0;
  double data = 0, runs_in_data = 0;  // of this step
  std::vector<double> plain, growth, requests;
  int64_t seen = 0, pool_requests = 0;        // seen: steps so far
  std::mutex guard;                           // for everything below, which add() changes
  std::map<uint64_t, KnownProgram> programs;  // by number
  using Key = std::tuple<std::string, std::string, std::string>;
  std::map<Key, size_t> row_numbers;
  std::vector<KernelRow> rows;  // names only
  std::vector<std::string> phase_order;
  // What is measured in one recorded step.
  struct RecordedStep {
    double seconds = 0, gaps = 0, data = 0, launches = 0, runs = 0;
    struct Kernel {
      double calls = 0, seconds = 0, flops = 0, bytes = 0, exponentials = 0;
    };
    std::vector<Kernel> kernels;  // by number of the row
    struct Span {
      size_t row = 0;
      double begin = 0, end = 0;
      int64_t live_bytes = 0;
      size_t inside = 0, threads = 0;  // which part of `inside` is its own
    };
    std::vector<Span> spans;
    std::vector<double> inside;  // by span and thread; programs may run with teams of different sizes
  };
  static constexpr size_t kMostRecorded = 64;  // the last ones of a long run
  RecordedStep now;
  std::deque<RecordedStep> recorded;
  int recorded_count = 0;

  KnownProgram& known(const Program& p) {
    constexpr size_t kMost = 4096;  // a program that is compiled again has another number
    auto found = programs.find(p.number);
    if (found == programs.end() && programs.size() >= kMost) programs.clear();
    if (found == programs.end()) found = programs.emplace(p.number, known_program(p)).first;
    return found->second;
  }

  void add(const LoggedRun& run) override {
    const std::lock_guard lock(guard);
    if (record != Record::times) return;
    const KnownProgram& p = known(*run.program);
    const size_t count = run.kernels.size(), threads = size_t(run.threads);
    double inside = 0;
    profile.threads = std::max(profile.threads, run.threads);
    for (size_t i = 0; i < count; ++i) {
      const double seconds = run.kernels[i].end - run.kernels[i].begin;
      const KernelOrigin& origin = p.origins[i];
      const auto [at, fresh] = row_numbers.try_emplace(Key{origin.phase, origin.layer, p.names[i]}, rows.size());
      if (fresh) rows.push_back({.name = p.names[i], .layer = origin.layer, .phase = origin.phase, .bound = {}});
      if (std::find(phase_order.begin(), phase_order.end(), origin.phase) == phase_order.end()) phase_order.push_back(origin.phase);
      if (now.kernels.size() <= at->second) now.kernels.resize(rows.size());
      RecordedStep::Kernel& kernel = now.kernels[at->second];
      kernel.calls += 1, kernel.seconds += seconds, kernel.flops += p.work[i].flops, kernel.bytes += p.work[i].bytes;
      kernel.exponentials += p.work[i].exponentials;
      inside += seconds;
      now.spans.push_back({at->second, run.kernels[i].begin - begun, run.kernels[i].end - begun, p.memory.live[i], now.inside.size(), threads});
      for (size_t t = 0; t < threads; ++t) now.inside.push_back(run.busy[t * count + i]);
    }
    const int64_t live = p.memory.live.empty() ? 0 : *std::max_element(p.memory.live.begin(), p.memory.live.end());
    if (live > profile.live_bytes) profile.live_bytes = live, profile.arena_bytes = run.program->arena_bytes, profile.peak = p.memory.peak;
    const double whole = run.whole.end - run.whole.begin;
    now.gaps += whole - inside, now.launches += double(run.launches), now.runs += 1;
    if (in_data) runs_in_data += whole;
  }

  bool looks() const override { return record == Record::values; }

  void look(const Program& p, size_t kernel, const Read& read) override {
    const std::lock_guard lock(guard);
    const KnownProgram& known_ = known(p);
    for (const ProgramOperand& o : p.kernels[kernel].operands) {
      if (!o.written || !o.owner) continue;
      const Type& type = p.graph.type(o.owner);
      if (type.dtype != DType::f32 && type.dtype != DType::bf16 && type.dtype != DType::f16) continue;
      const Place place = place_of(p, {o.owner, 0, true});
      if (!place) continue;
      const std::byte* from = read(place, type.bytes());
      ValueRange r{
          fmt::format("{} {}", known_.names[kernel], to_string(type)), known_.origins[kernel].layer, known_.origins[kernel].phase, INFINITY, -INFINITY, 0};
      double squares = 0;
      const int64_t size = size_of(type.dtype);
      for (int64_t i = 0; i < type.shape.numel(); ++i) {
        const float value = widened(from + i * size, type.dtype);
        if (known_.masked[o.owner] && value == -INFINITY) continue;  // an entry that is left out
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
    const double end = log_time(), seconds = (end - begun) / stretch;
    if (in_data) data += end - data_begun, in_data = false;
    kernel_log.store(nullptr);
    running = false;
    if (record == Record::times) {
      now.seconds = seconds, now.data = std::max(0.0, data - runs_in_data);
      recorded.push_back(std::move(now)), ++recorded_count;
      if (recorded.size() > kMostRecorded) recorded.pop_front();
    }
    if (record == Record::nothing) {
      plain.push_back(seconds), growth.push_back((heap_bytes() - heap) / stretch);
      requests.push_back(double(eager_statistics().pool_requests - pool_requests) / stretch);
    }
    if (record == Record::values) profile.examined.push_back({seen - 1, layers_of(profile.ranges, profile.gradients)});
  }

  // The half of the recorded steps around the median: what disturbed a step is not in the figures, and they still add up.
  std::vector<const RecordedStep*> typical() const {
    std::vector<const RecordedStep*> all;
    for (const RecordedStep& step : recorded) all.push_back(&step);
    std::stable_sort(all.begin(), all.end(), [](const RecordedStep* a, const RecordedStep* b) { return a->seconds < b->seconds; });
    const std::ptrdiff_t cut = std::ptrdiff_t(all.size()) / 4;
    return {all.begin() + cut, all.end() - cut};
  }

  void finish() {
    StepProfile& p = profile;
    const std::vector<const RecordedStep*> middle_steps = typical();
    std::vector<double> times;
    for (const RecordedStep& step : recorded) times.push_back(step.seconds);
    p.recorded = recorded_count, p.unprofiled = int(plain.size());
    p.recorded_seconds = quantile(times, 0.5);
    const std::vector<double>& yardstick = plain.empty() ? times : plain;
    p.step_seconds = quantile(yardstick, 0.5), p.low_seconds = quantile(yardstick, 0.1), p.high_seconds = quantile(yardstick, 0.9);
    p.heap_growth = quantile(growth, 0.5), p.allocations = quantile(requests, 0.5);
    p.busy.assign(size_t(p.threads), 0), p.phases.clear(), p.kernels = rows;
    p.kernel_seconds = p.gap_seconds = p.data_seconds = p.flops = p.bytes = p.launches = p.programs = 0;
    const double part = 1 / std::max(1.0, double(middle_steps.size()));
    double own_seconds = 0;  // of a recorded step: a core cannot be inside kernels for longer
    for (const RecordedStep* step : middle_steps) own_seconds += part * step->seconds;
    own_seconds = std::max(own_seconds, p.step_seconds);
    for (const RecordedStep* step : middle_steps) {
      p.gap_seconds += part * step->gaps, p.data_seconds += part * step->data, p.launches += part * step->launches, p.programs += part * step->runs;
      for (size_t i = 0; i < step->kernels.size(); ++i) {
        const RecordedStep::Kernel& k = step->kernels[i];
        KernelRow& row = p.kernels[i];
        row.calls += part * k.calls, row.seconds += part * k.seconds, row.flops += part * k.flops, row.bytes += part * k.bytes;
        row.exponentials += part * k.exponentials;
      }
      for (const RecordedStep::Span& s : step->spans)
        for (size_t t = 0; t < s.threads; ++t) p.busy[t] += own_seconds > 0 ? part * step->inside[s.inside + t] / own_seconds : 0;
    }
    for (const std::string& phase : phase_order) p.phases.push_back({phase});
    for (KernelRow& row : p.kernels) {
      p.kernel_seconds += row.seconds, p.flops += row.flops, p.bytes += row.bytes;
      PhaseRow& phase = *std::find_if(p.phases.begin(), p.phases.end(), [&](const PhaseRow& r) { return r.name == row.phase; });
      phase.seconds += row.seconds, phase.calls += row.calls;
      if (p.flops_rate > 0 && p.bytes_rate > 0 && row.seconds > 0) {
        const double products = row.flops / p.flops_rate, exponentials = p.exponentials_rate > 0 ? row.exponentials / p.exponentials_rate : 0;
        // A CPU core computes exponentials in the units that multiply; a GPU has units of their own, which work at the same time.
        const double arithmetic = p.threads > 0 ? products + exponentials : std::max(products, exponentials);
        const double moving = row.bytes / p.bytes_rate, least = std::max(arithmetic, moving);
        constexpr double kShortCall = 20e-6;
        row.roof = least / row.seconds;
        row.bound = row.roof < 0.25 && row.seconds / row.calls < kShortCall ? "overhead" : arithmetic > moving ? "arithmetic" : "memory";
      }
    }
    std::erase_if(p.kernels, [](const KernelRow& row) { return !(row.calls > 0); });
    std::stable_sort(p.kernels.begin(), p.kernels.end(), [](const KernelRow& a, const KernelRow& b) { return a.seconds > b.seconds; });
    p.process_bytes = resident_bytes();
    const EagerStatistics pool = eager_statistics();
    p.pool_requests = pool.pool_requests, p.pool_reuses = pool.pool_reuses, p.pool_bytes = pool.pool_bytes, p.pool_peak = pool.pool_peak;
    p.spans.clear();
    if (middle_steps.empty()) return;
    const RecordedStep& middle = *middle_steps[middle_steps.size() / 2];
    for (const RecordedStep::Span& s : middle.spans) {
      KernelSpan& span = p.spans.emplace_back(KernelSpan{rows[s.row].name, rows[s.row].layer, rows[s.row].phase, s.begin, s.end, s.live_bytes, {}});
      const auto inside = middle.inside.begin() + std::ptrdiff_t(s.inside);
      span.busy.assign(inside, inside + std::ptrdiff_t(s.threads));
      span.busy.resize(p.busy.size());  // threads outside its team do nothing
    }
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
    if (record == Record::times) s.now = {};
    if (record == Record::values) s.profile.ranges.clear(), s.profile.gradients.clear();
  }
  if (record == Record::nothing) s.heap = heap_bytes(), s.pool_requests = eager_statistics().pool_requests;
  if (s.wait) s.wait();
  s.running = true, s.stretch = 1, ++s.seen;
  s.begun = log_time();
  if (record != Record::nothing) kernel_log.store(&s);
}

void Profiler::next_step() {
  if (!state_->running || state_->record != Record::nothing) return begin_step(Record::nothing);
  state_->stretch += 1, ++state_->seen;
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

void Profiler::set_roof(double flops_per_second, double bytes_per_second, double exponentials_per_second) {
  StepProfile& p = state_->profile;
  p.flops_rate = flops_per_second, p.bytes_rate = bytes_per_second, p.exponentials_rate = exponentials_per_second;
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
