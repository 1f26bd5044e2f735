// A folder of tokens: shards of the training and validation parts, tokenizer.json, and index.json, which is written last.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "io/atomic_file.h"
#include "io/checksum.h"

namespace ridge {

int bytes_for_tokens(int64_t vocab);  // the smallest of 1, 2 and 4 that fits every token

struct StoredPart {
  struct Shard {
    std::string file;
    int64_t tokens = 0;
  };
  std::vector<Shard> shards;
  int64_t tokens = 0;
  std::string checksum;  // of all tokens as stored
};

// Writes a part in shards as its tokens arrive. An unfinished part leaves nothing that an index refers to.
class TokenWriter {
 public:
  static constexpr int64_t kShardBytes = int64_t(1) << 28;
  TokenWriter(std::filesystem::path folder, std::string part, int64_t vocab, int64_t shard_bytes = kShardBytes);

  void add(std::span<const Token> tokens);  // each below the vocabulary's size
  StoredPart finish();

 private:
  std::filesystem::path folder_;
  int width_;
  int64_t shard_tokens_;
  std::string name_;
  StoredPart part_;
  std::unique_ptr<AtomicFile> file_;
  Checksum sum_;
  std::vector<std::byte> narrow_;
};

// Everything in the data set except its tokens, which are already in the folder.
void write_index(const std::filesystem::path& folder, const std::string& key, const Dataset& data, const StoredPart& train, const StoredPart& validation);

// The key of a folder's tokens; empty: it has no Ridge index.
std::optional<std::string> stored_key(const std::filesystem::path& folder);

bool is_store_file(std::string_view name);  // a file that such a folder contains, possibly only while it is written

// ErrorCode::io: something is missing, truncated or changed. Checksums are compared unless there are very many tokens.
Dataset open_store(const std::filesystem::path& folder);

}  // namespace ridge
