// Measurements that outlive the process: a small SQLite store in the user's cache folder. Rows for other machines, limits and builds are in the same file and
// are never returned.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "machine/fingerprint.h"

namespace ridge {

// What a decision may be based on: no measurements at all (optimize_perf=false), stored ones only, or stored and new ones.
enum class Figures { none, kept, measured };

struct Measurement {
  std::string value;  // JSON
  double spread = 0;  // between the quartiles, as a fraction of the median
  int samples = 0;
  int64_t when = 0;  // seconds since 1970; put() writes the time of the call
};
using NamedMeasurement = std::pair<std::string, Measurement>;

// $RIDGE_CACHE, $XDG_CACHE_HOME/ridge or ~/.cache/ridge; empty if none is known or others may have written to it.
std::filesystem::path cache_folder();
std::string cache_problem();                     // why the configured folder is not used, with the remedy; empty: it is used
std::filesystem::path measurement_store_file();  // in the cache folder

// Several processes and threads may use one file concurrently. A store that cannot be read is moved aside and recreated; one that cannot be written is replaced
// by an in-memory copy of what could be read. Neither is an error: remark() describes it in one line. Do not keep one across fork().
class MeasurementStore {
 public:
  explicit MeasurementStore(const Fingerprint& fingerprint, const std::filesystem::path& file = measurement_store_file());
  ~MeasurementStore();
  MeasurementStore(MeasurementStore&&) noexcept;

  void put(std::string_view key, const Measurement& measurement);
  void put(std::span<const NamedMeasurement> rows);  // all or nothing
  std::optional<Measurement> get(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;               // a JSON number, or the "value" of a JSON object
  std::vector<NamedMeasurement> all(std::string_view prefix = "") const;  // in key order
  int64_t forget(std::string_view prefix = "");                           // for this machine only; returns how many there were

  bool stored() const;  // false: in memory only, lost on exit
  std::string remark() const;
  const std::filesystem::path& file() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ridge
