#include "train/step_time.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <set>
#include <vector>

#include <fmt/core.h>

#include "autograd/gradients.h"
#include "backend/registry.h"
#include "graph/builder.h"
#include "machine/caches.h"
#include "machine/machine.h"
#include "machine/measurement_store.h"
#include "machine/utilisation.h"
#include "measure/ceilings.h"
#include "measure/default_team.h"
#include "nn/gpt.h"
#include "threads/thread_team.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;

struct Formula {
  std::vector<NodeId> inputs, outputs;
};

struct Sample {
  double seconds = 0, flops = 0, bytes = 0;
};

// A low quantile, so that load from other programs does not make the machine look slow.
double lower_quartile(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + ptrdiff_t(times.size() / 4), times.end());
  return times[times.size() / 4];
}

// Runs a small program repeatedly and returns the time of one run.
Sample time_program(ThreadTeam& team, double seconds, const std::function<Formula(Builder&, Graph&)>& trace) {
  Graph graph;
  Builder b(graph);
  Formula f = trace(b, graph);
  const std::unique_ptr<Backend> backend = cpu_backend(team);
  Executable program(graph, f.inputs, f.outputs, *backend);
  std::vector<std::vector<float>> memory;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const Type& t : program.input_types()) {
    std::vector<float>& values = memory.emplace_back(size_t(t.shape.numel()), 0.01f);
    if (size_of(t.dtype) == 2) std::fill_n(reinterpret_cast<uint16_t*>(values.data()), values.size(), uint16_t(0x2400));  // small in either format
    in.push_back(values.data());
  }
  for (const Type& t : program.output_types()) out.push_back(memory.emplace_back(size_t(t.shape.numel())).data());
  std::vector<double> times;
  program.run(in, out), program.run(in, out);
  for (const auto start = Clock::now(); times.size() < 3 || std::chrono::duration<double>(Clock::now() - start).count() < seconds;) {
    const auto begin = Clock::now();
    program.run(in, out);
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  Sample s;
  s.seconds = lower_quartile(times);
  for (const KernelReport& k : program.report().kernels) s.flops += k.flops, s.bytes += k.bytes;
  return s;
}

enum class Family { matmul, attention, move };
Family family_of(const KernelReport& k) {
  if (k.name.starts_with("matmul") || k.name.starts_with("conv") || k.name.starts_with("scan")) return Family::matmul;
  return k.name.starts_with("attention") ? Family::attention : Family::move;
}

constexpr int64_t kLargeSampleBytes = int64_t(32) << 20;  // with less memory, a step has no large kernels

// Part of a layer, forward and backward, as in real steps: products of tall and flat matrices with their fused operations.
double products_gflops(ThreadTeam& team, DType dtype, int64_t rows, int64_t width, int64_t hidden) {
  const Sample products = time_program(team, 0.05, [=](Builder& b, Graph& g) {
    const NodeId x = g.input({dtype, {rows, width}}, "x"), up = g.input({dtype, {hidden, width}}, "up"), down = g.input({dtype, {width, hidden}}, "down");
    const NodeId y = b.linear(b.unary(Op::relu, b.linear(x, up)), down);
    const int64_t axes[] = {0, 1};
    const NodeId wanted[] = {up, down, x};
    std::vector<NodeId> grads = gradients(g, b.sum(b.mul(y, y), axes), wanted);
    return Formula{{x, up, down}, grads};
  });
  return 1e-9 * products.flops / products.seconds;
}

double attention_gflops(ThreadTeam& team, const Type& type) {
  const Sample attention = time_program(team, 0.05, [&](Builder& b, Graph& g) {
    const NodeId q = g.input(type, "q"), k = g.input(type, "k"), v = g.input(type, "v");
    const NodeId y = b.attention(q, k, v, {.causal = true});
    const int64_t axes[] = {0, 1, 2, 3};
    const NodeId wanted[] = {q, k, v};
    std::vector<NodeId> grads = gradients(g, b.sum(y, axes), wanted);
    return Formula{{q, k, v}, grads};
  });
  return 1e-9 * attention.flops / attention.seconds;
}

// Size of each of two arrays to copy: larger than the last-level cache if memory allows. A step with less memory runs from the caches too.
int64_t array_bytes(int64_t memory) { return int64_t(std::bit_floor(uint64_t(std::clamp<int64_t>(memory / 4, 1 << 20, 2 * last_level_cache_bytes())))); }

// Kernels are slower in a step than alone, because other kernels evict their cached data. A small transformer step measures by how much.
double measure_correction(ThreadTeam& team, const KernelRates& alone, int64_t memory, Precision precision) {
  GptConfig c;
  c.vocab = 64, c.block = 64, c.layers = 2, c.heads = 4, c.width = 128;
  StepModel model;
  model.parameters = gpt_parameters(c), model.batch = {{DType::i64, {12, c.block}}, {DType::i64, {12, c.block}}};
  model.loss = [c](Builder& b, std::span<const NodeId> p, std::span<const NodeId> in, const RandomOperands& random) {
    return gpt_losses(b, c, p, in[0], in[1], random);
  };
  const std::unique_ptr<Backend> backend = cpu_backend(team);
  StepOptions options;
  options.backend = backend.get(), options.evaluation = false, options.precision = precision;
  TrainStep step(model, options);
  if (step.plan().planned_bytes > memory) return 1.2;
  for (size_t i = 0; i < model.parameters.size(); ++i)
    step.fill_parameter(i, [&](std::span<float> to) { initialize(model.parameters[i], 1, uint32_t(i), to); });
  const std::vector<int64_t> tokens(size_t(12 * c.block), 1);
  const void* batch[] = {tokens.data(), tokens.data()};
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    const auto begin = Clock::now();
    step.run(batch);
    if (i > 2) times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return std::clamp(lower_quartile(times) / expected_seconds(step.kernels(), alone), 0.8, 3.0);
}

// MeasurementStore entries, for a team of this size and arrays of this length.
constexpr std::pair<const char*, double KernelRates::*> kFields[] = {{"fma_gflops", &KernelRates::fma_gflops},
                                                                     {"copy_gbs", &KernelRates::copy_gbs},
                                                                     {"matmul_gflops", &KernelRates::matmul_gflops},
                                                                     {"attention_gflops", &KernelRates::attention_gflops},
                                                                     {"large_matmul_gflops", &KernelRates::large_matmul_gflops},
                                                                     {"large_attention_gflops", &KernelRates::large_attention_gflops},
                                                                     {"cached_gbs", &KernelRates::cached_gbs},
                                                                     {"correction", &KernelRates::correction},
                                                                     {"launch_us", &KernelRates::launch_us}};
std::string prefix_of(const ThreadTeam& team, int64_t memory, Precision precision) {
  return fmt::format("step_time/{}/{}/{}/", team.size(), array_bytes(memory), name(precision));
}
constexpr const char* kOthers = "others";
MeasurementStore own_store() { return MeasurementStore(fingerprint(detect_machine({}))); }

std::string source_text(const KernelRates& r, std::string_view when) {
  return fmt::format("kernels measured on this machine {}{}", when,
                     r.others > kQuiet ? fmt::format(", while others kept {:.0f} % of it busy", 100 * r.others) : "");
}

}  // namespace

KernelRates measure_kernel_rates(ThreadTeam& team, int64_t memory, Precision precision) {
  OthersWatch watch;
  const DType dtype = precision == Precision::bf16 ? DType::bf16 : precision == Precision::fp16 ? DType::f16 : DType::f32;
  KernelRates r;
  // Ceilings are the best of several measurements, so that load from other programs does not lower them.
  for (int i = 0; i < 3; ++i) r.fma_gflops = std::max(r.fma_gflops, measure_fma(team, 0.03, dtype).median);
  for (int i = 0; i < 2; ++i) r.copy_gbs = std::max(r.copy_gbs, measure_bandwidth(team, Movement::copy, 0.07, array_bytes(memory)).median);
  r.matmul_gflops = products_gflops(team, dtype, 768, 128, 512), r.attention_gflops = attention_gflops(team, {dtype, {12, 4, 64, 32}});
  r.large_matmul_gflops = r.matmul_gflops, r.large_attention_gflops = r.attention_gflops;
  if (memory >= kLargeSampleBytes)
    r.large_matmul_gflops = products_gflops(team, dtype, 512, 384, 1536), r.large_attention_gflops = attention_gflops(team, {dtype, {4, 6, 256, 64}});
  const Sample rows = time_program(team, 0.03, [](Builder& b, Graph& g) {
    const NodeId x = g.input({DType::f32, {768, 512}}, "x");
    const int64_t axes[] = {1};
    return Formula{{x}, {b.sub(x, b.mul(b.sum(b.mul(x, x), axes, true), 1e-3))}};
  });
  r.cached_gbs = 1e-9 * rows.bytes / rows.seconds;
  r.launch_us = measure_fork_join(team, 0.005).median;
  for (int i = 0; i < 4; ++i) r.launch_us = std::min(r.launch_us, measure_fork_join(team, 0.005).median);
  if (r.launch_us > 100) r.launch_us = 5;  // the threads never ran together: other programs had the cores
  r.correction = measure_correction(team, r, memory, precision);
  r.others = watch.others();
  r.source = source_text(r, "just now");
  return r;
}

bool are_trusted(const KernelRates& rates, int64_t age_seconds, const std::function<double()>& others_now) {
  return rates.others <= kQuiet || (age_seconds < 600 && others_now() > kQuiet);
}

std::optional<KernelRates> kept_kernel_rates(ThreadTeam& team, int64_t memory, Precision precision, const std::function<double()>& others_now) {
  MeasurementStore store = own_store();
  const std::string prefix = prefix_of(team, memory, precision);
  KernelRates r;
  for (auto [field, member] : kFields) {
    const std::optional<double> known = store.number(prefix + field);
    if (!known || !(*known > 0)) return {};
    r.*member = *known;
  }
  const std::optional<double> others = store.number(prefix + kOthers);
  if (!others) return {};
  r.others = *others;
  if (!are_trusted(r, std::time(nullptr) - store.get(prefix + kOthers)->when, others_now)) return {};
  r.source = source_text(r, "before");
  return r;
}

std::string kept_rates_text(const MeasurementStore& store, int threads) {
  std::set<std::string> formats;
  double others = 0;
  for (const auto& [key, m] : store.all(fmt::format("step_time/{}/", threads))) {
    if (!key.ends_with(std::string("/") + kOthers)) continue;
    const size_t end = key.rfind('/'), begin = key.rfind('/', end - 1) + 1;  // step_time/THREADS/BYTES/FORMAT/others
    formats.insert(key.substr(begin, end - begin));
    others = std::max(others, store.number(key).value_or(0));
  }
  if (formats.empty()) return {};
  std::string text;
  for (const std::string& format : formats) text += (text.empty() ? "kernels in " : ", ") + format;
  return text +
         (others > kQuiet ? fmt::format("; while others kept {:.0f} % of the machine busy, so they are measured again when it is quiet", 100 * others) : "");
}

void keep_kernel_rates(ThreadTeam& team, int64_t memory, Precision precision, const KernelRates& rates) {
  const std::string prefix = prefix_of(team, memory, precision);
  std::vector<NamedMeasurement> rows = {{prefix + kOthers, {.value = fmt::format("{:.3g}", rates.others), .samples = 1}}};
  for (auto [field, member] : kFields) rows.push_back({prefix + field, {.value = fmt::format("{:.6g}", rates.*member), .samples = 1}});
  own_store().put(rows);
}

KernelRates known_kernel_rates(ThreadTeam& team, int64_t memory, Precision precision) {
  if (const std::optional<KernelRates> kept = kept_kernel_rates(team, memory, precision)) return *kept;
  const KernelRates r = measure_kernel_rates(team, memory, precision);
  keep_kernel_rates(team, memory, precision, r);
  return r;
}

double expected_seconds(std::span<const KernelRun> kernels, const KernelRates& r) {
  const double cache = double(last_level_cache_bytes());
  double sum = 0;
  for (const auto& [kernel, times] : kernels) {
    const Family family = family_of(kernel);
    // Interpolates between the kernels of the small and the large sample, by number of operations.
    const double least = family == Family::attention ? 1e7 : 1e8, most = family == Family::attention ? 2e8 : 6e8;
    const double large = std::clamp(std::log(std::max(kernel.flops, 1.0) / least) / std::log(most / least), 0.0, 1.0);
    const double rate =
        family == Family::attention ? std::lerp(r.attention_gflops, r.large_attention_gflops, large) : std::lerp(r.matmul_gflops, r.large_matmul_gflops, large);
    // Operands much larger than the cache come from memory; smaller ones were just written by the previous kernel.
    const double from_memory = std::clamp((kernel.bytes - cache / 2) / cache, 0.0, 1.0);
    const double gbs = 1 / (from_memory / r.copy_gbs + (1 - from_memory) / r.cached_gbs);
    const double arithmetic = family == Family::move ? 0 : kernel.flops / (1e9 * rate), traffic = kernel.bytes / (1e9 * gbs);
    const double slower = std::lerp(r.correction, 1.0, family == Family::move ? from_memory : large);
    sum += double(times) * slower * (std::max(arithmetic, traffic) + 1e-6 * r.launch_us);
  }
  return sum;
}

}  // namespace ridge
