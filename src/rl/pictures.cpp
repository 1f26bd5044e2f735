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

void Picture::fill(const Tensor& x, const Tensor& y, const Tensor& half_width, const Tensor& half_height, Colour colour) {
  const Tensor share = canvas_.down(y, half_height) * canvas_.across(x, half_width);
  for (size_t i = 0; i < 3; ++i) planes_[i] = planes_[i] + share * (num(colour[i]) - planes_[i]);
}

Tensor Picture::bytes() const { return cast(stack({planes_[0], planes_[1], planes_[2]}, 3) + num(0.5), DType::u8); }

}  // namespace ridge::rl
