#include "tune/kernel_trials.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include <fmt/format.h>

#include "backend/kernel_log.h"
#include "backend/kernel_work.h"
#include "base/error.h"
#include "base/text.h"
#include "machine/features.h"

namespace ridge {
namespace {

constexpr int kKernelCandidates = 1;  // counts changes of the candidates, which make stored results invalid

double norm_of(std::span<const float> values) {
  double sum = 0;
  for (const float v : values) sum += double(v) * double(v);
  return std::sqrt(sum);
}

}  // namespace

// Adds up the time of each site's kernels, and on request the time that they would take at the machine's rates.
class KernelTrials::Log : public KernelLog {
 public:
  explicit Log(const std::vector<KernelSite>& sites) : seconds(sites.size(), 0), roof(sites.size(), 0) {
    for (size_t i = 0; i < sites.size(); ++i) site_[sites[i].key] = i;
  }
  void add(const LoggedRun& run) override {
    std::vector<int>& of = known_[run.program->number];
    if (of.empty())
      for (const ProgramKernel& k : run.program->kernels) {
        const auto found = site_.find(k.choice_key);
        of.push_back(found == site_.end() ? -1 : int(found->second));
      }
    for (size_t i = 0; i < run.kernels.size(); ++i) {
      if (of[i] < 0) continue;
      seconds[size_t(of[i])] += run.kernels[i].end - run.kernels[i].begin;
      if (flops_rate <= 0 || bytes_rate <= 0) continue;
      const KernelWork work = work_of(*run.program, run.program->kernels[i]);
      roof[size_t(of[i])] += std::max(work.flops / flops_rate, work.bytes / bytes_rate);
    }
  }

  std::vector<double> seconds, roof;
  double flops_rate = 0, bytes_rate = 0;  // 0: roofs are not wanted

 private:
  std::unordered_map<std::string, size_t> site_;
  std::unordered_map<uint64_t, std::vector<int>> known_;
};

struct KernelTrials::Ready {
  KernelAssignment assignment;
  std::unique_ptr<Backend> backend;
  TrainStep step;
  StepMetrics metrics[2] = {};
  std::vector<std::vector<float>> gradients = {};   // of the first step
  std::vector<std::vector<float>> parameters = {};  // after the second
};

KernelTrials::KernelTrials(const TrainStep& planned, StepTrialOptions options, double flops_rate, double bytes_rate)
    : model_(planned.model()), options_(planned.options()), o_(std::move(options)), batch_(model_, o_), flops_rate_(flops_rate), bytes_rate_(bytes_rate) {
  const StepPlan& plan = planned.plan();
  options_.evaluation = false, options_.memory = 0;
  options_.micro = plan.micro, options_.recompute = plan.recompute;
  for (const std::string& key : options_.backend->tunable_kernels()) {
    std::vector<KernelCandidate> candidates = options_.backend->kernel_candidates(key);
    if (o_.same_bits) std::erase_if(candidates, [](const KernelCandidate& c) { return !c.same_bits; });
    if (candidates.empty()) continue;
    KernelSite site{.key = key};
    for (const KernelCandidate& c : candidates) site.variants.push_back(c.name);
    sites_.push_back(std::move(site)), candidates_.push_back(std::move(candidates));
  }
  load_.busy();  // watches from now on
}

KernelTrials::~KernelTrials() = default;

KernelWords KernelTrials::words(const KernelAssignment& assignment) const {
  KernelWords words;
  for (size_t i = 0; i < assignment.size(); ++i)
    if (assignment[i] > 0) words[std::string(kKernelChoice) + sites_[i].key] = sites_[i].variants[assignment[i] - 1];
  return words;
}

bool KernelTrials::same_bits(const KernelAssignment& assignment) const {
  for (size_t i = 0; i < assignment.size(); ++i)
    if (assignment[i] > 0 && !candidates_[i][assignment[i] - 1].same_bits) return false;
  return true;
}

// The step as it is, and one other.
KernelTrials::Ready& KernelTrials::ready(const KernelAssignment& assignment) {
  if (start_ && start_->assignment == assignment) return *start_;
  if (other_ && other_->assignment == assignment) return *other_;
  other_.reset();
  std::unique_ptr<Backend> backend = options_.backend->with_choices(words(assignment));
  StepOptions options = options_;
  options.backend = backend.get();
  auto made = std::make_unique<Ready>(Ready{assignment, std::move(backend), TrainStep(model_, options)});
  int64_t parameters = 0;
  for (const Parameter& p : model_.parameters) parameters += p.shape.numel();
  const int64_t held = made->step.plan().planned_bytes + (start_ ? start_->step.plan().planned_bytes : 0) + 4 * parameters * int64_t(sizeof(float));
  if (o_.memory > 0 && held > o_.memory) fail(ErrorCode::memory, "{} for two steps side by side, more than the {} left", size_text(held), size_text(o_.memory));
  for (size_t i = 0; i < model_.parameters.size(); ++i) made->step.fill_parameter(i, [&](std::span<float> values) { o_.fill(i, values); });
  made->metrics[0] = batch_.run_once(made->step);
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    const std::span<const float> g = made->step.gradient(i);
    made->gradients.emplace_back(g.begin(), g.end());
  }
  made->metrics[1] = batch_.run_once(made->step);
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    const std::span<const float> p = made->step.parameter(i);
    made->parameters.emplace_back(p.begin(), p.end());
  }
  std::unique_ptr<Ready>& place = start_ ? other_ : start_;
  place = std::move(made);
  return *place;
}

std::string KernelTrials::compare(const Ready& r) const {
  for (int i = 0; i < 2; ++i)
    if (std::string why = compare_steps(r.metrics[i], start_->metrics[i], options_.precision, i + 1); !why.empty()) return why;
  const bool exact = same_bits(r.assignment);
  double all = 0;
  for (const auto& g : start_->gradients) all += norm_of(g) * norm_of(g);
  const double tolerance = options_.precision == Precision::fp32 ? 1e-3 : 3e-2, floor = 0.01 * std::sqrt(all);
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    const std::vector<float>&a = start_->gradients[i], &b = r.gradients[i];
    const std::vector<float>&x = start_->parameters[i], &y = r.parameters[i];
    if (exact && (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) || std::memcmp(x.data(), y.data(), x.size() * sizeof(float))))
      return fmt::format("other bits in {}, though none should change", model_.parameters[i].name);
    if (exact) continue;
    double difference = 0;
    for (size_t k = 0; k < a.size(); ++k) difference += (double(a[k]) - double(b[k])) * (double(a[k]) - double(b[k]));
    if (!(std::sqrt(difference) <= tolerance * (norm_of(a) + floor)))
      return fmt::format("wrong result: the gradient of {} differs by {:.3g} of its norm", model_.parameters[i].name,
                         std::sqrt(difference) / std::max(norm_of(a), 1e-30));
  }
  return {};
}

std::vector<KernelSite> KernelTrials::sites() {
  const KernelAssignment start(sites_.size(), 0);
  if (flops_rate_ <= 0 || bytes_rate_ <= 0 || !check(start).empty()) return sites_;
  Log log(sites_);
  log.flops_rate = flops_rate_, log.bytes_rate = bytes_rate_;
  run_logged(*start_, 1, log);
  for (size_t i = 0; i < sites_.size(); ++i) sites_[i].roof_seconds = log.roof[i];
  return sites_;
}

double KernelTrials::run_logged(Ready& r, int times, Log& log) {
  struct Logging {
    KernelLog* before;
    explicit Logging(KernelLog& log) : before(kernel_log.exchange(&log)) {}
    ~Logging() { kernel_log = before; }
  } logging(log);
  return batch_.run(r.step, times);
}

std::string KernelTrials::check(const KernelAssignment& assignment) {
  try {
    Ready& r = ready(assignment);
    if (&r != start_.get()) return compare(r);
    if (!std::isfinite(r.metrics[0].loss) || !std::isfinite(r.metrics[1].loss)) return "its loss is not finite, so no result can be checked";
    times_ = int(std::clamp(kSampleSeconds / batch_.run(r.step, 1), 1.0, 50.0));
    return {};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::memory && error.code() != ErrorCode::unsupported) throw;
    return error.what();
  }
}

KernelSample KernelTrials::measure(const KernelAssignment& assignment) {
  Ready& r = ready(assignment);
  batch_.run(r.step, 1);  // another step's data fills the caches
  Log log(sites_);
  KernelSample sample;
  sample.step_seconds = run_logged(r, times_, log);
  for (const double seconds : log.seconds) sample.seconds.push_back(seconds / times_);
  sample.busy = load_.busy();
  return sample;
}

double KernelTrials::now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string kernel_tuning_key(int threads, std::string_view kernel_key) {
  return fmt::format("{}kernel/{}/t{}/v{}/{}", kTuneKeys, name(isa_tier()), threads, kKernelCandidates, kernel_key);
}

std::string kernels_tuning_key(std::string_view step_key, int threads) {
  return fmt::format("{}kernels/t{}/v{}/{}", kTuneKeys, threads, kKernelCandidates, step_key.substr(kTuneKeys.size()));
}

}  // namespace ridge
