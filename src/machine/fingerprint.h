// What a measurement is valid for: the hardware, this process's limits, and the build that measured.
#pragma once
#include <string>

#include "machine/machine.h"

namespace ridge {

struct Fingerprint {
  std::string id;           // 16 hexadecimal digits
  std::string description;  // what it was made from, as JSON
};

// The same on every start on the same machine: contains nothing measured, and memory is rounded to whole GiB.
Fingerprint fingerprint(const Machine& machine);

}  // namespace ridge
