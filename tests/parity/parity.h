// What the parity tests share: stored arrays, a graph computed by the reference or by the compiled path, and closeness.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "backend/reference/evaluate.h"
#include "graph/builder.h"
#include "runtime/executable.h"

namespace ridge::parity {

using reference::Array;

// The ways a graph is computed; every test runs the first two, and the third on a machine with a GPU, or simulated where RIDGE_FULL=1.
enum class Path { reference, cpu, gpu };
std::string name(Path path);
std::vector<Path> host_paths();
std::vector<Path> gpu_paths();

// Fixtures are f64 results rounded to f32 (2^-24 relative). The reference computes in f64 too, so nothing but that rounding and
// a few ulp of f64 may show. The others compute in f32: sums of up to a few hundred terms of either sign, whose errors grow about as
// sqrt(n) · 2^-24 (3e-6 for one operation), and again through each layer of a model, where 5e-6 is the most that is seen.
enum class Depth { operation, model };
double tolerance(Path path, Depth depth = Depth::operation);

class Fixture {
 public:
  explicit Fixture(std::string folder) : folder_(std::move(folder)) {}
  Array operator()(const std::string& name, std::optional<DType> as = {}) const;  // as: the dtype the test wants, e.g. a boolean mask

 private:
  std::string folder_;
};

Array slice_first(const Array& array, int64_t index);                            // array[index]
std::vector<Array> unpack(const Array& flat, const std::vector<Shape>& shapes);  // one file holds a model's parameters
Array scalar(DType dtype, double value);

// A graph under construction whose inputs already have values.
struct Problem {
  Graph graph;
  Builder b{graph};
  std::vector<NodeId> inputs;
  std::vector<Array> values;
  NodeId input(const Array& value);
  std::vector<NodeId> input(const std::vector<Array>& values);
};

class Program {
 public:
  // `state` pairs (input, output) share memory on the compiled path, as parameters in training do.
  Program(Path path, const Problem& problem, std::vector<NodeId> outputs, std::vector<std::pair<int, int>> state = {});
  std::vector<Array> run(const std::vector<Array>& inputs);

 private:
  void run_on_device(const std::vector<const void*>& from, const std::vector<void*>& to);

  const Problem& problem_;
  Backend* backend_ = nullptr;  // of a device with memory of its own
  std::vector<NodeId> outputs_;
  std::vector<std::pair<int, int>> state_;
  std::optional<Executable> executable_;
};

std::vector<Array> compute(Path path, const Problem& problem, const std::vector<NodeId>& outputs);

// |got - want| <= tolerance · (|want| + rms(want)): a sum's rounding error is as large as its addends are, not as what is left
// of them after cancelling, and the tensor's rms stands for those. Both sides may call 1e-12 zero.
void expect_close(const Array& got, const Array& want, double tolerance, const std::string& what);

}  // namespace ridge::parity
