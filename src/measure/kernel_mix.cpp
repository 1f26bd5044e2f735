#include "measure/kernel_mix.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include <fmt/core.h>

#include "backend/registry.h"
#include "base/error.h"
#include "graph/builder.h"
#include "machine/utilisation.h"
#include "measure/ceilings.h"
#include "runtime/executable.h"

namespace ridge {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_from(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The other threads of a training run: one gathers batches, one writes lines, one samples the machine.
class Background {
 public:
  Background() {
    using std::chrono::milliseconds;
    every(milliseconds(2), [this, data = std::vector<char>(4 << 20), batch = std::vector<char>(64 << 10), at = size_t(1)]() mutable {
      for (size_t i = 0; i < batch.size(); i += 1024) {
        at = (at * 1103515245 + 12345) % (data.size() - 1024);
        std::memcpy(batch.data() + i, data.data() + at, 1024);
      }
      sink_ += size_t(batch[at % batch.size()]);
    });
    every(milliseconds(10), [this, line = std::string()]() mutable {
      line.clear();
      for (int i = 1; i <= 20; ++i) line += fmt::format("\"step\": {}, \"loss\": {:.6f}, ", i, 1.0 / i);
      sink_ += line.size();
    });
    every(milliseconds(50),
          [this, sampler = std::make_shared<UtilisationSampler>(std::vector<CpuGroup>{{"", {0}}})] { sink_ += size_t(sampler->sample().cpus.size()); });
  }
  ~Background() {
    stop_ = true;
    for (std::thread& t : threads_) t.join();
  }
  Background(const Background&) = delete;

 private:
  template <class Work>
  void every(std::chrono::milliseconds pause, Work work) {
    threads_.emplace_back([this, pause, work = std::move(work)]() mutable {
      while (!stop_) work(), std::this_thread::sleep_for(pause);
    });
  }
  std::atomic<bool> stop_{false};
  std::atomic<size_t> sink_{0};
  std::vector<std::thread> threads_;
};

// The three kernels with their memory, bound to one team.
class Mix {
 public:
  Mix(const TeamOptions& options, int64_t rows) : team_(std::make_unique<ThreadTeam>(options)), backend_(cpu_backend(*team_)) {
    constexpr int64_t kWidth = 256;
    Graph graph;
    Builder b(graph);
    std::vector<NodeId> inputs{graph.input({DType::f32, {rows, kWidth}}, "x"), graph.input({DType::f32, {kWidth, kWidth}}, "w"),
                               graph.input({DType::f32, {rows, 2 * kWidth}}, "a")};
    const NodeId product = b.matmul(inputs[0], inputs[1]);
    const NodeId moved = b.add(b.mul(inputs[2], inputs[2]), 1.0);
    const int64_t axis[] = {1};
    const NodeId reduced = b.sum(b.mul(inputs[2], 0.5), axis);
    program_ = std::make_unique<Executable>(graph, inputs, std::vector<NodeId>{product, moved, reduced}, *backend_);
    for (const Type& t : program_->input_types()) in_.emplace_back(size_t(t.shape.numel()), 0.5f);
    for (const Type& t : program_->output_types()) out_.emplace_back(size_t(t.shape.numel()));
    for (auto& v : in_) reads_.push_back(v.data());
    for (auto& v : out_) writes_.push_back(v.data());
  }

  // Rounds per second over about this many seconds; the first third only wakes threads and warms caches.
  double rate(double seconds) {
    const auto start = Clock::now();
    do program_->run(reads_, writes_);
    while (seconds_from(start) < seconds / 3);
    const auto warm = Clock::now();
    int rounds = 0;
    do program_->run(reads_, writes_), ++rounds;
    while (seconds_from(start) < seconds);
    return rounds / seconds_from(warm);
  }

 private:
  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Executable> program_;
  std::vector<std::vector<float>> in_, out_;
  std::vector<const void*> reads_;
  std::vector<void*> writes_;
};

}  // namespace

std::vector<double> measure_kernel_mix(const std::vector<TeamOptions>& teams, double seconds) {
  constexpr int kTurns = 3;
  constexpr int64_t kRowsPerThread = 64;  // about 0.1 ms of work per thread
  int most = 1;
  for (const TeamOptions& t : teams) most = std::max(most, t.threads);
  std::vector<std::unique_ptr<Mix>> mixes;
  for (const TeamOptions& t : teams) {
    try {
      mixes.push_back(std::make_unique<Mix>(t, kRowsPerThread * most));
    } catch (const Error&) {  // not enough threads or memory available
      mixes.push_back(nullptr);
    }
  }
  Background background;
  std::vector<std::vector<double>> rates(teams.size());
  for (int turn = 0; turn < kTurns; ++turn)
    for (size_t i = 0; i < teams.size(); ++i)
      if (mixes[i]) rates[i].push_back(mixes[i]->rate(seconds / double(kTurns * teams.size())));
  std::vector<double> medians;
  for (auto& r : rates) medians.push_back(summarize(r).median);
  return medians;
}

}  // namespace ridge
