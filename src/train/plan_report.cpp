#include "train/plan_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/terminal.h"
#include "base/text.h"
#include "train/train_text.h"

namespace ridge {
namespace {

using Json = nlohmann::ordered_json;

std::string bar(double share, int width) {
  std::string text;
  for (int i = 0; i < std::lround(share * width); ++i) text += "█";
  return text;
}

Json memory_json(const std::vector<MemoryItem>& items) {
  Json rows = Json::array();
  for (const MemoryItem& m : items) rows.push_back({{"what", m.what}, {"bytes", m.bytes}});
  return rows;
}

}  // namespace

std::string plan_text(const PlannedRun& run, const TerminalStyle& style) {
  const StepPlan& plan = run.step->plan();
  std::string text = run.fallback.empty() ? "" : wrap(run.fallback, style.width, 2) + "\n\n";
  text += decision_table(run.decisions, style);
  for (const std::string& notice : run.notices) text += wrap("note: " + notice, style.width, 6) + "\n";
  text += fmt::format("\nMemory: {} planned of {} ({})\n", size_text(run.planned_bytes), size_text(run.budget.bytes), run.budget.reason);
  const int room = std::clamp(style.width - 46, 0, 30);
  for (const MemoryItem& m : run.memory)
    if (m.bytes > 0) text += fmt::format("  {:<24} {:>10}  {}\n", m.what, size_text(m.bytes), bar(double(m.bytes) / double(run.planned_bytes), room));
  if (!run.host_memory.empty()) {
    text += fmt::format("\nHost memory: {} planned\n", size_text(run.host_planned_bytes));
    for (const MemoryItem& m : run.host_memory)
      if (m.bytes > 0) text += fmt::format("  {:<24} {:>10}\n", m.what, size_text(m.bytes));
  }
  text += "\nPrograms (they share activations and scratch)\n";
  text += fmt::format("  {:<18} {:>6} x {:<7} {:>11} {:>8} {:>8}\n", "", "times", "samples", "activations", "kernels", "GFLOP");
  for (const ProgramPlan& p : plan.programs)
    text += fmt::format("  {:<18} {:>6} x {:<7} {:>11} {:>8} {:>8.3g}\n", p.name, p.times, p.samples ? fmt::format("{}", p.samples) : "-",
                        size_text(p.arena_bytes), p.kernels, 1e-9 * p.flops);
  text += "\nLargest at the memory peak\n";
  for (size_t i = 0; i < std::min<size_t>(plan.largest.size(), 8); ++i)
    text += fmt::format("  {:>10}  {}{}\n", size_text(plan.largest[i].bytes), plan.largest[i].name,
                        plan.largest[i].count > 1 ? fmt::format("  x {}", plan.largest[i].count) : "");
  if (run.expected_step_seconds > 0) {
    const double tokens = double(plan.batch) * run.trainer.tokens_per_sample;
    const std::string expected =
        fmt::format("Expected: {} a step ({} {}/s, {}), {} for {}{};", duration_text(run.expected_step_seconds), count_text(tokens / run.expected_step_seconds),
                    run.unit, roof_text(run.min_seconds / run.expected_step_seconds, run.roof_others, "the roof"), duration_text(run.expected_total()),
                    counted(run.trainer.schedule.steps - run.steps_done, "step"), run.steps_done > 0 ? " that are left" : "");
    text += "\n" + wrap(expected, style.width, 2) + "\n  " + wrap("from " + run.expected_from, style.width, 2) + "\n";
  }
  return text;
}

std::string plan_json(const PlannedRun& run) {
  const StepPlan& plan = run.step->plan();
  Json j;
  Json programs = Json::array(), largest = Json::array();
  for (const ProgramPlan& p : plan.programs)
    programs.push_back({{"name", p.name},
                        {"samples", p.samples},
                        {"times", p.times},
                        {"arena_bytes", p.arena_bytes},
                        {"scratch_bytes", p.scratch_bytes},
                        {"kernels", p.kernels},
                        {"flops", p.flops}});
  for (const LargeTensor& t : plan.largest) largest.push_back({{"name", t.name}, {"bytes", t.bytes}, {"count", t.count}});
  std::vector<std::string> notices = run.notices;
  if (!run.fallback.empty()) notices.insert(notices.begin(), run.fallback);
  j["decisions"] = decisions_json(run.decisions), j["notices"] = notices;
  j["parameters"] = run.parameter_count(), j["unit"] = run.unit;
  j["units_per_step"] = double(plan.batch) * run.trainer.tokens_per_sample;
  j["budget_bytes"] = run.budget.bytes, j["budget_reason"] = run.budget.reason, j["planned_bytes"] = run.planned_bytes, j["memory"] = memory_json(run.memory);
  if (!run.host_memory.empty()) j["host_planned_bytes"] = run.host_planned_bytes, j["host_memory"] = memory_json(run.host_memory);
  j["programs"] = programs, j["largest"] = largest, j["choices"] = plan.choices.words();
  j["batch"] = plan.batch, j["micro"] = plan.micro, j["repeats"] = plan.repeats, j["remainder"] = plan.remainder;
  j["flops"] = plan.flops, j["kernels"] = plan.kernels, j["least_ms"] = 1e3 * run.min_seconds;
  j["expected_ms"] = 1e3 * run.expected_step_seconds, j["expected_seconds"] = run.expected_total(), j["expected_from"] = run.expected_from;
  j["step_decisions"] = plan.decisions;
  return j.dump(2) + "\n";
}

}  // namespace ridge
