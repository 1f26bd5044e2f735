// manifest.json of a checkpoint: the names, sizes and checksums of its files.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace ridge {

struct Manifest {
  struct File {
    int64_t bytes = 0;
    std::string checksum;  // from Checksum::hex()
    bool operator==(const File&) const = default;
  };
  int64_t step = 0;
  std::map<std::string, File> files;
  bool operator==(const Manifest&) const = default;
};

constexpr size_t kMaxManifestBytes = size_t(1) << 20;
bool is_checkpoint_file_name(std::string_view name);  // letters, digits, '.', '_', '-'; not hidden, and not the manifest's own name

std::string format_manifest(const Manifest& manifest);
// Accepts exactly the bytes that format_manifest writes, so that any flipped bit is detected. `name` is the file's name in the ErrorCode::io message.
Manifest parse_manifest(std::string_view text, const std::string& name);

}  // namespace ridge
