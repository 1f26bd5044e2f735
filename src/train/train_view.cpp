#include "train/train_view.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/terminal.h"
#include "base/text.h"
#include "train/score_json.h"

namespace ridge {
namespace {

constexpr double kRedraw = 0.5, kSilence = 10, kCheckpoints = 5;  // seconds
constexpr int64_t kLines = 100;                                   // step lines per log

// The first of 1, 2, 5, 10, 20, … that gives few enough lines per run.
int64_t log_interval(int64_t steps) {
  for (int64_t unit = 1;; unit *= 10)
    for (int64_t times : {1, 2, 5})
      if (steps < (kLines + 1) * unit * times) return unit * times;  // no division: called at every step
}

void add_scalars(nlohmann::ordered_json& event, std::span<const std::string> names, const ScalarMeans& means) {
  for (size_t i = 0; i < names.size(); ++i) event["scalars"][names[i]] = means[i];
}

bool due(const Progress& p, double reported_at) {
  return p.step % log_interval(p.steps) == 0 || p.step == p.steps || p.step == 1 || p.elapsed_s - reported_at >= kSilence || p.elapsed_s < reported_at;
}

// Without an episode, NaN.
double score_in(const Progress& p) {
  for (size_t i = 0; i < p.scalar_names.size(); ++i)
    if (p.scalar_names[i] == "score") return p.scalars[i];
  return NAN;
}

}  // namespace

Screen stdout_screen() {
  auto write = [](std::string_view text) {
    const bool taken = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
    if (std::fflush(stdout) == 0 && taken) return;
    const int cause = errno;
    if (cause == EPIPE) std::clearerr(stdout);  // the pipe is closed; any other failure still affects the exit code
    fail(ErrorCode::io, "[stdout] the output cannot be written: {}", std::strerror(cause));
  };
  return {write, terminal_width, on_terminal(), use_colour()};
}

TerminalView::TerminalView(Screen screen, std::string unit, LiveFacts facts) : screen_(std::move(screen)), unit_(std::move(unit)), facts_(std::move(facts)) {}

// Leaves the last column free: a terminal may wrap a full line.
std::string TerminalView::live() const { return live_line(last_, curve_.points(), unit_, screen_.width() - 1, notes_); }

TerminalStyle TerminalView::style() const { return {screen_.width(), screen_.colour}; }

void TerminalView::above(std::string_view lines) {
  if (!screen_.live) return write(lines);
  std::string text = shown_ ? "\r\033[K" : "";
  text += lines;
  if (shown_) text += live();
  write(text);
}

void TerminalView::begin(std::span<const Decision> decisions) { above(decision_table(decisions, style()) + "\n"); }

void TerminalView::end(const RunSummary& summary) {
  if (shown_) write("\r\033[K" + live() + "\n");
  shown_ = false;
  std::string text = "\n" + summary_text(summary, curve_.points(), style());
  if (!screen_.live) {  // lines that scripts look for; the last one is about samples
    const Outcome& o = summary.outcome;
    if (o.best_score && !o.score.is_loss()) text += fmt::format("\nBest validation {}: {}", o.score.name, score_text(o.score, *o.best_score));
    const std::string loss = o.score.is_loss() ? "Best validation loss" : fmt::format("Validation loss at the best {}", o.score.name);
    if (o.best_val_loss) text += fmt::format("\n{}: {}", loss, figure_text(*o.best_val_loss));
    text += fmt::format("\nTotal train time: {:.2f} mins\n", o.seconds / 60);
    if (summary.sampled_tokens_s > 0) text += fmt::format("Average tokens per second: {:.2f}\n", summary.sampled_tokens_s);
  }
  write(text);
}

void TerminalView::on_step(const Progress& p) {
  last_ = p;
  const bool agent = is_agent_unit(unit_);
  if (p.applied) curve_.add(agent ? score_in(p) : p.loss), loss_sum_ += p.loss, ++losses_;
  if (agent) trend_.add(p.elapsed_s, score_in(p));
  const auto look = [&] {  // only for lines that are shown
    if (!agent) return;
    if (facts_.cores) notes_.cores = facts_.cores();
    const std::optional<double> left = facts_.target ? trend_.until(*facts_.target, p.elapsed_s) : std::nullopt;
    notes_.target = left && *left < p.eta_s ? fmt::format("target in {}", clock_text(*left)) : "";
  };
  const bool last = p.step == p.steps;
  if (screen_.live) {
    if (!p.newest || (shown_ && !last && p.elapsed_s - drawn_at_ < kRedraw && p.elapsed_s >= drawn_at_)) return;
    look();
    write("\r\033[K" + live());
    shown_ = true, drawn_at_ = p.elapsed_s;
  } else if (due(p, drawn_at_)) {
    look();
    write(plain_line(p, unit_, notes_) + "\n");
    drawn_at_ = p.elapsed_s;
  }
}

void TerminalView::on_validation(const ValidationResult& r) {
  std::string line = fmt::format("{} {}: ", step_word(unit_), r.step);
  if (is_agent_unit(unit_))
    line += "evaluation: ";
  else if (losses_ > 0)
    line += fmt::format("train loss {}, ", figure_text(loss_sum_ / double(losses_)));
  if (r.has_loss()) line += fmt::format("val loss {}{}", figure_text(r.loss), r.scalar_names.empty() ? "" : ", ");
  for (size_t i = 0; i < r.scalar_names.size(); ++i)
    if (is_agent_unit(unit_))
      line += fmt::format("{}{} {:.{}f}", i ? ", " : "", r.scalar_names[i], r.scalars[i], r.scalar_names[i] == r.score.name ? 2 : 0);
    else
      line += fmt::format("{}{} {}", i ? ", " : "", r.scalar_names[i], score_text(r.scalar_names[i] == r.score.name ? r.score : Score{}, r.scalars[i]));
  if (r.best) line += ", the best so far";
  loss_sum_ = 0, losses_ = 0;
  above(line + "\n");
}

void TerminalView::on_sample(int64_t step, const std::string& text) { above(sample_frame(step, text, style())); }

void TerminalView::on_checkpoint(int64_t step, const std::string&, double seconds) {
  // Checkpoint lines of a quick run would push everything else off the screen.
  if (screen_.live && shown_ && last_.elapsed_s - checkpoint_at_ < kCheckpoints && step < last_.steps) return;
  checkpoint_at_ = last_.elapsed_s;
  above(fmt::format("{} {}: checkpoint ({})\n", step_word(unit_), step, duration_text(seconds)));
}

void TerminalView::on_notice(const std::string& line) { above((screen_.live ? wrap(printable(line), style().width, 2) : printable(line)) + "\n"); }

void JsonView::put(const nlohmann::ordered_json& event) {
  // Replaces invalid UTF-8, which a sample of bytes may contain, as JSON cannot represent it.
  write_(event.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  ++writes_;
}

void JsonView::begin(std::span<const Decision> decisions) { put({{"event", "decisions"}, {"decisions", decisions_json(decisions)}}); }

void JsonView::end(const RunSummary& summary) {
  nlohmann::ordered_json event = {{"event", "summary"}};
  event.update(summary_json(summary));
  put(event);
}

void JsonView::on_step(const Progress& p) {
  if (!due(p, reported_at_)) return;
  reported_at_ = p.elapsed_s;
  nlohmann::ordered_json event = {{"event", "step"},
                                  {"step", p.step},
                                  {"steps", p.steps},
                                  {"loss", p.loss},
                                  {"gradient_norm", p.gradient_norm},
                                  {"lr", p.lr},
                                  {"applied", p.applied},
                                  {"ms", p.ms},
                                  {"tokens_s", p.tokens_s},
                                  {"compute_tokens_s", p.compute_tokens_s},
                                  {"roof", is_above_roof(p.roof) ? nlohmann::ordered_json() : nlohmann::ordered_json(std::min(p.roof, 1.0))},
                                  {"eta_s", p.eta_s},
                                  {"elapsed_s", p.elapsed_s},
                                  {"data_wait_s", p.data_wait_s},
                                  {"resident_bytes", p.resident_bytes},
                                  {"planned_bytes", p.planned_bytes},
                                  {"loss_scale", p.loss_scale}};
  add_scalars(event, p.scalar_names, p.scalars);
  if (is_above_roof(p.roof)) event["above_roof"] = above_roof_text(p.roof_others);
  put(event);
}

void JsonView::on_validation(const ValidationResult& r) {
  nlohmann::ordered_json event = {{"event", "validation"}, {"step", r.step}, {"val_loss", r.loss}, {"best", r.best}, {"seconds", r.seconds}};
  add_scalars(event, r.scalar_names, r.scalars);
  if (r.score != Score{}) event["score"] = to_json(r.score), event["score"]["value"] = r.value;
  put(event);
}

void JsonView::on_sample(int64_t step, const std::string& text) { put({{"event", "sample"}, {"step", step}, {"text", text}}); }

void JsonView::on_checkpoint(int64_t step, const std::string& folder, double seconds) {
  put({{"event", "checkpoint"}, {"step", step}, {"folder", folder}, {"seconds", seconds}});
}

void JsonView::on_notice(const std::string& line) { put({{"event", "notice"}, {"text", line}}); }

std::unique_ptr<RunView> stdout_view(bool json, std::string unit, LiveFacts facts) {
  if (json) return std::make_unique<JsonView>();
  return std::make_unique<TerminalView>(stdout_screen(), std::move(unit), std::move(facts));
}

}  // namespace ridge
