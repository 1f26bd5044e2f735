// Convolution kernels on the GPU: every kind of them, and the memory of a program that uses them.
#include <cmath>
#include <regex>

#include <fmt/core.h>

#include "autograd/gradients.h"
#include "backend/cuda/backend.h"
#include "backend/cuda/conv.h"
#include "backend/cuda/conv_text.h"
#include "base/half.h"
#include "compile/autocast.h"
#include "graph/builder.h"
#include "graph/scan.h"
#include "measure/default_team.h"
#include "runtime/executable.h"
#include "support/cuda_device.h"
#include "support/nvrtc.h"
#include "support/plan_backend.h"

namespace ridge::cuda {
namespace {

struct ConvCase : ConvDesc {
  std::optional<Chip> other = {};  // instead of the device's
  bool channels_last = false;
  bool all_last = false;   // the weights and the result too
  bool exchanged = false;  // the first two axes of both factors are swapped, as in weight gradients
  std::string note = {};

  ConvCase(DType type, int64_t n, int64_t g, int64_t c, int64_t o, Axes size, Axes taps, Axes step = {1, 1}, Axes padding = {0, 0}, Axes dilate = {1, 1},
           Axes spread_by = {1, 1}) {
    x = w = result = type, images = n, groups = g, channels = c, outputs = o, source = size, window = taps;
    stride = step, low = padding, dilation = dilate, spread = spread_by;
    for (size_t i : {0, 1}) out[i] = ((source[i] - 1) * spread[i] + 1 + 2 * low[i] - ((window[i] - 1) * dilation[i] + 1)) / stride[i] + 1;
  }
  ConvCase last() const {
    ConvCase copy = *this;
    copy.channels_last = true;
    return copy;
  }
  ConvCase all_channels_last() const {
    ConvCase copy = last();
    copy.all_last = true;
    return copy;
  }
  ConvCase by_weights() const {
    ConvCase copy = *this;
    copy.exchanged = true;
    return copy;
  }
  ConvCase for_chip(const Chip& chip) const {
    ConvCase copy = *this;
    copy.other = chip;
    return copy;
  }

  Chip chip() const { return other ? *other : test::CudaDevice::the().chip(); }

  static Steps plain(int64_t groups, int64_t second, Axes axes) {
    return {groups * second * axes[0] * axes[1], second * axes[0] * axes[1], axes[0] * axes[1], {axes[1], 1}};
  }
  static Steps turned(int64_t groups, int64_t second, Axes axes) {
    return {groups * second * axes[0] * axes[1], second, 1, {groups * second * axes[1], groups * second}};
  }

  // Eighths: every product and sum is exact, in any order and with few bits per factor.
  static std::vector<double> draw(size_t count, uint32_t seed) {
    std::vector<double> v(count);
    for (double& f : v) seed = seed * 1664525u + 1013904223u, f = double(int(seed >> 24) % 17 - 8) / 8;
    return v;
  }
  static std::vector<double> draw_bytes(size_t count, uint32_t seed) {
    std::vector<double> v(count);
    for (double& f : v) seed = seed * 1664525u + 1013904223u, f = double(seed >> 24);
    return v;
  }
  static std::vector<std::byte> stored(DType t, const std::vector<double>& v) {
    std::vector<std::byte> bytes(v.size() * size_t(size_of(t)));
    if (t == DType::u8) {
      for (size_t i = 0; i < v.size(); ++i) bytes[i] = std::byte(uint8_t(v[i]));
      return bytes;
    }
    for (size_t i = 0; i < v.size(); ++i) {
      const float f = float(v[i]);
      const uint16_t h = t == DType::bf16 ? f32_to_bf16(f) : f32_to_f16(f);
      std::memcpy(bytes.data() + i * size_t(size_of(t)), t == DType::f32 ? static_cast<const void*>(&f) : &h, size_t(size_of(t)));
    }
    return bytes;
  }

  void lay_out() {
    x_steps = channels_last ? turned(groups, channels, source) : plain(groups, channels, source);
    w_steps = all_last ? turned(1, channels, window) : plain(1, channels, window), w_steps.group = outputs * w_steps.first;
    out_steps = all_last ? turned(groups, outputs, out) : plain(groups, outputs, out);
    if (exchanged) {
      x_steps.first = source[0] * source[1], x_steps.second = images * x_steps.first;
      w_steps.first = taps(), w_steps.second = outputs * w_steps.first;
      if (channels_last) x_steps = {1, 0, images * source[0] * source[1], {images * source[1], images}};
      if (all_last) w_steps = {1, 0, outputs * taps(), {outputs * window[1], outputs}};
    }
  }

  void check(bool again = true) {
    lay_out();
    const std::vector<double> a = (x == DType::u8 ? draw_bytes : draw)(size_t(images * groups * channels * source[0] * source[1]), 1),
                              b = draw(size_t(groups * outputs * channels * taps()), 2);
    std::vector<double> want(size_t(images * groups * outputs * positions()));
    for (int64_t n = 0; n < images; ++n)
      for (int64_t g = 0; g < groups; ++g)
        for (int64_t o = 0; o < outputs; ++o)
          for (int64_t p = 0; p < positions(); ++p) {
            double sum = 0;
            for (int64_t t = 0; t < taps(); ++t) {
              const int64_t v = p / out[1] * stride[0] + t / window[1] * dilation[0] - low[0],
                            u = p % out[1] * stride[1] + t % window[1] * dilation[1] - low[1];
              if (v < 0 || u < 0 || v % spread[0] || u % spread[1] || v / spread[0] >= source[0] || u / spread[1] >= source[1]) continue;
              for (int64_t c = 0; c < channels; ++c)
                sum +=
                    a[size_t(n * x_steps.first + g * x_steps.group + c * x_steps.second + v / spread[0] * x_steps.axes[0] + u / spread[1] * x_steps.axes[1])] *
                    b[size_t(g * w_steps.group + o * w_steps.first + c * w_steps.second + t / window[1] * w_steps.axes[0] + t % window[1] * w_steps.axes[1])];
            }
            want[size_t(n * out_steps.first + g * out_steps.group + o * out_steps.second + p / out[1] * out_steps.axes[0] + p % out[1] * out_steps.axes[1])] =
                sum;
          }
    EXPECT_EQ(run(stored(x, a), stored(w, b), std::byte(0xa5)), stored(result, want)) << label();
    if (!again) return;
    EXPECT_EQ(run(stored(x, a), stored(w, b), std::byte(0x3c)), stored(result, want)) << label() << ", again";
  }

  std::vector<std::byte> run(const std::vector<std::byte>& a, const std::vector<std::byte>& b, std::byte before) {
    test::CudaDevice& device = test::CudaDevice::the();
    const std::unique_ptr<Kernel> kernel = make_conv(*this, chip());
    const std::vector<std::byte> c(size_t(images * groups * outputs * positions() * size_of(result)), before), work(size_t(kernel->workspace_bytes()), before);
    std::vector<DeviceMemory> memory;
    std::vector<DevicePointer> bases;
    for (const auto* bytes : {&a, &b, &c, &work}) memory.push_back(device.memory(bytes->data(), int64_t(bytes->size()))), bases.push_back(memory.back().get());
    device.ask(kernel->texts());
    kernel->load(device);
    kernel->bind(std::vector<Place>{{0, 0}, {1, 0}, {2, 0}}, {3, 0}, {});
    note = kernel->note();
    device.enqueue(*kernel, bases);
    return device.read(memory[2], int64_t(c.size()));
  }
  std::string label() const {
    return fmt::format("{} {} images, {} groups of {} to {}, [{}, {}] by [{}, {}], stride {}, low {}, dilation {}, spread {}{}: {}", name(x), images, groups,
                       channels, outputs, source[0], source[1], window[0], window[1], stride[0], low[0], dilation[0], spread[0],
                       channels_last ? ", channels last" : "", note);
  }
};

using Cases = std::vector<ConvCase>;

// The simulated GPU is slow: only f32 and bf16 unless all are requested.
std::vector<DType> types() {
  if (test::tests_real_gpu() || test::is_set("RIDGE_FULL")) return {DType::f32, DType::bf16, DType::f16};
  return {DType::f32, DType::bf16};
}

class GpuConv : public test::CudaTest {};

TEST_F(GpuConv, SumsWindowsOfEveryKind) {
  for (DType t : types())
    for (ConvCase c : Cases{
             {t, 2, 1, 16, 20, {7, 9}, {3, 3}, {1, 1}, {1, 1}},
             {t, 1, 1, 3, 33, {11, 10}, {5, 3}, {2, 2}, {2, 1}},
             {t, 1, 1, 64, 5, {5, 5}, {3, 2}, {1, 1}, {1, 1}},
             {t, 2, 2, 5, 7, {9, 8}, {3, 2}, {2, 1}, {1, 1}, {2, 3}},
             {t, 3, 1, 24, 5, {1, 13}, {1, 4}, {1, 3}, {0, 2}, {1, 2}},
         }) {
      c.check();
      EXPECT_NE(c.note.find("by positions"), std::string::npos) << c.label();
    }
}

TEST_F(GpuConv, ReadsAdjacentChannels) {
  for (DType t : types()) {
    ConvCase c = ConvCase{t, 2, 2, 8, 18, {6, 5}, {3, 3}, {1, 1}, {1, 1}}.last(), apart = ConvCase{t, 2, 2, 9, 18, {6, 5}, {3, 3}, {1, 1}, {1, 1}}.last();
    c.check(), apart.check();
    EXPECT_LT(make_conv(c, c.chip())->workspace_bytes(), make_conv(apart, apart.chip())->workspace_bytes() / 2) << "the source is not copied";
  }
}

TEST_F(GpuConv, DilatesTheInput) {
  for (DType t : types())
    for (ConvCase c : Cases{
             {t, 2, 1, 9, 18, {5, 4}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {2, 2}},
             {t, 1, 1, 64, 5, {4, 3}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {2, 2}},
             {t, 1, 2, 9, 3, {4, 6}, {4, 3}, {1, 1}, {2, 0}, {1, 2}, {3, 2}},
             {t, 1, 1, 9, 3, {5, 5}, {2, 2}, {1, 1}, {1, 1}, {2, 2}, {2, 2}},
             {t, 1, 1, 8, 18, {5, 4}, {3, 3}, {2, 3}, {1, 1}, {1, 1}, {2, 2}},
         })
      c.check();
}

// A long sum with few results is split; what is packed at a time stays in a small cache.
TEST_F(GpuConv, SplitsDepthAndImages) {
  Chip small = test::CudaDevice::the().chip();
  small.l2_bytes = 4096;
  for (DType t : types()) {
    ConvCase deep{t, 1, 1, 320, 9, {4, 4}, {3, 3}, {1, 1}, {1, 1}};
    deep.check();
    EXPECT_NE(deep.note.find("parts"), std::string::npos) << deep.label();
    for (ConvCase c : Cases{{t, 5, 1, 12, 9, {6, 6}, {3, 3}, {1, 1}, {1, 1}}, {t, 9, 1, 5, 10, {6, 6}, {5, 5}, {1, 1}, {1, 1}}}) {
      c = c.for_chip(small);
      c.check();
      EXPECT_NE(c.note.find("pieces"), std::string::npos) << c.label();
      EXPECT_LT(make_conv(c, c.chip())->workspace_bytes(), 64 * 1024) << c.label();
    }
  }
}

TEST_F(GpuConv, SumsManyTapsForFewPositions) {
  for (DType t : types())
    for (ConvCase c : Cases{
             {t, 5, 1, 3, 9, {8, 9}, {6, 7}, {1, 1}, {0, 0}},
             {t, 17, 1, 2, 66, {8, 8}, {8, 8}, {1, 1}, {1, 1}},
             {t, 5, 2, 3, 9, {9, 9}, {5, 5}, {1, 1}, {1, 1}, {2, 2}},
             {t, 7, 1, 2, 3, {4, 4}, {5, 6}, {1, 1}, {1, 1}, {1, 1}, {2, 2}},
             {t, 70, 1, 2, 3, {1, 20}, {1, 18}, {1, 1}, {0, 0}},
         }) {
      c.check();
      EXPECT_NE(c.note.find("by the weights"), std::string::npos) << c.label();
    }
}

TEST_F(GpuConv, ComputesNarrowGroupsDirectly) {
  for (DType t : types())
    for (ConvCase c : Cases{
             {t, 2, 5, 1, 1, {9, 8}, {3, 3}, {1, 1}, {1, 1}},
             {t, 1, 3, 2, 2, {9, 8}, {3, 2}, {2, 1}, {1, 0}, {1, 3}},
             {t, 2, 3, 1, 2, {4, 7}, {3, 3}, {1, 1}, {2, 2}, {1, 1}, {2, 3}},
             {t, 1, 4, 1, 1, {1, 30}, {1, 7}, {1, 2}, {0, 3}},
             {t, 2, 3, 1, 1, {21, 6}, {3, 3}, {1, 1}, {1, 1}},
             {t, 1, 3, 3, 1, {21, 7}, {19, 6}, {1, 1}, {1, 1}},
             {t, 1, 2, 3, 1, {37, 13}, {18, 6}, {1, 1}, {1, 1}, {2, 2}},
             {t, 1, 5, 6, 1, {9, 9}, {7, 7}, {1, 1}, {0, 0}},
             {t, 2, 3, 4, 2, {12, 11}, {10, 9}, {1, 1}, {0, 0}, {1, 1}},
             {t, 1, 3, 40, 1, {11, 11}, {11, 11}, {1, 1}, {1, 1}},
         }) {
      c.check();
      EXPECT_NE(c.note.find("narrow"), std::string::npos) << c.label();
    }
}

// Windows of one element, or of all.
TEST_F(GpuConv, RunsPlainProductsAsMatmuls) {
  for (DType t : types())
    for (ConvCase c : Cases{
             {t, 3, 1, 8, 17, {4, 5}, {1, 1}},
             {t, 2, 2, 9, 5, {1, 6}, {1, 1}},
             {t, 7, 1, 3, 5, {4, 5}, {4, 5}},
             {t, 9, 2, 2, 3, {1, 6}, {1, 6}},
         }) {
      c.check();
      EXPECT_NE(c.note.find("a product"), std::string::npos) << c.label();
    }
}

// Many groups stand in for the many tiles of a large result.
TEST_F(GpuConv, UsesLargeTilesForLargeProblems) {
  const bool all = types().size() > 2;  // the simulated GPU is slow
  for (DType t : all ? types() : std::vector{DType::bf16})
    for (int64_t outputs : all ? std::vector<int64_t>{20, 40, 70} : std::vector<int64_t>{40, 70}) {
      ConvCase c{t, 1, 133, 5, outputs, {3, 2}, {2, 1}};
      c.check(all);
      EXPECT_EQ(c.note.find("64 x 64"), std::string::npos) << c.label();
    }
}

// For weight gradients: sums of 16-bit products that are not rounded.
TEST_F(GpuConv, StoresUnroundedSums) {
  for (ConvCase c : Cases{
           {DType::bf16, 2, 1, 16, 20, {7, 9}, {3, 3}, {1, 1}, {1, 1}},
           {DType::bf16, 17, 1, 2, 5, {8, 8}, {8, 8}, {1, 1}, {1, 1}},
           {DType::bf16, 1, 3, 40, 1, {11, 11}, {11, 11}, {1, 1}, {1, 1}},
           {DType::bf16, 2, 5, 1, 1, {9, 8}, {3, 3}, {1, 1}, {1, 1}},
           {DType::bf16, 7, 1, 3, 5, {4, 5}, {4, 5}},
       }) {
    c.result = DType::f32;
    c.check();
  }
}

// Pictures as they are: the first layer of a network, its weight gradient, and shapes that leave remainders.
TEST_F(GpuConv, ReadsBytes) {
  Chip tf32 = test::CudaDevice::the().chip();
  tf32.f32_products = Precision::tf32;
  for (DType t : types())
    for (ConvCase c : Cases{
             {t, 2, 1, 4, 32, {20, 20}, {8, 8}, {4, 4}},
             ConvCase{t, 2, 1, 3, 5, {9, 7}, {3, 3}, {2, 1}, {1, 1}}.last(),
             {t, 2, 2, 5, 7, {9, 8}, {3, 2}, {2, 1}, {1, 1}, {2, 3}},
             {t, 3, 1, 4, 6, {6, 6}, {1, 1}},
             ConvCase{t, 4, 1, 6, 9, {20, 20}, {13, 13}, {1, 1}, {0, 0}, {1, 1}}.by_weights(),
             ConvCase{t, 3, 1, 7, 5, {8, 8}, {8, 8}},
         }) {
      c.x = DType::u8;
      c.check(false);
    }
  ConvCase first{DType::f32, 2, 1, 4, 32, {20, 20}, {8, 8}, {4, 4}};
  first.x = DType::u8;
  first.for_chip(tf32).check();
}

// Few channels: windows that are and are not as wide as whole strides, padded cells, borders that windows cross, both layouts of every operand, one and many
// images, and bands that end before their last row.
TEST_F(GpuConv, KeepsBandsOfImagesInSharedMemory) {
  for (DType t : types())
    for (int64_t images : {1, 3, 17}) {
      const int64_t some = images == 17 ? 3 : images;  // the simulated GPU is slow
      Cases cases{
          {t, some, 1, 4, 32, {40, 40}, {8, 8}, {4, 4}},
          {t, some, 1, 3, 5, {19, 18}, {5, 7}, {3, 2}, {2, 2}},
          {t, images, 1, 8, 9, {9, 23}, {3, 3}, {1, 1}, {1, 1}},
          ConvCase{t, images, 1, 4, 16, {16, 12}, {4, 4}, {2, 2}, {0, 2}}.all_channels_last(),
          ConvCase{t, some, 1, 5, 40, {13, 11}, {2, 4}, {1, 4}}.all_channels_last(),
          // [channels of the images, images]: gradients of weights. The source's images are its second axis.
          ConvCase{t, 4, 1, some, 32, {40, 40}, {9, 9}, {1, 1}, {0, 0}, {4, 4}}.by_weights(),
          ConvCase{t, 3, 1, some, 20, {19, 18}, {10, 8}, {1, 1}, {2, 2}, {2, 2}}.by_weights(),
          ConvCase{t, 6, 1, images, 8, {11, 9}, {9, 7}}.by_weights().all_channels_last(),
      };
      for (ConvCase c : cases) {
        c.x = DType::u8;
        c.check(images == 3);
        EXPECT_EQ(c.note.find("bands") != std::string::npos, t != DType::f32) << c.label();
      }
    }
  // Pictures in 16 bits too, if nothing is padded.
  for (int64_t outputs : {16, 64}) {
    ConvCase whole{DType::bf16, 2, 1, 4, outputs, {24, 24}, {4, 8}, {2, 4}, {1, 4}}, padded{DType::bf16, 2, 1, 3, outputs, {24, 24}, {3, 3}, {2, 2}};
    whole.check(), padded.check();
    EXPECT_NE(whole.note.find("bands"), std::string::npos) << whole.label();
    EXPECT_EQ(padded.note.find("bands"), std::string::npos) << padded.label();
  }
}

TEST_F(GpuConv, MultipliesInLowerPrecisionOnRequest) {
  Chip chip = test::CudaDevice::the().chip();
  chip.f32_products = Precision::tf32;
  for (ConvCase c : Cases{{DType::f32, 2, 1, 16, 20, {7, 9}, {3, 3}, {1, 1}, {1, 1}}, {DType::f32, 17, 1, 2, 66, {8, 8}, {8, 8}, {1, 1}, {1, 1}}}) {
    c = c.for_chip(chip);
    c.check();
    EXPECT_NE(make_conv(c, chip)->texts().size(), 0u);
    bool tf32 = false;
    for (const KernelText& text : make_conv(c, chip)->texts()) tf32 |= text.body.find("mma_tf32") != std::string::npos;
    EXPECT_TRUE(tf32);
  }
}

// Library proposals that are non-deterministic, narrow the factors, need too much memory, cannot be planned or fail to run are skipped.
TEST_F(GpuConv, UsesTheLibraryWhereItIsFaster) {
  Chip chip = test::CudaDevice::the().chip();
  if (!test::CudaDevice::the().cudnn()) GTEST_SKIP() << "cuDNN is not installed";
  chip.cudnn = true;
  for (DType t : types())
    for (Precision products : {Precision::fp32, Precision::tf32}) {
      const bool exact = t == DType::f32 && products == Precision::fp32;
      if (t != DType::f32 && products != Precision::fp32) continue;
      chip.f32_products = products;
      const ConvCase forward{t, 2, 1, 16, 24, {9, 8}, {3, 3}, {1, 2}, {1, 1}};
      const ConvCase weights{t, 17, 1, 3, 18, {9, 9}, {9, 9}, {1, 1}, {1, 1}}, strided{t, 16, 1, 2, 24, {9, 8}, {4, 4}, {1, 1}, {0, 0}, {2, 2}},
          dilated{t, 20, 1, 3, 16, {12, 10}, {6, 8}, {2, 1}, {0, 0}};
      Cases cases;
      if (t == DType::f32) cases = {forward};
      if (!exact)
        cases.insert(cases.end(),
                     {weights.by_weights(), strided.by_weights(), dilated.by_weights(), weights.all_channels_last().by_weights(), forward.all_channels_last()});
      for (ConvCase c : cases) {
        c = c.for_chip(chip);
        c.check();
        EXPECT_NE(c.note.find("cuDNN"), std::string::npos) << c.label();
        EXPECT_TRUE(test::tests_real_gpu() || c.note.ends_with(exact ? "engine 14" : "engine 13")) << c.label();
      }
      // Cases without fast library algorithms.
      ConvCase wide = weights.by_weights().for_chip(chip), narrow = ConvCase{t, 17, 1, 3, 8, {9, 9}, {9, 9}, {1, 1}, {1, 1}}.by_weights().for_chip(chip);
      wide.result = DType::f32;
      Cases own{narrow};
      if (t != DType::f32) own.push_back(wide);
      for (ConvCase c : own) {
        c.check();
        EXPECT_EQ(c.note.find("cuDNN"), std::string::npos) << c.label();
      }
    }
}

// Factors of 20 bits: a format with fewer would show.
TEST_F(GpuConv, MultipliesExactF32WithTheLibrary) {
  Chip chip = test::CudaDevice::the().chip();
  if (!test::CudaDevice::the().cudnn()) GTEST_SKIP() << "cuDNN is not installed";
  chip.cudnn = true;
  const bool real = test::tests_real_gpu();  // the simulated GPU is slow
  Cases cases{{DType::f32, 2, 1, 16, 24, {9, 8}, {3, 3}, {1, 1}, {1, 1}}, {DType::f32, 1, 1, 32, 16, {12, 9}, {5, 3}, {2, 1}, {0, 1}}};
  if (real)
    cases.insert(cases.end(), {{DType::f32, 8, 1, 64, 64, {56, 56}, {3, 3}, {1, 1}, {1, 1}},
                               {DType::f32, 8, 1, 256, 256, {14, 14}, {3, 3}, {1, 1}, {1, 1}},
                               {DType::f32, 8, 1, 128, 128, {28, 28}, {3, 3}, {2, 2}, {1, 1}}});
  for (ConvCase c : cases) {
    c = c.for_chip(chip);
    c.x_steps = ConvCase::plain(1, c.channels, c.source), c.w_steps = ConvCase::plain(1, c.channels, c.window),
    c.out_steps = ConvCase::plain(1, c.outputs, c.out);
    auto draw = [](size_t count, uint32_t seed) {
      std::vector<double> v(count);
      for (double& f : v) seed = seed * 1664525u + 1013904223u, f = 1 + double(seed >> 12) / double(1 << 20);
      return v;
    };
    const std::vector<double> a = draw(size_t(c.images * c.x_steps.first), 1), b = draw(size_t(c.outputs * c.w_steps.first), 2);
    const std::vector<std::byte> got = c.run(ConvCase::stored(DType::f32, a), ConvCase::stored(DType::f32, b), std::byte(0xa5));
    EXPECT_NE(c.note.find("cuDNN"), std::string::npos) << c.label();
    double worst = 0;
    for (int64_t o = 0; o < c.outputs; o += 7)
      for (int64_t p = 0; p < c.positions(); p += 3) {
        double sum = 0;
        for (int64_t t = 0; t < c.taps(); ++t) {
          const int64_t v = p / c.out[1] * c.stride[0] + t / c.window[1] - c.low[0], u = p % c.out[1] * c.stride[1] + t % c.window[1] - c.low[1];
          if (v < 0 || u < 0 || v >= c.source[0] || u >= c.source[1]) continue;
          for (int64_t i = 0; i < c.channels; ++i) sum += a[size_t((i * c.source[0] + v) * c.source[1] + u)] * b[size_t((o * c.channels + i) * c.taps() + t)];
        }
        float y = 0;
        std::memcpy(&y, got.data() + 4 * (o * c.positions() + p), 4);
        worst = std::max(worst, std::abs(double(y) - sum) / sum);
      }
    // Numbers with 10 bits would have errors of about 1e-5 of sums with terms of one sign; f32 rounding grows with the root of the length.
    EXPECT_LT(worst, 3e-6) << c.label();
  }
}

// A program with a convolution and its gradients, on numbers whose sums are exact.
struct ConvProgram {
  DType type = DType::bf16;
  Shape x, w;
  bool last = false;  // channels are the last axis of images and results
  Precision products = Precision::fp32;
  ConvOptions options = {};
  std::string dump = {};                                       // the kernels that run
  std::map<std::string, std::string> choices = {}, made = {};  // as given, and the final ones of convolutions

  std::vector<std::vector<std::byte>> run(const CudaOptions& cuda) {
    CudaBackend backend(cuda);
    backend.use_f32_products(products);
    backend.use_choices(choices);
    Graph g;
    Builder b(g);
    auto apart = [&](NodeId i) { return last ? b.permute(i, {0, 3, 1, 2}) : i; };
    auto put = [&](NodeId i) { return last ? b.permute(i, {0, 2, 3, 1}) : i; };
    const NodeId in = g.input({type, last ? Shape{x[0], x[2], x[3], x[1]} : x}, "x"), weights = g.input({type, w}, "w"),
                 y = put(b.conv(apart(in), weights, options)), cotangent = g.input(g.type(y), "cotangent");
    std::vector<NodeId> outputs = vector_jacobian(g, std::vector{y}, std::vector{cotangent}, std::vector{in, weights});
    outputs.push_back(y);
    CompileOptions compile(backend);
    std::vector<std::vector<std::byte>> results;
    {
      Executable program(g, {in, weights, cotangent}, outputs, compile);
      std::vector<const void*> from;
      std::vector<void*> to;
      std::vector<std::pair<std::byte*, int64_t>> memory;
      auto place = [&](const Type& t) { return memory.emplace_back(backend.allocate(t.bytes()), t.bytes()).first; };
      for (const Type& t : program.input_types()) {
        const auto bytes = ConvCase::stored(t.dtype, ConvCase::draw(size_t(t.shape.numel()), uint32_t(from.size() + 3)));
        std::byte* there = place(t);
        backend.upload(there, bytes.data(), t.bytes());
        from.push_back(there);
      }
      for (const Type& t : program.output_types()) to.push_back(place(t));
      for (int i = 0; i < 3; ++i) program.run(from, to);  // the last two are recorded
      for (size_t i = 0; i < to.size(); ++i) {
        results.emplace_back(size_t(program.output_types()[i].bytes()));
        backend.download(results.back().data(), to[i], int64_t(results.back().size()));
      }
      dump = program.dump();
      int copies = 0;
      for (const auto& k : program.report().kernels) copies += k.name != "conv";
      // Our own kernels write only weight gradients directly to their place, the library's write everything.
      const bool library = cuda.cudnn && !(type == DType::f32 && products == Precision::fp32);
      EXPECT_EQ(copies, last && !library ? 2 : 0) << dump;
      made = backend.choices();
      std::erase_if(made, [](const auto& choice) { return !choice.first.starts_with("convolution "); });
      for (auto [p, bytes] : memory) backend.release(p, bytes);
    }
    return results;
  }
};

class ConvPrograms : public test::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    cache_.emplace("RIDGE_CACHE", folder_.path());
    if (test::tests_real_gpu()) return;
    simulator_.emplace(test::SimulatorOptions{.cudnn = true});
  }
  static CudaOptions library(bool wanted) {
    CudaOptions options;
    options.cudnn = wanted;
    if (!test::tests_real_gpu()) options.cubins.folder.clear();
    return options;
  }

  test::TempFolder folder_;
  std::optional<test::Variable> cache_;
  std::optional<test::Simulator> simulator_;
};

TEST_F(ConvPrograms, MatchWithAndWithoutTheLibrary) {
  for (DType t : types())
    for (Precision products : {Precision::fp32, Precision::tf32})
      for (int64_t stride : {1, 2})
        for (bool last : {false, true}) {
          if (t != DType::f32 && products != Precision::fp32) continue;
          ConvProgram p{t, {3, 16, 9, 8}, {24, 16, 3, 3}, last, products};
          p.options.stride = {stride, stride}, p.options.padding_low = p.options.padding_high = {1, 1};
          const auto own = p.run(library(false));
          EXPECT_EQ(p.dump.find("engine"), std::string::npos) << p.dump;
          EXPECT_EQ(p.run(library(true)), own) << name(t) << " stride " << stride << (last ? ", channels last" : "");
          // Cases in which the library is faster.
          const bool exact = t == DType::f32 && products == Precision::fp32;
          const int wanted = exact ? !last : last || t == DType::f32 ? 3 : 1;
          int found = 0;
          for (size_t at = p.dump.find("engine"); at != std::string::npos; at = p.dump.find("engine", at + 1)) ++found;
          EXPECT_EQ(found, wanted) << p.dump;
        }
}

TEST_F(ConvPrograms, ContinueWithoutAFailingLibrary) {
  if (test::tests_real_gpu()) GTEST_SKIP() << "needs the simulated GPU";
  ConvProgram p{DType::bf16, {3, 16, 9, 8}, {24, 16, 3, 3}};
  p.options.padding_low = p.options.padding_high = {1, 1};
  const auto own = p.run(library(false));
  EXPECT_NE(p.dump.find("no cuDNN, which would be faster"), std::string::npos) << p.dump;
  const std::pair<const char*, const char*> faults[] = {{"cudnnCreate=1001", "[cudnnCreate]"},
                                                        {"cudnnBackendFinalize=3000", "[cudnnBackendFinalize] CUDNN_STATUS_SIMULATED (3000)"},
                                                        {"cudnnBackendGetAttribute=2000", "none of its 0 proposals"},
                                                        {"cudnnBackendExecute=5000", "none of its 8 proposals"}};
  for (auto [fault, words] : faults) {
    const test::Variable broken("FAKE_GPU", fault);
    EXPECT_EQ(p.run(library(true)), own) << fault;
    EXPECT_EQ(p.dump.find("engine"), std::string::npos) << p.dump;
    EXPECT_NE(p.dump.find(words), std::string::npos) << fault << "\n" << p.dump;
  }
  {
    const test::Variable old("SIMULATED_CUDNN", "8205");
    EXPECT_EQ(p.run(library(true)), own);
    EXPECT_NE(p.dump.find("is cuDNN 8.2, too old"), std::string::npos) << p.dump;
  }
  simulator_.reset();
  simulator_.emplace(test::SimulatorOptions{.cudnn = true, .cudnn_part = "heuristic"});
  EXPECT_EQ(p.run(library(true)), own);
  EXPECT_NE(p.dump.find("no cuDNN"), std::string::npos) << p.dump;
}

// A graph that runs on several devices.
struct Formula {
  const Graph& g;
  std::vector<NodeId> inputs, outputs;

  std::vector<float> run(Backend& backend, const std::vector<std::vector<std::byte>>& data, std::string& dump) const {
    Executable program(g, inputs, outputs, CompileOptions(backend));
    dump = program.dump();
    std::vector<std::pair<std::byte*, int64_t>> memory;
    std::vector<const void*> from;
    std::vector<void*> to;
    auto place = [&](const Type& t) { return memory.emplace_back(backend.allocate(t.bytes()), t.bytes()).first; };
    for (size_t i = 0; i < data.size(); ++i) {
      std::byte* there = place(program.input_types()[i]);
      backend.upload(there, data[i].data(), int64_t(data[i].size()));
      from.push_back(there);
    }
    for (const Type& t : program.output_types()) to.push_back(place(t));
    program.run(from, to);
    std::vector<float> all;
    for (size_t i = 0; i < to.size(); ++i) {
      std::vector<float> values(size_t(program.output_types()[i].shape.numel()));
      backend.download(values.data(), to[i], program.output_types()[i].bytes());
      all.insert(all.end(), values.begin(), values.end());
    }
    for (auto [p, size] : memory) backend.release(p, size);
    return all;
  }
};

// Pictures are neither converted nor scaled before their first layer: its kernels read the bytes, for the result and for the weights' gradient.
TEST_F(ConvPrograms, ReadPicturesAsBytes) {
  for (const DType type : {DType::f32, DType::bf16}) {
    Graph g;
    Builder b(g);
    ConvOptions options;
    options.stride = {4, 4};
    const NodeId bytes = g.input({DType::u8, {3, 4, 20, 20}}, "bytes"), w = g.input({DType::f32, {32, 4, 8, 8}}, "w");
    const NodeId y = b.conv(b.binary(Op::mul, b.cast(bytes, DType::f32), 1.0 / 255), w, options), cotangent = g.input(g.type(y), "cotangent");
    std::vector<NodeId> outputs = vector_jacobian(g, std::vector{y}, std::vector{cotangent}, std::vector{w});
    outputs.push_back(y);
    if (type == DType::bf16) outputs = autocast(g, outputs, type);
    std::vector<std::vector<std::byte>> data = {ConvCase::stored(DType::u8, ConvCase::draw_bytes(3 * 4 * 400, 1)),
                                                ConvCase::stored(DType::f32, ConvCase::draw(32 * 4 * 64, 2)),
                                                ConvCase::stored(DType::f32, ConvCase::draw(size_t(g.shape(y).numel()), 3))};
    const Formula formula{g, {bytes, w, cotangent}, outputs};
    std::string on_gpu, on_cpu;
    CudaBackend backend{CudaOptions()};
    const std::vector<float> got = formula.run(backend, data, on_gpu), want = formula.run(default_backend(), data, on_cpu);
    ASSERT_EQ(got.size(), want.size());
    float largest = 0;
    for (float v : want) largest = std::max(largest, std::abs(v));
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], (type == DType::bf16 ? 1e-2f : 1e-5f) * largest) << i;
    int reads = 0;
    for (size_t at = 0; (at = on_gpu.find(":u8[", at)) != on_gpu.npos; ++at) {
      const std::string line = on_gpu.substr(on_gpu.rfind('\n', at) + 1, 20);
      EXPECT_NE(line.find(" conv "), line.npos) << line;
      ++reads;
    }
    EXPECT_EQ(reads, 2) << on_gpu;
  }
}

// Inside a loop convolutions run as outside of it: here of pictures that every step changes, scaled by a number that the body gets from outside.
TEST_F(ConvPrograms, ReadPicturesAsBytesInLoops) {
  for (const DType type : {DType::f32, DType::bf16}) {
    Graph g;
    Builder b(g);
    const Shape picture = {3, 4, 40, 40};
    const NodeId first = g.input({DType::u8, picture}, "first"), w = g.input({DType::f32, {32, 4, 8, 8}}, "w"), scale = b.full({1, 1, 1, 1}, DType::f32, 0.25);
    auto body = std::make_shared<ScanBody>();
    Builder s(body->graph);
    const NodeId seen = body->graph.input({DType::u8, picture}, "seen");
    body->constant_in = {body->graph.input(g.type(w), "w"), body->graph.input(g.type(scale), "scale")};
    const NodeId y = s.conv(s.binary(Op::mul, s.cast(seen, DType::f32), s.expand(body->constant_in[1], picture)), body->constant_in[0], {.stride = {4, 4}});
    const NodeId positive = s.binary(Op::greater, s.sum(y, std::array<int64_t, 3>{1, 2, 3}), 0.0);
    body->carry_in = {seen}, body->step_out = {y};
    body->carry_out = {s.select(s.expand(s.reshape(positive, {3, 1, 1, 1}), picture), s.permute(seen, {0, 1, 3, 2}), s.permute(seen, {0, 1, 2, 3}))};
    std::vector<NodeId> outputs = scan(g, body, {&first, 1}, {}, std::array<NodeId, 2>{w, scale}, 3).outputs;
    if (type == DType::bf16) outputs = autocast(g, outputs, type);
    const std::vector<std::vector<std::byte>> data = {ConvCase::stored(DType::u8, ConvCase::draw_bytes(3 * 4 * 1600, 1)),
                                                      ConvCase::stored(DType::f32, ConvCase::draw(32 * 4 * 64, 2))};
    const Formula formula{g, {first, w}, outputs};
    std::string on_gpu, on_cpu;
    CudaBackend backend{CudaOptions()};
    const std::vector<float> got = formula.run(backend, data, on_gpu), want = formula.run(default_backend(), data, on_cpu);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6f * std::abs(want[i])) << i;
    const std::string loop = on_gpu.substr(on_gpu.find("body of kernel"));
    EXPECT_NE(loop.find(type == DType::bf16 ? "bands" : "by positions"), loop.npos) << on_gpu;
    EXPECT_EQ(loop.find("matmul"), loop.npos) << on_gpu;
    for (const char* converted : {"bf16[3, 4, 40, 40]", "f32[3, 4, 40, 40]"}) EXPECT_EQ(loop.find(converted), loop.npos) << on_gpu;
  }
}

// A net of convolutions with biases: its result, and the gradients of its parameters.
struct ConvNet {
  struct Layer {
    int64_t outputs, window, stride, padding;
  };
  DType type = DType::bf16;
  bool bytes = false;  // the images are u8
  int64_t images = 3, size = 12;
  std::vector<Layer> layers = {{32, 3, 1, 1}, {48, 3, 2, 1}, {32, 3, 1, 1}};
  bool saves = false;     // backward is known to follow forward, which may save what it computed
  std::string dump = {};  // the kernels that run

  Executable compile(Backend& backend, const char* passes) {
    Graph g;
    Builder b(g);
    int64_t channels = bytes ? 4 : 16;
    std::vector<NodeId> inputs = {g.input({bytes ? DType::u8 : DType::f32, {images, channels, size, size}}, "images")};
    NodeId x = bytes ? b.mul(b.cast(inputs[0], DType::f32), 1.0 / 255) : b.unary(Op::relu, inputs[0]);
    auto parameter = [&](Shape shape) { return inputs.emplace_back(g.input({DType::f32, std::move(shape)}, "parameter")); };
    for (const Layer& l : layers) {
      ConvOptions o;
      o.stride = {l.stride, l.stride}, o.padding_low = o.padding_high = {l.padding, l.padding};
      const NodeId w = parameter({l.outputs, channels, l.window, l.window}), bias = parameter({l.outputs, 1, 1});
      x = b.unary(Op::relu, b.add(b.conv(x, w, o), bias));
      channels = l.outputs;
    }
    const int64_t features = b.shape(x).numel() / images;
    const NodeId w = parameter({5, features}), bias = parameter({5});
    x = b.linear(b.reshape(x, {images, features}), w, bias);
    std::vector<NodeId> outputs = gradients(g, b.sum(b.mul(x, x)), std::vector<NodeId>(inputs.begin() + 1, inputs.end()));
    outputs.push_back(x);
    if (type != DType::f32) outputs = autocast(g, outputs, type);
    CompileOptions options(backend);
    options.passes = passes;
    options.verify = true;
    if (saves) options.forward = {outputs.back()};
    Executable program(g, inputs, outputs, options);
    dump = program.dump();
    return program;
  }

  // All results, each relative to its largest value.
  std::vector<float> run(Backend& backend, const char* passes) {
    Executable program = compile(backend, passes);
    std::vector<std::pair<std::byte*, int64_t>> memory;
    std::vector<const void*> in;
    std::vector<void*> out;
    auto place = [&](const Type& t) { return memory.emplace_back(backend.allocate(t.bytes()), t.bytes()).first; };
    for (const Type& t : program.input_types()) {
      const size_t count = size_t(t.shape.numel());
      const auto data = ConvCase::stored(t.dtype, t.dtype == DType::u8 ? ConvCase::draw_bytes(count, 1) : ConvCase::draw(count, uint32_t(in.size())));
      std::byte* there = place(t);
      backend.upload(there, data.data(), t.bytes());
      in.push_back(there);
    }
    for (const Type& t : program.output_types()) out.push_back(place(t));
    program.run(in, out);
    dump = program.dump();
    std::vector<float> all;
    for (size_t i = 0; i < out.size(); ++i) {
      std::vector<float> values(size_t(program.output_types()[i].shape.numel()));
      backend.download(values.data(), out[i], program.output_types()[i].bytes());
      float largest = 1e-6f;
      for (float v : values) largest = std::max(largest, std::abs(v));
      for (float v : values) all.push_back(v / largest);
    }
    for (auto [p, size] : memory) backend.release(p, size);
    return all;
  }

  int count(const char* word) const {
    int found = 0;
    for (size_t at = dump.find(word); at != dump.npos; at = dump.find(word, at + 1)) ++found;
    return found;
  }
};

// With the library, all convolutions of a net but one that reads bytes run with channels last.
TEST_F(ConvPrograms, KeepChannelsLastBetweenConvolutions) {
  for (const DType type : {DType::bf16, DType::f32})
    for (const bool bytes : {false, true}) {
      ConvNet net{type, bytes};
      const std::vector<float> want = net.run(default_backend(), "");
      CudaBackend backend{library(true)};
      backend.use_f32_products(Precision::tf32);
      const std::vector<float> first = net.run(backend, "-layout");
      const std::string before = net.dump;
      const int engines = net.count("engine");
      const std::vector<float> last = net.run(backend, "");
      const std::string label = fmt::format("{}{}\n{}\n{}", name(type), bytes ? " from bytes" : "", before, net.dump);
      EXPECT_EQ(net.count("engine"), bytes ? 6 : 8) << label;
      EXPECT_LE(engines, net.count("engine")) << label;
      ASSERT_EQ(last.size(), want.size());
      double difference = 0, change = 0;
      for (size_t i = 0; i < last.size(); ++i)
        difference = std::max(difference, std::abs(double(last[i] - want[i]))), change = std::max(change, std::abs(double(last[i] - first[i])));
      EXPECT_LT(change, 2e-2) << label;
      // The CPU scales sums of bytes, the GPU weights; and it does not round factors to tf32, so other elements are positive.
      EXPECT_LT(difference, bytes || type == DType::f32 ? 0.1 : 2e-2) << label;
    }
}

// The network of agents that see pictures: the same kernels, but none of the launches in which convolutions arranged images for themselves.
TEST(ConvPlans, KeepChannelsLastInTheNatureNetwork) {
  Chip chip = chip_for(9, 0);
  chip.cudnn = true;
  ConvNet net{DType::bf16, true, 256, 84, {{32, 8, 4, 0}, {64, 4, 2, 0}, {64, 3, 1, 0}}};
  auto plan = [&](const char* passes, int64_t& launches, int64_t& arena) {
    test::PlanBackend backend(chip);
    const Executable program = net.compile(backend, passes);
    int convolutions = 0;
    for (const auto& k : program.report().kernels) convolutions += k.name == "conv";
    EXPECT_EQ(convolutions, 8);
    launches = backend.launches().at(0), arena = program.report().arena_bytes;
    return program.report().kernels.size();
  };
  int64_t launches[2], arena[2];
  const size_t first = plan("-layout", launches[0], arena[0]), last = plan("", launches[1], arena[1]);
  EXPECT_LE(last, first);
  EXPECT_LE(launches[1] + 8, launches[0]);
  EXPECT_LT(arena[1], arena[0]);
  // Images are [N, H, W, C] where convolutions read and write them, except the bytes.
  EXPECT_EQ(net.count("bf16[256, 32, 20, 20]"), 0) << net.dump;
  for (const char* images : {"bf16[256, 20, 20, 32]", "bf16[256, 9, 9, 64]", "bf16[256, 7, 7, 64]"}) EXPECT_GT(net.count(images), 2) << net.dump;
  net.saves = true;
  plan("", launches[0], arena[0]);
  // What a convolution read is kept and tells where a relu was positive: backward does not compute it again.
  for (size_t at = 0; (at = net.dump.find(" reduce[", at)) != net.dump.npos; ++at) {
    const std::string line = net.dump.substr(at, net.dump.find('\n', at) - at);
    const std::regex picture("->%[0-9]+:bf16\\[256, 20, 20, 32\\]");
    const auto pictures = std::distance(std::sregex_iterator(line.begin(), line.end(), picture), std::sregex_iterator());
    EXPECT_LE(pictures, 1) << line;
  }
}

// A checkpoint stores what actually ran for a convolution, and its choice is reused if possible.
TEST_F(ConvPrograms, StoreTheChosenKernel) {
  if (test::tests_real_gpu()) GTEST_SKIP() << "needs the simulated GPU";
  ConvProgram p{DType::bf16, {3, 16, 9, 8}, {24, 16, 3, 3}};
  p.options.padding_low = p.options.padding_high = {1, 1};
  p.run(library(false));
  ASSERT_EQ(p.made.size(), 1u);
  const auto own = p.made;
  EXPECT_EQ(own.begin()->second, "own");
  p.run(library(true));
  ASSERT_EQ(p.made.size(), 1u);
  EXPECT_EQ(p.made.begin()->first, own.begin()->first) << "so that a library that comes or goes is seen";
  EXPECT_EQ(p.made.begin()->second, "cuDNN 90100 6 13");
  auto given = [&](const char* value, const char* then, const char* runs) {
    p.choices = {{own.begin()->first, value}};
    p.run(library(true));
    EXPECT_EQ(p.made, (std::map<std::string, std::string>{{own.begin()->first, then}})) << value;
    EXPECT_NE(p.dump.find(runs), std::string::npos) << p.dump;
  };
  given("cuDNN 90100 7 14", "cuDNN 90100 7 14", "engine 14");
  given("cuDNN 90100 5 12", "cuDNN 90100 6 13", "engine 13");  // it fails to run
  given("cuDNN 90000 7 14", "cuDNN 90100 6 13", "engine 13");  // from another version of the library
  given("own", "own", "by the weights");
  const test::Variable broken("FAKE_GPU", "cudnnBackendExecute=5000");
  given("cuDNN 90100 6 13", "own", "none of its 8 proposals");
}

// A net's step keeps no windows and no padded or dilated copies: values are as large as its activations, and the data packed for a product stays below half the
// cache.
TEST(ConvPlans, KeepOnlyActivations) {
  const Shape xs = {64, 64, 56, 56}, ws = {128, 64, 3, 3};
  Graph g;
  Builder b(g);
  const NodeId x = g.input({DType::bf16, xs}, "x"), w = g.input({DType::bf16, ws}, "w");
  ConvOptions o;
  o.stride = {2, 2}, o.padding_low = o.padding_high = {1, 1};
  const NodeId y = b.unary(Op::relu, b.conv(b.unary(Op::relu, x), w, o)), cotangent = g.input(g.type(y), "cotangent");
  std::vector<NodeId> outputs = vector_jacobian(g, std::vector{y}, std::vector{cotangent}, std::vector{x, w});
  outputs[1] = keep_wide(g, b.cast(outputs[1], DType::f32));
  EXPECT_EQ(g.dtype(outputs[1]), DType::f32);
  outputs.push_back(y);
  const Chip chip = chip_for(9, 0);
  test::PlanBackend backend(chip);
  CompileOptions options(default_backend());
  const int64_t host = Executable(g, {x, w, cotangent}, outputs, options).report().arena_bytes;
  options.backend = &backend;
  const Executable plan(g, {x, w, cotangent}, outputs, options);
  int convolutions = 0;
  for (const auto& k : plan.report().kernels) convolutions += k.name == "conv";
  EXPECT_EQ(convolutions, 3);
  EXPECT_EQ(plan.dump().find("pad"), std::string::npos);
  EXPECT_EQ(plan.dump().find("matmul"), std::string::npos);
  EXPECT_LE(plan.report().workspace_bytes, chip.l2_bytes / 2 + (int64_t(17) << 20));
  const int64_t activations = g.type(x).bytes() + g.type(y).bytes();
  EXPECT_LT(plan.report().arena_bytes, 2 * activations);
  EXPECT_LT(host, 2 * activations) << "the CPU keeps no copies either";
}

// Nodes without a kernel are in the plan.
TEST(ConvPlans, ReportDecompositions) {
  Graph g;
  Builder b(g);
  const NodeId large = g.input({DType::f32, {1, 1, 32768, 32768}}, "large"), small = g.input({DType::f32, {1, 1, 32, 32}}, "small"),
               w = g.input({DType::f32, {1, 1, 3, 3}}, "w");
  test::PlanBackend backend(chip_for(9, 0));
  CompileOptions options(backend);
  const auto refusals = [&](NodeId out, std::vector<NodeId> in) { return Executable(g, in, {out}, options).report().refusals; };
  const std::vector<std::string> said = refusals(b.conv(large, w, {}), {large, w});
  EXPECT_TRUE(std::any_of(said.begin(), said.end(), [](const std::string& s) {
    return s.find("conv f32[1, 1, 32768, 32768]: cuda has no kernel for it") == 0;
  })) << (said.empty() ? "nothing" : said[0]);
  EXPECT_TRUE(refusals(b.conv(small, w, {}), {small, w}).empty());
}

// The body of a loop too: it reads bytes before it is known that no kernel does.
TEST(ConvPlans, DecomposeConvolutionsOfBytesInLoops) {
  Graph g;
  Builder b(g);
  const Shape clip = {2, 0, 5, 6};  // no channels, so nothing to sum
  const NodeId first = g.input({DType::u8, clip}, "first"), w = g.input({DType::f32, {3, 0, 2, 2}}, "w");
  auto body = std::make_shared<ScanBody>();
  Builder s(body->graph);
  const NodeId seen = body->graph.input({DType::u8, clip}, "seen");
  body->constant_in = {body->graph.input(g.type(w), "w")};
  const NodeId y = s.conv(s.binary(Op::mul, s.cast(seen, DType::f32), 0.5), body->constant_in[0], {});
  const NodeId positive = s.binary(Op::greater, s.sum(y), 0.0);
  body->carry_in = {seen}, body->step_out = {y};
  body->carry_out = {s.select(s.expand(s.reshape(positive, {1, 1, 1, 1}), clip), seen, s.full(clip, DType::u8, 3))};
  const std::vector<NodeId> outputs = scan(g, body, {&first, 1}, {}, {&w, 1}, 3).outputs;
  test::PlanBackend backend(chip_for(9, 0));
  const std::string dump = Executable(g, {first, w}, outputs, CompileOptions(backend)).dump();
  EXPECT_NE(dump.find("matmul"), dump.npos) << dump;
}

// Kernels with 32-bit indices are not used for a view that reaches further.
TEST(ConvPlans, UseWideIndicesForLargeViews) {
  ConvCase c(DType::bf16, 64, 8, 1, 1, {1024, 1024}, {3, 3});
  c.x_steps = ConvCase::plain(8, 1, c.source), c.w_steps = ConvCase::plain(8, 1, c.window), c.out_steps = ConvCase::plain(8, 1, c.out);
  const Chip chip = chip_for(9, 0);
  EXPECT_NE(make_conv(c, chip)->note().find("narrow"), std::string::npos);
  c.x_steps.first = int64_t(1) << 26;  // for 64 channels
  EXPECT_EQ(make_conv(c, chip)->note().find("narrow"), std::string::npos);
  ConvCase forward(DType::bf16, 64, 1, 4, 32, {84, 84}, {8, 8}, {4, 4}), weights(DType::bf16, 4, 1, 64, 32, {84, 84}, {20, 20}, {1, 1}, {0, 0}, {4, 4});
  weights = weights.by_weights();
  for (ConvCase* bytes : {&forward, &weights}) {
    bytes->x = DType::u8, bytes->lay_out();
    EXPECT_NE(make_conv(*bytes, chip)->note().find("bands"), std::string::npos);
    (bytes == &forward ? bytes->x_steps.second : bytes->x_steps.first) = int64_t(1) << 29;  // between channels of an image
    EXPECT_EQ(make_conv(*bytes, chip)->note().find("bands"), std::string::npos);
  }
}

class ConvTexts : public test::NvrtcTest {};

TEST_F(ConvTexts, CompileForEveryChip) {
  std::vector<Job> jobs;
  const bool all = test::is_set("RIDGE_FULL");
  for (size_t i = 0; i < test::all_chips().size(); ++i) {
    const Chip& chip = test::all_chips()[i];
    for (DType t : {DType::bf16, DType::f32, DType::f16}) {
      if (!all && t != (i == 1 ? DType::f32 : i == 2 ? DType::f16 : DType::bf16)) continue;
      Cases cases{{t, 2, 140, 16, 70, {7, 9}, {3, 3}, {1, 1}, {1, 1}}, {t, 5, 1, 3, 90, {8, 9}, {6, 7}}, {t, 2, 5, 1, 1, {9, 8}, {3, 3}, {1, 1}, {1, 1}}};
      if (all || chip.wgmma())
        cases.push_back({t, 2, 1, 9, 18, {5, 4}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {2, 2}}), cases.push_back({t, 2, 3, 4, 2, {12, 11}, {10, 9}});
      for (const ConvCase& c : cases)
        for (KernelText& text : make_conv(c, chip)->texts()) {
          EXPECT_LE(text.shared, chip.shared_bytes) << text.entry << " on " << chip.target();
          if (std::none_of(jobs.begin(), jobs.end(), [&](const Job& j) { return j.target == chip.target() && j.text == text; }))
            jobs.push_back({std::move(text), chip.target()});
        }
    }
  }
  compile(jobs, all ? ".full" : "");
}

// The first layer of the network that sees pictures: no thread needs memory for what its registers do not hold.
TEST_F(ConvTexts, KeepBandsInRegisters) {
  std::vector<Job> jobs;
  for (const Chip& chip : test::all_chips()) {
    const DType t = chip.bf16() ? DType::bf16 : DType::f16;
    ConvCase forward{t, 2048, 1, 4, 32, {84, 84}, {8, 8}, {4, 4}}, weights{t, 4, 1, 2048, 32, {84, 84}, {20, 20}, {1, 1}, {0, 0}, {4, 4}};
    weights.result = DType::f32;
    for (ConvCase c : Cases{forward, forward.all_channels_last(), weights.by_weights()}) {
      c.x = DType::u8;
      c.lay_out();
      if (c.all_last) c.x_steps = ConvCase::plain(1, c.channels, c.source);
      if (c.exchanged) c.w_steps = {1, 0, 20 * 20 * 32, {20 * 32, 32}};
      for (KernelText& text : make_conv(c, chip)->texts()) {
        EXPECT_NE(text.entry.find("conv_band"), std::string::npos);
        EXPECT_LE(text.shared, chip.shared_bytes) << text.entry << " on " << chip.target();
        jobs.push_back({std::move(text), chip.target()});
      }
    }
  }
  const std::vector<test::Cubin::Use> uses = compile(jobs);
  for (size_t i = 0; i < uses.size(); ++i) EXPECT_EQ(uses[i].frame, 0) << jobs[i].text.entry << " on " << jobs[i].target;
}

}  // namespace
}  // namespace ridge::cuda
