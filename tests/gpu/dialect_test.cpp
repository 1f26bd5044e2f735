// The shared GPU code is independent of any one GPU: texts take every vendor-specific word from a dialect, and launches go into any sink.
#include "backend/gpu/dialect.h"

#include <gtest/gtest.h>

#include "backend/gpu/make.h"
#include "base/error.h"
#include "graph/builder.h"
#include "support/tile_case.h"

namespace ridge::gpu {
namespace {

using tile_test::Build, tile_test::Form;

// A language that no GPU has.
constexpr KernelDialect::Word kWords[] = {{"block", "BLOCK"},
                                          {"thread", "THREAD"},
                                          {"barrier", "BARRIER"},
                                          {"warp_barrier", "WARP_BARRIER"},
                                          {"shared", "SHARED"},
                                          {"aligned(", "ALIGNED("},
                                          {"dynamic_shared", "DYNAMIC_SHARED"},
                                          {"global", "GLOBAL"},
                                          {"in_shared", "IN_SHARED"},
                                          {"constant", "CONSTANT"},
                                          {"unroll", "UNROLL"},
                                          {"shuffle(", "SHUFFLE("},
                                          {"ballot(", "BALLOT("},
                                          {"count_bits(", "COUNT_BITS("},
                                          {"high_product(", "HIGH_PRODUCT("},
                                          {"atomic_add(", "ATOMIC_ADD("},
                                          {"atomic_max(", "ATOMIC_MAX("},
                                          {"nothing", ""}};
constexpr KernelDialect kForeign{kWords, [](std::string_view threads, std::string_view name, std::string_view arguments) {
                                   return fmt::format("ENTRY<{}> {}[{}]", threads, name, arguments);
                                 }};

GpuChip foreign_chip() {
  GpuChip chip;
  chip.dialect = &kForeign, chip.name = "a chip", chip.multiprocessors = 10, chip.shared_bytes = 32768, chip.shared_bytes_per_multiprocessor = 32768;
  return chip;
}

TEST(KernelDialect, SubstitutesItsWords) {
  EXPECT_EQ(kForeign.write(""), "");
  EXPECT_EQ(kForeign.write("plain { text }"), "plain { text }");
  EXPECT_EQ(kForeign.write("@entry(256, 3; run; Args a) {\n  @barrier;\n}"), "ENTRY<256, 3> run[Args a] {\n  BARRIER;\n}");
  EXPECT_EQ(kForeign.write("@shared @aligned(16) float x[@thread];@unroll"), "SHARED ALIGNED(16) float x[THREAD];UNROLL");
  EXPECT_EQ(kForeign.write("@nothing const T* p = (@nothing T*)q;"), "const T* p = (T*)q;") << "an empty word takes the space after it along";
  for (const char* text : {"@", "@barriers", "@shuffle", "@barrier(", "@entry(256; run)", "a @ b"}) EXPECT_THROW(kForeign.write(text), Error) << text;
}

struct SomeKernel {
  std::unique_ptr<Kernel> kernel;
  size_t operands;
};

// Kernels of every kind, for one chip.
std::vector<SomeKernel> some_kernels(const GpuChip& chip) {
  std::vector<SomeKernel> kernels;
  auto tile = [&](const Build& b) { kernels.push_back({make_tile_kernel({&b.g, 1}, chip), size_t(b.g.operands)}); };
  Build map(Form::map, {33, 70});
  map.out(map.op(Op::relu, map.in()));
  tile(map);
  Build turned(Form::map, {64, 64});
  turned.out(turned.op(Op::neg, turned.load(turned.operand(), DType::f32, {1, 64})));
  tile(turned);
  Build row(Form::row, {64, 4000}, 1);
  const int x = row.in(DType::bf16), y = row.op(Op::cast, x);
  row.out(row.op(Op::div, y, row.reduce(Op::reduce_sum, y)));
  tile(row);
  Build longest(Form::row, {2, 1 << 20}, 1);
  longest.store(longest.reduce(Op::reduce_max, longest.in()), {1, 0});
  tile(longest);
  Build column(Form::column, {4096, 64}, 1);
  column.store(column.reduce(Op::reduce_sum, column.in()), {0, 1});
  tile(column);
  Graph g;
  Builder b(g);
  auto input = [&](DType dtype, Shape s) { return g.input({dtype, s}, "x"); };
  auto node = [&](NodeId id) {
    const NodeId node = g[id].op == Op::get ? g[id].in[0] : id;
    kernels.push_back({make_node_kernel(g, node, chip), g[node].in.size() + (node == id ? 1 : 2)});  // nodes with `get` have two results
  };
  const DType f32 = DType::f32, i64 = DType::i64;
  node(g.add(Op::take_grad, {input(f32, {4096, 48}), input(i64, {4096})}, {{0, 50}, {}, nullptr}));
  node(b.scatter(input(f32, {500}), input(i64, {1000}), input(f32, {1000}), 0));
  node(b.scatter_add(input(DType::i32, {500}), input(i64, {1000}), input(DType::i32, {1000}), 0));
  node(b.scatter_add(input(f32, {500}), input(i64, {1000}), input(f32, {1000}), 0));
  node(g.add(Op::cumsum, {input(f32, {400000})}, {{0, 0}, {}, nullptr}));
  node(g.add(Op::cumsum, {input(f32, {500, 64})}, {{0, 1}, {}, nullptr}));
  node(b.sort(input(f32, {4, 5000}), 1).first), node(b.sort(input(f32, {4, 50}), 1).first);
  node(g.add(Op::fold, {input(f32, {2, 4, 31, 4, 3})}, {{2, 3, 2, 1, 63}, {}, nullptr}));
  node(g.add(Op::pad, {input(f32, {2, 4})}, {{0, 0, 0, 0, 1, 1}, {0}, nullptr}));
  node(g.add(Op::dynamic_update_slice, {input(f32, {40, 40}), input(f32, {40, 20}), input(i64, {}), input(i64, {})}, {}));
  return kernels;
}

TEST(KernelDialect, DefinesEveryWordOfSharedTexts) {
  int texts = 0;
  for (const auto& [kernel, operands] : some_kernels(foreign_chip()))
    for (const KernelText& text : kernel->texts()) {
      ++texts;
      EXPECT_NE(text.body.find("ENTRY<"), std::string::npos) << text.entry;
      for (const char* word : {"@", "__", "threadIdx", "blockIdx", "#pragma", "atomicA", "atomicM", "extern", "uint4("})
        EXPECT_EQ(text.body.find(word), std::string::npos) << word << " in " << text.entry << ":\n" << text.body;
    }
  EXPECT_GE(texts, 24);
}

// A sink without a device: collects what a tape would hold.
struct Tape final : LaunchSink {
  struct Launch {
    const KernelText* text;
    int64_t blocks;
    int threads;
    size_t arguments;
  };
  std::vector<Launch> launches;
  int copies = 0, fills = 0;
  void launch(KernelFunction function, int64_t blocks, int threads, int64_t shared, std::span<const std::byte> arguments) override {
    launches.push_back({static_cast<const KernelText*>(function), blocks, threads, arguments.size()});
    EXPECT_EQ(launches.back().text->shared, shared);
  }
  void copy(Address to, Address from, int64_t bytes) override {
    EXPECT_TRUE(to != from && bytes > 0);
    ++copies;
  }
  void fill_with_zeros(Address, int64_t bytes) override {
    EXPECT_GT(bytes, 0);
    ++fills;
  }
};

struct TextLoader final : Loader {
  std::vector<std::unique_ptr<KernelText>> texts;
  KernelFunction loaded(const KernelText& text) override { return texts.emplace_back(std::make_unique<KernelText>(text)).get(); }
};

TEST(LaunchSink, ReceivesLaunches) {
  for (const auto& [kernel, operands] : some_kernels(foreign_chip())) {
    TextLoader loader;
    kernel->load(loader);
    const std::vector<KernelText> texts = kernel->texts();
    std::vector<Place> places;
    std::vector<Address> bases;
    for (size_t i = 0; i < operands + 2; ++i) places.push_back({int32_t(i), 0}), bases.push_back(Address(i + 1) << 32);
    kernel->bind(std::span(places).first(operands), places[operands], places[operands + 1]);
    Tape tape;
    kernel->enqueue(bases, tape);
    EXPECT_EQ(int(tape.launches.size()) + tape.copies + tape.fills, kernel->launches()) << texts[0].entry;
    for (const Tape::Launch& l : tape.launches) {
      EXPECT_NE(std::find(texts.begin(), texts.end(), *l.text), texts.end()) << l.text->entry;
      EXPECT_TRUE(l.blocks > 0 && l.threads > 0 && l.threads <= 1024) << l.text->entry;
      EXPECT_TRUE(l.arguments > 0 && l.arguments % 8 == 0 && l.arguments <= 4096) << l.text->entry;
    }
  }
}

}  // namespace
}  // namespace ridge::gpu
