// The machine's current state as far as it slows programs down: clocks, power, load, paging, stolen time.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

namespace ridge {

struct Health {
  std::string system, kernel, libc;  // "Debian GNU/Linux 12 (bookworm)", "6.1.0", "2.36"; may be empty
  bool container = false, virtual_machine = false;

  // Of the most restricted CPU; empty: unknown.
  std::string governor, clock_driver, energy_preference;
  double clock_cap = 1;  // the highest clock currently allowed, relative to the chip's maximum
  bool on_battery = false;

  std::string huge_pages;                 // always, madvise or never; empty: unknown
  double load = 0;                        // runnable threads, averaged over a minute
  double stolen = 0;                      // share of the time that the hypervisor gave to others, since boot
  double throttled = 0;                   // share of the periods in which the quota throttled this control group
  std::optional<double> memory_pressure;  // share of the last 10 s in which some process waited for memory
};

Health read_health(const std::filesystem::path& root = "/");

}  // namespace ridge
