// What a measurement holds for: the hardware, the limits of this process, and the build that measured.
#pragma once
#include <string>

#include "machine/machine.h"

namespace ridge {

struct Fingerprint {
  std::string id;           // 16 hexadecimal digits
  std::string description;  // what it was made from, as JSON
};

// Equal on every start of the same machine: nothing in it is measured, and memory counts in whole GiB.
Fingerprint fingerprint(const Machine& machine);

}  // namespace ridge
