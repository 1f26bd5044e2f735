#include "ridge/shape.h"

#include <algorithm>

#include "base/error.h"

namespace ridge {

Shape::Shape(std::span<const int64_t> dims) {
  if (dims.size() > kMaxRank) fail(ErrorCode::shape, "[shape] rank {} is above {}; merge axes with reshape", dims.size(), kMaxRank);
  rank_ = int(dims.size());
  std::copy(dims.begin(), dims.end(), dims_);
}

Shape Shape::filled(int rank, int64_t value) {
  Shape s;
  for (int i = 0; i < rank; ++i) s.push_back(value);
  return s;
}

void Shape::push_back(int64_t dim) {
  if (rank_ == kMaxRank) fail(ErrorCode::shape, "[shape] rank above {}; merge axes with reshape", kMaxRank);
  dims_[rank_++] = dim;
}

void Shape::insert(int axis, int64_t dim) {
  push_back(dim);
  std::rotate(dims_ + axis, dims_ + rank_ - 1, dims_ + rank_);
}

void Shape::erase(int axis) {
  std::copy(dims_ + axis + 1, dims_ + rank_, dims_ + axis);
  dims_[--rank_] = 0;
}

int64_t Shape::numel() const {
  if (std::find(begin(), end(), 0) != end()) return 0;  // empty, however large the other dimensions
  int64_t n = 1;
  for (int64_t d : *this) {
    if (__builtin_mul_overflow(n, d, &n)) fail(ErrorCode::value, "[shape] {} has more than 2^63 elements", to_string(*this));
  }
  return n;
}

bool Shape::operator==(const Shape& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

std::string to_string(const Shape& shape) {
  std::string s = "[";
  for (int i = 0; i < shape.rank(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

Shape contiguous_strides(const Shape& shape) {
  Shape s = Shape::filled(shape.rank(), 1);
  for (int i = shape.rank() - 2; i >= 0; --i) s[i] = s[i + 1] * std::max<int64_t>(shape[i + 1], 1);
  return s;
}

Shape broadcast(const Shape& a, const Shape& b, const char* op) {
  Shape out = Shape::filled(std::max(a.rank(), b.rank()), 1);
  for (int i = 1; i <= out.rank(); ++i) {
    int64_t x = i <= a.rank() ? a[a.rank() - i] : 1, y = i <= b.rank() ? b[b.rank() - i] : 1;
    if (x != y && x != 1 && y != 1)
      fail(ErrorCode::shape, "[{}] shapes {} and {} do not broadcast: axis {} from the end has {} and {}; reshape one operand so that sizes match or are 1", op,
           to_string(a), to_string(b), i, x, y);
    out[out.rank() - i] = x == 1 ? y : x;
  }
  return out;
}

int normal_axis(int64_t axis, int rank, const char* op) {
  if (axis < -rank || axis >= rank) fail(ErrorCode::axis, "[{}] axis {} is out of range for rank {}; valid: {} to {}", op, axis, rank, -rank, rank - 1);
  return int(axis < 0 ? axis + rank : axis);
}

}  // namespace ridge
