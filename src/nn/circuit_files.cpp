// Circuits as files: one safetensors file with the weights and, in its metadata, the description; and files of the Python package ncps, which have weights
// only.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "io/safetensors.h"
#include "ridge/circuits.h"

namespace ridge {
namespace {

constexpr const char* kDescription = "ridge_circuit";

// Calls visit(name, member) for every member but the wirings.
void each_member(auto& a, const auto& visit) {
  visit("cell", a.cell), visit("inputs", a.inputs), visit("units", a.units), visit("layers", a.layers), visit("bidirectional", a.bidirectional);
  visit("mixed_memory", a.mixed_memory), visit("projection", a.projection), visit("return_sequences", a.return_sequences), visit("batch_first", a.batch_first);
  visit("mode", a.mode), visit("activation", a.activation), visit("backbone_units", a.backbone_units), visit("backbone_layers", a.backbone_layers);
  visit("backbone_dropout", a.backbone_dropout), visit("solver", a.solver), visit("ode_unfolds", a.ode_unfolds), visit("epsilon", a.epsilon);
  visit("implicit_constraints", a.implicit_constraints), visit("input_mapping", a.input_mapping), visit("output_mapping", a.output_mapping);
}

std::vector<float> floats_of(const SafetensorView& view, const std::string& path) {
  if (view.dtype != DType::f32) fail(ErrorCode::io, "[circuit] {} in {} is {}; weights are f32", view.name, path, name(view.dtype));
  return Tensor::from_bytes(view.shape, view.dtype, view.data.data()).to_floats();
}

// Completes the description of a file that has none from names, shapes, masks and signs.
class NcpsFile {
 public:
  NcpsFile(const SafetensorsFile& file, const std::string& path) : file_(file), path_(path) {}

  CircuitArgs complete(CircuitArgs a) const {
    const int64_t outputs = a.wiring.empty() ? 0 : a.wiring[0].outputs();
    a.wiring.clear(), a.units = 0;
    a.mixed_memory = has("lstm.input_map.weight");
    a.projection = has("fc.weight") ? shape("fc.weight")[0] : 0;
    if (has("rnn_cell.gleak"))
      ltc(a, outputs);
    else if (has("rnn_cell.layer_0.ff1.weight"))
      wired_cfc(a);
    else if (has("rnn_cell.ff1.weight"))
      cfc(a);
    else
      fail(ErrorCode::io, "[circuit] {} describes no circuit: it has neither metadata \"{}\" nor the tensors of an ncps model (rnn_cell.…)", path_,
           kDescription);
    return a;
  }

 private:
  bool has(const std::string& name) const { return file_.find(name); }
  const Shape& shape(const std::string& name) const { return file_.at(name).shape; }
  std::vector<float> values(const std::string& name, const Shape& wanted) const {
    const SafetensorView& view = file_.at(name);
    if (!(view.shape == wanted)) fail(ErrorCode::io, "[circuit] {} in {} is {}, needs {}", name, path_, to_string(view.shape), to_string(wanted));
    return floats_of(view, path_);
  }

  void ltc(CircuitArgs& a, int64_t known_outputs) const {
    const std::string cell = "rnn_cell.";
    const int64_t units = shape(cell + "gleak")[0], inputs = shape(cell + "sensory_w")[0];
    auto mapping = [&](const std::string& what) { return has(cell + what + "_b") ? "affine" : has(cell + what + "_w") ? "linear" : "none"; };
    a.cell = "ltc", a.inputs = inputs, a.input_mapping = mapping("input"), a.output_mapping = mapping("output");
    const int64_t outputs = has(cell + "output_w") ? shape(cell + "output_w")[0] : known_outputs ? known_outputs : units;
    Wiring w(units, outputs);
    w.build(inputs);
    auto add = [&](const std::string& prefix, int64_t sources, auto synapse) {
      const std::vector<float> mask = values(cell + prefix + "sparsity_mask", {sources, units}), sign = values(cell + prefix + "erev", {sources, units});
      for (int64_t i = 0; i < sources * units; ++i)
        if (mask[size_t(i)] != 0) synapse(i / units, i % units, sign[size_t(i)] < 0 ? -1 : 1);
    };
    add("", units, [&](int64_t from, int64_t to, int polarity) { w.add_synapse(from, to, polarity); });
    add("sensory_", inputs, [&](int64_t from, int64_t to, int polarity) { w.add_sensory_synapse(from, to, polarity); });
    a.wiring = {std::move(w)};
  }

  void mode(CircuitArgs& a, const std::string& cell) const {
    if (has(cell + "w_tau")) a.mode = "pure";
    if (!has(cell + "w_tau") && a.mode == "pure") fail(ErrorCode::io, "[circuit] {} has no {}w_tau, so its mode is default or no_gate, not pure", path_, cell);
    a.cell = "cfc";
  }

  void cfc(CircuitArgs& a) const {
    mode(a, "rnn_cell.");
    a.units = shape("rnn_cell.ff1.weight")[0];
    int64_t layers = 0;
    for (const SafetensorView& t : file_.tensors()) layers += t.name.starts_with("rnn_cell.backbone.") && t.name.ends_with(".weight");
    a.backbone_layers = layers;
    if (layers) a.backbone_units = shape("rnn_cell.ff1.weight")[1];
    a.inputs = shape(layers ? "rnn_cell.backbone.0.weight" : "rnn_cell.ff1.weight")[1] - a.units;
  }

  // The first neurons are those of the last layer, the outputs. Synapses of a CfC have no sign.
  void wired_cfc(CircuitArgs& a) const {
    mode(a, "rnn_cell.layer_0.");
    std::vector<Shape> masks;
    for (int64_t l = 0; has(fmt::format("rnn_cell.layer_{}.sparsity_mask", l)); ++l) masks.push_back(shape(fmt::format("rnn_cell.layer_{}.sparsity_mask", l)));
    if (masks.empty()) fail(ErrorCode::io, "[circuit] {} has no rnn_cell.layer_0.sparsity_mask, so its wiring is unknown", path_);
    int64_t units = 0;
    for (const Shape& s : masks) units += s[0];
    std::vector<std::vector<int64_t>> layers;
    for (int64_t l = 0, end = units; l < int64_t(masks.size()); ++l) {
      layers.emplace_back();
      end -= masks[size_t(l)][0];
      for (int64_t i = 0; i < masks[size_t(l)][0]; ++i) layers.back().push_back(end + i);
    }
    a.inputs = masks[0][1] - masks[0][0];
    Wiring w(units, masks.back()[0]);
    w.build(a.inputs);
    for (size_t l = 0; l < masks.size(); ++l) {
      const int64_t hidden = masks[l][0], sources = l ? masks[l - 1][0] : a.inputs;
      const std::vector<float> mask = values(fmt::format("rnn_cell.layer_{}.sparsity_mask", l), {hidden, sources + hidden});
      for (int64_t i = 0; i < hidden; ++i)
        for (int64_t k = 0; k < sources; ++k) {
          if (mask[size_t(i * (sources + hidden) + k)] == 0) continue;
          if (l == 0)
            w.add_sensory_synapse(k, layers[l][size_t(i)], 1);
          else
            w.add_synapse(layers[l - 1][size_t(k)], layers[l][size_t(i)], 1);
        }
    }
    w.set_layers(std::move(layers));
    a.wiring = {std::move(w)};
  }

  const SafetensorsFile& file_;
  const std::string& path_;
};

}  // namespace

std::string CircuitArgs::remark() const {
  int64_t absent = 0;
  for (const Wiring& w : wiring)
    for (int64_t l = 0; l < w.layers() && cell == "cfc"; ++l)
      for (const int64_t from : w.layer(l))
        for (const int64_t to : w.layer(l)) absent += w.synapses()[size_t(from * w.units() + to)] == 0;
  if (absent == 0) return {};
  return fmt::format(
      "cell=cfc connects all neurons within a layer of its wiring, as in ncps: {} that the wiring leaves out there {} no effect; ltc, eltc, ctrnn and node "
      "have exactly the wiring's synapses",
      counted(absent, "synapse"), absent == 1 ? "has" : "have");
}

std::string CircuitArgs::json() const {
  nlohmann::ordered_json j;
  each_member(*this, [&](const char* name, const auto& member) {
    if constexpr (requires { member.has_value(); }) {
      if (member) j[name] = *member;
    } else {
      j[name] = member;
    }
  });
  for (const Wiring& w : wiring) j["wiring"].push_back(nlohmann::ordered_json::parse(w.json()));
  return j.dump();
}

CircuitArgs CircuitArgs::from_json(std::string_view text) {
  CircuitArgs a;
  const auto j = nlohmann::json::parse(text, nullptr, false);
  if (!j.is_object()) fail(ErrorCode::io, "[circuit] the description is not a JSON object");
  std::set<std::string> known = {"wiring"};
  each_member(a, [&](const char* name, auto& member) {
    known.insert(name);
    if (!j.contains(name)) return;
    try {
      if constexpr (requires { member.has_value(); })
        member = j[name].template get<typename std::remove_reference_t<decltype(member)>::value_type>();
      else
        j[name].get_to(member);
    } catch (const nlohmann::json::exception&) {
      fail(ErrorCode::io, "[circuit] the description's \"{}\" is {}, which is of the wrong kind", name, j[name].dump());
    }
  });
  for (const auto& [name, value] : j.items())
    if (!known.count(name)) fail(ErrorCode::io, "[circuit] the description has an unknown entry \"{}\"", name);
  if (j.contains("wiring"))
    for (const auto& w : j["wiring"]) a.wiring.push_back(Wiring::from_json(w.dump()));
  return a;
}

void Circuit::save(const std::string& path) {
  if (own_cells_) fail(ErrorCode::usage, "[circuit] cells of your own cannot be described in a file; save the tensors of parameters() yourself");
  std::vector<SafetensorView> views;
  for (const NamedTensor& p : parameters(*this))
    views.push_back(
        {{p.name, p.tensor->dtype(), p.tensor->shape()}, {static_cast<const std::byte*>(p.tensor->data()), size_t(p.tensor->size()) * sizeof(float)}});
  write_safetensors(path, views, {{"format", "pt"}, {kDescription, args_.json()}});
}

Circuit Circuit::load(const std::string& path, CircuitArgs args) {
  const SafetensorsFile file(path);
  const auto description = file.metadata().find(kDescription);
  args = description != file.metadata().end() ? CircuitArgs::from_json(description->second) : NcpsFile(file, path).complete(std::move(args));
  // Before anything is allocated: every unit has at least one number in the file, and every layer a tensor.
  int64_t numbers = 0, most = std::max({args.units, args.inputs, args.projection, args.backbone_units.value_or(0)});
  for (const SafetensorView& view : file.tensors()) numbers += view.shape.numel();
  for (const Wiring& w : args.wiring) most = std::max(most, w.units());
  if (const int64_t layers = std::max(args.layers, args.backbone_layers.value_or(0)); most > numbers || layers > int64_t(file.tensors().size()))
    fail(ErrorCode::io, "[circuit] {} is described with up to {} units and {} layers, but has {} numbers in {} tensors", path, most, layers, numbers,
         file.tensors().size());
  Circuit circuit(std::move(args));
  std::set<std::string> used;
  for (const NamedTensor& p : parameters(circuit)) {
    const SafetensorView& view = file.at(p.name);
    if (view.dtype != DType::f32 || !(view.shape == p.tensor->shape()))
      fail(ErrorCode::shape, "[circuit] {} in {} is {}{}, the model has f32{}", p.name, path, name(view.dtype), to_string(view.shape),
           to_string(p.tensor->shape()));
    *p.tensor = Tensor::from_bytes(view.shape, view.dtype, view.data.data());
    used.insert(p.name);
  }
  for (const SafetensorView& view : file.tensors())
    if (!used.count(view.name)) fail(ErrorCode::io, "[circuit] {} has a tensor {}, which a {} circuit does not have", path, view.name, circuit.args().cell);
  for (Track& t : circuit.tracks_) t.cell->prune();
  return circuit;
}

}  // namespace ridge
