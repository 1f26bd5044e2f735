#include "tune/step_trials.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "backend/registry.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "io/checksum.h"
#include "machine/features.h"
#include "machine/gpus.h"
#include "threads/thread_team.h"

namespace ridge {
namespace {

constexpr const char *kThreads = "threads", *kParts = "parts", *kRecompute = "recompute", *kPasses = "passes", *kKernels = "kernels";
constexpr int kCandidates = 1;  // counts changes of the candidates, which make stored results invalid

double clock_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool has_kernels(const TrainStep& step, std::string_view name) {
  const std::vector<KernelRun> kernels = step.kernels();
  return std::any_of(kernels.begin(), kernels.end(), [&](const KernelRun& k) { return k.kernel.name.starts_with(name); });
}

// A CPU backend and its team.
struct OwnTeam {
  ThreadTeam team;
  std::unique_ptr<Backend> backend;
  explicit OwnTeam(const TeamOptions& options) : team(options), backend(cpu_backend(team)) {}
};

int64_t number_in(const TunedWords& words, const char* key) {
  const std::string& text = words.at(key);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) fail(ErrorCode::io, "[tune] the stored choice {}={} is not known", key, text);
  return value;
}

std::string without_digits(const std::string& text) {
  std::string out;
  for (char c : text)
    if (c < '0' || c > '9') out += c;
  return out;
}

// The nearest power of two.
int64_t anchor(int64_t size) { return size < 1 ? 0 : int64_t(1) << std::lround(std::log2(double(size))); }

}  // namespace

std::span<const std::string_view> tune_dimensions() {
  static constexpr std::string_view kAll[] = {kThreads,     kParts,      kRecompute,  "scan_saved", "scan_hoist",
                                              "row_blocks", "saved_set", "streaming", "place",      kKernels};
  return kAll;
}

bool changes_bits(const TunedWords& words) { return words.size() > words.count(kThreads); }

TunedWords neutral_part(TunedWords words) {
  std::erase_if(words, [](const auto& word) { return word.first != kThreads; });
  return words;
}

void apply(const TunedWords& words, int64_t batch, StepOptions& options) {
  for (const auto& [key, value] : words) {
    if (key == kThreads) {
      number_in(words, kThreads);
    } else if (key == kParts) {
      const int64_t parts = std::min(number_in(words, kParts), batch);
      options.micro = (batch + parts - 1) / parts;
    } else if (key == kRecompute) {
      options.recompute = parse_recompute(value);
      if (!options.recompute) fail(ErrorCode::io, "[tune] the stored choice recompute={} is not known", value);
    } else if (key == kKernels || key == kVariant || key == "env_halves") {
      continue;  // of kernels, which the device builds, and of tasks
    } else if (key == kPasses) {
      options.passes += (options.passes.empty() ? "" : ",") + value;
    } else {
      fail(ErrorCode::io, "[tune] the stored choice {}={} is not known", key, value);
    }
  }
}

struct StepTrials::Ready {
  TunePoint point;
  std::shared_ptr<Backend> backend;  // null: the planned step's
  TrainStep step;
  StepMetrics metrics[2] = {};

  int64_t bytes() const { return step.plan().planned_bytes; }
};

std::shared_ptr<Backend> StepTrials::backend_with(const TeamOptions& team, int threads) {
  TeamOptions fewer = team;
  fewer.threads = threads;
  if (!fewer.cpus.empty()) fewer.cpus.resize(size_t(threads));
  if (!fewer.speeds.empty()) fewer.speeds.resize(size_t(threads));
  const auto own = std::make_shared<OwnTeam>(fewer);
  return {own, own->backend.get()};
}

StepTrials::StepTrials(const TrainStep& planned, StepTrialOptions options) : model_(planned.model()), options_(planned.options()), o_(std::move(options)) {
  const StepPlan& plan = planned.plan();
  samples_ = plan.batch;
  options_.evaluation = false, options_.memory = 0;
  options_.micro = plan.micro, options_.recompute = plan.recompute;
  add_dimensions(planned);
  load_.busy();  // watches from now on
}

StepTrials::~StepTrials() = default;

// The dimensions with the largest effect first.
void StepTrials::add_dimensions(const TrainStep& planned) {
  const StepPlan& plan = planned.plan();
  const bool on_cpu = options_.backend->host_memory(), loops = has_kernels(planned, "scan");
  auto add = [&](const char* name, std::vector<std::string> values, bool bits = true) {
    const bool wanted = o_.only.empty() || std::ranges::find(o_.only, name) != o_.only.end();
    if (values.size() > 1 && wanted && !(bits && o_.same_bits) && std::ranges::find(o_.fixed, name) == o_.fixed.end())
      space_.dimensions.push_back({name, std::move(values), bits});
  };
  std::vector<std::string> threads, parts, levels = {std::string(name(plan.recompute))};
  if (o_.team)
    for (int n = o_.team->threads; n >= 1; n /= 2) threads.push_back(std::to_string(n));
  add(kThreads, threads, false);
  const int64_t planned_parts = plan.repeats + (plan.remainder > 0);
  for (int64_t n = planned_parts; n <= std::min(samples_, 16 * planned_parts); n *= 2) parts.push_back(std::to_string(n));
  add(kParts, parts);
  for (Recompute level : {Recompute::free, Recompute::elementwise, Recompute::attention, Recompute::segments})
    if (level != plan.recompute && (loops || level != Recompute::segments)) levels.push_back(std::string(name(level)));
  add(kRecompute, levels);
  const bool passes_fixed = std::ranges::find(o_.fixed, kPasses) != o_.fixed.end();
  // Passes whose worth depends on the machine and the sizes. On a GPU, loops are measured as one kernel and as many when they are compiled.
  auto add_pass = [&](const char* pass) {
    if (!passes_fixed && options_.passes.find(pass) == std::string::npos) add(pass, {"on", "off"});
  };
  if (loops) add_pass("scan_saved"), add_pass("scan_hoist");
  if (loops && on_cpu) add_pass("row_blocks");
  add_pass("saved_set");
  if (on_cpu) add_pass("streaming");
  if (!on_cpu && has_kernels(planned, "conv")) add_pass("layout");
  add_pass("place");
}

TunedWords StepTrials::words(const TunePoint& point) const {
  TunedWords words;
  for (size_t d = 0; d < point.size(); ++d) {
    if (point[d] == 0) continue;
    const TuneDimension& dimension = space_.dimensions[d];
    const std::string& value = dimension.values[point[d]];
    if (value == "off") {
      std::string& passes = words[kPasses];
      passes += (passes.empty() ? "-" : ",-") + dimension.name;
    } else {
      words[dimension.name] = value;
    }
  }
  return words;
}

TrialBatch::TrialBatch(const StepModel& model, const StepTrialOptions& options) {
  std::vector<std::byte*> tensors;
  uint32_t number = 0;
  for (const Type& t : model.batch) {
    std::vector<std::byte>& bytes = bytes_.emplace_back(size_t(t.bytes()));
    tensors.push_back(bytes.data()), data_.push_back(bytes.data());
    if (!options.batch && t.dtype == DType::f32)
      initialize({.name = "batch", .shape = t.shape, .deviation = 0.5}, 1, number++, {reinterpret_cast<float*>(bytes.data()), size_t(t.shape.numel())});
  }
  if (options.batch) options.batch(tensors);
}

// On a device that runs behind, one is enqueued while the one before runs.
double TrialBatch::run(TrainStep& step, int times) const {
  const double lr = step.options().optimizer.lr, begin = clock_seconds();
  for (int i = 0; i < times; ++i) {
    step.enqueue(data_, lr);
    if (step.pending() > 1) step.collect();
  }
  while (step.pending() > 0) step.collect();
  return (clock_seconds() - begin) / times;
}

StepMetrics TrialBatch::run_once(TrainStep& step) const { return step.run(data_, step.options().optimizer.lr); }

StepTrials::Ready& StepTrials::ready(const TunePoint& point) {
  const auto found = std::find_if(ready_.begin(), ready_.end(), [&](const auto& r) { return r->point == point; });
  if (found != ready_.end()) {
    if (found != ready_.begin()) std::rotate(found, found + 1, ready_.end());
    return found == ready_.begin() ? *ready_.front() : *ready_.back();
  }
  if (!batch_) batch_.emplace(model_, o_);
  StepOptions options = options_;
  const TunedWords words = this->words(point);
  if (const auto parts = words.find(kParts); parts == words.end()) options.micro = options_.micro;
  apply(words, samples_, options);
  std::shared_ptr<Backend> backend;
  if (words.contains(kThreads)) backend = backend_with(*o_.team, int(number_in(words, kThreads)));
  if (backend) options.backend = backend.get();
  auto made = std::make_unique<Ready>(Ready{point, backend, TrainStep(model_, options)});
  if (o_.memory > 0) {
    int64_t held = made->bytes();
    for (const auto& r : ready_) held += r->bytes();
    while (held > o_.memory && ready_.size() > 1) held -= ready_[1]->bytes(), ready_.erase(ready_.begin() + 1);
    if (held > o_.memory) fail(ErrorCode::memory, "{} for steps side by side, more than the {} left", size_text(held), size_text(o_.memory));
  }
  for (size_t i = 0; i < model_.parameters.size(); ++i) made->step.fill_parameter(i, [&](std::span<float> values) { o_.fill(i, values); });
  for (StepMetrics& m : made->metrics) m = batch_->run_once(made->step);
  ready_.push_back(std::move(made));
  return *ready_.back();
}

// The second step's loss depends on the first one's update.
std::string StepTrials::compare(const Ready& r, const Ready& start) const {
  for (int i = 0; i < 2; ++i)
    if (std::string why = compare_steps(r.metrics[i], start.metrics[i], options_.precision, i + 1); !why.empty()) return why;
  return {};
}

std::string compare_steps(const StepMetrics& b, const StepMetrics& a, Precision precision, int number) {
  const double tolerance = precision == Precision::fp32 ? 1e-3 : 3e-2;
  auto differ = [&](double x, double y) { return std::isfinite(x) != std::isfinite(y) || std::abs(x - y) > tolerance * (std::abs(x) + 1e-3); };
  if (differ(a.loss, b.loss)) return fmt::format("wrong result: loss {:.6g} in step {}, as planned {:.6g}", b.loss, number, a.loss);
  if (a.applied != b.applied) return fmt::format("wrong result: step {} {}", number, b.applied ? "was applied" : "was skipped");
  if (a.applied && differ(a.gradient_norm, b.gradient_norm))
    return fmt::format("wrong result: gradient norm {:.6g} in step {}, as planned {:.6g}", b.gradient_norm, number, a.gradient_norm);
  return {};
}

std::string StepTrials::check(const TunePoint& point) {
  try {
    const bool first = ready_.empty();
    Ready& r = ready(point);
    if (!first) return compare(r, *ready_.front());
    if (!std::isfinite(r.metrics[0].loss) || !std::isfinite(r.metrics[1].loss)) return "its loss is not finite, so no result can be checked";
    const double seconds = batch_->run(r.step, 1);
    times_ = int(std::clamp(kSampleSeconds / seconds, 1.0, 50.0)), warm_ = seconds < 4 * kSampleSeconds;
    return {};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::memory && error.code() != ErrorCode::unsupported) throw;
    return error.what();
  }
}

TuneSample StepTrials::measure(const TunePoint& point) {
  Ready& r = ready(point);
  if (warm_) batch_->run(r.step, 1);  // another step's data fills the caches
  const double seconds = batch_->run(r.step, times_);
  return {seconds, load_.busy()};
}

double StepTrials::now() { return clock_seconds(); }

std::string tuning_key(std::string_view task, const TrainStep& step, const TuneSpace& space) {
  const StepModel& model = step.model();
  const StepOptions& o = step.options();
  std::set<std::string> names;
  int64_t parameters = 0, sample = 0;
  for (const Parameter& p : model.parameters) parameters += p.shape.numel(), names.insert(fmt::format("{}[{}]", without_digits(p.name), p.shape.rank()));
  for (const Type& t : model.batch) sample += t.bytes() / std::max<int64_t>(1, t.shape[0]);
  std::string form = fmt::format("{} {} {} {}", kCandidates, int(o.optimizer.kind), o.join_samples, o.passes);
  for (const TuneDimension& d : space.dimensions) form += " " + d.name;
  for (const std::string& name : names) form += " " + name;
  const std::string device = o.backend->host_memory() ? std::string(name(isa_tier())) : fmt::format("{}, driver {}", o.backend->info().chip, gpus().driver);
  return fmt::format("{}step/{}/{}/{}/p{}/b{}/s{}/{}", kTuneKeys, task, device, name(o.precision), anchor(parameters), anchor(step.plan().batch),
                     anchor(sample), checksum_of(form).substr(0, 12));
}

}  // namespace ridge
