// Shows a training run: a live line on a terminal, plain lines in a pipe, JSON lines for programs.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "train/train_text.h"

namespace ridge {

// Where a view writes, and the properties of that stream.
struct Screen {
  std::function<void(std::string_view)> write;  // unbuffered; if it throws, the run continues without this output (see Outputs)
  std::function<int()> width = [] { return 80; };
  bool live = false;  // the last line can be overwritten
  bool colour = false;
};
Screen stdout_screen();

// What the lines of an agent's run show besides its steps.
struct LiveFacts {
  std::function<std::string()> cores = {};  // how busy they are now; empty: unknown
  std::optional<double> target = {};        // in the score
};

class RunView : public TrainerView {
 public:
  virtual void begin(std::span<const Decision> decisions) = 0;
  virtual void end(const RunSummary& summary) = 0;
};

// Human-readable. Shows steps at most twice a second on a terminal; in a pipe at a fixed interval that gives about 100 step lines
// per run, and at least every ten seconds. A step that is not shown costs a few additions.
class TerminalView : public RunView {
 public:
  explicit TerminalView(Screen screen = stdout_screen(), std::string unit = "tokens", LiveFacts facts = {});

  void begin(std::span<const Decision> decisions) override;
  void end(const RunSummary& summary) override;
  void on_step(const Progress& progress) override;
  void on_validation(const ValidationResult& result) override;
  void on_sample(int64_t step, const std::string& text) override;
  void on_checkpoint(int64_t step, const std::string& folder, double seconds) override;
  void on_notice(const std::string& line) override;
  std::optional<int64_t> writes() const override { return writes_; }

 private:
  void write(std::string_view text) { screen_.write(text), ++writes_; }
  void above(std::string_view lines);  // prints whole lines and redraws the live line below them
  TerminalStyle style() const;
  std::string live() const;

  Screen screen_;
  std::string unit_;
  LiveFacts facts_;
  LiveNotes notes_;  // of an agent's line
  ScoreTrend trend_;
  LossCurve curve_;
  Progress last_;
  bool shown_ = false;                             // a live line is on the screen
  double drawn_at_ = -1e9, checkpoint_at_ = -1e9;  // elapsed seconds
  double loss_sum_ = 0;                            // since the last validation
  int64_t losses_ = 0, writes_ = 0;
};

// For programs: one object per line with the key "event": decisions, step, validation, sample, checkpoint, notice, summary.
class JsonView : public RunView {
 public:
  explicit JsonView(std::function<void(std::string_view)> write = stdout_screen().write) : write_(std::move(write)) {}

  void begin(std::span<const Decision> decisions) override;
  void end(const RunSummary& summary) override;
  void on_step(const Progress& progress) override;
  void on_validation(const ValidationResult& result) override;
  void on_sample(int64_t step, const std::string& text) override;
  void on_checkpoint(int64_t step, const std::string& folder, double seconds) override;
  void on_notice(const std::string& line) override;
  std::optional<int64_t> writes() const override { return writes_; }

 private:
  void put(const nlohmann::ordered_json& event);

  std::function<void(std::string_view)> write_;
  double reported_at_ = -1e9;
  int64_t writes_ = 0;
};

std::unique_ptr<RunView> stdout_view(bool json, std::string unit = "tokens", LiveFacts facts = {});

}  // namespace ridge
