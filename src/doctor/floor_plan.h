// Where the cores of a machine go in a picture: sockets below each other, in them the cores that share a last-level cache.
// Sizes only; what is drawn there is another matter.
#pragma once
#include <string>
#include <vector>

#include "base/svg.h"
#include "machine/machine.h"

namespace ridge {

struct PlannedCore {
  svg::Box box;
  int kind = 0;
  int number = 0;  // of the first hardware thread
  int threads = 1;
  int cores = 1;   // more than 1: a whole cluster stands for itself
  int usable = 1;  // how many of these cores the limits leave
};

// Some cores of a cluster that share a nearer cache.
struct PlannedModule {
  svg::Box box, cache_bar;
  Cache cache;
};

// Cores that share their last-level cache.
struct PlannedCluster {
  svg::Box box;
  std::vector<PlannedCore> cores;
  std::vector<PlannedModule> modules = {};
  svg::Box cache_bar = {};  // of the shared cache; no height: there is none
  Cache cache = {};
};

struct PlannedSocket {
  svg::Box box;
  int number = 0, cores = 0;
  std::vector<PlannedCluster> clusters;
};

struct FloorPlan {
  double width = 0, height = 0;
  double core_size = 0;  // of a core of the fastest kind
  std::vector<PlannedSocket> sockets;
};

// The largest cores with which the plan is not higher than `height`; with very many cores it may be, and beyond 1024 one tile stands for a cluster.
FloorPlan plan_floor(const Machine& machine, double width, double height);

void grow(FloorPlan& plan, double room);  // makes the last socket so much higher, with its clusters in the middle

}  // namespace ridge
