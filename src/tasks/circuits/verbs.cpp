// ridge eval RUN: how well a trained model predicts data. ridge sample RUN: a forecast that feeds on itself, as CSV and picture.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "data/csv.h"
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
  bool json = false, given = false;
};

// These settings are shared with other models' commands. Tensors here are f32; a forecast of one sequence is fastest on the CPU.
TrainedCircuit open_model(const CircuitArguments& arguments, const config::Resolved& s, const std::string& verb) {
  note_unused(s, verb, {"data"});
  request_default_threads(thread_request(s));
  const std::string device = s.get<std::string>("device"), precision = s.get<std::string>(s.precision_key(device == "auto" ? "cpu" : device));
  if (precision != "auto" && precision != "fp32")
    fail(ErrorCode::usage, "[{}] precision={}: recurrent models are read in fp32; leave precision out", verb, precision);
  if (device != "auto" && device != "cpu" && verb == "sample")
    fail(ErrorCode::usage, "[{}] device={}: a forecast runs on the CPU; leave device out", verb, device);
  if (device != "auto") use_device(device);
  TrainedCircuit trained = load_circuit(arguments.model, one_named_data(s));
  for (const std::string& notice : trained.notices) fmt::print(stderr, "ridge: {}\n", notice);
  return trained;
}

int run_circuit_eval(const CircuitArguments& arguments, const config::Resolved& settings) {
  size_t part = 0;
  while (part < 3 && arguments.part != name(SeriesPart(part))) ++part;
  if (part == 3) fail(ErrorCode::usage, "[eval] --split {} is not known; valid: test, validation, train", arguments.part);
  const TrainedCircuit trained = open_model(arguments, settings, "eval");
  const SeriesForm& f = trained.series->form();
  if (trained.other_data && SeriesPart(part) != SeriesPart::test) fail(ErrorCode::usage, "[eval] the model has seen no part of {}; leave --split out", f.name);
  if (const int64_t count = trained.series->count(SeriesPart(part)); count < 1 || count > 1'000'000)
    fail(ErrorCode::usage, "[eval] {} has no fixed {} part; use --split test", f.name, arguments.part);
  CircuitReport r = report_circuit(*trained.net, *trained.series, SeriesPart(part));
  if (trained.other_data) r.other_data = f.name;
  if (arguments.json) {
    nlohmann::ordered_json j{
        {"model", trained.folder.string()}, {"data", f.name}, {"split", trained.other_data ? "all" : arguments.part}, {"sequences", r.sequences}};
    for (const auto& [what, value] : r.figures()) j[what] = value;
    if (r.classes) j["classes"] = r.outputs, j["confusion"] = r.confusion;
    std::puts(j.dump().c_str());
    return 0;
  }
  fmt::print("{:<10}{}\n{:<10}{}: {}\n", "model", trained.folder.string(), "data", f.name, f.about());
  const char* head = "result";
  for (const std::string& line : r.lines()) fmt::print("{:<10}{}\n", std::exchange(head, ""), line);
  return 0;
}

// The model sees the first half of a test sequence, then its own predictions.
int run_circuit_sample(const CircuitArguments& arguments, const config::Resolved& settings) {
  TrainedCircuit trained = open_model(arguments, settings, "sample");
  int64_t seen = std::max<int64_t>(1, trained.series->form().length / 2);
  const int64_t steps = arguments.steps > 0 ? arguments.steps : trained.series->form().length - seen;
  if (trained.series->fitted().empty() && seen + steps > trained.series->form().length)
    trained = load_circuit(arguments.model, one_named_data(settings), seen + steps);  // the same sequences, continued
  const Series& series = *trained.series;
  const SeriesForm& f = series.form();
  const CircuitNet& net = *trained.net;
  if (f.classes || !f.feeds_back())
    fail(ErrorCode::usage, "[sample] {} predicts {}, which is not the next input; ridge eval measures it", arguments.model, f.about());
  if (arguments.sequence >= series.count(SeriesPart::test))
    fail(ErrorCode::usage, "[sample] there is no test sequence {}; there are {}, from 0", arguments.sequence, series.count(SeriesPart::test));
  SeriesSample s(f);
  series.fill(SeriesPart::test, arguments.sequence, s);
  const int64_t length = s.steps();
  if (length < f.length) seen = std::max<int64_t>(1, length / 2);
  const std::vector<double> times = series.times(SeriesPart::test, arguments.sequence, s);
  const std::vector<size_t> given = f.given();
  const std::string held = listed(f.named(given));
  if (!given.empty())
    fmt::print(stderr, "ridge: the model does not predict {} of its inputs: {}; {}\n", given.size(), held,
               arguments.given ? fmt::format("they come from the table for {} of the {} steps of the forecast, then keep their last values",
                                             std::min(steps, length - seen), steps)
                               : "they keep their last values in the forecast (--given takes them from the table where it has them)");
  const size_t inputs = f.inputs.size(), outputs = f.outputs.size();
  CircuitStream stream(net.rnn);
  std::vector<float> x(inputs + 1), out(outputs);
  std::vector<SeriesPanel> panels = series_panels(f);
  std::string line = "step,time,free";
  for (const std::string& name : f.outputs) line += "," + csv_field(name) + "," + csv_field(name + " truth");
  std::puts(line.c_str());
  auto set = [&](size_t input, const float* value, float known) {  // with its mask, if it has one
    if (value) x[input] = *value;
    if (!f.masks.empty() && f.masks[input] >= 0) x[size_t(f.masks[input])] = known;
  };
  for (int64_t t = 0; t < seen + steps; ++t) {
    const bool known = t < length, from_table = arguments.given && known;
    const float* row = s.x.data() + size_t(t) * inputs;
    if (t < seen) std::copy_n(row, inputs, x.begin());
    for (size_t k = 0; k < given.size() && t >= seen; ++k)
      set(given[k], from_table ? row + given[k] : nullptr, from_table && !f.masks.empty() && f.masks[given[k]] >= 0 ? row[f.masks[given[k]]] : 0);
    for (size_t o = 0; o < outputs && t >= seen; ++o)
      if (f.feedback[o] >= 0) set(size_t(f.feedback[o]), &out[o], 1);
    x[inputs] = float((known ? s.dt[size_t(t)] : 1) * net.time_scale);
    const std::span<const float> made = stream.step({x.data(), inputs + (net.input ? 1 : 0)}, net.span ? x[inputs] : 1);
    for (size_t o = 0; o < outputs; ++o) out[o] = made[o] + (net.added.empty() ? 0 : x[size_t(net.added[o])]);
    const double time = known ? times[size_t(t)] : panels[0].time.back() + series.interval();
    add_step(panels, series, s, size_t(t), time, out.data());
    line = fmt::format("{},{},{}", t + 1, series.time_text(time), int(t >= seen));
    for (const SeriesPanel& p : panels)
      line += fmt::format(",{:.6g},{}", p.prediction.back(), std::isnan(p.truth.back()) ? "" : fmt::format("{:.6g}", p.truth.back()));
    std::puts(line.c_str());
  }
  const std::string file = arguments.svg.empty() ? (std::filesystem::path(arguments.model) / "forecast.svg").string() : arguments.svg;
  write_atomically(file, series_svg(fmt::format("{}: forecast", f.name),
                                    fmt::format("{} seen, then {} of its own{}", counted(seen, "step"), counted(steps, "prediction"),
                                                held.empty() ? "" : fmt::format("; {}: {}", held, arguments.given ? "from the table" : "last values")),
                                    panels, series.time_labels(), steps > 0 ? std::optional(panels[0].time[size_t(seen)]) : std::nullopt));
  fmt::print(stderr, "ridge: the picture is {}\n", file);
  return 0;
}

}  // namespace

std::vector<Verb> circuit_verbs() {
  const auto a = std::make_shared<CircuitArguments>();  // one command runs
  using Kind = Verb::Option::Kind;
  const Verb::Option model{Kind::word, "model", &a->model, "a run of ridge train cfc, one of its checkpoints or its model folder"};
  const char* const footer = "Settings: data=FILE (default: what it was trained on), device=auto|cpu|cuda, threads=N; see ridge config keys.";
  return {{.name = "eval",
           .summary = "measure how well a trained model predicts data",
           .options = {model, {Kind::text, "--split", &a->part, "test, validation or train"}, {Kind::flag, "--json", &a->json, "print one JSON document"}},
           .footer = footer,
           .run = [a](const config::Sources& sources) { return run_circuit_eval(*a, config::resolve(sources)); }},
          {.name = "sample",
           .summary = "a forecast that feeds on itself, as CSV and picture",
           .options = {model,
                       {Kind::positive, "--steps", &a->steps, "steps to forecast; default: half a sequence"},
                       {Kind::range, "--sequence", &a->sequence, "number of the test sequence that it begins with", 0, int64_t(1) << 40},
                       {Kind::flag, "--given", &a->given, "inputs that the model does not predict come from the table; default: they keep their last values"},
                       {Kind::text, "--svg", &a->svg, "file for the picture; default: forecast.svg in the folder"}},
           .footer = footer,
           .run = [a](const config::Sources& sources) { return run_circuit_sample(*a, config::resolve(sources)); }}};
}

}  // namespace ridge
