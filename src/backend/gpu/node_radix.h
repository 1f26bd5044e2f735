// A stable radix sort of (key, place) records in workspace, for all rows together; two launches per digit.
#pragma once
#include "backend/gpu/node_parts.h"

namespace ridge::gpu {

// How the first pass reads keys, and where the last pass writes records. The texts can use the arguments `a`, a row and a place in the row.
struct RadixSource {
  std::string key;  // typedef Key, struct Source, Key first_key(const Source&, i64 row, i64 i)
  std::string put;  // void last_put(const Source&, i64 row, i64 to, Key key, u32 place); empty: records are stored in workspace
  int64_t key_bytes = 4;
};

class RadixSort {
 public:
  RadixSort() = default;
  // Sorts by the lowest `bits` of the keys. n must be below 2^32.
  RadixSort(NodeKernel& kernel, const RadixSource& source, int64_t rows, int64_t n, int bits);

  int64_t workspace_bytes() const;
  void append(NodeKernel& kernel, Place workspace, const Words& source) const;  // `source`: the words of struct Source
  // The sorted records, if they are stored in workspace.
  Place keys(Place workspace) const { return keys_at(workspace, passes_ - 1); }
  Place places(Place workspace) const { return moved(keys(workspace), key_bytes_); }

 private:
  Place keys_at(Place workspace, int pass) const { return moved(workspace, rounded(counts_bytes_) + (pass & 1) * (key_bytes_ + place_bytes_)); }

  int64_t rows_ = 0, n_ = 0, chunk_ = 1, chunks_ = 1;
  int passes_ = 1;
  bool stores_ = true;
  int64_t key_bytes_ = 0, place_bytes_ = 0, counts_bytes_ = 0;  // for all rows, rounded up
  struct Texts {
    int count = -1, place = -1;
  };
  Texts first_, middle_, last_;
};

}  // namespace ridge::gpu
