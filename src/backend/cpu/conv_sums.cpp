// Convolution with few positions and many taps, above all the gradient with respect to the weights (where the batch takes the role of the channels). Rows of
// the product are (position, image), its K are (channel, tap). Both operands of a channel are read into cache with images and outputs innermost. Units take
// ranges of channels, and their sums are added in order.
#include "backend/cpu/conv_parts.h"
#include "base/error.h"

namespace ridge::cpu::conv {
namespace {

class SumsConv final : public MatmulKernel {
 public:
  SumsConv(const ConvDesc& desc, int64_t epilogue_scratch, const Units& units) : d_(desc), u_(units), columns_(desc.outputs, *units.tiles) {
    result_ = {u_.tiles, d_.out_steps, d_.result, d_.outputs, d_.positions(), d_.out[1], epilogue_scratch >= 0};
    images_ = {u_.plain, d_.x, d_.images, d_.images, d_.x_steps.first, d_.source, d_.x_steps.axes, d_.spread};
    taps_ = {u_.plain, d_.w, d_.outputs, d_.outputs, d_.w_steps.first, d_.window, d_.w_steps.axes, {1, 1}};
    for (size_t i : {0, 1}) extent_[i] = (d_.out[i] - 1) * d_.stride[i] + (d_.window[i] - 1) * d_.dilation[i] + 1;
    line_ = u_.pairs() ? parts_of(d_.window[1], 2) : d_.window[1];
    depth_ = d_.window[0] * line_;
    image_floats_ = aligned(extent_[0] * extent_[1] * d_.images * 4) / 4;
    choose_parts();
    plan_rows();

    const int64_t line = extent_[1] * d_.images, columns = depth_ * columns_.padded, plain = d_.taps() * columns_.width;
    auto reserve = [&](int64_t floats) { return std::exchange(scratch_, scratch_ + aligned(floats * 4)); };
    image_at_ = reserve(together_ * image_floats_), columns_at_ = reserve(together_ * columns);
    wide_at_ = reserve(u_.pairs() ? std::max(std::min(extent_[0], lines_at_a_time(line)) * line, plain) : 0);
    spare_at_ = reserve(images_.spare_floats(part()));
    const int64_t summed = scratch_;
    scratch_ = 0;
    total_at_ = reserve(d_.positions() * columns_.padded), turned_at_ = reserve(result_.spare_floats(d_.positions()));
    epilogue_at_ = scratch_;
    scratch_ = std::max(summed, scratch_ + aligned(std::max<int64_t>(epilogue_scratch, 0)));
  }

  int64_t workspace_bytes() const override { return d_.groups * parts_ * part_floats() * 4; }
  int64_t scratch_bytes() const override { return scratch_; }
  void set_epilogue(MatmulEpilogue epilogue) override { epilogue_ = epilogue; }

  void bind(std::span<const Ref> operands, Ref workspace, std::vector<Task>& tasks) override {
    x_ = operands[0], w_ = operands[1], workspace_ = workspace;
    if (!result_.epilogue) to_ = operands[2];
    const double flops = 2.0 * double(depth_ * d_.channels) * double(part_floats()) / double(parts_);
    tasks.push_back({run_sums, this, d_.groups * parts_, 200 + flops / u_.flops_per_ns()});
    tasks.push_back({run_totals, this, d_.groups * d_.images, 50 + double(parts_ * d_.positions() * columns_.padded) * 0.1});
  }

 private:
  int64_t part_floats() const { return d_.positions() * d_.images * columns_.padded; }
  ImageReader::Part part() const { return {-d_.low[0], extent_[0], -d_.low[1], extent_[1]}; }

  // Parts of the channels, by shape alone: enough for many threads, few enough that adding them up costs little. A unit reads several channels at a time, so
  // that its sums are loaded and stored less often.
  void choose_parts() {
    constexpr int64_t kParts = 16, kMaxBytes = 16 << 20, kDepth = 256, kCacheBytes = 256 << 10;
    const int64_t most = std::max<int64_t>(1, kMaxBytes / (part_floats() * d_.groups * 4));
    parts_ = std::min({d_.channels, most, std::max<int64_t>(1, kParts / d_.groups)});
    const int64_t bytes = (extent_[0] * extent_[1] * d_.images + depth_ * columns_.padded) * 4;
    together_ = std::clamp<int64_t>(std::min(kDepth / depth_, kCacheBytes / bytes), 1, parts_of(d_.channels, parts_));
  }

  // Rows that follow each other in an image in cache: all images of a position, or of a line of positions.
  void plan_rows() {
    const bool lines = d_.stride[1] == 1;
    run_ = (lines ? d_.out[1] : 1) * d_.images;
    for (int64_t y = 0; y < d_.out[0]; ++y)
      for (int64_t x = 0; x < (lines ? 1 : d_.out[1]); ++x) runs_at_.push_back((y * d_.stride[0] * extent_[1] + x * d_.stride[1]) * d_.images);
    for (int64_t i = 0; i < together_; ++i)
      for (int64_t t = 0; t < d_.window[0]; ++t) stretch_at_.push_back(i * image_floats_ + t * d_.dilation[0] * extent_[1] * d_.images);
  }

  static void run_sums(const void* args, int64_t begin, int64_t end, Worker& worker) {
    const SumsConv& c = *static_cast<const SumsConv*>(args);
    for (int64_t unit = begin; unit < end; ++unit) c.sum(worker, unit / c.parts_, unit % c.parts_);
  }

  void sum(Worker& worker, int64_t group, int64_t part) const {
    const int64_t begin = range_begin(d_.channels, parts_, part), end = range_begin(d_.channels, parts_, part + 1);
    float* const sums = worker.at<float>(workspace_) + (group * parts_ + part) * part_floats();
    auto at = [&](int64_t offset) { return reinterpret_cast<float*>(worker.scratch + offset); };
    for (int64_t channel = begin; channel < end; channel += together_) {
      const int64_t count = std::min(together_, end - channel);
      for (int64_t i = 0; i < count; ++i) {
        read_image(worker, group, channel + i, at(image_at_) + i * image_floats_);
        read_columns(worker, group, channel + i, at(columns_at_), i, count);
      }
      multiply(at(image_at_), at(columns_at_), count, channel > begin, sums);
    }
  }

  // All images of a channel: [down][across][image], as f32 or as pairs of the values that two neighbouring taps meet.
  void read_image(Worker& worker, int64_t group, int64_t channel, float* to) const {
    const std::byte* const from = worker.at<std::byte>(x_) + (group * d_.x_steps.group + channel * d_.x_steps.second) * size_of(d_.x);
    float* const wide = reinterpret_cast<float*>(worker.scratch + wide_at_);
    float* const spare = reinterpret_cast<float*>(worker.scratch + spare_at_);
    if (!u_.pairs()) return images_.read(from, part(), to, spare);
    const int64_t line = extent_[1] * d_.images, away = std::min(line, d_.dilation[1] * d_.images), lines = lines_at_a_time(line);
    for (int64_t y = 0; y < extent_[0]; ++y) {
      if (y % lines == 0) images_.read(from, {y - d_.low[0], std::min(lines, extent_[0] - y), -d_.low[1], extent_[1]}, wide, spare);
      const float* const row = wide + y % lines * line;
      u_.tiles->join(row, row + away, to + y * line, line - away);
      u_.tiles->join(row + line - away, nullptr, to + (y + 1) * line - away, away);
    }
  }

  // The weights of a channel: for each tile of columns [channel][tap][column]; pairs end with each line of taps.
  void read_columns(Worker& worker, int64_t group, int64_t channel, float* to, int64_t index, int64_t count) const {
    const auto& s = d_.w_steps;
    const std::byte* const from = worker.at<std::byte>(w_) + (group * s.group + channel * s.second) * size_of(d_.w);
    for (int64_t j = 0; j < columns_.tiles; ++j) {
      const int64_t width = columns_.stored(j);
      float* const panel = to + j * columns_.width * depth_ * count + index * depth_ * width;
      float* const wide = u_.pairs() ? reinterpret_cast<float*>(worker.scratch + wide_at_) : panel;
      ImageReader reader = taps_;
      reader.lanes = columns_.live(j), reader.padded = width;
      reader.read(from + j * columns_.width * s.first * size_of(d_.w), {0, d_.window[0], 0, d_.window[1]}, wide, nullptr);
      for (int64_t t = 0; u_.pairs() && t < depth_; ++t) {
        const int64_t x = t % line_ * 2;
        const float* const first = wide + (t / line_ * d_.window[1] + x) * width;
        u_.tiles->join(first, x + 1 < d_.window[1] ? first + width : nullptr, panel + t * width, width);
      }
    }
  }

  void multiply(const float* images, const float* columns, int64_t count, bool add, float* sums) const {
    const int64_t tiles = parts_of(run_, columns_.tile_rows);
    TileArgs t;
    t.a_row = 1, t.a_k = (u_.pairs() ? 2 : 1) * d_.dilation[1] * d_.images, t.k = line_;
    t.stretch_at = stretch_at_.data(), t.stretches = count * d_.window[0];
    t.c_row = columns_.padded, t.add = add;
    for (size_t r = 0; r < runs_at_.size(); ++r)
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t from = range_begin(run_, tiles, i), rows = range_begin(run_, tiles, i + 1) - from;
        t.a = images + runs_at_[r] + from;
        for (int64_t j = 0; j < columns_.tiles; ++j) {
          t.cols = t.b_k = columns_.stored(j);
          t.b = columns + j * columns_.width * depth_ * count;
          t.c = sums + (int64_t(r) * run_ + from) * columns_.padded + j * columns_.width;
          u_.tiles->packed[rows][t.cols / u_.tiles->lanes](t);
        }
      }
  }

  static void run_totals(const void* args, int64_t begin, int64_t end, Worker& worker) {
    const SumsConv& c = *static_cast<const SumsConv*>(args);
    for (int64_t unit = begin; unit < end; ++unit) c.total(worker, unit / c.d_.images, unit % c.d_.images);
  }

  // Adds up the parts of one image.
  void total(Worker& worker, int64_t group, int64_t image) const {
    float* const total = reinterpret_cast<float*>(worker.scratch + total_at_);
    const float* const parts = worker.at<float>(workspace_) + group * parts_ * part_floats();
    const int64_t width = columns_.padded;
    for (int64_t p = 0; p < d_.positions(); ++p) {
      const float* const from = parts + (p * d_.images + image) * width;
      u_.plain->store[storage_index(DType::f32)](from, total + p * width, width);
      for (int64_t i = 1; i < parts_; ++i) u_.plain->add(from + i * part_floats(), total + p * width, width);
    }
    std::byte* const scratch = std::exchange(worker.scratch, worker.scratch + epilogue_at_);
    result_.store(epilogue_, worker, to_, image, group, 0, d_.positions(), total, width, reinterpret_cast<float*>(scratch + turned_at_));
    worker.scratch = scratch;
  }

  ConvDesc d_;
  Units u_;
  Columns columns_;
  Result result_;
  ImageReader images_, taps_;
  ConvDesc::Axes extent_{1, 1};                 // of an image in cache
  int64_t line_ = 1, depth_ = 1;                // units of K in a line of taps, in a channel
  int64_t parts_ = 1, together_ = 1, run_ = 1;  // of the channels; channels at a time; rows that follow each other
  std::vector<int64_t> runs_at_, stretch_at_;
  int64_t image_floats_ = 0;
  int64_t image_at_ = 0, columns_at_ = 0, wide_at_ = 0, spare_at_ = 0, total_at_ = 0, turned_at_ = 0, epilogue_at_ = 0, scratch_ = 0;
  MatmulEpilogue epilogue_;
  Ref x_, w_, to_, workspace_;
};

}  // namespace

std::unique_ptr<MatmulKernel> make_sums(const ConvDesc& desc, int64_t epilogue_scratch, const Units& units) {
  return std::make_unique<SumsConv>(desc, epilogue_scratch, units);
}

}  // namespace ridge::cpu::conv
