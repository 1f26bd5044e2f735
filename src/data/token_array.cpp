#include "data/token_array.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "base/text.h"
#include "io/mapped_file.h"

namespace ridge {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are stored in files as in memory");

// A page fault also maps up to 64 KiB of neighbouring cached pages, so memory is counted in address regions of that size.
constexpr int kRegionBits = 16;
constexpr int64_t kRegion = int64_t(1) << kRegionBits;

// The largest token, so that one comparison validates all of them.
template <class T>
int64_t widen(const std::byte* from, std::span<int64_t> out) {
  T largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, from + i * sizeof(T), sizeof(T));
    largest = std::max(largest, token);
    out[i] = int64_t(token);
  }
  return int64_t(largest);
}

int64_t widen(int width, const std::byte* from, std::span<int64_t> out) {
  return width == 1 ? widen<uint8_t>(from, out) : width == 2 ? widen<uint16_t>(from, out) : widen<uint32_t>(from, out);
}

}  // namespace

struct TokenArray::Files {
  struct Mapped {
    MappedFile file;
    std::string path;
    const std::byte* tokens;
    int64_t begin;         // number of its first token
    int64_t first_region;  // index of its first region among those of all files
  };
  std::vector<Mapped> mapped;
  int width;
  int64_t vocab, total = 0, bytes = 0, max_resident;
  std::vector<std::atomic<uint64_t>> touched;  // one bit per region
  std::atomic<int64_t> regions_touched = 0;
  std::mutex dropping;

  int64_t region_of(const Mapped& m, const std::byte* at) const {
    const auto number = [](const void* p) { return int64_t(reinterpret_cast<uintptr_t>(p) >> kRegionBits); };
    return m.first_region + number(at) - number(m.file.bytes().data());
  }

  // Called before tokens are read, so that the pages they bring in never exceed the cap.
  void touch(const Mapped& m, const std::byte* from, int64_t count) {
    if (bytes <= max_resident) return;
    const int64_t first = region_of(m, from), last = region_of(m, from + count * width - 1);
    mark(first, last);
    if (regions_touched.load(std::memory_order_relaxed) * kRegion <= max_resident) return;
    drop();
    mark(first, last);
  }

  void mark(int64_t first, int64_t last) {
    for (int64_t r = first; r <= last; ++r) {
      const uint64_t bit = uint64_t(1) << (r % 64);
      if (!(touched[size_t(r / 64)].fetch_or(bit, std::memory_order_relaxed) & bit)) regions_touched.fetch_add(1, std::memory_order_relaxed);
    }
  }

  // Releases all pages; they are read again when needed.
  void drop() {
    const std::lock_guard lock(dropping);
    if (regions_touched.load() * kRegion <= max_resident) return;
    regions_touched = 0;
    for (std::atomic<uint64_t>& word : touched) word = 0;
    for (const Mapped& m : mapped) ::madvise(const_cast<std::byte*>(m.file.bytes().data()), m.file.bytes().size(), MADV_DONTNEED);
  }
};

TokenArray::TokenArray(const std::vector<Shard>& shards, int width, int64_t vocab, int64_t max_resident) : files_(std::make_shared<Files>()) {
  if (width != 1 && width != 2 && width != 4) fail(ErrorCode::value, "[data] tokens of {} bytes; they must have 1, 2 or 4", width);
  files_->width = width;
  files_->vocab = vocab;
  files_->max_resident = max_resident;
  int64_t regions = 0;
  for (const Shard& shard : shards) {
    MappedFile file(shard.path);
    const int64_t bytes = int64_t(file.bytes().size());
    if (shard.offset < 0 || shard.tokens < 0 || shard.offset > bytes || shard.tokens > (bytes - shard.offset) / width)
      fail(ErrorCode::io, "[data] {}: {} bytes, but {} tokens of {} bytes after {} others are expected; it was truncated: create or copy it again", shard.path,
           bytes, shard.tokens, width, shard.offset);
    const std::byte* const tokens = file.bytes().data() + shard.offset;
    if (shard.tokens > 0) files_->mapped.push_back({std::move(file), shard.path, tokens, files_->total, regions});
    files_->total += shard.tokens;
    files_->bytes += bytes;
    regions += bytes / kRegion + 2;
  }
  files_->touched = std::vector<std::atomic<uint64_t>>(size_t(regions / 64 + 1));
  // Windows are small and scattered: reading ahead would only evict other pages.
  if (files_->bytes > max_resident)
    for (const Files::Mapped& m : files_->mapped) ::madvise(const_cast<std::byte*>(m.file.bytes().data()), m.file.bytes().size(), MADV_RANDOM);
  size_ = files_->total;
}

void TokenArray::copy(int64_t first, std::span<int64_t> out) const {
  if (first < 0 || int64_t(out.size()) > size_ || first > size_ - int64_t(out.size()))
    fail(ErrorCode::value, "[data] tokens {} to {} of {}", first, first + int64_t(out.size()), size_);
  if (out.empty()) return;
  first += first_;
  const auto& mapped = files_->mapped;
  auto m = std::prev(std::upper_bound(mapped.begin(), mapped.end(), first, [](int64_t at, const Files::Mapped& other) { return at < other.begin; }));
  for (; !out.empty(); ++m) {
    const int64_t end = std::next(m) == mapped.end() ? files_->total : std::next(m)->begin;
    const int64_t count = std::min(int64_t(out.size()), end - first);
    const std::byte* const from = m->tokens + (first - m->begin) * files_->width;
    files_->touch(*m, from, count);
    if (const int64_t largest = widen(files_->width, from, out.first(size_t(count))); largest >= files_->vocab)
      fail(ErrorCode::io, "[data] {}: token {} in a vocabulary of {}; the file is damaged or belongs to another vocabulary", m->path, largest, files_->vocab);
    out = out.subspan(size_t(count));
    first += count;
  }
}

TokenArray TokenArray::part(int64_t first, int64_t count) const {
  if (first < 0 || count < 0 || count > size_ || first > size_ - count) fail(ErrorCode::value, "[data] a part of {} tokens at {} of {}", count, first, size_);
  TokenArray out = *this;
  out.first_ += first;
  out.size_ = count;
  return out;
}

int64_t TokenArray::mapped_bytes() const { return files_ ? files_->bytes : 0; }
int64_t TokenArray::resident_cap() const { return files_ ? std::min(files_->bytes, files_->max_resident) : 0; }

}  // namespace ridge
