#include "train/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "io/atomic_file.h"

namespace ridge {
namespace {

constexpr size_t kMaxLine = size_t(1) << 20;  // a longer line is damage: Ridge writes none that long

// Calls take(line including its newline, whether to keep it). Skips a last line without a newline: the writer was killed while writing it.
template <class Take>
void read_lines(const std::filesystem::path& path, int64_t last_step, Take take) {
  std::ifstream in(path, std::ios::binary);
  std::string line, piece(kMaxLine, '\0');
  bool too_long = false;
  auto stays = [&] {
    if (too_long) return false;
    const auto row = nlohmann::json::parse(line, nullptr, false);
    const auto step = row.is_object() ? row.find("step") : row.end();
    return step != row.end() && step->is_number_integer() && step->get<int64_t>() <= last_step && line.find('\0') == std::string::npos;
  };
  int64_t bytes = 0;
  while (in.read(piece.data(), std::streamsize(piece.size())), in.gcount() > 0)
    for (std::string_view rest(piece.data(), size_t(in.gcount())); !rest.empty();) {
      const size_t end = rest.find('\n');
      const std::string_view part = rest.substr(0, end == std::string_view::npos ? end : end + 1);
      rest.remove_prefix(part.size());
      bytes += int64_t(part.size());
      too_long |= line.size() + part.size() > kMaxLine;
      if (!too_long) line += part;
      if (end == std::string_view::npos) continue;
      take(line, stays(), bytes);
      line.clear();
      too_long = false;
    }
  if (in.bad()) fail(ErrorCode::io, "[metrics] {}: cannot be read; check the disk", path.string());
}

// Usually only the end is dropped, by truncating, which needs no disk space. Otherwise (damage in the middle) rewrites the file.
void cut_back(const std::filesystem::path& path, int64_t last_step) {
  int64_t end = 0;
  bool dropped = false, holes = false;
  read_lines(path, last_step, [&](const std::string&, bool stays, int64_t bytes) {
    holes |= stays && dropped;
    dropped |= !stays;
    if (stays) end = bytes;
  });
  if (!holes) {
    if (::truncate(path.c_str(), end) == 0 || errno == ENOENT) return;
    const int cause = errno;
    fail(ErrorCode::io, "[metrics] {}: cannot be truncated to {} bytes: {}; {}", path.string(), end, std::strerror(cause), file_remedy(cause));
  }
  AtomicFile fresh(path.string());
  read_lines(path, last_step, [&](const std::string& line, bool stays, int64_t) {
    if (stays) fresh.write(std::as_bytes(std::span(line)));
  });
  fresh.commit();
}

}  // namespace

MetricsFile::MetricsFile(std::filesystem::path path, int64_t last_step) : path_(std::move(path)) {
  if (path_.empty()) return;
  if (last_step >= 0) cut_back(path_, last_step);
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (last_step < 0 ? O_TRUNC : 0), 0666);
  if (file_ < 0) {
    const int cause = errno;
    fail(ErrorCode::io, "[metrics] {}: cannot be opened: {}; {}", path_.string(), std::strerror(cause), file_remedy(cause));
  }
}

MetricsFile::~MetricsFile() {
  try {
    flush();
  } catch (const Error&) {
    // The disk is full or gone; the end of the run has already reported it.
  }
  if (file_ >= 0) ::close(file_);
}

void MetricsFile::add(const nlohmann::ordered_json& row) { add_line(row.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)); }

void MetricsFile::add_line(std::string_view line) {
  if (path_.empty()) return;
  if (!waiting_.fits(line.size() + 1)) flush();
  waiting_.add(line), waiting_.add("\n");
}

void MetricsFile::flush() {
  if (const int cause = waiting_.flush(file_); cause != 0)
    fail(ErrorCode::io, "[metrics] {}: cannot be written: {}; {}", path_.string(), std::strerror(cause), file_remedy(cause));
}

}  // namespace ridge
