#include "data/token_store.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/file_facts.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "ridge tokens 1";
constexpr const char *kIndex = "index.json", *kTokenizer = "tokenizer.json";
constexpr uintmax_t kLargestIndex = uintmax_t(1) << 28;
constexpr int64_t kMaxTokens = int64_t(1) << 48;
constexpr int64_t kMaxToCheck = int64_t(1) << 28;  // reads in a moment

template <class T>
void narrow(std::span<const Token> from, std::byte* to) {
  for (size_t i = 0; i < from.size(); ++i) {
    const T token = T(from[i]);
    std::memcpy(to + i * sizeof(T), &token, sizeof(T));
  }
}

Json part_json(const StoredPart& part, double characters, double bytes) {
  Json shards = Json::array();
  for (const StoredPart::Shard& shard : part.shards) shards.push_back({{"file", shard.file}, {"tokens", shard.tokens}});
  return {{"tokens", part.tokens}, {"characters", characters}, {"bytes", bytes}, {"checksum", part.checksum}, {"shards", shards}};
}

std::optional<Json> read_index(const fs::path& folder) {
  std::error_code error;
  const fs::path path = folder / kIndex;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error || bytes > kLargestIndex) return {};
  std::ifstream file(path, std::ios::binary);
  Json index = Json::parse(file, nullptr, false);
  const Json format = index.is_object() ? index.value("format", Json()) : Json();
  if (!format.is_string() || format.get_ref<const std::string&>() != kFormat) return {};
  return index;
}

// Reads an index strictly: anything that Ridge does not write is an error naming the file.
class IndexReader {
 public:
  IndexReader(const fs::path& folder, const Json& index) : folder_(folder), index_(index) {}

  Dataset read() const {
    try {
      return read_all();
    } catch (const Json::exception& error) {
      refuse(error.what());
    }
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorCode::io, "[data] {}: {}; create it again with ridge data prepare", (folder_ / kIndex).string(), what);
  }

  Dataset read_all() const {
    Dataset out;
    out.folder = folder_;
    out.fingerprint = index_.at("fingerprint");
    out.vocab = index_.at("vocab");
    const int width = index_.at("bytes_per_token");
    if (out.vocab < 1 || width != bytes_for_tokens(out.vocab)) refuse("vocab and bytes_per_token do not match");
    out.tokenizer = load_tokenizer((folder_ / kTokenizer).string());
    if (out.tokenizer->vocab_size() != out.vocab)
      refuse(fmt::format("a vocabulary of {}, and {} tokens in {}", out.vocab, out.tokenizer->vocab_size(), kTokenizer));
    const Json &train = index_.at("train"), &validation = index_.at("validation");
    out.train = map_part(train, width, out.vocab);
    out.validation = map_part(validation, width, out.vocab);
    out.train_characters = train.at("characters");
    out.train_bytes = train.at("bytes");
    out.validation_characters = validation.at("characters");
    out.validation_bytes = validation.at("bytes");
    out.notes = index_.at("notes").get<std::vector<std::string>>();
    out.learnt_from = index_.value("learnt_from", "");
    read_windows(out);
    return out;
  }

  TokenArray map_part(const Json& part, int width, int64_t vocab) const {
    std::vector<TokenArray::Shard> shards;
    int64_t tokens = 0;
    for (const Json& shard : part.at("shards")) {
      const std::string file = shard.at("file");
      if (file.empty() || file.find('/') != std::string::npos) refuse("a shard outside of the folder");
      shards.push_back({(folder_ / file).string(), 0, shard.at("tokens")});
      if (shards.back().tokens < 0 || shards.back().tokens > kMaxTokens - tokens) refuse("a shard with an impossible number of tokens");
      tokens += shards.back().tokens;
    }
    if (part.at("tokens").get<int64_t>() != tokens) refuse("the shards contain a different number of tokens than their part");
    TokenArray out(shards, width, vocab);
    if (out.mapped_bytes() > kMaxToCheck) return out;
    Checksum sum;
    for (const TokenArray::Shard& shard : shards) add_file(sum, shard.path, shard.tokens * width);
    if (sum.hex() != part.at("checksum").get<std::string>()) refuse("the shards were changed after they were written");
    return out;
  }

  void read_windows(Dataset& out) const {
    if (!index_.contains("windows")) return;
    const Json& windows = index_.at("windows");
    out.window_starts = windows.at("starts").get<std::vector<int64_t>>();
    out.window_nats = windows.at("nats").get<std::vector<double>>();
    out.window_characters = windows.at("characters").get<std::vector<double>>();
    const bool ascending = std::is_sorted(out.window_starts.begin(), out.window_starts.end());
    const bool within = out.window_starts.empty() || (out.window_starts.front() >= 0 && out.window_starts.back() < out.validation.size());
    if (out.window_nats.size() != out.window_starts.size() || out.window_characters.size() != out.window_starts.size() || !ascending || !within)
      refuse("windows that contradict each other");
    out.possible = possible_loss(out, 0);
  }

  const fs::path& folder_;
  const Json& index_;
};

}  // namespace

int bytes_for_tokens(int64_t vocab) { return vocab <= 1 << 8 ? 1 : vocab <= 1 << 16 ? 2 : 4; }

TokenWriter::TokenWriter(fs::path folder, std::string part, int64_t vocab, int64_t shard_bytes)
    : folder_(std::move(folder)), width_(bytes_for_tokens(vocab)), shard_tokens_(std::max<int64_t>(shard_bytes / width_, 1)), name_(std::move(part)) {}

void TokenWriter::add(std::span<const Token> tokens) {
  while (!tokens.empty()) {
    if (!file_) {
      part_.shards.push_back({fmt::format("{}_{:05}.bin", name_, part_.shards.size()), 0});
      file_ = std::make_unique<AtomicFile>((folder_ / part_.shards.back().file).string());
    }
    StoredPart::Shard& shard = part_.shards.back();
    const auto some = tokens.first(size_t(std::min<int64_t>(int64_t(tokens.size()), shard_tokens_ - shard.tokens)));
    narrow_.resize(some.size() * size_t(width_));
    width_ == 1 ? narrow<uint8_t>(some, narrow_.data()) : width_ == 2 ? narrow<uint16_t>(some, narrow_.data()) : narrow<uint32_t>(some, narrow_.data());
    file_->write(narrow_);
    sum_.add(narrow_);
    shard.tokens += int64_t(some.size());
    part_.tokens += int64_t(some.size());
    tokens = tokens.subspan(some.size());
    if (shard.tokens == shard_tokens_) std::exchange(file_, nullptr)->commit();
  }
}

StoredPart TokenWriter::finish() {
  if (file_) std::exchange(file_, nullptr)->commit();
  part_.checksum = sum_.hex();
  return part_;
}

void write_index(const fs::path& folder, const std::string& key, const Dataset& data, const StoredPart& train, const StoredPart& validation) {
  save_tokenizer(*data.tokenizer, (folder / kTokenizer).string());
  Json index = {{"format", kFormat},
                {"key", key},
                {"fingerprint", checksum_of(train.checksum + validation.checksum + data.tokenizer->json())},
                {"vocab", data.vocab},
                {"bytes_per_token", bytes_for_tokens(data.vocab)},
                {"notes", data.notes},
                {"train", part_json(train, data.train_characters, data.train_bytes)},
                {"validation", part_json(validation, data.validation_characters, data.validation_bytes)}};
  if (!data.learnt_from.empty()) index["learnt_from"] = data.learnt_from;
  if (!data.window_starts.empty()) index["windows"] = {{"starts", data.window_starts}, {"nats", data.window_nats}, {"characters", data.window_characters}};
  const std::string text = index.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  write_atomically((folder / kIndex).string(), text);
}

std::optional<std::string> stored_key(const fs::path& folder) {
  const std::optional<Json> index = read_index(folder);
  if (!index || !index->contains("key") || !(*index)["key"].is_string()) return {};
  return (*index)["key"].get<std::string>();
}

bool is_store_file(std::string_view name) {
  if (name.ends_with(".part")) name.remove_suffix(5);
  return name == kIndex || name == kTokenizer || (name.ends_with(".bin") && (name.starts_with("train_") || name.starts_with("validation_")));
}

Dataset open_store(const fs::path& folder) {
  const std::optional<Json> index = read_index(folder);
  if (!index) fail(ErrorCode::io, "[data] {}: no index.json of Ridge, or it is damaged; create it again with ridge data prepare", folder.string());
  return IndexReader(folder, *index).read();
}

}  // namespace ridge
