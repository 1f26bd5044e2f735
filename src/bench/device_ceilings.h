// A GPU's limits, measured through its backend alongside the rows that are compared with them.
#pragma once
#include "machine/precision.h"

namespace ridge {
class Backend;
}

namespace ridge::bench {

struct DeviceCeilings {
  double memory_gbs = 0;     // bytes read and written; the best of copying, reading only, and two reads and a write
  double matmul_gflops = 0;  // of the largest square product, in the requested precision
};
double measure_memory_gbs(Backend& device);
DeviceCeilings measure_ceilings(Backend& device, Precision precision);

}  // namespace ridge::bench
