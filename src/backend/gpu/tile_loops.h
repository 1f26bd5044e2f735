// A fused group's axes in the form that kernels iterate over, and the facts that follow from them: the axes a value varies over, the reductions it depends on,
// how many elements a thread can process together, and how wide an element index must be.
#pragma once
#include <cstdint>
#include <vector>

#include "compile/tile_group.h"

namespace ridge::gpu {

// The same group over fewer axes: axes of size 1 are dropped, neighbours are merged if every access allows it, and a map's axes follow the order of its output.
// At least one axis remains; in a row or column group, at least one reduced axis.
TileGroup simplified(const TileGroup& group);

struct TileFacts {
  std::vector<uint32_t> mask;  // axes that a node's value varies over, as bits; for a store, also those of its access
  std::vector<int> phase;      // length of the chain of reductions it depends on; a reduction counts itself
  uint32_t reduced = 0;        // axes, as bits
  int axis = 0;                // the fastest axis, along which a thread processes several elements
  int phases = 0;              // length of the longest chain of reductions
  int store_phase = 0;         // the phase that performs stores within rows or columns; the last one unless a schedule says otherwise
  std::vector<char> early;     // by node: a store that is performed as soon as its value is known; empty: none
  int store_phase_of(int store) const { return !early.empty() && early[size_t(store)] ? phase[size_t(store)] : store_phase; }
  bool body(int node) const { return (mask[size_t(node)] & (reduced ? reduced : ~0u)) != 0; }  // varies within a row or column
  bool wide(int node) const { return mask[size_t(node)] >> axis & 1; }
};
TileFacts facts_of(const TileGroup& group);

uint32_t full_mask(const TileGroup& group);      // all axes of the loops, as bits
int64_t kept_points(const TileGroup& group);     // product of the axes that are not reduced
int64_t reduced_points(const TileGroup& group);  // product of the reduced axes
std::vector<int> reduced_axes(const TileGroup& group);
std::vector<int> kept_axes(const TileGroup& group);  // for a column group, includes the last axis

// How many elements along the fastest axis every access can move together: 8, 4, 2 or 1. `open`: that axis may end within a vector.
int vector_width(const TileGroup& group, const TileFacts& facts, bool open);

bool fits_32_bits(const TileGroup& group);  // all element indices

// Loads of a map that are contiguous along an axis other than the fastest, and that axis; -1: none.
struct Transposed {
  int axis = -1;
  std::vector<int> loads;
};
Transposed transposed_loads(const TileGroup& group, const TileFacts& facts);

bool is_wide_gather(const TileFacts& facts, const TileAccess& access);  // each element of a vector has its own index

}  // namespace ridge::gpu
