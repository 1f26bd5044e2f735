// The memory layouts of a convolution's operands that kernels accept as views.
#pragma once
#include <array>
#include <optional>

#include "compile/index_map.h"

namespace ridge {

// Strides of an axis viewed as [outer, inner]; nullopt when its loops are split differently.
inline std::optional<std::array<int64_t, 2>> axis_steps(const std::vector<View::Loop>& loops, int64_t outer, int64_t inner) {
  std::vector<View::Loop> left;
  for (const View::Loop& l : loops)
    if (l.size != 1) left.push_back(l);
  if (left.empty()) return std::array<int64_t, 2>{0, 0};
  if (left.size() == 1) return std::array<int64_t, 2>{left[0].stride * inner, left[0].stride};
  if (left.size() == 2 && left[0].size == outer && left[1].size == inner) return std::array<int64_t, 2>{left[0].stride, left[1].stride};
  return std::nullopt;
}

// Strides per axis: [outer, inner] for the axis that the groups divide, one for every other axis.
inline std::optional<std::vector<int64_t>> conv_steps(const View& view, const Shape& shape, int grouped, int64_t groups) {
  std::vector<int64_t> steps;
  for (int i = 0; i < shape.rank(); ++i) {
    const auto two = axis_steps(view.axes[size_t(i)], i == grouped ? groups : 1, i == grouped ? shape[i] / groups : shape[i]);
    if (!two) return std::nullopt;
    if (i == grouped) steps.push_back((*two)[0]);
    steps.push_back((*two)[1]);
  }
  return steps;
}

}  // namespace ridge
