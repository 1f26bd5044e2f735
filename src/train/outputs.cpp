#include "train/outputs.h"

#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>

#include <fmt/core.h>

namespace ridge {

Outputs::Outputs(const std::vector<TrainerView*>& outputs)
    : Outputs(outputs, [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }) {}

Outputs::Outputs(const std::vector<TrainerView*>& outputs, std::function<double()> seconds) : seconds_(std::move(seconds)) {
  for (TrainerView* view : outputs) outputs_.push_back({view});
}

template <class Call>
bool Outputs::attempt(Output& output, Call call) {
  if (output.off) return false;
  try {
    const std::optional<int64_t> before = output.failures ? output.view->writes() : std::nullopt;
    call(*output.view);
    if (output.failures && (!before || output.view->writes() != before)) output.failures = 0;
    return true;
  } catch (const std::exception& error) {
    const double now = seconds_();
    if (output.failures == 0) output.first_at = now;
    if (output.failures == 0 || now - output.counted_at >= kPause) ++output.failures, output.counted_at = now;
    output.off = output.failures >= kTries && now - output.first_at >= kPatience;
    if (output.off)
      reports_.emplace_back(&output, fmt::format("an output is switched off after failing for {:.0f} s: {}", now - output.first_at, error.what()));
    else if (!std::exchange(output.reported, true))
      reports_.emplace_back(&output, fmt::format("an output failed and will be retried, training continues: {}", error.what()));
    return false;
  }
}

template <class Call>
void Outputs::each(Call call) {
  for (Output& output : outputs_) attempt(output, call);
  if (!reports_.empty()) report();
}

// Each output causes at most two reports, so this terminates even if outputs fail one after another.
void Outputs::report() {
  for (size_t i = 0; i < reports_.size(); ++i) {
    const auto [about, line] = reports_[i];
    bool reported = false;
    for (Output& output : outputs_)
      if (&output != about) reported |= attempt(output, [&line = line](TrainerView& view) { view.on_notice(line); });
    if (!reported) std::fputs((line + "\n").c_str(), stderr);
  }
  reports_.clear();
}

void Outputs::begin(std::span<const Decision> decisions) {
  each([&](TrainerView& view) {
    if (auto* whole = dynamic_cast<RunView*>(&view)) whole->begin(decisions);
  });
}

void Outputs::end(const RunSummary& summary) {
  each([&](TrainerView& view) {
    if (auto* whole = dynamic_cast<RunView*>(&view)) whole->end(summary);
  });
}

void Outputs::on_steps(std::span<const Progress> steps) {
  for (Output& output : outputs_)
    for (const Progress& p : steps) attempt(output, [&](TrainerView& view) { view.on_step(p); });
  if (!reports_.empty()) report();
}

void Outputs::on_validation(const ValidationResult& result) {
  each([&](TrainerView& view) { view.on_validation(result); });
}

void Outputs::on_sample(int64_t step, const std::string& text) {
  each([&](TrainerView& view) { view.on_sample(step, text); });
}

void Outputs::on_checkpoint(int64_t step, const std::string& folder, double seconds) {
  each([&](TrainerView& view) { view.on_checkpoint(step, folder, seconds); });
}

bool Outputs::write_last(std::string_view what, const std::function<void()>& write) {
  constexpr std::chrono::milliseconds kRest(200);
  for (bool again : {true, false}) try {
      return write(), true;
    } catch (const std::exception& error) {
      if (again)
        std::this_thread::sleep_for(kRest);
      else
        on_notice(fmt::format("{} was not written: {}", what, error.what()));
    }
  return false;
}

void Outputs::on_notice(const std::string& line) {
  each([&](TrainerView& view) { view.on_notice(line); });
}

}  // namespace ridge
