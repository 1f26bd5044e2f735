// manifest.json of a checkpoint: which files belong to it, how long they are, and their checksums.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace ridge {

struct Manifest {
  struct File {
    int64_t bytes = 0;
    std::string checksum;  // as Checksum::hex() writes it
    bool operator==(const File&) const = default;
  };
  int64_t step = 0;
  std::map<std::string, File> files;
  bool operator==(const Manifest&) const = default;
};

constexpr size_t kMostManifestBytes = size_t(1) << 20;
bool is_checkpoint_file_name(std::string_view name);  // a plain visible name of letters, digits, '.', '_', '-', and not the manifest's

std::string format_manifest(const Manifest& manifest);
// Takes what format_manifest writes, byte for byte, and nothing else: no bit of it can be flipped unnoticed. `name` is what ErrorCode::io calls it.
Manifest parse_manifest(std::string_view text, const std::string& name);

}  // namespace ridge
