// Convolution with the positions of an image as rows of a product: each window is read in place from an image in cache, whose channels are innermost, so that a
// row of the window is a stretch of K. Gaps in the input (the gradient of a strided convolution) cost nothing: outputs that meet the same taps form a phase,
// and each phase is a product of its own.
#include <array>
#include <numeric>

#include "backend/cpu/conv_parts.h"
#include "base/error.h"

namespace ridge::cpu::conv {
namespace {

// One axis: outputs first, first + step, … meet the same taps, at sources that advance with the outputs.
struct AxisPhases {
  struct Tap {
    int64_t tap, source;  // source: that of the phase's first output
  };
  struct Phase {
    int64_t first = 0, count = 0;
    std::vector<Tap> taps;
  };
  int64_t step = 1, advance = 1;
  std::vector<Phase> phases;
  int64_t low = 0, high = 0;  // the first and last sources of the first outputs of all phases
  int64_t gap = 1;            // between the sources of neighbouring taps

  AxisPhases() = default;
  AxisPhases(const ConvDesc& d, size_t axis) {
    const int64_t stride = d.stride[axis], spread = d.spread[axis], dilation = d.dilation[axis];
    step = spread / std::gcd(stride, spread), advance = step * stride / spread, gap = dilation / std::gcd(dilation, spread);
    bool any = false;
    for (int64_t first = 0; first < std::min(step, d.out[axis]); ++first) {
      Phase& phase = phases.emplace_back();
      phase.first = first, phase.count = parts_of(d.out[axis] - first, step);
      for (int64_t t = 0; t < d.window[axis]; ++t) {
        const int64_t at = first * stride + t * dilation - d.low[axis];
        if (at % spread) continue;
        phase.taps.push_back({t, at / spread});
        low = any ? std::min(low, at / spread) : at / spread, high = any ? std::max(high, at / spread) : at / spread;
        any = true;
      }
    }
  }
  int64_t count() const { return phases.empty() ? 0 : phases[0].count; }                       // of the longest phase
  int64_t sources(int64_t outputs) const { return high - low + (outputs - 1) * advance + 1; }  // that this many neighbouring outputs of each phase meet
};

// Consecutive stretches of a phase's K, or a piece of one stretch.
struct DepthBlock {
  int64_t first = 0, stretches = 1;    // stretches
  int64_t skip = 0, k = 0, b_row = 0;  // steps skipped in each, steps taken, and the first row of the weights
};

struct PhasePlan {
  const AxisPhases::Phase *down = nullptr, *across = nullptr;
  std::vector<int64_t> stretch_at;  // from the window's first element, in units
  std::vector<DepthBlock> blocks;
  int64_t depth = 0;    // units of K
  int64_t weights = 0;  // where its columns start in the workspace, in floats, of the first group
};

class WindowsConv final : public MatmulKernel {
 public:
  WindowsConv(const ConvDesc& desc, int64_t epilogue_scratch, const Units& units)
      : d_(desc), u_(units), down_(desc, 0), across_(desc, 1), columns_(desc.outputs, *units.tiles) {
    per_unit_ = u_.pairs() ? 2 : 1;
    channels_ = parts_of(d_.channels, per_unit_);
    result_ = {u_.tiles, d_.out_steps, d_.result, d_.outputs, d_.positions(), d_.out[1], epilogue_scratch >= 0};
    reader_ = {u_.plain, d_.x, d_.channels, channels_ * per_unit_, d_.x_steps.second, d_.source, d_.x_steps.axes, {1, 1}};
    width_ = across_.sources(across_.count());
    plan_phases();
    choose_bands();
    const int64_t rows = band_rows(), image = rows * width_ * reader_.padded;
    lines_ = u_.pairs() ? lines_at_a_time(width_ * reader_.padded) : rows;
    int64_t spare = 0;
    for (int64_t band = 0; band < bands_; ++band) spare = std::max(spare, reader_.spare_floats(part(band)));
    auto reserve = [&](int64_t floats) { return std::exchange(scratch_, scratch_ + aligned(floats * 4)); };
    image_at_ = reserve(image / per_unit_), wide_at_ = reserve(u_.pairs() ? lines_ * width_ * reader_.padded : 0), spare_at_ = reserve(spare);
    strip_at_ = reserve(band_positions() * columns_.padded);
    turned_at_ = reserve(result_.spare_floats(band_positions()));
    epilogue_at_ = scratch_;
    scratch_ += aligned(std::max<int64_t>(epilogue_scratch, 0));
    scratch_ = std::max(scratch_, aligned(2 * (d_.channels + 1) * columns_.width * 4));
  }

  int64_t workspace_bytes() const override { return d_.groups * weights_ * 4; }
  int64_t scratch_bytes() const override { return scratch_; }
  void set_epilogue(MatmulEpilogue epilogue) override { epilogue_ = epilogue; }

  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    x_ = operands[0], w_ = operands[1], workspace_ = workspace;
    if (!result_.epilogue) to_ = operands[2];
    double flops = 0;
    for (const PhasePlan& p : phases_) flops += 2.0 * double(p.down->count * p.across->count * p.depth) * double(columns_.padded);
    const int64_t packs = d_.groups * int64_t(phases_.size()) * columns_.tiles, units = d_.images * d_.groups * bands_;
    tasks.push_back({run_pack, this, packs, 20 + double(weights_ * d_.groups) / double(std::max<int64_t>(packs, 1)) * 0.5});
    tasks.push_back({run_units, this, units, 200 + flops / double(bands_) / u_.flops_per_ns()});
  }

 private:
  // The K of a phase: for each of its taps, all channels. Taps whose sources are neighbours form one stretch.
  void plan_phases() {
    constexpr int64_t kDepth = 512;  // of a block: its weights stay in L2 while the positions pass
    for (const auto& down : down_.phases)
      for (const auto& across : across_.phases) {
        PhasePlan& p = phases_.emplace_back();
        p.down = &down, p.across = &across, p.weights = weights_;
        const bool together = across_.gap == 1;
        const int64_t length = (together ? int64_t(across.taps.size()) : 1) * channels_;
        for (const auto& y : down.taps)
          for (const auto& x : across.taps) {
            if (together && &x != &across.taps[0]) continue;
            p.stretch_at.push_back(((y.source - down_.low) * width_ + x.source - across_.low) * channels_);
          }
        p.depth = int64_t(p.stretch_at.size()) * length;
        weights_ += p.depth * columns_.padded;
        const int64_t stretches = int64_t(p.stretch_at.size()), pieces = parts_of(length, kDepth),
                      blocks = parts_of(stretches, std::max<int64_t>(1, kDepth / std::max<int64_t>(length, 1)));
        for (int64_t i = 0, at = 0; pieces == 1 && i < blocks; ++i, at += p.blocks.back().stretches * length)
          p.blocks.push_back({range_begin(stretches, blocks, i), range_begin(stretches, blocks, i + 1) - range_begin(stretches, blocks, i), 0, length, at});
        for (int64_t i = 0; pieces > 1 && i < stretches * pieces; ++i) {
          const int64_t skip = range_begin(length, pieces, i % pieces);
          p.blocks.push_back({i / pieces, 1, skip, range_begin(length, pieces, i % pieces + 1) - skip, i / pieces * length + skip});
        }
      }
  }

  // A unit takes a band of an image's rows, counted in steps of the phases: small enough for L2, and enough units for many threads.
  void choose_bands() {
    constexpr int64_t kBytes = 384 << 10, kUnits = 32;
    const int64_t steps = down_.count();
    bands_ = std::clamp<int64_t>(kUnits / (d_.images * d_.groups), 1, steps);
    auto bytes = [&] { return (band_rows() * width_ * reader_.padded + band_positions() * (columns_.padded + d_.outputs)) * 4; };
    while (bands_ < steps && bytes() > kBytes) bands_ = std::min(steps, bands_ + std::max<int64_t>(1, bands_ / 4));
  }
  int64_t band_steps() const { return parts_of(down_.count(), bands_); }  // at most
  int64_t band_rows() const { return down_.sources(band_steps()); }
  int64_t band_positions() const { return std::min(d_.out[0], band_steps() * down_.step) * d_.out[1]; }
  int64_t band_begin(int64_t band) const { return range_begin(down_.count(), bands_, band); }
  ImageReader::Part part(int64_t band) const {
    const int64_t first = band_begin(band), steps = band_begin(band + 1) - first;
    return {down_.low + first * down_.advance, down_.sources(steps), across_.low, width_};
  }

  float* weights(const Worker& worker, int64_t group, const PhasePlan& p, int64_t tile) const {
    return worker.at<float>(workspace_) + group * weights_ + p.weights + tile * columns_.width * p.depth;
  }

  static void run_pack(const void* args, int64_t begin, int64_t end, Worker& worker) {
    const WindowsConv& c = *static_cast<const WindowsConv*>(args);
    const int64_t phases = int64_t(c.phases_.size());
    for (int64_t unit = begin; unit < end; ++unit)
      c.pack(worker, unit / c.columns_.tiles / phases, c.phases_[size_t(unit / c.columns_.tiles % phases)], unit % c.columns_.tiles);
  }

  void pack(Worker& worker, int64_t group, const PhasePlan& phase, int64_t tile) const {
    const auto& s = d_.w_steps;
    const std::byte* const from = worker.at<std::byte>(w_) + (group * s.group + tile * columns_.width * s.first) * size_of(d_.w);
    const int64_t width = columns_.stored(tile);
    float *to = weights(worker, group, phase, tile), *const wide = reinterpret_cast<float*>(worker.scratch);
    PackArgs p;
    p.column = {nullptr, s.first}, p.k = {nullptr, s.second};
    p.live = columns_.live(tile), p.width = width, p.depth = p.k_size = d_.channels;
    for (const auto& y : phase.down->taps)
      for (const auto& x : phase.across->taps) {
        p.src = from + (y.tap * s.axes[0] + x.tap * s.axes[1]) * size_of(d_.w), p.dst = u_.pairs() ? wide : to;
        u_.plain->pack[storage_index(d_.w)](p);
        for (int64_t c = 0; u_.pairs() && c < channels_; ++c) {
          const float* first = wide + 2 * c * width;
          u_.tiles->join(first, 2 * c + 1 < d_.channels ? first + width : nullptr, to + c * width, width);
        }
        to += channels_ * width;
      }
  }

  static void run_units(const void* args, int64_t begin, int64_t end, Worker& worker) {
    const WindowsConv& c = *static_cast<const WindowsConv*>(args);
    for (int64_t unit = begin; unit < end; ++unit) c.run(worker, unit / c.bands_ / c.d_.groups, unit / c.bands_ % c.d_.groups, unit % c.bands_);
  }

  void run(Worker& worker, int64_t image, int64_t group, int64_t band) const {
    auto at = [&](int64_t offset) { return reinterpret_cast<float*>(worker.scratch + offset); };
    const ImageReader::Part part = this->part(band);
    const std::byte* const source = worker.at<std::byte>(x_) + (image * d_.x_steps.first + group * d_.x_steps.group) * size_of(d_.x);
    float* const units = at(image_at_);
    float* const wide = u_.pairs() ? at(wide_at_) : units;
    const int64_t line = part.columns * reader_.padded;
    for (int64_t r = 0; r < part.rows; r += lines_) {
      const int64_t rows = std::min(lines_, part.rows - r);
      reader_.read(source, {part.top + r, rows, part.left, part.columns}, wide, at(spare_at_));
      if (u_.pairs()) u_.tiles->store[storage_index(DType::bf16)](wide, reinterpret_cast<uint16_t*>(units) + r * line, rows * line);
    }

    float* const strip = at(strip_at_);
    const int64_t begin = band_begin(band), end = band_begin(band + 1), first = begin * down_.step;
    for (const PhasePlan& p : phases_) {
      auto row = [&](int64_t q) { return strip + ((p.down->first + q * down_.step - first) * d_.out[1] + p.across->first) * columns_.padded; };
      for (int64_t q = begin; q < std::min(end, p.down->count); ++q)
        if (const auto [from, to] = stretches(p, q); from == to)
          for (int64_t i = 0; i < p.across->count; ++i) std::fill_n(row(q) + i * across_.step * columns_.padded, columns_.padded, 0.f);
      for (const DepthBlock& b : p.blocks)
        for (int64_t q = begin; q < std::min(end, p.down->count); ++q)
          multiply(worker, group, p, b, q, units + (q - begin) * down_.advance * width_ * channels_ + b.skip, row(q));
    }
    const int64_t rows = std::min(d_.out[0], end * down_.step) - first;
    std::byte* const scratch = std::exchange(worker.scratch, worker.scratch + epilogue_at_);
    result_.store(epilogue_, worker, to_, image, group, first * d_.out[1], rows * d_.out[1], strip, columns_.padded,
                  reinterpret_cast<float*>(scratch + turned_at_));
    worker.scratch = scratch;
  }

  // The stretches of a row of positions that meet the image: lines of its window above and below would only add zeros.
  std::array<int64_t, 2> stretches(const PhasePlan& p, int64_t q) const {
    const auto& taps = p.down->taps;
    auto before = [&](int64_t line) {  // taps whose sources are above this line
      return std::partition_point(taps.begin(), taps.end(), [&](const auto& t) { return t.source + q * down_.advance < line; }) - taps.begin();
    };
    const int64_t of_tap = taps.empty() ? 0 : int64_t(p.stretch_at.size()) / int64_t(taps.size());
    return {before(0) * of_tap, before(d_.source[0]) * of_tap};
  }

  // One block of the depth of row q of a phase's positions.
  void multiply(const Worker& worker, int64_t group, const PhasePlan& p, const DepthBlock& b, int64_t q, const float* line, float* row) const {
    const auto [lowest, highest] = stretches(p, q);
    const int64_t from = std::max(b.first, lowest), to = std::min(b.first + b.stretches, highest);
    if (from >= to) return;
    const int64_t positions = p.across->count, tiles = parts_of(positions, columns_.tile_rows);
    TileArgs t;
    t.a_row = across_.advance * channels_, t.a_k = 1, t.k = b.k;
    t.stretch_at = p.stretch_at.data() + from, t.stretches = to - from;
    t.c_row = across_.step * columns_.padded, t.add = from > lowest || b.skip > 0;
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t begin = range_begin(positions, tiles, i), rows = range_begin(positions, tiles, i + 1) - begin;
      t.a = line + begin * t.a_row;
      for (int64_t j = 0; j < columns_.tiles; ++j) {
        t.cols = t.b_k = columns_.stored(j);
        t.b = weights(worker, group, p, j) + (b.b_row + (from - b.first) * b.k) * t.b_k;
        t.c = row + begin * t.c_row + j * columns_.width;
        u_.tiles->strided[rows][t.cols / u_.tiles->lanes](t);
      }
    }
  }

  ConvDesc d_;
  Units u_;
  AxisPhases down_, across_;
  Columns columns_;
  Result result_;
  ImageReader reader_;
  std::vector<PhasePlan> phases_;
  int64_t per_unit_ = 1, channels_ = 1;          // elements of K in a unit (a float, or a pair); units of a position
  int64_t lines_ = 1;                            // of the image that are read at a time
  int64_t width_ = 1, bands_ = 1, weights_ = 0;  // of the image in cache; bands of its rows; floats of a group's weights
  int64_t image_at_ = 0, wide_at_ = 0, spare_at_ = 0, strip_at_ = 0, turned_at_ = 0, epilogue_at_ = 0, scratch_ = 0;
  MatmulEpilogue epilogue_;
  Ref x_, w_, to_, workspace_;
};

}  // namespace

std::unique_ptr<MatmulKernel> make_windows(const ConvDesc& desc, int64_t epilogue_scratch, const Units& units) {
  return std::make_unique<WindowsConv>(desc, epilogue_scratch, units);
}

}  // namespace ridge::cpu::conv
