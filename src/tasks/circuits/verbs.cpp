// ridge eval RUN: how well a trained model predicts data. ridge sample RUN: a forecast that feeds on itself, as CSV and picture.
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "data/series_picture.h"
#include "io/atomic_file.h"
#include "measure/default_team.h"
#include "tasks/circuits/task.h"
#include "train/command_settings.h"

namespace ridge {
namespace {

struct CircuitArguments {
  std::string model, part = "test", svg;
  int64_t steps = 0, sequence = 0;
  bool json = false;
};

// Data named on the command line replaces that of the run.
std::string named_data(const config::Resolved& s) {
  const auto& setting = s.setting("data");
  if (setting.source == "default" || setting.source.starts_with("preset")) return "";
  const auto named = s.get<std::vector<std::string>>("data");
  if (named.size() != 1) fail(ErrorCode::usage, "[data] {} data sets are named, one is needed; files of one set are joined by '+'", named.size());
  return named[0];
}

// These settings are shared with other models' commands. Tensors here are f32; a forecast of one sequence is fastest on the CPU.
void use_settings(const config::Resolved& s, const char* verb, bool any_device) {
  note_unused(s, verb);
  request_default_threads(thread_request(s));
  const std::string device = s.get<std::string>("device"), precision = s.get<std::string>(s.precision_key(device == "auto" ? "cpu" : device));
  if (precision != "auto" && precision != "fp32")
    fail(ErrorCode::usage, "[{}] precision={}: recurrent models are read in fp32; leave precision out", verb, precision);
  if (device != "auto" && device != "cpu" && !any_device) fail(ErrorCode::usage, "[{}] device={}: a forecast runs on the CPU; leave device out", verb, device);
  if (device != "auto") use_device(device);
}

int run_circuit_eval(const CircuitArguments& arguments, const config::Resolved& settings) {
  size_t part = 0;
  while (part < 3 && arguments.part != name(SeriesPart(part))) ++part;
  if (part == 3) fail(ErrorCode::usage, "[eval] --split {} is not known; valid: test, validation, train", arguments.part);
  use_settings(settings, "eval", true);
  const TrainedCircuit trained = load_circuit(arguments.model, named_data(settings));
  if (trained.series->count(SeriesPart(part)) < 1 || trained.series->count(SeriesPart(part)) > 1'000'000)
    fail(ErrorCode::usage, "[eval] {} has no fixed {} part; use --split test", trained.series->form().name, arguments.part);
  const CircuitReport r = report_circuit(*trained.net, *trained.series, SeriesPart(part));
  if (arguments.json) {
    nlohmann::ordered_json j{{"model", trained.folder.string()}, {"data", trained.series->form().name}, {"split", arguments.part}, {"sequences", r.sequences}};
    for (const auto& [what, value] : r.figures()) j[what] = value;
    if (r.classes) j["classes"] = r.outputs, j["confusion"] = r.confusion;
    std::puts(j.dump().c_str());
    return 0;
  }
  fmt::print("{:<10}{}\n{:<10}{}: {}\n", "model", trained.folder.string(), "data", trained.series->form().name, trained.series->form().what);
  const char* head = "result";
  for (const std::string& line : r.lines()) fmt::print("{:<10}{}\n", std::exchange(head, ""), line);
  return 0;
}

// The model sees the first half of a test sequence, then its own predictions.
int run_circuit_sample(const CircuitArguments& arguments, const config::Resolved& settings) {
  use_settings(settings, "sample", false);
  TrainedCircuit trained = load_circuit(arguments.model, named_data(settings));
  int64_t seen = std::max<int64_t>(1, trained.series->form().length / 2);
  const int64_t steps = arguments.steps > 0 ? arguments.steps : trained.series->form().length - seen;
  if (trained.series->fitted().empty() && seen + steps > trained.series->form().length)
    trained = load_circuit(arguments.model, named_data(settings), seen + steps);  // the same sequences, continued
  const SeriesForm& f = trained.series->form();
  const CircuitNet& net = *trained.net;
  const bool possible = !f.classes && std::any_of(f.feedback.begin(), f.feedback.end(), [](int64_t i) { return i >= 0; });
  if (!possible) fail(ErrorCode::usage, "[sample] {} predicts {}, which is not the next input; ridge eval measures it", arguments.model, f.what);
  if (arguments.sequence >= trained.series->count(SeriesPart::test))
    fail(ErrorCode::usage, "[sample] there is no test sequence {}; there are {}, from 0", arguments.sequence, trained.series->count(SeriesPart::test));
  SeriesSample s(f);
  trained.series->fill(SeriesPart::test, arguments.sequence, s);
  int64_t length = f.length;  // without padding
  while (length > 1 && std::all_of(s.weight.begin() + (length - 1) * int64_t(f.outputs.size()), s.weight.begin() + length * int64_t(f.outputs.size()),
                                   [](float w) { return w <= 0; }))
    --length;
  if (length < f.length) seen = std::max<int64_t>(1, length / 2);
  const size_t inputs = f.inputs.size(), outputs = f.outputs.size();
  CircuitStream stream(net.rnn);
  std::vector<float> x(inputs + 1), out(outputs);
  std::vector<SeriesPanel> panels;
  for (const std::string& name : f.outputs) panels.push_back({name, {}, {}, {}});
  std::string head = "step,time,free";
  for (const std::string& name : f.outputs) head += "," + name + "," + name + " truth";
  std::puts(head.c_str());
  double time = 0, free_from = 0;
  for (int64_t t = 0; t < seen + steps; ++t) {
    const bool known = t < length;
    const float dt = known ? s.dt[size_t(t)] : 1;
    if (t < seen || !known)
      for (size_t i = 0; i < inputs && known; ++i) x[i] = s.x[size_t(t) * inputs + i];
    if (t >= seen)
      for (size_t o = 0; o < outputs; ++o)
        if (f.feedback[o] >= 0) x[size_t(f.feedback[o])] = out[o];
    x[inputs] = dt;
    const std::span<const float> made = stream.step({x.data(), inputs + (net.input ? 1 : 0)}, net.span ? dt : 1);
    time += dt;
    if (t == seen) free_from = time;
    std::string line = fmt::format("{},{:g},{}", t + 1, time, int(t >= seen));
    for (size_t o = 0; o < outputs; ++o) {
      out[o] = made[o] + (net.added.empty() ? 0 : x[size_t(net.added[o])]);
      const bool target = known && s.weight[size_t(t) * outputs + o] > 0;
      const double truth = target ? trained.series->original(int64_t(o), s.y[size_t(t) * outputs + o]) : std::numeric_limits<double>::quiet_NaN();
      const double value = trained.series->original(int64_t(o), out[o]);
      panels[o].time.push_back(time), panels[o].prediction.push_back(value), panels[o].truth.push_back(truth);
      line += fmt::format(",{:.6g},{}", value, target ? fmt::format("{:.6g}", truth) : "");
    }
    std::puts(line.c_str());
  }
  constexpr size_t kDrawn = 6;
  if (panels.size() > kDrawn) panels.resize(kDrawn);
  const std::string file = arguments.svg.empty() ? (std::filesystem::path(arguments.model) / "forecast.svg").string() : arguments.svg;
  write_atomically(file, series_svg(fmt::format("{}: forecast", f.name),
                                    fmt::format("{} seen, then {} of its own", counted(seen, "step"), counted(steps, "prediction")), panels, free_from));
  fmt::print(stderr, "ridge: the picture is {}\n", file);
  return 0;
}

template <class Run>
Verb circuit_verb(const char* name, const char* summary, std::vector<Verb::Option> options, const std::shared_ptr<CircuitArguments>& arguments, Run run) {
  Verb verb{name, summary};
  options.insert(options.begin(),
                 {Verb::Option::Kind::word, "model", &arguments->model, "a run of ridge train cfc, one of its checkpoints or its model folder"});
  verb.options = std::move(options);
  verb.footer = "Settings: data=FILE (default: what it was trained on), device=auto|cpu|cuda, threads=N; see ridge config keys.";
  verb.run = [arguments, run](const config::Sources& sources) { return run(*arguments, config::resolve(sources)); };
  return verb;
}

}  // namespace

Verb circuit_eval_verb() {
  auto a = std::make_shared<CircuitArguments>();
  using Kind = Verb::Option::Kind;
  return circuit_verb("eval", "measure how well a trained model predicts data",
                      {{Kind::text, "--split", &a->part, "test, validation or train"}, {Kind::flag, "--json", &a->json, "print one JSON document"}}, a,
                      run_circuit_eval);
}

Verb circuit_sample_verb() {
  auto a = std::make_shared<CircuitArguments>();
  using Kind = Verb::Option::Kind;
  return circuit_verb("sample", "a forecast that feeds on itself, as CSV and picture",
                      {{Kind::positive, "--steps", &a->steps, "steps to forecast; default: half a sequence"},
                       {Kind::range, "--sequence", &a->sequence, "number of the test sequence that it begins with", 0, int64_t(1) << 40},
                       {Kind::text, "--svg", &a->svg, "file for the picture; default: forecast.svg in the folder"}},
                      a, run_circuit_sample);
}

}  // namespace ridge
