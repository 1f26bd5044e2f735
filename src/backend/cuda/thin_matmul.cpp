#include "backend/cuda/thin_matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>

#include "backend/cuda/matmul_text.h"
#include "backend/gpu/tile_source.h"
#include "backend/gpu/tile_writer.h"

namespace ridge::cuda {
namespace {

using Kind = TileNode::Kind;

constexpr int64_t kThinAlignment = 64;
constexpr int64_t kThinLanes = 32;    // share a sum
constexpr int64_t kMostAhead = 8;     // pieces of 16 bytes that a thread fetches before it waits for the row
constexpr int64_t kMostOfWarp = 512;  // elements of the longest row that every warp makes for itself
constexpr int64_t kMostKept = 16;     // elements per thread of a row that a block makes

bool is_thin_type(DType t) { return t == DType::f32 || t == DType::bf16 || t == DType::f16; }

// The sums as they are, for a product without an epilogue.
TileGroup store_only(DType result, int64_t columns, int64_t stride) {
  TileGroup g;
  g.domain = {1, 1, columns};
  g.operands = 1, g.accumulator = 0;
  TileAccess sums, to;
  sums.strides = {0, 0, 1};
  to.operand = 0, to.dtype = result, to.strides = {0, 0, stride};
  g.accesses = {sums, to};
  TileNode load, cast, store;
  load.kind = Kind::load, load.access = 0;
  cast.kind = Kind::elementwise, cast.op = Op::cast, cast.dtype = result, cast.in[0] = 0;
  store.kind = Kind::store, store.dtype = result, store.in[0] = 1, store.access = 1;
  g.nodes = {load, cast, store};
  return g;
}

// A warp computes kEachWarp columns. The row is in global memory, or the block makes it in shared memory.
constexpr const char* kThinWeights = R"(
  const int lane = (int)threadIdx.x & 31;
  const int first = ((int)blockIdx.x * (kThreads / 32) + (int)threadIdx.x / 32) * kEachWarp;
  const Weight* weights[kEachWarp];
  Words<16> ahead[kEachWarp][kAhead];
#pragma unroll
  for (int c = 0; c < kEachWarp; ++c) {
    weights[c] = (const Weight*)args.b + (i64)(first + c < kColumns ? first + c : kColumns - 1) * kStride;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = (i * 32 + lane) * kEach;
#pragma unroll
      for (int k = 0; k < 4; ++k) ahead[c][i].w[k] = 0;
      if (at < kDepth) read_words<true>(ahead[c][i], weights[c] + at);
    }
  }
  // A lane stores a column.
  const int column = first + (lane < kEachWarp ? lane : kEachWarp - 1);
  const bool live = column < kColumns;
)";
constexpr const char* kThinSums = R"(
  float part[kEachWarp][4];
#pragma unroll
  for (int c = 0; c < kEachWarp; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e) part[c][e] = 0.f;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int at = (i * 32 + lane) * kEach;
    float x[kEach];
    load<kEach>(x, row + at, at < kDepth);
#pragma unroll
    for (int c = 0; c < kEachWarp; ++c)
#pragma unroll
      for (int e = 0; e < kEach; ++e) part[c][e & 3] = fmaf(x[e], element(ahead[c][i].w, e, weights[c]), part[c][e & 3]);
  }
#pragma unroll 4
  for (int at = (kAhead * 32 + lane) * kEach; at < kDepth; at += 32 * kEach) {
    float x[kEach];
    load<kEach>(x, row + at, true);
#pragma unroll
    for (int c = 0; c < kEachWarp; ++c) {
      float y[kEach];
      load<kEach, true, true>(y, weights[c] + at, true);
#pragma unroll
      for (int e = 0; e < kEach; ++e) part[c][e & 3] = fmaf(x[e], y[e], part[c][e & 3]);
    }
  }
  float sums[V] = {0.f};
#pragma unroll
  for (int c = 0; c < kEachWarp; ++c) {
    const float sum = sum_of_warp((part[c][0] + part[c][1]) + (part[c][2] + part[c][3]));
    if (lane == c) sums[0] = sum;
  }
)";

class ThinMatmul final : public Kernel {
 public:
  // Fails quietly: see `text`.
  ThinMatmul(const MatmulDesc& desc, const ThinRow& row, bool constant_weights, const Chip& chip) {
    const MatmulProblem p = make_problem(desc.loops, desc.a, desc.b);
    if (!is_thin_type(p.a) || !is_thin_type(p.b) || p.batches != 1 || p.rows != 1 || p.columns < 2 || p.depth < 1) return;
    if (p.n.size() != 1 || p.k.size() != 1 || p.k[0].a != 1 || p.k[0].b != 1 || OwnMatmul::suits(p)) return;
    const int64_t each = 16 / size_of(p.b);
    auto alignment = [&](size_t operand) { return operand < desc.alignments.size() ? std::gcd(kThinAlignment, desc.alignments[operand]) : kThinAlignment; };
    if (p.depth % each || p.n[0].b % each || alignment(1) % 16 || p.depth > INT32_MAX / 2 || p.columns > INT32_MAX / 64) return;
    if (!row.group && alignment(0) % 16) return;
    const TileGroup epilogue = desc.epilogue ? *desc.epilogue : store_only(desc.result, p.columns, p.n[0].c);
    if (epilogue.domain != Shape{1, 1, p.columns} || epilogue.accumulator < 0 || !fits_32_bits(epilogue)) return;
    const int64_t ahead = std::clamp<int64_t>((p.depth + kThinLanes * each - 1) / (kThinLanes * each), 1, kMostAhead);
    // Warps that make the row for themselves should be few, each with several columns: one for each of a multiprocessor's four schedulers.
    constexpr int64_t kSchedulers = 4;
    const int64_t columns_each =
        row.group ? std::clamp<int64_t>((p.columns + kSchedulers * chip.multiprocessors - 1) / (kSchedulers * chip.multiprocessors), 1, kMostAhead / ahead) : 1;
    const int64_t warps = !row.group && p.columns >= 8 * chip.multiprocessors ? 8 : kSchedulers;
    threads_ = int(warps * kThinLanes), blocks_ = (p.columns + warps * columns_each - 1) / (warps * columns_each);
    std::string row_text;
    if (row.group) {
      // Every block repeats the row kernel, so there should be few.
      if (blocks_ > 8 * chip.multiprocessors || !write_row(row, p, chip, row_text)) return;
    }
    operands_ = epilogue.operands;
    std::string text = "typedef int I;\ntypedef u32 N;\n#ifndef RIDGE_AFTER_PREVIOUS\n#define RIDGE_AFTER_PREVIOUS\n#endif\n" + row_text;
    text +=
        fmt::format("typedef {} Weight;\ntypedef {} Row;\nconstexpr int V = 1;\nconstexpr bool A = true;\n", TileWriter::memory(p.b), TileWriter::memory(p.a));
    text += fmt::format("constexpr int kThreads = {}, kDepth = {}, kColumns = {}, kEach = {}, kAhead = {}, kEachWarp = {};\nconstexpr i64 kStride = {};\n",
                        threads_, p.depth, p.columns, each, ahead, columns_each, p.n[0].b);
    text += fmt::format("struct Args {{ Fault* fault; const void *a, *b; void* p[{}]; {}}};\n", operands_, row.group ? "making::Entry making; " : "");
    text += "extern \"C\" __global__ void __launch_bounds__(kThreads) thin_matmul(const RIDGE_CONSTANT Args args) {\n";
    const char* wait = "  RIDGE_AFTER_PREVIOUS;\n";
    text += constant_weights ? std::string(kThinWeights) + wait : std::string(wait) + kThinWeights;
    text += "  Fault* fault = args.fault;\n  (void)fault;\n";
    facts_ = facts_of(epilogue);
    std::string before, after;
    if (!write_epilogue(epilogue, before, after)) return;
    text += before;
    // A warp that makes the row for itself waits for no other.
    text +=
        !row.group ? "  const Row* row = (const Row*)args.a;\n"
        : row_of_warp_
            ? fmt::format(
                  "  __shared__ __align__(16) Row rows[kThreads / 32][kDepth];\n  Row* const row = rows[threadIdx.x / 32];\n  making::Entry making = "
                  "args.making;\n"
                  "  making.p[{}] = row;\n{}  __syncwarp();\n",
                  row_result_, row_call_)
            : fmt::format("  __shared__ __align__(16) Row row[kDepth];\n  making::Entry making = args.making;\n  making.p[{}] = row;\n{}  __syncthreads();\n",
                          row_result_, row_call_);
    text += kThinSums + after + "}\n";
    text_ = {"thin_matmul", std::move(text), 0};
  }
  bool fits() const { return !text_.entry.empty(); }

  std::vector<KernelText> texts() const override { return {text_}; }
  void load(gpu::Loader& loader) override { function_ = loader.loaded(text_); }
  void bind(std::span<const Place> operands, Place, Place fault) override {
    places_.assign(operands.begin(), operands.end());
    fault_ = fault;
  }
  void enqueue(Bases bases, LaunchSink& sink) const override {
    std::vector<std::byte> args;
    auto put = [&](auto value) {
      const auto* from = reinterpret_cast<const std::byte*>(&value);
      args.insert(args.end(), from, from + sizeof value);
    };
    const std::span<const Place> own = std::span(places_).subspan(size_t(row_operands_));
    put(at(bases, fault_));
    for (size_t i = 0; i < size_t(operands_) + 2; ++i) put(i == 0 && row_operands_ ? Address(0) : at(bases, own[i]));
    if (row_operands_) {
      for (int p : row_pointers_) put(at(bases, places_[size_t(p)]));
      put(int64_t(row_of_warp_ ? threads_ / kThinLanes : 1)), put(row_length_), put(int32_t(0)), put(int32_t(0));
    }
    sink.launch(function_, blocks_, threads_, 0, args);
  }
  std::string note() const override { return row_operands_ ? "a row's dot products, with the kernel that makes the row" : "a row's dot products"; }

 private:
  // The row kernel as a function of the whole block.
  bool write_row(const ThinRow& row, const MatmulProblem& p, const Chip& chip, std::string& text) {
    const TileGroup g = simplified(*row.group);
    const TileFacts facts = facts_of(g);
    if (g.form != TileGroup::Template::row || kept_points(g) != 1 || reduced_points(g) != p.depth || g.reduced != 1 || !fits_32_bits(g)) return false;
    int stores = 0;
    for (size_t n = 0; n < g.nodes.size(); ++n) {
      if (g.nodes[n].kind != Kind::store) continue;
      const TileAccess& to = g.accesses[size_t(g.nodes[n].access)];
      if (++stores > 1 || to.operand != row.result || to.offset != 0 || to.strides[facts.axis] != 1 || to.dtype != p.a) return false;
    }
    if (stores != 1) return false;
    TileSchedule s;
    s.dialect = chip.dialect;
    row_of_warp_ = p.depth <= kMostOfWarp;
    s.threads = s.lanes = int(row_of_warp_ ? kThinLanes : threads_);
    // As few elements per thread as the threads allow.
    s.vector = int(std::min<int64_t>(vector_width(g, facts, false), std::bit_ceil(uint64_t((p.depth + s.lanes - 1) / s.lanes))));
    s.chunks = int((p.depth / s.vector + s.lanes - 1) / s.lanes);
    s.loads_first = true;
    if (!row_of_warp_ && s.chunks * s.vector > kMostKept) return false;
    const TileText made = row_part_text(g, facts, s);
    text = "namespace making {\n" + made.text.body + "}\n";
    row_call_ = made.text.entry;
    row_pointers_ = made.pointers, row_operands_ = row.group->operands, row_length_ = p.depth;
    const auto result = std::find(row_pointers_.begin(), row_pointers_.end(), row.result);
    row_result_ = int(result - row_pointers_.begin());
    return result != row_pointers_.end();
  }

  // What can be loaded before the sums are known comes first.
  bool write_epilogue(const TileGroup& g, std::string& before, std::string& after) {
    TileWriter out(g, facts_);
    out.line("const I x0 = 0, x1 = 0, x2 = live ? column : 0;");
    out.line("(void)x0, (void)x1, (void)x2;");
    std::vector<char> declared(g.accesses.size(), 0);
    for (const TileNode& node : g.nodes) {
      if ((node.kind != Kind::load && node.kind != Kind::store) || node.access == g.accumulator || declared[size_t(node.access)]++) continue;
      const TileAccess& access = g.accesses[size_t(node.access)];
      out.line(fmt::format("{0}* p{1} = ({0}*)args.p[{2}];", TileWriter::memory(access.dtype), node.access, access.operand));
    }
    for (int n = 0; n < int(g.nodes.size()); ++n) {
      const TileNode& node = g.nodes[size_t(n)];
      if (node.kind == Kind::reduce) return false;
      if (node.kind == Kind::load && node.access != g.accumulator && node.in[0] < 0 && g.accesses[size_t(node.access)].gather < 0) out.want(n, "live");
    }
    before = dialect().write(out.take());
    for (int n = 0; n < int(g.nodes.size()); ++n) {
      const TileNode& node = g.nodes[size_t(n)];
      if (node.kind != Kind::load || node.access != g.accumulator) continue;
      if (!facts_.wide(n) || !is_thin_type(node.dtype)) return false;
      if (node.dtype != DType::f32) out.line(fmt::format("sums[0] = {};", TileWriter::rounded(node.dtype, "sums[0]")));
      out.place(n, "sums");
    }
    for (int n = 0; n < int(g.nodes.size()); ++n)
      if (g.nodes[size_t(n)].kind == Kind::store) out.store(n, "live && lane < kEachWarp");
    after = dialect().write(out.take());
    return true;
  }

  KernelText text_;  // empty: the product has another form
  TileFacts facts_;
  int threads_ = 0, operands_ = 0, row_operands_ = 0, row_result_ = 0;
  int64_t blocks_ = 0, row_length_ = 0;
  bool row_of_warp_ = false;
  std::string row_call_;
  std::vector<int> row_pointers_;
  KernelFunction function_ = nullptr;
  std::vector<Place> places_;
  Place fault_;
};

}  // namespace

std::unique_ptr<Kernel> make_thin_matmul(const MatmulDesc& desc, const ThinRow& row, bool constant_weights, const Chip& chip) {
  auto made = std::make_unique<ThinMatmul>(desc, row, constant_weights, chip);
  if (!made->fits()) return nullptr;
  return made;
}

}  // namespace ridge::cuda
