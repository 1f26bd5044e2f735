// Shared by the kernels of single nodes: a list of launches, copies and fills, argument structs, element types as text, and the functions that make the
// kernels.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/gpu/kernel.h"
#include "backend/node_parts.h"

namespace ridge::gpu {

// Every entry takes one struct of 8-byte words by value: addresses and integers.
struct Word {
  Word(Place p) : place(p), is_place(true) {}
  Word(int64_t v) : value(v) {}
  Place place;
  int64_t value = 0;
  bool is_place = false;
};
using Words = std::vector<Word>;
inline constexpr int kMaxWords = 96;
inline constexpr int64_t kBlock = 256;  // threads in every block

// A kernel that is a list of steps. The constructor adds texts; bind adds steps.
class NodeKernel : public Kernel {
 public:
  explicit NodeKernel(const GpuChip& chip) : dialect_(*chip.dialect) {}
  std::vector<KernelText> texts() const override { return texts_; }
  void load(Loader& loader) override;
  void enqueue(Bases bases, LaunchSink& sink) const override;
  int launches() const override { return int(steps_.size()); }

 protected:
  friend class RadixSort;
  friend class SegmentSums;
  int add_text(std::string entry, std::string_view body, int64_t shared = 0);  // with @words, to be replaced by the dialect
  int add(KernelText text);                                                    // in the device's own language
  void clear() { steps_.clear(); }
  void launch(int text, int64_t blocks, Words words);
  void copy(Place from, Place to, int64_t bytes);  // does nothing if both places are the same
  void fill_with_zeros(Place to, int64_t bytes);

 private:
  struct Step {
    int text = -1;  // -1: a copy, or a fill if `from` is absent
    int64_t blocks = 0;
    Words words;
    Place from, to;
    int64_t bytes = 0;
  };
  std::vector<KernelText> texts_;
  std::vector<KernelFunction> functions_;
  std::vector<Step> steps_;
  const KernelDialect& dialect_;
};

// Kernel texts. An element type provides Stored, Total, load_element, store_element and add_elements: half types are summed in f32, integers modulo 2^bits,
// booleans with `or`. A word is an unsigned integer of the element's size.
std::string element_text(DType dtype);
std::string word_text(int64_t bytes);
// Defines Index, which has 32 bits if all integers up to `largest` fit, else 64; and Divider with quotient(divider, n) for n up to `largest`, built from the
// words of divider(size).
std::string index_text(int64_t largest);
void append_divider(Words& words, int64_t size);
std::string constant_text(std::string_view name, int64_t value);

inline int64_t blocks_of(int64_t n, int64_t size) { return (n + size - 1) / size; }
inline int64_t sum_bytes(DType dtype) { return size_of(dtype) == 8 ? 8 : 4; }
inline bool is_half(DType dtype) { return is_float(dtype) && size_of(dtype) == 2; }
inline int64_t rounded(int64_t bytes) { return blocks_of(bytes, 256) * 256; }
inline Place moved(Place p, int64_t bytes) { return p ? Place{p.base, p.offset + bytes} : p; }
inline bool same_place(Place a, Place b) { return a.base == b.base && a.offset == b.offset; }

}  // namespace ridge::gpu
