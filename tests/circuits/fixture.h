// Fixtures of circuits: descriptions, weights, sequences and results computed in double precision by tests/fixtures/circuits/make.py.
#pragma once
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "ridge/circuits.h"
#include "support/source_dir.h"

namespace ridge::test {

class CircuitFixture {
 public:
  explicit CircuitFixture(const std::string& name = "cells.safetensors") : file(source_dir() + "/tests/fixtures/circuits/" + name) {}

  std::vector<std::string> cases() const {
    std::vector<std::string> names;
    for (const auto& [name, description] : file.metadata())
      if (name != "format") names.push_back(name);
    return names;
  }
  bool has(const std::string& name) const { return file.find(name); }
  Tensor operator()(const std::string& name) const {  // undefined: not in the file
    const SafetensorView* v = file.find(name);
    return v ? Tensor::from_bytes(v->shape, v->dtype, v->data.data()) : Tensor();
  }
  CircuitArgs args(const std::string& name) const { return CircuitArgs::from_json(file.metadata().at(name)); }
  Circuit circuit(const std::string& name) const { return filled(name, args(name)); }
  Circuit filled(const std::string& name, const CircuitArgs& args) const {
    Circuit c(args);
    for (const NamedTensor& p : parameters(c)) {
      const SafetensorView& v = file.at(name + ".weights." + p.name);
      if (!(v.shape == p.tensor->shape())) throw std::runtime_error(p.name + " has another shape");
      *p.tensor = Tensor::from_bytes(v.shape, v.dtype, v.data.data());
    }
    return c;
  }
  SequenceArgs sequence_args(const std::string& name) const {
    SequenceArgs a;
    a.timespans = (*this)(name + ".timespans"), a.lengths = (*this)(name + ".lengths");
    return a;
  }

  SafetensorsFile file;
};

// The largest |got - want| in units of |want| + the root mean square of `want`.
inline double distance(const Tensor& got, const Tensor& want) {
  if (!(got.shape() == want.shape())) return 1e30;
  const std::vector<float> g = got.to_floats(), w = want.to_floats();
  double rms = 0, worst = 0;
  for (float v : w) rms += double(v) * double(v);
  rms = std::sqrt(rms / double(std::max<size_t>(w.size(), 1)));
  for (size_t i = 0; i < g.size(); ++i) {
    const double d = std::abs(double(g[i]) - double(w[i])) / (std::abs(double(w[i])) + rms + 1e-12);
    worst = d <= worst ? worst : d;  // NaN counts
  }
  return worst;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.data(), b.data(), size_t(a.size()) * sizeof(float)) == 0;
}

}  // namespace ridge::test
