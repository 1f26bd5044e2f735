// A fused group's axes as kernels walk them, and what follows from them alone: what a value varies over, how many reductions come
// before it, how many elements a thread may take at once, how wide an element number is.
#pragma once
#include <cstdint>
#include <vector>

#include "compile/tile_group.h"

namespace ridge::gpu {

// The same group over fewer axes: those of size 1 dropped, neighbours merged where every access allows it, a map's axes in the order
// of its output. At least one axis is left, of a row or column group at least one that is reduced.
TileGroup simplified(const TileGroup& group);

struct TileFacts {
  std::vector<uint32_t> mask;  // axes that a node's value varies over, as bits; of a store also those of its access
  std::vector<int> phase;      // reductions in a row that it waits for; of a reduction itself included
  uint32_t reduced = 0;        // axes, as bits
  int axis = 0;                // the fastest axis, along which a thread takes several elements
  int phases = 0;              // reductions in a row
  int store_phase = 0;         // in which stores within rows or columns are made; the last one unless a schedule says otherwise
  std::vector<char> early;     // by node: a store that is made as soon as its value is known; empty: none
  int store_phase_of(int store) const { return !early.empty() && early[size_t(store)] ? phase[size_t(store)] : store_phase; }
  bool body(int node) const { return (mask[size_t(node)] & (reduced ? reduced : ~0u)) != 0; }  // varies within a row or column
  bool wide(int node) const { return mask[size_t(node)] >> axis & 1; }
};
TileFacts facts_of(const TileGroup& group);

uint32_t full_mask(const TileGroup& group);      // all axes that are walked, as bits
int64_t kept_points(const TileGroup& group);     // product of the axes that are not reduced
int64_t reduced_points(const TileGroup& group);  // product of those that are
std::vector<int> reduced_axes(const TileGroup& group);
std::vector<int> kept_axes(const TileGroup& group);  // of a column group the last one too

// Elements along the fastest axis that every access can move at once: 8, 4, 2 or 1. `open`: that axis may end within a vector.
int vector_width(const TileGroup& group, const TileFacts& facts, bool open);

bool fits_32_bits(const TileGroup& group);  // all element numbers

// Loads of a map that are contiguous along another axis than the fastest, and that axis; -1: none.
struct Transposed {
  int axis = -1;
  std::vector<int> loads;
};
Transposed transposed_loads(const TileGroup& group, const TileFacts& facts);

bool is_wide_gather(const TileFacts& facts, const TileAccess& access);  // every element of a vector comes from a place of its own

}  // namespace ridge::gpu
