#include "parity/parity.h"
#include "measure/default_team.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/npy.h"
#include "support/gpu_runner.h"
#include "support/source_dir.h"

namespace ridge::parity {

std::string name(Path path) { return path == Path::reference ? "reference" : path == Path::cpu ? "cpu" : "gpu"; }
std::vector<Path> host_paths() { return {Path::reference, Path::cpu}; }
std::vector<Path> gpu_paths() { return test::tests_real_gpu() || test::is_set("RIDGE_FULL") ? std::vector{Path::gpu} : std::vector<Path>(); }

double tolerance(Path path, Depth depth) {
  if (path == Path::reference) return 1.5e-7;
  return depth == Depth::operation ? 3e-6 : 1e-5;
}

Array Fixture::operator()(const std::string& name, std::optional<DType> as) const {
  NpyArray file = read_npy(source_dir() + "/tests/fixtures/" + folder_ + "/" + name + ".npy");
  Array a = reference::from_bytes({file.dtype, file.shape}, file.data.data());
  if (!as || *as == file.dtype) return a;
  std::vector<double> values;
  for (int64_t i = 0; i < a.size(); ++i) values.push_back(a.at(i));
  return reference::from_values({*as, file.shape}, values);
}

Array slice_first(const Array& array, int64_t index) {
  Shape shape = array.type.shape;
  shape.erase(0);
  Array out = reference::zeros({array.type.dtype, shape});
  for (int64_t i = 0, n = out.size(); i < n; ++i) {
    if (out.floating())
      out.f[size_t(i)] = array.f[size_t(index * n + i)];
    else
      out.i[size_t(i)] = array.i[size_t(index * n + i)];
  }
  return out;
}

std::vector<Array> unpack(const Array& flat, const std::vector<Shape>& shapes) {
  std::vector<Array> out;
  auto at = flat.f.begin();
  for (const Shape& s : shapes) {
    EXPECT_LE(s.numel(), flat.f.end() - at) << "the fixture has fewer values than the model";
    out.push_back(reference::from_values({flat.type.dtype, s}, std::span(at, size_t(s.numel()))));
    at += s.numel();
  }
  EXPECT_EQ(at, flat.f.end()) << "the fixture has more values than the model";
  return out;
}

Array scalar(DType dtype, double value) { return reference::from_values({dtype, {}}, {&value, 1}); }

NodeId Problem::input(const Array& value) {
  inputs.push_back(graph.input(value.type, "x" + std::to_string(inputs.size())));
  values.push_back(value);
  return inputs.back();
}

std::vector<NodeId> Problem::input(const std::vector<Array>& list) {
  std::vector<NodeId> out;
  for (const Array& a : list) out.push_back(input(a));
  return out;
}

Program::Program(Path path, const Problem& problem, std::vector<NodeId> outputs, std::vector<std::pair<int, int>> state)
    : problem_(problem), outputs_(std::move(outputs)), state_(std::move(state)) {
  if (path == Path::reference) return;
  CompileOptions options(default_backend());
  options.state = state_;
  if (path == Path::gpu) options.backend = backend_ = &test::Gpu::the().backend();
  executable_.emplace(problem.graph, problem.inputs, outputs_, options);
}

std::vector<Array> Program::run(const std::vector<Array>& inputs) {
  if (!executable_) {
    std::unordered_map<NodeId, Array> bound;
    for (size_t i = 0; i < inputs.size(); ++i) bound.emplace(problem_.inputs[i], inputs[i]);
    return reference::evaluate(problem_.graph, outputs_, bound);
  }
  std::vector<std::vector<std::byte>> in, out;
  std::vector<const void*> from;
  std::vector<void*> to;
  for (const Array& a : inputs) {
    in.emplace_back(size_t(a.type.bytes()));
    reference::to_bytes(a, in.back().data());
    from.push_back(in.back().data());
  }
  for (const Type& t : executable_->output_types()) to.push_back(out.emplace_back(size_t(t.bytes()), std::byte(0xFF)).data());
  for (auto [before, after] : state_) to[size_t(after)] = in[size_t(before)].data();
  if (backend_)
    run_on_device(from, to);
  else
    executable_->run(from, to);
  std::vector<Array> results;
  for (size_t i = 0; i < out.size(); ++i) results.push_back(reference::from_bytes(executable_->output_types()[i], to[i]));
  return results;
}

// The same buffers on the device; state buffers are shared there too.
void Program::run_on_device(const std::vector<const void*>& from, const std::vector<void*>& to) {
  std::vector<std::byte*> in, out;
  std::vector<const void*> in_pointers;
  const std::vector<Type>&in_types = executable_->input_types(), &out_types = executable_->output_types();
  for (size_t i = 0; i < from.size(); ++i) {
    in_pointers.push_back(in.emplace_back(backend_->allocate(in_types[i].bytes())));
    backend_->upload(in[i], from[i], in_types[i].bytes());
  }
  for (const Type& t : out_types) out.push_back(backend_->allocate(t.bytes()));
  std::vector<void*> out_pointers(out.begin(), out.end());
  for (auto [before, after] : state_) out_pointers[size_t(after)] = in[size_t(before)];
  executable_->run(in_pointers, out_pointers);
  for (size_t i = 0; i < to.size(); ++i) backend_->download(to[i], out_pointers[i], out_types[i].bytes());
  for (size_t i = 0; i < in.size(); ++i) backend_->release(in[i], in_types[i].bytes());
  for (size_t i = 0; i < out.size(); ++i) backend_->release(out[i], out_types[i].bytes());
}

std::vector<Array> compute(Path path, const Problem& problem, const std::vector<NodeId>& outputs) {
  return Program(path, problem, outputs).run(problem.values);
}

void expect_close(const Array& got, const Array& want, double tolerance, const std::string& what) {
  ASSERT_EQ(to_string(got.type), to_string(want.type)) << what;
  double squares = 0;
  for (int64_t i = 0; i < want.size(); ++i) squares += want.at(i) * want.at(i);
  double rms = std::sqrt(squares / double(std::max<int64_t>(want.size(), 1)));
  for (int64_t i = 0; i < want.size(); ++i) {
    double bound = tolerance * (std::abs(want.at(i)) + rms) + 1e-12;
    if (std::abs(got.at(i) - want.at(i)) <= bound) continue;
    ADD_FAILURE() << what << ": element " << i << " of " << to_string(want.type) << " is " << got.at(i) << ", PyTorch has " << want.at(i) << " (off by "
                  << std::abs(got.at(i) - want.at(i)) << ", allowed " << bound << ")";
    return;
  }
}

}  // namespace ridge::parity
