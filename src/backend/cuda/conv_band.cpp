#include "backend/cuda/conv_band.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "backend/cuda/conv_text.h"

namespace ridge::cuda {
namespace {

constexpr int64_t kMostChannels = 12, kMostOutputs = 64;
constexpr int64_t kMostUnits = 4;                      // lines of eight elements per cell
constexpr int64_t kMostSums = 16;                      // tiles of a warp whose sums its registers hold
constexpr int64_t kBandParts = 396;                    // partial sums of a weight gradient: three blocks on each of an H200's multiprocessors
constexpr int64_t kMostPartBytes = int64_t(16) << 20;  // of all of them
constexpr int64_t kLeastRows = 2;
constexpr int64_t kMostReach = int64_t(1) << 30;

// More taps than positions means a gradient with respect to the weights: images and channels are exchanged, and so are windows and results.
bool by_weights(const ConvDesc& d) { return d.taps() > d.positions(); }

// The bands of a convolution, without what depends on its steps.
std::optional<ConvBand> band_of(const ConvDesc& d, const Chip& chip) {
  const ConvUnit unit = conv_unit(d, chip);
  const ConvDesc::Axes one{1, 1};
  const bool gradient = by_weights(d);
  if (unit_elements(unit) != 8 || d.w != unit_type(unit) || (d.x != DType::u8 && d.x != d.w)) return std::nullopt;
  if (d.groups != 1 || d.spread != one || (gradient ? d.stride : d.dilation) != one) return std::nullopt;
  ConvBand b;
  b.source = d.source, b.low = d.low, b.outputs = d.outputs;
  b.channels = gradient ? d.images : d.channels, b.out = gradient ? d.window : d.out, b.window = gradient ? d.out : d.window;
  b.stride = gradient ? d.dilation : d.stride;
  b.bf16 = unit == ConvUnit::bf16, b.bytes = d.x == DType::u8;
  b.columns = std::max<int64_t>(8, int64_t(std::bit_ceil(uint64_t(b.outputs))));
  const int64_t padded = 16 * b.steps(), used = b.channels * b.window[0] * b.window[1];
  if (b.channels > kMostChannels || b.outputs > kMostOutputs || b.window == one || b.units() > kMostUnits) return std::nullopt;
  // What is padded is multiplied by zero, which only bytes survive.
  if (b.bytes ? padded > 2 * used : padded != used) return std::nullopt;
  const int64_t sums = gradient ? blocks_of(b.steps(), 8) * (b.columns / 8) : b.columns / 4;
  if (sums > kMostSums) return std::nullopt;
  // The fewest bands that leave enough blocks and room for several of them.
  const int64_t images = gradient ? d.channels : d.images;
  for (b.resident = sums > kMostSums / 2 ? 2 : 3; b.resident > 0; --b.resident) {
    const int64_t room = std::min(chip.shared_bytes, chip.shared_bytes_per_multiprocessor / b.resident - 1024);
    auto bytes = [&] { return b.band_bytes() + (gradient ? b.factor_bytes() : b.weight_bytes()); };
    for (int64_t bands = 1; bands <= b.out[0]; ++bands) {
      b.rows = blocks_of(b.out[0], bands);
      if (bytes() <= room && (images * bands >= kBandParts * 2 / 3 || b.rows <= kLeastRows)) return b;
    }
  }
  return std::nullopt;
}

bool divides(int64_t n, std::initializer_list<int64_t> steps) {
  return std::all_of(steps.begin(), steps.end(), [n](int64_t s) { return s % n == 0; });
}

class BandConv final : public NodeKernel {
 public:
  BandConv(const ConvDesc& d, ConvBand b, const Chip& chip)
      : NodeKernel(chip), d_(d), b_(b), gradient_(by_weights(d)), jobs_((gradient_ ? d.channels : d.images) * b.bands()) {
    const auto &x = d_.x_steps, &w = d_.w_steps, &out = d_.out_steps;
    const int64_t bytes = size_of(d_.x);
    for (int64_t n : {2, 4, 8})
      if (divides(n, {b_.stride[1], b_.low[1], b_.source[1], x.first, x.second, x.axes[0]}) && x.axes[1] == 1 && x.alignment % (n * bytes) == 0) b_.run = n;
    if (gradient_) {
      const bool together = w.first == 1 && divides(8, {d_.outputs, w.second, w.axes[0], w.axes[1]}) && w.alignment % 16 == 0;
      blocks_ = std::clamp<int64_t>(std::min(jobs_, kBandParts), 1, std::max<int64_t>(1, kMostPartBytes / sums_bytes()));
      product_ = add(conv_band_gradient_text(b_, together));
      finish_ = add(conv_band_finish_text(b_, d_.result));
    } else {
      int weight_run = 1;
      for (int n : {2, 4, 8})
        if (divides(n, {b_.stride[1], b_.window[1], w.first, w.second, w.axes[0]}) && w.axes[1] == 1 && w.alignment % (2 * n) == 0) weight_run = n;
      const int64_t each = b_.columns / 4, side = std::min<int64_t>(each, 8);  // results of a thread, and how many of them one store writes
      const bool together = size_of(d_.result) == 2 && out.second == 1 && d_.outputs % each == 0 && divides(side, {out.first, out.axes[0], out.axes[1]}) &&
                            out.alignment % (2 * side) == 0 && d_.outputs == b_.columns;
      blocks_ = std::min(jobs_, b_.resident * chip.multiprocessors);
      product_ = add(conv_band_text(b_, d_.result, b_.columns >= 32 ? 2 : 4, weight_run, together));
    }
  }

  int64_t workspace_bytes() const override { return gradient_ ? rounded(blocks_ * sums_bytes()) : 0; }

  void bind(std::span<const Place> operands, Place workspace, Place) override {
    clear();
    const auto &x = d_.x_steps, &w = d_.w_steps, &out = d_.out_steps;
    Words words = {operands[0], gradient_ ? x.second : x.first, gradient_ ? x.first : x.second, x.axes[0], x.axes[1]};
    words.insert(words.end(), {operands[1], w.first, w.second, w.axes[0], w.axes[1]});
    if (gradient_)
      words.insert(words.end(), {workspace, jobs_});
    else
      words.insert(words.end(), {operands[2], out.first, out.second, out.axes[0], out.axes[1], jobs_});
    launch(product_, blocks_, std::move(words));
    if (gradient_) launch(finish_, sums_bytes() / (4 * 32), {workspace, operands[2], blocks_, out.first, out.second, out.axes[0], out.axes[1]});
  }

  std::string note() const override { return fmt::format("bands of {} rows{}", b_.rows, gradient_ ? fmt::format(", by the weights, {} parts", blocks_) : ""); }

 private:
  int64_t sums_bytes() const { return 16 * b_.steps() * b_.columns * 4; }

  ConvDesc d_;
  ConvBand b_;
  bool gradient_;
  int64_t jobs_, blocks_ = 1;  // an image's band each
  int product_ = -1, finish_ = -1;
};

}  // namespace

bool fits_band_conv(const ConvDesc& d, const Chip& chip) { return band_of(d, chip).has_value(); }

std::unique_ptr<Kernel> make_band_conv(const ConvDesc& d, const Chip& chip) {
  const std::optional<ConvBand> band = band_of(d, chip);
  if (!band) return nullptr;
  // Within an image, indices have 32 bits.
  const auto& x = d.x_steps;
  const int64_t channel = by_weights(d) ? x.first : x.second;
  const int64_t reach = std::abs(channel) * (band->channels - 1) + std::abs(x.axes[0]) * (d.source[0] - 1) + std::abs(x.axes[1]) * (d.source[1] - 1);
  if (reach >= kMostReach) return nullptr;
  return std::make_unique<BandConv>(d, *band, chip);
}

}  // namespace ridge::cuda
