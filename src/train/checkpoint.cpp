#include "train/checkpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/checksum.h"
#include "io/folder_lock.h"
#include "train/manifest.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPiece = size_t(1) << 20;  // bytes read at a time
constexpr const char* kManifest = "manifest.json";
constexpr const char* kLatest = "LATEST";
constexpr const char* kBest = "BEST";
constexpr std::string_view kLatestTemporary = "LATEST.part", kBestTemporary = "BEST.part";  // AtomicFile's temporary names
constexpr std::string_view kStep = "step_", kPartial = ".partial", kTrash = ".trash", kTensors = ".safetensors";

std::string folder_name(int64_t step) { return fmt::format("{}{:08}", kStep, step); }
std::string hidden_name(int64_t step, std::string_view kind) { return fmt::format(".{}{}", folder_name(step), kind); }

// Parses "step_00001000"; empty for any other name.
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStep)) return {};
  const std::string_view digits = name.substr(kStep.size());
  int64_t step = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (step < 0 || folder_name(step) != name) return {};
  return step;
}

// Parses ".step_00001000.partial" for the kind ".partial".
std::optional<int64_t> hidden_step_of(std::string_view name, std::string_view kind) {
  if (!name.starts_with('.') || !name.ends_with(kind) || name.size() <= kind.size()) return {};
  return step_of(name.substr(1, name.size() - 1 - kind.size()));
}

struct Listing {
  std::vector<int64_t> steps, trash;   // ascending
  std::vector<std::string> leftovers;  // from processes killed while writing
};

Listing list(const fs::path& folder) {
  Listing out;
  DIR* handle = ::opendir(folder.c_str());
  if (!handle) {
    if (errno == ENOENT) return out;
    fail(ErrorCode::io, "[checkpoint] {}: cannot be listed: {}; check that it is a folder that you can read", folder.string(), std::strerror(errno));
  }
  errno = 0;
  while (const dirent* entry = ::readdir(handle)) {
    const std::string name = entry->d_name;
    if (const auto step = step_of(name)) out.steps.push_back(*step);
    if (const auto step = hidden_step_of(name, kTrash)) out.trash.push_back(*step);
    if (hidden_step_of(name, kPartial) || name == kLatestTemporary || name == kBestTemporary) out.leftovers.push_back(name);
  }
  const int cause = errno;
  ::closedir(handle);
  if (cause != 0) fail(ErrorCode::io, "[checkpoint] {}: cannot be listed: {}; check the disk", folder.string(), std::strerror(cause));
  for (auto* steps : {&out.steps, &out.trash}) std::sort(steps->begin(), steps->end());
  return out;
}

// Passes on the file piece by piece. Uses read() instead of mmap, so that a bad disk sector is an error and not a signal.
template <class Take>
void read_pieces(const fs::path& path, Take take) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // do not block on a pipe
  if (file < 0) fail(ErrorCode::io, "[checkpoint] {}: cannot be opened: {}; the checkpoint is not complete", path.string(), std::strerror(errno));
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(kPiece);
  ssize_t got = 1;
  while (got > 0) {
    got = ::read(file, memory.get(), kPiece);
    if (got < 0 && errno == EINTR)
      got = 1;
    else if (got > 0 && !take(std::span<const std::byte>(memory.get(), size_t(got))))
      break;
  }
  const int cause = errno;
  ::close(file);
  if (got < 0) fail(ErrorCode::io, "[checkpoint] {}: cannot be read: {}; check the disk", path.string(), std::strerror(cause));
}

// Reads at most `most` + 1 bytes; the extra one shows that the file is too long.
std::string read_text(const fs::path& path, size_t most) {
  std::string text;
  read_pieces(path, [&](std::span<const std::byte> piece) {
    text.append(reinterpret_cast<const char*>(piece.data()), std::min(piece.size(), most + 1 - text.size()));
    return text.size() <= most;
  });
  return text;
}

void compare(const fs::path& path, const Manifest::File& expected, int64_t bytes, const std::string& checksum) {
  if (bytes != expected.bytes)
    fail(ErrorCode::io, "[checkpoint] {}: {} bytes where the manifest says {}; the file is damaged", path.string(), bytes, expected.bytes);
  if (checksum != expected.checksum) fail(ErrorCode::io, "[checkpoint] {}: its checksum is not the manifest's; the file is damaged", path.string());
}

void check_tensors(const fs::path& path, const Manifest::File& expected) {
  Checksum sum;
  read_pieces(path, [&](std::span<const std::byte> piece) {
    sum.add(piece);
    return sum.bytes() <= expected.bytes;
  });
  compare(path, expected, sum.bytes(), sum.hex());
}

std::string checked_text(const fs::path& path, const Manifest::File& expected) {
  std::string text = read_text(path, size_t(expected.bytes));
  compare(path, expected, int64_t(text.size()), checksum_of(text));
  return text;
}

// Ignores files that are not in the manifest, such as those left by a file manager.
StoredCheckpoint read_checkpoint(const fs::path& folder, int64_t step) {
  const fs::path path = folder / kManifest;
  const Manifest manifest = parse_manifest(read_text(path, kMaxManifestBytes), path.string());
  if (manifest.step != step) fail(ErrorCode::io, "[checkpoint] {}: belongs to step {}; the folder was renamed", folder.string(), manifest.step);
  StoredCheckpoint out;
  out.step = step;
  out.folder = folder;
  for (const auto& [name, file] : manifest.files)
    if (name.ends_with(kTensors)) {
      check_tensors(folder / name, file);
      out.tensors.emplace(name, (folder / name).string());
    } else {
      out.texts.emplace(name, checked_text(folder / name, file));
    }
  return out;
}

// The step that LATEST or BEST names; empty: not a checkpoint name.
std::optional<int64_t> pointed(const fs::path& folder, const char* name, std::vector<std::string>& notices) {
  std::error_code ignored;
  if (!fs::exists(folder / name, ignored)) return {};
  std::string text;
  try {
    text = read_text(folder / name, 100);
  } catch (const Error& e) {
    notices.push_back(e.what());
    return {};
  }
  if (text.ends_with('\n')) text.pop_back();
  const std::optional<int64_t> step = step_of(text);
  if (!step) notices.push_back(fmt::format("[checkpoint] {}: does not name a checkpoint; it is ignored", (folder / name).string()));
  return step;
}

std::optional<StoredCheckpoint> read_if_whole(const fs::path& folder, int64_t step, std::vector<std::string>& notices) {
  try {
    return read_checkpoint(folder, step);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::io) throw;
    notices.push_back(fmt::format("{}; it is skipped", e.what()));
    return {};
  }
}

void sync(const fs::path& path, const FileCalls& calls) {
  if (const int cause = sync_path(path.string(), calls); cause != 0)
    fail(ErrorCode::io, "[checkpoint] {}: syncing failed: {}; {}", path.string(), std::strerror(cause), file_remedy(cause));
}

std::string parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path().string() : "."; }

void make_folder(const fs::path& path, const FileCalls& calls) {
  std::error_code ignored;
  if (path.empty() || fs::is_directory(path, ignored)) return;
  if (path.parent_path() != path) make_folder(path.parent_path(), calls);
  int cause = calls.mkdir(path.c_str(), 0777) == 0 || errno == EEXIST ? 0 : errno;
  if (cause == 0) cause = sync_path(parent_of(path), calls);
  if (cause != 0) fail(ErrorCode::io, "[checkpoint] {}: cannot be created: {}; {}", path.string(), std::strerror(cause), file_remedy(cause));
}

// Deletes the manifest first, so that a partly deleted folder is never valid. Returns 0, or the errno of a failed removal.
int remove_folder(const fs::path& path, const FileCalls& calls) {
  auto gone = [&](const fs::path& entry) { return calls.remove(entry.c_str()) == 0 || errno == ENOENT ? 0 : errno; };
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error))) {
    if (const int cause = gone(path / kManifest); cause != 0) return cause;
    std::vector<fs::path> inside;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) inside.push_back(entry->path());
    if (error) return error.value();
    for (const fs::path& entry : inside)
      if (const int cause = remove_folder(entry, calls); cause != 0) return cause;
  }
  return gone(path);
}

int64_t bytes_of(const CheckpointContent& content) {
  int64_t bytes = 0;
  for (const auto& [name, tensors] : content.tensors)
    for (const SafetensorView& tensor : tensors) bytes += int64_t(tensor.data.size());
  for (const auto& [name, text] : content.texts) bytes += int64_t(text.size());
  return bytes;
}

std::string free_space(const fs::path& folder) {
  struct statvfs status = {};
  if (::statvfs(folder.c_str(), &status) != 0) return "an unknown number of bytes";
  return size_text(int64_t(status.f_bavail) * int64_t(status.f_frsize));
}

void check_names(const CheckpointContent& content) {
  auto check = [](const std::string& name, bool tensors) {
    if (is_checkpoint_file_name(name) && name.ends_with(kTensors) == tensors) return;
    fail(ErrorCode::value, "[checkpoint] '{}' cannot be the name of a file of {} in a checkpoint; use letters and digits, and .safetensors for tensors alone",
         name, tensors ? "tensors" : "text");
  };
  if (content.step < 0) fail(ErrorCode::value, "[checkpoint] {} is not a step; steps count from 0", content.step);
  for (const auto& [name, tensors] : content.tensors) check(name, true);
  for (const auto& [name, text] : content.texts) check(name, false);
}

}  // namespace

CheckpointStore::CheckpointStore(fs::path folder, int keep, const FileCalls& calls) : folder_(std::move(folder)), keep_(keep), calls_(calls) {
  if (keep < 2) fail(ErrorCode::value, "[checkpoint] {} to be kept; keep at least 2, so that one is intact if the other is damaged", keep);
}

std::vector<std::string> CheckpointStore::save(const CheckpointContent& content, bool best) {
  check_names(content);
  const fs::path path = folder_ / folder_name(content.step);
  make_folder(folder_, calls_);
  const auto lock = FolderLock::take(folder_);
  if (!lock) fail(ErrorCode::io, "[checkpoint] {}: another process is writing checkpoints there; stop it or choose another folder", folder_.string());
  for (const std::string& name : list(folder_).leftovers) remove_folder(folder_ / name, calls_);  // anything left is handled again below
  try {
    put_in_place(write_temporary(content), path);
    if (best) write_atomically((folder_ / kBest).string(), folder_name(content.step) + "\n", calls_);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::io) throw;
    fail(ErrorCode::io, "[checkpoint] {} was not saved: {} (it needs {}, {} are free); the previous one is unchanged", path.string(), e.what(),
         size_text(bytes_of(content)), free_space(folder_));
  }
  verified_.insert(content.step);
  std::vector<std::string> notices;
  try {
    write_atomically((folder_ / kLatest).string(), folder_name(content.step) + "\n", {calls_, nullptr, false});  // not synced, because nothing depends on it
  } catch (const Error& e) {
    if (e.code() != ErrorCode::io) throw;
    notices.push_back(e.what());
  }
  tidy_up(content.step, notices);
  return notices;
}

// Reads the checkpoint back before renaming it, so that a damaged one never gets the final name. Leaves nothing behind on failure.
fs::path CheckpointStore::write_temporary(const CheckpointContent& content) const {
  const fs::path temporary = folder_ / hidden_name(content.step, kPartial);
  if (calls_.mkdir(temporary.c_str(), 0777) != 0) {
    const int cause = errno;
    fail(ErrorCode::io, "[checkpoint] {}: cannot be created: {}; {}", temporary.string(), std::strerror(cause), file_remedy(cause));
  }
  try {
    Manifest manifest;
    manifest.step = content.step;
    for (const auto& [name, tensors] : content.tensors) {
      Checksum sum;
      write_safetensors((temporary / name).string(), tensors, {}, {calls_, &sum, false});
      manifest.files[name] = {sum.bytes(), sum.hex()};
    }
    for (const auto& [name, text] : content.texts) {
      write_atomically((temporary / name).string(), text, {calls_, nullptr, false});
      manifest.files[name] = {int64_t(text.size()), checksum_of(text)};
    }
    write_atomically((temporary / kManifest).string(), format_manifest(manifest), {calls_, nullptr, false});
    for (const auto& [name, file] : manifest.files) sync(temporary / name, calls_);
    sync(temporary / kManifest, calls_);
    sync(temporary, calls_);
    read_checkpoint(temporary, content.step);
  } catch (...) {
    remove_folder(temporary, calls_);
    throw;
  }
  return temporary;
}

// Moves an existing checkpoint of that name out of the way, and restores it if the rename fails.
void CheckpointStore::put_in_place(const fs::path& temporary, const fs::path& path) const {
  const fs::path way = folder_ / fmt::format(".{}{}", path.filename().string(), kTrash);
  std::error_code ignored;
  const bool replaces = fs::exists(fs::symlink_status(path, ignored));
  int cause = replaces ? remove_folder(way, calls_) : 0;
  if (cause == 0 && replaces && calls_.rename(path.c_str(), way.c_str()) != 0) cause = errno;
  if (cause == 0 && calls_.rename(temporary.c_str(), path.c_str()) != 0) {
    cause = errno;
    if (replaces) calls_.rename(way.c_str(), path.c_str());
  }
  if (cause != 0) {
    remove_folder(temporary, calls_);
    fail(ErrorCode::io, "[checkpoint] {}: cannot be moved into place: {}; {}", path.string(), std::strerror(cause), file_remedy(cause));
  }
  sync(folder_, calls_);
}

// Renames a folder before deleting its files, so that half of one is never taken for a checkpoint. Checkpoints after the newest step are from before the
// run was resumed at an earlier step. The best one gets its name back if it was moved for a replacement that was never completed.
void CheckpointStore::tidy_up(int64_t newest, std::vector<std::string>& notices) {
  const std::optional<int64_t> best = pointed(folder_, kBest, notices);
  Listing there = list(folder_);
  std::sort(there.steps.begin(), there.steps.end(), [&](int64_t a, int64_t b) { return std::pair(a <= newest, a) > std::pair(b <= newest, b); });
  auto note = [&](const fs::path& path, int cause) {
    if (cause != 0) notices.push_back(fmt::format("[checkpoint] {}: cannot be removed: {}; {}", path.string(), std::strerror(cause), file_remedy(cause)));
    return cause == 0;
  };
  std::vector<std::string> damage;
  for (const int64_t step : there.trash) {
    const fs::path path = folder_ / folder_name(step), way = folder_ / hidden_name(step, kTrash);
    if (step != best || std::ranges::count(there.steps, step) || !read_if_whole(way, step, damage))
      note(way, remove_folder(way, calls_));
    else if (calls_.rename(way.c_str(), path.c_str()) != 0)  // best() finds it under either name
      notices.push_back(fmt::format("[checkpoint] {}: the best one cannot be renamed back: {}", way.string(), std::strerror(errno)));
  }
  int kept = 0;
  for (const int64_t step : there.steps) {
    if (kept < keep_ && is_whole(step)) {
      ++kept;
      continue;
    }
    if (step == best) continue;
    const fs::path path = folder_ / folder_name(step), way = folder_ / hidden_name(step, kTrash);
    verified_.erase(step);
    if (note(path, calls_.rename(path.c_str(), way.c_str()) == 0 ? 0 : errno)) note(way, remove_folder(way, calls_));
  }
}

bool CheckpointStore::is_whole(int64_t step) {
  std::vector<std::string> ignored;
  if (!verified_.contains(step) && read_if_whole(folder_ / folder_name(step), step, ignored)) verified_.insert(step);
  return verified_.contains(step);
}

// LATEST is only for users and scripts: it is not synced, so after a power failure it may lag behind the checkpoints. Also considers a checkpoint that
// was moved out of the way by a process killed before the replacement got its name.
std::optional<StoredCheckpoint> CheckpointStore::newest(std::vector<std::string>& notices) const {
  const Listing there = list(folder_);
  const std::optional<int64_t> latest = pointed(folder_, kLatest, notices);
  if (latest && !std::binary_search(there.steps.begin(), there.steps.end(), *latest))
    notices.push_back(fmt::format("[checkpoint] {}: names {}, which does not exist", (folder_ / kLatest).string(), folder_name(*latest)));
  std::vector<std::pair<int64_t, std::string>> candidates;
  for (const int64_t step : there.steps) candidates.emplace_back(step, folder_name(step));
  for (const int64_t step : there.trash) candidates.emplace_back(step, hidden_name(step, kTrash));
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [step, name] : candidates)
    if (auto found = read_if_whole(folder_ / name, step, notices)) return found;
  return {};
}

std::optional<StoredCheckpoint> CheckpointStore::best(std::vector<std::string>& notices) const {
  const std::optional<int64_t> step = pointed(folder_, kBest, notices);
  if (!step) return {};
  const fs::path path = folder_ / folder_name(*step), way = folder_ / hidden_name(*step, kTrash);
  std::error_code ignored;
  return read_if_whole(!fs::exists(path, ignored) && fs::exists(way, ignored) ? way : path, *step, notices);
}

StoredCheckpoint CheckpointStore::load(int64_t step) const {
  const std::vector<int64_t> there = steps();
  if (!std::binary_search(there.begin(), there.end(), step))
    fail(ErrorCode::io, "[checkpoint] {}: has no checkpoint of step {}; {}", folder_.string(), step,
         there.empty() ? "it has none at all" : fmt::format("its steps go from {} to {}", there.front(), there.back()));
  return read_checkpoint(folder_ / folder_name(step), step);
}

std::vector<int64_t> CheckpointStore::steps() const { return list(folder_).steps; }

}  // namespace ridge
