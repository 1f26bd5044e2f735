// The loss of PPO, advantages, and statistics over rollouts.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "tasks/ppo/ppo.h"

namespace ridge {

void check(const PpoArgs& a) {
  if (a.decisions() % a.minibatch != 0)
    fail(ErrorCode::usage, "[ppo] instances={} x horizon={} are {} decisions, which minibatch={} does not divide", a.instances, a.horizon, a.decisions(),
         a.minibatch);
  if (a.horizon % a.segment != 0) fail(ErrorCode::usage, "[ppo] segment={} does not divide horizon={}", a.segment, a.horizon);
  if (a.minibatch % a.segment != 0)
    fail(ErrorCode::usage,
         "[ppo] minibatch={} is not a whole number of segments of {} decisions: set a multiple, or segment=N, which is the horizon by default", a.minibatch,
         a.segment);
}

std::vector<BatchSpec> ppo_batch(const Policy& policy, const PpoArgs& a) {
  const int64_t rows = a.minibatch / a.segment, length = a.segment;
  std::vector<int64_t> observation = {rows, length}, action = {rows, length};
  for (int64_t n : policy.args().observation) observation.push_back(n);
  const ActionSpace& space = policy.args().actions;
  if (space.kind != ActionSpace::Kind::discrete) action.push_back(space.components());
  std::vector<BatchSpec> specs = {{Shape(observation), policy.args().dtype},
                                  {Shape(action), space.kind == ActionSpace::Kind::continuous ? DType::f32 : DType::i64}};
  for (int i = 0; i < 5; ++i) specs.push_back({{rows, length}});  // log-probability, value, advantage, value to learn, weight of the entropy
  if (!policy.has_memory()) return specs;
  specs.push_back({{rows, length}});
  for (const Tensor& s : policy.zero_state(rows)) specs.push_back({s.shape()});
  return specs;
}

Loss ppo_loss(const Policy& policy, const PpoArgs& a, const std::vector<Tensor>& batch) {
  const int64_t rows = batch[0].shape()[0], length = batch[0].shape()[1], n = rows * length;
  auto flat = [&](size_t i) { return reshape(batch[i], {n}); };
  const Policy::Output out = policy.has_memory() ? policy.sequence(batch[0], {batch.begin() + 8, batch.end()}, batch[7]) : policy.sequence(batch[0], {}, {});
  const Tensor action = batch[1].shape().rank() == 2 ? flat(1) : reshape(batch[1], {n, batch[1].shape()[2]});
  const Tensor before = flat(2), old_value = flat(3), advantage = flat(4), goal = flat(5), entropy_weight = flat(6);
  const Tensor log_ratio = policy.log_probability(out.distribution, action) - before, ratio = exp(log_ratio);
  const Tensor gain = minimum(advantage * ratio, advantage * clamp(ratio, 1 - a.clip_range, 1 + a.clip_range));
  Tensor value_loss = square(out.value - goal);
  if (a.value_clip > 0) value_loss = maximum(value_loss, square(old_value + clamp(out.value - old_value, -a.value_clip, a.value_clip) - goal));
  value_loss = value_loss * 0.5;
  const Tensor entropy = policy.entropy(out.distribution);
  const Tensor each = value_loss * a.value_weight - gain - entropy_weight * entropy;
  return Loss{sum(each), full({}, double(n))}
      .with("policy_loss", -gain)
      .with("value_loss", value_loss)
      .with("entropy", entropy)
      .with("kl", ratio - 1 - log_ratio)
      .with("clipped", abs(ratio - 1) > a.clip_range);
}

std::pair<Tensor, Tensor> advantages(const Tensor& reward, const Tensor& value, const Tensor& terminated, const Tensor& truncated, const Tensor& final_value,
                                     const Tensor& last_value, double gamma, double lambda) {
  const int64_t time = reward.shape()[0], instances = reward.shape()[1];
  const Tensor last = reshape(last_value, {1, instances});
  const Tensor next = time > 1 ? concat({slice(value, 0, 1, time), last}, 0) : last;
  const Tensor after = where(terminated, full({time, instances}, 0), where(truncated, final_value, next));
  const Tensor surprise = reward + after * gamma - value;
  const Tensor kept = where(logical_or(terminated, truncated), full({time, instances}, 0), full({time, instances}, gamma * lambda));
  const ScanOutput out = scan(
      [](const std::vector<Tensor>& carry, const std::vector<Tensor>& now) {
        const Tensor advantage = now[0] + now[1] * carry[0];
        return ScanOutput{{advantage}, {advantage}};
      },
      {full({instances}, 0)}, {surprise, kept}, {}, true);
  return {out.outputs[0], out.outputs[0] + value};
}

namespace {

// Chan's formula.
template <class Numbers>
void merge_moments(RunningMoments& all, double n, const Numbers& means, const Numbers& squares) {
  const double total = all.count + n;
  for (size_t k = 0; k < all.mean.size(); ++k) {
    const double apart = double(means[k]) - all.mean[k];
    all.variance[k] = (all.variance[k] * all.count + double(squares[k]) + apart * apart * all.count * n / total) / total;
    all.mean[k] += apart * n / total;
  }
  all.count = total;
}

}  // namespace

// Sums run in the order of the rows, so the result depends on nothing else.
void RunningMoments::add(std::span<const float> rows) {
  const size_t size = mean.size(), n = rows.size() / size;
  if (n == 0) return;
  std::vector<double> sum(size, 0), squares(size, 0);
  for (size_t i = 0; i < n; ++i)
    for (size_t k = 0; k < size; ++k) sum[k] += double(rows[i * size + k]);
  for (size_t k = 0; k < size; ++k) sum[k] /= double(n);
  for (size_t i = 0; i < n; ++i)
    for (size_t k = 0; k < size; ++k) squares[k] += (double(rows[i * size + k]) - sum[k]) * (double(rows[i * size + k]) - sum[k]);
  merge_moments(*this, double(n), sum, squares);
}

void RunningMoments::merge(double n, std::span<const float> means, std::span<const float> squares) { merge_moments(*this, n, means, squares); }

EpisodeScore::EpisodeScore(int64_t instances, int64_t episodes)
    : quota_((episodes + instances - 1) / instances),
      returns_(size_t(instances * quota_), 0),
      lengths_(size_t(instances * quota_), 0),
      counts_(size_t(instances), 0) {}

void EpisodeScore::add(int64_t instance, float episode_return, float length) {
  const int64_t at = instance * quota_ + counts_[size_t(instance)]++ % quota_;
  returns_[size_t(at)] = episode_return, lengths_[size_t(at)] = length;
}

namespace {

double mean_of(const std::vector<float>& values) { return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size()); }

}  // namespace

std::optional<double> EpisodeScore::score() const {
  if (std::ranges::any_of(counts_, [&](int64_t n) { return n < quota_; })) return {};
  return mean_of(returns_);
}
std::optional<double> EpisodeScore::length() const { return score() ? std::optional(mean_of(lengths_)) : std::nullopt; }

std::optional<double> EpisodeScore::length_so_far() const {
  std::vector<float> finished;
  std::ranges::copy_if(lengths_, std::back_inserter(finished), [](float length) { return length > 0; });
  return finished.empty() ? std::nullopt : std::optional(mean_of(finished));
}

double PlayedEpisodes::mean() const { return mean_of(returns); }
double PlayedEpisodes::mean_length() const { return mean_of(lengths); }
double PlayedEpisodes::deviation() const {
  if (returns.size() < 2) return 0;
  double squares = 0;
  for (float r : returns) squares += (double(r) - mean()) * (double(r) - mean());
  return std::sqrt(squares / double(returns.size() - 1));
}
double PlayedEpisodes::interval() const { return 1.96 * deviation() / std::sqrt(double(returns.size())); }

}  // namespace ridge
