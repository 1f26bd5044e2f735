#include "bench/compiled.h"

#include <algorithm>
#include <cstring>

#include "backend/backend.h"
#include "base/error.h"
#include "base/half.h"
#include "base/rng.h"
#include "machine/caches.h"
#include "measure/ceilings.h"
#include "runtime/arena.h"
#include "runtime/buffer_pool.h"
#include "runtime/executable.h"

namespace ridge::bench {
namespace {

// Values in (-1, 1), the same in every run. One block is drawn and repeated, since drawing takes longer than most rows.
void fill(std::byte* data, const Type& type, uint32_t stream) {
  constexpr int64_t kBlock = 1 << 16;
  const int64_t n = type.shape.numel(), element = size_of(type.dtype), drawn = std::min(n, kBlock);
  for (int64_t i = 0; i < drawn; ++i) {
    const float x = 2 * uniform_from(random_word({1, 0, stream}, uint64_t(i))) - 1;
    auto put = [&](auto value) { std::memcpy(data + i * element, &value, sizeof value); };
    switch (type.dtype) {
      case DType::f32: put(x); break;
      case DType::f64: put(double(x)); break;
      case DType::bf16: put(f32_to_bf16(x)); break;
      case DType::f16: put(f32_to_f16(x)); break;
      case DType::i32: put(int32_t(0)); break;
      case DType::i64: put(int64_t(0)); break;
      case DType::u8:
      case DType::boolean: put(uint8_t(x > 0)); break;
    }
  }
  for (int64_t i = drawn; i < n; i += drawn) std::memcpy(data + i * element, data, size_t(std::min(drawn, n - i) * element));
}

CompileOptions options(const Context& context, const std::string& passes) {
  CompileOptions options(context.backend);
  options.passes = passes;
  return options;
}

// The same on a device: one block is copied there and doubled until it is long enough.
void fill_on_device(Backend& device, std::byte* data, const Type& type, uint32_t stream) {
  const int64_t bytes = type.bytes(), drawn = std::min<int64_t>(bytes, (int64_t(1) << 16) * size_of(type.dtype));
  std::vector<std::byte> block(size_t(std::max<int64_t>(drawn, 1)));
  fill(block.data(), {type.dtype, {drawn / size_of(type.dtype)}}, stream);
  device.upload(data, block.data(), drawn);
  for (int64_t done = drawn; done < bytes;) {
    const int64_t part = std::min(done, bytes - done);
    device.copy(data + done, data, part);
    done += part;
  }
}

struct Compiled {
  struct Set {
    BufferPool::Buffer memory;
    std::unique_ptr<Arena> device;  // used instead for device memory
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
  };
  BufferPool pool;
  Executable executable;
  std::vector<Set> sets;

  Compiled(const Graph& graph, const Formula& formula, const Context& context, const std::string& passes)
      : executable(graph, formula.inputs, formula.outputs, options(context, passes)) {
    const bool on_device = !context.backend.host_memory();
    int64_t bytes = 0;
    for (const Type& t : executable.input_types()) bytes += t.bytes();
    for (const Type& t : executable.output_types()) bytes += t.bytes();
    const int64_t area = context.state == State::cold && !on_device ? 4 * last_level_cache_bytes() : 1;  // cold rows of a device are larger anyway
    const int64_t count = std::max<int64_t>(1, (area + bytes - 1) / std::max<int64_t>(1, bytes));
    // Each set is one block, like a program's own values, so that its pages are huge if the system supports that. Different offsets keep operands of equal size
    // from colliding in the same cache sets.
    constexpr int64_t kAlign = 256, kColours = 16;
    const int64_t skew = on_device ? 0 : 3 * 4096 + 5 * 64;
    std::vector<int64_t> offsets;
    int64_t end = 0;
    auto lay_out = [&](const std::vector<Type>& types) {
      for (const Type& t : types) {
        end += skew * (int64_t(offsets.size()) % kColours);
        offsets.push_back(end);
        end += (t.bytes() + kAlign - 1) / kAlign * kAlign;
      }
    };
    lay_out(executable.input_types()), lay_out(executable.output_types());
    uint32_t stream = 0;
    for (int64_t s = 0; s < count; ++s) {
      Set& set = sets.emplace_back();
      if (on_device) {
        set.device = std::make_unique<Arena>(context.backend);
        set.device->require(end);
      } else {
        set.memory = pool.acquire(end);
      }
      auto place = [&, at = offsets.begin()](const Type& t) mutable {
        std::byte* data = (set.device ? set.device->data() : set.memory.data()) + *at++;
        if (on_device)
          fill_on_device(context.backend, data, t, stream++);
        else
          fill(data, t, stream++);
        return data;
      };
      for (const Type& t : executable.input_types()) set.inputs.push_back(place(t));
      for (const Type& t : executable.output_types()) set.outputs.push_back(place(t));
    }
  }

  void run(int64_t iteration) {
    const Set& set = sets[size_t(iteration) % sets.size()];
    executable.run(set.inputs, set.outputs);
  }
};

}  // namespace

NodeId input(Builder& b, Formula& formula, const Shape& shape, DType dtype) {
  formula.inputs.push_back(b.graph().input({dtype, shape}, fmt::format("x{}", formula.inputs.size())));
  return formula.inputs.back();
}

Call compile(const Context& context, const Trace& trace, const std::string& passes) {
  Graph graph;
  Builder builder(graph);
  const Formula formula = trace(builder);
  auto compiled = std::make_shared<Compiled>(graph, formula, context, passes);
  if (context.dump) *context.dump = [compiled] { return compiled->executable.dump(); };
  return [compiled](int64_t iteration) { compiled->run(iteration); };
}

}  // namespace ridge::bench
