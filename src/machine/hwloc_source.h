// The topology as hwloc finds it. The one file that knows hwloc.
#pragma once
#include "machine/topology.h"

namespace ridge {

Topology topology_from_hwloc();  // of this machine, with all CPUs that are online; no cores when hwloc finds nothing

}  // namespace ridge
