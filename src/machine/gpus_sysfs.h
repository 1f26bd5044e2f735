// GPUs as listed by the operating system, without any driver library: names by vendor and device number, and memory if reported.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "machine/gpus.h"

namespace ridge {

std::vector<Gpu> gpus_of_system(const std::filesystem::path& root);   // excludes display adapters of servers and virtual machines
std::string nvidia_kernel_driver(const std::filesystem::path& root);  // the loaded module's version; empty: none
std::string canonical_pci(std::string_view text);                     // "00000000:01:00.0" → "0000:01:00.0"; empty: not an address

}  // namespace ridge
