#include "machine/control_groups.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "machine/system_files.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnlimited = int64_t(1) << 60;  // version 1 writes "none" as a number near 2^63

struct Mount {
  bool v2 = false;
  std::string point;     // mount point
  std::string root;      // the group mounted there
  std::string controls;  // ",cpu,cpuacct,": version 1 only
};

// A group's folder and how to read it.
struct GroupLevel {
  bool v2;
  bool own;  // this process's own group
  std::string folder;
};

std::string unescape(std::string_view text) {  // \040 is a space
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    auto digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '7' ? text[at] - '0' : -1; };
    if (text[i] == '\\' && digit(i + 1) >= 0 && digit(i + 2) >= 0 && digit(i + 3) >= 0) {
      out += char(64 * digit(i + 1) + 8 * digit(i + 2) + digit(i + 3));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::vector<Mount> read_mounts(const std::string& text) {
  std::vector<Mount> mounts;
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view line = take_line(rest);  // id parent device root point options … - type source options
    for (int i = 0; i < 3; ++i) take_word(line);
    const std::string root = unescape(take_word(line)), point = unescape(take_word(line));
    const size_t dash = line.find(" - ");
    if (dash == line.npos || point.empty() || root.empty()) continue;
    line.remove_prefix(dash + 3);
    const std::string_view type = take_word(line);
    take_word(line);
    if (type == "cgroup2") mounts.push_back({true, point, root, ""});
    if (type == "cgroup") mounts.push_back({false, point, root, "," + std::string(take_word(line)) + ","});
  }
  return mounts;
}

// The usual locations, for a system that does not list its mounts.
std::vector<Mount> usual_mounts(const fs::path& root) {
  std::vector<Mount> mounts;
  std::error_code ignored;
  if (fs::exists(root / "sys/fs/cgroup/cgroup.controllers", ignored)) mounts.push_back({true, "/sys/fs/cgroup", "/", ""});
  for (std::string control : {"cpu", "cpuset", "memory"})
    if (fs::exists(root / "sys/fs/cgroup" / control, ignored)) mounts.push_back({false, "/sys/fs/cgroup/" + control, "/", "," + control + ","});
  return mounts;
}

// The path of this process's group in a hierarchy; "/" if unknown.
std::string group_path(std::string_view text, const Mount& mount) {
  while (!text.empty()) {
    const std::string_view line = take_line(text);  // number:controls:path
    const size_t a = line.find(':'), b = a == line.npos ? a : line.find(':', a + 1);
    if (b == line.npos) continue;
    const std::string_view controls = line.substr(a + 1, b - a - 1), path = line.substr(b + 1);
    const std::string first = "," + std::string(controls.substr(0, controls.find(','))) + ",";
    if (mount.v2 ? controls.empty() : !controls.empty() && mount.controls.find(first) != std::string::npos) return std::string(path);
  }
  return "/";
}

// From the process's own group up to the mount. A group outside the mount appears as the mount itself.
std::vector<GroupLevel> levels(const Mount& mount, std::string path) {
  constexpr size_t kDeepest = 64;
  if (path.find("/..") != path.npos) path.clear();
  if (mount.root != "/") path = path.starts_with(mount.root) ? path.substr(mount.root.size()) : "";
  while (!path.empty() && path.back() == '/') path.pop_back();
  if (!path.empty() && path.front() != '/') path.clear();
  std::vector<GroupLevel> out;
  while (out.size() < kDeepest) {
    out.push_back({mount.v2, out.empty(), mount.point + path});
    if (path.empty()) break;
    path.resize(path.rfind('/'));
  }
  return out;
}

class Reader {
 public:
  explicit Reader(const fs::path& root) : root_(root) {}

  std::string text(const std::string& file) const { return read_system_file(root_ / fs::path(file).relative_path()); }
  std::optional<int64_t> number(const std::string& file) const { return parse_number(text(file)); }

 private:
  fs::path root_;
};

void read_quota(const Reader& read, const GroupLevel& level, GroupLimits& out) {
  std::optional<int64_t> quota, period;
  std::string source = level.folder + (level.v2 ? "/cpu.max" : "/cpu.cfs_quota_us");
  const std::string text = read.text(source);
  std::string_view rest = text;
  quota = parse_number(take_word(rest));  // "max" and -1: none
  period = level.v2 ? parse_number(rest) : read.number(level.folder + "/cpu.cfs_period_us");
  if (quota && *quota > 0 && period && *period > 0) out.quotas.push_back({double(*quota) / double(*period), source});
}

// The value after a word, in lines of the form "word value".
int64_t entry(std::string_view text, std::string_view word) {
  while (!text.empty()) {
    std::string_view line = take_line(text);
    if (take_word(line) == word) return parse_number(line).value_or(0);
  }
  return 0;
}

void read_memory(const Reader& read, const GroupLevel& level, GroupLimits& out) {
  const std::string& f = level.folder;
  std::string stat;  // slow to read, so only where it matters
  auto add = [&](std::optional<int64_t> limit, const char* usage, const char* droppable, const char* file) {
    if (!limit || *limit <= 0 || *limit >= kUnlimited) return;
    if (stat.empty()) stat = read.text(f + "/memory.stat");
    // File pages that were not used recently are reclaimed before the limit takes effect.
    const int64_t used = read.number(f + usage).value_or(0);
    out.memory.push_back({*limit, used - std::min(used, entry(stat, droppable)), f + file});
  };
  if (level.v2) {
    // Above memory.high the process is slowed down until it frees memory.
    for (const char* file : {"/memory.max", "/memory.high"}) add(read.number(f + file), "/memory.current", "inactive_file", file);
  } else {
    add(read.number(f + "/memory.limit_in_bytes"), "/memory.usage_in_bytes", "total_inactive_file", "/memory.limit_in_bytes");
    // Includes groups outside a container; those inside are visited anyway.
    if (level.own) {
      stat = read.text(f + "/memory.stat");
      add(entry(stat, "hierarchical_memory_limit"), "/memory.usage_in_bytes", "total_inactive_file", "/memory.stat");
    }
  }
}

void read_cpuset(const Reader& read, const GroupLevel& level, GroupLimits& out) {
  for (const char* file : {"/cpuset.cpus.effective", "/cpuset.effective_cpus", "/cpuset.cpus"})
    if (auto cpus = parse_cpu_list(read.text(level.folder + file)); !cpus.empty()) {
      out.cpusets.push_back({std::move(cpus), level.folder + file});
      return;
    }
}

}  // namespace

GroupLimits read_control_groups(const fs::path& root) {
  const Reader read(root);
  const std::string groups = read.text("proc/self/cgroup");
  std::vector<Mount> mounts = read_mounts(read.text("proc/self/mountinfo"));
  if (mounts.empty()) mounts = usual_mounts(root);
  GroupLimits out;
  for (const Mount& mount : mounts) {
    auto controls = [&](const char* name) { return mount.v2 || mount.controls.find(name) != std::string::npos; };
    for (const GroupLevel& level : levels(mount, group_path(groups, mount))) {
      if (controls(",cpu,")) read_quota(read, level, out);
      if (controls(",memory,")) read_memory(read, level, out);
      if (controls(",cpuset,")) read_cpuset(read, level, out);
    }
  }
  return out;
}

}  // namespace ridge
