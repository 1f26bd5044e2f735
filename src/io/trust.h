// Whether only this user and root can have written the contents of a path. Caches hold machine code, tokens and measurements that Ridge loads without asking,
// so a folder that others can write to must not be used as a cache.
#pragma once
#include <sys/stat.h>

#include <filesystem>
#include <string>

namespace ridge {

// Why others may have written here, with the command that fixes it: "/cache can be written by everybody (mode 777); run: chmod o-w /cache". Empty: only this
// user and root can, or nothing exists there. Write access for the user's own primary group is fine.
std::string why_untrusted(const struct stat& info, const std::filesystem::path& path);
std::string why_untrusted(const std::filesystem::path& path);  // for a link: checks both the link and its target

// The same for a folder and everything directly in it: files that others left there still belong to them after the folder was closed to them. Reports anything
// that is not a folder, without suggesting a change to it.
std::string why_untrusted_folder(const std::filesystem::path& folder);

// Creates a folder and its parents so that others cannot write to it, whatever the umask. Returns the reason if no trusted folder is available.
std::string make_private_folder(const std::filesystem::path& folder);

}  // namespace ridge
