#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "backend/backend.h"
#include "base/error.h"
#include "bench/bench.h"
#include "bench/compiled.h"
#include "bench/device_ceilings.h"
#include "bench/loop_rows.h"
#include "measure/ceilings.h"
#include "runtime/arena.h"

namespace ridge::bench {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Seconds per call. The device gets many calls in a row, so that neither the launch nor the final wait counts.
class DeviceTimer {
 public:
  DeviceTimer(Backend& device, Call call) : device_(device), call_(std::move(call)) {
    for (int i = 0; i < 3; ++i) sample(1);  // compiles, records, warms up
    const double once = std::min(sample(1), sample(1));
    constexpr double kLong = 5e-3;
    repeats_ = std::clamp(int64_t(kLong / std::max(once, 1e-6)), int64_t(2), int64_t(2000));
  }
  double seconds() { return sample(repeats_); }

 private:
  double sample(int64_t times) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < times; ++i) call_(iteration_++);
    device_.wait();
    inject_slowdown(start);
    return since(start) / double(times);
  }
  Backend& device_;
  Call call_;
  int64_t iteration_ = 0, repeats_ = 1;
};

DType dtype_of(Precision precision) { return precision == Precision::bf16 ? DType::bf16 : precision == Precision::fp16 ? DType::f16 : DType::f32; }

int64_t room(const Backend& device) { return device.memory().free; }

// The lowest of several samples, with pauses between them: after a few hundredths of a second of products a GPU throttles to stay within its power limit, and a
// ceiling should show what the chip can do.
double best_seconds(DeviceTimer& timer, int samples) {
  double best = 0;
  for (int i = 0; i < samples; ++i) {
    const auto begin = Clock::now();
    const double t = timer.seconds();
    best = i ? std::min(best, t) : t;
    std::this_thread::sleep_for(3 * (Clock::now() - begin));
  }
  return best;
}

double measure_matmul_gflops(Backend& device, DType dtype) {
  const bool large = room(device) >= (int64_t(1) << 31);
  double best = 0;
  for (int64_t size : large ? std::vector<int64_t>{4096, 8192} : std::vector<int64_t>{128}) {
    DeviceTimer timer(device, compile({device, State::hot}, [&](Builder& b) {
                        Formula f;
                        const NodeId x = input(b, f, {size, size}, dtype), y = input(b, f, {size, size}, dtype);
                        f.outputs = {b.matmul(x, y)};
                        return f;
                      }));
    best = std::max(best, 2e-9 * double(size) * double(size) * double(size) / best_seconds(timer, 5));
  }
  return best;
}

}  // namespace

double measure_memory_gbs(Backend& device) {
  const int64_t bytes = std::clamp<int64_t>(room(device) / 8, int64_t(1) << 20, int64_t(1) << 30) / 4096 * 4096;
  Arena memory(device);
  memory.require(2 * bytes);
  DeviceTimer copy(device, [&](int64_t) { device.copy(memory.data() + bytes, memory.data(), bytes); });
  double best = 2e-9 * double(bytes) / best_seconds(copy, 7);
  // A chip moves some mixes of reads and writes faster than others.
  auto kernel = [&](int arrays, const std::function<NodeId(Builder&, Formula&, const Shape&)>& body) {
    const Shape shape{bytes / 4};
    DeviceTimer timer(device, compile({device, State::hot}, [&](Builder& b) {
                        Formula f;
                        f.outputs = {body(b, f, shape)};
                        return f;
                      }));
    best = std::max(best, double(arrays) * 1e-9 * double(bytes) / best_seconds(timer, 7));
  };
  kernel(2, [](Builder& b, Formula& f, const Shape& s) { return b.neg(input(b, f, s)); });
  kernel(1, [](Builder& b, Formula& f, const Shape& s) { return b.sum(input(b, f, s)); });
  if (room(device) >= 6 * bytes)
    kernel(3, [](Builder& b, Formula& f, const Shape& s) {
      const NodeId x = input(b, f, s), y = input(b, f, s);
      return b.add(x, y);
    });
  return best;
}

DeviceCeilings measure_ceilings(Backend& device, Precision precision) {
  return {measure_memory_gbs(device), measure_matmul_gflops(device, dtype_of(precision))};
}

void run_on_device(const std::vector<Row>& rows, const Options& options, const std::function<void(const Result&)>& sink) {
  const auto filter = row_filter(options.filter);
  Backend& device = *options.backend;
  double memory_gbs = 0;
  std::map<DType, double> matmul_gflops;
  auto ceiling = [&](const Row& row) {
    if (row.bound == Bound::copy) return memory_gbs > 0 ? memory_gbs : (memory_gbs = measure_memory_gbs(device));
    if (row.bound != Bound::fma) return 0.0;
    double& rate = matmul_gflops[row.dtype];
    return rate > 0 ? rate : (rate = measure_matmul_gflops(device, row.dtype));
  };
  bool any = false;
  for (const Row& row : rows) {
    if (!filter(row.name)) continue;
    any = true;
    Result r{.suite = row.suite,
             .name = row.name,
             .dtype = row.dtype,
             .threads = 0,
             .state = row.state,
             .bound = row.bound,
             .part = row.part,
             .device = options.device};
    {
      std::function<std::string()> dump;
      DeviceTimer timer(device, row.make({device, row.state, &dump}));
      std::vector<double> times;
      for (const auto start = Clock::now(); times.size() < 9 || (times.size() < 500 && since(start) < options.seconds);) {
        const auto begin = Clock::now();
        times.push_back(1e6 * timer.seconds());
        // Pauses between the samples: after a few hundredths of a second of products a GPU throttles to stay within its power limit, and this should measure
        // the kernel.
        std::this_thread::sleep_for(3 * (Clock::now() - begin));
      }
      const Measured m = summarize(times);
      r.median_us = m.median, r.spread = m.spread, r.samples = m.samples, r.times_us = times;
      if (dump) {
        const std::string text = dump();
        r.loop = loops_in(text), r.stages = loop_stages(text);
      }
    }
    if (row.flops > 0) r.gflops = 1e-3 * row.flops / r.median_us;
    if (row.bytes > 0) r.gbs = 1e-3 * row.bytes / r.median_us;
    if (row.parts > 0) r.part_us = r.median_us / row.parts;
    if (const double most = ceiling(row); most > 0) r.ceiling = most, r.roof = (row.bound == Bound::fma ? *r.gflops : *r.gbs) / most;
    sink(r);
  }
  if (!any) fail(ErrorCode::usage, "[bench] nothing matches --filter '{}'; without a filter all {} rows run", options.filter, rows.size());
}

}  // namespace ridge::bench
