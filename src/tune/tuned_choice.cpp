#include "tune/tuned_choice.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"

namespace ridge {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kChoicesFormat = 1;

Json json_of(const TunedChoice& c) {
  Json j;
  j["what"] = c.what, j["words"] = c.words, j["runner_up"] = c.runner_up, j["planned_seconds"] = c.planned_seconds, j["seconds"] = c.seconds;
  j["measured"] = c.measured, j["points"] = c.points, j["busy"] = c.busy, j["imported"] = c.imported;
  return j;
}

// Throws what nlohmann's parser and apply() throw.
TunedChoice choice_of(const Json& j) {
  TunedChoice c;
  c.what = j.at("what"), c.words = j.at("words").get<TunedWords>(), c.runner_up = j.at("runner_up");
  c.planned_seconds = j.at("planned_seconds"), c.seconds = j.at("seconds"), c.measured = j.at("measured"), c.points = j.at("points");
  c.busy = j.at("busy"), c.imported = j.at("imported");
  if (!(c.seconds > 0) || !(c.planned_seconds > 0)) fail(ErrorCode::io, "seconds of a step are above 0");
  StepOptions ignored;
  ignored.backend = nullptr;
  apply(c.words, 1, ignored);
  return c;
}

}  // namespace

std::string TunedChoice::text() const {
  std::string text;
  for (const auto& [key, value] : words) text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, value);
  return text.empty() ? "as planned" : text;
}

std::optional<TunedChoice> kept_choice(const MeasurementStore& store, const std::string& key) {
  const std::optional<Measurement> row = store.get(key);
  if (!row) return {};
  try {
    TunedChoice c = choice_of(Json::parse(row->value));
    c.when = row->when;
    return c;
  } catch (const nlohmann::json::exception&) {
    return {};
  } catch (const Error&) {
    return {};
  }
}

void keep_choice(MeasurementStore& store, const std::string& key, const TunedChoice& choice) { store.put(key, measurement_of(choice)); }

Measurement measurement_of(const TunedChoice& choice) { return {.value = json_of(choice).dump(), .samples = int(choice.measured)}; }

std::string choices_text(const MeasurementStore& store) {
  std::string text;
  for (const auto& [key, row] : store.all(kTuneKeys)) {
    const std::optional<TunedChoice> c = kept_choice(store, key);
    if (!c) {
      text += fmt::format("{}\n  damaged: ridge tune clear removes it\n", key);
      continue;
    }
    const std::time_t when = std::time_t(c->when);
    std::tm local{};
    localtime_r(&when, &local);
    text += fmt::format("{}\n  {}", c->what, c->text());
    if (!c->words.empty())
      text += fmt::format(": {:.2f} x as fast, {:.4g} ms a step and {:.4g} ms as planned", c->gain(), 1e3 * c->seconds, 1e3 * c->planned_seconds);
    text += fmt::format("\n  {}{} of {} choices measured, {:04}-{:02}-{:02}{}\n", c->imported ? "imported; " : "", c->measured, c->points, local.tm_year + 1900,
                        local.tm_mon + 1, local.tm_mday, c->busy ? ", next to other programs: measured again when the machine is quiet" : "");
  }
  return text.empty() ? "nothing is tuned yet; ridge tune TASK searches for the fastest choices of a training step\n" : text;
}

std::string choices_json(const MeasurementStore& store, const Fingerprint& machine) {
  Json file;
  file["ridge_tune"] = kChoicesFormat;
  file["machine"] = machine.description;
  file["choices"] = Json::object();
  for (const auto& [key, row] : store.all(kTuneKeys))
    if (const std::optional<TunedChoice> c = kept_choice(store, key)) file["choices"][key] = json_of(*c);
  return file.dump(2) + "\n";
}

int64_t import_choices(MeasurementStore& store, const std::string& json, const std::string& file) {
  const Json all = Json::parse(json, nullptr, false);
  if (all.is_discarded() || !all.is_object() || !all.contains("ridge_tune"))
    fail(ErrorCode::io, "[tune] {} is not a file of tuned choices; make one with ridge tune export FILE", file);
  if (all.at("ridge_tune") != kChoicesFormat)
    fail(ErrorCode::io, "[tune] {} has format {}, but this build reads {}; export it again", file, all.at("ridge_tune").dump(), kChoicesFormat);
  std::vector<NamedMeasurement> rows;
  std::string key = "its list of choices";
  auto damaged = [&](const char* why) { fail(ErrorCode::io, "[tune] {} is damaged at {}: {}; nothing was imported, export it again", file, key, why); };
  try {
    for (const auto& [name, value] : all.at("choices").items()) {
      key = name;
      if (!key.starts_with(kTuneKeys)) damaged("not the key of a tuned choice");
      TunedChoice c = choice_of(value);
      c.imported = true;
      rows.push_back({key, {.value = json_of(c).dump(), .samples = int(c.measured)}});
    }
  } catch (const nlohmann::json::exception& error) {
    damaged(error.what());
  } catch (const Error& error) {
    if (std::string_view(error.what()).find(file) != std::string_view::npos) throw;
    damaged(error.what());
  }
  store.put(rows);
  return int64_t(rows.size());
}

}  // namespace ridge
