#include "io/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/atomic_file.h"

namespace ridge {
namespace {

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ 0x82f63b78 : value >> 1;
    table[i] = value;
  }
  return table;
}

// Masked CRCs, as records store them: rotated and offset, so that checksumming data that contains checksums still works well.
uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8; }

// Protocol buffers: a field is its number and kind, then the value.
enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void add_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += char(value | 0x80);
  out += char(value);
}

template <class T>
void add_fixed(std::string& out, T value) {
  for (size_t i = 0; i < sizeof value; ++i) out += char(value >> 8 * i);
}

void add_key(std::string& out, uint32_t field, Wire wire) { add_varint(out, field << 3 | wire); }

void add_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  add_key(out, field, kBytes);
  add_varint(out, bytes.size());
  out += bytes;
}

void add_number(std::string& out, uint32_t field, uint64_t value) {
  add_key(out, field, kVarint);
  add_varint(out, value);
}

// Field numbers in use, by message.
namespace event {
constexpr uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace summary {
constexpr uint32_t kValue = 1, kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
}

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0 || !name[0]) return "host";
  return name;
}

double wall_time() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> table = crc_table();
  uint32_t crc = ~uint32_t(0);
  for (const char byte : bytes) crc = crc >> 8 ^ table[(crc ^ uint8_t(byte)) & 0xff];
  return ~crc;
}

TensorboardFile::TensorboardFile(std::filesystem::path folder, int64_t first_step) : folder_(std::move(folder)) {
  add_event(0, event::kFileVersion, "brain.Event:2");
  if (first_step > 0) {
    // Resuming in the middle: readers discard what earlier files contain for this step and later ones.
    std::string log;
    constexpr uint32_t kStatus = 1, kStart = 1;
    add_number(log, kStatus, kStart);
    add_event(first_step, event::kSessionLog, log);
  }
  try {
    flush();
  } catch (const Error&) {
    // The next flush reports it.
  }
}

void TensorboardFile::open() {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) fail(ErrorCode::io, "[tensorboard] cannot create the folder {}: {}; {}", folder_.string(), error.message(), file_remedy(error.value()));
  // The time comes first, zero-padded: TensorBoard reads the files of a folder in name order.
  const double now = wall_time();
  for (int number = 0; file_ < 0; ++number) {
    const std::filesystem::path path = folder_ / fmt::format("events.out.tfevents.{:010.0f}.{}.{}.{}", std::floor(now), host_name(), ::getpid(), number);
    file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (const int cause = errno; file_ < 0 && cause != EEXIST)
      fail(ErrorCode::io, "[tensorboard] {}: cannot be created: {}; {}", path.string(), std::strerror(cause), file_remedy(cause));
    path_ = path;
  }
}

TensorboardFile::~TensorboardFile() {
  try {
    flush();
  } catch (const Error&) {
    // There is nobody left to report to; the run's own metrics are in another file.
  }
  if (file_ >= 0) ::close(file_);
}

void TensorboardFile::add_event(int64_t step, uint32_t field, std::string_view content) {
  std::string record;
  add_key(record, event::kWallTime, kFixed64);
  add_fixed(record, std::bit_cast<uint64_t>(wall_time()));
  add_number(record, event::kStep, uint64_t(step));
  add_bytes(record, field, content);

  std::string length;
  add_fixed(length, uint64_t(record.size()));
  std::string whole = length;
  add_fixed(whole, masked_crc(length));
  whole += record;
  add_fixed(whole, masked_crc(record));
  if (!waiting_.fits(whole.size())) flush();
  waiting_.add(whole);
}

void TensorboardFile::scalar(std::string_view tag, int64_t step, double value) {
  if (!std::isfinite(value)) return;
  std::string entry, content;
  add_bytes(entry, summary::kTag, tag);
  add_key(entry, summary::kSimpleValue, kFixed32);
  add_fixed(entry, std::bit_cast<uint32_t>(float(value)));
  add_bytes(content, summary::kValue, entry);
  add_event(step, event::kSummary, content);
}

void TensorboardFile::text(std::string_view tag, int64_t step, std::string_view words) {
  constexpr uint32_t kDtype = 1, kShape = 2, kStringValue = 8, kString = 7;  // of a tensor
  constexpr uint32_t kDimension = 2, kSize = 1;                              // of its shape
  constexpr uint32_t kPlugin = 1, kPluginName = 1;                           // of the metadata
  std::string size, shape, tensor, plugin, metadata, entry, content;
  add_number(size, kSize, 1);
  add_bytes(shape, kDimension, size);
  add_number(tensor, kDtype, kString);
  add_bytes(tensor, kShape, shape);
  add_bytes(tensor, kStringValue, words);
  add_bytes(plugin, kPluginName, "text");
  add_bytes(metadata, kPlugin, plugin);
  add_bytes(entry, summary::kTag, tag);
  add_bytes(entry, summary::kTensor, tensor);
  add_bytes(entry, summary::kMetadata, metadata);
  add_bytes(content, summary::kValue, entry);
  add_event(step, event::kSummary, content);
}

void TensorboardFile::flush() {
  if (file_ < 0) open();
  if (waiting_.empty()) return;
  if (const int cause = waiting_.flush(file_); cause != 0)
    fail(ErrorCode::io, "[tensorboard] {}: cannot be written: {}; {}", path_.string(), std::strerror(cause), file_remedy(cause));
  ++writes_;
}

}  // namespace ridge
