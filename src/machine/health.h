// The state that a machine is in, as far as it makes programs slow: clocks, power, load, paging, stolen time.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

namespace ridge {

struct Health {
  std::string system, kernel, libc;  // "Debian GNU/Linux 12 (bookworm)", "6.1.0", "2.36"; may be empty
  bool container = false, virtual_machine = false;

  // Of the CPU that is held back most; empty: not told.
  std::string governor, clock_driver, energy_preference;
  double clock_cap = 1;  // the highest clock allowed now, relative to the chip's
  bool on_battery = false;

  std::string huge_pages;                 // always, madvise or never; empty: not told
  double load = 0;                        // runnable threads, averaged over a minute
  double stolen = 0;                      // share of the time that the hypervisor gave to others, since the start
  double throttled = 0;                   // share of the periods in which the quota stopped this control group
  std::optional<double> memory_pressure;  // share of the last 10 s in which somebody waited for memory
};

Health read_health(const std::filesystem::path& root = "/");

}  // namespace ridge
