// Results of searches in the measurement store: shown, cleared, exported to a JSON file and imported from one.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "machine/measurement_store.h"
#include "tune/step_trials.h"

namespace ridge {

struct TunedChoice {
  TunedWords words = {};                    // empty: nothing is faster than the plan
  std::string what = {};                    // "cfc: 20,929 parameters, batch 64, fp32"
  std::string runner_up = {};               // "threads=1: 1.31 ms"
  double planned_seconds = 0, seconds = 0;  // of a step, without and with the choice
  int64_t measured = 0, points = 0;         // of how many points
  bool busy = false;                        // other programs disturbed the measurement
  bool imported = false;
  int64_t when = 0;  // seconds since 1970

  double gain() const { return seconds > 0 ? planned_seconds / seconds : 1; }
  std::string text() const;  // "threads=1 passes=-streaming"; "as planned"
};

std::optional<TunedChoice> kept_choice(const MeasurementStore& store, const std::string& key);  // none, too, if it is damaged
Measurement measurement_of(const TunedChoice& choice);
void keep_choice(MeasurementStore& store, const std::string& key, const TunedChoice& choice);

std::string choices_text(const MeasurementStore& store);  // a table, or that there are none
// One document with all choices of this machine.
std::string choices_json(const MeasurementStore& store, const Fingerprint& machine);
// Takes over the choices of such a document, all or none, and returns their number. They are used as they are, whatever machine measured them, until they are
// cleared. ErrorCode::io names the file, the problem and the remedy.
int64_t import_choices(MeasurementStore& store, const std::string& json, const std::string& file);

}  // namespace ridge
