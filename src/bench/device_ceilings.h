// What a GPU can do at most, measured through its backend beside the rows that are judged by it.
#pragma once
#include "machine/precision.h"

namespace ridge {
class Backend;
}

namespace ridge::bench {

struct DeviceCeilings {
  double memory_gbs = 0;     // bytes read and written; the best of copies, of reading alone and of two reads and a write
  double matmul_gflops = 0;  // of the largest square product, in the precision that was asked for
};
double measure_memory_gbs(Backend& device);
DeviceCeilings measure_ceilings(Backend& device, Precision precision);

}  // namespace ridge::bench
