#include "backend/cuda/matmul_tune.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "backend/cuda/prelude.h"

namespace ridge::cuda {
namespace {

constexpr int kProposals = 16;
constexpr int kRounds = 3;  // after the first one
constexpr double kTooSlow = 1.15;
constexpr double kBurstMs = 1.2;  // in each round, a candidate is repeated for about this long

// Numbers between -1 and 1: with zeros the chip would clock higher than in real work.
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

// A factor whose second half along the depth equals its first, or its negative: sums of such factors consist of rounding errors only, so that a different order
// of addition shows even in 16 bits.
constexpr const char* kMirror = R"(
template <class T> RIDGE_INLINE void mirror(T* at, long long rows, long long columns, long long stride, int by_rows, T sign) {
  const long long half = (by_rows ? rows : columns) / 2, count = by_rows ? half * columns : half * rows;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    const long long from = by_rows ? i / half * stride + i % half : i / rows * stride + i % rows;
    at[from + (by_rows ? half : half * stride)] = at[from] ^ sign;
  }
}
extern "C" __global__ void ridge_matmul_mirror(void* at, long long rows, long long columns, long long stride, int by_rows, int negate, int bytes) {
  if (bytes == 2)
    mirror((half_bits*)at, rows, columns, stride, by_rows, (half_bits)(negate ? 0x8000u : 0u));
  else
    mirror((unsigned*)at, rows, columns, stride, by_rows, negate ? 0x80000000u : 0u);
}
)";

// A checksum of a whole result. It sums integers, so that the order of the threads does not matter.
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

int fill_type(DType t) { return t == DType::f32 ? 0 : t == DType::bf16 ? 1 : 2; }

// The memory that a measurement may use temporarily. Large products are measured on a part of them; a larger part is more accurate.
int64_t most_bytes(const Loader& loader) {
  size_t free = 0, total = 0;
  loader.driver().memory_info(&free, &total);
  return std::min(std::clamp(loader.chip().memory_bytes / 64, int64_t(64) << 20, int64_t(2) << 30), int64_t(free) / 4);
}

// Several copies of a call's operands, filled with numbers, so that none is in the cache when it is used.
class Operands {
 public:
  Operands(Loader& loader, const LibraryCall& call, int64_t most, int64_t workspace_bytes) : call_(call), workspace_bytes_(workspace_bytes) {
    const LibraryProduct& p = call.product;
    const MatmulEpilogue& e = call.epilogue;
    // Addresses are no better aligned than those of a run may be, so that an algorithm that needs more fails here.
    auto add = [&](int64_t bytes, int64_t alignment) {
      const int64_t at = set_bytes_ + alignment % 256;
      set_bytes_ += (bytes + alignment + 255) / 256 * 256;
      return at;
    };
    first_ = add(bytes_of(p.first, p.batches), call.alignment_first), second_ = add(bytes_of(p.second, p.batches), call.alignment_second);
    result_ = add(bytes_of(p.result, p.batches), call.alignment_result);
    if (e.bias) bias_ = add(p.result.rows * 4, call.alignment_bias);
    if (e.addend) addend_ = add(bytes_of(like_result(p, e.addend), p.batches), call.alignment_addend);
    if (e.aux) aux_ = add(bytes_of(like_result(p, e.aux), p.batches), 16);
    const int64_t past_cache = 2 * loader.chip().l2_bytes;
    sets_ = std::clamp<int64_t>(past_cache / set_bytes_ + 1, 1, std::max<int64_t>(1, most / set_bytes_));
    sets_ = std::min<int64_t>(sets_, 64);
    memory_ = allocate(loader.driver(), sets_ * set_bytes_ + workspace_bytes + 256);
    const FunctionHandle fill = loader.function(tuning_texts()[0]);
    DevicePointer to = memory_.get();
    long long count = sets_ * set_bytes_ / size_of(p.first.type);
    int type = fill_type(p.first.type);
    unsigned seed = 1;
    void* parameters[] = {&to, &count, &type, &seed};
    loader.driver().launch(fill, blocks(loader, count), 1, 1, 256, 1, 1, 0, loader.stream(), parameters, nullptr);
    // Results are compared on the first set: factors whose sums cancel, and nothing added to them.
    const LibraryAddresses at = set(0);
    mirror(loader, at.first, p.first, p.transpose_first, false), mirror(loader, at.second, p.second, !p.transpose_second, true);
    if (e.bias) loader.driver().fill_bytes(at.bias, 0, size_t(p.result.rows * 4), loader.stream());
    if (e.addend) loader.driver().fill_bytes(at.addend, 0, size_t(bytes_of(like_result(p, e.addend), p.batches)), loader.stream());
  }

  LibraryAddresses set(int64_t turn) const {
    const DevicePointer base = memory_.get() + DevicePointer(turn % sets_ * set_bytes_);
    LibraryAddresses at;
    at.first = base + DevicePointer(first_), at.second = base + DevicePointer(second_), at.result = base + DevicePointer(result_);
    at.bias = base + DevicePointer(bias_), at.addend = base + DevicePointer(addend_), at.aux = base + DevicePointer(aux_);
    at.workspace = memory_.get() + DevicePointer(sets_ * set_bytes_);
    return at;
  }
  // The checksum of the first set's result.
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
  static void mirror(Loader& loader, DevicePointer at, const LibraryMatrix& m, bool depth_by_rows, bool negated) {
    long long rows = m.rows, columns = m.columns, stride = m.stride;
    int by_rows = depth_by_rows, negate = negated, bytes = int(size_of(m.type));
    void* parameters[] = {&at, &rows, &columns, &stride, &by_rows, &negate, &bytes};
    loader.driver().launch(loader.function(tuning_texts()[2]), blocks(loader, rows * columns), 1, 1, 256, 1, 1, 0, loader.stream(), parameters, nullptr);
  }
  static unsigned blocks(const Loader& loader, int64_t count) {
    return unsigned(std::clamp<int64_t>((count + 255) / 256, 1, loader.chip().multiprocessors * 8));
  }

  const LibraryCall& call_;
  int64_t workspace_bytes_, set_bytes_ = 0, sets_ = 1, first_ = 0, second_ = 0, result_ = 0, bias_ = 0, addend_ = 0, aux_ = 0;
  DeviceMemory memory_;
};

struct Candidate {
  int proposal;
  LtHeuristic heuristic;
  uint64_t bits = 0;  // checksum of its result: equal for algorithms that add in the same order
  double ms = 0;
  bool behind = false;  // left out: its time was measured before the chip had slowed down
};

// Times the candidates for a product on a device.
class Contest {
 public:
  Contest(Loader& loader, const LibraryCall& call, int64_t most, int64_t workspace_bytes)
      : loader_(loader),
        driver_(loader.driver()),
        workspace_bytes_(workspace_bytes),
        call_(smaller(call, most)),
        scale_(call.flops() / std::max(call_.flops(), 1.0)),
        operands_(loader, call_, most, workspace_bytes),
        matmul_(*loader.cublas_lt(), call_) {}

  // The proposals that work and give the same bits as the first one that works, with a rough estimate of their times.
  std::vector<Candidate> of_one_kind(std::span<const LtHeuristic> proposals) {
    std::vector<Candidate> all;
    for (size_t i = 0; i < proposals.size(); ++i) {
      Candidate c{int(i), proposals[i]};
      try {
        enqueue(c, 0);
      } catch (const DriverError&) {
        throw;
      } catch (const Error& error) {
        if (error.code() == ErrorCode::memory) throw;
        continue;  // proposed, but refuses the work
      }
      c.bits = operands_.bits(loader_);
      if (!all.empty() && (c.bits != all[0].bits || !comparable(c, all[0]))) continue;
      Candidate* one[] = {&c};
      run_round(one, 0);
      all.push_back(c);
    }
    return all;
  }

  // Runs all candidates in turn, for several rounds, and sorts them by time. There are no pauses, so that, as in a training step, the clock drops to what the
  // power limit allows; algorithms differ in how much that slows them. The first round reaches that state; candidates far behind after it are left out.
  void measure(std::vector<Candidate>& all) {
    std::vector<Candidate*> in;
    for (Candidate& c : all) in.push_back(&c);
    run_round(in, kBurstMs);
    const double best = (*std::min_element(in.begin(), in.end(), [](const Candidate* a, const Candidate* b) { return a->ms < b->ms; }))->ms;
    for (Candidate& c : all) c.behind = c.ms > kTooSlow * best;
    std::erase_if(in, [](const Candidate* c) { return c->behind; });
    std::vector<double> sums(in.size(), 0.0);
    for (int round = 0; round < kRounds; ++round) {
      run_round(in, kBurstMs);
      for (size_t i = 0; i < in.size(); ++i) sums[i] += in[i]->ms;
    }
    for (size_t i = 0; i < in.size(); ++i) in[i]->ms = sums[i] / kRounds;
    for (Candidate& c : all) c.ms *= scale_;
    std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return std::pair(a.behind, a.ms) < std::pair(b.behind, b.ms); });
  }

 private:
  // Both must split sums in the same way, and if they do split them, the whole product must have been compared, because where they split depends on its size.
  bool comparable(const Candidate& a, const Candidate& b) const {
    const LtSums x = sums_of(*loader_.cublas_lt(), a.heuristic.algorithm), y = sums_of(*loader_.cublas_lt(), b.heuristic.algorithm);
    return x == y && (x.parts == 1 || scale_ == 1);
  }

  void enqueue(const Candidate& c, int64_t set) const { matmul_.enqueue(c.heuristic.algorithm, operands_.set(set), workspace_bytes_, loader_.stream()); }

  // Runs each candidate for about this long, one after another; `ms` becomes the time of one call.
  void run_round(std::span<Candidate* const> in, double burst_ms) {
    while (events_.size() <= in.size()) events_.push_back(make_event(driver_));
    std::vector<int> turns;
    driver_.event_record(events_[0].get(), loader_.stream());
    for (size_t i = 0; i < in.size(); ++i) {
      turns.push_back(int(std::clamp(burst_ms / std::max(in[i]->ms, 1e-3), 1.0, 50.0)));
      for (int t = 0; t < turns[i]; ++t) enqueue(*in[i], at_++);
      driver_.event_record(events_[i + 1].get(), loader_.stream());
    }
    driver_.event_wait(events_[in.size()].get());
    for (size_t i = 0; i < in.size(); ++i) {
      float ms = 0;
      driver_.event_milliseconds(&ms, events_[i].get(), events_[i + 1].get());
      in[i]->ms = double(ms) / turns[i];
    }
  }

  Loader& loader_;
  const Driver& driver_;
  int64_t workspace_bytes_;
  LibraryCall call_;
  double scale_;  // factor for times, from the smaller call to the whole
  Operands operands_;
  LibraryMatmul matmul_;
  std::vector<Event> events_;
  int64_t at_ = 0;
};

std::optional<MatmulChoice> chosen(Loader& loader, const LibraryCall& call, std::span<const LtHeuristic> proposals, int64_t workspace_bytes) {
  constexpr int64_t kMin = int64_t(1) << 20;
  std::vector<Candidate> all;
  for (int64_t most = most_bytes(loader); all.empty(); most /= 8) {
    try {
      // Time decides only among candidates that give the bits of the first proposal that works. That proposal depends only on the product, the library and the
      // chip, so every process gets the same bits whatever it measures. With less memory, smaller products are compared.
      Contest contest(loader, call, most, workspace_bytes);
      all = contest.of_one_kind(proposals);
      if (all.empty()) return std::nullopt;
      contest.measure(all);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::memory) throw;
      all.clear();
      if (most < kMin) all = {{0, proposals[0]}};  // no memory to try it, but first proposals nearly always work
    }
  }
  MatmulChoice choice;
  choice.algorithm = all[0].heuristic.algorithm, choice.workspace = int64_t(all[0].heuristic.workspace);
  choice.proposal = all[0].proposal, choice.ms = all[0].ms;
  choice.first_ms = std::min_element(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.proposal < b.proposal; })->ms;
  return choice;
}

}  // namespace

std::vector<KernelText> tuning_texts() {
  return {{"ridge_matmul_fill", std::string(matrix_prelude()) + kFill, 0},
          {"ridge_matmul_bits", std::string(matrix_prelude()) + kBits, 0},
          {"ridge_matmul_mirror", std::string(matrix_prelude()) + kMirror, 0}};
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
  // Ways for which the library has only an older chip's algorithms come last: they may take twice as long.
  std::vector<std::vector<LtHeuristic>> proposals;
  for (const LibraryCall* way : ways) proposals.push_back(LibraryMatmul(*lt, *way).proposals(kProposals, workspace_bytes));
  for (bool recent : {true, false})
    for (size_t w = 0; w < ways.size(); ++w) {
      if (proposals[w].empty() || is_recent(*lt, proposals[w][0].algorithm) != recent) continue;
      const std::string key = fmt::format("product cublasLt {} {} {}", lt->version(), ways[w]->key(), workspace_bytes);
      std::optional<MatmulChoice> choice = MatmulChoice::parse(loader.choice(key));
      if (!choice || choice->workspace > workspace_bytes) {
        choice = chosen(loader, *ways[w], proposals[w], workspace_bytes);
        if (!choice) continue;
        choice->ms > 0 ? loader.keep_choice(key, choice->text()) : loader.record_choice(key, choice->text());
      }
      choice->way = int(w);
      return choice;
    }
  return std::nullopt;
}

}  // namespace ridge::cuda
