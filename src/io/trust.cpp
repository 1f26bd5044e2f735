#include "io/trust.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include <fmt/core.h>

namespace ridge {

namespace fs = std::filesystem;

std::string why_untrusted(const struct stat& info, const fs::path& path) {
  const uid_t user = ::geteuid();
  if (info.st_uid != user && info.st_uid != 0)
    return fmt::format("{0} belongs to user {1}, not to this user ({2}); remove it, or run as root: chown {2} {0}", path.string(), info.st_uid, user);
  if (S_ISLNK(info.st_mode)) return {};  // links have no permissions of their own
  const bool others = info.st_mode & S_IWOTH, group = (info.st_mode & S_IWGRP) && info.st_gid != ::getegid();
  if (!others && !group) return {};
  return fmt::format("{0} can be written by {1} (mode {2:o}); run: chmod {3}-w {0}", path.string(),
                     others ? std::string("everyone") : fmt::format("group {}", info.st_gid), info.st_mode & 07777,
                     others && group ? "go"
                     : others        ? "o"
                                     : "g");
}

std::string why_untrusted(const fs::path& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) return {};
  std::string why = why_untrusted(info, path);
  if (why.empty() && S_ISLNK(info.st_mode) && ::stat(path.c_str(), &info) == 0) why = why_untrusted(info, path);
  return why;
}

std::string why_untrusted_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error)) return fmt::format("{} is not a folder", folder.string());
  std::string why = why_untrusted(folder);
  for (fs::directory_iterator at(folder, error), end; why.empty() && !error && at != end; at.increment(error)) why = why_untrusted(at->path());
  return why;
}

std::string make_private_folder(const fs::path& folder) {
  std::error_code error;
  const fs::path parent = folder.parent_path();
  if (!parent.empty() && parent != folder && !fs::exists(parent, error))
    if (std::string why = make_private_folder(parent); !why.empty()) return why;
  if (::mkdir(folder.c_str(), 0700) == 0) return {};
  if (errno != EEXIST) return fmt::format("{} cannot be created: {}", folder.string(), std::strerror(errno));
  if (!fs::is_directory(folder, error)) return fmt::format("{} is not a folder", folder.string());
  return why_untrusted(folder);
}

}  // namespace ridge
