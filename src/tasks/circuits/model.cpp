// The model of a run: from settings and data, and from files.
#include <algorithm>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/nearest.h"
#include "config/words.h"
#include "data/find_source.h"
#include "ridge/trainer.h"
#include "tasks/circuits/task.h"
#include "train/command_settings.h"
#include "train/model_folder.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
constexpr const char* kDescription = "circuit.json";

// "auto:32,4", or a file that `ridge wiring --out` wrote.
Wiring read_wiring(const std::string& text) {
  if (!text.ends_with(".json")) return Wiring::parse(text);
  std::ifstream in(text, std::ios::binary);
  if (!in) fail(ErrorCode::usage, "[cfc] wiring={}: the file cannot be opened", text);
  return Wiring::from_json(std::string(std::istreambuf_iterator<char>(in), {}));
}

// A setting without effect would be believed to have one. Presets may set what only some cells use.
void refuse_unused(const config::Resolved& s, const std::string& cell) {
  constexpr std::pair<const char*, const char*> kUsers[] = {{"mode", "cfc"},
                                                            {"backbone_units", "cfc"},
                                                            {"backbone_layers", "cfc"},
                                                            {"activation", "cfc"},
                                                            {"dropout", "cfc"},
                                                            {"unfolds", "ltc, eltc, ctrnn, node"},
                                                            {"solver", "eltc, ctrnn, node"},
                                                            {"wiring", "cfc, ltc, eltc, ctrnn, node"},
                                                            {"mixed_memory", "cfc, ltc, eltc, ctrnn, node"}};
  for (const auto& [key, cells] : kUsers) {
    const std::vector<std::string_view> users = config::split(cells, ',');
    const bool used = std::any_of(users.begin(), users.end(), [&](std::string_view user) { return config::trim(user) == cell; });
    if (!used && is_asked(s, key))
      fail(ErrorCode::usage, "[cfc] {}={} ({}) has no effect on cell={}; cells that use it: {}. Leave it out, or choose one of them", key,
           s.get<std::string>(key), s.setting(key).source, cell, cells);
  }
}

void refuse_unused(const config::Resolved& s, const std::string& data, std::initializer_list<const char*> keys, const char* users) {
  for (const char* key : keys)
    if (is_asked(s, key))
      fail(ErrorCode::usage, "[data] {}={} ({}) has no effect on data={}; it is for {}. Leave it out", key, s.get<std::string>(key), s.setting(key).source,
           data, users);
}

// A table was meant, or a generated data set was misspelt.
std::unique_ptr<Series> read_named(const std::string& source, const TableOptions& o) try { return read_tables(source, o); } catch (const Error& error) {
  std::error_code ignored;
  const std::vector<std::string> names = generated_names();
  const std::string hint = close_hint(source, std::vector<std::string_view>(names.begin(), names.end()));
  if (error.code() != ErrorCode::io || hint.empty() || fs::exists(source, ignored)) throw;
  throw Error(error.code(), fmt::format("[data] {}: there is neither such a file nor such a generated data set; {}", source, hint));
}

Tensor as_input(const Tensor& dt) { return reshape(dt, {dt.shape()[0], dt.shape()[1], 1}); }

}  // namespace

Tensor CircuitNet::operator()(const Tensor& x, const Tensor& spans, bool training) const {
  SequenceArgs args;
  const Tensor dt = time_scale == 1 ? spans : spans * Tensor(time_scale);
  if (span) args.timespans = dt;
  args.training = training;
  Tensor out = rnn(input ? concat({x, as_input(dt)}, 2) : x, args).output;
  if (added.empty()) return out;
  std::vector<Tensor> last;
  for (const int64_t i : added) last.push_back(slice(x, 2, i, i + 1));
  return out + (last.size() == 1 ? last[0] : concat(last, 2));
}

Loss CircuitNet::loss(const std::vector<Tensor>& batch, bool training) const {
  const Tensor out = (*this)(batch[0], batch[1], training);
  if (batch.size() == 4) return {sum(square(out - batch[2]) * batch[3]), sum(batch[3])};
  const Tensor& label = batch[2];
  return cross_entropy(out, label, -1)
      .with("accuracy", sum(cast(equal(argmax(out, -1), label), DType::f32)), sum(cast(label >= Tensor(0.0, DType::i64), DType::f32)));
}

std::string CircuitNet::json(const Series& series, const std::string& source) const {
  nlohmann::ordered_json j;
  j["circuit"] = nlohmann::ordered_json::parse(rnn.args().json());
  j["span"] = span, j["input"] = input, j["added"] = added, j["time_scale"] = time_scale;
  j["data"] = source, j["length"] = series.form().length, j["inputs"] = series.form().inputs, j["outputs"] = series.form().outputs;
  if (const std::string fitted = series.fitted(); !fitted.empty())
    j["fitted"] = nlohmann::ordered_json::parse(fitted), j["checksum"] = checksum_in(series.identity());
  return j.dump(1) + "\n";
}

std::unique_ptr<Series> open_series(const config::Resolved& s, const std::string& source) {
  std::error_code ignored;
  const std::string name = source == "builtin" ? "xor" : source;
  if (is_generated(name)) {
    if (fs::exists(name, ignored))
      fail(ErrorCode::usage, "[data] {0} is a generated data set, and there is also a file of that name here; write data=./{0} for the file, or rename it",
           name);
    refuse_unused(s, name,
                  {"inputs", "targets", "class_column", "time_column", "sequence_column", "decimal", "date_order", "window", "stride", "horizon", "split",
                   "validation_share", "test_share"},
                  "tables (data=FILE)");
    return generate_series(name, s.get<std::optional<int64_t>>("length").value_or(0));
  }
  refuse_unused(s, source, {"length"}, "generated data; window is for tables");
  TableOptions o;
  o.inputs = s.get<std::vector<std::string>>("inputs"), o.targets = s.get<std::vector<std::string>>("targets");
  o.time_column = s.get<std::string>("time_column"), o.sequence_column = s.get<std::string>("sequence_column"),
  o.class_column = s.get<std::string>("class_column");
  o.window = s.get<int64_t>("window"), o.stride = s.get<std::optional<int64_t>>("stride").value_or(0), o.horizon = s.get<int64_t>("horizon");
  o.decimal = s.get<std::string>("decimal"), o.date_order = s.get<std::string>("date_order");
  o.split = s.get<std::string>("split"), o.validation = s.get<double>("validation_share"), o.test = s.get<double>("test_share");
  if (o.validation + o.test >= 1) fail(ErrorCode::usage, "[data] validation_share={:g} and test_share={:g} leave nothing to train on", o.validation, o.test);
  return read_named(source, o);
}

CircuitNet make_net(const config::Resolved& s, const Series& series) {
  const SeriesForm& f = series.form();
  CircuitArgs a;
  a.cell = s.get<std::string>("cell");
  refuse_unused(s, a.cell);
  const bool timed = a.cell != "lstm" && a.cell != "gru" && a.cell != "mingru";
  const std::string time = s.get<std::string>("time");
  bool span = time == "span" || time == "both", input = time == "input" || time == "both";
  if ((time == "auto" && f.timed) || (span && !timed && s.setting("time").source.starts_with("preset"))) span = timed, input = !timed;
  if (!span && !input && is_asked(s, "time_scale"))
    fail(ErrorCode::usage, "[cfc] time_scale={} has no effect: the model does not see the time; set time=span, input or both",
         s.get<std::string>("time_scale"));
  if (span && !timed) fail(ErrorCode::usage, "[cfc] time={}: the cell {} takes no timespans; use time=input", time, a.cell);
  a.inputs = int64_t(f.inputs.size()) + input, a.projection = int64_t(f.outputs.size());
  if (const std::string wiring = s.get<std::string>("wiring"); !wiring.empty()) a.wiring = {read_wiring(wiring)};
  const std::optional<int64_t> units = s.get<std::optional<int64_t>>("units");
  const bool preset_units = s.setting("units").source.starts_with("preset");  // a wiring has its own number
  if (a.wiring.empty() || (units && !preset_units)) a.units = units.value_or(64);
  a.layers = s.get<int64_t>("layers"), a.bidirectional = s.get<bool>("bidirectional");
  const bool forecast = !f.classes && (!series.fitted().empty() || std::any_of(f.feedback.begin(), f.feedback.end(), [](int64_t i) { return i >= 0; }));
  if (a.bidirectional && forecast)
    fail(ErrorCode::usage, "[cfc] bidirectional=true would read the values to forecast ({}); it is for classes and for targets at the end", f.what);
  const bool mixes = timed && a.cell != "ctgru";  // a preset's mixed memory is for cells that can have it
  a.mixed_memory = s.get<bool>("mixed_memory") && (mixes || !s.setting("mixed_memory").source.starts_with("preset"));
  if (a.cell == "cfc") {
    a.mode = s.get<std::string>("mode");
    auto asked = [&](const char* key) { return a.wiring.empty() || !s.setting(key).source.starts_with("preset"); };  // a wired CfC has no backbone
    if (asked("backbone_units")) a.backbone_units = s.get<std::optional<int64_t>>("backbone_units");
    a.backbone_layers = s.get<std::optional<int64_t>>("backbone_layers");
    if (const double dropout = s.get<double>("dropout"); dropout > 0) a.backbone_dropout = dropout;
    if (asked("activation")) a.activation = s.get<std::string>("activation");
  }
  if (const std::string solver = s.get<std::string>("solver"); solver != "auto") a.solver = solver;
  a.ode_unfolds = s.get<std::optional<int64_t>>("unfolds").value_or(0);
  std::vector<int64_t> added;
  if (s.get<bool>("residual")) {
    added = f.feedback;
    const bool possible = !added.empty() && std::none_of(added.begin(), added.end(), [](int64_t i) { return i < 0; });
    if (!possible && !s.setting("residual").source.starts_with("preset"))
      fail(ErrorCode::usage, "[cfc] residual=true needs targets that are inputs, one step ahead");
    if (!possible) added.clear();
  }
  try {
    return {Circuit(a), span, input, added, s.get<double>("time_scale")};
  } catch (const Error& error) {  // sizes that do not fit together were asked for
    throw Error(ErrorCode::usage, error.what());
  }
}

bool is_circuit(const fs::path& model) { return has_description(model, kDescription); }

TrainedCircuit load_circuit(const fs::path& model, const std::string& source, int64_t length) try {
  TrainedCircuit t;
  const std::optional<fs::path> folder = described_folder(model, kDescription, t.notices);
  if (!folder) fail(ErrorCode::io, "[cfc] {} has no intact model of the task cfc ({})", model.string(), kDescription);
  std::ifstream in(*folder / kDescription);
  const nlohmann::json j = nlohmann::json::parse(in);
  t.folder = *folder;
  t.net = std::make_unique<CircuitNet>(
      CircuitNet{Circuit(CircuitArgs::from_json(j.at("circuit").dump())), j.at("span"), j.at("input"), j.at("added"), j.value("time_scale", 1.0)});
  load_weights(*t.net, (*folder / "model.safetensors").string());
  const std::string data = source.empty() ? j.at("data").get<std::string>() : source;
  t.other_data = !source.empty() && j.contains("fitted");
  if (j.contains("fitted")) {
    if (is_generated(data)) fail(ErrorCode::usage, "[data] the model was trained on a table; {} has other columns", data);
    TableOptions o;
    o.fitted = j.at("fitted").dump(), o.all_test = !source.empty();
    t.series = read_tables(data, o);
    // Rows that the model was trained on are no test of it.
    if (o.all_test && checksum_in(t.series->identity()) == j.value("checksum", "none")) {
      o.all_test = t.other_data = false;
      t.series = read_tables(data, o);
      t.notices.push_back(fmt::format("{} is the table that the model was trained on: it is divided as in training", data));
    }
  } else {
    t.series = generate_series(data, length ? length : j.at("length").get<int64_t>());
  }
  const auto inputs = j.at("inputs").get<std::vector<std::string>>(), outputs = j.at("outputs").get<std::vector<std::string>>();
  if (t.series->form().inputs != inputs || t.series->form().outputs != outputs)
    fail(ErrorCode::usage, "[data] {} has {} inputs and {} outputs, the model {} and {}", data, t.series->form().inputs.size(), t.series->form().outputs.size(),
         inputs.size(), outputs.size());
  return t;
} catch (const nlohmann::json::exception& e) {
  fail(ErrorCode::io, "[cfc] the description of {} is damaged: {}", model.string(), e.what());
}

}  // namespace ridge
