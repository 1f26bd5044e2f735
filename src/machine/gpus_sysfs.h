// GPUs as the operating system shows them, without any driver's library: names by vendor and number, memory where it is told.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "machine/gpus.h"

namespace ridge {

std::vector<Gpu> gpus_of_system(const std::filesystem::path& root);   // display adapters of servers and virtual machines left out
std::string nvidia_kernel_driver(const std::filesystem::path& root);  // the loaded module's version; empty: none
std::string canonical_pci(std::string_view text);                     // "00000000:01:00.0" → "0000:01:00.0"; empty: no address

}  // namespace ridge
