#include "data/file_facts.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/trust.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kAtOnce = int64_t(1) << 20;
constexpr int64_t kWorthKeeping = int64_t(1) << 26;  // smaller files are read in about ten milliseconds

// All bytes in order, in pieces at offsets that are multiples of kAtOnce.
template <class Take>
int64_t read_in_pieces(const std::string& path, int64_t most, const Take& take) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::io, "[data] {}: cannot be opened: {}; check its permissions", path, std::strerror(errno));
  std::vector<std::byte> piece(size_t(std::min(most, kAtOnce)));
  int64_t at = 0;
  while (at < most) {
    file.read(reinterpret_cast<char*>(piece.data()), std::streamsize(std::min<int64_t>(most - at, int64_t(piece.size()))));
    if (file.gcount() == 0) break;
    take(at, std::span<const std::byte>(piece).first(size_t(file.gcount())));
    at += file.gcount();
  }
  if (file.bad()) fail(ErrorCode::io, "[data] {}: reading failed at byte {}: {}; check the disk", path, at, std::strerror(errno));
  return at;
}

template <class T>
int64_t largest(std::span<const std::byte> bytes) {
  T found = 0;
  for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    T token;
    std::memcpy(&token, bytes.data() + i, sizeof(T));
    found = std::max(found, token);
  }
  return int64_t(found);
}

FileFacts read_facts(const std::string& path, int width, int64_t offset) {
  FileFacts facts;
  Checksum sum;
  read_in_pieces(path, INT64_MAX, [&](int64_t at, std::span<const std::byte> piece) {
    sum.add(piece);
    if (width == 0 || at + int64_t(piece.size()) <= offset) return;
    const auto tokens = piece.subspan(size_t(std::max<int64_t>(offset - at, 0)));
    facts.largest_token = std::max(facts.largest_token, width == 2 ? largest<uint16_t>(tokens) : largest<uint32_t>(tokens));
  });
  facts.checksum = sum.hex();
  return facts;
}

// A file that was just written may be written again within the same tick of its clock.
bool is_stable(const struct stat& status) { return std::time(nullptr) - status.st_mtime > 2; }

}  // namespace

FileFacts facts_of(const std::string& path, int width, int64_t offset, const fs::path& memory) {
  struct stat status = {};
  const bool keep = !memory.empty() && ::stat(path.c_str(), &status) == 0 && int64_t(status.st_size) >= kWorthKeeping && is_stable(status);
  if (!keep) return read_facts(path, width, offset);
#ifdef __APPLE__
  const struct timespec& changed = status.st_mtimespec;
#else
  const struct timespec& changed = status.st_mtim;
#endif
  const std::string place = fmt::format("{} {} {} {} {} {} {} {}", fs::absolute(path).string(), uint64_t(status.st_dev), uint64_t(status.st_ino),
                                        int64_t(status.st_size), int64_t(changed.tv_sec), int64_t(changed.tv_nsec), width, offset);
  const fs::path kept = memory / checksum_of(place);
  FileFacts facts;
  const bool trusted = why_untrusted(memory).empty() && why_untrusted(kept).empty();
  if (std::ifstream in(kept); trusted && in >> facts.checksum >> facts.largest_token && facts.checksum.size() == 32) return facts;
  facts = read_facts(path, width, offset);
  try {
    if (make_private_folder(memory).empty()) write_atomically(kept.string(), fmt::format("{} {}\n", facts.checksum, facts.largest_token));
  } catch (const std::exception&) {
    // The file is then read again next time.
  }
  return facts;
}

void add_file(Checksum& sum, const std::string& path, int64_t bytes) {
  const int64_t got = read_in_pieces(path, bytes, [&](int64_t, std::span<const std::byte> piece) { sum.add(piece); });
  if (got != bytes) fail(ErrorCode::io, "[data] {}: ends at byte {} of {}; it was truncated: create or copy it again", path, got, bytes);
}

}  // namespace ridge
