#include "backend/cuda/code.h"

#include <algorithm>
#include <map>

#include "backend/cuda/make.h"
#include "backend/kernel_log.h"
#include "backend/kernel_work.h"
#include "base/error.h"

namespace ridge::cuda {
namespace {

constexpr size_t kMaxRecordings = 8;
constexpr size_t kMaxSeen = kMaxRecordings;
constexpr int64_t kMaxLaunches = 50000;  // longer programs are not recorded but enqueued on every run

// The total for kernels with the same description.
struct KernelTime {
  std::string what;
  int count = 0;
  double ms = 0;
  int64_t bytes = 0;  // size of their operands
};

// Slowest first, with the cumulative share.
void print_times(std::vector<KernelTime> times) {
  double all = 0, sum = 0;
  int count = 0;
  for (const KernelTime& t : times) all += t.ms, count += t.count;
  std::stable_sort(times.begin(), times.end(), [](const KernelTime& a, const KernelTime& b) { return a.ms > b.ms; });
  fmt::print(stderr, "{} kernels, {:.3f} ms\n      ms   of all      sum      times  each ms   GB/s  kernel\n", count, all);
  for (const KernelTime& t : times) {
    sum += t.ms;
    fmt::print(stderr, "{:8.3f}  {:5.1f} %  {:5.1f} %  {:9} {:8.4f}  {:5.0f}  {}\n", t.ms, 100 * t.ms / all, 100 * sum / all, t.count, t.ms / t.count,
               double(t.bytes) / (1e6 * t.ms), t.what);
  }
}

// Kernels that take a few microseconds, so that starting them takes a large part of the time. Loops do not count: the inputs of a step change between steps.
bool has_short_kernels(const CompiledProgram& compiled) {
  constexpr int64_t kMostBytes = int64_t(4) << 20;  // used by a kernel, on average
  const Program& program = compiled.program();
  int64_t bytes = 0;
  for (const ProgramKernel& kernel : program.kernels) {
    if (kernel.loop) return false;
    for (const ProgramOperand& o : kernel.operands)
      if (o.owner) bytes += program.graph.type(o.owner).bytes();
  }
  return bytes <= kMostBytes * std::max<int64_t>(compiled.launches(), 1);
}

}  // namespace

// Keeps everything its kernels load for as long as the code lives.
class CudaCode::OwnLoader final : public Loader {
 public:
  explicit OwnLoader(CudaCode& code) : code_(code) {}
  const Driver& driver() const override { return code_.device_.driver(); }
  const Chip& chip() const override { return code_.device_.chip(); }
  const CublasLt* cublas_lt() const override { return code_.lt_; }
  const Cudnn* cudnn() const override { return code_.cudnn_; }
  void as_library_memory(const std::function<void()>& body) override { code_.device_.metered(&MemoryUse::libraries, body); }
  StreamHandle stream() const override { return code_.device_.stream(); }
  FunctionHandle function(const KernelText& text) override {
    code_.texts_.push_back(code_.modules_.load(code_.prepared(text)));
    return code_.texts_.back()->function;
  }
  std::string choice(const std::string& key) override { return code_.modules_.choice(key); }
  void keep_choice(const std::string& key, const std::string& value) override { code_.modules_.keep_choice(key, value); }
  void record_choice(const std::string& key, const std::string& value) override { code_.modules_.record_choice(key, value); }
  int spilled_bytes(KernelFunction function) override {
    constexpr int kLocalBytes = 3;  // CUfunction_attribute
    int bytes = 0;
    driver().function_attribute(&bytes, kLocalBytes, static_cast<FunctionHandle>(function));
    return bytes;
  }
  double recorded_ms(int64_t bytes, const std::function<void(LaunchSink&, Address)>& work) override {
    constexpr int kRounds = 3;
    constexpr double kRoundMs = 0.5;
    size_t free = 0, total = 0;
    driver().memory_info(&free, &total);
    if (bytes > int64_t(free) / 2) return -1;
    const DeviceMemory memory = allocate(driver(), bytes);
    driver().fill_bytes(memory.get(), 0, size_t(bytes), stream());
    const GraphRun run = code_.record([&](StreamSink& sink) { work(sink, memory.get()); });
    const Event begin = make_event(driver()), end = make_event(driver());
    auto timed = [&](int turns) {
      driver().event_record(begin.get(), stream());
      for (int i = 0; i < turns; ++i) driver().graph_launch(run.get(), stream());
      driver().event_record(end.get(), stream());
      driver().event_wait(end.get());
      float ms = 0;
      driver().event_milliseconds(&ms, begin.get(), end.get());
      return double(ms) / turns;
    };
    timed(1);
    double best = timed(1);
    const int turns = int(std::clamp(kRoundMs / std::max(best, 1e-3), 1.0, 50.0));
    for (int round = 1; round < kRounds; ++round) best = std::min(best, timed(turns));
    return best;
  }

 private:
  CudaCode& code_;
};

CudaCode::CudaCode(Program program, Device& device, Modules& modules, const CublasLt* lt, const Cudnn* cudnn, const CodeOptions& options)
    : device_(device),
      modules_(modules),
      lt_(lt),
      cudnn_(cudnn),
      options_(options),
      compiled_(std::move(program), CudaMaker(device.chip())),
      overlaps_(device.chip().overlaps() && has_short_kernels(compiled_)) {
  addresses_.assign(1 + compiled_.program().inputs.size() + compiled_.program().outputs.size(), 0);
}

CudaCode::~CudaCode() {
  if (!fault_) return;
  try {
    device_.use([&] {
      device_.set_fault_record(fault_);
      recordings_.clear(), texts_.clear();
    });
  } catch (const Error&) {
    // The device is lost, and everything on it with it.
  }
}

void CudaCode::compile_ahead() {
  if (ready_) return;
  std::vector<KernelText> texts = compiled_.texts();
  for (KernelText& text : texts) text = prepared(std::move(text));
  modules_.cubins().ask(texts);
}

void CudaCode::prepare() {
  if (ready_) return;
  compile_ahead();
  device_.use([&] {
    device_.driver().stream_wait(device_.stream());  // kernels may run measurements
    OwnLoader loader(*this);
    compiled_.load(loader);
    std::sort(texts_.begin(), texts_.end());
    texts_.erase(std::unique(texts_.begin(), texts_.end()), texts_.end());
    if (!fault_) fault_ = device_.take_fault();
    ready_ = true;
  });
}

CompiledProgram::Addresses CudaCode::addresses() const {
  const std::span<const DevicePointer> all(addresses_);
  const size_t inputs = compiled_.program().inputs.size();
  return {.arena = all[0],
          .fault = DevicePointer(reinterpret_cast<uintptr_t>(fault_)),
          .empty = device_.empty(),
          .inputs = all.subspan(1, inputs),
          .outputs = all.subspan(1 + inputs)};
}

void CudaCode::run_directly() {
  ++device_.counts.direct;
  StreamSink sink(device_.driver(), device_.stream(), options_.debug);
  compiled_.enqueue(sink, addresses());
}

std::vector<float> CudaCode::time_kernels() {
  const Driver& driver = device_.driver();
  const size_t count = compiled_.program().kernels.size();
  std::vector<Event> events;
  for (size_t i = 0; i <= count; ++i) events.push_back(make_event(driver));
  driver.stream_wait(device_.stream());
  driver.event_record(events[0].get(), device_.stream());
  StreamSink sink(driver, device_.stream());
  compiled_.enqueue(sink, addresses(), [&](size_t kernel) { driver.event_record(events[kernel + 1].get(), device_.stream()); });
  driver.stream_wait(device_.stream());
  std::vector<float> ms(count);
  for (size_t i = 0; i < count; ++i) driver.event_milliseconds(&ms[i], events[i].get(), events[i + 1].get());
  share_times(ms);
  return ms;
}

// Kernels that run in one launch share its time by the bytes that they move. Otherwise the last one would take the time of all, and the others none.
void CudaCode::share_times(std::vector<float>& ms) const {
  for (size_t kernel = 0; kernel < ms.size(); ++kernel) {
    const std::span<const size_t> done = compiled_.done_by(kernel);
    if (done.size() < 2) continue;
    double time = 0, bytes = 0;
    std::vector<double> each;
    for (size_t i : done) time += double(ms[i]), bytes += each.emplace_back(1 + work_of(program(), program().kernels[i]).bytes);
    for (size_t i = 0; i < done.size(); ++i) ms[done[i]] = float(time * each[i] / bytes);
  }
}

// After each kernel, what it has written is copied to the host.
void CudaCode::run_examined(KernelLog& log) {
  std::vector<std::byte> copy;
  const KernelLog::Read read = [&](const Place& place, int64_t bytes) -> const std::byte* {
    copy.resize(size_t(bytes));
    if (bytes) device_.driver().copy_to_host(copy.data(), addresses_[size_t(place.base)] + DevicePointer(place.offset), size_t(bytes), device_.stream());
    device_.driver().stream_wait(device_.stream());
    return copy.data();
  };
  StreamSink sink(device_.driver(), device_.stream());
  compiled_.enqueue(sink, addresses(), [&](size_t kernel) {
    device_.driver().stream_wait(device_.stream());
    for (size_t done : compiled_.done_by(kernel)) log.look(program(), done, read);
  });
}

void CudaCode::run_logged(KernelLog& log) {
  device_.driver().stream_wait(device_.stream());  // what was enqueued before is not part of this run
  LoggedRun run{.program = &program(), .whole = {log_time(), 0}, .kernels = {}, .threads = 0, .busy = {}, .launches = compiled_.launches()};
  const std::vector<float> ms = time_kernels();
  run.whole.end = log_time();
  double at = run.whole.end;
  for (float each : ms) at -= 1e-3 * double(each);  // the last kernel ends when the wait does
  for (float each : ms) run.kernels.push_back({at, at + 1e-3 * double(each)}), at += 1e-3 * double(each);
  log.add(run);
}

void CudaCode::run_timed() {
  const std::vector<float> all = time_kernels();
  std::map<std::string, KernelTime> times;
  for (size_t i = 0; i < all.size(); ++i) {
    const float ms = all[i];
    std::string types;
    int64_t bytes = 0;
    for (const ProgramOperand& o : compiled_.program().kernels[i].operands) {
      if (!o.owner) continue;
      const Type& type = compiled_.program().graph.type(o.owner);
      bytes += type.bytes();
      if (types.size() < 100) types += fmt::format("{}{}", types.empty() ? " " : o.written ? " -> " : ", ", to_string(type));
    }
    KernelTime& t = times[compiled_.describe(i) + types];
    ++t.count, t.ms += double(ms), t.bytes += bytes;
  }
  std::vector<KernelTime> list;
  for (auto& [what, t] : times) t.what = what, list.push_back(t);
  print_times(std::move(list));
}

KernelText CudaCode::prepared(KernelText text) const {
  text.overlaps = overlaps_;
  return text;
}

CudaCode::GraphRun CudaCode::record_run() {
  auto work = [&](StreamSink& sink) { compiled_.enqueue(sink, addresses()); };
  if (overlaps_ && overlap_recorded_) try {
      return record(work, true);
    } catch (const DriverError& error) {
      if (error.lost()) throw;
      overlap_recorded_ = false;  // a driver that launches such kernels but cannot record them
    }
  return record(work);
}

CudaCode::GraphRun CudaCode::record(const std::function<void(StreamSink&)>& work, bool overlap) {
  constexpr int kRelaxed = 2;  // lets other threads allocate during the recording
  const Driver& driver = device_.driver();
  using Graph = Owned<GraphHandle, DriverCall<GraphHandle>>;
  GraphHandle recorded = nullptr;
  driver.capture_begin(device_.stream(), kRelaxed);
  try {
    StreamSink sink(driver, device_.stream(), false, overlap);
    work(sink);
  } catch (...) {
    driver.capture_end.quietly(device_.stream(), &recorded);
    if (recorded) driver.graph_destroy.quietly(recorded);
    throw;
  }
  driver.capture_end(device_.stream(), &recorded);
  const Graph graph(recorded, driver.graph_destroy);
  GraphRunHandle run = nullptr;
  driver.graph_instantiate(&run, graph.get(), 0);
  return {run, driver.graph_run_destroy};
}

bool CudaCode::seen_before() {
  uint64_t hash = 0xcbf29ce484222325;
  for (DevicePointer p : addresses_) hash = (hash ^ p) * 0x100000001b3, hash ^= hash >> 29;
  if (std::find(seen_.begin(), seen_.end(), hash) != seen_.end()) return true;
  if (seen_.size() < kMaxSeen)
    seen_.push_back(hash);
  else
    seen_[next_seen_++ % kMaxSeen] = hash;
  return false;
}

void CudaCode::run(std::byte* arena, std::span<const void* const> inputs, std::span<void* const> outputs) {
  prepare();
  device_.use([&] {
    device_.raise_fault(*fault_);
    auto address = [](const void* p) { return DevicePointer(reinterpret_cast<uintptr_t>(p)); };
    addresses_[0] = address(arena);
    for (size_t i = 0; i < inputs.size(); ++i) addresses_[1 + i] = address(inputs[i]);
    for (size_t i = 0; i < outputs.size(); ++i) addresses_[1 + inputs.size() + i] = address(outputs[i]);
    if (KernelLog* log = current_log()) return log->looks() ? run_examined(*log) : run_logged(*log);
    if (options_.timed && runs_ < options_.timed && ++runs_ == options_.timed) return run_timed();
    if (options_.debug || compiled_.launches() > kMaxLaunches) return run_directly();

    auto at = std::find_if(recordings_.begin(), recordings_.end(), [&](const Recording& r) { return r.addresses == addresses_; });
    if (at == recordings_.end()) {
      // Addresses that are used only once are not worth a recording.
      if (!seen_before()) return run_directly();
      device_.metered(&MemoryUse::graphs, [&] { recordings_.push_front({addresses_, record_run()}); });
      ++device_.counts.recordings;
      if (recordings_.size() > kMaxRecordings) recordings_.pop_back();
    } else if (at != recordings_.begin()) {
      recordings_.splice(recordings_.begin(), recordings_, at);
    }
    ++device_.counts.replays;
    device_.driver().graph_launch(recordings_.front().graph.get(), device_.stream());
  });
}

}  // namespace ridge::cuda
