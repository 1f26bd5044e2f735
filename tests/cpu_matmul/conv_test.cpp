// Convolution as an implicit product: every tier against sums in double precision, for every kind of window, layout and storage type.
#include "backend/cpu/conv.h"

#include <fmt/ranges.h>

#include <cmath>

#include "backend/cpu/backend.h"
#include "compile/program.h"
#include "graph/builder.h"
#include "matmul_case.h"
#include "runtime/executable.h"
#include "support/rounds.h"
#include "threads/thread_team.h"

namespace ridge::cpu {
namespace {

using Axes = ConvDesc::Axes;

int64_t reach(const ConvDesc::Steps& s, int64_t first, int64_t groups, int64_t second, const Axes& axes) {
  int64_t end = 1;
  for (auto [step, size] : {std::pair{s.first, first}, {s.group, groups}, {s.second, second}, {s.axes[0], axes[0]}, {s.axes[1], axes[1]}})
    end += step * (size - 1);
  return end;
}

// Steps of [first, group, second, axes], or with the channels last [first, axes, group, second].
ConvDesc::Steps steps_of(int64_t groups, int64_t second, const Axes& axes, bool last, bool weights = false, int64_t first = 1) {
  ConvDesc::Steps s;
  if (last) {
    s.second = 1, s.group = second, s.axes[1] = second * (weights ? 1 : groups), s.axes[0] = s.axes[1] * axes[1], s.first = s.axes[0] * axes[0];
  } else {
    s.axes[1] = 1, s.axes[0] = axes[1], s.second = axes[0] * axes[1], s.group = s.second * second, s.first = s.group * (weights ? 1 : groups);
  }
  if (weights) s.group = s.first * first;
  return s;
}

struct ConvCase : ConvDesc {
  bool epilogue = false;
  uint32_t seed = 1;

  ConvCase(DType type, int64_t n, int64_t g, int64_t c, int64_t o, Axes size, Axes taps, Axes step = {1, 1}, Axes padding = {0, 0}, Axes dilate = {1, 1},
           Axes gaps = {1, 1}) {
    x = w = result = type;
    images = n, groups = g, channels = c, outputs = o, source = size, window = taps, stride = step, low = padding, dilation = dilate, spread = gaps;
    for (size_t i : {0, 1}) out[i] = ((source[i] - 1) * spread[i] + 2 * low[i] - (window[i] - 1) * dilation[i]) / stride[i] + 1;
    lay_out(false, false);
  }
  ConvCase& lay_out(bool images_last, bool result_last) {
    x_steps = steps_of(groups, channels, source, images_last), w_steps = steps_of(groups, channels, window, false, true, outputs);
    out_steps = steps_of(groups, outputs, out, result_last);
    return *this;
  }
  ConvCase& types(DType of_x, DType of_w, DType of_result) {
    x = of_x, w = of_w, result = of_result;
    return *this;
  }
  ConvCase& with_epilogue() {
    epilogue = true;
    return *this;
  }

  std::string label() const {
    return fmt::format(
        "{} {} -> {}, {} images, {} groups, {} channels, {} outputs, {}x{} windows of {}x{}, stride {}x{}, low {}x{}, dilation {}x{}, spread {}x{}", name(x),
        name(w), name(result), images, groups, channels, outputs, window[0], window[1], source[0], source[1], stride[0], stride[1], low[0], low[1], dilation[0],
        dilation[1], spread[0], spread[1]);
  }

  struct Stored {
    std::vector<std::byte> bytes;
    std::vector<double> values;
  };
  static Stored draw(DType type, int64_t count, uint32_t seed) {
    std::mt19937 rng(seed);
    Stored s{std::vector<std::byte>(size_t(count * size_of(type))), {}};
    for (int64_t i = 0; i < count; ++i) {
      if (type == DType::u8) {
        s.bytes[size_t(i)] = std::byte(rng() % 256), s.values.push_back(double(uint8_t(s.bytes[size_t(i)])));
      } else {
        save(s.bytes, type, i, float(int(rng() % 2001) - 1000) / 1000);
        s.values.push_back(double(load(s.bytes, type, i)));
      }
    }
    return s;
  }

  // [image][group][output][position], and the sums of absolute products.
  std::vector<std::pair<double, double>> sums(const Stored& a, const Stored& b) const {
    std::vector<std::pair<double, double>> all;
    for (int64_t n = 0; n < images; ++n)
      for (int64_t g = 0; g < groups; ++g)
        for (int64_t o = 0; o < outputs; ++o)
          for (int64_t p = 0; p < positions(); ++p) {
            double sum = 0, size = 0;
            for (int64_t c = 0; c < channels; ++c)
              for (int64_t t = 0; t < taps(); ++t) {
                const int64_t y = p / out[1] * stride[0] + t / window[1] * dilation[0] - low[0],
                              z = p % out[1] * stride[1] + t % window[1] * dilation[1] - low[1];
                if (y < 0 || z < 0 || y % spread[0] || z % spread[1] || y / spread[0] >= source[0] || z / spread[1] >= source[1]) continue;
                const double l = a.values[size_t(n * x_steps.first + g * x_steps.group + c * x_steps.second + y / spread[0] * x_steps.axes[0] +
                                                 z / spread[1] * x_steps.axes[1])];
                const double r = b.values[size_t(g * w_steps.group + o * w_steps.first + c * w_steps.second + t / window[1] * w_steps.axes[0] +
                                                 t % window[1] * w_steps.axes[1])];
                sum += l * r, size += std::abs(l * r);
              }
            all.push_back({sum, size});
          }
    return all;
  }

  struct Log {
    const ConvCase* c;
    std::vector<float> sums;
    std::vector<int> seen;
  };
  static void collect(const void* context, Worker& worker, int64_t batch, int64_t row, int64_t rows, int64_t col, int64_t cols, const float* acc, int64_t ld) {
    Log& log = *static_cast<Log*>(const_cast<void*>(context));
    const ConvCase& c = *log.c;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) {
        const size_t at = size_t((batch * c.groups * c.outputs + row + i) * c.positions() + col + j);
        log.sums[at] = acc[i * ld + j], ++log.seen[at];
      }
    std::memset(worker.scratch, 0xCD, 128);
  }

  // The stored results in the order of sums().
  std::vector<float> run(IsaTier tier, const Stored& a, const Stored& b, Dealing deal) const {
    auto kernel = make_conv_for(*this, epilogue ? 128 : -1, tier);
    Log log{this, std::vector<float>(size_t(images * groups * outputs * positions())), std::vector<int>(size_t(images * groups * outputs * positions()))};
    if (epilogue) kernel->set_epilogue({collect, &log});
    const int64_t elements = reach(out_steps, images, groups, outputs, out);
    const size_t guard = 256;
    auto aligned = [](std::vector<std::byte>& v) { return v.data() + (64 - reinterpret_cast<uintptr_t>(v.data()) % 64) % 64; };
    std::vector<std::byte> to(size_t(elements * size_of(result)) + guard, std::byte{0xA5}),
        workspace(size_t(kernel->workspace_bytes()) + 64 + guard, std::byte{0xFF});
    std::vector<std::vector<std::byte>> scratch(size_t(deal.threads), std::vector<std::byte>(size_t(kernel->scratch_bytes()) + 64 + guard, std::byte{0xFF}));
    std::byte* bases[4] = {const_cast<std::byte*>(a.bytes.data()), const_cast<std::byte*>(b.bytes.data()), to.data(), aligned(workspace)};
    std::vector<Ref> refs = {{0, 0}, {1, 0}};
    if (!epilogue) refs.push_back({2, 0});
    std::vector<Task> tasks;
    kernel->bind(refs, {3, 0}, tasks);
    Fault fault;
    std::mt19937 rng(deal.seed);
    for (const Task& task : tasks) {
      EXPECT_GT(task.unit_ns, 0);
      std::vector<int64_t> units(size_t(task.units));
      for (size_t i = 0; i < units.size(); ++i) units[i] = int64_t(i);
      if (deal.seed) std::shuffle(units.begin(), units.end(), rng);
      for (int64_t u : units) {
        Worker worker;
        worker.id = int(rng() % uint32_t(deal.threads)), worker.bases = bases, worker.scratch = aligned(scratch[size_t(worker.id)]), worker.fault = &fault;
        task.run(task.args, u, u + 1, worker);
      }
    }
    auto untouched = [&](const std::byte* end, std::byte with) { return std::all_of(end, end + guard, [&](std::byte x) { return x == with; }); };
    EXPECT_TRUE(untouched(aligned(workspace) + kernel->workspace_bytes(), std::byte{0xFF})) << "workspace overrun";
    for (auto& s : scratch) EXPECT_TRUE(untouched(aligned(s) + kernel->scratch_bytes(), std::byte{0xFF})) << "scratch overrun";
    EXPECT_TRUE(untouched(to.data() + elements * size_of(result), std::byte{0xA5})) << "result overrun";
    if (epilogue) {
      for (int seen : log.seen) EXPECT_EQ(seen, 1) << "every sum reaches the epilogue once";
      return log.sums;
    }
    std::vector<float> values;
    for (int64_t n = 0; n < images; ++n)
      for (int64_t o = 0; o < groups * outputs; ++o)
        for (int64_t p = 0; p < positions(); ++p)
          values.push_back(load(to, result,
                                n * out_steps.first + o / outputs * out_steps.group + o % outputs * out_steps.second + p / out[1] * out_steps.axes[0] +
                                    p % out[1] * out_steps.axes[1]));
    return values;
  }

  void check() const {
    SCOPED_TRACE(label());
    const Stored a = draw(x, reach(x_steps, images, groups, channels, source), seed), b = draw(w, reach(w_steps, outputs, groups, channels, window), seed + 1);
    const auto truth = sums(a, b);
    const double step = result == DType::f32 || epilogue ? 0 : result == DType::bf16 ? 1.0 / 256 : 1.0 / 2048;
    for (IsaTier tier : tiers()) {
      SCOPED_TRACE(name(tier));
      const std::vector<float> got = run(tier, a, b, {});
      for (size_t i = 0; i < got.size(); ++i) {
        const double allowed = truth[i].second * 1e-6 + std::abs(truth[i].first) * step + 1e-30;
        if (!(std::abs(double(got[i]) - truth[i].first) <= allowed)) {
          ADD_FAILURE() << "element " << i << ": " << got[i] << " instead of " << truth[i].first;
          return;
        }
      }
      const std::vector<float> again = run(tier, a, b, {.threads = 3, .run = 1, .seed = 5});
      EXPECT_EQ(std::memcmp(got.data(), again.data(), got.size() * 4), 0) << "bits depend on who computes what";
    }
  }
};

using Cases = std::vector<ConvCase>;
constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

TEST(CpuConv, SumsWindowsOfEveryKind) {
  for (DType t : kTypes)
    for (ConvCase c : Cases{
             {t, 2, 1, 4, 32, {20, 24}, {8, 8}, {4, 4}},
             {t, 2, 1, 32, 64, {10, 11}, {4, 4}, {2, 2}},
             {t, 1, 1, 64, 65, {9, 9}, {3, 3}},
             {t, 3, 2, 5, 7, {7, 9}, {3, 2}, {1, 2}, {1, 0}},
             {t, 2, 3, 1, 17, {11, 6}, {3, 3}, {2, 1}, {2, 2}, {1, 2}},
             {t, 2, 1, 3, 9, {1, 31}, {1, 5}, {1, 3}, {0, 2}},
             {t, 1, 1, 6, 16, {9, 8}, {2, 3}, {1, 1}, {-1, -2}},  // negative padding cuts the image
         })
      for (bool last : {false, true}) {
        c.lay_out(last, !last).check();
        c.lay_out(last, last).with_epilogue().check();
        if (HasFailure()) return;
      }
}

// The gradient with respect to the images of a strided convolution: gaps between its inputs cost nothing, and some outputs meet no tap.
TEST(CpuConv, SpreadsTheInput) {
  for (DType t : kTypes)
    for (ConvCase c : Cases{
             {t, 2, 1, 12, 20, {9, 9}, {4, 4}, {1, 1}, {3, 3}, {1, 1}, {2, 2}},
             {t, 1, 1, 3, 8, {5, 4}, {2, 2}, {1, 1}, {1, 1}, {1, 1}, {3, 4}},
             {t, 1, 2, 2, 5, {4, 5}, {3, 3}, {2, 3}, {2, 2}, {2, 1}, {3, 2}},
             {t, 2, 1, 4, 6, {6, 5}, {3, 2}, {3, 2}, {0, 1}, {2, 2}, {2, 4}},
         }) {
      c.check(), c.with_epilogue().check();
      if (HasFailure()) return;
    }
}

// More taps than positions: the gradient with respect to the weights.
TEST(CpuConv, SumsOverManyTaps) {
  for (DType t : kTypes)
    for (ConvCase c : Cases{
             {t, 4, 1, 20, 32, {20, 24}, {5, 6}, {1, 1}, {0, 0}, {4, 4}},
             {t, 32, 1, 17, 20, {10, 11}, {5, 5}, {1, 1}, {0, 0}, {2, 2}},
             {t, 5, 2, 7, 6, {9, 8}, {7, 7}, {1, 1}, {1, 1}},
             {t, 3, 1, 40, 9, {4, 5}, {5, 5}, {2, 1}, {1, 2}, {1, 1}, {2, 1}},
             {t, 7, 1, 3, 16, {1, 19}, {1, 9}, {1, 2}, {0, 1}, {1, 2}},
             {t, 1, 1, 70, 33, {3, 3}, {3, 3}},
         })
      for (bool last : {false, true}) {
        EXPECT_TRUE(sums_over_taps(c)) << c.label();
        c.lay_out(false, last).check();
        c.with_epilogue().check();
        if (HasFailure()) return;
      }
}

TEST(CpuConv, ReadsBytes) {
  for (DType w : kTypes)
    for (ConvCase c : Cases{
             {DType::f32, 2, 1, 4, 32, {20, 24}, {8, 8}, {4, 4}},
             {DType::f32, 3, 1, 3, 16, {9, 11}, {3, 3}, {2, 1}, {1, 1}},
             {DType::f32, 4, 1, 20, 32, {20, 24}, {5, 6}, {1, 1}, {0, 0}, {4, 4}},
         })
      for (bool last : {false, true}) {
        c.types(DType::u8, w, DType::f32).lay_out(last, false).check();
        if (HasFailure()) return;
      }
}

TEST(CpuConv, MixesStorageTypes) {
  for (DType x : kTypes)
    for (DType w : kTypes)
      for (DType result : kTypes)
        for (ConvCase c : Cases{{x, 2, 1, 6, 20, {7, 8}, {3, 3}, {1, 1}, {1, 1}}, {x, 6, 1, 9, 20, {7, 8}, {6, 6}}}) {
          c.types(x, w, result).check();
          if (HasFailure()) return;
        }
}

// K longer than a block, stretches longer than a block, and images larger than a band.
TEST(CpuConv, SplitsDepthAndImages) {
  for (DType t : {DType::f32, DType::bf16})
    for (ConvCase c : Cases{
             {t, 1, 1, 100, 20, {5, 9}, {3, 3}, {1, 1}, {1, 1}},
             {t, 1, 1, 1100, 5, {3, 4}, {2, 1}, {1, 1}, {1, 0}},
             {t, 1, 1, 200, 8, {6, 7}, {5, 2}, {1, 1}, {2, 2}, {1, 3}},
             {t, 1, 1, 9, 5, {90, 140}, {3, 3}, {1, 1}, {1, 1}},
             {t, 40, 1, 3, 8, {6, 6}, {3, 3}},
             {t, 2, 1, 1, 5, {31, 100}, {30, 90}},
         }) {
      c.check();
      if (HasFailure()) return;
    }
}

TEST(CpuConv, SurvivesRandomShapes) {
  std::mt19937 rng(3);
  const auto pick = [&](int64_t from, int64_t to) { return from + int64_t(rng() % uint64_t(to - from + 1)); };
  for (int round = 0; round < test::rounds(80); ++round) {
    const DType t = kTypes[pick(0, 2)];
    ConvCase c(t, pick(1, 4), pick(1, 3), pick(1, 9), pick(1, 40), {1, 1}, {pick(1, 4), pick(1, 5)}, {pick(1, 3), pick(1, 3)}, {pick(-1, 3), pick(-1, 3)},
               {pick(1, 2), pick(1, 3)}, {pick(1, 3), pick(1, 3)});
    for (size_t i : {0, 1}) {
      while ((c.source[i] - 1) * c.spread[i] + 2 * c.low[i] < (c.window[i] - 1) * c.dilation[i]) ++c.source[i];
      c.source[i] += pick(0, 6);
      c.out[i] = ((c.source[i] - 1) * c.spread[i] + 2 * c.low[i] - (c.window[i] - 1) * c.dilation[i]) / c.stride[i] + 1;
    }
    c.seed = uint32_t(round) + 10, c.epilogue = pick(0, 2) == 0;
    c.lay_out(pick(0, 1), pick(0, 1)).check();
    if (HasFailure()) return;
  }
}

// ---- in programs

struct ConvProgram {
  Graph graph;
  Builder b{graph};
  std::vector<NodeId> inputs;
  ThreadTeam team{TeamOptions{.threads = 2}};
  CpuBackend backend{team};

  NodeId input(DType type, Shape shape) { return inputs.emplace_back(graph.input({type, shape}, fmt::format("x{}", inputs.size()))); }
  std::vector<std::string> kernels(std::vector<NodeId> outputs) {
    const Executable e(graph, inputs, std::move(outputs), CompileOptions(backend));
    std::vector<std::string> names;
    for (const auto& k : e.report().kernels) names.push_back(k.name);
    said = e.report().refusals;
    arena_bytes = e.report().arena_bytes;
    return names;
  }
  std::vector<std::string> said;
  int64_t arena_bytes = 0;
};

TEST(CpuConvPrograms, TakeBytesScaleBiasAndReluIntoOneKernel) {
  for (bool divide : {false, true})
    for (DType t : {DType::f32, DType::bf16}) {
      ConvProgram p;
      const NodeId bytes = p.input(DType::u8, {8, 4, 36, 36}), w = p.input(t, {32, 4, 8, 8}), bias = p.input(t, {32, 1, 1});
      const NodeId wide = p.b.cast(bytes, DType::f32), x = p.b.cast(divide ? p.b.div(wide, 255.0) : p.b.mul(wide, 1.0 / 255), t);
      const NodeId y = p.b.unary(Op::relu, p.b.add(p.b.conv(x, w, {.stride = {4, 4}}), bias));
      const std::vector<std::string> names = p.kernels({y});
      ASSERT_EQ(names.size(), 1u) << fmt::format("{}", fmt::join(names, ", "));
      EXPECT_EQ(names[0].find("conv+"), 0u) << names[0];
      EXPECT_LE(p.arena_bytes, 4 * 8 * 8 * 32 * 4 + 4096) << "the arena holds the packed weights, not the images";
    }
}

TEST(CpuConvPrograms, SayWhichConvolutionsAreDecomposed) {
  ConvProgram p;
  const NodeId x = p.input(DType::f32, {2, 8, 9, 9}), w = p.input(DType::f32, {8, 1, 3, 3});
  EXPECT_EQ(std::ranges::count_if(p.kernels({p.b.conv(x, w, {.groups = 8})}), [](const auto& k) { return k.find("conv") == 0; }), 0);
  EXPECT_TRUE(std::ranges::any_of(p.said, [](const auto& s) { return s.find("conv f32[2, 8, 9, 9]: cpu has no kernel for it") == 0; }));
}

}  // namespace
}  // namespace ridge::cpu
