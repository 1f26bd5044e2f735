#include "tune/kernel_search.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "tune/search.h"

namespace ridge {
namespace {

constexpr int kWarm = 3, kTurnsOfTrial = 4, kRepeatsOfBusy = 3;
constexpr int kFewestPairs = 7, kMostPairs = 15;  // of the last comparison
constexpr double kSure = 0.95;                    // of each median's interval there, where many kernels are compared at a time
constexpr double kPromising = 0.985;              // by the least of a few samples: worth the last comparison
constexpr double kHopeless = 1.3;                 // after two turns
constexpr double kShareOfTrials = 0.65;           // of the time; the rest is for the last comparison
constexpr double kStepNoise = 1.01;               // a step that is slower than this by its median is refused
constexpr double kRoofBand = 0.05;

double median(const std::vector<double>& v) { return summary_of(v).median; }
double least(const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }

bool separated(const std::vector<double>& a, const std::vector<double>& b) {
  const Interval x = median_interval(a, kSure), y = median_interval(b, kSure);
  return x.high < y.low || y.high < x.low;
}

class KernelSearch {
 public:
  KernelSearch(KernelTarget& target, double seconds) : target_(target), begun_(target.now()), limit_(seconds) {}

  KernelSearchResult run() {
    sites_ = target_.sites();
    const KernelAssignment start(sites_.size(), 0);
    result_.best = start;
    if (std::string why = target_.check(start); !why.empty()) {
      result_.ended = "the step as it is cannot be measured: " + why;
      return result_;
    }
    find_hot(start);
    try_variants(start);
    conclude(start);
    result_.seconds = passed();
    return result_;
  }

 private:
  // A variant of a kernel, and what its samples say.
  struct Trial {
    size_t site, variant;
    double ratio = 1;  // to the kernel as it is, by the least samples
  };

  double passed() { return target_.now() - begun_; }

  KernelSample sample(const KernelAssignment& a) {
    KernelSample s;
    for (int turn = 0; turn == 0 || (s.busy && turn <= kRepeatsOfBusy && passed() < limit_); ++turn) s = target_.measure(a), ++result_.samples;
    return s;
  }

  void find_hot(const KernelAssignment& start) {
    std::vector<std::vector<double>> seconds(sites_.size());
    std::vector<double> steps;
    for (int i = 0; i < kWarm; ++i) {
      const KernelSample s = sample(start);
      for (size_t k = 0; k < sites_.size(); ++k) seconds[k].push_back(s.seconds[k]);
      steps.push_back(s.step_seconds);
    }
    result_.step_seconds = result_.best_step_seconds = least(steps);
    for (size_t k = 0; k < sites_.size(); ++k) {
      KernelFinding f{.site = k, .seconds = least(seconds[k])};
      f.best_seconds = f.seconds;
      if (f.seconds < kHotKernel * result_.step_seconds) continue;
      const double roof = sites_[k].roof_seconds;
      f.at_roof = f.seconds >= (1 - kRoofBand) * roof && f.seconds <= (1 + kRoofBand) * roof;
      result_.hot.push_back(f);
    }
    std::stable_sort(result_.hot.begin(), result_.hot.end(), [](const KernelFinding& a, const KernelFinding& b) { return a.seconds > b.seconds; });
  }

  // The n-th variant of every kernel at a time.
  void try_variants(const KernelAssignment& start) {
    for (size_t n = 1;; ++n) {
      std::vector<Trial> column;
      for (const KernelFinding& f : result_.hot)
        if (!f.at_roof && n <= sites_[f.site].variants.size()) column.push_back({f.site, n});
      if (column.empty()) return void(result_.ended = "every candidate is measured");
      if (passed() >= kShareOfTrials * limit_) return void(result_.ended = "the time was up");
      try_together(start, column);
    }
  }

  // A wrong result is searched for by halves, so that it refuses one variant and no other.
  void try_together(const KernelAssignment& start, std::vector<Trial> column) {
    KernelAssignment changed = start;
    for (const Trial& t : column) changed[t.site] = t.variant;
    if (const std::string why = target_.check(changed); !why.empty()) {
      if (column.size() == 1) {
        result_.refused.push_back(fmt::format("{} {}: {}", sites_[column[0].site].key, sites_[column[0].site].variants[column[0].variant - 1], why));
        return;
      }
      const auto middle = column.begin() + long(column.size() / 2);
      try_together(start, {column.begin(), middle});
      if (passed() < limit_) try_together(start, {middle, column.end()});
      return;
    }
    std::vector<std::vector<double>> as_is(column.size()), with(column.size());
    for (int turn = 0; turn < kTurnsOfTrial; ++turn) {
      const KernelSample a = sample(start), b = sample(changed);
      bool any = false;
      for (size_t i = 0; i < column.size(); ++i) {
        as_is[i].push_back(a.seconds[column[i].site]), with[i].push_back(b.seconds[column[i].site]);
        column[i].ratio = least(with[i]) / least(as_is[i]);
        any |= column[i].ratio < kHopeless;
      }
      if (turn > 0 && !any) break;
    }
    for (const Trial& t : column) {
      ++result_.measured, ++finding(t.site).tried;
      trials_.push_back(t);
    }
  }

  KernelFinding& finding(size_t site) {
    return *std::find_if(result_.hot.begin(), result_.hot.end(), [&](const KernelFinding& f) { return f.site == site; });
  }

  void conclude(const KernelAssignment& start) {
    KernelAssignment best = start;
    std::map<size_t, double> ratio;
    for (const Trial& t : trials_) {
      KernelFinding& f = finding(t.site);
      if (f.other == 0 || t.ratio < f.other_ratio) f.other = t.variant, f.other_ratio = t.ratio;
      if (t.ratio < kPromising && (!ratio.contains(t.site) || t.ratio < ratio[t.site])) best[t.site] = t.variant, ratio[t.site] = t.ratio;
    }
    if (best == start) return;
    if (const std::string why = target_.check(best); !why.empty()) {
      result_.refused.push_back("the fastest variants together: " + why);
      return;
    }
    std::vector<std::vector<double>> a(sites_.size()), b(sites_.size());
    std::vector<double> steps, best_steps;
    for (int pair = 0; pair < kMostPairs && !(pair >= kFewestPairs && passed() >= limit_); ++pair) {
      const KernelSample x = sample(start), y = sample(best);
      for (size_t k = 0; k < sites_.size(); ++k) a[k].push_back(x.seconds[k]), b[k].push_back(y.seconds[k]);
      steps.push_back(x.step_seconds), best_steps.push_back(y.step_seconds);
      result_.busy = result_.busy || x.busy || y.busy;
    }
    result_.step_seconds = median(steps), result_.best_step_seconds = median(best_steps);
    const bool slower = median(best_steps) > kStepNoise * median(steps);
    for (KernelFinding& f : result_.hot) {
      if (best[f.site] == 0) continue;
      f.seconds = f.best_seconds = median(a[f.site]);
      f.other_ratio = median(b[f.site]) / f.seconds;
      if (slower || f.other_ratio > 1 - kTuneGain || !separated(a[f.site], b[f.site])) continue;
      f.variant = result_.best[f.site] = best[f.site], f.best_seconds = median(b[f.site]);
      f.other = 0;
    }
    for (const Trial& t : trials_) {  // the runner-up of what was adopted
      KernelFinding& f = finding(t.site);
      if (f.variant != 0 && t.variant != f.variant && (f.other == 0 || t.ratio < f.other_ratio)) f.other = t.variant, f.other_ratio = t.ratio;
    }
    if (result_.best == start) result_.best_step_seconds = result_.step_seconds;
  }

  KernelTarget& target_;
  const double begun_, limit_;
  std::vector<KernelSite> sites_;
  std::vector<Trial> trials_;
  KernelSearchResult result_;
};

}  // namespace

int64_t KernelSearchResult::adopted() const { return int64_t(best.size()) - std::count(best.begin(), best.end(), size_t(0)); }

KernelSearchResult search_kernels(KernelTarget& target, double seconds) { return KernelSearch(target, seconds).run(); }

}  // namespace ridge
