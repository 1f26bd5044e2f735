#include "backend/cuda/matmul_tune.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "backend/cuda/prelude.h"

namespace ridge::cuda {
namespace {

constexpr int kProposals = 16;
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

// A number that tells one result from another whole: sums of integers, so that the order of threads is nothing to it.
constexpr const char* kBits = R"(
extern "C" __global__ void ridge_matmul_bits(const half_bits* from, long long count, unsigned long long* to) {
  unsigned long long sum = 0;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    unsigned long long x = (unsigned long long)from[i] + (unsigned long long)i * 0x9E3779B97F4A7C15ull;
    x ^= x >> 31, x *= 0xBF58476D1CE4E5B9ull, x ^= x >> 29;
    sum += x;
  }
  atomicAdd(to, sum);
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
  Operands(Loader& loader, const LibraryCall& call, int64_t most, int64_t workspace_bytes) : call_(call), workspace_bytes_(workspace_bytes) {
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
    const FunctionHandle fill = loader.function(tuning_texts()[0]);
    DevicePointer to = memory_.get();
    long long count = sets_ * set_bytes_ / size_of(p.first.type);
    int type = number_of(p.first.type);
    unsigned seed = 1;
    void* parameters[] = {&to, &count, &type, &seed};
    loader.driver().launch(fill, blocks(loader, count), 1, 1, 256, 1, 1, 0, loader.stream(), parameters, nullptr);
  }

  LibraryAddresses set(int64_t turn) const {
    const DevicePointer base = memory_.get() + DevicePointer(turn % sets_ * set_bytes_);
    LibraryAddresses at;
    at.first = base + DevicePointer(first_), at.second = base + DevicePointer(second_), at.result = base + DevicePointer(result_);
    at.bias = base + DevicePointer(bias_), at.addend = base + DevicePointer(addend_), at.aux = base + DevicePointer(aux_);
    at.workspace = memory_.get() + DevicePointer(sets_ * set_bytes_);
    return at;
  }
  // Of what a call has left in the first set's result.
  uint64_t bits(Loader& loader) const {
    const Driver& driver = loader.driver();
    DevicePointer from = set(0).result, to = memory_.get() + DevicePointer(sets_ * set_bytes_ + workspace_bytes_);
    long long count = bytes_of(call_.product.result, call_.product.batches) / 2;
    uint64_t bits = 0;
    void* parameters[] = {&from, &count, &to};
    driver.fill_bytes(to, 0, sizeof bits, loader.stream());
    driver.launch(loader.function(tuning_texts()[1]), blocks(loader, count), 1, 1, 256, 1, 1, 0, loader.stream(), parameters, nullptr);
    driver.copy_to_host(&bits, to, sizeof bits, loader.stream());
    driver.stream_wait(loader.stream());
    return bits;
  }

 private:
  static unsigned blocks(const Loader& loader, int64_t count) {
    return unsigned(std::clamp<int64_t>((count + 255) / 256, 1, loader.chip().multiprocessors * 8));
  }

  const LibraryCall& call_;
  int64_t workspace_bytes_, set_bytes_ = 0, sets_ = 1, first_ = 0, second_ = 0, result_ = 0, bias_ = 0, addend_ = 0, aux_ = 0;
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

struct Candidate {
  int proposal;
  LtHeuristic heuristic;
  uint64_t bits = 0;  // of what it gave: equal for those that add in the same order
  double ms = 0;
};

// The proposals that give the bits of the first, the fastest first. Time decides among these alone, and who is among them depends on the
// product, the library and the chip: so every process gets the same bits, whatever its measurements say.
std::vector<Candidate> measured(Loader& loader, const LibraryCall& whole, std::span<const LtHeuristic> proposals, int64_t workspace_bytes) {
  const int64_t most = most_bytes(loader);
  const LibraryCall call = smaller(whole, most);
  const double scale = whole.flops() / std::max(call.flops(), 1.0);
  const Operands operands(loader, call, most, workspace_bytes);
  const LibraryMatmul matmul(*loader.cublas_lt(), call);
  Clock clock(loader);
  auto turn = [&](const Candidate& c) {
    return [&](int64_t set) { matmul.enqueue(c.heuristic.algorithm, operands.set(set), workspace_bytes, loader.stream()); };
  };
  std::vector<Candidate> all;
  for (size_t i = 0; i < proposals.size(); ++i) {
    Candidate c{int(i), proposals[i]};
    try {
      turn(c)(0);
    } catch (const DriverError&) {
      throw;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::memory) throw;
      continue;  // an algorithm that was proposed, and refuses the work
    }
    c.bits = operands.bits(loader);
    if (!all.empty() && c.bits != all[0].bits) continue;
    c.ms = scale * clock.once(turn(c));
    all.push_back(c);
  }
  // All in turn, and again: a clock that changes does so for all. Those that are far behind are left out soon.
  double best = 0;
  for (int round = 0; round < kRounds; ++round)
    for (Candidate& c : all) {
      if (round > 0 && c.ms > kFarBehind * best) continue;
      const double ms = scale * clock.measure(turn(c), c.ms / scale);
      c.ms = round == 0 ? ms : std::min(c.ms, ms);
      best = best == 0 ? c.ms : std::min(best, c.ms);
    }
  loader.driver().stream_wait(loader.stream());
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.ms < b.ms; });
  return all;
}

std::optional<MatmulChoice> chosen(Loader& loader, const LibraryCall& call, int64_t workspace_bytes) {
  const std::vector<LtHeuristic> proposals = LibraryMatmul(*loader.cublas_lt(), call).proposals(kProposals, workspace_bytes);
  if (proposals.empty()) return std::nullopt;
  std::vector<Candidate> all;
  try {
    all = measured(loader, call, proposals, workspace_bytes);
    if (all.empty()) return std::nullopt;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::memory) throw;
    all = {{0, proposals[0]}};  // there is no room to measure in: it gives the same bits, and is seldom far behind
  }
  MatmulChoice choice;
  choice.algorithm = all[0].heuristic.algorithm, choice.workspace = int64_t(all[0].heuristic.workspace);
  choice.proposal = all[0].proposal, choice.ms = all[0].ms;
  choice.first_ms = std::min_element(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.proposal < b.proposal; })->ms;
  return choice;
}

}  // namespace

std::vector<KernelText> tuning_texts() {
  return {{"ridge_matmul_fill", std::string(matrix_prelude()) + kFill, 0}, {"ridge_matmul_bits", std::string(matrix_prelude()) + kBits, 0}};
}

std::string MatmulChoice::text() const {
  std::string out = fmt::format("{} {} ", proposal, workspace);
  for (uint64_t word : algorithm.data) out += fmt::format("{:016x}", word);
  return out + fmt::format(" {:.5g} {:.5g}", ms, first_ms);
}

std::optional<MatmulChoice> MatmulChoice::parse(const std::string& text) {
  std::istringstream in(text);
  MatmulChoice c;
  std::string hex;
  if (!(in >> c.proposal >> c.workspace >> hex) || hex.size() != 128 || c.workspace < 0) return std::nullopt;
  for (size_t i = 0; i < 8; ++i) {
    const char* from = hex.data() + 16 * i;
    if (std::from_chars(from, from + 16, c.algorithm.data[i], 16).ptr != from + 16) return std::nullopt;
  }
  in >> c.ms >> c.first_ms;
  return c;
}

std::optional<MatmulChoice> choose_matmul(Loader& loader, std::span<const LibraryCall* const> ways, int64_t workspace_bytes) {
  const CublasLt* lt = loader.cublas_lt();
  if (!lt) return std::nullopt;
  for (size_t w = 0; w < ways.size(); ++w) {
    const std::string key = fmt::format("product cublasLt {} {} {}", lt->version(), ways[w]->key(), workspace_bytes);
    std::optional<MatmulChoice> choice = MatmulChoice::parse(loader.choice(key));
    if (!choice || choice->workspace > workspace_bytes) {
      choice = chosen(loader, *ways[w], workspace_bytes);
      if (!choice) continue;
      if (choice->ms > 0) loader.keep_choice(key, choice->text());
    }
    choice->way = int(w);
    return choice;
  }
  return std::nullopt;
}

}  // namespace ridge::cuda
