// The roofline as a picture: the highest rate a kernel can reach, by its flops per byte. Slopes are the bandwidths of the memory levels, flat lines the
// multiply-add rates; they meet at the ridge.
#pragma once
#include <string>
#include <vector>

#include "base/svg.h"
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
    bool native = true;  // otherwise drawn dashed: the CPU has no instructions for this type
  };
  struct Dot {
    std::string name;
    double intensity = 0;  // flops per byte
    double gflops = 0;
    svg::Ink ink = svg::Ink::red;
    double share = 0;  // of the time, which its area shows
  };
  struct Entry {
    svg::Ink ink;
    std::string name, figures;
  };
  std::string title, subtitle;
  std::vector<Slope> slopes;       // nearest first; the last is memory
  std::vector<Flat> flats;         // ridges are marked on the first one
  std::vector<Dot> dots = {};      // kernels, if any
  std::vector<Entry> list = {};    // below the picture, numbered as the dots are
  std::vector<std::string> facts;  // lines for the corner
};

// Flops per byte above which arithmetic is the limit.
inline double ridge_point(double gflops, double gbs) { return gflops / gbs; }

Roofline roofline_of(const MachineCeilings& ceilings, const std::string& title, const std::string& subtitle);  // for the highest number of threads
std::string to_svg(const Roofline& roofline);  // ErrorCode::value if there is no slope or no flat line

}  // namespace ridge
