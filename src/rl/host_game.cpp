#include "rl/host_game.h"

#include <cstring>

#include "base/error.h"
#include "eager/tensor_state.h"

namespace ridge {

std::vector<std::byte> HostEnvironment::save(int64_t) const {
  fail(ErrorCode::unsupported, "[environment] {} says that it can be saved, but does not define save()", spec().name);
}

void HostEnvironment::load(int64_t, std::span<const std::byte>) {
  fail(ErrorCode::unsupported, "[environment] {} says that it can be saved, but does not define load()", spec().name);
}

void HostEnvironment::render(int64_t, uint8_t*) const {
  fail(ErrorCode::unsupported, "[environment] {} has a picture, but does not define render()", spec().name);
}

namespace rl {

HostGame::HostGame(std::string name, MakeHostEnvironment make) : make_(std::move(make)) {
  spec_.name = std::move(name);
  const std::unique_ptr<HostEnvironment> one = this->make(1);
  std::string own = std::move(spec_.name);
  spec_ = one->spec(), spec_.name = std::move(own);
  picture_ = one->picture(), can_save_ = one->can_save(), threads_ = one->threads();
  if (spec_.dtype != DType::f32 && spec_.dtype != DType::u8)
    fail(ErrorCode::dtype, "[environment] {}: observations of a host environment are f32 or u8, not {}", spec_.name, ridge::name(spec_.dtype));
  if (picture_.rank() != 0 && (picture_.rank() != 3 || picture_[2] != 3 || picture_.numel() == 0))
    fail(ErrorCode::shape, "[environment] {}: a picture is [height, width, 3], not {}", spec_.name, to_string(picture_));
}

std::unique_ptr<HostEnvironment> HostGame::make(int64_t instances) const {
  std::unique_ptr<HostEnvironment> made = make_(instances);
  if (!made) fail(ErrorCode::usage, "[environment] {}: the registered function returned no environment for {} instances", spec_.name, instances);
  return made;
}

void HostGame::refuse() const {
  fail(ErrorCode::unsupported, "[environment] {} is a C++ object and cannot be part of a traced program; train it with env={}", spec_.name, spec_.name);
}

const HostGame* host_game(const Environment& environment) { return dynamic_cast<const HostGame*>(&environment); }

namespace {

// One program per call, for all instances at once; rows that are not meant keep what they were.
class GraphOnHost final : public HostEnvironment {
 public:
  GraphOnHost(std::shared_ptr<const Environment> environment, int64_t instances) : environment_(std::move(environment)), rows_(instances) {}

  const EnvSpec& spec() const override { return environment_->spec(); }
  Threads threads() const override { return Threads::training; }  // the thread team computes the tensors

  void reset(Which which, const HostMemory& memory) override {
    const EnvState fresh = environment_->reset(iota({rows_}), drawn(memory, spec().reset_draws));
    if (!state_.empty()) {
      take(which, fresh);
      return detail::evaluate(state_);
    }
    detail::evaluate(fresh);
    // Copies: a tensor may be several parts of the state, or the environment's own, and load() writes to each part.
    for (const Tensor& t : fresh) state_.push_back(Tensor::from_bytes(t.shape(), t.dtype(), t.data()));
  }

  void step(Which which, const HostMemory& memory) override {
    const ActionSpace& space = spec().actions;
    const bool real = space.kind == ActionSpace::Kind::continuous;
    Shape shape{rows_};
    if (space.kind != ActionSpace::Kind::discrete) shape.push_back(space.components());
    const void* given = real ? static_cast<const void*>(memory.controls) : memory.choices;
    const Tensor action = Tensor::from_bytes(shape, real ? DType::f32 : DType::i64, given);
    const Environment::Next next = environment_->step(state_, action, drawn(memory, spec().step_draws));
    take(which, next.state);
    std::vector<Tensor> all = state_;
    all.insert(all.end(), {next.reward, next.terminated});
    if (next.truncated.defined()) all.push_back(next.truncated);
    detail::evaluate(all);
    for (const int64_t i : which) {
      memory.reward[i] = static_cast<const float*>(next.reward.data())[i];
      memory.terminated[i] = static_cast<const bool*>(next.terminated.data())[i];
      memory.truncated[i] = next.truncated.defined() && static_cast<const bool*>(next.truncated.data())[i];
    }
  }

  void observe(Which which, const HostMemory& memory) const override {
    const Tensor seen = environment_->observe(state_);
    const size_t row = size_t(spec().observation.numel()) * (spec().dtype == DType::u8 ? 1 : sizeof(float));
    auto* to = memory.bytes ? reinterpret_cast<std::byte*>(memory.bytes) : reinterpret_cast<std::byte*>(memory.numbers);
    for (const int64_t i : which) std::memcpy(to + size_t(i) * row, static_cast<const std::byte*>(seen.data()) + size_t(i) * row, row);
  }

  bool can_save() const override { return true; }
  std::vector<std::byte> save(int64_t instance) const override {
    std::vector<std::byte> bytes;
    for (const Tensor& t : state_) {
      const size_t row = row_bytes(t);
      const auto* from = static_cast<const std::byte*>(t.data()) + size_t(instance) * row;
      bytes.insert(bytes.end(), from, from + row);
    }
    return bytes;
  }
  void load(int64_t instance, std::span<const std::byte> bytes) override {
    size_t at = 0, whole = 0;
    for (const Tensor& t : state_) whole += row_bytes(t);
    if (bytes.size() != whole) fail(ErrorCode::io, "[environment] {}: a saved instance has {} bytes instead of {}", spec().name, bytes.size(), whole);
    for (Tensor& t : state_) {
      const size_t row = row_bytes(t);
      std::memcpy(static_cast<std::byte*>(t.mutable_data()) + size_t(instance) * row, bytes.data() + at, row);
      at += row;
    }
  }

  Shape picture() const override {
    const Environment::Draws none(size_t(spec().reset_draws), full({1}, 0));
    const Tensor one = environment_->render(environment_->reset(iota({1}), none));
    return one.defined() ? Shape{one.shape()[1], one.shape()[2], one.shape()[3]} : Shape{};
  }
  void render(int64_t instance, uint8_t* pixels) const override {
    const Tensor all = environment_->render(state_);
    const size_t row = row_bytes(all);
    std::memcpy(pixels, static_cast<const std::byte*>(all.data()) + size_t(instance) * row, row);
  }

 private:
  size_t row_bytes(const Tensor& t) const { return size_t(t.size() / rows_) * size_t(size_of(t.dtype())); }

  Environment::Draws drawn(const HostMemory& memory, int64_t count) const {
    std::vector<float> one(static_cast<size_t>(rows_));
    Environment::Draws all;
    for (int64_t k = 0; k < count; ++k) {
      for (int64_t i = 0; i < rows_; ++i) one[size_t(i)] = memory.draws[i * count + k];
      all.emplace_back(Shape{rows_}, std::span<const float>(one));
    }
    return all;
  }

  void take(Which which, const EnvState& next) {
    std::vector<uint8_t> chosen(size_t(rows_), 0);
    for (const int64_t i : which) chosen[size_t(i)] = 1;
    const Tensor mask = Tensor::from_bytes({rows_}, DType::boolean, chosen.data());
    for (size_t k = 0; k < state_.size(); ++k) {
      Shape s{rows_};
      while (s.rank() < next[k].shape().rank()) s.push_back(1);
      state_[k] = where(reshape(mask, s), next[k], state_[k]);
    }
  }

  std::shared_ptr<const Environment> environment_;
  int64_t rows_;
  EnvState state_;
};

}  // namespace
}  // namespace rl

std::unique_ptr<HostEnvironment> host_environment(std::shared_ptr<const Environment> environment, int64_t instances) {
  return std::make_unique<rl::GraphOnHost>(std::move(environment), instances);
}

}  // namespace ridge
