// Facts about a file's contents, found by reading all of it in pieces.
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
  int64_t largest_token = 0;  // if the file was read as tokens
};

// `width`: bytes per token, starting at `offset`; 0: not tokens. Facts about large files are stored in the folder `memory` (empty: nowhere), keyed by the
// file's size, time and inode, so that a corpus is read once and not at every start.
FileFacts facts_of(const std::string& path, int width, int64_t offset, const std::filesystem::path& memory);

// The first `bytes` bytes of a file. ErrorCode::io: it is shorter.
void add_file(Checksum& sum, const std::string& path, int64_t bytes);

}  // namespace ridge
