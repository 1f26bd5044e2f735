// Episodes that are played to evaluate the policy: all of them at once, by instances that training does not use.
#include <algorithm>

#include "tasks/ppo/collector_parts.h"
#include "tasks/ppo/scales.h"

namespace ridge {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kPlayers = 100;       // instances that are evaluated
constexpr int64_t kPlayedAtOnce = 128;  // decisions

}  // namespace

// All evaluated instances play on until the last has finished its episode, about as fast as those of training.
double Collector::validation_seconds() const {
  constexpr double kLongest = 1.5;                   // the longest episode against the mean
  constexpr double kUnfinished = 4, kFewest = 1000;  // of episodes that all go on: times their decisions so far, at least this many
  if (times_.rollouts == 0) return 0;
  const double limit = double(instances_.options().time_limit > 0 ? instances_.options().time_limit : kLongestPlayed);
  const std::optional<double> known = score_.length_so_far();
  const double length = std::min(known ? kLongest * *known : std::max(kUnfinished * double(times_.rollouts * args_.horizon), kFewest), limit);
  return double(kPlayers) * length * times_.playing / double(times_.rollouts * args_.decisions());
}

// The programs that play kPlayers episodes at once.
void Collector::make_player(bool sampled) {
  constexpr int64_t rows = kPlayers;
  Programs::Play& play = programs_->play[sampled];
  const size_t environment = programs_->environment;
  // Episodes that never end by themselves must end here.
  EnvOptions options = instances_.options();
  if (options.time_limit == 0) options.time_limit = kLongestPlayed;
  const auto players = std::make_shared<const Instances>(instances_.environment_pointer(), options);
  if (instances_.on_host()) {
    play.host = std::make_unique<HostPlay>(step_, policy_, weights_, *players, args_.normalize_observations, rows, sampled);
    return;
  }
  auto first_state = [players] { return players->start(iota({rows}) + Tensor(double(kFirstEvaluated), DType::i64)); };
  for (const Tensor& t : first_state()) play.carry.push_back(type_of(t));
  for (const Tensor& t : policy_->zero_state(rows)) play.carry.push_back(type_of(t));
  play.start = std::make_unique<ReadProgram>(step_, std::vector<Type>{}, traced_function([=](const std::vector<Tensor>&) { return first_state(); }, weights_));
  std::vector<Type> inputs = play.carry;
  const int64_t width = instances_.spec().observation.numel();
  if (args_.normalize_observations) inputs.push_back({DType::f32, {width}}), inputs.push_back({DType::f32, {width}});
  play.run = std::make_unique<ReadProgram>(
      step_, inputs,
      traced_function(
          [=, this](const std::vector<Tensor>& in) {
            const size_t carries = programs_->play[sampled].carry.size();
            Scales scales;
            if (args_.normalize_observations) scales.shift = in[carries], scales.scale = in[carries + 1];
            const ScanOutput played = scan(
                [&](const std::vector<Tensor>& carry, const std::vector<Tensor>&) {
                  const EnvState state(carry.begin(), carry.begin() + long(environment));
                  const std::vector<Tensor> memory(carry.begin() + long(environment), carry.end());
                  const Policy::Output out = policy_->step(scales.observation(players->observe(state)), memory);
                  const Tensor action =
                      sampled ? policy_->sample(out.distribution, players->counter(state), players->instance(state)) : policy_->most_likely(out.distribution);
                  const Instances::Decision d = players->step(state, policy_->for_environment(action));
                  ScanOutput next{d.state, {d.episode_return, d.episode_length, cast(d.truncated, DType::f32)}};
                  const Tensor on = reshape(cast(logical_not(logical_or(d.terminated, d.truncated)), DType::f32), {rows, 1});
                  for (const Tensor& m : out.state) next.carry.push_back(m * on);
                  return next;
                },
                {in.begin(), in.begin() + long(carries)}, {iota({kPlayedAtOnce})});
            std::vector<Tensor> results = played.carry;
            results.insert(results.end(), played.outputs.begin(), played.outputs.end());
            return results;
          },
          weights_));
}

uint64_t Collector::evaluation_seed() const { return args_.seed + 0x9E3779B97F4A7C15u * uint64_t(rollouts_ + 1); }

std::optional<PlayedEpisodes> Collector::play(int64_t episodes, bool sampled, const std::function<bool()>& stop) {
  constexpr int64_t rows = kPlayers;
  const int64_t quota = (episodes + rows - 1) / rows, players = std::min(episodes, rows);
  Programs::Play& play = programs_->play[sampled];
  if (!play.run && !play.host) make_player(sampled);
  if (play.host) return play_on_host(*play.host, episodes, stop);
  const size_t environment = programs_->environment;
  std::vector<Bytes> carry;
  std::vector<const void*> in;
  std::vector<void*> out, first;
  for (const Type& t : play.carry) carry.emplace_back(size_t(t.bytes()));
  for (Bytes& c : carry) in.push_back(c.data()), out.push_back(c.data());
  if (args_.normalize_observations) in.push_back(buffers_->shift.data()), in.push_back(buffers_->scale.data());
  std::vector<float> returns(size_t(kPlayedAtOnce * rows)), lengths(returns.size()), truncated(returns.size());
  for (std::vector<float>* v : {&returns, &lengths, &truncated}) out.push_back(v->data());
  for (size_t i = 0; i < environment; ++i) first.push_back(carry[i].data());
  // Other episodes in every evaluation, or the best weights would be those that suit some episodes best.
  const uint64_t seed = evaluation_seed();
  play.start->run({}, first, seed);
  PlayedEpisodes played;
  std::vector<int64_t> finished(size_t(players), 0);  // with fewer episodes than instances, the others are not counted
  for (int64_t chunk = 0; std::ranges::any_of(finished, [&](int64_t n) { return n < quota; }); ++chunk) {
    if (stop && stop()) return {};
    play.run->run(in, out, seed, chunk);
    for (size_t i = 0; i < returns.size(); ++i)
      if (const size_t row = i % size_t(rows); row < finished.size() && lengths[i] > 0 && finished[row] < quota) {
        ++finished[row];
        played.returns.push_back(returns[i]), played.lengths.push_back(lengths[i]);
        if (truncated[i] > 0) ++played.capped;
      }
  }
  return played;
}

// Every decision passes through the host, so an evaluation ends with the last episode that counts.
std::optional<PlayedEpisodes> Collector::play_on_host(HostPlay& game, int64_t episodes, const std::function<bool()>& stop) {
  constexpr int64_t rows = kPlayers;
  const int64_t quota = (episodes + rows - 1) / rows, players = std::min(episodes, rows);
  std::vector<float> returns(static_cast<size_t>(rows)), lengths(returns.size());
  Bytes truncated(returns.size());
  HostPlay::Record record;
  record.episode_return = returns.data(), record.episode_length = lengths.data(), record.truncated = truncated.data();
  const std::vector<const void*> scales = program_inputs({});
  game.start(evaluation_seed(), kFirstEvaluated);
  PlayedEpisodes played;
  std::vector<int64_t> finished(size_t(players), 0);
  for (int64_t decision = 0; std::ranges::any_of(finished, [&](int64_t n) { return n < quota; }); ++decision) {
    if (decision % kPlayedAtOnce == 0 && stop && stop()) return {};
    game.decide(scales, record);
    for (size_t row = 0; row < finished.size(); ++row)
      if (lengths[row] > 0 && finished[row] < quota) {
        ++finished[row];
        played.returns.push_back(returns[row]), played.lengths.push_back(lengths[row]);
        if (truncated[row] != std::byte(0)) ++played.capped;
      }
  }
  return played;
}

}  // namespace ridge
