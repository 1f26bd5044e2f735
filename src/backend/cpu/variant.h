// How a kernel may be built differently from what its model chooses: the candidates that a search measures. A default-constructed variant is the model's
// choice.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ridge {
struct Program;
struct ProgramKernel;
}  // namespace ridge

namespace ridge::cpu {

struct KernelVariant {
  enum class Feed : uint8_t { model, packed, direct };  // a product's operand is copied into panels, or read in place where the tiles can
  enum class Band : uint8_t { model, one, all };        // rows of units that run next to each other

  // Exponents of 2 by which work differs from the model's. `unit`: the work of a unit of a fused group, of attention or of a loop's block of rows.
  int unit = 0, unit_rows = 0, unit_columns = 0, block_rows = 0, parts = 0;
  Feed a = Feed::model, b = Feed::model;
  Band band = Band::model;
  int64_t depth = 0;        // the longest part of a product's sums that is added up in registers; 0: the model's
  bool transposed = false;  // the other one of C and its transpose is computed
  bool pairs = true;        // bf16 factors are multiplied in pairs where the processor can
  bool few_rows = true;     // products of few rows have kernels of their own
  bool epilogue = true;     // a product's epilogue takes its blocks as they are finished; false: after the whole product, from the workspace
  bool ahead = true;        // fused groups prefetch their next block
  bool streams = true;      // large results that are not read soon bypass the cache

  bool operator==(const KernelVariant&) const = default;
};

// What kind of kernel a variant is for.
enum class Tunable : uint8_t { none, product, fused, attention, attention_grad, loop };

struct NamedVariant {
  std::string_view name;  // "depth=256"
  Tunable kind;
  bool same_bits;  // the result's bits are those of the model's choice, whatever the operands
  void (*set)(KernelVariant& v);
};
std::span<const NamedVariant> kernel_variants();
// The variant of a kernel with this key; ErrorCode::io if there is none of this name.
KernelVariant variant_of(std::string_view key, std::string_view name);

// Identifies a kernel's structure, number formats and layout, with sizes rounded to powers of two, so that neighbouring sizes share what was measured:
// "product f32 1x 1024x512x256 kn". Empty: the kernel has no variants.
std::string kernel_key(const Program& program, const ProgramKernel& kernel);
bool applies(const NamedVariant& variant, std::string_view key);  // it could make a difference to such a kernel

}  // namespace ridge::cpu
