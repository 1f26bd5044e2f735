// The simulator's cuDNN: descriptors that store their attributes, and convolutions on the host. It proposes several engines, some of which must be rejected:
// one is non-deterministic, one narrows its factors, one is compiled first, one needs more memory than there is, one cannot be planned and one fails when it
// runs.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <vector>

#include "../../cuda/fake_driver/faults.h"
#include "../numbers.h"
#include "device.h"

namespace simulator {
namespace {

using fake::fault;
using Lock = std::lock_guard<std::recursive_mutex>;

constexpr int kBadParameter = 2000, kNotSupported = 3000, kExecutionFailed = 5000;
enum Kind {
  kOperator = 1,
  kEngine = 2,
  kConfig = 3,
  kHeuristic = 4,
  kPlan = 5,
  kForward = 10,
  kByWeights = 11,
  kByX = 12,
  kGraph = 15,
  kPack = 16,
  kTensor = 17
};

struct Engine {
  int64_t number;
  std::vector<int> notes, habits;
  int64_t workspace;  // bytes it needs
  bool planned = true, works = true;
};
const std::vector<Engine>& engines() {
  static const std::vector<Engine> all = {
      {7, {0, 4}, {}, 0},   {8, {0, 1}, {}, 0}, {9, {0}, {0}, 0}, {10, {0}, {}, int64_t(1) << 40}, {11, {0}, {}, 0, false}, {12, {0}, {}, 0, true, false},
      {13, {0}, {3}, 4096}, {14, {}, {}, 0}};
  return all;
}

struct Descriptor {
  int kind = 0;
  bool finished = false;
  std::map<int, std::vector<char>> values;
  size_t engine = 0;  // of a proposal, and its graph
  const Descriptor* graph = nullptr;

  template <class T>
  std::vector<T> list(int attribute) const {
    std::vector<T> all;
    if (const auto at = values.find(attribute); at != values.end()) {
      all.resize(at->second.size() / sizeof(T));
      std::memcpy(all.data(), at->second.data(), all.size() * sizeof(T));
    }
    return all;
  }
  template <class T>
  T value(int attribute) const {
    const std::vector<T> all = list<T>(attribute);
    return all.size() == 1 ? all[0] : T{};
  }
  const Descriptor* other(int attribute) const { return value<const Descriptor*>(attribute); }
};

struct Array {
  int type = 0;
  std::vector<int64_t> sizes, strides;

  explicit Array(const Descriptor& d) : sizes(d.list<int64_t>(902)), strides(d.list<int64_t>(903)) {
    const int number = d.value<int>(901);
    type = number == 9 ? kBf16 : number == 2 ? kF16 : number == 0 ? kF32 : -1;
  }
  bool is_packed(bool last) const {
    const auto& s = sizes;
    const std::vector<int64_t> packed =
        last ? std::vector<int64_t>{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]} : std::vector<int64_t>{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
    return strides == packed;
  }
  size_t bytes() const { return size_t(sizes[0] * sizes[1] * sizes[2] * sizes[3]) * size_of(type); }
  size_t at(int64_t n, int64_t c, int64_t h, int64_t w) const { return size_t(n * strides[0] + c * strides[1] + h * strides[2] + w * strides[3]); }
};

struct Convolution {
  int result = 0;  // 0: y, 1: x, 2: w
  Array x, w, y;
  std::vector<int64_t> stride, low, high, dilation;

  static Convolution of(const Descriptor& operation) {
    const int r = operation.kind == kForward ? 0 : operation.kind == kByX ? 1 : 2;
    const int x = r == 0 ? 704 : r == 1 ? 710 : 716, w = r == 0 ? 703 : r == 1 ? 709 : 715, y = r == 0 ? 705 : r == 1 ? 711 : 717;
    const Descriptor& by = *operation.other(r == 0 ? 702 : r == 1 ? 708 : 714);
    return {r,
            Array(*operation.other(x)),
            Array(*operation.other(w)),
            Array(*operation.other(y)),
            by.list<int64_t>(103),
            by.list<int64_t>(105),
            by.list<int64_t>(104),
            by.list<int64_t>(102)};
  }
  int64_t groups() const { return x.sizes[1] / w.sizes[1]; }

  // Describes what is wrong with it; null: nothing.
  const char* wrong() const {
    for (const Array* a : {&x, &w, &y}) {
      if (a->sizes.size() != 4 || a->strides.size() != 4 || a->type < 0) return "an array is not complete";
      if (!a->is_packed(false) && !a->is_packed(true)) return "an array is not packed";
    }
    if (x.sizes[0] != y.sizes[0] || x.sizes[1] % w.sizes[1] || y.sizes[1] != w.sizes[0] || w.sizes[0] % groups()) return "channels do not fit";
    for (size_t i = 0; i < 2; ++i) {
      const int64_t room = x.sizes[2 + i] + low[i] + high[i] - (w.sizes[2 + i] - 1) * dilation[i] - 1;
      if (low[i] < 0 || high[i] < 0 || room < 0 || room / stride[i] + 1 != y.sizes[2 + i]) return "windows do not fit";
    }
    if (x.type != y.type || (w.type != x.type && (result != 2 || w.type != kF32))) return "types do not fit";
    return nullptr;
  }

  void run(char* px, char* pw, char* py) const {
    const Array& to = result == 0 ? y : result == 1 ? x : w;
    std::vector<float> sums(to.bytes() / size_of(to.type), 0.f);
    const int64_t per_group = w.sizes[0] / groups();
    for (int64_t n = 0; n < y.sizes[0]; ++n)
      for (int64_t o = 0; o < y.sizes[1]; ++o)
        for (int64_t p = 0; p < y.sizes[2]; ++p)
          for (int64_t q = 0; q < y.sizes[3]; ++q)
            for (int64_t c = 0; c < w.sizes[1]; ++c)
              for (int64_t r = 0; r < w.sizes[2]; ++r)
                for (int64_t s = 0; s < w.sizes[3]; ++s) {
                  const int64_t v = p * stride[0] + r * dilation[0] - low[0], u = q * stride[1] + s * dilation[1] - low[1];
                  if (v < 0 || u < 0 || v >= x.sizes[2] || u >= x.sizes[3]) continue;
                  const size_t at_x = x.at(n, o / per_group * w.sizes[1] + c, v, u), at_w = w.at(o, c, r, s), at_y = y.at(n, o, p, q);
                  if (result == 0)
                    sums[at_y] += load(px, x.type, at_x) * load(pw, w.type, at_w);
                  else if (result == 1)
                    sums[at_x] += load(pw, w.type, at_w) * load(py, y.type, at_y);
                  else
                    sums[at_w] += load(px, x.type, at_x) * load(py, y.type, at_y);
                }
    char* out = result == 0 ? py : result == 1 ? px : pw;
    for (size_t i = 0; i < sums.size(); ++i) store(out, to.type, i, sums[i]);
  }
};

Stream* stream = nullptr;

size_t element_bytes(int type) { return type == 3 || type == 5 || type == 6 || type == 15 || type == 0 ? 8 : 4; }

template <class T>
int give(const std::vector<T>& from, int64_t most, int64_t* count, void* to) {
  *count = int64_t(from.size());
  if (to) std::memcpy(to, from.data(), sizeof(T) * size_t(std::min(most, *count)));
  return 0;
}

}  // namespace
}  // namespace simulator

using namespace simulator;

extern "C" {
size_t cudnnGetVersion() { return size_t(fake::setting("SIMULATED_CUDNN", 90100)); }
const char* cudnnGetErrorString(int) { return "CUDNN_STATUS_SIMULATED"; }
int cudnnCreate(void** handle) {
  if (const int code = fault("cudnnCreate")) return code;
  return *handle = new char, 0;
}
int cudnnDestroy(char* handle) { return delete handle, 0; }
int cudnnSetStream(void*, Stream* to) { return stream = to, fault("cudnnSetStream"); }
int cudnnBackendCreateDescriptor(int kind, Descriptor** made) {
  if (const int code = fault("cudnnBackendCreateDescriptor")) return code;
  *made = new Descriptor;
  (*made)->kind = kind;
  return 0;
}
int cudnnBackendDestroyDescriptor(Descriptor* d) { return delete d, 0; }
int cudnnBackendSetAttribute(Descriptor* d, int attribute, int type, int64_t count, const void* from) {
  if (d->finished) return kBadParameter;
  const char* bytes = static_cast<const char*>(from);
  d->values[attribute].assign(bytes, bytes + size_t(count) * element_bytes(type));
  return fault("cudnnBackendSetAttribute");
}
int cudnnBackendFinalize(Descriptor* d) {
  if (const int code = fault("cudnnBackendFinalize")) return code;
  if (d->finished) return kBadParameter;
  if (d->kind == kForward || d->kind == kByX || d->kind == kByWeights) {
    if (const char* why = Convolution::of(*d).wrong()) return std::fprintf(stderr, "simulated cuDNN: %s\n", why), kBadParameter;
  }
  if (d->kind == kPlan && !engines()[d->other(401)->engine].planned) return kNotSupported;
  return d->finished = true, 0;
}
int cudnnBackendGetAttribute(const Descriptor* d, int attribute, int, int64_t most, int64_t* count, void* to) {
  if (const int code = fault("cudnnBackendGetAttribute")) return code;
  if (d->kind == kHeuristic && attribute == 202) {
    *count = d->value<int>(200) == 3 ? int64_t(engines().size()) : 0;
    for (int64_t i = 0; to && i < std::min(most, *count); ++i) {
      Descriptor& config = *static_cast<Descriptor**>(to)[i];
      config.engine = size_t(i), config.graph = d->other(201);
    }
    return 0;
  }
  const Engine& e = engines()[d->kind == kPlan ? d->other(401)->engine : d->engine];
  switch (attribute) {
    case 300: return (*static_cast<Descriptor**>(to))->engine = d->engine, *count = 1, 0;
    case 402: return give(std::vector<int64_t>{e.workspace}, most, count, to);
    case 1301: return give(std::vector<int64_t>{e.number}, most, count, to);
    case 1303: return give(e.notes, most, count, to);
    case 1305: return give(e.habits, most, count, to);
    default: return kBadParameter;
  }
}
int cudnnBackendExecute(void*, const Descriptor* plan, const Descriptor* pack) {
  const Lock lock(device_mutex());
  if (const int code = fault("cudnnBackendExecute")) return code;
  auto refuse = [](const char* why) { return std::fprintf(stderr, "simulated cuDNN: %s\n", why), kBadParameter; };
  const size_t engine = plan->other(401)->engine;
  if (!engines()[engine].works) return kExecutionFailed;
  const Convolution c = Convolution::of(*plan->other(401)->graph->other(801));
  const std::vector<int64_t> ids = pack->list<int64_t>(1000);
  const std::vector<uint64_t> pointers = pack->list<uint64_t>(1001);
  if (ids.size() != 3 || pointers.size() != 3) return refuse("three arrays are wanted");
  std::map<int64_t, uint64_t> at;
  for (size_t i = 0; i < 3; ++i) at[ids[i]] = pointers[i];
  const uint64_t workspace = pack->value<uint64_t>(1003);
  if (workspace % 256 != 0 || !on_device(workspace, size_t(engines()[engine].workspace))) return refuse("a workspace that is too small");
  if (!on_device(at[1], c.x.bytes()) || !on_device(at[2], c.w.bytes()) || !on_device(at[3], c.y.bytes()))
    return refuse("an array that is not in the device's memory");
  const double flops = 2 * double(c.y.bytes()) * double(c.w.sizes[1] * c.w.sizes[2] * c.w.sizes[3]);
  return enqueue(stream, 1e-4 + 1e-10 * flops, [=] {
    c.run(reinterpret_cast<char*>(at.at(1)), reinterpret_cast<char*>(at.at(2)), reinterpret_cast<char*>(at.at(3)));
    std::memset(reinterpret_cast<void*>(workspace), 0x5a, size_t(engines()[engine].workspace));
    return 0;
  });
}
}
