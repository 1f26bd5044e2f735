// What a GPU can do at most, measured through its backend beside the rows that are judged by it.
#pragma once
#include "machine/precision.h"

namespace ridge {
class Backend;
}

namespace ridge::bench {

struct DeviceCeilings {
  double copy_gbs = 0;       // bytes read and written; the best of the driver's copy and of a kernel's
  double matmul_gflops = 0;  // of the largest square product, in the precision that was asked for
};
double measure_copy_gbs(Backend& device);
DeviceCeilings measure_ceilings(Backend& device, Precision precision);

}  // namespace ridge::bench
