// ridge tune: searches for the fastest choices of a task's training step, stores them, and recommends sizes; shows, clears, exports and imports what is stored.
#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <sstream>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/nearest.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/settings.h"
#include "doctor/chips.h"
#include "io/atomic_file.h"
#include "machine/machine.h"
#include "measure/default_team.h"
#include "tasks/registry.h"
#include "train/parts.h"
#include "train/run_trial.h"
#include "train/train_text.h"
#include "tune/kernel_search.h"
#include "tune/tuned_choice.h"

namespace ridge::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kChoicesShare = 0.6;  // of the time; the rest is for sizes

struct TuneArguments {
  std::string task, svg, as;
  std::vector<std::string> over;
  double seconds = 30, latency_ms = 0;
  bool json = false, proof = false, choices_only = false;
};

double number_of(const std::string& word, double low, double high) {
  const std::string text = word.substr(word.find('=') + 1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= low && value <= high))
    fail(ErrorCode::usage, "[tune] {}: give a number from {:g} to {:g}", word, low, high);
  return value;
}

std::string dimension_named(const std::string& name) {
  const std::span<const std::string_view> all = tune_dimensions();
  if (std::ranges::find(all, name) != all.end()) return name;
  const std::string hint = close_hint(name, all);
  fail(ErrorCode::usage, "[tune] over={}: there is no such choice; {}valid: {}", name, hint.empty() ? "" : hint + " ", fmt::join(all, ", "));
}

// seconds=N, latency=MS and over=LIST are words of this command only.
void take_own_words(std::vector<std::string>& words, TuneArguments& a) {
  std::erase_if(words, [&](const std::string& word) {
    if (word.starts_with("seconds=")) return a.seconds = number_of(word, 0.5, 86400), true;
    if (word.starts_with("over=")) {
      std::istringstream names(word.substr(5));
      for (std::string name; std::getline(names, name, ',');) a.over.push_back(dimension_named(name));
      if (a.over.empty()) fail(ErrorCode::usage, "[tune] over= names no choice; valid: {}", fmt::join(tune_dimensions(), ", "));
      return true;
    }
    if (word.starts_with("latency=")) return a.latency_ms = number_of(word, 0.001, 1e6), true;
    return false;
  });
}

MeasurementStore own_store() { return MeasurementStore(fingerprint(detect_machine({}))); }

void say_remark(const MeasurementStore& store) {
  if (const std::string remark = store.remark(); !remark.empty()) fmt::print(stderr, "ridge: {}\n", remark);
}

std::string the_file(const std::string& action, const std::vector<std::string>& words) {
  if (words.size() != 1) fail(ErrorCode::usage, "[tune] ridge tune {} takes one file: ridge tune {} FILE", action, action);
  return words[0];
}

int run_stored(const TuneArguments& a, const std::vector<std::string>& words) {
  MeasurementStore store = own_store();
  say_remark(store);
  const Fingerprint machine = fingerprint(detect_machine({}));
  if (a.task == "export") {
    const std::string file = the_file(a.task, words);
    write_atomically(file, choices_json(store, machine));
    fmt::print("{} written to {}\n", counted(int64_t(store.all(kTuneKeys).size()), "choice"), file);
    return kOk;
  }
  if (a.task == "import") {
    const std::string file = the_file(a.task, words);
    std::ifstream in(file, std::ios::binary);
    if (!in) fail(ErrorCode::io, "[tune] cannot read {}; make it with ridge tune export {}", file, file);
    std::ostringstream text;
    text << in.rdbuf();
    const int64_t count = import_choices(store, text.str(), file);
    fmt::print("{} imported from {}; runs with equal models, sizes, formats and instruction sets use them until ridge tune clear\n", counted(count, "choice"),
               file);
    return store.stored() ? kOk : kData;
  }
  if (!words.empty()) fail(ErrorCode::usage, "[tune] ridge tune {} takes no more words, but {} was given", a.task, words[0]);
  if (a.task == "clear") {
    fmt::print("{} forgotten\n", counted(store.forget(kTuneKeys), "choice"));
    return kOk;
  }
  fmt::print("{}", a.json ? choices_json(store, machine) : choices_text(store));
  return kOk;
}

// What was measured, fastest first.
void print_trials(const TuneSpace& space, const TuneResult& r) {
  std::vector<const TuneTrial*> trials;
  for (const TuneTrial& t : r.trials)
    if (t.refused.empty() && !t.seconds().empty()) trials.push_back(&t);
  auto median = [](const TuneTrial* t) { return summary_of(t->seconds()).median; };
  std::stable_sort(trials.begin(), trials.end(), [&](const TuneTrial* a, const TuneTrial* b) { return median(a) < median(b); });
  size_t width = 8;
  for (const TuneTrial* t : trials) width = std::max(width, space.text(t->point).size());
  fmt::print("  {:<{}} {:>12} {:>8} {:>8}\n", "choice", width, "a step", "samples", "busy");
  for (const TuneTrial* t : trials)
    fmt::print("  {:<{}} {:>12} {:>8} {:>8}{}\n", space.text(t->point), width, duration_text(median(t)), t->quiet.size() + t->busy.size(), t->busy.size(),
               t->point == r.best ? "  <- chosen" : "");
  for (const TuneTrial& t : r.trials)
    if (!t.refused.empty()) fmt::print("{}\n", wrap(fmt::format("  refused: {}: {}", space.text(t.point), t.refused), terminal_width(), 4));
}

// The choice against the whole space, on fresh repeats.
void prove(StepTrials& trials, const TuneResult& r, Json* json) {
  const TuneSpace& space = trials.space();
  if (!json) fmt::print("\nProof: all {} choices are measured\n", space.points());
  const ExhaustiveResult all = measure_all(space, trials, r.best);
  if (json) {
    *json = {{"points", all.points},
             {"samples", all.samples},
             {"best", space.text(all.best)},
             {"best_seconds", all.best_seconds},
             {"chosen", space.text(r.best)},
             {"chosen_seconds", all.chosen_seconds},
             {"measured_points", r.points},
             {"measured_samples", r.samples},
             {"median_seconds", all.median_seconds},
             {"busy", all.busy}};
    return;
  }
  fmt::print("  best     {:>12}  {}\n  median   {:>12}  {:.2f} x the best\n  chosen   {:>12}  {:.3f} x the best, on fresh interleaved repeats\n",
             duration_text(all.best_seconds), space.text(all.best), duration_text(all.median_seconds), all.median_seconds / all.best_seconds,
             duration_text(all.chosen_seconds), all.chosen_seconds / all.best_seconds);
  fmt::print("  measured {} of {} choices ({:.0f} %) with {} samples, {:.1f} for each; the proof took {}{}\n", r.points, all.points,
             100 * double(r.points) / double(all.points), r.samples, double(r.samples) / double(r.points), all.samples,
             all.busy ? "\n  other programs used the machine meanwhile: this proves little" : "");
}

Json trials_json(const TuneSpace& space, const TuneResult& r) {
  Json list = Json::array();
  for (const TuneTrial& t : r.trials) {
    Json j;
    j["choice"] = space.text(t.point);
    t.refused.empty() ? void(j["seconds"] = t.seconds()) : void(j["refused"] = t.refused);
    j["busy_samples"] = t.busy.size();
    list.push_back(j);
  }
  return list;
}

// What was found for each kernel, longest first.
void print_kernels(const std::vector<KernelSite>& sites, const KernelSearchResult& r) {
  fmt::print("\nKernels of at least {:.0f} % of a step, and the fastest way to build them ({:.3g} s)\n", 100 * kHotKernel, r.seconds);
  size_t width = 8;
  for (const KernelFinding& f : r.hot) width = std::max(width, sites[f.site].key.size());
  fmt::print("  {:<{}} {:>12} {:>7}  built\n", "kernel", width, "in a step", "tried");
  for (const KernelFinding& f : r.hot) {
    const std::vector<std::string>& variants = sites[f.site].variants;
    std::string built = f.at_roof ? "as planned: it runs at the measured roof" : "as planned";
    if (f.variant) built = fmt::format("{}: {:.2f} x as fast", variants[f.variant - 1], f.seconds / f.best_seconds);
    if (f.other) built += fmt::format("; otherwise {}: {:.2f} x as fast", variants[f.other - 1], 1 / f.other_ratio);
    fmt::print("  {:<{}} {:>12} {:>7}  {}\n", sites[f.site].key, width, duration_text(f.seconds), f.tried, built);
  }
  for (const std::string& why : r.refused) fmt::print("{}\n", wrap("  refused: " + why, terminal_width(), 4));
}

Json kernels_json(const std::vector<KernelSite>& sites, const KernelSearchResult& r) {
  Json list = Json::array();
  for (const KernelFinding& f : r.hot) {
    Json j = {{"kernel", sites[f.site].key}, {"seconds", f.seconds}, {"best_seconds", f.best_seconds}, {"tried", f.tried}, {"at_roof", f.at_roof}};
    j["built"] = f.variant ? Json(sites[f.site].variants[f.variant - 1]) : Json(nullptr);
    list.push_back(j);
  }
  return list;
}

struct Report {
  const TuneArguments& arguments;
  Json json = {};
  template <class... Args>
  void print(fmt::format_string<Args...> format, const Args&... args) const {
    if (!arguments.json) fmt::vprint(stdout, format, fmt::make_format_args(args...)), std::fflush(stdout);
  }
};

void search_choices(const Task& task, const config::Resolved& settings, RunOptions options, double seconds, Report& report) {
  report.print("Choices that leave the training as it is ({:.3g} s)\n", seconds);
  options.tune_seconds = seconds, options.tune_over = report.arguments.over;
  bool searched = false;
  options.tuned = [&](StepTrials& trials, const TuneResult& r) {
    searched = true;
    if (report.arguments.json)
      report.json["space"] = trials.space().points(), report.json["trials"] = trials_json(trials.space(), r), report.json["ended"] = r.ended;
    else
      print_trials(trials.space(), r);
    if (report.arguments.proof && r.points > 0) prove(trials, r, report.arguments.json ? &report.json["proof"] : nullptr);
  };
  options.kernels_tuned = [&](const std::vector<KernelSite>& sites, const KernelSearchResult& r) {
    if (report.arguments.json)
      report.json["kernels"] = kernels_json(sites, r), report.json["kernels_refused"] = r.refused;
    else
      print_kernels(sites, r);
  };
  const std::unique_ptr<TaskRun> run = task.plan(settings, options);
  for (const std::string& notice : run->notices) fmt::print(stderr, "ridge: {}\n", notice);
  std::vector<Decision> decisions;
  for (const Decision& d : run->decisions)
    if (d.setting == "tuning" || d.setting == "kernel choices" || d.setting == "env_halves") decisions.push_back(d);
  if (!searched || decisions.empty()) return report.print("  there is nothing to choose for this step\n");
  if (report.arguments.json) {
    report.json["decision"] = {
        {"value", decisions[0].value}, {"decided_by", decisions[0].decided_by}, {"why", decisions[0].why}, {"runner_up", decisions[0].runner_up}};
    return;
  }
  fmt::print("\n{}", decision_table(decisions, {terminal_width(), use_colour()}));
  if (report.arguments.over.empty()) fmt::print("  stored: ridge train {} with these settings uses it, and so do neighbouring sizes\n", task.name);
}

const ChipTarget& chip_named(std::string name) {
  std::string names;
  for (const ChipTarget& chip : known_chips()) {
    std::string plain = lower_case(chip.chip.substr(chip.chip.find(' ') + 1));
    std::replace(plain.begin(), plain.end(), ' ', '-');
    if (plain == lower_case(name)) return chip;
    names += (names.empty() ? "" : ", ") + plain;
  }
  fail(ErrorCode::usage, "[tune] nothing is known about a machine named {}; known: {}", name, names);
}

// The least that the kernels of a step take there, and a launch for each.
double guess_step(const TaskRun& run, const ChipTarget& chip) {
  constexpr double kLaunch = 5e-6;  // seconds
  double seconds = 0;
  for (const auto& [kernel, times] : run.step->kernels())
    seconds += double(times) * (std::max(kernel.flops / (1e12 * chip.tflops), kernel.bytes / (1e9 * chip.gbs)) + kLaunch);
  return seconds;
}

void search_model_sizes(const Task& task, const config::Resolved& settings, const RunOptions& options, double seconds, Report& report) {
  const TuneArguments& a = report.arguments;
  const ChipTarget* chip = a.as.empty() ? nullptr : &chip_named(a.as);
  const double latency = 1e-3 * (a.latency_ms > 0 ? a.latency_ms : 10);
  report.print("\nSizes that train the most parameters per second (parameters x samples/s), with steps of at most {}{}\n", duration_text(latency),
               a.latency_ms > 0 ? "" : "; set latency=MS for another limit");
  if (chip) report.print("FIRST GUESS for {}, from its {:g} TFLOP/s and {:g} GB/s: nothing was measured there\n", chip->chip, chip->tflops, chip->gbs);
  SizeSearchOptions search{.latency = latency, .seconds = seconds};
  if (chip) search.guess = [chip](const TaskRun& run) { return guess_step(run, *chip); };
  const SizeSearch s = search_sizes(task, settings, options, search);
  if (s.result.points == 0) {
    report.json["sizes"] = nullptr;
    return report.print("  no size keeps this limit: {}; set a higher latency=MS\n", s.result.ended);
  }
  std::string words;
  for (size_t d = 0; d < s.space.dimensions.size(); ++d)
    words += fmt::format("{}{}={}", d ? " " : "", s.space.dimensions[d].name, s.space.dimensions[d].values[s.result.best[d]]);
  report.json["sizes"] = {{"recommended", words},         {"latency_seconds", latency},         {"step_seconds", s.step_seconds},
                          {"parameters", s.parameters},   {"parameter_samples_s", s.best_rate}, {"measured_sizes", s.result.points},
                          {"of_sizes", s.space.points()}, {"measured", chip == nullptr}};
  report.print("  recommended: {}\n  {} a step, {}, {} parameters x samples/s", words, duration_text(s.step_seconds), counted(s.parameters, "parameter"),
               count_text(s.best_rate));
  if (s.present_rate > 0) report.print("; the present sizes: {}", count_text(s.present_rate));
  report.print("\n  {} {} of {} sizes; {}\n  sizes change what a model learns, so nothing was changed: add them to the command to use them\n",
               chip ? "guessed" : "measured", s.result.points, s.space.points(), s.result.ended);
}

void measure_curve(const Task& task, const config::Resolved& settings, const RunOptions& options, double seconds, Report& report) {
  const Task::Size& size = task.sizes.front();
  const TuneArguments& a = report.arguments;
  const SizeCurve curve = measure_sizes(task, settings, options, size.key, size.values.front(), std::clamp(seconds / 30, 0.1, 2.0));
  const std::string unit = task.plan(settings, options)->unit;
  const SizePoint& chosen = curve.points[curve.chosen];
  Json list = Json::array();
  for (const SizePoint& p : curve.points)
    list.push_back({{size.key, p.size}, {"units_s", p.rates}, {"step_seconds", p.step_seconds}, {"planned_bytes", p.planned_bytes}});
  report.json["curve"] = list, report.json["recommended"] = fmt::format("{}={}", size.key, chosen.size);
  report.print("\nSpeed by {}\n{}  recommended for speed: {}={} (now {}); it changes what a model learns, so it is used only with {}=auto\n", size.key,
               curve_text(curve, size.key, unit), size.key, chosen.size, settings.get<std::string>(size.key), size.key);
  if (a.svg.empty()) return;
  write_atomically(a.svg, curve_svg(curve, size.key, unit, fmt::format("{}: {} by {}", task.name, unit + "/s", size.key)));
  report.print("{} written\n", a.svg);
}

int run_tune(TuneArguments a, config::Sources sources) {
  take_own_words(sources.words, a);
  for (const char* action : {"show", "clear", "export", "import"})
    if (a.task == action) return run_stored(a, sources.words);
  const Task& task = find_task(a.task);
  check_picture_place(a.svg);
  if (!a.as.empty()) chip_named(a.as);
  sources.task = task.keys;
  add_implied(task, sources);
  if (task.sizes.size() < 2 && (!a.as.empty() || a.latency_ms > 0))
    fail(ErrorCode::usage, "[tune] --as and latency= are about the sizes of a model, which ridge tune {} does not search; leave them out", task.name);
  config::Resolved settings = config::resolve(sources);
  note_unused(settings, "train");
  const bool choices = a.as.empty();  // otherwise this machine does not matter
  if (!choices) settings.replace("threads", "1", "ridge tune");
  request_default_threads(thread_request(settings));
  RunOptions options;
  const Part part = parts_of(settings, settings.get<std::string>("out")).front();
  options.data = part.data, options.seed = part.seed, options.probe = true;
  options.measure = settings.get<bool>("optimize_perf");
  if (!options.measure && choices) fail(ErrorCode::usage, "[tune] optimize_perf=false forbids measurements; leave it out");
  const bool curve = !task.sizes.empty() && !task.sizes.front().values.empty();
  Report report{a};
  report.json["task"] = task.name;
  // Choices are searched for the sizes that are set; a batch that is to be measured comes first.
  if (!choices && is_batch_measured(settings) && curve) {
    settings.replace("batch", std::to_string(task.sizes.front().values.front()), "ridge tune");
  } else if (is_batch_measured(settings) && curve) {
    measure_batch(task, sources, options);
    settings = config::resolve(sources);
  }
  if (choices) search_choices(task, settings, options, a.choices_only ? a.seconds : kChoicesShare * a.seconds, report);
  const double left = choices ? (1 - kChoicesShare) * a.seconds : a.seconds;
  if (!a.choices_only && curve && choices) measure_curve(task, settings, options, left, report);
  if (!a.choices_only && task.sizes.size() > 1) search_model_sizes(task, settings, options, left, report);
  if (!a.choices_only && !task.sizes.empty() && !curve) {
    config::Resolved automatic = settings;
    automatic.replace(task.sizes.front().key, "auto", "ridge tune");
    const std::unique_ptr<TaskRun> run = task.plan(automatic, options);
    for (const Decision& d : run->decisions)
      if (d.setting == task.sizes.front().key) {
        report.json["recommended"] = fmt::format("{}: {}", d.setting, d.value), report.json["why"] = d.why, report.json["others"] = d.runner_up;
        report.print("\nRecommended for speed: {}: {} (now {})\n  {}\n  {}\n  it changes what is learnt, so it is used only with {}=auto\n", d.setting, d.value,
                     settings.get<std::string>(task.sizes.front().key), wrap(d.why, terminal_width(), 2), wrap(d.runner_up, terminal_width(), 2), d.setting);
      }
  }
  if (a.json) fmt::print("{}\n", report.json.dump(2));
  return kOk;
}

const Command tune_command("tune", "find the fastest choices for a task's training step, store them, and recommend sizes", [](Line line) {
  auto arguments = std::make_shared<TuneArguments>();
  line.word("task", arguments->task, "the task to tune, or show, clear, export FILE, import FILE: what is stored");
  line.option("--svg", arguments->svg, "draw the speed by batch into this file");
  line.option("--as", arguments->as, "a first guess of sizes for a machine that is not here: m1, m1-pro, m1-max, m1-ultra");
  line.flag("--choices", arguments->choices_only, "search only choices that leave the training as it is, not sizes");
  line.flag("--proof", arguments->proof, "also measure every choice and judge the chosen one by it: takes minutes");
  line.flag("--json", arguments->json, "print one JSON document on stdout");
  auto sources = add_settings(line);
  line.footer(
      "seconds=N: time to search (30). latency=MS: the longest step when sizes of a circuit are searched (10).\n"
      "over=threads,parts,recompute,PASS: search only these, and store nothing.\n"
      "Other settings as for ridge train, which uses what is stored (tune=off: not). See docs/tuning.md.");
  return [=] { return run_tune(*arguments, sources()); };
});

}  // namespace
}  // namespace ridge::cli
