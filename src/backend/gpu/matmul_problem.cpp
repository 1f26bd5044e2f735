#include "backend/gpu/matmul_problem.h"

#include <algorithm>

#include "base/error.h"

namespace ridge::gpu {
namespace {

int64_t product(const std::vector<MatmulLoop>& loops) {
  int64_t n = 1;
  for (const MatmulLoop& l : loops) n *= l.size;
  return n;
}

// An operand as a column-major matrix whose `rows` axis has stride r and whose `columns` axis has stride c; transposed if c is the unit stride.
struct Oriented {
  LibraryMatrix matrix;
  bool transposed = false;
};

std::optional<Oriented> orient(DType type, int64_t rows, int64_t r, int64_t columns, int64_t c) {
  if (rows == 1) r = 0;
  if (columns == 1) c = 0;
  // An axis of one element can have any stride; choose the one that lets the other axis provide the matrix's stride.
  auto fits = [](int64_t unit, int64_t size, int64_t stride, int64_t other) {
    return (unit == 1 || size == 1) && ((other == 1 && stride == 0) || stride >= size);
  };
  auto step = [](int64_t stride, int64_t size) { return stride ? stride : std::max<int64_t>(size, 1); };
  if (fits(r, rows, c, columns)) return Oriented{{type, rows, columns, step(c, rows), 0}, false};
  if (fits(c, columns, r, rows)) return Oriented{{type, columns, rows, step(r, columns), 0}, true};
  return std::nullopt;
}

constexpr int64_t kMaxCalls = 64;
constexpr int64_t kMaxSize = int64_t(1) << 31;

}  // namespace

std::vector<MatmulLoop> merged(std::vector<MatmulLoop> loops) {
  std::erase_if(loops, [](const MatmulLoop& l) { return l.size == 1; });
  std::vector<MatmulLoop> out;
  for (const MatmulLoop& l : loops) {
    if (!out.empty()) {
      MatmulLoop& last = out.back();
      if (last.a == l.a * l.size && last.b == l.b * l.size && last.c == l.c * l.size) {
        last = {last.size * l.size, l.a, l.b, l.c};
        continue;
      }
    }
    out.push_back(l);
  }
  return out;
}

MatmulProblem make_problem(const ContractionLoops& loops, DType a, DType b) {
  for (DType type : {a, b})
    if (type != DType::f32 && type != DType::bf16 && type != DType::f16)
      fail(ErrorCode::internal, "[matmul] {} times {}: GPU kernels support f32, bf16 and f16", name(a), name(b));
  MatmulProblem p;
  p.a = a, p.b = b;
  p.batches = product(loops.batch), p.rows = product(loops.m), p.columns = product(loops.n), p.depth = product(loops.k);
  p.batch = merged(loops.batch), p.m = merged(loops.m), p.n = merged(loops.n), p.k = merged(loops.k);
  return p;
}

int64_t LibraryProduct::calls() const { return product(outside); }

MatmulProblem with_result(MatmulProblem p, const MatmulArray& place) {
  auto set_strides = [](std::vector<MatmulLoop>& loops, int64_t stride) {
    for (auto l = loops.rbegin(); l != loops.rend(); ++l) l->c = stride, stride *= l->size;
    loops = merged(std::move(loops));
  };
  set_strides(p.batch, place.batch), set_strides(p.m, place.row), set_strides(p.n, place.column);
  return p;
}

std::optional<LibraryProduct> library_product(const MatmulProblem& p, DType type) {
  if (p.empty() || p.depth == 0 || p.m.size() > 1 || p.n.size() > 1 || p.k.size() > 1) return std::nullopt;
  if (p.a != p.b || (type != p.a && type != DType::f32)) return std::nullopt;
  if (std::max({p.rows, p.columns, p.depth}) >= kMaxSize) return std::nullopt;
  const MatmulLoop m = p.m.empty() ? MatmulLoop{1, 0, 0, 0} : p.m[0], n = p.n.empty() ? MatmulLoop{1, 0, 0, 0} : p.n[0],
                   k = p.k.empty() ? MatmulLoop{1, 0, 0, 0} : p.k[0];
  LibraryProduct out;
  const std::optional<Oriented> result = orient(type, n.size, n.c, m.size, m.c);
  if (!result) return std::nullopt;
  out.result = result->matrix;
  out.swapped = !result->transposed;
  const std::optional<Oriented> first = out.swapped ? orient(p.b, n.size, n.b, k.size, k.b) : orient(p.a, m.size, m.a, k.size, k.a);
  const std::optional<Oriented> second = out.swapped ? orient(p.a, k.size, k.a, m.size, m.a) : orient(p.b, k.size, k.b, n.size, n.b);
  if (!first || !second) return std::nullopt;
  out.first = first->matrix, out.transpose_first = first->transposed;
  out.second = second->matrix, out.transpose_second = second->transposed;
  std::vector<MatmulLoop> loops = p.batch;
  for (const MatmulLoop& l : loops)
    if (l.a < 0 || l.b < 0 || l.c <= 0) return std::nullopt;
  if (!loops.empty()) {
    const auto largest = std::max_element(loops.begin(), loops.end(), [](const MatmulLoop& x, const MatmulLoop& y) { return x.size < y.size; });
    out.batches = largest->size;
    out.first.batch_stride = out.swapped ? largest->b : largest->a;
    out.second.batch_stride = out.swapped ? largest->a : largest->b;
    out.result.batch_stride = largest->c;
    loops.erase(largest);
    out.outside = loops;
    if (out.calls() > kMaxCalls) return std::nullopt;
  }
  return out;
}

}  // namespace ridge::gpu
