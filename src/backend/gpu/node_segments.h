// Sums rows that share a target: [outer, n, inner] -> [outer, targets, inner], from records sorted by target.
#pragma once
#include "backend/gpu/node_parts.h"

namespace ridge::gpu {

class SegmentSums {
 public:
  enum class Result { written, added };  // written: targets that no row refers to become zero; added: sums are added to the existing values

  SegmentSums() = default;
  SegmentSums(NodeKernel& kernel, DType dtype, Result result, std::string key_type, int64_t outer, int64_t n, int64_t targets, int64_t inner);

  int64_t workspace_bytes() const { return partial_bytes_; }
  void append(NodeKernel& kernel, Place rows, Place out, Place keys, Place places, Place workspace) const;

 private:
  struct Form {  // how many elements a thread processes
    int64_t vector = 0;
    int sums = -1, joins = -1;
  };
  Form add_form(NodeKernel& kernel, int64_t vector) const;

  DType dtype_ = DType::f32;
  Result result_ = Result::written;
  std::string key_type_;
  int64_t outer_ = 1, n_ = 0, targets_ = 0, inner_ = 1, parts_ = 0, partial_bytes_ = 0;
  Form wide_, narrow_;
};

}  // namespace ridge::gpu
