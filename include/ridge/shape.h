// Shapes and other short lists of int64: inline storage, rank at most 8, checked sizes.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace ridge {

inline constexpr int kMaxRank = 8;

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims);
  static Shape filled(int rank, int64_t value);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[axis]; }
  int64_t& operator[](int axis) { return dims_[axis]; }
  int64_t back() const { return dims_[rank_ - 1]; }
  void push_back(int64_t dim);
  void insert(int axis, int64_t dim);
  void erase(int axis);

  const int64_t* begin() const { return dims_; }
  const int64_t* end() const { return dims_ + rank_; }
  operator std::span<const int64_t>() const { return {dims_, size_t(rank_)}; }

  // Number of elements; ErrorCode::value when it does not fit into 63 bits.
  int64_t numel() const;
  bool operator==(const Shape& other) const;

 private:
  int64_t dims_[kMaxRank] = {};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);                        // "[2, 3]"
Shape contiguous_strides(const Shape& shape);                     // in elements
Shape broadcast(const Shape& a, const Shape& b, const char* op);  // ErrorCode::shape with both shapes
int normal_axis(int64_t axis, int rank, const char* op);          // negative counts from the end; ErrorCode::axis

}  // namespace ridge
