// ridge eval RUN: how well a trained model predicts data. ridge sample RUN: a forecast that feeds on itself, as CSV and picture.
#include <algorithm>
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
  bool json = false, given = false;
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
  note_unused(s, verb, {"data"});
  request_default_threads(thread_request(s));
  const std::string device = s.get<std::string>("device"), precision = s.get<std::string>(s.precision_key(device == "auto" ? "cpu" : device));
  if (precision != "auto" && precision != "fp32")
    fail(ErrorCode::usage, "[{}] precision={}: recurrent models are read in fp32; leave precision out", verb, precision);
  if (device != "auto" && device != "cpu" && !any_device) fail(ErrorCode::usage, "[{}] device={}: a forecast runs on the CPU; leave device out", verb, device);
  if (device != "auto") use_device(device);
}

void show_notices(const TrainedCircuit& trained) {
  for (const std::string& notice : trained.notices) fmt::print(stderr, "ridge: {}\n", notice);
  for (const std::string& notice : trained.series->notices()) fmt::print(stderr, "ridge: {}\n", notice);
}

int run_circuit_eval(const CircuitArguments& arguments, const config::Resolved& settings) {
  size_t part = 0;
  while (part < 3 && arguments.part != name(SeriesPart(part))) ++part;
  if (part == 3) fail(ErrorCode::usage, "[eval] --split {} is not known; valid: test, validation, train", arguments.part);
  use_settings(settings, "eval", true);
  const TrainedCircuit trained = load_circuit(arguments.model, named_data(settings));
  const std::string& data = trained.series->form().name;
  if (trained.other_data && SeriesPart(part) != SeriesPart::test) fail(ErrorCode::usage, "[eval] the model has seen no part of {}; leave --split out", data);
  if (trained.series->count(SeriesPart(part)) < 1 || trained.series->count(SeriesPart(part)) > 1'000'000)
    fail(ErrorCode::usage, "[eval] {} has no fixed {} part; use --split test", data, arguments.part);
  show_notices(trained);
  CircuitReport r = report_circuit(*trained.net, *trained.series, SeriesPart(part));
  if (trained.other_data) r.other_data = data;
  if (arguments.json) {
    nlohmann::ordered_json j{
        {"model", trained.folder.string()}, {"data", data}, {"split", trained.other_data ? "all" : arguments.part}, {"sequences", r.sequences}};
    for (const auto& [what, value] : r.figures()) j[what] = value;
    if (r.classes) j["classes"] = r.outputs, j["confusion"] = r.confusion;
    std::puts(j.dump().c_str());
    return 0;
  }
  fmt::print("{:<10}{}\n{:<10}{}: {}\n", "model", trained.folder.string(), "data", data, trained.series->form().what);
  const char* head = "result";
  for (const std::string& line : r.lines()) fmt::print("{:<10}{}\n", std::exchange(head, ""), line);
  return 0;
}

// A name as a field of a table.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

// Inputs that a forecast needs and does not predict. Masks are not among them.
std::vector<size_t> given_inputs(const SeriesForm& f) {
  std::vector<size_t> out;
  for (size_t i = 0; i < f.inputs.size(); ++i)
    if (std::find(f.feedback.begin(), f.feedback.end(), int64_t(i)) == f.feedback.end() &&
        std::find(f.masks.begin(), f.masks.end(), int64_t(i)) == f.masks.end())
      out.push_back(i);
  return out;
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
  const Series& series = *trained.series;
  show_notices(trained);
  SeriesSample s(f);
  series.fill(SeriesPart::test, arguments.sequence, s);
  const int64_t length = s.steps();
  if (length < f.length) seen = std::max<int64_t>(1, length / 2);
  const std::vector<double> times = series.times(SeriesPart::test, arguments.sequence, s);
  const std::vector<size_t> given = given_inputs(f);
  std::string held;
  for (const size_t i : given) held += (held.empty() ? "" : ", ") + f.inputs[i];
  if (!given.empty())
    fmt::print(stderr, "ridge: the model does not predict {} of its inputs: {}; {}\n", given.size(), held,
               arguments.given ? fmt::format("they come from the table for {} of the {} steps of the forecast, then keep their last values",
                                             std::min(steps, length - seen), steps)
                               : "they keep their last values in the forecast (--given takes them from the table where it has them)");
  const size_t inputs = f.inputs.size(), outputs = f.outputs.size();
  CircuitStream stream(net.rnn);
  std::vector<float> x(inputs + 1), out(outputs);
  std::vector<SeriesPanel> panels;
  for (const std::string& name : f.outputs) panels.push_back({name, {}, {}, {}});
  std::string head = "step,time,free";
  for (const std::string& name : f.outputs) head += "," + csv_field(name) + "," + csv_field(name + " truth");
  std::puts(head.c_str());
  double time = 0, free_from = 0;
  for (int64_t t = 0; t < seen + steps; ++t) {
    const bool known = t < length;
    const float dt = known ? s.dt[size_t(t)] : 1;
    const float* row = s.x.data() + size_t(t) * inputs;
    auto mask = [&](size_t input) { return f.masks.empty() || f.masks[input] < 0 ? nullptr : &x[size_t(f.masks[input])]; };
    if (t < seen) std::copy_n(row, inputs, x.begin());
    if (t >= seen) {
      for (const size_t i : given) {
        const bool from_table = arguments.given && known;
        if (from_table) x[i] = row[i];
        if (float* m = mask(i)) *m = from_table ? row[f.masks[i]] : 0;
      }
      for (size_t o = 0; o < outputs; ++o) {
        if (f.feedback[o] < 0) continue;
        x[size_t(f.feedback[o])] = out[o];
        if (float* m = mask(size_t(f.feedback[o]))) *m = 1;
      }
    }
    x[inputs] = float(dt * net.time_scale);
    const std::span<const float> made = stream.step({x.data(), inputs + (net.input ? 1 : 0)}, net.span ? x[inputs] : 1);
    time = known ? times[size_t(t)] : time + series.interval();
    if (t == seen) free_from = time;
    std::string line = fmt::format("{},{},{}", t + 1, series.time_text(time), int(t >= seen));
    for (size_t o = 0; o < outputs; ++o) {
      out[o] = made[o] + (net.added.empty() ? 0 : x[size_t(net.added[o])]);
      const bool target = known && s.weight[size_t(t) * outputs + o] > 0;
      const double truth = target ? series.original(int64_t(o), s.y[size_t(t) * outputs + o]) : std::numeric_limits<double>::quiet_NaN();
      const double value = series.original(int64_t(o), out[o]);
      panels[o].time.push_back(time), panels[o].prediction.push_back(value), panels[o].truth.push_back(truth);
      line += fmt::format(",{:.6g},{}", value, target ? fmt::format("{:.6g}", truth) : "");
    }
    std::puts(line.c_str());
  }
  constexpr size_t kDrawn = 6;
  if (panels.size() > kDrawn) panels.resize(kDrawn);
  const std::string file = arguments.svg.empty() ? (std::filesystem::path(arguments.model) / "forecast.svg").string() : arguments.svg;
  write_atomically(file, series_svg(fmt::format("{}: forecast", f.name),
                                    fmt::format("{} seen, then {} of its own{}", counted(seen, "step"), counted(steps, "prediction"),
                                                held.empty() ? "" : fmt::format("; {}: {}", held, arguments.given ? "from the table" : "last values")),
                                    panels, time_labels(series), free_from));
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
                       {Kind::flag, "--given", &a->given, "inputs that the model does not predict come from the table; default: they keep their last values"},
                       {Kind::text, "--svg", &a->svg, "file for the picture; default: forecast.svg in the folder"}},
                      a, run_circuit_sample);
}

}  // namespace ridge
