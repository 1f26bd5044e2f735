#include "backend/cuda/device.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "drivers/nvml.h"
#include "graph/ops/class_error.h"

namespace ridge::cuda {
namespace {

constexpr size_t kMarks = 256;
constexpr size_t kFaultsPerPage = 128;
constexpr int64_t kEmptyBytes = 256;
constexpr int kNoMemory = 2;

Event make_mark(const Driver& driver) {
  constexpr unsigned kNoTiming = 2;
  EventHandle handle = nullptr;
  driver.event_create(&handle, kNoTiming);
  return {handle, driver.event_destroy};
}

// Free memory according to NVML, because without a context the driver cannot be asked. 0: unknown.
int64_t free_without_context(const Driver& driver, int device) {
  int (*bus)(char*, int, int) = nullptr;
  char id[32] = {};
  if (!driver.library().bind(bus, "cuDeviceGetPCIBusId") || bus(id, int(sizeof id) - 1, device) != 0) return 0;
  std::string why;
  const std::unique_ptr<Nvml> nvml = Nvml::open(nvml_library(), why);
  if (!nvml) return 0;
  auto lower = [](std::string s) {
    for (char& c : s) c = char(std::tolower(static_cast<unsigned char>(c)));
    return s;
  };
  for (int i = 0; i < nvml->count(); ++i)
    if (lower(nvml->pci(i)).ends_with(lower(id))) return nvml->read(i).memory_free;
  return 0;
}

}  // namespace

// A ring of segments, each reused when its copies are done. By then the driver has finished with it, however it handles memory that is not pinned.
struct Device::Staging {
  static constexpr int64_t kSegment = int64_t(2) << 20;
  static constexpr int kSegments = 8;

  Staging(const Driver& driver, bool wants_pinned) : driver(driver) {
    if (wants_pinned)
      pinned = allocate_pinned(driver, kSegments * kSegment);
    else
      pageable = std::make_unique<std::byte[]>(kSegments * kSegment);
    for (int i = 0; i < kSegments; ++i) done.push_back(make_mark(driver)), pending.push_back(false);
  }
  std::byte* segment(int i) const { return (pageable ? pageable.get() : static_cast<std::byte*>(pinned.get())) + i * kSegment; }

  // Returns room for this many bytes, at most a segment. Moving to the next segment marks the copies from the previous one.
  std::byte* room(int64_t bytes, StreamHandle stream) {
    if (at + bytes > kSegment) {
      mark(current, stream);
      current = (current + 1) % kSegments, at = 0;
      finish(current);
    }
    std::byte* p = segment(current) + at;
    at += (bytes + 63) / 64 * 64;
    return p;
  }
  void mark(int i, StreamHandle stream) { driver.event_record(done[size_t(i)].get(), stream), pending[size_t(i)] = true; }
  void finish(int i) {
    if (pending[size_t(i)]) driver.event_wait(done[size_t(i)].get());
    pending[size_t(i)] = false;
  }

  const Driver& driver;
  PinnedMemory pinned;
  std::unique_ptr<std::byte[]> pageable;  // used instead of `pinned`
  std::vector<Event> done;
  std::vector<char> pending;
  int current = 0;
  int64_t at = 0;
};

Device::Device(int index, const std::string& driver) : driver_(driver) {
  int count = 0;
  driver_.device_count(&count);
  if (index < 0 || index >= count) fail(ErrorCode::usage, "[cuda] there is no device {}: the driver reports {}, numbered from 0", index, count);
  int device = 0;
  driver_.device_get(&device, index);
  const int64_t before = free_without_context(driver_, device);
  driver_.context_retain(&context_handle_, device);
  context_ = Context(device, driver_.context_release);
  driver_.context_use(context_handle_);
  chip_ = chip_of(driver_, device);
  if (!chip_.at_least(7, 5))
    fail(ErrorCode::unsupported, "[cuda] {} has compute capability {}.{}; Ridge's kernels need 7.5 or newer", chip_.name, chip_.major, chip_.minor);
  stream_ = make_stream(driver_);
  empty_ = cuda::allocate(driver_, kEmptyBytes);
  if (before) use_.context = std::max<int64_t>(0, before - free_bytes());
}

Device::~Device() {
  driver_.context_use.quietly(context_handle_);
  finish_copies();
}

void Device::report_lost(const DriverError& error) const {
  constexpr std::string_view kHead = "[cuda] the device was lost: ";
  if (std::string_view(error.what()).starts_with(kHead)) throw error;
  throw DriverError(error.result(), fmt::format("{}{}. Its contents are gone; the last checkpoint is intact: resume from it. RIDGE_CUDA_DEBUG=1 finds the "
                                                "kernel at fault",
                                                kHead, error.what()));
}

DevicePointer Device::allocate(int64_t bytes) {
  if (bytes <= 0) return 0;
  DevicePointer p = 0;
  if (const int code = driver_.memory_alloc.quietly(&p, size_t(bytes))) {
    if (code != kNoMemory) driver_.refuse(driver_.memory_alloc.symbol(), code, "for " + size_text(bytes));
    const MemoryUse m = memory();
    fail(ErrorCode::memory,
         "[memory] {} could not be allocated on {}: {} of {} are free, and this process uses {}; request less, or stop the programs that use the rest",
         size_text(bytes), chip_.name, size_text(m.free), size_text(m.total), size_text(m.asked + m.held()));
  }
  use_.asked += bytes;
  driver_.fill_bytes(p, 0, size_t(bytes), stream());
  return p;
}

void Device::release(DevicePointer p, int64_t bytes) {
  if (!p) return;
  finish_copies();
  driver_.memory_free.quietly(p);
  use_.asked -= bytes;
}

std::byte* Device::allocate_host(int64_t bytes) {
  if (bytes <= 0) return nullptr;
  void* p = nullptr;
  if (const int code = driver_.pinned_alloc.quietly(&p, size_t(bytes), 0)) {
    if (code == kNoMemory) fail(ErrorCode::memory, "[memory] {} of host memory could not be pinned; request less", size_text(bytes));
    driver_.refuse(driver_.pinned_alloc.symbol(), code, fmt::format("for {} of pinned memory", size_text(bytes)));
  }
  std::memset(p, 0, size_t(bytes));
  return static_cast<std::byte*>(p);
}

void Device::finish_copies() {
  for (const Stream* own : {&stream_, &in_, &out_})
    if (own->get()) driver_.stream_wait.quietly(own->get());
}

void Device::release_host(std::byte* p) {
  if (!p) return;
  finish_copies();
  driver_.pinned_free.quietly(p);
}

void Device::use_pinned(bool wanted) {
  if (pinned_ == wanted) return;
  finish_copies();
  up_.reset(), down_.reset();
  pinned_ = wanted;
}

void Device::upload(DevicePointer to, const void* from, int64_t bytes) {
  if (!up_) up_ = std::make_unique<Staging>(driver_, pinned_);
  auto* source = static_cast<const std::byte*>(from);
  for (int64_t at = 0; at < bytes; at += Staging::kSegment) {
    const int64_t piece = std::min(bytes - at, Staging::kSegment);
    std::byte* p = up_->room(piece, stream());
    std::memcpy(p, source + at, size_t(piece));
    driver_.copy_to_device(to + DevicePointer(at), p, size_t(piece), stream());
  }
}

// While one segment is copied out, the next ones are filled.
void Device::download(void* to, DevicePointer from, int64_t bytes) {
  if (!down_) down_ = std::make_unique<Staging>(driver_, pinned_);
  auto* target = static_cast<std::byte*>(to);
  const int64_t pieces = (bytes + Staging::kSegment - 1) / Staging::kSegment;
  auto size = [&](int64_t i) { return size_t(std::min(bytes - i * Staging::kSegment, Staging::kSegment)); };
  auto begin = [&](int64_t i) {
    const int segment = int(i % Staging::kSegments);
    driver_.copy_to_host(down_->segment(segment), from + DevicePointer(i * Staging::kSegment), size(i), stream());
    down_->mark(segment, stream());
  };
  for (int64_t i = 0; i < std::min<int64_t>(pieces, Staging::kSegments); ++i) begin(i);
  for (int64_t i = 0; i < pieces; ++i) {
    const int segment = int(i % Staging::kSegments);
    down_->finish(segment);
    std::memcpy(target + i * Staging::kSegment, down_->segment(segment), size(i));
    if (i + Staging::kSegments < pieces) begin(i + Staging::kSegments);
  }
  raise_faults();
}

int64_t Device::mark() {
  const size_t at = size_t(marks_) % kMarks;
  if (at == events_.size()) events_.push_back(make_mark(driver_));
  if (marks_ >= int64_t(kMarks)) wait_event(marks_ + 1 - int64_t(kMarks));  // its event is reused
  driver_.event_record(events_[at].get(), stream());
  return ++marks_;
}

void Device::wait_event(int64_t mark) {
  if (mark <= done_) return;
  driver_.event_wait(events_[size_t(mark - 1) % kMarks].get());
  done_ = mark;
}

void Device::wait_for(int64_t mark) {
  wait_event(std::min(mark, marks_));
  raise_faults();
}

StreamHandle Device::stream(Queue queue) {
  if (queue == Queue::work) return stream();
  Stream& own = queue == Queue::in ? in_ : out_;
  if (!own.get()) own = make_stream(driver_);
  return own.get();
}

void Device::order(Queue first, Queue then) {
  if (first == then) return;
  Event& event = order_[size_t(first)];
  if (!event.get()) event = make_mark(driver_);
  driver_.event_record(event.get(), stream(first));
  driver_.stream_wait_event(stream(then), event.get(), 0);
}

void Device::wait() {
  for (const Stream* own : {&in_, &out_})
    if (own->get()) driver_.stream_wait(own->get());
  driver_.stream_wait(stream());
  done_ = marks_;
  raise_faults();
}

FaultRecord* Device::take_fault() {
  if (free_faults_.empty()) {
    fault_pages_.push_back(allocate_pinned(driver_, int64_t(kFaultsPerPage * sizeof(FaultRecord))));
    auto* records = static_cast<FaultRecord*>(fault_pages_.back().get());
    for (size_t i = kFaultsPerPage; i-- > 0;) free_faults_.push_back(new (records + i) FaultRecord);
  }
  FaultRecord* record = free_faults_.back();
  free_faults_.pop_back();
  return record;
}

void Device::set_fault_record(FaultRecord* record) {
  driver_.stream_wait.quietly(stream());
  if (std::atomic_ref(record->raised).load(std::memory_order_acquire) != 0) return;  // the next call that waits reports it
  *record = {};
  free_faults_.push_back(record);
}

void Device::raise_fault(FaultRecord& record) {
  if (std::atomic_ref(record.raised).load(std::memory_order_acquire) == 0) return;
  driver_.stream_wait(stream());  // later runs may have found it too
  const FaultRecord fault = record;
  record = {};
  if (fault.position >= 0) fail(ErrorCode::value, "{}", class_error(fault.value, fault.position, fault.limit));
  fail(ErrorCode::value, "[run] index {} is out of range: valid are 0 to {}", fault.value, fault.limit - 1);
}

void Device::raise_faults() {
  for (const PinnedMemory& page : fault_pages_)
    for (size_t i = 0; i < kFaultsPerPage; ++i) raise_fault(static_cast<FaultRecord*>(page.get())[i]);
}

int64_t Device::free_bytes() const {
  size_t free = 0, total = 0;
  return driver_.memory_info.quietly(&free, &total) == 0 ? int64_t(free) : 0;
}

MemoryUse Device::memory() const {
  MemoryUse use = use_;
  size_t free = 0, total = 0;
  driver_.memory_info(&free, &total);
  use.free = int64_t(free), use.total = int64_t(total);
  return use;
}

}  // namespace ridge::cuda
