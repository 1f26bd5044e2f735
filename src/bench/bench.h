// Benchmarks as rows: what to run, what it costs, and which ceiling it is compared with.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/utilisation.h"
#include "measure/default_team.h"
#include "measure/statistics.h"
#include "ridge/dtype.h"

namespace ridge {
class Backend;
}

namespace ridge::bench {

// What limits a row. Ops that read once and write once are compared with copy, two reads and a write with triad, reductions with read.
enum class Bound { fma, copy, triad, read, latency };
std::string_view name(Bound bound);

// hot: the same operands every time; cold: operands rotate over four times the last-level cache.
enum class State { hot, cold };
std::string_view name(State state);

// A kernel faster than its ceiling means that the ceiling is wrong, and so is every fraction of it.
constexpr double kAboveRoof = 1.03;

// Explains why a row exceeds its ceiling; empty if it does not. `ceiling`: what it was compared with. `others`: the share of the machine that other programs
// used meanwhile.
std::string above_roof(const std::string& name, double roof, std::string_view ceiling, double others);

struct Context {
  Backend& backend;
  State state;
  std::function<std::string()>* dump = nullptr;  // receives a function that describes the compiled program
};

// Each call is one sample; the argument is the number of previous calls.
using Call = std::function<void(int64_t iteration)>;

struct Row {
  std::string suite, name;
  DType dtype = DType::f32;
  State state = State::hot;
  Bound bound = Bound::latency;
  double flops = 0, bytes = 0;                     // per call: algorithmic flops, unavoidable bytes
  std::function<Call(const Context&)> make = {};   // allocates and compiles; the call does only the work
  double parts = 0;                                // number of parts in a call
  std::string part = {};                           // "op", "pair"
  std::function<Call(const Context&)> rival = {};  // the row also reports the paired time ratio to this one
};

struct Result {
  std::string suite, name;
  DType dtype = DType::f32;
  int threads = 1;
  State state = State::hot;
  Bound bound = Bound::latency;
  double median_us = 0, spread = 0;  // spread: between the quartiles, as a fraction of the median
  int samples = 0;
  std::vector<double> times_us = {};  // every sample
  std::optional<double> gflops = {}, gbs = {};
  std::optional<double> roof = {};     // median of paired ratios to the ceiling of the same moment
  std::optional<double> ceiling = {};  // median of these ceilings, in GFLOP/s or GB/s
  double others = 0;                   // share of the machine that other programs used meanwhile
  std::optional<double> part_us = {}, rival_ratio = {};
  std::string part = {}, variant = {};
  std::string loop = {};  // how its loops over time run: resident, unrolled; empty: it has none, or the device does not say
  int stages = 0;         // of a time step of resident loops, each with a barrier
  std::string device = "cpu";
};

struct Options {
  int threads = 0;          // 0: as many as the process may use
  double seconds = 0.5;     // per row
  std::string filter = {};  // regular expression, matched anywhere in the name
  std::optional<State> state = {};
  std::shared_ptr<Backend> backend = open_device({});  // on the CPU every suite creates its own team of `threads`
  std::string device = "cpu";                          // its name
};

std::vector<Row> ops_rows();         // for the CPU
std::vector<Row> device_ops_rows();  // for a GPU

// Whether a name matches a regular expression. ErrorCode::usage if the expression is invalid.
std::function<bool(const std::string& name)> row_filter(const std::string& text);

// Runs the rows that the options select and passes on each result as soon as it is available. The ceilings are rows too (ceiling/…) and come last: they
// summarise what was measured alongside the other rows. ErrorCode::usage if nothing is selected or the filter is not a valid regular expression.
void run(const std::vector<Row>& rows, const Options& options, const std::function<void(const Result&)>& sink);

// The same for a device with its own memory (options.backend): times are for many calls in a row, with one wait at the end.
void run_on_device(const std::vector<Row>& rows, const Options& options, const std::function<void(const Result&)>& sink);

// Measures a row, and up to twice more if it exceeds its ceiling: the machine's speed may have changed meanwhile.
template <class Measure>
auto measure_below_roof(const Measure& measure) {
  OthersWatch watch;
  auto result = measure();
  for (int again = 0; again < 2 && result.roof > kAboveRoof; ++again) result = measure();
  result.others = watch.others();
  return result;
}

std::string others_text(double others);                       // "  others 40%"; empty on an idle machine
std::string to_json(const Result& result, bool raw = false);  // one line; raw: with every sample, the clock and the load
std::string table_head();
std::string to_table_line(const Result& result);

// Part of a row's JSON line: the summary of its samples, and with `raw` the samples themselves, the clock of a core now and the system's load average.
std::string timing_json(const std::vector<double>& times_us, bool raw);

double clock_ghz();  // of the core that runs this, from a chain of additions of one cycle each

// RIDGE_BENCH_SLOWDOWN=0.05 makes everything that is timed take 5 % longer, to show that --compare finds it: waits until that share of the time since `start`
// has passed again.
void inject_slowdown(std::chrono::steady_clock::time_point start);

}  // namespace ridge::bench
