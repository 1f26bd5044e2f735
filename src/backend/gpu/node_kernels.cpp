#include <array>
#include <limits>

#include <fmt/core.h>

#include "backend/gpu/make.h"
#include "backend/gpu/node_parts.h"
#include "base/error.h"

namespace ridge::gpu {

void NodeKernel::load(Loader& loader) {
  functions_.clear();
  for (const KernelText& text : texts_) functions_.push_back(loader.loaded(text));
}

int NodeKernel::add_text(std::string entry, std::string_view body, int64_t shared) { return add({std::move(entry), dialect_.write(body), shared}); }

int NodeKernel::add(KernelText text) {
  texts_.push_back(std::move(text));
  return int(texts_.size()) - 1;
}

void NodeKernel::launch(int text, int64_t blocks, Words words) {
  if (blocks == 0) return;
  if (blocks > std::numeric_limits<int32_t>::max())
    fail(ErrorCode::unsupported, "[{}] {} blocks are above the GPU's {}; split the operation", texts_[size_t(text)].entry, blocks,
         std::numeric_limits<int32_t>::max());
  if (words.size() > size_t(kMaxWords)) fail(ErrorCode::internal, "[{}] {} words of arguments", texts_[size_t(text)].entry, words.size());
  Step step;
  step.text = text, step.blocks = blocks, step.words = std::move(words);
  steps_.push_back(std::move(step));
}

void NodeKernel::copy(Place from, Place to, int64_t bytes) {
  if (bytes == 0 || same_place(from, to)) return;
  Step step;
  step.from = from, step.to = to, step.bytes = bytes;
  steps_.push_back(std::move(step));
}

void NodeKernel::fill_with_zeros(Place to, int64_t bytes) {
  if (bytes == 0) return;
  Step step;
  step.to = to, step.bytes = bytes;
  steps_.push_back(std::move(step));
}

void NodeKernel::enqueue(Bases bases, LaunchSink& sink) const {
  for (const Step& s : steps_) {
    if (s.text >= 0) {
      std::array<uint64_t, kMaxWords> words;
      for (size_t i = 0; i < s.words.size(); ++i) words[i] = s.words[i].is_place ? at(bases, s.words[i].place) : uint64_t(s.words[i].value);
      sink.launch(functions_[size_t(s.text)], s.blocks, int(kBlock), texts_[size_t(s.text)].shared, std::as_bytes(std::span(words).first(s.words.size())));
    } else if (s.from) {
      // The same memory may be bound to two places.
      if (at(bases, s.from) != at(bases, s.to)) sink.copy(at(bases, s.to), at(bases, s.from), s.bytes);
    } else {
      sink.fill_with_zeros(at(bases, s.to), s.bytes);
    }
  }
}

std::string element_text(DType dtype) {
  auto types = [](std::string_view stored, std::string_view sum, std::string_view load, std::string_view store, std::string_view add) {
    return fmt::format(
        "typedef {0} Stored;\ntypedef {1} Total;\n"
        "RIDGE_INLINE Total load_element(Stored x) {{ return {2}; }}\n"
        "RIDGE_INLINE Stored store_element(Total x) {{ return {3}; }}\n"
        "RIDGE_INLINE Total add_elements(Total a, Total b) {{ return {4}; }}\n",
        stored, sum, load, store, add);
  };
  switch (dtype) {
    case DType::boolean: return types("unsigned char", "unsigned", "x != 0", "(unsigned char)x", "a | b");
    case DType::u8: return types("unsigned char", "unsigned", "x", "(unsigned char)x", "a + b");
    case DType::i32: return types("unsigned", "unsigned", "x", "x", "a + b");
    case DType::i64: return types("unsigned long long", "unsigned long long", "x", "x", "a + b");
    case DType::f16: return types("unsigned short", "float", "f16_to_f32(x)", "f32_to_f16(x)", "a + b");
    case DType::bf16: return types("unsigned short", "float", "bf16_to_f32(x)", "f32_to_bf16(x)", "a + b");
    case DType::f32: return types("float", "float", "x", "x", "a + b");
    case DType::f64: return types("double", "double", "x", "x", "a + b");
  }
  fail(ErrorCode::internal, "[node] unknown dtype {}", int(dtype));
}

std::string word_text(int64_t bytes) {
  switch (bytes) {
    case 1: return "typedef unsigned char Word;\n";
    case 2: return "typedef unsigned short Word;\n";
    case 4: return "typedef unsigned Word;\n";
    case 8: return "typedef unsigned long long Word;\n";
    default: return "typedef uint4 Word;\n";
  }
}

// Division by a number unknown to the compiler costs about thirty instructions; this takes a product and a shift: n / d = (n + high(n * m)) >> s with s =
// ceil(log2 d) and m = 2^32 * (2^s - d) / d + 1, exact for n below 2^31.
std::string index_text(int64_t largest) {
  if (largest > std::numeric_limits<int32_t>::max())
    return "typedef long long Index;\nstruct Divider { i64 size, magic, shift; };\n"
           "RIDGE_INLINE i64 quotient(@constant const Divider& d, i64 n) { return n / d.size; }\n";
  return "typedef int Index;\nstruct Divider { i64 size, magic, shift; };\n"
         "RIDGE_INLINE int quotient(@constant const Divider& d, int n) { return int((u32(n) + @high_product(u32(n), u32(d.magic))) >> u32(d.shift)); }\n";
}

void append_divider(Words& words, int64_t size) {
  int shift = 0;
  while ((int64_t(1) << shift) < size) ++shift;
  const bool narrow = size <= std::numeric_limits<int32_t>::max();
  const int64_t magic = narrow ? int64_t((uint64_t((int64_t(1) << shift) - size) << 32) / uint64_t(size) + 1) : 0;
  words.insert(words.end(), {size, magic, int64_t(shift)});
}

std::string constant_text(std::string_view name, int64_t value) { return fmt::format("constexpr long long {} = {};\n", name, value); }

// Each is defined in its own file.
std::unique_ptr<Kernel> make_scatter(const Graph& graph, NodeId node, const GpuChip& chip);  // scatter and scatter_add
std::unique_ptr<Kernel> make_take_grad(const Graph& graph, NodeId node, const GpuChip& chip);
std::unique_ptr<Kernel> make_dynamic_update_slice(const Graph& graph, NodeId node, const GpuChip& chip);
std::unique_ptr<Kernel> make_pad(const Graph& graph, NodeId node, const GpuChip& chip);
std::unique_ptr<Kernel> make_fold(const Graph& graph, NodeId node, const GpuChip& chip);
std::unique_ptr<Kernel> make_cumsum(const Graph& graph, NodeId node, const GpuChip& chip);
std::unique_ptr<Kernel> make_sort(const Graph& graph, NodeId node, const GpuChip& chip);

std::unique_ptr<Kernel> make_node_kernel(const Graph& graph, NodeId node, const GpuChip& chip) {
  using Make = std::unique_ptr<Kernel>(const Graph&, NodeId, const GpuChip&);
  static constexpr NodeMaker<Make> makers[] = {
      {Op::scatter, make_scatter},
      {Op::scatter_add, make_scatter},
      {Op::take_grad, make_take_grad},
      {Op::fold, make_fold},
      {Op::cumsum, make_cumsum},
      {Op::sort, make_sort},
      {Op::pad, make_pad},
      {Op::dynamic_update_slice, make_dynamic_update_slice},
  };
  return maker_of<Make>(makers, graph[node].op)(graph, node, chip);
}

}  // namespace ridge::gpu
