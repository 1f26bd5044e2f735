#include "train/run_state.h"

#include <numeric>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "train/score_json.h"

namespace ridge {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kStateFormat = 1;

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

std::optional<double> number(const Json& j) { return j.is_null() ? std::nullopt : std::optional(j.get<double>()); }

}  // namespace

double RunState::final_train_loss() const {
  return recent_losses.empty() ? 0 : std::accumulate(recent_losses.begin(), recent_losses.end(), 0.0) / double(recent_losses.size());
}

void RunState::forget_validations() {
  best_score.reset(), final_score.reset(), best_val_loss.reset(), final_val_loss.reset();
  best_step = 0;
}

std::string to_json(const RunState& s) {
  Json j;
  j["format"] = kStateFormat, j["draws"] = kDrawsVersion;
  j["step"] = s.step.attempted, j["applied"] = s.step.applied, j["loss_scale"] = s.step.loss_scale, j["scale_age"] = s.step.scale_age;
  j["next_batch"] = s.next_batch, j["left_out"] = s.left_out, j["skipped"] = s.skipped, j["roll_backs"] = s.roll_backs, j["strikes"] = s.strikes;
  j["best_val_loss"] = number(s.best_val_loss), j["best_step"] = s.best_step, j["final_val_loss"] = number(s.final_val_loss);
  if (s.score != Score{}) j["score"] = to_json(s.score), j["best_score"] = number(s.best_score), j["final_score"] = number(s.final_score);
  if (!s.validation_data.empty()) j["validation_data"] = s.validation_data;
  j["validation_samples"] = s.validation_samples, j["validation_due"] = s.validation_due, j["finished"] = s.finished;
  j["first_loss"] = s.first_loss, j["recent_losses"] = s.recent_losses, j["seconds"] = s.seconds;
  j["validation_interval"] = s.validation_interval, j["checkpoint_interval"] = s.checkpoint_interval, j["sample_interval"] = s.sample_interval;
  j["cut"] = s.cut;
  j["identity"] = s.identity, j["settings"] = s.settings, j["choices"] = s.choices;
  return j.dump(2) + "\n";
}

RunState run_state_from(const std::string& json, const std::string& file) {
  try {
    const Json j = Json::parse(json);
    if (j.at("format").get<int>() != kStateFormat)
      fail(ErrorCode::io, "[resume] {} has format {}, this Ridge reads {}; resume with the Ridge that wrote it", file, j.at("format").get<int>(), kStateFormat);
    RunState s;
    s.draws = j.value("draws", 1);
    s.step = {j.at("step"), j.at("applied"), j.at("loss_scale"), j.at("scale_age")};
    s.next_batch = j.at("next_batch"), s.left_out = j.at("left_out").get<std::vector<int64_t>>();
    s.skipped = j.at("skipped"), s.roll_backs = j.at("roll_backs"), s.strikes = j.at("strikes").get<std::vector<int64_t>>();
    s.best_val_loss = number(j.at("best_val_loss")), s.best_step = j.at("best_step"), s.final_val_loss = number(j.at("final_val_loss"));
    s.best_score = s.best_val_loss, s.final_score = s.final_val_loss;
    if (j.contains("score")) s.score = score_from(j.at("score")), s.best_score = number(j.at("best_score")), s.final_score = number(j.at("final_score"));
    s.validation_samples = j.value("validation_samples", int64_t(0)), s.validation_data = j.value("validation_data", std::string());
    s.validation_due = j.at("validation_due"), s.finished = j.at("finished");
    s.first_loss = j.at("first_loss"), s.recent_losses = j.at("recent_losses").get<std::deque<double>>(), s.seconds = j.at("seconds");
    s.validation_interval = j.at("validation_interval"), s.checkpoint_interval = j.at("checkpoint_interval"), s.sample_interval = j.at("sample_interval");
    s.cut = j.value("cut", 1);
    if (s.cut < 1 || s.cut > kTextCut)
      fail(ErrorCode::io, "[resume] {}: texts were cut by version {} of the rule, this Ridge has 1 to {}; resume with the Ridge that wrote it", file, s.cut,
           kTextCut);
    using Words = std::map<std::string, std::string>;
    s.identity = j.at("identity").get<Words>(), s.settings = j.at("settings").get<Words>(), s.choices = j.at("choices").get<Words>();
    return s;
  } catch (const Json::exception& error) {
    fail(ErrorCode::io, "[resume] {} cannot be read: {}", file, error.what());
  }
}

}  // namespace ridge
