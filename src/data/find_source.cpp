#include "data/find_source.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "config/words.h"
#include "data/token_files.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

std::string home_folder() {
  const char* const home = std::getenv("HOME");
  return home ? home : "";
}

// A name is looked for in several folders; a path that begins with /, . or .. is used as it is.
std::vector<fs::path> candidates(const std::string& source) {
  const fs::path path = expand_home(source);
  std::vector<fs::path> out = {path};
  const std::string first = path.empty() ? "" : path.begin()->string();
  if (path.is_absolute() || first == "." || first == "..") return out;
  out.push_back("data" / path);
  if (const std::string home = home_folder(); !home.empty()) out.push_back(home / path);
  return out;
}

bool is_pattern(const std::string& source) { return source.find_first_of("*?[") != source.npos; }

bool exists(const fs::path& path, const std::string& source) {
  std::error_code error;
  if (fs::status(path, error).type() != fs::file_type::not_found) return true;  // or inaccessible, which its reader reports
  return is_pattern(source) && !find_llmc_shards(path.string()).empty();
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

// A few letters apart, one contained in the other, or sharing most of the shorter one as a prefix: shakespere and shakespeare_char.
bool are_similar(const std::string& a, const std::string& b, size_t distance) {
  if (distance * 3 <= std::max(a.size(), b.size())) return true;
  const size_t shorter = std::min(a.size(), b.size());
  const auto front = size_t(std::mismatch(a.begin(), a.begin() + std::ptrdiff_t(shorter), b.begin()).first - a.begin());
  return shorter >= 3 && (a.find(b) != a.npos || b.find(a) != b.npos || front * 3 >= shorter * 2);
}

// Similar names in these folders, the closest first.
std::vector<std::string> similar_names(const std::vector<fs::path>& wanted) {
  constexpr size_t kMaxEntries = 10000, kLongest = 64, kNamed = 3;
  std::vector<std::pair<size_t, std::string>> found;
  for (const fs::path& path : wanted) {
    const std::string word = path.filename().string().substr(0, kLongest);
    std::error_code error;
    size_t entries = 0;
    for (fs::directory_iterator at(folder_of(path), error); !error && at != fs::directory_iterator() && entries < kMaxEntries; at.increment(error), ++entries) {
      const std::string name = at->path().filename().string().substr(0, kLongest);
      if (name.starts_with('.')) continue;
      const size_t distance = edit_distance(word, name);
      if (are_similar(word, name, distance)) found.emplace_back(distance, at->path().lexically_normal().string());
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(found.size(), kNamed); ++i) names.push_back(found[i].second);
  return names;
}

}  // namespace

std::string find_source(const std::string& source, const char* remedy) {
  const std::vector<fs::path> places = candidates(source);
  for (const fs::path& place : places)
    if (exists(place, source)) return place.string();
  std::vector<std::string> folders;
  for (const fs::path& place : places) folders.push_back(folder_of(place).string());
  if (is_pattern(source)) fail(ErrorCode::io, "[data] {}: no file in {} matches; check the pattern", source, config::join(folders, ", "));
  const std::vector<std::string> similar = similar_names(places);
  fail(ErrorCode::io, "[data] {}: there is no such file or folder in {}; {}; {}", source, config::join(folders, ", "),
       similar.empty() ? "nothing there has a similar name" : fmt::format("similar: {}", config::join(similar, ", ")), remedy);
}

}  // namespace ridge
