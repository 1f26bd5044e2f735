// The roofline as a picture: what a kernel can reach at most, by its flops per byte. Slopes are the bandwidths of the memory levels,
// flat lines the multiply-add rates; where they meet is the ridge.
#pragma once
#include <string>
#include <vector>

#include "measure/probe.h"

namespace ridge {

struct Roofline {
  struct Slope {
    std::string name;  // "L1"
    double gbs = 0;
  };
  struct Flat {
    std::string name;  // "f32"
    double gflops = 0;
    bool native = true;  // else drawn dashed: the CPU has no instructions for this type
  };
  struct Dot {
    std::string name;
    double intensity = 0;  // flops per byte
    double gflops = 0;
  };
  std::string title, subtitle;
  std::vector<Slope> slopes;       // nearest first; the last is memory
  std::vector<Flat> flats;         // the first is what ridges are marked on
  std::vector<Dot> dots = {};      // kernels, where there are some
  std::vector<std::string> facts;  // lines for the corner
};

// Flops per byte from which on arithmetic is the limit.
inline double ridge_point(double gflops, double gbs) { return gflops / gbs; }

Roofline roofline_of(const MachineCeilings& ceilings, const std::string& title, const std::string& subtitle);  // of the most threads
std::string to_svg(const Roofline& roofline);  // ErrorCode::value when there is no slope or no flat line

}  // namespace ridge
