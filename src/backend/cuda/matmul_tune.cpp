#include "backend/cuda/matmul_tune.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>
#include <sstream>

#include "backend/cuda/prelude.h"

namespace ridge::cuda {
namespace {

constexpr int kProposals = 16;
constexpr int64_t kSampleBytes = int64_t(1) << 20;
constexpr double kClearly = 0.98;  // of the time: what candidates that give other bits must stay below
constexpr int kRounds = 3;
constexpr double kFarBehind = 1.15;
constexpr double kBurstMs = 0.4;  // a candidate is repeated for about this long in a round

// Numbers between -1 and 1: zeros would let the chip clock higher than real work does.
constexpr const char* kFill = R"(
extern "C" __global__ void ridge_matmul_fill(void* to, long long count, int type, unsigned seed) {
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    unsigned x = (unsigned)i * 2654435761u ^ (unsigned)(i >> 32) ^ seed;
    x ^= x >> 16, x *= 2246822519u, x ^= x >> 13, x *= 3266489917u, x ^= x >> 16;
    float f = (float)(int)(x & 0xffffu) * (1.f / 32768.f) - 1.f;
    if (type == 0)
      ((float*)to)[i] = f;
    else
      ((half_bits*)to)[i] = (half_bits)(type == 1 ? pack_bf16(f, 0.f) : pack_f16(f, 0.f));
  }
}
)";

int number_of(DType t) { return t == DType::f32 ? 0 : t == DType::bf16 ? 1 : 2; }

int64_t bytes_of(const LibraryMatrix& m, int64_t batches) {
  return (m.columns > 0 ? ((m.columns - 1) * m.stride + m.rows + (batches - 1) * m.batch_stride) * size_of(m.type) : 0);
}

// Of memory that a measurement may take for a while. Large products are measured by a part of them, the truer the larger.
int64_t most_bytes(const Loader& loader) {
  size_t free = 0, total = 0;
  loader.driver().memory_info(&free, &total);
  return std::min(std::clamp(loader.chip().memory_bytes / 64, int64_t(64) << 20, int64_t(2) << 30), int64_t(free) / 4);
}

// Memory for several copies of a call's operands, so that none is found in the cache, filled with numbers.
class Operands {
 public:
  Operands(Loader& loader, const LibraryCall& call, int64_t most, int64_t workspace_bytes) : call_(call) {
    const LibraryProduct& p = call.product;
    const MatmulEpilogue& e = call.epilogue;
    auto like = [&](const MatmulArray& a) { return LibraryMatrix{a.type, p.result.rows, p.result.columns, std::max(a.row, p.result.rows), a.batch}; };
    // Addresses are no better aligned than those of a run may be: an algorithm that needs more must fail here.
    auto add = [&](int64_t bytes, int64_t alignment) {
      const int64_t at = set_bytes_ + alignment % 256;
      set_bytes_ += (bytes + alignment + 255) / 256 * 256;
      return at;
    };
    first_ = add(bytes_of(p.first, p.batches), call.alignment_first), second_ = add(bytes_of(p.second, p.batches), call.alignment_second);
    result_ = add(bytes_of(p.result, p.batches), call.alignment_result);
    if (e.bias) bias_ = add(p.result.rows * 4, call.alignment_bias);
    if (e.addend) addend_ = add(bytes_of(like(e.addend), p.batches), call.alignment_addend);
    if (e.aux) aux_ = add(bytes_of(like(e.aux), p.batches), 16);
    const int64_t past_cache = 2 * loader.chip().l2_bytes;
    sets_ = std::clamp<int64_t>(past_cache / set_bytes_ + 1, 1, std::max<int64_t>(1, most / set_bytes_));
    sets_ = std::min<int64_t>(sets_, 64);
    memory_ = allocate(loader.driver(), sets_ * set_bytes_ + workspace_bytes + 256);
    const FunctionHandle fill = loader.function({"ridge_matmul_fill", std::string(matrix_prelude()) + kFill, 0});
    DevicePointer to = memory_.get();
    long long count = sets_ * set_bytes_ / size_of(p.first.type);
    int type = number_of(p.first.type);
    unsigned seed = 1;
    void* parameters[] = {&to, &count, &type, &seed};
    const unsigned blocks = unsigned(std::min<int64_t>((count + 255) / 256, loader.chip().multiprocessors * 8));
    loader.driver().launch(fill, blocks, 1, 1, 256, 1, 1, 0, loader.stream(), parameters, nullptr);
  }

  LibraryAddresses set(int64_t turn) const {
    const DevicePointer base = memory_.get() + DevicePointer(turn % sets_ * set_bytes_);
    LibraryAddresses at;
    at.first = base + DevicePointer(first_), at.second = base + DevicePointer(second_), at.result = base + DevicePointer(result_);
    at.bias = base + DevicePointer(bias_), at.addend = base + DevicePointer(addend_), at.aux = base + DevicePointer(aux_);
    at.workspace = memory_.get() + DevicePointer(sets_ * set_bytes_);
    return at;
  }
  // What a call has left in the first set's result, as far as it is looked at.
  uint64_t bits(Loader& loader) const {
    std::string sample(size_t(std::min(bytes_of(call_.product.result, call_.product.batches), kSampleBytes)), '\0');
    loader.driver().copy_to_host(sample.data(), set(0).result, sample.size(), loader.stream());
    loader.driver().stream_wait(loader.stream());
    return std::hash<std::string>()(sample);
  }
  DevicePointer memory() const { return memory_.get(); }
  int64_t bytes() const { return sets_ * set_bytes_; }

 private:
  const LibraryCall& call_;
  int64_t set_bytes_ = 0, sets_ = 1, first_ = 0, second_ = 0, result_ = 0, bias_ = 0, addend_ = 0, aux_ = 0;
  DeviceMemory memory_;
};

class Clock {
 public:
  explicit Clock(Loader& loader) : driver_(loader.driver()), stream_(loader.stream()), begin_(make_event(driver_)), end_(make_event(driver_)) {}

  // Milliseconds of one turn, in a burst that is long enough to be told from noise; `guess` is about what one takes.
  template <class Turn>
  double measure(const Turn& turn, double guess) {
    return burst(turn, int(std::clamp(kBurstMs / std::max(guess, 1e-3), 1.0, 50.0)));
  }
  template <class Turn>
  double once(const Turn& turn) {
    return burst(turn, 1);
  }

 private:
  template <class Turn>
  double burst(const Turn& turn, int turns) {
    driver_.event_record(begin_.get(), stream_);
    for (int i = 0; i < turns; ++i) turn(at_++);
    driver_.event_record(end_.get(), stream_);
    driver_.event_wait(end_.get());
    float ms = 0;
    driver_.event_milliseconds(&ms, begin_.get(), end_.get());
    return double(ms) / turns;
  }

  const Driver& driver_;
  StreamHandle stream_;
  Event begin_, end_;
  int64_t at_ = 0;
};

// Bytes per millisecond that a kernel which reads and writes memory reaches, by a copy.
double copy_rate(Loader& loader, Clock& clock, const Operands& operands) {
  const std::string key = "matmul copy rate";
  if (const std::string known = loader.choice(key); !known.empty()) return std::stod(known);
  const int64_t half = operands.bytes() / 2 / 256 * 256;
  if (half < (int64_t(64) << 20)) return 0;
  auto copy = [&](int64_t) { loader.driver().copy_on_device(operands.memory() + DevicePointer(half), operands.memory(), size_t(half), loader.stream()); };
  clock.once(copy);
  const double ms = clock.measure(copy, clock.once(copy));
  const double rate = 2 * double(half) / ms;
  loader.keep_choice(key, fmt::format("{:.6g}", rate));
  return rate;
}

struct Candidate {
  int way, proposal;
  LtHeuristic heuristic;
  bool broken = false;
  double ms = 0, total = 0;  // of the call, and with what comes after it
  uint64_t bits = 0;         // of what it gave: equal for candidates that sum in the same order
};

// The fastest, but one that gives other bits than the library's first proposal only if it is clearly faster: so noise in measurements does
// not change results from one process to the next.
const Candidate* best_of(const std::vector<Candidate>& all) {
  const Candidate *first = nullptr, *same = nullptr, *best = nullptr;
  for (const Candidate& c : all) {
    if (c.broken) continue;
    if (!first) first = &c;
    if (!best || c.total < best->total) best = &c;
    if (c.way == first->way && c.bits == first->bits && (!same || c.total < same->total)) same = &c;
  }
  return best && best->total < kClearly * same->total ? best : same;
}

}  // namespace

std::string MatmulChoice::text() const {
  std::string out = fmt::format("{} {} {} ", way, proposal, workspace);
  for (uint64_t word : algorithm.data) out += fmt::format("{:016x}", word);
  return out + fmt::format(" {:.5g} {:.5g}", ms, first_ms);
}

std::optional<MatmulChoice> MatmulChoice::parse(const std::string& text) {
  std::istringstream in(text);
  MatmulChoice c;
  std::string hex;
  if (!(in >> c.way >> c.proposal >> c.workspace >> hex) || hex.size() != 128 || c.way < 0 || c.workspace < 0) return std::nullopt;
  for (size_t i = 0; i < 8; ++i) {
    const char* from = hex.data() + 16 * i;
    if (std::from_chars(from, from + 16, c.algorithm.data[i], 16).ptr != from + 16) return std::nullopt;
  }
  in >> c.ms >> c.first_ms;
  return c;
}

std::optional<MatmulChoice> choose_matmul(Loader& loader, std::span<const MatmulWay> ways, int64_t workspace_bytes) {
  const CublasLt* lt = loader.cublas_lt();
  if (!lt || ways.empty()) return std::nullopt;
  std::string key = fmt::format("matmul cublasLt {} ", lt->version());
  for (const MatmulWay& w : ways) key += fmt::format("{} +{} | ", w.call->key(), w.bytes_after);
  key += fmt::format("{}", workspace_bytes);
  if (const auto known = MatmulChoice::parse(loader.choice(key)))
    if (size_t(known->way) < ways.size() && known->workspace <= workspace_bytes) return known;

  std::vector<Candidate> candidates;
  for (size_t w = 0; w < ways.size(); ++w) {
    const std::vector<LtHeuristic> found = LibraryMatmul(*lt, *ways[w].call).proposals(kProposals, workspace_bytes);
    for (size_t i = 0; i < found.size(); ++i) candidates.push_back({int(w), int(i), found[i]});
  }
  if (candidates.empty()) return std::nullopt;
  Clock clock(loader);
  const int64_t most = most_bytes(loader);
  double rate = 0;
  for (size_t w = 0; w < ways.size(); ++w) {
    const LibraryCall small = smaller(*ways[w].call, most);
    const double scale = ways[w].call->flops() / std::max(small.flops(), 1.0);
    std::unique_ptr<Operands> operands;
    std::unique_ptr<LibraryMatmul> matmul;
    // All in turn, and again: a clock that changes does so for all. Those that are far behind are left out soon.
    double best = 0;
    for (int round = 0; round < kRounds; ++round)
      for (Candidate& c : candidates) {
        if (c.way != int(w) || c.broken || (round > 0 && c.ms > kFarBehind * best)) continue;
        if (!operands) {
          operands = std::make_unique<Operands>(loader, small, most, workspace_bytes);
          matmul = std::make_unique<LibraryMatmul>(*lt, small);
          if (ways[w].bytes_after && rate == 0) rate = copy_rate(loader, clock, *operands);
        }
        auto turn = [&](int64_t set) { matmul->enqueue(c.heuristic.algorithm, operands->set(set), workspace_bytes, loader.stream()); };
        try {
          if (round == 0) {
            turn(0);
            c.bits = operands->bits(loader);
            c.ms = scale * clock.once(turn);
          }
          const double ms = scale * clock.measure(turn, c.ms / scale);
          c.ms = round == 0 ? ms : std::min(c.ms, ms);
        } catch (const DriverError&) {
          throw;
        } catch (const Error&) {
          c.broken = true;  // an algorithm that was proposed, and refuses the work
          continue;
        }
        best = best == 0 ? c.ms : std::min(best, c.ms);
        c.total = c.ms + (rate > 0 ? double(ways[w].bytes_after) / rate : 0);
      }
    loader.driver().stream_wait(loader.stream());
  }
  const Candidate* best = best_of(candidates);
  if (!best) return std::nullopt;
  MatmulChoice chosen;
  chosen.way = best->way, chosen.algorithm = best->heuristic.algorithm, chosen.workspace = int64_t(best->heuristic.workspace);
  chosen.proposal = best->proposal, chosen.ms = best->ms;
  for (const Candidate& c : candidates)
    if (c.way == best->way && c.proposal == 0) chosen.first_ms = c.ms;
  loader.keep_choice(key, chosen.text());
  return chosen;
}

}  // namespace ridge::cuda
