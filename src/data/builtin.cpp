#include "data/builtin.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "data/byte_tokenizer.h"
#include "data/char_tokenizer.h"
#include "data/stories.h"
#include "data/text_tokens.h"
#include "data/token_store.h"

namespace ridge {
namespace {

constexpr int64_t kTrainBytes = int64_t(4) << 20;
constexpr size_t kWindows = 2048;
constexpr int64_t kStoriesAtOnce = 256;
constexpr int64_t kValidationStories = int64_t(1) << 40;  // the number of the first one, so that no training story is among them
constexpr int64_t kShortestBlock = 64;                    // for which the grammar has several forms
constexpr int64_t kUsualBlock = 256;

int64_t block_of(const DatasetOptions& options) { return options.block > 0 ? options.block : kUsualBlock; }

// Stories first, first + 1, … as texts, some at a time and in their order, until `take` says that it has enough.
void tell(const Stories& stories, uint64_t seed, int64_t first, bool with_nats,
          const std::function<bool(const std::string&, const std::vector<double>&)>& take) {
  struct Chunk {
    std::vector<std::string> texts;
    std::vector<std::vector<double>> nats;
  };
  std::vector<Chunk> chunks(size_t(2 * worker_threads()));
  for (bool more = true; more;) {
    on_threads(chunks.size(), [&](size_t c) {
      chunks[c] = {};
      for (int64_t i = 0; i < kStoriesAtOnce; ++i) {
        chunks[c].texts.push_back(stories.story(seed, first + int64_t(c) * kStoriesAtOnce + i));
        chunks[c].nats.push_back(with_nats ? stories.nats(chunks[c].texts.back()) : std::vector<double>());
      }
    });
    for (const Chunk& chunk : chunks)
      for (size_t i = 0; i < chunk.texts.size() && more; ++i) more = take(chunk.texts[i], chunk.nats[i]);
    first += int64_t(chunks.size()) * kStoriesAtOnce;
  }
}

class Corpus {
 public:
  explicit Corpus(const DatasetOptions& options) : options_(options), block_(block_of(options)), stories_(std::max(block_, kShortestBlock)) {}

  void make(const std::filesystem::path& folder, const std::string& key) {
    write_training_text();
    choose_tokenizer();
    data_.vocab = tokenizer_->vocab_size();
    data_.tokenizer = tokenizer_;
    const StoredPart train = write_training_part(folder), validation = write_validation_part(folder);
    data_.notes = {fmt::format("{} stories, {}; {} validation windows begin with a story", stories_told_, size_text(int64_t(text_.size())), kWindows),
                   fmt::format("{} tokenizer, {} tokens", tokenizer_->name(), data_.vocab)};
    write_index(folder, key, data_, train, validation);
  }

 private:
  void write_training_text() {
    text_ = Stories::kEnd;
    tell(stories_, options_.seed, 0, false, [&](const std::string& story, const auto&) {
      text_ += story;
      ++stories_told_;
      return int64_t(text_.size()) < kTrainBytes;
    });
    data_.train_characters = data_.train_bytes = double(text_.size());  // the stories are ASCII
  }

  void choose_tokenizer() {
    tokenizer_ = ready_tokenizer(options_);
    if (tokenizer_) return;
    const std::string_view text = text_;
    if (options_.tokenizer == "byte")
      tokenizer_ = std::make_shared<ByteTokenizer>();
    else if (options_.tokenizer == "bpe")
      tokenizer_ = learn_bpe(std::span(&text, 1), options_.vocab, int64_t(text.size()));
    else
      tokenizer_ = std::make_shared<CharTokenizer>(CharTokenizer::of_text(text));
  }

  std::vector<Token> encode(std::string_view text) const {
    try {
      return tokenizer_->encode(text);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::value) throw;
      fail(ErrorCode::io, "[data] builtin: {}", error.what());
    }
  }

  StoredPart write_training_part(const std::filesystem::path& folder) const {
    constexpr size_t kPiece = size_t(1) << 18;
    std::vector<std::string_view> pieces;
    for (size_t begin = 0, end = 0; begin < text_.size(); begin = end) {
      end = std::min(text_.find(Stories::kEnd, begin + kPiece), text_.size() - 1) + 1;
      pieces.push_back(std::string_view(text_).substr(begin, end - begin));
    }
    std::vector<std::vector<Token>> tokens(pieces.size());
    on_threads(pieces.size(), [&](size_t i) { tokens[i] = encode(pieces[i]); });
    TokenWriter writer(folder, "train", data_.vocab);
    for (const std::vector<Token>& some : tokens) writer.add(some);
    return writer.finish();
  }

  // The first token of a window is the end of the story before, so that its first target begins a story. The next window begins with the
  // first story behind its targets.
  StoredPart write_validation_part(const std::filesystem::path& folder) {
    std::vector<Token> tokens = encode(std::string(1, Stories::kEnd));
    std::vector<double> nats = {0};  // of each character
    const int64_t window = block_;
    tell(stories_, options_.seed, kValidationStories, true, [&](const std::string& story, const std::vector<double>& of_story) {
      const int64_t boundary = int64_t(tokens.size()) - 1;
      if (data_.window_starts.empty() || boundary >= data_.window_starts.back() + window) {
        if (data_.window_starts.size() == kWindows) return false;
        data_.window_starts.push_back(boundary);
      }
      const std::vector<Token> more = encode(story);
      tokens.insert(tokens.end(), more.begin(), more.end());
      nats.insert(nats.end(), of_story.begin(), of_story.end());
      return true;
    });
    weigh_windows(tokens, nats);
    TokenWriter writer(folder, "validation", data_.vocab);
    writer.add(tokens);
    return writer.finish();
  }

  void weigh_windows(const std::vector<Token>& tokens, const std::vector<double>& nats) {
    std::vector<size_t> end_of;  // the character behind each token
    for (size_t at = 0; Token token : tokens) end_of.push_back(at += tokenizer_->bytes_of(token).size());
    double characters = 0;
    for (int64_t start : data_.window_starts) {
      const size_t begin = end_of[size_t(start)], end = end_of[size_t(start + block_)];
      data_.window_nats.push_back(std::accumulate(nats.begin() + std::ptrdiff_t(begin), nats.begin() + std::ptrdiff_t(end), 0.0));
      data_.window_characters.push_back(double(end - begin));
      characters += double(end - begin);
    }
    // By the windows' own ratio, as losses are on windows: what lies between them does not count.
    const double targets = double(kWindows) * double(block_);
    data_.validation_characters = data_.validation_bytes = characters / targets * double(tokens.size());
  }

  DatasetOptions options_;
  int64_t block_;
  Stories stories_;
  std::string text_;  // of training
  int64_t stories_told_ = 0;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Dataset data_;
};

}  // namespace

TokenRecipe builtin_recipe(const DatasetOptions& options) {
  // Some stories stand for the grammar: when it changes, they do.
  const int64_t block = block_of(options);
  const Stories stories(std::max(block, kShortestBlock));
  std::string content = fmt::format("builtin 1 {} {} {} {} {}", options.seed, block, kTrainBytes, kWindows, tokenizer_identity(options));
  for (int64_t i = 0; i < 64; ++i) content += stories.story(options.seed, i);
  const std::string key = checksum_of(content);
  return {key, [=](const std::filesystem::path& folder) { Corpus(options).make(folder, key); }};
}

}  // namespace ridge
