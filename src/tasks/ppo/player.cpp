#include "tasks/ppo/player.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "rl/host_game.h"
#include "step/compiled_step.h"
#include "tasks/ppo/gif.h"
#include "tasks/ppo/host_play.h"
#include "tasks/ppo/scales.h"

namespace ridge {
namespace {

constexpr int64_t kColourSamples = 24;  // pictures that decide the colours of a recording

Type type_for(const Tensor& t) { return {t.dtype(), t.shape()}; }

}  // namespace

Shape picture_of(const Instances& instances) {
  if (const rl::HostGame* host = rl::host_game(instances.environment())) return host->picture();
  const Tensor one = instances.environment().render(instances.environment_state(instances.start(iota({1}))));
  return one.defined() ? Shape{one.shape()[1], one.shape()[2], one.shape()[3]} : Shape{};
}

AgentPlayer::AgentPlayer(TrainStep& step, std::shared_ptr<const Policy> policy, std::span<const Tensor> weights, const Instances& instances,
                         const PpoArgs& args, const Options& options)
    : instances_(instances), policy_(std::move(policy)), args_(args), options_(options) {
  const int64_t width = instances_.spec().observation.numel(), components = policy_->args().actions.components();
  shift_.assign(size_t(width), 0), scale_.assign(size_t(width), 1);
  picture_ = picture_of(instances_);
  if (instances_.on_host()) {
    host_ = std::make_unique<HostPlay>(step, policy_, weights, instances_, args_.normalize_observations, 1, options_.sampled);
    states_.resize(1);
    return;
  }
  const EnvState first = instances_.start(iota({1}));
  own_ = instances_.environment_state(first).size(), environment_ = first.size();
  for (const Tensor& t : first) types_.push_back(type_for(t));
  for (const Tensor& t : policy_->zero_state(1)) types_.push_back(type_for(t));
  for (const Type& t : types_) carry_.emplace_back(size_t(t.bytes()));
  start_ = std::make_unique<ReadProgram>(step, std::vector<Type>{{DType::i64, {1}}},
                                         traced_function([this](const std::vector<Tensor>& in) { return instances_.start(in[0]); }, weights));

  std::vector<Type> inputs = types_;
  if (args_.normalize_observations) inputs.push_back({DType::f32, {width}}), inputs.push_back({DType::f32, {width}});
  inputs.push_back({DType::f32, {2}}), inputs.push_back({DType::i64, {1}});
  play_ = std::make_unique<ReadProgram>(
      step, inputs,
      traced_function(
          [this, components](const std::vector<Tensor>& in) {
            size_t at = types_.size();
            Tensor shift, scale;
            if (args_.normalize_observations) shift = in[at++], scale = in[at++];
            const Tensor values = in[at], other = in[at + 1];
            const ScanOutput played = scan(
                [&](const std::vector<Tensor>& carry, const std::vector<Tensor>&) {
                  const EnvState state(carry.begin(), carry.begin() + long(environment_));
                  const std::vector<Tensor> memory(carry.begin() + long(environment_), carry.end());
                  Tensor seen = instances_.observe(state);
                  if (shift.defined()) seen = clamp((seen - shift) * scale, -kLargestObservation, kLargestObservation);
                  const Policy::Output out = policy_->step(seen, memory);
                  const Tensor drawn = options_.sampled ? policy_->sample(out.distribution, instances_.counter(state), instances_.instance(state))
                                                        : policy_->most_likely(out.distribution);
                  const Tensor own = policy_->for_environment(drawn), action = options_.two_players ? stack({own, other}, 1) : own;
                  const Instances::Decision d = instances_.step(state, action);
                  ScanOutput next{d.state, instances_.environment_state(state)};
                  const Tensor on = reshape(cast(logical_not(logical_or(d.terminated, d.truncated)), DType::f32), {1, 1});
                  for (const Tensor& m : out.state) next.carry.push_back(m * on);
                  const Tensor value = out.value * slice(values, 0, 1, 2) + slice(values, 0, 0, 1);
                  for (const Tensor& t : {reshape(cast(own, DType::f32), {components}), value, d.reward, cast(d.terminated, DType::f32),
                                          cast(d.truncated, DType::f32), d.episode_return})
                    next.outputs.push_back(t);
                  return next;
                },
                {in.begin(), in.begin() + long(types_.size())}, {iota({options_.decisions})});
            std::vector<Tensor> results = played.carry;
            results.insert(results.end(), played.outputs.begin(), played.outputs.end());
            return results;
          },
          weights));
  states_.resize(own_);
  if (!has_picture()) return;
  auto renderer = [&](int64_t rows) {
    std::vector<Type> state(types_.begin(), types_.begin() + long(own_));
    for (Type& t : state) t.shape[0] = rows;
    return std::make_unique<ReadProgram>(
        step, state, traced_function([this](const std::vector<Tensor>& in) { return std::vector<Tensor>{instances_.environment().render(in)}; }, weights));
  };
  if (options_.decisions > 1)
    render_several_ = renderer(int64_t(kPictures));
  else
    render_one_ = renderer(1);
}

AgentPlayer::~AgentPlayer() = default;

void AgentPlayer::use_statistics(const RunningMoments& observations, const RunningMoments& values) {
  if (args_.normalize_observations)
    for (size_t k = 0; k < shift_.size(); ++k) shift_[k] = float(observations.mean[k]), scale_[k] = float(1 / std::sqrt(observations.variance[k] + 1e-8));
  value_scale_[0] = float(values.mean[0]), value_scale_[1] = float(std::sqrt(values.variance[0] + 1e-8));
}

void AgentPlayer::begin(int64_t instance) {
  for (Bytes& s : states_) s.clear();
  kept_ = 0;
  if (host_) return host_->start(args_.seed, instance);
  const void* in[] = {&instance};
  std::vector<void*> out;
  for (size_t i = 0; i < environment_; ++i) out.push_back(carry_[i].data());
  start_->run(in, out, args_.seed);
  for (size_t i = environment_; i < carry_.size(); ++i) std::fill(carry_[i].begin(), carry_[i].end(), std::byte(0));
}

std::vector<PlayedDecision> AgentPlayer::play_on_host() {
  std::vector<const void*> scales;
  if (args_.normalize_observations) scales = {shift_.data(), scale_.data()};
  scales.push_back(value_scale_);
  const bool real = policy_->args().actions.kind == ActionSpace::Kind::continuous;
  std::vector<PlayedDecision> played;
  for (int64_t k = 0; k < options_.decisions; ++k) {
    if (has_picture() && options_.decisions > 1) {
      const std::vector<uint8_t> picture = present_picture();
      const auto* bytes = reinterpret_cast<const std::byte*>(picture.data());
      states_[0].insert(states_[0].end(), bytes, bytes + picture.size());
    }
    PlayedDecision d;
    d.action.resize(size_t(policy_->args().actions.components()));
    std::vector<int64_t> choices(d.action.size());
    std::byte terminated{}, truncated{};
    HostPlay::Record r;
    r.played = real ? reinterpret_cast<std::byte*>(d.action.data()) : reinterpret_cast<std::byte*>(choices.data());
    r.value = &d.value, r.reward = &d.reward, r.terminated = &terminated, r.truncated = &truncated, r.episode_return = &d.episode_return;
    host_->decide(scales, r);
    if (!real) d.action.assign(choices.begin(), choices.end());
    d.capped = truncated != std::byte(0), d.ended = d.capped || terminated != std::byte(0);
    played.push_back(std::move(d));
    ++kept_;
  }
  return played;
}

std::vector<PlayedDecision> AgentPlayer::play(int64_t other) {
  if (host_) return play_on_host();
  const auto count = size_t(options_.decisions), components = size_t(policy_->args().actions.components());
  std::vector<const void*> in;
  std::vector<void*> out;
  for (Bytes& c : carry_) in.push_back(c.data()), out.push_back(c.data());
  if (args_.normalize_observations) in.push_back(shift_.data()), in.push_back(scale_.data());
  in.push_back(value_scale_), in.push_back(&other);
  if (options_.decisions == 1 && kept_ > 0) {  // only the present state is ever shown
    for (Bytes& s : states_) s.clear();
    kept_ = 0;
  }
  for (size_t i = 0; i < own_; ++i) {
    const size_t bytes = carry_[i].size() * count, before = states_[i].size();
    states_[i].resize(before + bytes);
    out.push_back(states_[i].data() + before);
  }
  std::vector<float> action(count * components), value(count), reward(count), terminated(count), truncated(count), returns(count);
  for (std::vector<float>* v : {&action, &value, &reward, &terminated, &truncated, &returns}) out.push_back(v->data());
  play_->run(in, out, args_.seed);
  kept_ += options_.decisions;
  std::vector<PlayedDecision> played;
  for (size_t i = 0; i < count; ++i) {
    const auto at = action.begin() + long(i * components);
    played.push_back({{at, at + long(components)}, value[i], reward[i], returns[i], terminated[i] > 0 || truncated[i] > 0, truncated[i] > 0});
  }
  return played;
}

bool AgentPlayer::can_continue(const AgentPlayer& game) const { return !host_ && !game.host_ && types_ == game.types_; }

void AgentPlayer::continue_from(const AgentPlayer& game) {
  carry_ = game.carry_;
  for (Bytes& s : states_) s.clear();
  kept_ = 0;
}

std::vector<uint8_t> AgentPlayer::render(ReadProgram& program, int64_t rows, const std::vector<const void*>& state) const {
  std::vector<uint8_t> pixels(size_t(rows * picture_.numel()));
  void* out[] = {pixels.data()};
  program.run(state, out);
  return pixels;
}

std::vector<uint8_t> AgentPlayer::pictures(std::span<const int64_t> which) {
  if (host_) {
    std::vector<uint8_t> pixels;
    const auto bytes = size_t(picture_.numel());
    const auto* kept = reinterpret_cast<const uint8_t*>(states_[0].data());
    for (const int64_t i : which) pixels.insert(pixels.end(), kept + size_t(i) * bytes, kept + size_t(i + 1) * bytes);
    return pixels;
  }
  if (!render_several_ || which.size() > kPictures) fail(ErrorCode::internal, "[ppo] {} pictures cannot be drawn at once", which.size());
  std::vector<Bytes> state;
  std::vector<const void*> in;
  for (size_t i = 0; i < own_; ++i) {
    const size_t row = carry_[i].size();
    state.emplace_back(row * kPictures);
    for (size_t k = 0; k < which.size(); ++k) std::memcpy(state.back().data() + k * row, states_[i].data() + size_t(which[k]) * row, row);
    in.push_back(state.back().data());
  }
  std::vector<uint8_t> pixels = render(*render_several_, int64_t(kPictures), in);
  pixels.resize(which.size() * size_t(picture_.numel()));
  return pixels;
}

std::vector<uint8_t> AgentPlayer::present_picture() {
  if (host_) {
    std::vector<uint8_t> pixels(size_t(picture_.numel()));
    host_->instances().environment().render(0, pixels.data());
    return pixels;
  }
  std::vector<const void*> in;
  for (size_t i = 0; i < own_; ++i) in.push_back(carry_[i].data());
  return render(*render_one_, 1, in);
}

double decisions_per_second(const Instances& instances) {
  const int64_t skip = instances.options().frame_skip;
  return skip > 1 ? 60.0 / double(skip) : 30;
}

Recording record_episodes(AgentPlayer& player, const Instances& instances, int64_t instance, int64_t episodes, int64_t most) {
  Recording r;
  player.begin(instance);
  while (r.decisions < most && int64_t(r.returns.size()) < episodes)
    for (const PlayedDecision& d : player.play()) {
      if (r.decisions == most || int64_t(r.returns.size()) == episodes) break;
      ++r.decisions;
      if (d.ended) r.returns.push_back(d.episode_return);
    }
  const Shape size = player.picture();
  const auto bytes = size_t(size.numel());
  auto each_picture = [&](const std::vector<int64_t>& states, const std::function<void(std::span<const uint8_t>)>& use) {
    for (size_t first = 0; first < states.size(); first += AgentPlayer::kPictures) {
      const size_t count = std::min(AgentPlayer::kPictures, states.size() - first);
      const std::vector<uint8_t> pictures = player.pictures({states.data() + first, count});
      for (size_t k = 0; k < count; ++k) use({pictures.data() + k * bytes, bytes});
    }
  };
  std::vector<int64_t> all(static_cast<size_t>(r.decisions)), some;
  std::iota(all.begin(), all.end(), 0);
  const int64_t samples = std::min(r.decisions, kColourSamples);
  for (int64_t i = 0; i < samples; ++i) some.push_back(i * r.decisions / samples);
  std::vector<uint8_t> colours;
  each_picture(some, [&](std::span<const uint8_t> picture) { colours.insert(colours.end(), picture.begin(), picture.end()); });
  GifWriter gif{int(size[1]), int(size[0]), colours};
  const double pause = 100 / decisions_per_second(instances);  // rounded so that it is right on average
  int64_t shown = 0;
  each_picture(all, [&](std::span<const uint8_t> picture) {
    gif.add(picture, int(std::lround(double(shown + 1) * pause) - std::lround(double(shown) * pause)));
    ++shown;
  });
  r.gif = gif.finish();
  return r;
}

}  // namespace ridge
