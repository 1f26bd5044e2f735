// Layout of a machine's cores in a picture: sockets stacked vertically, each with groups of cores that share a last-level cache. Positions and sizes only;
// picture.cpp does the drawing.
#pragma once
#include <string>
#include <vector>

#include "base/svg.h"
#include "machine/machine.h"

namespace ridge {

struct PlannedCore {
  svg::Box box;
  int kind = 0;
  int number = 0;  // number of the first hardware thread
  int threads = 1;
  int cores = 1;   // more than 1: one tile represents a whole cluster
  int usable = 1;  // how many of these cores the limits allow
};

// Cores of a cluster that share a closer cache.
struct PlannedModule {
  svg::Box box, cache_bar;
  Cache cache;
};

// Cores that share their last-level cache.
struct PlannedCluster {
  svg::Box box;
  std::vector<PlannedCore> cores;
  std::vector<PlannedModule> modules = {};
  svg::Box cache_bar = {};  // of the shared cache; zero height: none
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

// Uses the largest cores with which the plan fits into `height`; with very many cores it may be taller. Beyond 1024 cores one tile represents a cluster.
FloorPlan plan_floor(const Machine& machine, double width, double height);

void grow(FloorPlan& plan, double room);  // makes the last socket taller by `room`, with its clusters centred

}  // namespace ridge
