// Convolution as all backends' kernels take it: sizes, strides and options of one node of a program.
#pragma once
#include <array>
#include <cstdint>

#include "graph/graph.h"
#include "ridge/dtype.h"

namespace ridge {

struct Program;
struct ProgramKernel;

// out[image, group, output, p] = sum over (channel, t) of x[image, group, channel, (p · stride + t · dilation - low) / spread] · w[group, output, channel, t],
// over the positions in x that are integral and inside. Axes are [down, across]; a 1-D convolution has size 1 down. Steps are in elements.
struct ConvDesc {
  using Axes = std::array<int64_t, 2>;
  DType x = DType::f32, w = DType::f32, result = DType::f32;
  int64_t images = 1, groups = 1, channels = 1, outputs = 1;  // channels and outputs per group
  Axes source{1, 1}, out{1, 1}, window{1, 1}, stride{1, 1}, low{0, 0}, dilation{1, 1}, spread{1, 1};
  struct Steps {
    int64_t first = 0, group = 0, second = 0;  // x: image, channel; w: output, channel; result: image, output
    Axes axes{0, 0};
    int64_t alignment = 64;  // of the address, in bytes
  } x_steps, w_steps, out_steps;

  int64_t positions() const { return out[0] * out[1]; }
  int64_t taps() const { return window[0] * window[1]; }
};

ConvDesc conv_desc(const Graph& graph, NodeId conv);                      // the attributes of a node; no steps
ConvDesc conv_desc(const Program& program, const ProgramKernel& kernel);  // with steps; those of the result only if the kernel stores it without an epilogue

}  // namespace ridge
