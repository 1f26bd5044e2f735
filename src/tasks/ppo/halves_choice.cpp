// env_halves=auto: measured like every other choice, by the tuner's search, and stored with its results.
#include <algorithm>
#include <bit>
#include <chrono>

#include "base/text.h"
#include "machine/machine.h"
#include "machine/utilisation.h"
#include "measure/default_team.h"
#include "tasks/ppo/host_play.h"
#include "tasks/ppo/task.h"
#include "threads/thread_team.h"
#include "tune/load_watch.h"
#include "tune/search.h"
#include "tune/tuned_choice.h"

namespace ridge {
namespace {

constexpr double kSearchSeconds = 1, kSampleOfPlay = 0.03;
const char* const kHalves = "env_halves";

class HalvesTrials : public TuneTarget {
 public:
  HalvesTrials(HostPlay& play, bool normalized) : play_(play), normalized_(normalized) { load_.busy(); }
  std::string check(const TunePoint& point) override {
    if (point[0] == 1 && !play_.halves_keep_bits(normalized_)) return kOtherBits;
    if (point[0] == 0) {
      play_.start(0, 0);
      decisions_ = int64_t(std::clamp(kSampleOfPlay / play_.decision_seconds(false, normalized_, 2), 2.0, 64.0));
    }
    return {};
  }
  TuneSample measure(const TunePoint& point) override {
    const double seconds = play_.decision_seconds(point[0] == 1, normalized_, decisions_);
    return {seconds, load_.busy()};
  }
  double now() override { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

  static constexpr const char* kOtherBits = "halves would compute other bits";

 private:
  HostPlay& play_;
  const bool normalized_;
  int64_t decisions_ = 2;
  LoadWatch load_;
};

// Speeds of the two ways, the present one first.
void describe_halves(Decision& d, bool halves, int64_t instances, double whole_seconds, double halves_seconds) {
  std::string rates[] = {fmt::format("all instances together: {} steps/s", count_text(double(instances) / whole_seconds)),
                         fmt::format("in halves: {} steps/s", count_text(double(instances) / halves_seconds))};
  d.why = rates[halves], d.runner_up = rates[!halves];
}

}  // namespace

Decision choose_halves(HostPlay& play, const PpoArgs& args, const std::string& environment, bool search_again) {
  Decision d{kHalves, "false", "measured", "", ""};
  MeasurementStore store(fingerprint(detect_machine({})));
  const int threads = default_team().size();
  // Whether halves keep the bits depends on the number of instances, so neighbours share only the speeds.
  const std::string key = fmt::format("{}halves/{}/t{}/i{}", kTuneKeys, environment, threads, std::bit_ceil(uint64_t(args.instances)));
  const std::optional<TunedChoice> kept = search_again ? std::nullopt : kept_choice(store, key);
  if (kept && (!kept->busy || others_now() > kQuiet)) {
    const bool halves = kept->words.contains(kHalves);
    d.decided_by = kept->imported ? "imported" : "measured before";
    if (halves && !play.halves_keep_bits(args.normalize_observations)) return d.why = HalvesTrials::kOtherBits, d;
    d.value = halves ? "true" : "false", d.why = fmt::format("{:.2f} x as fast in an earlier search", kept->gain());
    if (!halves) d.why = "halves were not faster in an earlier search";
    return d;
  }
  HalvesTrials trials(play, args.normalize_observations);
  const TuneSpace space{{{kHalves, {"false", "true"}, false}}};
  const TuneResult r = search(space, trials, {.seconds = kSearchSeconds, .points = 2});
  const auto tried = std::find_if(r.trials.begin(), r.trials.end(), [](const TuneTrial& t) { return t.point[0] == 1; });
  if (tried == r.trials.end() || !tried->refused.empty()) return d.why = tried == r.trials.end() ? r.ended : tried->refused, d;
  const double halves_seconds = r.adopted ? r.best_seconds : summary_of(tried->seconds()).median;
  d.value = r.adopted ? "true" : "false";
  describe_halves(d, r.adopted, args.instances, r.start_seconds, halves_seconds);
  TunedChoice choice{.what = fmt::format("halves of {}: {}, {}", environment, counted(args.instances, "instance"), counted(threads, "thread")),
                     .runner_up = d.runner_up,
                     .planned_seconds = r.start_seconds,
                     .seconds = r.best_seconds,
                     .measured = r.points,
                     .points = space.points(),
                     .busy = r.busy};
  if (r.adopted) choice.words[kHalves] = "true";
  keep_choice(store, key, choice);
  return d;
}

}  // namespace ridge
