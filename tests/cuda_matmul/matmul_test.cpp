// Products without an epilogue, with our own kernel and the library.
#include <set>

#include "product.h"

namespace ridge::cuda {
namespace {

class CudaMatmul : public test::CudaTest {
 protected:
  void own(const cpu::MatmulDesc& d, uint32_t seed = 1) {
    const MatmulCase c(d, seed);
    Products products(false);
    c.compare(product(c, products), c.double_loop());
  }
  // Runs the library, then our own kernel.
  void both(const cpu::MatmulDesc& d, uint32_t seed = 1) {
    own(d, seed);
    const MatmulCase c(d, seed);
    Products products(true);
    std::string note;
    c.compare(product(c, products, &note), c.double_loop());
    EXPECT_NE(note.find("cublasLt"), std::string::npos) << note;
  }
};

cpu::MatmulDesc typed(cpu::MatmulDesc d, DType a, DType b, DType c) {
  d.a_type = a, d.b_type = b, d.c_type = c;
  return d;
}

TEST_F(CudaMatmul, OddShapes) {
  for (const auto& s : {std::array<int64_t, 3>{0, 5, 7}, {5, 0, 7}, {5, 7, 0}, {1, 1, 1}, {1, 65, 33}, {67, 1, 16}, {64, 64, 16}, {65, 63, 17}, {3, 130, 31}}) {
    SCOPED_TRACE(testing::Message() << s[0] << "x" << s[1] << "x" << s[2]);
    own(plain(s[0], s[1], s[2]));
    own(typed(plain(s[0], s[1], s[2]), DType::bf16, DType::bf16, DType::bf16));
  }
}

TEST_F(CudaMatmul, EveryTransposition) {
  for (int form = 0; form < 8; ++form) {
    SCOPED_TRACE(testing::Message() << "form " << form);
    const cpu::MatmulDesc d = plain(70, 45, 37, form & 1, form & 2, form & 4, form % 3);
    both(d);
    both(typed(d, DType::bf16, DType::bf16, DType::f32));
  }
}

// Rows whose length is a multiple of 8 elements are loaded 16 bytes at a time.
TEST_F(CudaMatmul, AlignedRowsOfHalves) {
  for (int form = 0; form < 4; ++form)
    for (DType t : {DType::bf16, DType::f16}) {
      SCOPED_TRACE(testing::Message() << name(t) << " form " << form);
      both(typed(plain(72, 136, 80, form & 1, form & 2), t, t, t));
    }
}

TEST_F(CudaMatmul, AnyTypesSumInFloat) {
  const DType types[] = {DType::f32, DType::bf16, DType::f16};
  for (DType a : types)
    for (DType b : types) {
      SCOPED_TRACE(testing::Message() << name(a) << " " << name(b));
      const DType c = a == DType::f32 ? b : DType::f32;
      own(typed(plain(37, 45, 70, true), a, b, c));
    }
}

TEST_F(CudaMatmul, ManyTilesAndDeepSums) {
  own(plain(130, 70, 1100));
  own(typed(plain(700, 600, 40), DType::bf16, DType::bf16, DType::f32));  // large tiles
  own(typed(plain(33, 40, 2100, true, false), DType::bf16, DType::bf16, DType::f32));
}

TEST_F(CudaMatmul, BatchesBroadcastAndSplitHeads) {
  // [batch][head] over packed qkv rows: scores = q kT, heads interleaved in memory.
  const int64_t batch = 3, heads = 4, time = 19, width = 8, row = 3 * heads * width;
  cpu::MatmulDesc d;
  d.batch = {{batch, time * row, time * row, heads * time * time}, {heads, width, width, time * time}};
  d.m = {{time, row, 0, time}}, d.n = {{time, 0, row, 1}}, d.k = {{width, 1, 1, 0}};
  both(d);
  // The result merged back: C rows strided by heads.
  cpu::MatmulDesc o;
  o.batch = {{batch, heads * time * time, time * row, time * heads * width}, {heads, time * time, width, width}};
  o.m = {{time, time, 0, heads * width}}, o.n = {{width, 0, 1, 1}}, o.k = {{time, 1, row, 0}};
  both(o);
  for (int shared = 0; shared < 3; ++shared) {
    cpu::MatmulDesc e = plain(45, 37, 29);
    e.batch = {{5, shared & 1 ? 0 : 45 * 29, shared & 2 ? 0 : 37 * 29, 45 * 37}, {1, 0, 7, 0}};
    both(e);
  }
}

// y[b, co, oh, ow] = sum over (ci, kh, kw) of w[co, ci, kh, kw] * x[b, ci, oh * s + kh * d, ow * s + kw * d]
TEST_F(CudaMatmul, ConvolutionWindowsNeedNoCopy) {
  const int64_t images = 2, ci = 3, co = 17, in = 15, kernel = 3, stride = 2, dilation = 2, out = (in - dilation * (kernel - 1) - 1) / stride + 1;
  cpu::MatmulDesc d;
  d.batch = {{images, 0, ci * in * in, co * out * out}};
  d.m = {{co, ci * kernel * kernel, 0, out * out}};
  d.n = {{out, 0, in * stride, out}, {out, 0, stride, 1}};
  d.k = {{ci, kernel * kernel, in * in, 0}, {kernel, kernel, in * dilation, 0}, {kernel, 1, dilation, 0}};
  own(d);
  own(typed(d, DType::bf16, DType::bf16, DType::bf16));
  cpu::MatmulDesc g;  // the weight gradient sums over images and windows
  g.m = {{co, out * out, 0, ci * kernel * kernel}};
  g.n = {{ci, 0, in * in, kernel * kernel}, {kernel, 0, in * dilation, kernel}, {kernel, 0, dilation, 1}};
  g.k = {{images, co * out * out, ci * in * in, 0}, {out, out, in * stride, 0}, {out, 1, stride, 0}};
  own(g);
}

TEST_F(CudaMatmul, ZeroNegativeAndOverlappingStrides) {
  cpu::MatmulDesc d = plain(40, 43, 41);
  d.m[0].a = -41, d.k[0].b = -43;  // flipped rows
  own(d);
  d = plain(40, 43, 41);
  d.n[0].b = -1, d.n[0].c = -1, d.k[0].a = -1;  // flipped columns
  own(d);
  d = plain(40, 43, 41);
  d.m[0].a = 1, d.n[0].b = 0;  // sliding windows, a repeated column
  own(d);
  d = plain(2, 40, 41);
  d.n[0].c = 3, d.m[0].c = 1;  // interleaved C
  own(d);
}

// The library leaves most of the chip idle there; our own kernel splits the depth.
TEST_F(CudaMatmul, SmallResultsOfDeepSumsAreOurOwn) {
  for (const auto& [rows, columns, depth, own] : {std::tuple(64, 64, 4096, true),
                                                  {65, 4, 600, true},
                                                  {128, 128, 513, true},
                                                  {1, 1, 5000, true},
                                                  {64, 64, 511, false},
                                                  {65, 129, 2000, false},
                                                  {128, 128, 511, false}}) {
    const MatmulCase c(plain(rows, columns, depth, true));
    Products products(true);
    std::string note;
    c.compare(product(c, products, &note), c.double_loop());
    EXPECT_EQ(note.starts_with("own"), own) << rows << " x " << columns << " x " << depth << ": " << note;
  }
}

// The library is queried once per shape; later kernels of that shape, and later processes with the choices, reuse the measurement.
TEST_F(CudaMatmul, MeasuresEachShapeOnce) {
  Products products(true);
  const MatmulCase c(plain(32, 48, 64));
  std::string first, second;
  const auto once = product(c, products, &first);
  EXPECT_EQ(products.kept, 1);
  EXPECT_EQ(product(c, products, &second), once);
  EXPECT_EQ(products.kept, 1);
  EXPECT_EQ(first, second);
  Products later(true);
  later.choices = products.choices;
  EXPECT_EQ(product(c, later, &second), once);
  EXPECT_EQ(later.kept, 0);
  EXPECT_EQ(first, second);
  for (auto& [key, value] : later.choices) value = "of another program";
  EXPECT_EQ(product(c, later), once);
  EXPECT_GT(later.kept, 0);
}

// Some algorithms sum in separate parts. However fast they are, and however slow the others, a product's bits do not change.
TEST_F(CudaMatmul, TimingsDoNotChangeBits) {
  if (test::tests_real_gpu()) GTEST_SKIP() << "needs the simulated GPU, whose algorithms are told how fast they are";
  for (const auto& [type, result] : {std::pair(DType::f32, DType::f32), {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}, {DType::f16, DType::f16}}) {
    const MatmulCase c(typed(plain(33, 264, 700), type, type, result));
    std::vector<std::byte> first;
    std::set<std::string> fastest;
    for (const char* times : {"1 2 3 4", "4 1 3 2", "4 3 1 2", "2 1 1 1", "2 1 4 3"}) {
      const test::Variable slowness("SIMULATED_LT_SLOWNESS", times);
      Products products(true);
      std::string note;
      const std::vector<std::byte> bits = product(c, products, &note);
      if (first.empty()) first = bits;
      EXPECT_EQ(bits, first) << name(type) << ", times " << times << ": " << note;
      fastest.insert(note.substr(0, note.find(',')));
    }
    const char* other = result == DType::f32 ? "cublasLt #3" : "cublasLt #2";  // 16-bit results are not accumulated in place
    EXPECT_EQ(fastest, (std::set<std::string>{"cublasLt #0", other})) << "the faster of those that give the same bits";
  }
}

// No memory to measure in: the library's first proposal is used for the life of the process, with the bits a measurement would have led to.
TEST_F(CudaMatmul, ChoosesWithoutMemory) {
  if (test::tests_real_gpu()) GTEST_SKIP() << "needs the simulated GPU, whose memory can be taken away";
  const MatmulCase c(plain(33, 264, 700));
  Products products(true), poor(true);
  const std::vector<std::byte> expected = product(c, products);
  MatmulDesc desc;
  desc.loops = loops_of(c.desc);
  const std::unique_ptr<Kernel> kernel = make_matmul(desc, poor.chip());
  {
    const test::Variable full("FAKE_GPU", "cuMemAlloc_v2=2");
    kernel->load(poor);
  }
  EXPECT_NE(kernel->note().find("#0, not measured: there was no memory"), std::string::npos) << kernel->note();
  EXPECT_EQ(poor.kept, 0) << "later processes measure it";
  std::string note;
  EXPECT_EQ(product(c, poor, &note), expected);
  EXPECT_EQ(note, kernel->note()) << "other kernels of this process go the same way";
  Memory memory;
  auto add = [&](const Operand& o) { return memory.add(o.bytes, o.origin * size_of(o.type)); };
  const Place operands[] = {add(c.a), add(c.b), add(c.c)};
  run(*kernel, products, memory, operands);
  EXPECT_EQ(memory.read(operands[2]), expected);
}

// If there is too little memory for a full measurement, it is repeated with less, and gives the same bits.
TEST_F(CudaMatmul, MeasuresInTheAvailableMemory) {
  if (test::tests_real_gpu()) GTEST_SKIP() << "needs the simulated GPU, whose memory can be taken away";
  const MatmulCase c(plain(512, 512, 3));  // a MiB of result, and 8 MiB of workspace
  Products products(true);
  const std::vector<std::byte> expected = product(c, products);
  MatmulDesc desc;
  desc.loops = loops_of(c.desc);
  DynamicLibrary simulator(test::fake_driver("simulator"));
  int (*calls)(const char*) = nullptr;
  ASSERT_TRUE(simulator.bind(calls, "simulatorCalls"));
  struct {
    double mib;
    bool measured, again;
  } const kRooms[] = {{64, true, false}, {9.5, true, true}, {5, false, false}};
  for (const auto& room : kRooms) {
    SCOPED_TRACE(testing::Message() << room.mib << " MiB are left");
    const int64_t left = int64_t(room.mib * (1 << 20));
    Products poor(true);
    const std::unique_ptr<Kernel> kernel = make_matmul(desc, poor.chip());
    const int before = calls("cuMemAlloc_v2");
    {
      size_t free = 0, total = 0;
      poor.driver().memory_info(&free, &total);
      const test::Variable small("SIMULATED_GPU_MEMORY", std::to_string(int64_t(total - free) + left));
      kernel->load(poor);
    }
    EXPECT_EQ(kernel->note().find("not measured") == std::string::npos, room.measured) << kernel->note();
    EXPECT_EQ(poor.kept, room.measured) << "only what was measured is kept for later processes";
    EXPECT_EQ(room.measured && calls("cuMemAlloc_v2") > before + 1, room.again);
    Memory memory;
    auto add = [&](const Operand& o) { return memory.add(o.bytes, o.origin * size_of(o.type)); };
    const Place operands[] = {add(c.a), add(c.b), add(c.c)};
    run(*kernel, products, memory, operands);
    EXPECT_EQ(memory.read(operands[2]), expected);
  }
}

// matmul_precision: products of f32 numbers with fewer bits, if requested.
TEST_F(CudaMatmul, MultipliesInLowerPrecisionOnRequest) {
  const MatmulCase c(plain(33, 40, 64));
  double worst[3];
  for (Precision how : {Precision::fp32, Precision::tf32, Precision::bf16}) {
    Products products(true);
    products.written_for.f32_products = how;
    const std::vector<std::byte> got = product(c, products);
    double& w = worst[int(how)] = 0;
    for (const Truth& t : c.double_loop()) w = std::max(w, std::abs(load(got, DType::f32, t.at) - t.sum) / t.magnitude);
  }
  EXPECT_LT(worst[0], 0x1p-20);
  EXPECT_GT(worst[1], 0x1p-16);
  EXPECT_LT(worst[1], 0x1p-10);
  EXPECT_GT(worst[2], 0x1p-13);
  EXPECT_LT(worst[2], 0x1p-7);
}

TEST_F(CudaMatmul, RejectsInvalidDescriptions) {
  MatmulDesc d;
  d.loops = loops_of(plain(3, 3, 3)), d.a = DType::i32;
  EXPECT_THROW(make_matmul(d, chip_for(9, 0)), Error);
  d.a = DType::f32;
  d.loops.k.clear();
  for (int64_t i = 0; i < 8; ++i) d.loops.k.push_back({2, 3 << (2 * i), 5, 0});
  EXPECT_THROW(make_matmul(d, chip_for(9, 0)), Error);
}

}  // namespace
}  // namespace ridge::cuda
