#include "train/train_text.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "machine/utilisation.h"
#include "train/score_json.h"

namespace ridge {
namespace {

std::string blanks(int count) { return std::string(size_t(std::max(count, 0)), ' '); }
std::string padded(std::string_view text, int width) { return std::string(text) + blanks(width - display_width(text)); }
std::string repeated(std::string_view sign, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += sign;
  return text;
}

std::string bold(std::string_view text, const TerminalStyle& style) { return style.colour ? fmt::format("\033[1m{}\033[0m", text) : std::string(text); }
std::string faint(std::string_view text, const TerminalStyle& style) { return style.colour ? fmt::format("\033[2m{}\033[0m", text) : std::string(text); }

// A model far too large for its machine may need years, which is worth showing.
std::string days_text(double seconds) {
  constexpr double kYear = 365.25 * 86400;
  if (seconds >= 2 * kYear) return count_text(seconds / kYear) + " years";
  const auto hours = int64_t(std::llround(seconds / 3600));
  return fmt::format("{} d {:02} h", hours / 24, hours % 24);
}

std::string memory_text(const Progress& p) {
  return p.planned_bytes > 0 ? fmt::format("{} of {}", size_text(p.resident_bytes), size_text(p.planned_bytes)) : size_text(p.resident_bytes);
}

// Lines of at most `width` columns, broken at spaces if there are any: a sample may have none.
std::vector<std::string_view> folded(std::string_view text, int width) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    size_t taken = fitting(line, width);
    if (taken < line.size() && line[taken] != ' ')
      if (const size_t blank = line.substr(0, taken).rfind(' '); blank != line.npos && blank > 0) taken = blank;
    taken = std::max(taken, std::min<size_t>(line.size(), 1));
    lines.push_back(line.substr(0, taken));
    text.remove_prefix(taken);
    if (!text.empty() && (text[0] == '\n' || text[0] == ' ')) text.remove_prefix(1);
  }
  return lines;
}

// A heading with its text wrapped next to it. Preformatted lines are kept unchanged.
class Sections {
 public:
  explicit Sections(const TerminalStyle& style) : style_(style) {}

  void add(std::string_view head, std::string_view text) { raw(head, wrap(text, style_.width, kIndent)); }
  void raw(std::string_view head, std::string_view line) { text_ += bold(padded(head, kIndent), style_) + std::string(line) + '\n'; }
  std::string take() { return std::move(text_); }

  static constexpr int kIndent = 10;

 private:
  TerminalStyle style_;
  std::string text_;
};

// Shares of the time as bars; phases that took no time are left out.
void add_times(Sections& out, const RunSummary& s, const TerminalStyle& style) {
  const Outcome& o = s.outcome;
  const std::vector<std::pair<std::string, double>>& data_parts = s.data_parts;
  struct Part {
    std::string what;
    double seconds;
  };
  std::vector<Part> parts;
  double known = 0;
  for (int i = 0; i < kPhases; ++i) {
    const double seconds = o.phase_seconds[i];
    known += seconds;
    if (Phase(i) == Phase::step && o.update_seconds > 0) {
      parts.insert(parts.end(), {{"forward+backward", seconds - o.update_seconds}, {"optimizer", o.update_seconds}});
      continue;
    }
    if (Phase(i) == Phase::data && !data_parts.empty()) {
      double rest = seconds;
      for (const auto& [what, part] : data_parts) parts.push_back({what, part}), rest -= part;
      if (rest > 0.01 * seconds) parts.push_back({"other data", rest});
      continue;
    }
    // Waiting for data is shown even if it is zero, because that is good news.
    if (seconds > 0 || Phase(i) == Phase::data) parts.push_back({std::string(Phase(i) == Phase::data ? "data wait" : name(Phase(i))), seconds});
  }
  // Metrics and views: the cost of monitoring.
  if (o.reporting_seconds > 0) parts.push_back({"reporting", o.reporting_seconds}), known += o.reporting_seconds;
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.seconds > b.seconds; });
  const double own = o.seconds - o.earlier_seconds;
  if (own - known > 0.001 * own) parts.push_back({"other", own - known});
  const double total = std::max(own, known);
  if (!(total > 0)) return;
  const int room = std::clamp(style.width - Sections::kIndent - 39, 0, 40);
  for (size_t i = 0; i < parts.size(); ++i) {
    const double share = parts[i].seconds / total;
    std::string line = fmt::format("{} {:>12} {:5.{}f} %", padded(parts[i].what, 16), duration_text(parts[i].seconds), 100 * share, share < 0.01 ? 2 : 1);
    const int eighths = int(std::lround(share * room * 8));
    constexpr std::string_view kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    if (eighths > 0) line += "  " + repeated("█", eighths / 8) + std::string(kParts[eighths % 8]);
    out.raw(i == 0 ? "time" : "", line);
  }
}

void add_curve(Sections& out, std::span<const double> curve, int decimals, const TerminalStyle& style) {
  if (curve.size() < 2) return;
  auto text = [&](double value) { return decimals < 4 ? fmt::format("{:.{}f}", value, decimals) : figure_text(value); };
  const std::string from = text(curve.front()), to = text(curve.back());
  const int room = style.width - Sections::kIndent - display_width(from) - display_width(to) - 2;
  out.raw("", fmt::format("{} {} {}", from, sparkline(curve, std::min(room, 64)), to));
}

void add_scores(Sections& out, const RunSummary& s, std::span<const double> scores, const TerminalStyle& style) {
  const Outcome& o = s.outcome;
  for (const std::string& line : s.results) out.add(&line == s.results.data() ? "result" : "", line);
  if (o.best_score)
    out.add("score", fmt::format("best evaluation {:.2f} at update {}, last {:.2f}{}", *o.best_score, grouped(o.best_step), o.final_score.value_or(NAN),
                                 scores.size() < 2 ? "" : "; in training:"));
  add_curve(out, scores, 2, style);
}

void add_losses(Sections& out, const RunSummary& s, std::span<const double> losses, const TerminalStyle& style) {
  if (is_agent_unit(s.unit)) return add_scores(out, s, losses, style);
  const Outcome& o = s.outcome;
  if (s.nats_per_character > 0) {
    std::string line = fmt::format("loss {:.3f} nats/char", s.nats_per_character);
    if (s.possible) line += fmt::format(", possible {:.3f}: {:.0f} %", *s.possible, 100 * *s.possible / s.nats_per_character);
    out.add("result", fmt::format("{}; {:.3f} bits/char", line, s.nats_per_character / std::numbers::ln2));
  }
  for (const std::string& line : s.results) {  // rows of a table keep their blanks where they fit
    const std::string_view head = &line == s.results.data() ? "result" : "";
    Sections::kIndent + display_width(line) <= style.width ? out.raw(head, line) : out.add(head, line);
  }
  const size_t mean_of = std::min<size_t>(size_t(std::max<int64_t>(o.steps, 0)), kMeanSteps);
  std::string line = fmt::format("train {} ({}first {})", figure_text(o.final_train_loss),
                                 mean_of > 1 ? fmt::format("mean of the last {} steps; ", mean_of) : "", figure_text(o.first_loss));
  const bool current = o.validated_step == o.steps || (o.validated_step < 0 && !o.resumed);
  const std::string when = current ? "the end" : o.validated_step < 0 ? "the last validation" : "step " + grouped(o.validated_step);
  if (o.best_score && !o.score.is_loss())
    out.add("score", fmt::format("validation {} {} at step {}, the {} of all; {} at {}", o.score.name, score_text(o.score, *o.best_score), grouped(o.best_step),
                                 o.score.higher_is_better ? "highest" : "lowest", score_text(o.score, o.final_score.value_or(NAN)), when));
  if (o.best_val_loss)
    line = fmt::format("validation {} at {}step {}, {}", figure_text(*o.best_val_loss), o.score.is_loss() ? "" : fmt::format("the best {}, ", o.score.name),
                       grouped(o.best_step), line);
  out.add("loss", line);
  add_curve(out, losses, 4, style);
}

}  // namespace

void LossCurve::add(double loss) {
  if (!std::isfinite(loss)) return;
  sum_ += loss;
  if (++gathered_ < each_) return;
  if (used_ == points_.size()) {  // full: merge pairs of points
    used_ /= 2, each_ *= 2;
    for (size_t i = 0; i < used_; ++i) points_[i] = (points_[2 * i] + points_[2 * i + 1]) / 2;
    return;  // the gathered losses are now half a point
  }
  points_[used_++] = sum_ / double(gathered_);
  sum_ = 0, gathered_ = 0;
}

std::string clock_text(double seconds) {
  if (!(seconds >= 0) || std::isinf(seconds)) return "?";
  if (seconds >= 86399.5) return days_text(seconds);
  const auto s = int64_t(std::llround(seconds));
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || std::isinf(seconds)) return "?";
  if (seconds >= 86399.5) return days_text(seconds);
  if (seconds > 0 && seconds < 0.9995e-3) return fmt::format("{:.0f} µs", 1e6 * seconds);
  if (seconds > 0 && seconds < 9.995e-3) return fmt::format("{:.2f} ms", 1e3 * seconds);
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", 1e3 * seconds);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto s = int64_t(std::llround(seconds));
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
}

std::string count_text(double count) {
  if (!(count >= 0)) return "?";
  constexpr std::string_view kUnits[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  for (; count >= 999.5 && unit + 1 < std::size(kUnits); ++unit) count /= 1000;
  const int decimals = unit == 0 || count >= 99.95 ? 0 : count >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", count, decimals, kUnits[unit]);
}

std::string score_text(const Score& score, double value) {
  return score.unit.empty() ? figure_text(value) : fmt::format("{} {}", figure_text(value), score.unit);
}

std::string decision_table(std::span<const Decision> decisions, const TerminalStyle& style) {
  constexpr int kGap = 2, kMinWhy = 30;
  int setting = 7, value = 5, by = 10;  // widths of the headings
  for (const Decision& d : decisions) {
    setting = std::max(setting, display_width(d.setting));
    value = std::max(value, display_width(d.value));
    by = std::max(by, display_width(d.decided_by));
  }
  setting = std::min(setting, style.width / 4), by = std::min(by, style.width / 4);
  value = std::min(value, style.width - setting - by - 2 * kGap);
  // Reasons go below on a narrow terminal, and to the right on a wide one.
  const int used = setting + value + by + 3 * kGap;
  const bool same_line = style.width - used >= kMinWhy;
  auto row = [&](std::string_view a, std::string_view b, std::string_view c) {
    return padded(cut(a, setting), setting + kGap) + padded(cut(b, value), value + kGap) + padded(cut(c, by), by);
  };
  auto trimmed = [](std::string line) { return line.erase(line.find_last_not_of(' ') + 1); };
  std::string text = faint(trimmed(row("setting", "value", "decided by") + (same_line ? "  why" : "")), style) + "\n";
  for (const Decision& d : decisions) {
    std::string line = row(d.setting, d.value, d.decided_by);
    const std::string why = d.runner_up.empty() ? d.why : fmt::format("{}{}otherwise {}", d.why, d.why.empty() ? "" : "; ", d.runner_up);
    if (!why.empty() && same_line) line += blanks(kGap) + faint(wrap(why, style.width, used), style);
    text += trimmed(line) + "\n";
    if (!why.empty() && !same_line) text += blanks(kGap) + faint(wrap(why, style.width, kGap), style) + "\n";
  }
  return text;
}

std::string roof_text(double roof, double others, std::string_view word) {
  if (!is_above_roof(roof)) return fmt::format("{:.0f} % of {}", 100 * roof, word);
  return fmt::format("above {} ({})", word, above_roof_text(others));
}

bool is_above_roof(double roof) { return roof >= 1.005; }  // would be shown as more than 100 %

std::string above_roof_text(double others) {
  return others > kQuiet ? fmt::format("measured while others used {:.0f} %", 100 * others) : "measured while slower";
}

namespace {

constexpr int kMinBars = 8, kMaxBars = 32;

struct Field {
  std::string text;
  int rank;  // 0: the last to be dropped
  bool shown = false;
};

// The fields that fit; the last one is a place for bars.
std::string fitted(std::vector<Field> fields, std::span<const double> curve, int width) {
  Field& bars = fields.back();
  int used = -2;
  for (int rank = 0; rank < int(fields.size()); ++rank)
    for (Field& f : fields)
      if (f.rank == rank && !f.text.empty() && used + 2 + display_width(f.text) <= width) f.shown = true, used += 2 + display_width(f.text);
  if (bars.shown) bars.text = sparkline(curve, std::clamp(kMinBars + width - used, kMinBars, kMaxBars));
  std::string line;
  for (const Field& f : fields)
    if (f.shown) line += (line.empty() ? "" : "  ") + f.text;
  return line;
}

double scalar_of(const Progress& p, std::string_view name) {
  for (size_t i = 0; i < p.scalar_names.size(); ++i)
    if (p.scalar_names[i] == name) return p.scalars[i];
  return NAN;
}

std::string short_number(double value, int decimals) {
  if (std::isnan(value)) return "none";
  return decimals >= 4 && std::abs(value) < 1000 ? figure_text(value) : fmt::format("{:.{}f}", value, std::abs(value) < 1000 ? decimals : 0);
}
std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

// What an agent's lines say besides the score, most important first.
std::vector<std::string> agent_figures(const Progress& p) {
  std::vector<std::string> figures;
  for (const auto& [name, word, decimals] : {std::tuple("kl", "kl", 4),
                                             {"clipped", "clipped", -1},
                                             {"entropy", "entropy", 3},
                                             {"explained", "explained", 2},
                                             {"policy_loss", "policy loss", 4},
                                             {"value_loss", "value loss", 4}})
    if (const double value = scalar_of(p, name); !std::isnan(value))
      figures.push_back(fmt::format("{} {}", word, decimals < 0 ? percent(value) : short_number(value, decimals)));
  return figures;
}

// Shares of the time since the run began. Playing is acting and the environment together, where the environment's part is not known yet.
std::vector<std::pair<const char*, double>> time_shares(const Progress& p) {
  const double playing = scalar_of(p, "playing"), environment = scalar_of(p, "environment"), learning = scalar_of(p, "learning");
  if (std::isnan(playing) || std::isnan(learning)) return {};
  std::vector<std::pair<const char*, double>> shares = {{"playing", playing}};
  if (!std::isnan(environment)) shares = {{"acting", std::max(0.0, playing - environment)}, {"environment", environment}};
  shares.insert(shares.end(), {{"learning", learning}, {"waiting", std::max(0.0, 1 - playing - learning)}});
  return shares;
}

std::string time_split(const Progress& p, std::string_view separator) {
  std::string text;
  for (const auto& [what, share] : time_shares(p)) text += fmt::format("{}{} {}", text.empty() ? "" : separator, what, percent(share));
  return text;
}

std::string bottleneck(const Progress& p) {
  const auto shares = time_shares(p);
  if (shares.empty()) return {};
  const std::string_view most = std::ranges::max_element(shares, {}, &std::pair<const char*, double>::second)->first;
  return fmt::format("{}{} takes the most time", most == "environment" ? "the " : "", most);
}

std::string agent_live_line(const Progress& p, std::span<const double> scores, int width, const LiveNotes& notes) {
  const std::string steps = fmt::format("{}", p.steps);
  std::vector<Field> fields = {
      {fmt::format("score {}", short_number(scalar_of(p, "score"), 2)), 0},
      {fmt::format("length {}", short_number(scalar_of(p, "length"), 0)), 4},
      {p.applied ? fmt::format("update {:>{}}/{}", p.step, steps.size(), steps) : fmt::format("update {} skipped", p.step), 1},
      {p.tokens_s > 0 ? fmt::format("{} steps/s", count_text(p.tokens_s)) : "", 2},
      {p.frames_s > p.tokens_s ? fmt::format("{} frames/s", count_text(p.frames_s)) : "", 7},
      {time_split(p, " "), 6},
      {notes.cores, 8},
  };
  int rank = 9;
  std::vector<std::string> figures = agent_figures(p);
  figures.insert(figures.begin() + long(std::min<size_t>(figures.size(), 4)), bottleneck(p));  // before the losses
  for (const std::string& figure : figures) fields.push_back({figure, rank++});
  fields.push_back({notes.target, 3});
  fields.push_back({p.steps > p.step ? fmt::format("ETA {}", clock_text(p.eta_s)) : "", 3});
  fields.push_back({scores.size() > 1 ? blanks(kMinBars) : "", 5});
  return fitted(std::move(fields), scores, width);
}

std::string agent_plain_line(const Progress& p, const LiveNotes& notes) {
  std::string line = fmt::format("update {}: score {}, length {}, {} steps/s", p.step, short_number(scalar_of(p, "score"), 2),
                                 short_number(scalar_of(p, "length"), 0), count_text(p.tokens_s));
  if (p.frames_s > p.tokens_s) line += fmt::format(", {} frames/s", count_text(p.frames_s));
  if (const std::string split = time_split(p, ", "); !split.empty()) line += ", " + split + ", " + bottleneck(p);
  for (const std::string& figure : agent_figures(p)) line += ", " + figure;
  line += fmt::format(", lr {:.3g}", p.lr);
  if (!notes.cores.empty()) line += ", " + notes.cores;
  if (!p.applied) line += ", skipped";
  if (!notes.target.empty()) line += ", " + notes.target;
  if (p.steps > p.step) line += ", ETA " + clock_text(p.eta_s);
  return line;
}

}  // namespace

void ScoreTrend::add(double seconds, double score) {
  constexpr size_t kMost = 256;
  if (!std::isfinite(score) || score == last_ || (last_ = score, ++seen_ % each_ != 0)) return;
  if (points_.size() == kMost) {  // every second one is enough of a long run
    for (size_t i = 0; i < kMost / 2; ++i) points_[i] = points_[2 * i + 1];
    points_.resize(kMost / 2), each_ *= 2;
  }
  points_.emplace_back(seconds, score);
}

std::optional<double> ScoreTrend::until(double target, double seconds) const {
  constexpr size_t kFewest = 8;
  constexpr double kClearly = 4, kFarthest = 3;  // slope ÷ its standard error; times the stretch behind it
  const size_t n = std::max(points_.size() / 3, kFewest);
  if (points_.size() < n) return {};
  const std::span recent(points_.data() + points_.size() - n, n);
  double t = 0, s = 0, tt = 0, ts = 0, errors = 0;
  for (const auto& [time, score] : recent) t += time / double(n), s += score / double(n);
  for (const auto& [time, score] : recent) tt += (time - t) * (time - t), ts += (time - t) * (score - s);
  const double slope = ts / tt;
  for (const auto& [time, score] : recent) errors += std::pow(score - s - slope * (time - t), 2);
  if (!(slope > kClearly * std::sqrt(errors / double(n - 2) / tt))) return {};
  const double left = (target - s) / slope - (seconds - t);
  if (!(left <= kFarthest * (seconds - recent.front().first))) return {};
  return std::max(left, 0.0);
}

bool is_agent_unit(std::string_view unit) { return unit == "steps"; }
std::string_view step_word(std::string_view unit) { return is_agent_unit(unit) ? "update" : "step"; }

std::string live_line(const Progress& p, std::span<const double> losses, std::string_view unit, int width, const LiveNotes& notes) {
  if (is_agent_unit(unit)) return agent_live_line(p, losses, width, notes);
  const std::string steps = fmt::format("{}", p.steps);
  std::vector<Field> fields = {
      {fmt::format("step {:>{}}/{}", p.step, steps.size(), steps), 0},
      {p.applied ? fmt::format("loss {}", figure_text(p.loss)) : "loss: skipped", 1},
      {fmt::format("norm {:.3g}", without_nan_sign(p.gradient_norm)), 7},
      {fmt::format("lr {:.2e}", p.lr), 8},
      {p.wall_ms > 0 ? fmt::format("{:.{}f} ms/step", p.wall_ms,
                                   p.wall_ms < 10    ? 2
                                   : p.wall_ms < 100 ? 1
                                                     : 0)
                     : "",
       4},
      {p.tokens_s > 0 ? fmt::format("{} {}/s", count_text(p.tokens_s), unit) : "", 3},
      {p.roof > 0 ? roof_text(p.roof, p.roof_others) : "", 6},
      {p.resident_bytes > 0 ? memory_text(p) : "", 9},
      {p.steps > p.step ? fmt::format("ETA {}", clock_text(p.eta_s)) : "", 2},
      {losses.size() > 1 ? blanks(kMinBars) : "", 5},
  };
  // Named scalars follow the loss and are dropped first if space is short.
  for (size_t i = 0; i < p.scalar_names.size(); ++i)
    fields.insert(fields.begin() + 2 + long(i), {fmt::format("{} {}", p.scalar_names[i], figure_text(p.scalars[i])), 10 + int(i)});
  return fitted(std::move(fields), losses, width);
}

std::string plain_line(const Progress& p, std::string_view unit, const LiveNotes& notes) {
  if (is_agent_unit(unit)) return agent_plain_line(p, notes);
  std::string line = fmt::format("iter {}: loss {}, time {:.2f}ms, norm {:.4g}, lr {:.4g}, {:.0f} {}/s", p.step, figure_text(p.loss), p.ms,
                                 without_nan_sign(p.gradient_norm), p.lr, p.tokens_s, unit);
  if (p.roof > 0) line += p.roof <= 1 ? fmt::format(", roof {:.1f} %", 100 * p.roof) : ", " + roof_text(p.roof, p.roof_others);
  if (p.resident_bytes > 0) line += ", memory " + memory_text(p);
  for (size_t i = 0; i < p.scalar_names.size(); ++i) line += fmt::format(", {} {}", p.scalar_names[i], figure_text(p.scalars[i]));
  if (p.loss_scale != 1) line += fmt::format(", scale {:.0f}", p.loss_scale);
  if (!p.applied) line += ", skipped";
  if (p.steps > p.step) line += ", ETA " + clock_text(p.eta_s);
  return line;
}

std::string sample_frame(int64_t step, std::string_view text, const TerminalStyle& style) {
  constexpr size_t kLines = 16;
  const std::string safe = printable(text), head = fmt::format("╭─ sample at step {} ", step), bar = faint("│", style) + " ";
  const std::vector<std::string_view> lines = folded(std::string_view(safe).substr(0, safe.find_last_not_of('\n') + 1), style.width - 2);
  std::string out = faint(head + repeated("─", style.width - display_width(head)), style) + "\n";
  for (size_t i = 0; i < std::min(lines.size(), kLines); ++i) out += bar + std::string(lines[i]) + "\n";
  if (lines.size() > kLines) out += bar + "…\n";
  return out + faint("╰" + repeated("─", style.width - 1), style) + "\n";
}

std::string summary_text(const RunSummary& s, std::span<const double> losses, const TerminalStyle& style) {
  const Outcome& o = s.outcome;
  const std::string head = fmt::format("── {} ", cut(s.what.empty() ? "summary" : s.what, style.width - 8));
  Sections out(style);
  std::string text = bold(head + repeated("─", style.width - display_width(head)), style) + "\n";
  out.add("run", fmt::format("{} in {}: {}", counted(o.steps, step_word(s.unit)), duration_text(o.seconds),
                             o.reason.empty() ? name(o.end) : std::string_view(o.reason)));
  if (o.state_lost_since) out.add("state", fmt::format("lost since step {}: the last checkpoint could not be written", grouped(*o.state_lost_since)));
  if (o.resumed)
    out.add("", fmt::format("resumed{}; speed and time are for this part: {} in {}", o.bit_exact ? "" : ", not bit-exact",
                            counted(o.own_steps, step_word(s.unit)), duration_text(o.seconds - o.earlier_seconds)));
  add_losses(out, s, losses, style);
  const bool median = o.own_steps > 1;
  std::string speed = fmt::format("{} {}/s in all; {} alone {} {}/s", count_text(o.tokens_s), s.unit, is_agent_unit(s.unit) ? "learning" : "compute",
                                  count_text(o.compute_tokens_s), s.unit);
  if (o.roof > 0) speed += ", " + roof_text(o.roof, o.roof_others, "the roof");
  speed += fmt::format("; {} {} {}{}", duration_text(1e-3 * o.ms), is_agent_unit(s.unit) ? "an" : "a", step_word(s.unit),
                       median ? fmt::format(" (median of the last {})", std::min<int64_t>(o.own_steps, kMedianSteps)) : "");
  if (s.sampled_tokens_s > 0) speed += fmt::format("; samples {} {}/s", count_text(s.sampled_tokens_s), s.unit);
  out.add("speed", speed);
  add_times(out, s, style);
  if (s.threads > 0) out.add("device", fmt::format("{}, {} thread{}, {}", s.device, s.threads, s.threads == 1 ? "" : "s", s.precision));
  if (!s.cores.empty()) out.add("cores", s.cores);
  if (s.kernels) out.add(s.cores.empty() ? "cores" : "", fmt::format("{} of the threads' time in kernels", percent(*s.kernels)));
  if (o.peak_bytes > 0)
    out.add("memory", s.planned_bytes > 0 ? fmt::format("planned {}, peak {} ({:.0f} %)", size_text(s.planned_bytes), size_text(o.peak_bytes),
                                                        100 * double(o.peak_bytes) / double(s.planned_bytes))
                                          : fmt::format("peak {}", size_text(o.peak_bytes)));
  if (o.skipped > 0 || o.roll_backs > 0) out.add("guards", fmt::format("{} skipped, {}", counted(o.skipped, "step"), counted(o.roll_backs, "roll-back")));
  if (!s.folder.empty()) out.raw("files", s.folder.string());
  auto list = [&](const std::vector<std::pair<std::string, std::string>>& rows, std::string_view head) {
    constexpr int kMin = 16;  // minimum columns for a description next to its word
    int widest = 0;
    for (const auto& row : rows) widest = std::max(widest, display_width(row.first));
    const int indent = Sections::kIndent + widest + 2;
    for (const auto& [word, meaning] : rows) {
      const bool same_line = style.width - indent >= kMin;
      out.raw(&word == &rows[0].first ? head : "", same_line ? padded(word, widest + 2) + faint(wrap(meaning, style.width, indent), style) : word);
    }
  };
  list(s.files, "");
  list(s.next, "next");
  return text + out.take();
}

nlohmann::ordered_json summary_json(const RunSummary& s) {
  const Outcome& o = s.outcome;
  nlohmann::ordered_json j;
  j["what"] = s.what, j["unit"] = s.unit, j["end"] = name(o.end), j["reason"] = o.reason;
  j["state_lost_since"] = o.state_lost_since ? nlohmann::ordered_json(*o.state_lost_since) : nlohmann::ordered_json();
  j["best_val_loss"] = o.best_val_loss ? nlohmann::ordered_json(*o.best_val_loss) : nlohmann::ordered_json();
  j["best_step"] = o.best_step;
  j["final_val_loss"] = o.final_val_loss ? nlohmann::ordered_json(*o.final_val_loss) : nlohmann::ordered_json();
  if (o.score != Score{}) {
    j["score"] = to_json(o.score);
    for (const auto& [key, value] : {std::pair("best_score", &o.best_score), {"final_score", &o.final_score}})
      j[key] = *value ? nlohmann::ordered_json(**value) : nlohmann::ordered_json();
  }
  j["final_train_loss"] = o.final_train_loss, j["first_loss"] = o.first_loss;
  if (s.nats_per_character > 0) j["nats_per_character"] = s.nats_per_character, j["bits_per_character"] = s.nats_per_character / std::numbers::ln2;
  if (s.possible) j["possible_nats_per_character"] = *s.possible;
  for (const auto& [what, value] : s.test) j["test"][what] = value;
  if (const std::optional<TargetResult>& t = s.target) {
    j["target"] = {{"score", t->score}, {"reached", t->reached}, {"units", t->units}, {"seconds", t->seconds}};
    if (t->evaluation) j["target"]["evaluation"] = *t->evaluation;
  }
  j["steps"] = o.steps, j["skipped"] = o.skipped, j["roll_backs"] = o.roll_backs;
  j["seconds"] = o.seconds, j["ms"] = o.ms, j["tokens_s"] = o.tokens_s, j["compute_tokens_s"] = o.compute_tokens_s;
  if (o.roof > 0)
    j["roof"] = is_above_roof(o.roof) ? nlohmann::ordered_json() : nlohmann::ordered_json(std::min(o.roof, 1.0)), j["roof_others"] = o.roof_others;
  if (is_above_roof(o.roof)) j["above_roof"] = above_roof_text(o.roof_others);
  if (s.sampled_tokens_s > 0) j["sampled_tokens_s"] = s.sampled_tokens_s;
  for (int i = 0; i < kPhases; ++i) j["phase_seconds"][std::string(name(Phase(i)))] = o.phase_seconds[i];
  if (o.update_seconds > 0) j["update_seconds"] = o.update_seconds;
  for (const auto& [what, seconds] : s.data_parts) j["data_seconds"][what] = seconds;
  j["data_wait_seconds"] = o.data_wait_seconds, j["telling_seconds"] = o.reporting_seconds;
  j["planned_bytes"] = s.planned_bytes, j["peak_bytes"] = o.peak_bytes;
  j["device"] = s.device, j["threads"] = s.threads, j["precision"] = s.precision, j["cores"] = s.cores;
  if (s.kernels) j["kernel_share"] = *s.kernels;
  j["resumed"] = o.resumed, j["bit_exact"] = o.bit_exact;
  return j;
}

nlohmann::ordered_json decisions_json(std::span<const Decision> decisions) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Decision& d : decisions)
    rows.push_back({{"setting", d.setting}, {"value", d.value}, {"decided_by", d.decided_by}, {"why", d.why}, {"runner_up", d.runner_up}});
  return rows;
}

std::string cores_text(const Utilisation& use) {
  constexpr size_t kMaxBars = 64;
  std::string text = use.summary();
  if (use.counted && use.cpus.size() > 1) {
    const auto [low, high] = std::minmax_element(use.cpus.begin(), use.cpus.end());
    text += "; ";
    if (use.cpus.size() <= kMaxBars) {
      for (double busy : use.cpus) text += level_bar(busy);
      text += " ";
    }
    text += fmt::format("from {:.0f} to {:.0f} %", 100 * *low, 100 * *high);
  }
  if (!use.cpus.empty()) text += fmt::format("; this process kept {:.1f} of {} busy", use.process, use.cpus.size());
  return text;
}

std::string_view name(Outcome::End end) {
  constexpr std::string_view names[] = {"finished", "target", "time", "interrupted", "terminated", "diverged", "unsaved"};
  return names[size_t(end)];
}

}  // namespace ridge
