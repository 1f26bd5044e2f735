#include "backend/cuda/probe.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "backend/cuda/probe_kernels.h"
#include "base/error.h"
#include "drivers/cublas_lt.h"
#include "drivers/cuda_driver.h"
#include "drivers/guarded_call.h"

namespace ridge::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxDevices = 64;
constexpr int64_t kMiB = int64_t(1) << 20;
constexpr size_t kMinSamples = 5;
constexpr Precision kPrecisions[] = {Precision::bf16, Precision::fp32, Precision::tf32, Precision::fp16};  // most important first

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Measures one device, in the child process. Each figure is reported immediately, so that a crash loses only those after it.
class DeviceProbe {
 public:
  DeviceProbe(const Driver& driver, int device, const LibrarySearch& libraries, const GpuProbeOptions& options, double seconds, bool quick, ChildOutput& output)
      : driver_(driver),
        device_(device),
        libraries_(libraries),
        options_(options),
        quick_(quick),
        output_(output),
        context_(use_device(driver, device)),
        stream_(make_stream(driver)),
        begin_(make_event(driver)),
        end_(make_event(driver)),
        module_(load_module(driver, kProbePtx)),
        nothing_(function_of(driver, module_, "probe_nothing")),
        copy_(function_of(driver, module_, "probe_copy")),
        fill_(function_of(driver, module_, "probe_fill")),
        start_(Clock::now()),
        seconds_(seconds) {}

  void run() {
    figure("copy", "copy", [&] { return copy(); });
    figure("launch", "launch", [&] { return launches(); });
    figure("upload_pinned", "upload from pinned memory", [&] { return transfer(true, true); });
    if (!options_.rates_only) {
      figure("round_trip", "round trip", [&] { return round_trip(); });
      figure("download_pinned", "download to pinned memory", [&] { return transfer(false, true); });
      figure("upload_pageable", "upload from pageable memory", [&] { return transfer(true, false); });
      figure("download_pageable", "download to pageable memory", [&] { return transfer(false, false); });
    }
    matmuls();
    if (left_out_) output_.line(fmt::format("remark\t{} figure{} left out: no time was left", left_out_, left_out_ == 1 ? "" : "s"));
  }

 private:
  // The time to measure one of eleven figures. Allocating and loading for each takes longer than a short slice.
  double slice() const { return seconds_ / (quick_ ? 40 : 16); }

  // A figure that cannot be measured is left out with a remark; a lost device gives no more figures.
  template <class Measure>
  void figure(const char* key, const std::string& what, const Measure& measure) {
    if (seconds_since(start_) > seconds_) {
      ++left_out_;
      return;
    }
    try {
      const Measured m = measure();
      if (m.samples) output_.line(fmt::format("figure\t{}\t{}\t{}\t{}\t{}", key, m.median, m.spread, m.samples, m.variant));
    } catch (const DriverError& error) {
      if (error.lost()) throw;
      output_.line(fmt::format("remark\t{}: {}", what, error.what()));
    } catch (const Error& error) {
      output_.line(fmt::format("remark\t{}: {}", what, error.what()));
    }
  }

  template <class... Args>
  void start(FunctionHandle kernel, int64_t blocks, unsigned threads, Args... args) {
    void* params[sizeof...(Args) + 1] = {&args..., nullptr};
    driver_.launch(kernel, unsigned(blocks), 1, 1, threads, 1, 1, 0, stream_.get(), params, nullptr);
  }

  void wait() { driver_.stream_wait(stream_.get()); }

  // Seconds that this many runs take on the device.
  template <class Body>
  double device_seconds(const Body& body, int times) {
    driver_.event_record(begin_.get(), stream_.get());
    for (int i = 0; i < times; ++i) body();
    driver_.event_record(end_.get(), stream_.get());
    driver_.event_wait(end_.get());
    float milliseconds = 0;
    driver_.event_milliseconds(&milliseconds, begin_.get(), end_.get());
    return std::max(1e-9, 1e-3 * double(milliseconds));
  }
  template <class Body>
  double host_seconds(const Body& body, int times) {
    wait();
    const auto from = Clock::now();
    for (int i = 0; i < times; ++i) body();
    wait();
    return std::max(1e-9, seconds_since(from));
  }

  // Samples the time of one run according to `timed(times)`, converted to a figure by `per_run`. The first run warms up; each sample is long enough for the
  // clock's resolution.
  template <class Timed, class PerRun>
  Measured sample(double seconds, const Timed& timed, const PerRun& per_run) {
    constexpr double kShortest = 2e-4;
    constexpr int kMaxTimes = 1000;
    timed(1);
    const int times = std::clamp(int(kShortest / timed(1)) + 1, 1, kMaxTimes);
    timed(times);
    std::vector<double> samples;
    const auto from = Clock::now();
    while (samples.size() < size_t(options_.most_samples) && (samples.size() < kMinSamples || seconds_since(from) < seconds))
      samples.push_back(per_run(timed(times) / times));
    return summarize(std::move(samples));
  }

  int64_t free_bytes() const {
    size_t free = 0, total = 0;
    driver_.memory_info(&free, &total);
    return int64_t(free);
  }

  void fill(DevicePointer to, int64_t bytes, Precision precision) {
    const unsigned sort = precision == Precision::bf16 ? 1 : precision == Precision::fp16 ? 2 : 0;
    start(fill_, bytes / (4 * kProbeThreads), kProbeThreads, to, sort);
  }

  // Much larger than the caches, which are 50 to 100 MB on current chips.
  Measured copy() {
    const int64_t bytes = std::clamp(free_bytes() / 8, kMiB, (quick_ ? 1024 : 2048) * kMiB) / kMiB * kMiB;
    const DeviceMemory from = allocate(driver_, bytes), to = allocate(driver_, bytes);
    fill(from.get(), bytes, Precision::fp32);
    auto gbs = [&](double s) { return 2 * double(bytes) / s * 1e-9; };
    auto by_kernel = [&] { start(copy_, bytes / kCopyBlockBytes, kProbeThreads, to.get(), from.get()); };
    auto by_driver = [&] { driver_.copy_on_device(to.get(), from.get(), size_t(bytes), stream_.get()); };
    Measured kernel = sample(
        slice() / 2, [&](int n) { return device_seconds(by_kernel, n); }, gbs);
    Measured engine = sample(
        slice() / 2, [&](int n) { return device_seconds(by_driver, n); }, gbs);
    kernel.variant = "kernel", engine.variant = "driver's copy";
    return kernel.median > engine.median ? kernel : engine;
  }

  // Many in a row: the time that each adds.
  Measured launches() {
    constexpr int kInARow = 500;
    auto nothing = [&] { start(nothing_, 1, 32); };
    return sample(
        slice() / 2, [&](int n) { return device_seconds(nothing, kInARow * n); }, [](double s) { return 1e6 * s / kInARow; });
  }

  // A single launch, until the host knows that it has finished.
  Measured round_trip() {
    auto nothing = [&] {
      start(nothing_, 1, 32);
      wait();
    };
    return sample(
        slice() / 2, [&](int n) { return host_seconds(nothing, n); }, [](double s) { return 1e6 * s; });
  }

  void matmuls() {
    constexpr int kMajor = 75;
    const int major = driver_.attribute(kMajor, device_);
    std::unique_ptr<CublasLt> lt;
    try {
      lt = std::make_unique<CublasLt>(libraries_);
    } catch (const Error& error) {
      output_.line(fmt::format("remark\tmatmul: {}", error.what()));
      return;
    }
    for (Precision precision : kPrecisions) {
      const bool has_unit = major >= 8 || precision == Precision::fp16 || precision == Precision::fp32;
      if (!has_unit || (options_.rates_only && precision == Precision::fp16 && major >= 8)) continue;  // bf16 is as fast there
      const std::string word(name(precision));
      figure(word.c_str(), word + " matmul", [&] { return matmul(*lt, precision); });
    }
  }

  // Random matrices, and what else a product of them needs.
  struct Operands {
    DeviceMemory a, b, d, workspace;
  };
  static constexpr int64_t kWorkspace = 64 * kMiB;

  Operands random_operands(int64_t n, Precision precision) {
    const int64_t bytes = n * n * element_bytes(precision);
    Operands x{allocate(driver_, bytes), allocate(driver_, bytes), allocate(driver_, bytes), allocate(driver_, kWorkspace)};
    fill(x.a.get(), bytes, precision);
    fill(x.b.get(), bytes, precision);
    return x;
  }

  double matmul_seconds(const SquareMatmul& matmul, const LtAlgorithm& algorithm, const Operands& x, int times) {
    return device_seconds([&] { matmul.run(algorithm, x.a.get(), x.b.get(), x.d.get(), x.workspace.get(), stream_.get()); }, times);
  }

  // The largest size, up to `most`, of which several products fit in a burst.
  int64_t matmul_size(const CublasLt& lt, Precision precision, const Operands& x, int64_t most) {
    constexpr int64_t kSmallest = 2048;
    int64_t n = std::min(kSmallest, most);
    const SquareMatmul small(lt, precision, n, true, kWorkspace);
    const std::vector<LtHeuristic> proposals = small.algorithms(1);
    if (proposals.empty()) fail(ErrorCode::unsupported, "cuBLASLt has no algorithm for it on this GPU");
    matmul_seconds(small, proposals[0].algorithm, x, 1);
    const double longest = quick_ ? 6e-3 : 30e-3;
    for (double s = 8 * matmul_seconds(small, proposals[0].algorithm, x, 3) / 3; n < most && s < longest; s *= 8) n *= 2;
    return n;
  }

  struct Candidate {
    SquareMatmul matmul;
    LtAlgorithm algorithm;
    bool transposed;
    double seconds;
  };
  // The fastest of the library's proposals for both layouts of A.
  Candidate best_matmul(const CublasLt& lt, Precision precision, const Operands& x, int64_t n) {
    std::optional<Candidate> best;
    for (bool transposed : {true, false})
      for (const LtHeuristic& proposal : SquareMatmul(lt, precision, n, transposed, kWorkspace).algorithms(quick_ ? 1 : 4)) {
        SquareMatmul matmul(lt, precision, n, transposed, kWorkspace);
        matmul_seconds(matmul, proposal.algorithm, x, 1);
        const double s = matmul_seconds(matmul, proposal.algorithm, x, 2) / 2;
        if (!best || s < best->seconds) best.emplace(Candidate{std::move(matmul), proposal.algorithm, transposed, s});
      }
    if (!best) fail(ErrorCode::unsupported, "cuBLASLt has no algorithm for {0} x {0} matrices on this GPU", n);
    return std::move(*best);
  }

  // A chip that multiplies without pauses soon reaches its power limit and slows down. The ceiling is the rate of short bursts, with pauses long enough to stay
  // below that limit; the rate without pauses is reported in addition.
  Measured matmul(const CublasLt& lt, Precision precision) {
    constexpr int64_t kLargest = 8192, kMin = 256;
    const double burst = options_.rates_only ? 0.005 : 0.01;
    const size_t fewest = options_.rates_only ? 3 : kMinSamples;
    int64_t most = kLargest;
    while (most > kMin && 3 * most * most * element_bytes(precision) > free_bytes() / 2 - kWorkspace) most /= 2;
    const Operands x = random_operands(most, precision);
    const int64_t n = matmul_size(lt, precision, x, most);
    const Candidate best = best_matmul(lt, precision, x, n);

    auto timed = [&](int times) { return matmul_seconds(best.matmul, best.algorithm, x, times); };
    auto gflops = [&](double s) { return 2 * double(n) * double(n) * double(n) / s * 1e-9; };
    const int in_burst = std::max(1, int(burst / best.seconds));
    std::vector<double> bursts;
    const auto from = Clock::now();
    while (bursts.size() < fewest || (bursts.size() < size_t(options_.most_samples) && seconds_since(from) < slice())) {
      const double s = timed(in_burst);
      bursts.push_back(gflops(s / in_burst));
      std::this_thread::sleep_for(std::chrono::duration<double>(options_.rest * s));
    }
    Measured m = summarize(std::move(bursts));
    m.variant = fmt::format("{0} x {0}, {1}", n, best.transposed ? "TN" : "NN");
    if (!quick_) {
      sample(slice() / 2, timed, gflops);  // until the chip has slowed down
      m.variant += fmt::format(", {} sustained", rate_text(sample(slice() / 4, timed, gflops).median));
    }
    return m;
  }

  Measured transfer(bool up, bool pinned) {
    const int64_t bytes = std::clamp(free_bytes() / 8, kMiB, (quick_ ? 64 : 256) * kMiB) / kMiB * kMiB;
    const DeviceMemory device = allocate(driver_, bytes);
    PinnedMemory locked;
    std::vector<char> plain;
    if (pinned)
      locked = allocate_pinned(driver_, bytes);
    else
      plain.resize(size_t(bytes));
    char* host = pinned ? static_cast<char*>(locked.get()) : plain.data();
    for (int64_t i = 0; i < bytes; i += 64) host[i] = char(i >> 6);  // touches all pages, with varying contents
    fill(device.get(), bytes, Precision::fp32);
    auto move = [&] {
      if (up)
        driver_.copy_to_device(device.get(), host, size_t(bytes), stream_.get());
      else
        driver_.copy_to_host(host, device.get(), size_t(bytes), stream_.get());
    };
    // A pageable copy is partly done by the host, which events do not measure.
    return sample(
        slice() / 2, [&](int n) { return pinned ? device_seconds(move, n) : host_seconds(move, n); }, [&](double s) { return double(bytes) / s * 1e-9; });
  }

  const Driver& driver_;
  int device_;
  const LibrarySearch& libraries_;
  const GpuProbeOptions& options_;
  bool quick_;
  ChildOutput& output_;
  Context context_;
  Stream stream_;
  Event begin_, end_;
  Module module_;
  FunctionHandle nothing_, copy_, fill_;
  Clock::time_point start_;
  double seconds_;
  int left_out_ = 0;
};

// Runs in the child. An answer is a line of tab-separated words, of which the first gives its type.
void measure_devices(ChildOutput& output, const GpuProbeOptions& options, bool quick) {
  try {
    const Driver driver(options.driver.empty() ? driver_library() : options.driver);
    const LibrarySearch libraries = options.libraries ? *options.libraries : library_search(driver.version());
    int count = 0;
    driver.device_count(&count);
    count = std::min(count, kMaxDevices);
    if (count <= 0) output.line("none\tthe NVIDIA driver reports no device: " + remedy_for(100));
    const double seconds = (quick ? options.quick_seconds : options.seconds) / std::max(1, count);
    for (int i = 0; i < count; ++i) {
      std::array<char, 256> text{};
      int device = 0;
      driver.device_get(&device, i);
      driver.device_name(text.data(), int(text.size()) - 1, device);
      std::replace(text.begin(), text.end(), '\t', ' ');
      output.line(fmt::format("device\t{}", text.data()));
      try {
        DeviceProbe(driver, device, libraries, options, seconds, quick, output).run();
      } catch (const Error& error) {
        output.line(fmt::format("remark\t{}", error.what()));
      }
    }
  } catch (const Error& error) {
    output.line(fmt::format("none\t{}", error.what()));
  }
}

// The child may have been corrupted by what it loaded, so its output is not trusted.
double number(std::string_view text) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 && value < 1e12 ? value : 0;
}

void take_figure(GpuCeilings& gpu, const std::vector<std::string_view>& words) {
  const Measured m{number(words[2]), number(words[3]), int(std::min(number(words[4]), 1e6)), std::string(words[5])};
  if (!(m.median > 0) || m.samples < 1) return;
  const std::pair<std::string_view, Measured*> places[] = {{"copy", &gpu.copy_gbs},
                                                           {"launch", &gpu.launch_us},
                                                           {"round_trip", &gpu.round_trip_us},
                                                           {"upload_pinned", &gpu.upload_pinned_gbs},
                                                           {"download_pinned", &gpu.download_pinned_gbs},
                                                           {"upload_pageable", &gpu.upload_pageable_gbs},
                                                           {"download_pageable", &gpu.download_pageable_gbs}};
  for (auto [key, place] : places)
    if (words[1] == key) *place = m;
  for (Precision precision : kPrecisions)
    if (words[1] == name(precision)) gpu.matmul.push_back({precision, m});
  std::sort(gpu.matmul.begin(), gpu.matmul.end(), [](const auto& x, const auto& y) { return x.precision < y.precision; });
}

GpuFindings findings_of(const ChildAnswer& answer) {
  GpuFindings found;
  for (const std::string& line : answer.lines) {
    std::vector<std::string_view> words;
    for (size_t at = 0; at <= line.size();) {
      const size_t end = std::min(line.find('\t', at), line.size());
      words.push_back(std::string_view(line).substr(at, end - at));
      at = end + 1;
    }
    const std::string_view rest = std::string_view(line).substr(std::min(line.size(), words[0].size() + 1));
    if (words[0] == "none") found.none = rest;
    if (words[0] == "device") found.gpus.push_back({.name = rest.empty() ? "NVIDIA GPU" : std::string(rest)});
    if (found.gpus.empty()) continue;
    if (words[0] == "remark") found.gpus.back().remarks.emplace_back(rest);
    if (words[0] == "figure" && words.size() == 6) take_figure(found.gpus.back(), words);
  }
  if (answer.end == ChildAnswer::End::finished) return found;
  const std::string why = fmt::format("the NVIDIA driver {} while it was measured", describe(answer));
  if (found.gpus.empty())
    found.none = why;
  else
    found.gpus.back().remarks.push_back(why);
  return found;
}

}  // namespace

std::function<GpuFindings()> begin_gpu_probe(const GpuProbeOptions& options, bool quick) {
  const double limit = quick ? options.quick_start + options.quick_seconds : options.start + options.seconds;
  const std::vector<std::function<void(ChildOutput&)>> questions = {[&](ChildOutput& output) { measure_devices(output, options, quick); }};
  return [asked = std::make_shared<PendingChildren>(questions, limit)] { return findings_of(asked->answers()[0]); };
}

GpuProbe gpu_probe(const GpuProbeOptions& options) {
  return [options](bool quick) { return begin_gpu_probe(options, quick)(); };
}

}  // namespace ridge::cuda
