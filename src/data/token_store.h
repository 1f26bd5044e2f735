// A folder of tokens: shards of the training and the validation part, tokenizer.json, and index.json, which is written last.
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

int bytes_for_tokens(int64_t vocab);  // the least of 1, 2 and 4 that holds every token

struct StoredPart {
  struct Shard {
    std::string file;
    int64_t tokens = 0;
  };
  std::vector<Shard> shards;
  int64_t tokens = 0;
  std::string checksum;  // of all tokens as they are stored
};

// Writes a part in shards as its tokens come. What is not finished leaves nothing that an index names.
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

// Everything of the data set but its tokens, which are in the folder already.
void write_index(const std::filesystem::path& folder, const std::string& key, const Dataset& data, const StoredPart& train, const StoredPart& validation);

// The key of a folder's tokens; empty: no index of Ridge is there.
std::optional<std::string> stored_key(const std::filesystem::path& folder);

bool is_store_file(std::string_view name);  // one that such a folder has, or has while it is written

// ErrorCode::io: something is missing, cut off or changed. Checksums are compared unless the tokens are very many.
Dataset open_store(const std::filesystem::path& folder);

}  // namespace ridge
