// The topology of a Mac from the text of `sysctl -a`, separate from the system call so that recorded output can be read on any system. macOS does not allow
// pinning threads; it places them by quality-of-service class.
#pragma once
#include <string>
#include <string_view>

#include "machine/topology.h"

namespace ridge {

// Lines "key: value". Performance levels are the kinds, level 0 the fastest; without levels (Intel) there is one kind. No cores if the text does not give their
// number.
Topology topology_from_sysctl(std::string_view text);

#if defined(__APPLE__)
std::string read_sysctl();         // the relevant keys, in that form
int64_t macos_available_memory();  // free or reclaimable without swapping; 0: unknown
#endif

}  // namespace ridge
