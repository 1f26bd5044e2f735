// Shared by the parity tests: stored arrays, graphs evaluated by the reference or the compiled path, and comparison.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "backend/reference/evaluate.h"
#include "graph/builder.h"
#include "runtime/executable.h"

namespace ridge::parity {

using reference::Array;

// How a graph is evaluated. Every test uses the first two; the third needs a GPU, or RIDGE_FULL=1 for the simulated one.
enum class Path { reference, cpu, gpu };
std::string name(Path path);
std::vector<Path> host_paths();
std::vector<Path> gpu_paths();

// Fixtures are f64 results rounded to f32 (2^-24 relative). The reference also computes in f64, so only that rounding and a few f64 ulps may show. The others
// compute in f32: sums of up to a few hundred terms of mixed sign, whose errors grow about as sqrt(n) · 2^-24 (3e-6 for one operation), and further through
// each layer of a model; the largest error observed is 5e-6.
enum class Depth { operation, model };
double tolerance(Path path, Depth depth = Depth::operation);

class Fixture {
 public:
  explicit Fixture(std::string folder) : folder_(std::move(folder)) {}
  Array operator()(const std::string& name, std::optional<DType> as = {}) const;  // as: the dtype to convert to, e.g. for a boolean mask

 private:
  std::string folder_;
};

Array slice_first(const Array& array, int64_t index);                            // array[index]
std::vector<Array> unpack(const Array& flat, const std::vector<Shape>& shapes);  // splits a file with all of a model's parameters
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
  // `state` pairs (input, output) share memory on the compiled path, as parameters do in training.
  Program(Path path, const Problem& problem, std::vector<NodeId> outputs, std::vector<std::pair<int, int>> state = {});
  std::vector<Array> run(const std::vector<Array>& inputs);

 private:
  void run_on_device(const std::vector<const void*>& from, const std::vector<void*>& to);

  const Problem& problem_;
  Backend* backend_ = nullptr;  // set for a device with its own memory
  std::vector<NodeId> outputs_;
  std::vector<std::pair<int, int>> state_;
  std::optional<Executable> executable_;
};

std::vector<Array> compute(Path path, const Problem& problem, const std::vector<NodeId>& outputs);

// |got - want| <= tolerance · (|want| + rms(want)): a sum's rounding error scales with its terms, not with the result after cancellation; the tensor's rms
// approximates their size. Values up to 1e-12 count as zero.
void expect_close(const Array& got, const Array& want, double tolerance, const std::string& what);

}  // namespace ridge::parity
