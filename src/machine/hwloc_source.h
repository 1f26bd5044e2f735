// The topology as found by hwloc. The only file that uses hwloc.
#pragma once
#include "machine/topology.h"

namespace ridge {

Topology topology_from_hwloc();  // of this machine, with all online CPUs; no cores if hwloc finds nothing

}  // namespace ridge
