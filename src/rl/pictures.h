// Pictures of rectangles, drawn by the share of each pixel that they cover.
#pragma once
#include <array>
#include <functional>

#include "rl/numbers.h"

namespace ridge::rl {

// height × width pixels that show x from -half_width to half_width, and y likewise, down.
struct Canvas {
  int64_t height, width;
  double half_width, half_height;

  // The covered share of every row [instances, height, 1], or column [1 or instances, 1, width], of something that extends `half` to both sides of `centre`
  // (f32 [instances], or one number for all).
  Tensor down(const Tensor& centre, const Tensor& half) const { return covered(centre, half, height, half_height, 1); }
  Tensor across(const Tensor& centre, const Tensor& half) const { return covered(centre, half, width, half_width, 2); }
  Tensor down(const Tensor& centre, double half) const { return down(centre, num(half)); }
  Tensor across(const Tensor& centre, double half) const { return across(centre, num(half)); }

 private:
  static Tensor covered(const Tensor& centre, const Tensor& half, int64_t pixels, double extent, int axis);
};

inline constexpr std::array<double, 3> kSky = {236, 240, 244}, kDark = {60, 66, 80}, kBright = {214, 108, 52};

// A picture in colours, painted from back to front.
class Picture {
 public:
  using Colour = std::array<double, 3>;
  Picture(const Canvas& canvas, int64_t instances, Colour background);
  void fill(const Tensor& x, const Tensor& y, const Tensor& half_width, const Tensor& half_height, Colour colour);
  void fill(const Tensor& x, const Tensor& y, double half_width, double half_height, Colour colour) { fill(x, y, num(half_width), num(half_height), colour); }
  void fill(const Tensor& x, const Tensor& y, const Tensor& half_width, double half_height, Colour colour) { fill(x, y, half_width, num(half_height), colour); }
  void line(const Tensor& x0, const Tensor& y0, const Tensor& x1, const Tensor& y1, double half_width, Colour colour);  // f32 [instances] each
  void curve(const std::function<Tensor(const Tensor& x)>& y, double half_width, Colour colour);                        // the same for all instances
  Tensor bytes() const;                                                                                                 // u8 [instances, height, width, 3]

 private:
  void paint(const Tensor& share, Colour colour);
  Tensor x_of_columns() const;
  Tensor y_of_rows() const;

  Canvas canvas_;
  int64_t instances_;
  std::array<Tensor, 3> planes_;
};

}  // namespace ridge::rl
