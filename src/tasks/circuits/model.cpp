// The model of a run: from settings and data, and from files.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "ridge/trainer.h"
#include "tasks/circuits/task.h"
#include "train/command_settings.h"
#include "train/model_folder.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
constexpr const char* kDescription = "circuit.json";

void refuse_unused(const config::Resolved& s, const std::string& cell) {
  auto only = [&](std::initializer_list<const char*> keys, const std::string& cells) {
    if ((" " + cells + ",").find(" " + cell + ",") == std::string::npos)
      refuse_without_effect(s, kCircuitsName, keys, fmt::format("on cell={}; cells that use it: {}", cell, cells));
  };
  only({"mode", "backbone_units", "backbone_layers", "activation", "dropout"}, "cfc");
  only({"implicit_constraints", "input_mapping", "output_mapping"}, "ltc");
  only({"unfolds"}, "ltc, eltc, ctrnn, node"), only({"solver"}, "eltc, ctrnn, node"), only({"wiring", "mixed_memory"}, "cfc, ltc, eltc, ctrnn, node");
}

}  // namespace

Tensor CircuitNet::operator()(const Tensor& x, const Tensor& spans, bool training) const {
  SequenceArgs args{.training = training};
  const Tensor dt = time_scale == 1 ? spans : spans * Tensor(time_scale);
  if (span) args.timespans = dt;
  Tensor out = rnn(input ? concat({x, reshape(dt, {dt.shape()[0], dt.shape()[1], 1})}, 2) : x, args).output;
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
  if (source == "builtin" && s.get<std::string>("preset") == "table")
    fail(ErrorCode::usage, "[data] preset=table is for a table of your own: add data=FILE, or leave it out; data sets are {}", listed(generated_names()));
  const std::string name = source == "builtin" ? "xor" : source;
  if (is_generated(name)) {
    if (fs::exists(name, ignored))
      fail(ErrorCode::usage, "[data] {0} is a generated data set, and a file of that name is here too; write data=./{0} for the file, or rename it", name);
    refuse_without_effect(s, "data",
                          {"inputs", "targets", "class_column", "time_column", "sequence_column", "decimal", "date_order", "window", "stride", "horizon",
                           "split", "validation_share", "test_share"},
                          fmt::format("on data={}; it is for tables (data=FILE)", name));
    return generate_series(name, s.get<std::optional<int64_t>>("length").value_or(0));
  }
  refuse_without_effect(s, "data", {"length"}, fmt::format("on data={}; it is for generated data; window is for tables", source));
  TableOptions o{.inputs = s.get<std::vector<std::string>>("inputs"), .targets = s.get<std::vector<std::string>>("targets")};
  o.time_column = s.get<std::string>("time_column"), o.sequence_column = s.get<std::string>("sequence_column");
  if (o.class_column = s.get<std::string>("class_column"); !o.class_column.empty())
    refuse_without_effect(s, "data", {"targets", "horizon"}, "with class_column, which predicts classes instead of a forecast");
  o.window = s.get<int64_t>("window"), o.stride = s.get<std::optional<int64_t>>("stride").value_or(0), o.horizon = s.get<int64_t>("horizon");
  o.decimal = s.get<std::string>("decimal"), o.date_order = s.get<std::string>("date_order");
  o.split = s.get<std::string>("split"), o.validation = s.get<double>("validation_share"), o.test = s.get<double>("test_share");
  if (o.validation + o.test >= 1) fail(ErrorCode::usage, "[data] validation_share={:g} and test_share={:g} leave nothing to train on", o.validation, o.test);
  return read_tables(source, o);
}

CircuitNet make_net(const config::Resolved& s, const Series& series, const std::string& earlier) {
  const SeriesForm& f = series.form();
  auto by_preset = [&](const char* key) { return s.origin(key).starts_with("preset"); };
  CircuitArgs a;
  a.cell = s.get<std::string>("cell");
  refuse_unused(s, a.cell);
  const bool timed = a.cell != "lstm" && a.cell != "gru" && a.cell != "mingru";
  const std::string time = s.get<std::string>("time");
  bool span = time == "span" || time == "both", input = time == "input" || time == "both";
  if ((time == "auto" && f.timed) || (span && !timed && by_preset("time"))) span = timed, input = !timed;
  if (!span && !input) refuse_without_effect(s, kCircuitsName, {"time_scale"}, "on a model that does not see the time: set time=span, input or both");
  if (span && !timed) fail(ErrorCode::usage, "[cfc] time={}: the cell {} takes no timespans; use time=input", time, a.cell);
  a.inputs = int64_t(f.inputs.size()) + input, a.projection = int64_t(f.outputs.size());
  if (!earlier.empty())
    a.wiring = CircuitArgs::from_json(nlohmann::json::parse(earlier).at("circuit").dump()).wiring;
  else if (const std::string wiring = s.get<std::string>("wiring"); !wiring.empty())
    a.wiring = {wiring.ends_with(".json") ? Wiring::load(wiring) : Wiring::parse(wiring)};
  const std::optional<int64_t> units = s.get<std::optional<int64_t>>("units");  // a wiring has its own number, and no backbone
  if (a.wiring.empty() || (units && !by_preset("units"))) a.units = units.value_or(64);
  a.layers = s.get<int64_t>("layers"), a.bidirectional = s.get<bool>("bidirectional");
  if (a.bidirectional && !f.classes && (!series.fitted().empty() || f.feeds_back()))
    fail(ErrorCode::usage, "[cfc] bidirectional=true would read the values to forecast ({}); it is for classes and for targets at the end", f.about());
  const bool mixes = timed && a.cell != "ctgru";  // a preset's mixed memory is for cells that can have it
  a.mixed_memory = s.get<bool>("mixed_memory") && (mixes || !by_preset("mixed_memory"));
  if (a.cell == "cfc") {
    a.mode = s.get<std::string>("mode"), a.backbone_layers = s.get<std::optional<int64_t>>("backbone_layers");
    if (a.wiring.empty() || !by_preset("backbone_units")) a.backbone_units = s.get<std::optional<int64_t>>("backbone_units");
    if (a.wiring.empty() || !by_preset("activation")) a.activation = s.get<std::string>("activation");
    if (const double dropout = s.get<double>("dropout"); dropout > 0) a.backbone_dropout = dropout;
  }
  if (a.cell == "ltc")
    a.implicit_constraints = s.get<bool>("implicit_constraints"), a.input_mapping = s.get<std::string>("input_mapping"),
    a.output_mapping = s.get<std::string>("output_mapping");
  if (const std::string solver = s.get<std::string>("solver"); solver != "auto") a.solver = solver;
  a.ode_unfolds = s.get<std::optional<int64_t>>("unfolds").value_or(0);
  std::vector<int64_t> added;
  const bool residual = s.get<bool>("residual");
  if (residual && std::ranges::none_of(f.feedback, [](int64_t i) { return i < 0; })) added = f.feedback;
  if (residual && added.empty() && !by_preset("residual")) fail(ErrorCode::usage, "[cfc] residual=true needs targets that are inputs, one step ahead");
  try {
    return {Circuit(a), span, input, added, s.get<double>("time_scale")};
  } catch (const Error& error) {  // sizes that do not fit together were asked for
    throw Error(ErrorCode::usage, error.what());
  }
}

bool is_circuit(const fs::path& model) { return has_description(model, kDescription); }

TrainedCircuit load_circuit(const fs::path& model, const std::string& source, int64_t length) {
  TrainedCircuit t;
  load_described(model, kDescription, kCircuitsName, t.notices, [&](const fs::path& folder, const std::string& text) {
    const nlohmann::json j = nlohmann::json::parse(text);
    t.folder = folder;
    t.net = std::make_unique<CircuitNet>(
        CircuitNet{Circuit(CircuitArgs::from_json(j.at("circuit").dump())), j.at("span"), j.at("input"), j.at("added"), j.value("time_scale", 1.0)});
    load_weights(*t.net, (folder / "model.safetensors").string());
    const std::string data = source.empty() ? j.at("data").get<std::string>() : source;
    if (j.contains("fitted") == is_generated(data))
      fail(ErrorCode::usage, "[data] {} is {}, the model was trained on {}", data, is_generated(data) ? "generated" : "a table", j.at("data").dump());
    if (j.contains("fitted")) {
      const TableOptions o{.fitted = j.at("fitted").dump(), .all_test = !source.empty(), .trained_on = j.value("checksum", "none")};
      t.series = read_tables(data, o);
      t.other_data = o.all_test && o.trained_on != checksum_in(t.series->identity());
    } else {
      t.series = generate_series(data, length ? length : j.at("length").get<int64_t>());
    }
    const SeriesForm& f = t.series->form();
    const auto inputs = j.at("inputs").get<std::vector<std::string>>(), outputs = j.at("outputs").get<std::vector<std::string>>();
    if (f.inputs != inputs || f.outputs != outputs)
      fail(ErrorCode::usage, "[data] {}: {} inputs, {} outputs; the model has {}, {}", data, f.inputs.size(), f.outputs.size(), inputs.size(), outputs.size());
    t.notices.insert(t.notices.end(), t.series->notices().begin(), t.series->notices().end());
  });
  return t;
}

}  // namespace ridge
