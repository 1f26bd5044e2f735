// Laws of the GPU attention kernels: correct values for every option and shape, no stray writes, the same bits every time.
#include "backend/cuda/attention.h"
#include "support/attention_case.h"
#include "support/cuda_device.h"

namespace ridge::cuda {
namespace {

using namespace test::attention_case;

struct Case : test::AttentionCase {
  int multiprocessors = 0;      // number that kernels see; 0: the real one
  std::vector<std::byte> sums;  // of the gradients over batches and positions, dq's, then dk's and dv's; empty: not wanted

  std::unique_ptr<Kernel> kernel(bool backward) const {
    Chip chip = test::CudaDevice::the().chip();
    if (multiprocessors) chip.multiprocessors = multiprocessors;
    if (!backward || sums.empty()) return make_attention(d, backward, true, chip);
    const int64_t width = d.heads * d.dim;
    return make_hopper_attention_with_sums(d, {.columns = 3 * width, .first = {0, width, 2 * width}, .operands = 2, .written = 1}, chip);
  }

  void run(bool backward) {
    test::CudaDevice& device = test::CudaDevice::the();
    std::vector<DeviceMemory> memory;
    std::vector<Place> places;
    auto add = [&](const void* bytes, int64_t size, int64_t offset) {
      places.push_back({int32_t(memory.size()), offset});
      memory.push_back(device.memory(bytes, size));
    };
    const int64_t margin = kMargin * size_of(d.dtype);
    auto array = [&](const std::vector<std::byte>& x, int64_t offset) { add(x.data(), int64_t(x.size()), offset); };
    array(q, margin), array(k, margin), array(v, margin);
    if (d.mask != AttentionDesc::Mask::none) array(mask, 0);
    if (d.has_length) add(&length, 8, 0);
    if (d.dropout > 0) add(&seed, 8, 0), add(&step, 8, 0), add(&base, 8, 0);
    const size_t results = places.size();
    array(out, margin), array(lse, kMargin * 4);
    if (backward) array(dout, margin), array(dq, margin), array(dk, margin), array(dv, margin);
    const bool with_sums = backward && !sums.empty();
    if (with_sums) places.push_back(places[results + 3]), array(sums, 0);
    const std::unique_ptr<Kernel> kernel = this->kernel(backward);
    const std::vector<std::byte> work(size_t(kernel->workspace_bytes()), std::byte{0xff});  // NaN, to catch reads before writes
    memory.push_back(device.memory(work.data(), int64_t(work.size())));
    std::vector<DevicePointer> bases;
    for (const DeviceMemory& m : memory) bases.push_back(m.get());
    device.ask(kernel->texts());
    kernel->load(device);
    kernel->bind(places, {int32_t(memory.size()) - 1, 0}, {});
    device.enqueue(*kernel, bases);
    device.wait();
    auto back = [&](std::vector<std::byte>& x, size_t i) { x = device.read(memory[i], int64_t(x.size())); };
    if (!backward) back(out, results), back(lse, results + 1);
    if (backward) back(dq, results + 3), back(dk, results + 4), back(dv, results + 5);
    if (with_sums) back(sums, results + 6);
  }
};

void check(Case& c) {
  const double inner = c.d.dtype == DType::f32 ? 0 : c.d.dtype == DType::bf16 ? 0x1p-7 : 0x1p-10;
  test::check_attention(
      c, label(c), [&](bool backward) { c.run(backward); }, inner);
}

class GpuAttention : public test::CudaTest {};

bool all_of_them() { return test::tests_real_gpu() || test::is_set("RIDGE_FULL"); }

// Options chosen so that each is combined with each, lengths and widths around tile boundaries. The simulated GPU compiles slowly: it runs only the first few
// unless all are requested.
TEST_F(GpuAttention, AnyShapeMatchesDouble) {
  struct Draw {
    DType dtype;
    int64_t queries, keys, dim;
    Heads heads;
    bool causal;
    Mask mask;
    int64_t length;
    double dropout;
    Layout layout;
    int multiprocessors = 0;
  };
  const Draw draws[] = {
      {DType::bf16, 70, 70, 64, {2, 2}, true, Mask::none, -1, 0, Layout::qkv_slices},
      {DType::bf16, 65, 68, 33, {4, 2}, true, Mask::boolean, -1, 0.3, Layout::feature_stride},
      {DType::f16, 33, 130, 80, {2, 1}, false, Mask::additive, 99, 0, Layout::heads_first},
      {DType::f32, 35, 71, 9, {4, 2}, true, Mask::additive, 50, 0.25, Layout::qkv_slices},
      {DType::bf16, 1, 100, 16, {4, 2}, true, Mask::none, 77, 0, Layout::heads_first},
      {DType::f32, 1, 300, 80, {2, 2}, true, Mask::additive, 290, 0.25, Layout::feature_stride},
      {DType::f32, 40, 33, 128, {1, 1}, true, Mask::none, -1, 0, Layout::heads_first},  // rows that attend to nothing
      {DType::f16, 130, 128, 32, {1, 1}, true, Mask::none, -1, 0.2, Layout::qkv_slices},
      {DType::bf16, 31, 7, 128, {6, 1}, false, Mask::boolean, -1, 0, Layout::qkv_slices},
      {DType::f32, 3, 3, 1, {1, 1}, true, Mask::none, 0, 0, Layout::heads_first},
      {DType::f16, 7, 65, 8, {6, 1}, true, Mask::boolean, 64, 0.5, Layout::feature_stride},
      {DType::bf16, 257, 257, 64, {4, 2}, true, Mask::none, -1, 0.1, Layout::qkv_slices},
      {DType::bf16, 256, 256, 64, {2, 2}, false, Mask::none, -1, 0, Layout::qkv_slices},
      {DType::bf16, 200, 333, 64, {4, 1}, true, Mask::none, -1, 0, Layout::heads_first},
      {DType::f16, 333, 333, 64, {2, 2}, true, Mask::none, -1, 0, Layout::qkv_slices},
      {DType::bf16, 300, 300, 128, {2, 1}, true, Mask::none, -1, 0, Layout::qkv_slices},
      {DType::bf16, 130, 190, 128, {2, 2}, false, Mask::none, -1, 0.2, Layout::qkv_slices},
      {DType::bf16, 256, 256, 64, {6, 6}, true, Mask::none, -1, 0.2, Layout::qkv_slices},
      {DType::bf16, 150, 161, 40, {2, 2}, true, Mask::none, -1, 0, Layout::qkv_slices},
      {DType::bf16, 700, 700, 64, {2, 1}, true, Mask::none, -1, 0, Layout::qkv_slices},
      {DType::f16, 300, 700, 48, {1, 1}, false, Mask::none, -1, 0.2, Layout::qkv_slices},
      {DType::f16, 77, 77, 96, {2, 2}, true, Mask::none, -1, 0, Layout::qkv_slices},
      {DType::bf16, 256, 320, 128, {2, 2}, true, Mask::none, -1, 0, Layout::heads_first},  // more keys than queries: tiles visible to all
      {DType::f16, 129, 700, 100, {2, 1}, true, Mask::none, -1, 0, Layout::heads_first},
      {DType::bf16, 320, 256, 72, {2, 2}, true, Mask::none, -1, 0, Layout::heads_first},
      {DType::bf16, 400, 400, 128, {4, 2}, true, Mask::none, -1, 0, Layout::qkv_slices, 2},  // more work than blocks: each does two
      {DType::bf16, 300, 520, 64, {4, 2}, true, Mask::none, -1, 0, Layout::heads_first, 2},
      {DType::bf16, 700, 700, 64, {2, 1}, true, Mask::none, -1, 0, Layout::qkv_slices, 2},
      {DType::bf16, 1024, 1024, 64, {2, 2}, true, Mask::none, -1, 0, Layout::qkv_slices, 2},
      {DType::f16, 270, 530, 48, {2, 2}, false, Mask::none, -1, 0, Layout::heads_first, 2},
  };
  // All texts are requested first, so that they are compiled in parallel.
  std::vector<Case> cases;
  std::vector<KernelText> texts;
  for (const Draw& x : draws) {
    const int count = int(cases.size()) + 1;
    if (count > 7 && !all_of_them()) break;
    Case c;
    c.d.batch = 2, c.d.heads = x.heads.heads, c.d.kv_heads = x.heads.kv_heads, c.d.queries = x.queries, c.d.keys = x.keys, c.d.dim = x.dim;
    c.d.dtype = x.dtype, c.d.scale = 1 / std::sqrt(double(x.dim)), c.d.causal = x.causal, c.d.mask = x.mask;
    c.d.has_length = x.length >= 0, c.length = x.length, c.d.dropout = x.dropout, c.d.stream = 3, c.base = count % 2 ? 8 : 5;
    c.multiprocessors = x.multiprocessors;
    c.make(x.layout, {count % 2 == 0, count % 3 == 0, count % 5 == 0, false});
    for (bool backward : {false, true})
      for (KernelText& text : c.kernel(backward)->texts()) texts.push_back(std::move(text));
    cases.push_back(std::move(c));
  }
  test::CudaDevice::the().ask(texts);
  for (Case& c : cases) {
    check(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(GpuAttention, EmptyShapes) {
  for (auto [batch, queries, keys] : {std::array<int64_t, 3>{0, 3, 3}, {1, 0, 5}, {2, 5, 0}, {1, 0, 0}}) {
    Case c;
    c.d = {.batch = batch, .heads = 2, .kv_heads = 1, .queries = queries, .keys = keys, .dim = 9};
    c.d.causal = true, c.d.mask = Mask::additive, c.d.has_length = true, c.length = keys, c.d.dropout = 0.25;  // shares another test's texts
    c.make(Layout::heads_first);
    check(c);
    if (HasFatalFailure()) return;
  }
}

// One query per head takes one launch while the keys fit into a block's registers, and then two. The simulated GPU runs a sample.
TEST_F(GpuAttention, OneQueryIsOneLaunch) {
  struct Draw {
    DType dtype;
    int64_t keys, dim, length;
    Heads heads;
    Mask mask;
    double dropout;
    int launches;
  };
  const Draw draws[] = {
      {DType::bf16, 320, 64, 257, {3, 3}, Mask::none, 0, 1},     {DType::f16, 33, 40, -1, {4, 2}, Mask::boolean, 0.25, 1},
      {DType::bf16, 256, 128, 1, {2, 1}, Mask::additive, 0, 1},  {DType::bf16, 257, 128, 200, {2, 2}, Mask::none, 0, 2},
      {DType::f16, 7, 8, 0, {1, 1}, Mask::none, 0, 1},           {DType::bf16, 512, 64, 512, {2, 2}, Mask::none, 0.5, 1},
      {DType::f16, 2048, 16, 1999, {1, 1}, Mask::boolean, 0, 1}, {DType::bf16, 513, 64, 513, {2, 2}, Mask::none, 0, 2},
  };
  int count = 0;
  for (const Draw& x : draws) {
    if (++count > 5 && !all_of_them()) break;
    Case c;
    c.d.batch = 2, c.d.heads = x.heads.heads, c.d.kv_heads = x.heads.kv_heads, c.d.queries = 1, c.d.keys = x.keys, c.d.dim = x.dim, c.d.dtype = x.dtype;
    c.d.scale = 1 / std::sqrt(double(x.dim)), c.d.causal = true, c.d.mask = x.mask, c.d.dropout = x.dropout, c.d.stream = 3, c.base = 5;
    c.d.has_length = x.length >= 0, c.length = x.length;
    c.make(Layout::heads_first, {false, false, false, false});
    EXPECT_EQ(c.kernel(false)->launches(), x.launches) << x.keys << " keys of " << x.dim;
    check(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(GpuAttention, IsDeterministic) {
  Case c;
  c.d = {.batch = 2, .heads = 2, .kv_heads = 2, .queries = 140, .keys = 140, .dim = 64, .dtype = DType::bf16};
  c.d.causal = true, c.d.scale = 0.125;
  c.make(Layout::qkv_slices);
  Case first = c;
  first.run(false), first.run(true);
  Case again = c;
  again.run(false), again.run(true);
  EXPECT_TRUE(first.out == again.out && first.lse == again.lse && first.dq == again.dq && first.dk == again.dk && first.dv == again.dv);
}

// The sums are of the rounded gradients. Hopper's kernels are not simulated.
TEST_F(GpuAttention, GradientsWithTheirSums) {
  Case c;
  c.d = {.batch = 3, .heads = 2, .kv_heads = 2, .queries = 300, .keys = 300, .dim = 64, .dtype = DType::bf16};
  c.d.causal = true, c.d.scale = 0.125, c.multiprocessors = 2;
  c.make(Layout::qkv_slices);
  const int64_t width = c.d.heads * c.d.dim;
  c.sums.resize(size_t(3 * width) * 4);
  ASSERT_TRUE(c.kernel(true));
  EXPECT_EQ(c.kernel(true)->launches(), 3);
  Case other = c;
  other.d.dk[2] += 8;  // not a column of the same matrix
  EXPECT_FALSE(other.kernel(true));
  if (!test::tests_real_gpu() || !test::CudaDevice::the().chip().wgmma()) return;
  check(c);
  const std::pair<const std::vector<std::byte>*, const AttentionDesc::Strides*> parts[] = {{&c.dq, &c.d.dq}, {&c.dk, &c.d.dk}, {&c.dv, &c.d.dv}};
  for (int64_t column = 0; column < 3 * width; ++column) {
    const auto& [bytes, strides] = parts[column / width];
    double sum = 0;
    for (int64_t b = 0; b < c.d.batch; ++b)
      for (int64_t i = 0; i < c.d.queries; ++i) sum += c.at(*bytes, *strides, b, column % width / 64, i, column % 64);
    EXPECT_NEAR(load(DType::f32, c.sums, column), sum, 1e-4 * (1 + std::abs(sum))) << column;
  }
}

// How queries are distributed to blocks does not affect the bits.
TEST_F(GpuAttention, BitsDoNotDependOnTheWorkspace) {
  Case c;
  c.d = {.batch = 2, .heads = 2, .kv_heads = 2, .queries = 140, .keys = 140, .dim = 64, .dtype = DType::bf16};
  if (test::tests_real_gpu()) c.d.heads = c.d.kv_heads = 40, c.d.queries = c.d.keys = 1024, c.d.dim = 128;
  c.d.causal = true, c.d.scale = 0.125;
  c.make(Layout::qkv_slices);
  Case little = c, much = c;
  little.multiprocessors = 2, much.multiprocessors = 100000;
  for (Case* x : {&c, &little, &much}) x->run(false);
  EXPECT_TRUE(c.out == little.out && c.lse == little.lse);
  EXPECT_TRUE(c.out == much.out && c.lse == much.lse);
}

TEST_F(GpuAttention, NanReachesTheOutput) {
  Case c;
  c.d = {.batch = 1, .heads = 1, .kv_heads = 1, .queries = 9, .keys = 9, .dim = 64, .dtype = DType::bf16};
  c.d.causal = true;
  c.make(Layout::heads_first);
  store(DType::bf16, c.q, Case::kMargin + 2 * 64 + 3, NAN);
  c.run(false);
  for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(std::isnan(c.at(c.out, c.d.out, 0, 0, i, 0)), i == 2);
}

TEST(GpuAttentionChoice, WideHeadsAndDoublesAreDecomposed) {
  EXPECT_TRUE(has_attention({.heads = 12, .kv_heads = 12, .queries = 1024, .keys = 1024, .dim = 128, .dtype = DType::f16}));
  EXPECT_FALSE(has_attention({.queries = 4, .keys = 4, .dim = 129, .dtype = DType::bf16}));
  EXPECT_FALSE(has_attention({.queries = 4, .keys = 4, .dim = 64, .dtype = DType::f64}));
}

}  // namespace
}  // namespace ridge::cuda
