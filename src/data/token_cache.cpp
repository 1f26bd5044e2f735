#include "data/token_cache.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "data/token_store.h"
#include "io/trust.h"
#include "machine/measurement_store.h"
#include "machine/memory_budget.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFolders = 32;
constexpr uintmax_t kMaxBytes = uintmax_t(4) << 30;  // or a tenth of the disk, if that is more
constexpr std::string_view kUnfinished = "making-";

// A folder that is deleted with the object unless it was moved into place.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& within) : path_((within / (std::string(kUnfinished) + "XXXXXX")).string()) {
    if (!::mkdtemp(path_.data())) {
      error_ = std::strerror(errno);
      path_.clear();
    }
  }
  ~NewFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  explicit operator bool() const { return !path_.empty(); }
  fs::path path() const { return path_; }
  const std::string& error() const { return error_; }

  bool move_to(const fs::path& place) {
    std::error_code error;
    fs::rename(path_, place, error);
    if (!error) path_.clear();
    return !error;
  }

 private:
  std::string path_, error_;
};

uintmax_t bytes_in(const fs::path& folder) {
  uintmax_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    std::error_code gone;
    if (const uintmax_t size = at->file_size(gone); !gone) bytes += size;
  }
  return bytes;
}

// Others may add and remove folders concurrently: what is already gone need not be removed.
void prune(const fs::path& cache, const fs::path& in_use) {
  struct Entry {
    fs::path path;
    fs::file_time_type used;
    uintmax_t bytes;
  };
  std::vector<Entry> entries;
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator at(cache, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    std::error_code gone;
    const bool finished = fs::exists(at->path() / "index.json", gone);
    const auto used = fs::last_write_time(finished ? at->path() / "index.json" : at->path(), gone);
    if (gone || at->path() == in_use || !at->is_directory(gone)) continue;
    if (finished)
      entries.push_back({at->path(), used, bytes_in(at->path())});
    else if (at->path().filename().native().starts_with(kUnfinished) && now - used > std::chrono::hours(24))
      fs::remove_all(at->path(), gone);  // left by a process that was killed
  }
  const fs::space_info disk = fs::space(cache, error);
  const uintmax_t most = std::max(kMaxBytes, error ? 0 : disk.capacity / 10);
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.used > b.used; });
  uintmax_t bytes = bytes_in(in_use);
  for (size_t i = 0; i < entries.size(); ++i) {
    bytes += entries[i].bytes;
    std::error_code gone;
    if (i + 1 >= kMaxFolders || bytes > most) fs::remove_all(entries[i].path, gone);
  }
}

std::optional<Dataset> open_if_good(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / "index.json", error) || !why_untrusted_folder(folder).empty()) return {};
  try {
    return open_store(folder);
  } catch (const Error&) {
    return {};  // incomplete or being removed: it is made again
  }
}

// Returns the memory used for making tokens to the system: a plan counts what the process holds, and must not depend on whether the tokens were cached.
void make_tokens(const TokenRecipe& recipe, const fs::path& folder) {
  recipe.make(folder);
  release_heap_memory();
}

// Tokens in a folder about to be deleted: they last as long as the process has them mapped.
Dataset open_for_process(const fs::path& folder, const std::string& why_not_kept) {
  Dataset out = open_store(folder);
  if (out.notes.empty()) out.notes.emplace_back();
  out.notes[0] += fmt::format("{}{}: the tokens will be recreated at the next start; set RIDGE_CACHE to another folder",  // a training prints the first note
                              out.notes[0].empty() ? "" : "; ", why_not_kept);
  out.folder.clear();
  return out;
}

}  // namespace

fs::path token_cache(const DatasetOptions& options) {
  fs::path folder = options.cache;
  if (folder.empty()) folder = cache_folder().empty() ? fs::path() : cache_folder() / "data";
  return why_untrusted(folder).empty() ? folder : fs::path();
}

Dataset open_cached(const TokenRecipe& recipe, const DatasetOptions& options) {
  const fs::path cache = token_cache(options);
  std::error_code error;
  if (!cache.empty()) {
    for (const std::string& key : {recipe.key, recipe.bounded_key}) {
      const fs::path place = cache / key;
      std::optional<Dataset> found = key.empty() ? std::nullopt : open_if_good(place);
      if (!found) continue;
      fs::last_write_time(place / "index.json", fs::file_time_type::clock::now(), error);
      found->notes.push_back(fmt::format("tokens from the cache, {}", place.string()));
      found->cached = true;
      return *std::move(found);
    }
  }
  std::optional<NewFolder> fresh;
  if (!cache.empty() && make_private_folder(cache).empty()) fresh.emplace(cache);
  if (fresh && *fresh) {
    make_tokens(recipe, fresh->path());
    const fs::path place = cache / stored_key(fresh->path()).value_or(recipe.key);
    if (!fresh->move_to(place)) {  // a damaged one is in the way, or another process was faster
      if (std::optional<Dataset> found = open_if_good(place)) return *std::move(found);
      fs::remove_all(place, error);
      if (!fresh->move_to(place)) return open_for_process(fresh->path(), place.string() + " cannot be replaced; remove it");
    }
    prune(cache, place);
    return open_store(place);
  }
  NewFolder folder(fs::temp_directory_path(error));
  if (!folder)
    fail(ErrorCode::io, "[data] no folder for tokens: {} and {} cannot be written ({}); set RIDGE_CACHE to one that can", cache.string(),
         fs::temp_directory_path(error).string(), folder.error());
  make_tokens(recipe, folder.path());
  const std::string reason = !cache.empty()             ? cache.string() + " cannot be written"
                             : !options.cache.empty()   ? "the cache is not used, because others may have written to it"
                             : !cache_problem().empty() ? "the cache cannot be used"
                                                        : "no cache folder is known";
  return open_for_process(folder.path(), reason);
}

Dataset make_in(const fs::path& folder, const TokenRecipe& recipe) {
  std::error_code error;
  const std::optional<std::string> stored = stored_key(folder);
  if (stored && (stored == recipe.key || stored == recipe.bounded_key)) {
    Dataset out = open_store(folder);
    out.cached = true;
    return out;
  }
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::io, "[data] {}: cannot be created: {}; choose a folder that you can write to", folder.string(), error.message());
  // Overwrites only an older or unfinished store by Ridge. Its index is removed first: it must not describe new shards.
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (!is_store_file(entry.path().filename().string()))
      fail(ErrorCode::io, "[data] {}: is not empty, and {} is not a token file that Ridge writes; choose a new folder", folder.string(),
           entry.path().filename().string());
    old.push_back(entry.path());
  }
  std::string replaced;
  if (const std::optional<Dataset> before = open_if_good(folder))
    replaced = fmt::format("replaced the {} tokens of another text or tokenizer ({}, {} different ones) that were in {}",
                           before->train.size() + before->validation.size(), before->tokenizer ? before->tokenizer->name() : "unknown", before->vocab,
                           folder.string());
  fs::remove(folder / "index.json", error);
  for (const fs::path& path : old) fs::remove(path, error);
  recipe.make(folder);
  Dataset out = open_store(folder);
  if (!replaced.empty()) out.notes.push_back(replaced);
  return out;
}

}  // namespace ridge
