#include "train/metric_rows.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/digits.h"
#include "base/error.h"
#include "train/score_json.h"
#include "train/train_text.h"

namespace ridge {

void MetricRows::open(std::filesystem::path file, int64_t last_step) {
  path_ = std::move(file);
  file_.emplace(path_, last_step);
}

// Formats the row directly: building a JSON document with so many values takes longer than the rest of the reporting.
void MetricRows::add(const Progress& p) {
  char step[20];
  row_ = R"({"step":)";
  row_.append(step, std::to_chars(step, std::end(step), p.step).ptr);
  auto add = [this](std::string_view key, double x) { append_digits(row_ += key, x); };
  add(R"(,"loss":)", p.loss), add(R"(,"gradient_norm":)", p.gradient_norm), add(R"(,"lr":)", p.lr);
  add(R"(,"ms":)", p.ms), add(R"(,"tokens_s":)", p.tokens_s), add(R"(,"compute_tokens_s":)", p.compute_tokens_s);
  if (is_above_roof(p.roof))
    row_ += fmt::format(R"(,"roof":null,"above_roof":"{}")", above_roof_text(p.roof_others));
  else if (p.roof > 0)
    add(R"(,"roof":)", std::min(p.roof, 1.0));
  add(R"(,"data_wait_s":)", p.data_wait_s);
  if (!p.applied) row_ += R"(,"applied":false)";
  if (p.loss_scale != 1) add(R"(,"loss_scale":)", p.loss_scale);
  for (size_t i = 0; i < p.scalar_names.size(); ++i) {
    row_ += i ? "," : R"(,"scalars":{)";
    append_digits(((row_ += '"') += p.scalar_names[i]) += R"(":)", p.scalars[i]);
  }
  row_ += p.scalar_names.empty() ? "}" : "}}";
  keep_row(p.step, row_);
}

void MetricRows::add(const ValidationResult& r) {
  nlohmann::ordered_json row;
  row["step"] = r.step, row["val_loss"] = r.loss, row["best"] = r.best;
  for (size_t i = 0; i < r.scalar_names.size(); ++i) row["scalars"][r.scalar_names[i]] = r.scalars[i];
  if (r.score != Score{}) row["score"] = to_json(r.score), row["score"]["value"] = r.value;
  keep_row(r.step, row.dump());
}

void MetricRows::keep_row(int64_t step, std::string_view row) {
  try {
    file_->add_line(row);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io) throw;
    if (std::exchange(lost_, true)) return;
    notice_(fmt::format("there is no more room for metrics: those from step {} on are lost until there is", step));
  }
}

// On a full disk, rows wait in memory while there is room, and the run continues.
void MetricRows::flush() {
  if (!file_) return;
  flushed_at_ = std::chrono::steady_clock::now();
  try {
    file_->flush();
    waiting_ = false;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io) throw;
    if (std::exchange(waiting_, true)) return;
    notice_(fmt::format("metrics are kept in memory, training continues: {}", error.what()));
  }
}

void MetricRows::keep(std::span<const Progress> steps) noexcept {
  try {
    for (const Progress& p : steps) add(p);
    file_->flush();
  } catch (...) {
    // The error that ended the run is the one to report.
  }
}

void MetricRows::cut(int64_t last_step) {
  file_.reset();
  try {
    file_.emplace(path_, last_step);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io) throw;
    file_.emplace(std::filesystem::path{}, -1);
    notice_(fmt::format("metrics are switched off, training continues: {}", error.what()));
  }
}

}  // namespace ridge
