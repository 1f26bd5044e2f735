// Whether only this user and root can have written what a path holds. Caches hold machine code, tokens and measurements, and Ridge loads
// them without asking: a folder that somebody else may write to must not be one.
#pragma once
#include <sys/stat.h>

#include <filesystem>
#include <string>

namespace ridge {

// Why others may have written here, with the command that fixes it: "/cache can be written by everybody (mode 777); run: chmod o-w /cache".
// Empty: only this user and root can, or nothing is there. Write access for the user's own primary group is fine.
std::string why_untrusted(const struct stat& info, const std::filesystem::path& path);
std::string why_untrusted(const std::filesystem::path& path);  // of a link: both the link and what it leads to

// The same for a folder and everything directly in it: files that others left there stay theirs after the folder was closed to them.
// What is not a folder is called so, and nothing is advised to be changed about it.
std::string why_untrusted_folder(const std::filesystem::path& folder);

// Makes a folder that others cannot write to, whatever the umask, and its parents. The reason when there is none that can be trusted.
std::string make_private_folder(const std::filesystem::path& folder);

}  // namespace ridge
