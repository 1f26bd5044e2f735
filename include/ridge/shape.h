// Shapes, and other short lists of int64 such as strides: stored inline, at most 8 entries.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace ridge {

inline constexpr int kMaxRank = 8;  // the largest number of axes

// The sizes of a tensor's axes, outermost first. A scalar has rank 0.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims);
  static Shape filled(int rank, int64_t value);  // `rank` entries, all equal to `value`

  int rank() const { return rank_; }  // the number of axes
  int64_t operator[](int axis) const { return dims_[axis]; }
  int64_t& operator[](int axis) { return dims_[axis]; }
  int64_t back() const { return dims_[rank_ - 1]; }  // the innermost axis
  void push_back(int64_t dim);
  void insert(int axis, int64_t dim);
  void erase(int axis);

  const int64_t* begin() const { return dims_; }
  const int64_t* end() const { return dims_ + rank_; }
  operator std::span<const int64_t>() const { return {dims_, size_t(rank_)}; }

  // Number of elements. Throws ErrorCode::value if it does not fit into 63 bits.
  int64_t numel() const;
  bool operator==(const Shape& other) const;

 private:
  int64_t dims_[kMaxRank] = {};
  int rank_ = 0;
};

// The shape as text: "[2, 3]".
std::string to_string(const Shape& shape);

// Strides, in elements, of a contiguous tensor of this shape.
Shape contiguous_strides(const Shape& shape);

// The common shape of a and b after broadcasting. Throws ErrorCode::shape with both shapes; `op` names the operation in the message.
Shape broadcast(const Shape& a, const Shape& b, const char* op);

// Normalises an axis to 0 … rank - 1; negative numbers count from the end. Throws ErrorCode::axis if out of range.
int normal_axis(int64_t axis, int rank, const char* op);

}  // namespace ridge
