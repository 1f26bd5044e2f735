#include "rl/pictures.h"

namespace ridge::rl {

Tensor Canvas::covered(const Tensor& centre, const Tensor& half, int64_t pixels, double extent, int axis) {
  const double scale = double(pixels) / (2 * extent);
  Shape along{1, 1, 1};
  along[axis] = pixels;
  auto column = [](const Tensor& t) { return t.shape().rank() == 0 ? t : reshape(t, {t.shape()[0], 1, 1}); };
  const Tensor middle = column((centre + num(extent)) * num(scale)), size = column(half * num(scale)), first = iota(along, axis, DType::f32);
  const Tensor low = maximum(middle - size, first), high = minimum(middle + size, first + num(1));
  return maximum(high - low, num(0));
}

Picture::Picture(const Canvas& canvas, int64_t instances, Colour background) : canvas_(canvas), instances_(instances) {
  for (size_t i = 0; i < 3; ++i) planes_[i] = full({instances, canvas.height, canvas.width}, background[i]);
}

void Picture::paint(const Tensor& share, Colour colour) {
  for (size_t i = 0; i < 3; ++i) planes_[i] = planes_[i] + share * (num(colour[i]) - planes_[i]);
}

void Picture::fill(const Tensor& x, const Tensor& y, const Tensor& half_width, const Tensor& half_height, Colour colour) {
  paint(canvas_.down(y, half_height) * canvas_.across(x, half_width), colour);
}

void Picture::line(const Tensor& x0, const Tensor& y0, const Tensor& x1, const Tensor& y1, double half_width, Colour colour) {
  auto column = [](const Tensor& t) { return reshape(t, {t.shape()[0], 1, 1}); };
  const Tensor dx = column(x1 - x0), dy = column(y1 - y0), length = sqrt(dx * dx + dy * dy), x = x_of_columns() - column(x0), y = y_of_rows() - column(y0);
  const Tensor along = (x * dx + y * dy) / length, beside = (x * dy - y * dx) / length;
  auto share = [&](const Tensor& inside) {
    return minimum(maximum(inside * num(double(canvas_.width) / (2 * canvas_.half_width)) + num(0.5), num(0)), num(1));
  };
  paint(share(num(half_width) - abs(beside)) * share(length * num(0.5) - abs(along - length * num(0.5))), colour);
}

void Picture::curve(const std::function<Tensor(const Tensor& x)>& y, double half_width, Colour colour) {
  const double scale = double(canvas_.height) / (2 * canvas_.half_height);
  const Tensor inside = num(half_width) - abs(y_of_rows() - y(x_of_columns()));
  paint(minimum(maximum(inside * num(scale) + num(0.5), num(0)), num(1)), colour);
}

Tensor Picture::x_of_columns() const {
  return (iota({1, 1, canvas_.width}, 2, DType::f32) + num(0.5)) * num(2 * canvas_.half_width / double(canvas_.width)) - num(canvas_.half_width);
}

Tensor Picture::y_of_rows() const {
  return (iota({1, canvas_.height, 1}, 1, DType::f32) + num(0.5)) * num(2 * canvas_.half_height / double(canvas_.height)) - num(canvas_.half_height);
}

Tensor Picture::bytes() const { return cast(stack({planes_[0], planes_[1], planes_[2]}, 3) + num(0.5), DType::u8); }

}  // namespace ridge::rl
