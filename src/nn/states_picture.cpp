// States of neurons over time as a picture.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "base/svg.h"
#include "ridge/circuits.h"

namespace ridge {

std::string states_svg(const Tensor& states, const std::string& title) {
  const Shape& shape = states.shape();
  if (shape.rank() != 2 || shape[0] < 1 || shape[1] < 1) fail(ErrorCode::shape, "[states_svg] states {} must be [time, neurons]", to_string(shape));
  const std::vector<float> values = states.to_floats();
  const int64_t steps = shape[0], neurons = shape[1];
  float most = 0;
  for (float v : values) {
    if (!std::isfinite(v)) fail(ErrorCode::value, "[states_svg] a state is {}; only finite states can be drawn", v);
    most = std::max(most, std::abs(v));
  }
  constexpr double kLeft = 64, kTop = 56, kWidth = 640, kBottom = 56;
  constexpr int kShades = 20;
  const double row = std::clamp(420.0 / double(neurons), 3.0, 18.0), column = kWidth / double(steps), height = row * double(neurons);
  svg::Picture picture(kLeft + kWidth + 24, kTop + height + kBottom, title, fmt::format("{} neurons over {} steps", neurons, steps));
  picture.text({kLeft, 30}, svg::fit(title, kWidth, 18, true), {.size = 18, .bold = true});
  for (int64_t n = 0; n < neurons; ++n) {
    auto shade = [&](int64_t t) { return most == 0 ? 0 : int(std::lround(values[size_t(t * neurons + n)] / most * kShades)); };
    const double y = kTop + row * double(n);
    for (int64_t t = 0, end; t < steps; t = end) {  // one rectangle for a run of equal shades
      const int now = shade(t);
      for (end = t + 1; end < steps && shade(end) == now;) ++end;
      if (now)
        picture.rect({kLeft + column * double(t), y, column * double(end - t), row},
                     {.fill = now > 0 ? svg::Ink::red : svg::Ink::blue, .opacity = std::abs(now) / double(kShades)});
    }
    if (n % std::max<int64_t>(1, int64_t(std::ceil(14 / row))) == 0)
      picture.text({kLeft - 8, y + row / 2 + 4}, fmt::format("{}", n), {.size = 11, .ink = svg::Ink::muted, .anchor = svg::Anchor::end});
  }
  picture.rect({kLeft, kTop, kWidth, height}, {.stroke = svg::Ink::rule});
  const double below = kTop + height + 20;
  picture.text({kLeft, below}, "step 0", {.size = 12, .ink = svg::Ink::muted});
  picture.text({kLeft + kWidth, below}, fmt::format("{}", steps - 1), {.size = 12, .ink = svg::Ink::muted, .anchor = svg::Anchor::end});
  picture.text({kLeft + kWidth / 2, below + 20}, fmt::format("blue {:.3g}   to   red {:.3g}, a row per neuron", -most, most),
               {.size = 12, .ink = svg::Ink::muted, .anchor = svg::Anchor::middle});
  return picture.str();
}

}  // namespace ridge
