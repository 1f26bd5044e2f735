// instances=auto: how many instances play fastest on this machine.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "tasks/ppo/task.h"
#include "tune/size_choice.h"

namespace ridge {
namespace {

constexpr int64_t kLeastInstances = 8, kLeastRollouts = 10;  // fewer instances would not fill a vector; fewer rollouts would not be training
constexpr double kLongestRollout = 1;                        // seconds
constexpr size_t kWithoutGain = 2;                           // doublings

std::string rate_text(const InstanceTrial& t) { return fmt::format("{} steps/s", count_text(t.decisions_s)); }

}  // namespace

int64_t least_instances(int64_t horizon, int64_t minibatch) {
  int64_t n = minibatch / std::gcd(minibatch, horizon);
  while (n < kLeastInstances) n *= 2;
  return n;
}

size_t smallest_of_the_fastest(std::span<const InstanceTrial> trials) {
  std::vector<double> rates;
  for (const InstanceTrial& t : trials) rates.push_back(t.decisions_s);
  return smallest_of_the_fastest(std::span<const double>(rates));
}

InstanceChoice choose_instances(const PpoArgs& args, int64_t decisions, const std::function<std::optional<double>(int64_t instances)>& rollout_seconds) {
  std::vector<InstanceTrial> trials;
  std::string end;
  for (int64_t n = least_instances(args.horizon, args.minibatch); end.empty(); n *= 2) {
    if (!trials.empty() && n * args.horizon > decisions / kLeastRollouts) {
      end = fmt::format("more would leave fewer than {} rollouts", kLeastRollouts);
      break;
    }
    const std::optional<double> seconds = rollout_seconds(n);
    if (!seconds && trials.empty())
      fail(ErrorCode::memory, "[ppo] instances=auto: not even {} instances x {} decisions fit into memory; set a smaller horizon or minibatch", n,
           args.horizon);
    if (!seconds) {
      end = fmt::format("{} do not fit into memory", grouped(n));
      break;
    }
    trials.push_back({n, double(n * args.horizon) / *seconds});
    if (*seconds > kLongestRollout) end = fmt::format("a rollout of {} takes {:.2g} s", grouped(n), *seconds);
    if (trials.size() > smallest_of_the_fastest(trials) + kWithoutGain) end = "more are not faster";
  }
  const size_t chosen = smallest_of_the_fastest(trials);
  InstanceChoice choice{trials[chosen].instances, {}, {}};
  const InstanceTrial& fastest = *std::ranges::max_element(trials, {}, &InstanceTrial::decisions_s);
  choice.why =
      fmt::format("fewest within {:.0f} % of the fastest rollouts, {} of {}; {}", 100 * kNearlyAsFast, rate_text(trials[chosen]), rate_text(fastest), end);
  for (size_t i = 0; i < trials.size(); ++i)
    if (i != chosen) choice.runner_up += fmt::format("{}{}: {}", choice.runner_up.empty() ? "" : ", ", grouped(trials[i].instances), rate_text(trials[i]));
  return choice;
}

}  // namespace ridge
