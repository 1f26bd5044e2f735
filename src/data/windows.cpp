// Which tokens a batch holds, as a function of its number.
#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/rng.h"
#include "data/dataset.h"
#include "data/permutation.h"

namespace ridge {
namespace {

constexpr uint32_t kPhaseStream = 0xda7a0001, kOrderStream = 0xda7a0002;  // far from the streams that a model's builder uses

void check_window(const TokenArray& tokens, int64_t block, const char* part, const std::string& name) {
  if (tokens.size() <= block)
    fail(ErrorCode::io, "[data] {}: the {} part has {} tokens; a window of block {} needs {}: use a longer text or a smaller block", name, part, tokens.size(),
         block, block + 1);
}

class Windows : public BatchSource {
 public:
  Windows(TokenArray tokens, int64_t batch, int64_t block) : tokens_(std::move(tokens)), batch_(batch), block_(block) {
    if (batch < 1 || block < 1) fail(ErrorCode::value, "[data] batches of {} windows of {} tokens; both must be 1 or more", batch, block);
    types_ = {{DType::i64, {batch, block}}, {DType::i64, {batch, block}}};
  }
  const std::vector<Type>& types() const override { return types_; }

  void fill(int64_t number, std::span<std::byte* const> tensors) const override { fill_part(number, 0, batch_, tensors); }

  bool has_parts() const override { return true; }
  void fill_part(int64_t number, int64_t first, int64_t count, std::span<std::byte* const> tensors) const override {
    const std::span inputs(reinterpret_cast<int64_t*>(tensors[0]), size_t(count * block_));
    const std::span targets(reinterpret_cast<int64_t*>(tensors[1]), size_t(count * block_));
    const size_t used = size_t(std::clamp<int64_t>(samples(number) - first, 0, count) * block_);
    for (size_t at = 0; at < used; at += size_t(block_)) {
      const int64_t start = start_of(number * batch_ + first + int64_t(at) / block_);
      const std::span input = inputs.subspan(at, size_t(block_)), target = targets.subspan(at, size_t(block_));
      tokens_.copy(start, input);
      std::copy(input.begin() + 1, input.end(), target.begin());
      tokens_.copy(start + block_, target.last(1));
    }
    std::fill(inputs.begin() + int64_t(used), inputs.end(), 0);
    std::fill(targets.begin() + int64_t(used), targets.end(), 0);
  }

 protected:
  virtual int64_t start_of(int64_t sample) const = 0;  // start of the window of sample 0 and up, independent of the batch size

  TokenArray tokens_;
  int64_t batch_, block_;
  std::vector<Type> types_;
};

// An epoch has as many windows as fit in every phase, so that a sample's epoch is a simple division. If a phase has one more, the epoch randomly leaves out its
// first or last, so that all tokens are seen, including those at both ends.
class TrainingWindows final : public Windows {
 public:
  TrainingWindows(const Dataset& data, int64_t batch, int64_t block, uint64_t seed) : Windows(data.train, batch, block), seed_(seed) {
    check_window(tokens_, block, "training", data.name);
    windows_ = std::max<int64_t>(tokens_.size() / block - 1, 1);
    last_offset_ = tokens_.size() - 1 - windows_ * block;
  }

 private:
  int64_t start_of(int64_t sample) const override {
    const uint32_t epoch = uint32_t(sample / windows_);
    const int64_t window = int64_t(permuted(uint64_t(sample % windows_), uint64_t(windows_), {seed_, epoch, kOrderStream}));
    return offset_of(epoch) + window * block_;
  }

  int64_t offset_of(uint32_t epoch) const {
    const auto words = philox({seed_, epoch, kPhaseStream}, 0);
    const uint64_t phases = uint64_t(std::min(block_, last_offset_ + 1));
    const int64_t phase = int64_t(uint64_t(words[0]) * phases >> 32);
    return phase + (phase + block_ <= last_offset_ && words[1] % 2 == 1 ? block_ : 0);
  }

  uint64_t seed_;
  int64_t windows_;      // of an epoch
  int64_t last_offset_;  // the latest start of an epoch's first window
};

// Which of the `n` windows are used if at most `most` are requested.
struct EvenChoice {
  EvenChoice(int64_t n, int64_t most) : all(n), taken(most > 0 ? std::min(n, most) : n) {}
  int64_t operator()(int64_t i) const { return int64_t(__int128(i) * all / taken); }
  int64_t all, taken;
};

class ValidationWindows final : public Windows {
 public:
  ValidationWindows(const Dataset& data, int64_t batch, int64_t block, int64_t most)
      : Windows(data.validation, batch, block), starts_(data.window_starts), choice_(count(data, block), most) {}

  int64_t batches() const override { return (choice_.taken + batch_ - 1) / batch_; }
  int64_t samples(int64_t number) const override { return std::clamp<int64_t>(choice_.taken - number * batch_, 0, batch_); }

 private:
  static int64_t count(const Dataset& data, int64_t block) {
    check_window(data.validation, block, "validation", data.name);
    if (data.window_starts.empty()) return (data.validation.size() - 1) / block;
    const auto end = std::upper_bound(data.window_starts.begin(), data.window_starts.end(), data.validation.size() - block - 1);
    return end - data.window_starts.begin();
  }
  int64_t start_of(int64_t sample) const override {
    const int64_t window = choice_(sample);
    return starts_.empty() ? window * block_ : starts_[size_t(window)];
  }

  std::vector<int64_t> starts_;
  EvenChoice choice_;
};

}  // namespace

std::unique_ptr<BatchSource> training_windows(const Dataset& data, int64_t batch, int64_t block, uint64_t seed) {
  return std::make_unique<TrainingWindows>(data, batch, block, seed);
}

std::unique_ptr<BatchSource> validation_windows(const Dataset& data, int64_t batch, int64_t block, int64_t most) {
  return std::make_unique<ValidationWindows>(data, batch, block, most);
}

std::optional<double> possible_loss(const Dataset& data, int64_t most) {
  if (data.window_nats.empty()) return data.possible;
  const EvenChoice choice(int64_t(data.window_nats.size()), most);
  double nats = 0, characters = 0;
  for (int64_t i = 0; i < choice.taken; ++i) {
    nats += data.window_nats[size_t(choice(i))];
    characters += data.window_characters[size_t(choice(i))];
  }
  return nats / characters;
}

double count_characters_per_token(const Dataset& data, int64_t block, int64_t most) {
  if (data.window_characters.empty()) return data.validation.size() > 0 ? data.validation_characters / double(data.validation.size()) : 0;
  const EvenChoice choice(int64_t(data.window_characters.size()), most);
  double characters = 0;
  for (int64_t i = 0; i < choice.taken; ++i) characters += data.window_characters[size_t(choice(i))];
  return characters / double(choice.taken * block);
}

}  // namespace ridge
