#include "backend/cuda/conv.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "backend/cuda/conv_band.h"
#include "backend/cuda/conv_library.h"
#include "backend/cuda/conv_text.h"
#include "backend/cuda/make.h"
#include "backend/cuda/matmul.h"
#include "backend/gpu/node_parts.h"
#include "base/error.h"

namespace ridge::cuda {
namespace {

constexpr int64_t kMaxNarrow = 16;                // the most channels x outputs per group that fit well in one thread's registers
constexpr int64_t kMaxTaps = 49;                  // the most taps to unroll
constexpr int64_t kBlocks = 264;                  // the number of blocks a product should have, if its depth allows
constexpr int64_t kMaxParts = int64_t(16) << 20;  // bytes of partial sums
constexpr int64_t kMaxElements = int64_t(1) << 31;
constexpr int64_t kAlignment = 16;

int64_t padded_to(int64_t n, int64_t unit) { return blocks_of(n, unit) * unit; }

// The largest distance between two elements of a view; kernels with 32-bit indices require less than kMaxReach.
constexpr int64_t kMaxReach = int64_t(1) << 30;
int64_t reach(std::initializer_list<std::array<int64_t, 2>> axes) {  // step, size
  int64_t distance = 0;
  for (auto [step, size] : axes) distance += std::abs(step) * (size - 1);
  return distance;
}

// A factor in the layout that the products read: [outer, down, across, group, inner], in 16-byte chunks along the inner axis. Steps are in chunks; they are
// those of the operand itself if it already has this layout.
struct Factor {
  DType from = DType::f32, to = DType::f32;
  int64_t outer = 1, groups = 1, inner = 1, padded = 1;
  ConvDesc::Axes axes{1, 1};
  int64_t outer_step = 0, group_step = 0, inner_step = 0;  // of the source, in elements
  ConvDesc::Axes steps{0, 0};
  bool as_it_is = false;
  int together = 1;  // contiguous, aligned positions per read
  int64_t chunk_outer = 0, chunk_group = 0;
  ConvDesc::Axes chunk_steps{0, 0};

  int64_t pixels() const { return axes[0] * axes[1]; }
  int64_t bytes_each() const { return as_it_is ? 0 : pixels() * groups * padded * size_of(to); }  // per index of the outer axis

  void lay_out(int64_t alignment) {
    const int64_t unit = 16 / size_of(to);
    padded = padded_to(inner, unit);
    as_it_is = from == to && padded == inner && inner_step == 1 && alignment % kAlignment == 0;
    for (int64_t step : {outer_step, group_step, steps[0], steps[1]}) as_it_is &= step % unit == 0;
    as_it_is &= reach({{outer_step, outer}, {group_step, groups}, {steps[0], axes[0]}, {steps[1], axes[1]}}) / unit < kMaxReach;
    const bool line = steps[1] == 1 && (axes[0] == 1 || steps[0] == axes[1]);
    for (int n : {2, 4})
      if (line && pixels() % n == 0 && outer_step % n == 0 && group_step % n == 0 && inner_step % n == 0 && alignment % (n * size_of(from)) == 0) together = n;
    if (as_it_is) {
      chunk_outer = outer_step / unit, chunk_group = group_step / unit, chunk_steps = {steps[0] / unit, steps[1] / unit};
    } else {
      chunk_group = padded / unit;
      chunk_steps[1] = groups * chunk_group, chunk_steps[0] = axes[1] * chunk_steps[1], chunk_outer = axes[0] * chunk_steps[0];
    }
  }
};

void append_out_steps(Words& words, const ConvDesc& d) {
  words.insert(words.end(), {d.out_steps.first, d.out_steps.group, d.out_steps.second, d.out_steps.axes[0], d.out_steps.axes[1]});
}

class ConvKernel final : public NodeKernel {
 public:
  ConvKernel(const ConvDesc& desc, const Chip& chip) : NodeKernel(chip), d_(desc), chip_(chip), unit_(conv_unit(desc, chip)) {
    // More taps than positions means a gradient with respect to the weights: it sums over the taps.
    gradient_ = d_.taps() > d_.positions();
    const auto fits_32_bits = [](const ConvDesc::Steps& s, int64_t first, int64_t second, const ConvDesc::Axes& sizes) {
      return reach({{s.first, first}, {s.second, second}, {s.axes[0], sizes[0]}, {s.axes[1], sizes[1]}}) < kMaxReach;
    };
    narrow_ = d_.x == d_.w && fits_32_bits(d_.x_steps, d_.images, d_.channels, d_.source) && fits_32_bits(d_.w_steps, d_.outputs, d_.channels, d_.window) &&
              (gradient_ ? d_.images * d_.outputs <= kMaxNarrow && d_.positions() <= kMaxTaps
                         : d_.x == d_.result && d_.channels * d_.outputs <= kMaxNarrow && d_.taps() <= kMaxTaps);
    if (is_matmul())
      plan_matmul();
    else if (narrow_)
      gradient_ ? plan_narrow_gradient() : plan_narrow();
    else
      gradient_ ? plan_gradient() : plan_product();
  }

  int64_t workspace_bytes() const override { return workspace_; }

  std::vector<KernelText> texts() const override {
    std::vector<KernelText> all = NodeKernel::texts();
    if (matmul_)
      for (KernelText& t : matmul_->texts()) all.push_back(std::move(t));
    return all;
  }
  void load(gpu::Loader& loader) override {
    if (matmul_) matmul_->load(loader);
    NodeKernel::load(loader);
  }
  void enqueue(Bases bases, LaunchSink& sink) const override {
    if (matmul_) matmul_->enqueue(bases, sink);
    NodeKernel::enqueue(bases, sink);
  }
  int launches() const override { return NodeKernel::launches() + (matmul_ ? matmul_->launches() : 0); }

  void bind(std::span<const Place> operands, Place workspace, Place) override {
    clear();
    x_ = operands[0], w_ = operands[1], out_ = operands[2], space_ = workspace;
    if (matmul_)
      bind_matmul();
    else if (narrow_)
      gradient_ ? bind_narrow_gradient() : bind_narrow();
    else
      gradient_ ? bind_gradient() : bind_product();
  }

  std::string note() const override {
    if (matmul_) return "a product: " + matmul_->note();
    if (narrow_) return gradient_ ? fmt::format("narrow, {} parts", parts_) : "narrow";
    return fmt::format("{} x {} tiles, {}{}{}", tile_.rows, tile_.columns,
                       gradient_      ? "by the weights"
                       : phases() > 1 ? "by phases"
                                      : "by positions",
                       pieces_ > 1 ? fmt::format(", {} pieces", pieces_) : "", parts_ > 1 ? fmt::format(", {} parts", parts_) : "");
  }

 private:
  int text(KernelText t) { return add(std::move(t)); }
  bool spread() const { return d_.spread[0] > 1 || d_.spread[1] > 1; }
  // With a spread source, outputs are grouped by their phase relative to its elements, and each group uses only the taps that reach them.
  ConvDesc::Axes phase_counts() const {
    const bool some = spread() && d_.stride[0] == 1 && d_.stride[1] == 1 && parts_ == 1;
    return some ? d_.spread : ConvDesc::Axes{1, 1};
  }
  int64_t phases() const { return phase_counts()[0] * phase_counts()[1]; }

  int64_t reserve(int64_t bytes) {
    const int64_t at = workspace_;
    workspace_ += rounded(bytes);
    return at;
  }

  void set_factors() {
    const DType type = unit_type(unit_);
    auto factor = [&](DType from, int64_t outer, const ConvDesc::Axes& axes, const ConvDesc::Steps& s) {
      Factor f;
      f.from = from, f.to = type, f.outer = outer, f.groups = d_.groups, f.inner = d_.channels, f.axes = axes;
      f.outer_step = s.first, f.group_step = s.group, f.inner_step = s.second, f.steps = s.axes;
      return f;
    };
    x_factor_ = factor(d_.x, d_.images, d_.source, d_.x_steps), w_factor_ = factor(d_.w, d_.outputs, d_.window, d_.w_steps);
    if (gradient_)
      for (Factor* f : {&x_factor_, &w_factor_}) std::swap(f->outer, f->inner), std::swap(f->outer_step, f->inner_step);
    x_factor_.lay_out(d_.x_steps.alignment), w_factor_.lay_out(d_.w_steps.alignment);
  }

  void choose_stages() {
    const int64_t room = std::min(chip_.shared_bytes, chip_.shared_bytes_per_multiprocessor / 2 - 1024);
    for (tile_.stages = 4; tile_.stages > 2 && tile_bytes(unit_, tile_, !gradient_) > room;) --tile_.stages;
  }
  bool halves() const { return unit_elements(unit_) == 8; }
  int64_t deep() const { return tile_.chunks() * unit_elements(unit_); }

  // Packs as many of `outer` at a time as stay in the cache until they are read.
  void cut_pieces(int64_t outer, int64_t bytes_each, int64_t most) {
    piece_ = outer;
    if (bytes_each > 0) piece_ = std::clamp<int64_t>(most / bytes_each, 1, outer);
    pieces_ = blocks_of(outer, piece_);
    piece_ = blocks_of(outer, pieces_);
    pieces_ = blocks_of(outer, piece_);
  }

  void add_pack(const Factor& f, int& pack, int& lines) {
    if (f.as_it_is) return;
    const int64_t chunks = f.padded * size_of(f.to) / 16;
    for (lines = 1; lines < 8 && lines < chunks;) lines *= 2;
    pack = text(conv_pack_text(f.from, f.to, lines, f.together));
  }

  // Packs `count` items from `first` on; returns where they are stored.
  Place put_pack(const Factor& f, int pack, int lines, Place from, Place to, int64_t first, int64_t count) {
    const Place source = moved(from, first * f.outer_step * size_of(f.from));
    if (f.as_it_is) return source;
    const int64_t inner = lines * (16 / size_of(f.to)), pixels = std::min<int64_t>(4096 / inner, 256);
    const int64_t pixel_tiles = blocks_of(f.pixels(), pixels), inner_tiles = blocks_of(f.padded, inner);
    Words words = {source, to, count, f.inner, f.padded, f.groups, f.outer_step, f.group_step, f.steps[0], f.steps[1], f.inner_step};
    for (int64_t n : {f.pixels(), f.axes[1], pixel_tiles, inner_tiles, f.groups}) append_divider(words, n);
    launch(pack, pixel_tiles * inner_tiles * f.groups * count, std::move(words));
    return to;
  }

  void plan_product() {
    set_factors();
    cut_pieces(d_.images, x_factor_.bytes_each(), chip_.l2_bytes / 2);
    const int64_t unit = unit_elements(unit_), chunks = d_.taps() * x_factor_.padded / unit;
    auto blocks = [&] {
      const auto f = phase_counts();
      return blocks_of(piece_ * blocks_of(d_.out[0], f[0]) * blocks_of(d_.out[1], f[1]), tile_.rows) * blocks_of(d_.outputs, tile_.columns) * d_.groups *
             phases();
    };
    tile_.warpgroups = halves() && chip_.wgmma();
    tile_.columns = d_.outputs <= 32 ? 32 : d_.outputs <= 64 ? 64 : 128;
    tile_.rows = tile_.columns <= 64 && !tile_.warpgroups ? 256 : 128;
    if (blocks() < kBlocks / 2 && pieces_ > 1) cut_pieces(d_.images, x_factor_.bytes_each(), chip_.l2_bytes);
    if (blocks() < kBlocks / 2) tile_.rows = 64, tile_.columns = 64;
    // With few tiles and a deep sum, the depth is split. Where it is split depends on the shape and, through the pieces, on the chip's cache size.
    int64_t parts = std::clamp<int64_t>(std::min(kBlocks / std::max<int64_t>(blocks(), 1), chunks / 64), 1, 64);
    const int64_t sums = piece_ * d_.positions() * d_.groups * d_.outputs * 4;
    parts = spread() ? 1 : std::clamp<int64_t>(kMaxParts / sums, 1, parts);
    part_ = padded_to(blocks_of(chunks, parts), 8), parts_ = blocks_of(chunks, part_);
    choose_stages();
    add_pack(x_factor_, pack_x_, lines_x_), add_pack(w_factor_, pack_w_, lines_w_);
    product_ =
        text(conv_product_text(unit_, d_.result, tile_, stored_at_once(), parts_ > 1, d_.spread, phases() > 1, x_factor_.padded / unit % tile_.chunks() == 0));
    if (parts_ > 1) finish_ = text(conv_finish_text(d_.result, piece_ * d_.groups * d_.outputs * d_.positions(), false));
    x_at_ = reserve(piece_ * x_factor_.bytes_each()), w_at_ = reserve(d_.outputs * w_factor_.bytes_each());
    parts_at_ = reserve(parts_ > 1 ? parts_ * sums : 0);
  }

  // How many neighbours in the result are contiguous, aligned and in the same image, so that one store can write them.
  int stored_at_once() const {
    const auto& s = d_.out_steps;
    if (phases() > 1 || (d_.out[1] > 1 && s.axes[1] != 1) || (d_.out[0] > 1 && s.axes[0] != d_.out[1])) return 1;
    for (int64_t n : {8, 4, 2})
      if (d_.positions() % n == 0 && s.first % n == 0 && s.group % n == 0 && s.second % n == 0 && s.alignment % (2 * n) == 0) return int(n);
    return 1;
  }

  void bind_product() {
    const Place w = put_pack(w_factor_, pack_w_, lines_w_, w_, moved(space_, w_at_), 0, d_.outputs), parts = moved(space_, parts_at_);
    const auto f = phase_counts();
    const int64_t unit = unit_elements(unit_), chunks = x_factor_.padded / unit;
    const int64_t column_tiles = blocks_of(d_.outputs, tile_.columns);
    auto step = [&](int i) { return f[size_t(i)] > 1 ? d_.spread[size_t(i)] / std::gcd(d_.spread[size_t(i)], d_.dilation[size_t(i)]) : 1; };
    for (int64_t first = 0; first < d_.images; first += piece_) {
      const int64_t images = std::min(piece_, d_.images - first);
      const Place x = put_pack(x_factor_, pack_x_, lines_x_, x_, moved(space_, x_at_), first, images);
      const Place out = moved(out_, first * d_.out_steps.first * size_of(d_.result));
      const int64_t row_tiles = blocks_of(images * blocks_of(d_.out[0], f[0]) * blocks_of(d_.out[1], f[1]), tile_.rows);
      Words words = {x, w, out, parts, images, d_.source[0], d_.source[1], d_.out[0], d_.out[1], d_.window[0], d_.window[1]};
      for (const auto& axes : {d_.stride, d_.low, d_.dilation, f, ConvDesc::Axes{step(0), step(1)}}) words.insert(words.end(), {axes[0], axes[1]});
      words.insert(words.end(), {d_.groups, d_.outputs, chunks, part_});
      for (const Factor* a : {&x_factor_, &w_factor_}) words.insert(words.end(), {a->chunk_outer, a->chunk_steps[0], a->chunk_steps[1], a->chunk_group});
      append_out_steps(words, d_);
      words.insert(words.end(), {row_tiles, column_tiles});
      launch(product_, row_tiles * column_tiles * d_.groups * phases() * parts_, std::move(words));
      if (parts_ > 1) put_finish(out, parts, parts_, images, 0);
    }
  }

  void plan_gradient() {
    set_factors();
    cut_pieces(d_.channels, x_factor_.bytes_each() + w_factor_.bytes_each(), chip_.l2_bytes / 2);
    const int64_t rows = d_.positions() * x_factor_.padded;
    tile_.columns = d_.outputs <= 64 ? 64 : 128, tile_.rows = rows <= 64 ? 64 : 128;
    if (tile_.rows == 64) tile_.columns = 64;
    tile_.warpgroups = halves() && chip_.wgmma() && tile_.rows == 128;
    const int64_t tiles = blocks_of(rows, tile_.rows) * blocks_of(d_.outputs, tile_.columns) * d_.groups, depth = piece_ * d_.taps();
    cut_depth(tiles, depth, rows * d_.outputs * d_.groups * 4, 256, deep());
    choose_stages();
    add_pack(x_factor_, pack_x_, lines_x_), add_pack(w_factor_, pack_w_, lines_w_);
    product_ = text(conv_gradient_text(unit_, tile_, d_.spread));
    finish_ = text(conv_finish_text(d_.result, rows * d_.groups * d_.outputs, true));
    x_at_ = reserve(piece_ * x_factor_.bytes_each()), w_at_ = reserve(piece_ * w_factor_.bytes_each());
    parts_at_ = reserve(parts_ * rows * d_.outputs * d_.groups * 4);
  }

  // Splits the depth of one piece, according to the shape and the cache size that determines the piece.
  void cut_depth(int64_t tiles, int64_t depth, int64_t sums, int64_t least, int64_t step) {
    const int64_t wanted = std::min({blocks_of(kBlocks, tiles), depth / least, kMaxParts / sums});
    part_ = padded_to(blocks_of(depth, std::max<int64_t>(wanted, 1)), step), parts_ = blocks_of(depth, part_);
  }

  void bind_gradient() {
    const int64_t unit = unit_elements(unit_), row_chunks = x_factor_.padded / unit, column_chunks = w_factor_.padded / unit;
    const int64_t rows = d_.positions() * x_factor_.padded, row_tiles = blocks_of(rows, tile_.rows), column_tiles = blocks_of(d_.outputs, tile_.columns);
    const Place parts = moved(space_, parts_at_);
    for (int64_t first = 0; first < d_.channels; first += piece_) {
      const int64_t images = std::min(piece_, d_.channels - first);
      const Place x = put_pack(x_factor_, pack_x_, lines_x_, x_, moved(space_, x_at_), first, images);
      const Place w = put_pack(w_factor_, pack_w_, lines_w_, w_, moved(space_, w_at_), first, images);
      Words words = {x, w, parts, d_.source[0], d_.source[1], d_.out[0], d_.out[1], images * d_.taps(), part_, int64_t(first > 0)};
      for (const auto& axes : {d_.stride, d_.low, d_.dilation}) words.insert(words.end(), {axes[0], axes[1]});
      words.insert(words.end(), {d_.groups, d_.outputs, row_chunks, column_chunks});
      for (const Factor* a : {&x_factor_, &w_factor_}) words.insert(words.end(), {a->chunk_outer, a->chunk_steps[0], a->chunk_steps[1], a->chunk_group});
      words.insert(words.end(), {row_tiles, column_tiles});
      append_divider(words, d_.taps()), append_divider(words, d_.window[1]);
      launch(product_, row_tiles * column_tiles * d_.groups * parts_, std::move(words));
    }
    put_finish(out_, parts, parts_, d_.images, x_factor_.padded);
  }

  void put_finish(Place out, Place parts, int64_t count, int64_t images, int64_t padded) {
    const int64_t rows = padded ? d_.positions() * padded : images * d_.positions(), total = d_.groups * d_.outputs * rows;
    launch(finish_, blocks_of(total, kBlock), conv_finish_words(d_, out, parts, count, images, padded));
  }

  // Windows of one element, or as large as the source, are plain products: one per image. For a gradient, these are the parts of its sums.
  bool is_matmul() const {
    const bool plain = d_.stride == ConvDesc::Axes{1, 1} && d_.low == ConvDesc::Axes{0, 0} && d_.spread == ConvDesc::Axes{1, 1} && !narrow_;
    if (d_.x == DType::u8) return false;  // products do not read bytes
    if (gradient_) return plain && d_.window == d_.source && d_.dilation == ConvDesc::Axes{1, 1} && d_.positions() == 1 && matmul_parts() <= 4 * kMaxParts;
    return plain && d_.window == ConvDesc::Axes{1, 1} && d_.out == d_.source;
  }
  int64_t matmul_parts() const { return d_.channels * d_.groups * d_.outputs * d_.images * 4; }

  void plan_matmul() {
    const auto &x = d_.x_steps, &w = d_.w_steps, &c = d_.out_steps;
    MatmulDesc m;
    m.a = d_.w, m.b = d_.x, m.result = gradient_ ? DType::f32 : d_.result;
    if (gradient_) {
      parts_ = d_.channels;
      const int64_t part = d_.groups * d_.outputs * d_.images;
      m.loops.batch = {{d_.channels, w.second, x.second, part}, {d_.groups, w.group, x.group, d_.outputs * d_.images}};
      m.loops.m = {{d_.outputs, w.first, 0, d_.images}}, m.loops.n = {{d_.images, 0, x.first, 1}};
      for (size_t i : {0, 1}) m.loops.k.push_back({d_.source[i], w.axes[i], x.axes[i], 0});
      finish_ = text(conv_finish_text(d_.result, part, true));
    } else {
      m.loops.batch = {{d_.images, 0, x.first, c.first}, {d_.groups, w.group, x.group, c.group}};
      m.loops.m = {{d_.outputs, w.first, 0, c.second}}, m.loops.k = {{d_.channels, w.second, x.second, 0}};
      for (size_t i : {0, 1}) m.loops.n.push_back({d_.out[i], 0, x.axes[i], c.axes[i]});
    }
    m.alignments = {w.alignment, x.alignment, gradient_ ? 64 : c.alignment};
    matmul_ = make_matmul(m, chip_);
    parts_at_ = reserve(gradient_ ? matmul_parts() : 0), matmul_at_ = reserve(matmul_->workspace_bytes());
  }

  void bind_matmul() {
    const Place parts = moved(space_, parts_at_);
    matmul_->bind(std::array<Place, 3>{w_, x_, gradient_ ? parts : out_}, moved(space_, matmul_at_), {});
    if (gradient_) put_finish(out_, parts, parts_, d_.images, d_.images);
  }

  ConvNarrow narrow_shape() const {
    ConvNarrow s{{d_.window[0], d_.window[1]}, {d_.stride[0], d_.stride[1]}, {d_.dilation[0], d_.dilation[1]}, {d_.spread[0], d_.spread[1]}};
    s.side_by_side = d_.x_steps.axes[1] == 1;
    // Neighbours share rows of the source. More neighbours share more, but make the unrolled loop longer.
    const int64_t more = gradient_ ? d_.dilation[0] : d_.stride[0], rest = gradient_ ? (d_.out[0] - 1) * d_.stride[0] : (d_.window[0] - 1) * d_.dilation[0];
    const int64_t lines = gradient_ ? d_.window[0] : d_.out[0], across = gradient_ ? d_.out[1] : d_.window[1];
    for (int n : {4, 8})
      if (lines >= n && ((n - 1) * more + rest + 1) * across <= 64 && d_.spread[0] == 1) s.down = n;
    return s;
  }

  void plan_narrow() { product_ = text(conv_narrow_text(d_.x, narrow_shape(), narrow_total())); }
  int64_t narrow_lines() const { return blocks_of(d_.out[0], narrow_shape().down); }
  int64_t narrow_total() const { return d_.images * d_.groups * d_.outputs * narrow_lines() * d_.out[1]; }

  void bind_narrow() {
    const auto &x = d_.x_steps, &w = d_.w_steps;
    Words words = {x_, w_, out_, narrow_total(), d_.channels, d_.groups, d_.source[0], d_.source[1], d_.out[0], d_.low[0], d_.low[1]};
    words.insert(words.end(), {x.first, x.group, x.second, x.axes[0], x.axes[1], w.group, w.first, w.second, w.axes[0], w.axes[1]});
    append_out_steps(words, d_);
    for (int64_t n : {d_.out[1], narrow_lines(), d_.outputs, d_.groups}) append_divider(words, n);
    launch(product_, blocks_of(narrow_total(), kBlock), std::move(words));
  }

  void plan_narrow_gradient() {
    const int64_t sums = d_.images * d_.groups * d_.outputs * d_.positions() * 4;
    cut_depth(blocks_of(d_.images * d_.groups * d_.outputs, 4), narrow_depth(), sums, 1024, kBlock);
    product_ = text(conv_narrow_gradient_text(d_.x, narrow_shape(), d_.out[0], d_.out[1]));
    finish_ = text(conv_finish_text(d_.result, sums / 4, true));
    parts_at_ = reserve(parts_ * sums);
  }

  int64_t narrow_taps() const { return blocks_of(d_.window[0], narrow_shape().down) * d_.window[1]; }
  int64_t narrow_depth() const { return d_.channels * narrow_taps(); }

  void bind_narrow_gradient() {
    const auto &x = d_.x_steps, &w = d_.w_steps;
    const Place parts = moved(space_, parts_at_);
    Words words = {x_, w_, parts, d_.images, d_.groups, d_.outputs, d_.source[0], d_.source[1], d_.window[0], narrow_depth(), part_, d_.low[0], d_.low[1]};
    words.insert(words.end(), {x.first, x.group, x.second, x.axes[0], x.axes[1], w.group, w.first, w.second, w.axes[0], w.axes[1]});
    append_divider(words, narrow_taps()), append_divider(words, d_.window[1]);
    launch(product_, d_.images * d_.groups * d_.outputs * parts_, std::move(words));
    put_finish(out_, parts, parts_, d_.images, d_.images);
  }

  ConvDesc d_;
  Chip chip_;
  ConvUnit unit_;
  bool gradient_ = false, narrow_ = false;
  ConvTile tile_;
  Factor x_factor_, w_factor_;
  int pack_x_ = -1, pack_w_ = -1, lines_x_ = 1, lines_w_ = 1, product_ = -1, finish_ = -1;
  int64_t piece_ = 1, pieces_ = 1, part_ = 0, parts_ = 1;  // of the images packed at a time; of the depth
  std::unique_ptr<Kernel> matmul_;
  int64_t x_at_ = 0, w_at_ = 0, parts_at_ = 0, matmul_at_ = 0, workspace_ = 0;
  Place x_, w_, out_, space_;
};

}  // namespace

// Bytes are exact in every format of the other factor.
ConvUnit conv_unit(const ConvDesc& d, const Chip& chip) {
  const bool alike = d.x == d.w || d.x == DType::u8;
  if (alike && d.w == DType::bf16 && chip.bf16()) return ConvUnit::bf16;
  if (alike && d.w == DType::f16) return ConvUnit::f16;
  return chip.f32_products != Precision::fp32 && chip.at_least(8, 0) ? ConvUnit::tf32 : ConvUnit::fma;
}

Words conv_finish_words(const ConvDesc& d, Place out, Place parts, int64_t count, int64_t images, int64_t padded) {
  const int64_t rows = padded ? d.positions() * padded : images * d.positions();
  Words words = {parts, out, count, d.groups * d.outputs * rows, images};
  append_out_steps(words, d);
  for (int64_t n : {rows, padded ? padded : d.positions(), d.outputs, d.out[1]}) append_divider(words, n);
  return words;
}

std::unique_ptr<Kernel> make_conv(const ConvDesc& desc, const Chip& chip) {
  if (auto band = make_band_conv(desc, chip)) return band;
  auto own = std::make_unique<ConvKernel>(desc, chip);
  const std::optional<LibraryConv> call = library_conv(desc, chip);
  if (!call || !library_wins(desc, call->conv.result, call->conv.channels_last(), chip)) return own;
  return make_library_conv(desc, *call, std::move(own), chip);
}

bool has_conv_kernel(const Graph& g, NodeId id) {
  const Node& n = g[id];
  if (g.shape(n.in[0]).rank() > 4) return false;
  for (const Type* t : {&g.type(n.in[0]), &g.type(n.in[1]), &n.type()}) {
    const bool number = t->dtype == DType::f32 || is_half(t->dtype) || (t->dtype == DType::u8 && t == &g.type(n.in[0]));
    if (t->shape.numel() == 0 || 2 * t->shape.numel() >= kMaxElements || !number) return false;
  }
  return true;
}

// Results and gradients of images that the library computes faster with channels last, and what our own kernels read from bytes for it. Gradients of weights
// follow their operands.
bool conv_channels_last(const Graph& g, NodeId id, const Chip& chip) {
  if (!chip.cudnn || !has_conv_kernel(g, id)) return false;
  const ConvDesc d = conv_desc(g, id);
  return d.taps() <= d.positions() && (library_wins(d, CudnnConv::Result::y, true, chip) || (d.x == DType::u8 && fits_band_conv(d, chip)));
}

// Gradients with respect to the weights are small, so any order will do. For other convolutions, our own kernels store neighbours along a row; the library
// handles the permutation if channels are last in both the input and the result.
bool conv_stores_permuted(const Graph& g, NodeId permuted, const Chip& chip) {
  const NodeId id = g[permuted].in[0], in = g[id].in[0];
  if (!has_conv_kernel(g, id)) return false;
  const ConvDesc d = conv_desc(g, id);
  if (d.taps() > d.positions()) return true;
  using Order = std::vector<int64_t>;
  if (g[permuted].attrs.ints == Order{0, 2, 3, 1} && fits_band_conv(d, chip)) return true;
  return chip.cudnn && g[permuted].attrs.ints == Order{0, 2, 3, 1} && g[in].op == Op::permute && g[in].attrs.ints == Order{0, 3, 1, 2} &&
         library_wins(d, CudnnConv::Result::y, true, chip);
}

std::unique_ptr<Kernel> make_conv_kernel(const Program& program, const ProgramKernel& kernel, const Chip& chip) {
  return make_conv(conv_desc(program, kernel), chip);
}

}  // namespace ridge::cuda
