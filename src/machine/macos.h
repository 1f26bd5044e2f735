// The topology of a Mac from the text of `sysctl -a`, apart from the system call so that any system can read a recorded text.
// Threads cannot be pinned there; the system places them by their quality-of-service class.
#pragma once
#include <string>
#include <string_view>

#include "machine/topology.h"

namespace ridge {

// Lines "key: value". Levels of performance are the kinds, level 0 the fastest; without levels (Intel) there is one kind.
// No cores when the text does not say how many there are.
Topology topology_from_sysctl(std::string_view text);

#if defined(__APPLE__)
std::string read_sysctl();         // the keys that matter here, in that form
int64_t macos_available_memory();  // free or to be had without swapping; 0: unknown
#endif

}  // namespace ridge
