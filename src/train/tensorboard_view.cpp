#include "train/tensorboard_view.h"

#include <algorithm>
#include <utility>

#include "train/train_text.h"

namespace ridge {
namespace {

constexpr double kEventFlushSeconds = 5;  // so that a viewer sees recent events

// Markdown would join lines and interpret special characters; indenting by four spaces makes a verbatim block.
std::string as_block(const std::string& text) {
  std::string out = "    ";
  for (const char c : text) {
    out += c;
    if (c == '\n') out += "    ";
  }
  return out;
}

}  // namespace

TensorboardView::TensorboardView(std::filesystem::path folder) : folder_(std::move(folder)) {}

TensorboardFile& TensorboardView::file(int64_t step) {
  if (!file_) {
    file_.emplace(folder_, step > 1 ? step : 0);
    if (!notices_.empty()) file_->text("notices", step, as_block(std::exchange(notices_, {})));
  }
  return *file_;
}

void TensorboardView::on_step(const Progress& p) {
  step_ = p.step;
  TensorboardFile& f = file(p.step);
  f.scalar("loss/train", p.step, p.loss);
  f.scalar("optimizer/gradient_norm", p.step, p.gradient_norm);
  f.scalar("optimizer/lr", p.step, p.lr);
  f.scalar("speed/ms", p.step, p.ms);
  f.scalar("speed/tokens_s", p.step, p.tokens_s);
  f.scalar("speed/compute_tokens_s", p.step, p.compute_tokens_s);
  if (is_above_roof(p.roof)) {
    if (!std::exchange(above_roof_, true)) f.text("speed/roof", p.step, as_block("no value: " + roof_text(p.roof, p.roof_others)));
  } else if (p.roof > 0) {
    f.scalar("speed/roof", p.step, std::min(p.roof, 1.0));
  }
  f.scalar("speed/data_wait_s", p.step, p.data_wait_s);
  f.scalar("memory/resident_bytes", p.step, double(p.resident_bytes));
  if (p.loss_scale != 1) f.scalar("optimizer/loss_scale", p.step, p.loss_scale);
  for (size_t i = 0; i < p.scalar_names.size(); ++i) f.scalar(p.scalar_names[i] + "/train", p.step, p.scalars[i]);
  flush_at_times(p.elapsed_s);
}

void TensorboardView::on_validation(const ValidationResult& r) {
  TensorboardFile& f = file(r.step);
  if (r.has_loss()) f.scalar("loss/validation", r.step, r.loss);
  for (size_t i = 0; i < r.scalar_names.size(); ++i) f.scalar(r.scalar_names[i] + "/validation", r.step, r.scalars[i]);
  f.flush();
}

void TensorboardView::on_sample(int64_t step, const std::string& text) { file(step).text("sample", step, as_block(text)); }

void TensorboardView::on_checkpoint(int64_t step, const std::string&, double seconds) {
  file(step).scalar("speed/checkpoint_s", step, seconds);
  file_->flush();
}

void TensorboardView::on_notice(const std::string& line) {
  if (file_)
    file_->text("notices", step_, as_block(line));
  else
    notices_ += (notices_.empty() ? "" : "\n") + line;
}

void TensorboardView::flush() {
  if (file_) file_->flush();
}

void TensorboardView::flush_at_times(double elapsed_s) {
  if (elapsed_s - flushed_s_ < kEventFlushSeconds) return;
  flushed_s_ = elapsed_s;
  file_->flush();
}

}  // namespace ridge
