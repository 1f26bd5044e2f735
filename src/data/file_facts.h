// What a file holds, found by reading all of it in pieces.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "io/checksum.h"

namespace ridge {

struct FileFacts {
  std::string checksum;       // of all bytes
  int64_t largest_token = 0;  // where tokens were looked at
};

// `width`: bytes of the tokens that begin at `offset`; 0: not tokens. Facts on large files are kept in the folder `memory` (empty: nowhere)
// under the file's size, time and place on the disk, so that a corpus is read once and not at every start.
FileFacts facts_of(const std::string& path, int width, int64_t offset, const std::filesystem::path& memory);

// The first `bytes` bytes of a file. ErrorCode::io: there are fewer.
void add_file(Checksum& sum, const std::string& path, int64_t bytes);

}  // namespace ridge
