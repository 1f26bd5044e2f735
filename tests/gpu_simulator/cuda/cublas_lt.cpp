// The simulator's cuBLASLt: products with their epilogues, on the host. It offers four algorithms; which one is fastest by the device's clock does not depend
// on the product.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <vector>

#include "../../cuda/fake_driver/faults.h"
#include "../numbers.h"
#include "device.h"

namespace simulator {
namespace {

using fake::fault;
using Lock = std::lock_guard<std::recursive_mutex>;

constexpr int kInvalidValue = 7, kNotSupported = 15;
enum Epilogue { kRelu = 2, kBias = 4, kBiasGrad = 16, kGelu = 32, kGeluGrad = 64, kAux = 128, kBiasGradA = 256, kBiasGradB = 512 };

struct Operation {
  int compute = 68, scale = 0, transpose_a = 0, transpose_b = 0, epilogue = 1, bias_type = -1, aux_type = -1;
  uint64_t bias = 0, aux = 0;
  int64_t aux_stride = 0, aux_batch = 0, bias_batch = 0;
};
struct Layout {
  int type = 0, order = 0, batches = 1;  // order 0: column-major
  uint64_t rows = 0, columns = 0;
  int64_t stride = 0, batch_stride = 0;

  size_t at(uint64_t row, uint64_t column) const { return size_t(order == 0 ? row + column * uint64_t(stride) : row * uint64_t(stride) + column); }
  size_t bytes() const;  // from the first element to the last, all batches
};
struct Preference {
  uint64_t workspace = 0;
  unsigned reductions = 7;
};
struct Algorithm {
  uint64_t number, reduction, parts, stages, unused[4];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Heuristic) == 96);

// Like the kernels: 1 and 4 are plain, 2 sums parts of k in a workspace, 3 would sum them in place.
constexpr Algorithm kAlgorithms[] = {{1, 0, 1, 35, {}}, {2, 2, 2, 35, {}}, {3, 1, 4, 35, {}}, {4, 0, 1, 35, {}}};
constexpr size_t kCount = std::size(kAlgorithms);

// Relative time of each for the same work; SIMULATED_LT_SLOWNESS sets others, "1.5 1.2 1 1.3".
double slowness(uint64_t number) {
  double times[kCount] = {1.5, 1.2, 1, 1.3};
  if (const char* text = std::getenv("SIMULATED_LT_SLOWNESS")) {
    std::istringstream in(text);
    for (double& t : times) in >> t;
  }
  return times[number - 1];
}
constexpr size_t kPartBytes = 1 << 20;

size_t Layout::bytes() const {
  if (rows == 0 || columns == 0) return 0;
  return (at(rows - 1, columns - 1) + 1 + size_t(batches - 1) * size_t(batch_stride)) * size_of(type);
}

float to_bf16(float x) {
  char half[2];
  store(half, kBf16, 0, x);
  return load(half, kBf16, 0);
}
float to_tf32(float x) { return std::isfinite(x) ? from_bits((bits_of(x) + 0x0fff + (bits_of(x) >> 13 & 1)) & ~0x1fffu) : x; }

float gelu(float x) { return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }
float gelu_grad(float x) {
  const float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

// Describes what is wrong with a product; null: nothing.
const char* wrong(const Operation& o, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const uint64_t m = o.transpose_a ? a.columns : a.rows, k = o.transpose_a ? a.rows : a.columns;
  if ((o.transpose_b ? b.columns : b.rows) != k || d.rows != m || d.columns != (o.transpose_b ? b.rows : b.columns)) return "shapes do not fit";
  if (c.rows != d.rows || c.columns != d.columns || c.type != d.type) return "C and D differ";
  if (a.type != b.type || (d.type != a.type && d.type != kF32) || !known_type(a.type) || !known_type(d.type)) return "types do not fit";
  for (const Layout* layout : {&a, &b, &c, &d}) {
    if (layout->batches != d.batches) return "batch counts differ";
    if (layout->order > 1) return "an unknown order";
    if (uint64_t(layout->stride) < (layout->order == 0 ? layout->rows : layout->columns)) return "a leading dimension is too small";
  }
  if ((o.epilogue & kAux) && (o.epilogue & (kGelu | kGeluGrad)) && (o.aux_stride % 8 != 0 || uint64_t(o.aux_stride) < d.rows))
    return "the auxiliary output's rows";
  if (d.order != 0 && o.epilogue != 1) return "an epilogue of a row-major result";
  return nullptr;
}

struct Product {
  Operation o;
  Layout a, b, c, d;
  const char *pa, *pb, *pc;
  char* pd;
  float alpha, beta;

  void run_batch(size_t batch, size_t parts) const {
    const size_t m = d.rows, n = d.columns, k = o.transpose_a ? a.rows : a.columns;
    auto base = [&](auto* p, const Layout& layout) { return p + batch * size_t(layout.batch_stride) * size_of(layout.type); };
    const char *from_a = base(pa, a), *from_b = base(pb, b), *from_c = base(pc, c);
    char* to = base(pd, d);
    std::vector<float> rows(m * k), columns(k * n), sums(m * n, 0.f);
    for (size_t i = 0; i < m; ++i)
      for (size_t p = 0; p < k; ++p) rows[i * k + p] = load(from_a, a.type, o.transpose_a ? a.at(p, i) : a.at(i, p));
    for (size_t p = 0; p < k; ++p)
      for (size_t j = 0; j < n; ++j) columns[p * n + j] = load(from_b, b.type, o.transpose_b ? b.at(j, p) : b.at(p, j));
    if (o.compute == 77 || o.compute == 75) {
      for (float& x : rows) x = o.compute == 77 ? to_tf32(x) : to_bf16(x);
      for (float& x : columns) x = o.compute == 77 ? to_tf32(x) : to_bf16(x);
    }
    std::vector<float> part(n);
    for (size_t i = 0; i < m; ++i)
      for (size_t first = 0, length = (k + parts - 1) / parts; first < k; first += length) {
        std::fill(part.begin(), part.end(), 0.f);
        for (size_t p = first; p < std::min(first + length, k); ++p) {
          const float x = rows[i * k + p], *y = &columns[p * n];
          for (size_t j = 0; j < n; ++j) part[j] += x * y[j];
        }
        for (size_t j = 0; j < n; ++j) sums[i * n + j] += part[j];
      }
    char* bias = reinterpret_cast<char*>(o.bias) + batch * size_t(o.bias_batch) * size_of(bias_type());
    char* aux = reinterpret_cast<char*>(o.aux) + batch * size_t(o.aux_batch) * size_of(aux_type());
    std::vector<float> bias_grad(m, 0.f);
    for (size_t i = 0; i < m; ++i)
      for (size_t j = 0; j < n; ++j) {
        float value = alpha * sums[i * n + j];
        if (beta != 0) value += beta * load(from_c, c.type, c.at(i, j));
        if (o.epilogue & kBias) value += load(bias, bias_type(), i);
        if (o.epilogue & kGelu) {
          if (o.epilogue & kAux) store(aux, aux_type(), i + j * size_t(o.aux_stride), value);
          value = gelu(value);
        }
        if (o.epilogue & kRelu) value = value > 0 ? value : 0;
        if (o.epilogue & kGeluGrad) value *= gelu_grad(load(aux, aux_type(), i + j * size_t(o.aux_stride)));
        bias_grad[i] += value;
        store(to, d.type, d.at(i, j), value);
      }
    if (o.epilogue & kBiasGrad)
      for (size_t i = 0; i < m; ++i) store(bias, bias_type(), i, bias_grad[i]);
    if (o.epilogue & kBiasGradA)
      for (size_t i = 0; i < m; ++i) {
        float sum = 0;
        for (size_t p = 0; p < k; ++p) sum += rows[i * k + p];
        store(bias, bias_type(), i, sum);
      }
    if (o.epilogue & kBiasGradB)
      for (size_t j = 0; j < n; ++j) {
        float sum = 0;
        for (size_t p = 0; p < k; ++p) sum += columns[p * n + j];
        store(bias, bias_type(), j, sum);
      }
  }
  int bias_type() const { return o.bias_type >= 0 ? o.bias_type : d.type; }
  int aux_type() const { return o.aux_type >= 0 ? o.aux_type : d.type; }
};

template <class T>
int set(T& member, const void* value, size_t size) {
  if (size != sizeof member) return kInvalidValue;
  return std::memcpy(&member, value, size), 0;
}

size_t workspace_of(const Algorithm& algorithm) { return algorithm.reduction == 2 ? kPartBytes : 0; }

int get(uint64_t value, void* to, size_t size, size_t* written) {
  if (size != 4) return kInvalidValue;
  const auto word = uint32_t(value);
  std::memcpy(to, &word, 4);
  if (written) *written = 4;
  return 0;
}

}  // namespace
}  // namespace simulator

using namespace simulator;

extern "C" {
int cublasLtCreate(void** handle) { return *handle = new char, fault("cublasLtCreate"); }
int cublasLtDestroy(char* handle) { return delete handle, fault("cublasLtDestroy"); }
size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusName(int code) { return code == kNotSupported ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_SIMULATED"; }
const char* cublasLtGetStatusString(int code) { return cublasLtGetStatusName(code); }

int cublasLtMatmulDescCreate(Operation** operation, int compute, int scale) {
  *operation = new Operation;
  (*operation)->compute = compute, (*operation)->scale = scale;
  return scale == kF32 ? fault("cublasLtMatmulDescCreate") : kNotSupported;
}
int cublasLtMatmulDescDestroy(Operation* operation) { return delete operation, fault("cublasLtMatmulDescDestroy"); }
int cublasLtMatmulDescSetAttribute(Operation* o, int which, const void* value, size_t size) {
  if (const int code = fault("cublasLtMatmulDescSetAttribute")) return code;
  switch (which) {
    case 3: return set(o->transpose_a, value, size);
    case 4: return set(o->transpose_b, value, size);
    case 7: return set(o->epilogue, value, size);
    case 8: return set(o->bias, value, size);
    case 10: return set(o->bias_batch, value, size);
    case 11: return set(o->aux, value, size);
    case 12: return set(o->aux_stride, value, size);
    case 13: return set(o->aux_batch, value, size);
    case 22: return set(o->aux_type, value, size);
    case 26: return set(o->bias_type, value, size);
    default: return kInvalidValue;
  }
}
int cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  *layout = new Layout{type, 0, 1, rows, columns, stride, 0};
  return fault("cublasLtMatrixLayoutCreate");
}
int cublasLtMatrixLayoutDestroy(Layout* layout) { return delete layout, fault("cublasLtMatrixLayoutDestroy"); }
int cublasLtMatrixLayoutSetAttribute(Layout* layout, int which, const void* value, size_t size) {
  if (const int code = fault("cublasLtMatrixLayoutSetAttribute")) return code;
  switch (which) {
    case 0: return set(layout->type, value, size);
    case 1: return set(layout->order, value, size);
    case 2: return set(layout->rows, value, size);
    case 3: return set(layout->columns, value, size);
    case 4: return set(layout->stride, value, size);
    case 5: return set(layout->batches, value, size);
    case 6: return set(layout->batch_stride, value, size);
    default: return kInvalidValue;
  }
}
int cublasLtMatmulPreferenceCreate(Preference** preference) { return *preference = new Preference, fault("cublasLtMatmulPreferenceCreate"); }
int cublasLtMatmulPreferenceDestroy(Preference* preference) { return delete preference, fault("cublasLtMatmulPreferenceDestroy"); }
int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int which, const void* value, size_t size) {
  switch (which) {
    case 1: return set(preference->workspace, value, size);
    case 3: return set(preference->reductions, value, size);
    case 5:
    case 6:
    case 7:
    case 8: return size == 4 ? 0 : kInvalidValue;  // alignments: all are accepted
    default: return kInvalidValue;
  }
}
int cublasLtMatmulAlgoGetHeuristic(void*, const Operation* o, const Layout* a, const Layout* b, const Layout* c, const Layout* d, const Preference* preference,
                                   int most, Heuristic* results, int* count) {
  if (const int code = fault("cublasLtMatmulAlgoGetHeuristic")) return code;
  *count = 0;
  if (const char* why = wrong(*o, *a, *b, *c, *d)) {
    std::fprintf(stderr, "simulated cuBLASLt: no algorithm: %s\n", why);
    return kNotSupported;
  }
  for (Algorithm algorithm : kAlgorithms) {
    if (o->epilogue != 1) algorithm.stages = uint64_t(fake::setting("SIMULATED_LT_FUSED_STAGES", 35));
    if (*count == most || (algorithm.reduction && !(preference->reductions & algorithm.reduction)) || workspace_of(algorithm) > preference->workspace) continue;
    results[(*count)++] = {algorithm, workspace_of(algorithm), 0, 1.f, {}};
  }
  return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const Algorithm* algorithm, int which, void* value, size_t size, size_t* written) {
  switch (which) {
    case 0: return get(algorithm->number, value, size, written);
    case 2: return get(algorithm->parts, value, size, written);
    case 3: return get(algorithm->reduction, value, size, written);
    case 6: return get(algorithm->stages, value, size, written);
    default: return get(0, value, size, written);
  }
}
int cublasLtMatmulAlgoCheck(void*, const Operation* o, const Layout* a, const Layout* b, const Layout* c, const Layout* d, const Algorithm* algorithm,
                            Heuristic* result) {
  if (algorithm->number < 1 || algorithm->number > kCount || wrong(*o, *a, *b, *c, *d)) return kNotSupported;
  *result = {*algorithm, workspace_of(*algorithm), 0, 1.f, {}};
  return fault("cublasLtMatmulAlgoCheck");
}
int cublasLtMatmul(void*, const Operation* o, const float* alpha, uint64_t pa, const Layout* a, uint64_t pb, const Layout* b, const float* beta, uint64_t pc,
                   const Layout* c, uint64_t pd, const Layout* d, const Algorithm* algorithm, uint64_t workspace, size_t bytes, Stream* stream) {
  const Lock lock(device_mutex());
  if (const int code = fault("cublasLtMatmul")) return code;
  auto refuse = [](const char* why) {
    std::fprintf(stderr, "simulated cuBLASLt: %s\n", why);
    return kInvalidValue;
  };
  if (const char* why = wrong(*o, *a, *b, *c, *d)) return refuse(why);
  if (!algorithm || algorithm->number < 1 || algorithm->number > kCount) return refuse("an unknown algorithm");
  if (workspace % 256 != 0) return refuse("a workspace that does not lie at a multiple of 256");
  if (workspace_of(*algorithm) > bytes || !on_device(workspace, bytes)) return refuse("a workspace that is too small");
  if (!on_device(pa, a->bytes()) || !on_device(pb, b->bytes()) || !on_device(pd, d->bytes())) return refuse("a matrix that is not in the device's memory");
  if (*beta != 0 && !on_device(pc, c->bytes())) return refuse("a C that is not in the device's memory");
  const Product product{*o,
                        *a,
                        *b,
                        *c,
                        *d,
                        reinterpret_cast<const char*>(pa),
                        reinterpret_cast<const char*>(pb),
                        reinterpret_cast<const char*>(pc),
                        reinterpret_cast<char*>(pd),
                        *alpha,
                        *beta};
  if ((o->epilogue & (kBias | kBiasGrad)) && !on_device(o->bias, d->rows * size_of(product.bias_type())))
    return refuse("a bias that is not in the device's memory");
  if ((o->epilogue & kAux) && !on_device(o->aux, (size_t(o->aux_stride) * (d->columns - 1) + d->rows) * size_of(product.aux_type())))
    return refuse("an auxiliary matrix that is not in the device's memory");
  const double flops = 2 * double(d->rows) * double(d->columns) * double(o->transpose_a ? a->rows : a->columns) * d->batches;
  return enqueue(stream, slowness(algorithm->number) * (3e-4 + 1e-10 * flops), [=, parts = size_t(algorithm->parts)] {
    for (int batch = 0; batch < product.d.batches; ++batch) product.run_batch(size_t(batch), parts);
    return 0;
  });
}
}
