// Circuits as files: complete descriptions of our own, and models of the Python package ncps in both directions.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "circuits/fixture.h"
#include "support/errors.h"
#include "support/mutate.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

using test::distance, test::error_of, test::has, test::same_bits;

struct NcpsModel {
  const char* name;
  CircuitArgs args;  // what the file does not show
};

std::vector<NcpsModel> ncps_models() {
  std::vector<NcpsModel> all = {{"cfc", {}},           {"cfc_pure", {}}, {"cfc_no_gate", {}}, {"cfc_no_backbone", {}}, {"cfc_ncp", {}},
                                {"cfc_auto_pure", {}}, {"ltc", {}},      {"ltc_ncp", {}},     {"ltc_explicit", {}}};
  all[1].args.activation = "silu";
  all[2].args.mode = "no_gate", all[2].args.activation = "gelu";
  all[7].args.ode_unfolds = 3, all[7].args.wiring = {Wiring(9, 2)};
  all[8].args.implicit_constraints = false;
  return all;
}

std::string fixture_path(const std::string& name) { return source_dir() + "/tests/fixtures/circuits/ncps_" + name + ".safetensors"; }

TEST(CircuitFiles, LoadModelsOfNcps) {
  const test::CircuitFixture data("ncps_data.safetensors");
  for (const NcpsModel& m : ncps_models()) {
    SCOPED_TRACE(m.name);
    const Circuit circuit = Circuit::load(fixture_path(m.name), m.args);
    const std::string name = m.name;
    const CircuitOutput out = circuit(data(name + ".x"));
    EXPECT_LT(distance(out.output, data(name + ".y")), 2e-5);
    for (size_t i = 0; i < out.state.size(); ++i) EXPECT_LT(distance(out.state[i], data(name + ".state" + std::to_string(i))), 2e-5);
    SequenceArgs timed;
    timed.timespans = data(name + ".timespans");
    EXPECT_LT(distance(circuit(slice(data(name + ".x"), 0, 0, 1), timed).output, data(name + ".y_timed")), 2e-5);
  }
}

// A strict load_state_dict needs the same names and shapes. Parameters of present synapses also have the same bits.
TEST(CircuitFiles, SaveModelsForNcps) {
  const test::TempFolder folder;
  const char* keep = std::getenv("TEST_CIRCUITS_FOLDER");  // for ncps_models.py --check
  for (const NcpsModel& m : ncps_models()) {
    SCOPED_TRACE(m.name);
    Circuit circuit = Circuit::load(fixture_path(m.name), m.args);
    const std::string path = (keep ? std::string(keep) : folder.path()) + "/ncps_" + m.name + ".ridge.safetensors";
    circuit.save(path);
    const SafetensorsFile theirs(fixture_path(m.name)), ours(path);
    EXPECT_EQ(ours.tensors().size(), theirs.tensors().size());
    for (const SafetensorView& t : theirs.tensors()) {
      const SafetensorView* mine = ours.find(t.name);
      ASSERT_TRUE(mine) << t.name;
      EXPECT_EQ(mine->shape, t.shape) << t.name;
      const std::vector<float> a = Tensor::from_bytes(t.shape, t.dtype, t.data.data()).to_floats(),
                               b = Tensor::from_bytes(mine->shape, mine->dtype, mine->data.data()).to_floats();
      for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i] == b[i] || b[i] == 0) << t.name << " " << i;
    }
  }
}

TEST(CircuitFiles, TakeTheWiringFromMasksAndSigns) {
  const SafetensorsFile file(fixture_path("ltc_ncp"));
  const Circuit circuit = Circuit::load(fixture_path("ltc_ncp"), ncps_models()[7].args);
  const Wiring& w = circuit.args().wiring[0];
  EXPECT_EQ(w.units(), 9);
  EXPECT_EQ(w.outputs(), 2);
  const SafetensorView& erev = file.at("rnn_cell.erev");
  const std::vector<float> signs = Tensor::from_bytes(erev.shape, erev.dtype, erev.data.data()).to_floats();
  for (size_t i = 0; i < signs.size(); ++i) EXPECT_EQ(float(w.synapses()[i]), signs[i]);
  // An NCP of 4 inter, 3 command and 2 motor neurons.
  const Circuit cfc = Circuit::load(fixture_path("cfc_ncp"));
  ASSERT_EQ(cfc.args().wiring[0].layers(), 3);
  EXPECT_EQ(cfc.args().wiring[0].layer(0).size(), 4u);
  EXPECT_EQ(cfc.args().wiring[0].layer(2), (std::vector<int64_t>{0, 1}));
}

TEST(CircuitFiles, LoadWhatTheySave) {
  const test::CircuitFixture fixture;
  const test::TempFolder folder;
  for (const std::string& name : fixture.cases()) {
    SCOPED_TRACE(name);
    Circuit circuit = fixture.circuit(name);
    circuit.save(folder / "circuit.safetensors");
    Circuit loaded = Circuit::load(folder / "circuit.safetensors");
    EXPECT_EQ(loaded.args().json(), circuit.args().json());
    const Tensor x = fixture(name + ".x");
    EXPECT_TRUE(same_bits(loaded(x, fixture.sequence_args(name)).output, circuit(x, fixture.sequence_args(name)).output));
  }
}

// One unbuilt wiring serves all layers: each builds its copy for its own inputs.
TEST(CircuitFiles, KeepTheWiringsOfAllLayers) {
  const test::TempFolder folder;
  for (const char* cell : {"cfc", "ltc", "node"}) {
    SCOPED_TRACE(cell);
    Circuit circuit{{.cell = cell, .inputs = 3, .wiring = {Wiring::auto_ncp(9, 2)}, .layers = 2, .bidirectional = true, .batch_first = false}};
    EXPECT_EQ(circuit.args().wiring[0].inputs(), 3);
    EXPECT_EQ(circuit.args().wiring[1].inputs(), 4);
    const Tensor x = sin(reshape(iota({5 * 2 * 3}, 0, DType::f32), {5, 2, 3}));
    const SequenceArgs times{.timespans = 0.5 + reshape(iota({10}, 0, DType::f32), {5, 2, 1}) * 0.1};
    const CircuitOutput out = circuit(x, times);
    EXPECT_EQ(out.output.shape(), (Shape{5, 2, 4}));
    EXPECT_EQ(out.state.size(), 4u);
    circuit.save(folder / "stacked.safetensors");
    EXPECT_TRUE(same_bits(Circuit::load(folder / "stacked.safetensors")(x, times).output, out.output));
  }
  const auto two = [] { Circuit c{{.inputs = 3, .wiring = {Wiring::auto_ncp(9, 2), Wiring::auto_ncp(9, 2)}, .layers = 3}}; };
  EXPECT_TRUE(has(error_of(two), "2 wirings for 3 layers"));
}

TEST(CircuitFiles, RefuseWhatTheyCannotRead) {
  const test::TempFolder folder;
  const float one = 1;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(&one), sizeof one);
  auto write = [&](const std::string& name, SafetensorsMetadata metadata) {
    const SafetensorView views[] = {{{name, DType::f32, {1}}, bytes}};
    write_safetensors(folder / "bad.safetensors", views, metadata);
    return error_of([&] { Circuit::load(folder / "bad.safetensors"); });
  };
  EXPECT_TRUE(has(write("weight", {}), "describes no circuit"));
  EXPECT_TRUE(has(write("weight", {{"ridge_circuit", "[1"}}), "not a JSON object"));
  EXPECT_TRUE(has(write("weight", {{"ridge_circuit", "{\"unit\": 3}"}}), "\"unit\""));
  EXPECT_TRUE(has(write("weight", {{"ridge_circuit", "{\"units\": \"many\"}"}}), "\"units\" is \"many\""));
  EXPECT_TRUE(has(write("weight", {{"ridge_circuit", "{\"units\": 1, \"inputs\": 0}"}}), "inputs 0"));
  EXPECT_TRUE(
      has(write("weight", {{"ridge_circuit", "{\"units\": 300000, \"inputs\": 1}"}}), "up to 300000 units and 1 layers, but has 1 numbers in 1 tensors"));
  EXPECT_TRUE(has(write("rnn_cell.linear_z.weight", {{"ridge_circuit", "{\"cell\": \"mingru\", \"units\": 1, \"inputs\": 1}"}}), "linear_z.weight"));
  EXPECT_TRUE(error_of([&] { Circuit::load(folder / "absent.safetensors"); }));
  CircuitArgs args;
  args.inputs = 2, args.units = 3;
  Circuit own(args, [&](int64_t inputs) { return make_cell(args, inputs); });
  EXPECT_TRUE(has(error_of([&] { own.save(folder / "own.safetensors"); }), "cells of your own"));
}

TEST(CircuitFiles, SurviveDamage) {
  const test::CircuitFixture fixture;
  const test::TempFolder folder;
  std::mt19937 random(3);
  for (const char* name : {"cfc", "ltc", "cfc_wired"}) {
    Circuit circuit = fixture.circuit(name);
    circuit.save(folder / "good.safetensors");
    const std::string good = test::read_text(folder / "good.safetensors");
    const size_t header = good.find("}}") + 2;
    int loaded = 0, refused = 0;
    for (int i = 0; i < 60; ++i) {
      std::string text = test::mutated(good.substr(8, header - 8), random) + good.substr(header);
      const uint64_t size = uint64_t(text.size() - (good.size() - header));
      test::write_text(folder / "bad.safetensors", std::string(reinterpret_cast<const char*>(&size), 8) + text);
      if (error_of([&] { Circuit::load(folder / "bad.safetensors"), ++loaded; })) ++refused;
    }
    EXPECT_EQ(loaded + refused, 60);  // nothing else was thrown
    EXPECT_GT(refused, 20);
    const std::string description = circuit.args().json();
    for (int i = 0; i < 200; ++i) error_of([&] { CircuitArgs::from_json(test::mutated(description, random)); });
  }
}

}  // namespace
}  // namespace ridge
