#include "data/builtin.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "data/byte_tokenizer.h"
#include "data/char_tokenizer.h"
#include "data/stories.h"
#include "data/text_tokens.h"
#include "data/token_store.h"

namespace ridge {
namespace {

constexpr int64_t kTrainBytes = int64_t(8) << 20;
constexpr int64_t kBytesToLearnFrom = int64_t(2) << 20;
constexpr size_t kWindows = 2048;
constexpr int64_t kCharactersAtOnce = int64_t(1) << 15;
constexpr int64_t kValidationStories = int64_t(1) << 40;  // the number of the first one, so that none is also a training story
constexpr int64_t kShortestBlock = 64;                    // for which the grammar has several forms
constexpr int64_t kUsualBlock = 256;

int64_t block_of(const DatasetOptions& options) { return options.block > 0 ? options.block : kUsualBlock; }

class Corpus {
 public:
  explicit Corpus(const DatasetOptions& options)
      : options_(options),
        block_(block_of(options)),
        stories_(std::max(block_, kShortestBlock)),
        at_once_(std::clamp<int64_t>(kCharactersAtOnce / block_, 16, 512)) {}

  void make(const std::filesystem::path& folder, const std::string& key) {
    choose_tokenizer();
    data_.vocab = tokenizer_->vocab_size();
    data_.tokenizer = tokenizer_;
    const StoredPart train = write_training_part(folder), validation = write_validation_part(folder);
    data_.notes = {fmt::format("{} stories, {}; {} validation windows begin with a story", stories_written_, size_text(int64_t(data_.train_bytes)), kWindows),
                   fmt::format("{} tokenizer, {} tokens", tokenizer_->name(), data_.vocab)};
    write_index(folder, key, data_, train, validation);
  }

 private:
  // Passes stories first, first + 1, … through work(stories) on several threads, a few at a time, and calls take(result) here, in order, while it returns true.
  // Generating is cheap: generating stories twice is faster than storing them.
  template <class Work, class Take>
  void generate(int64_t first, const Work& work, const Take& take) const {
    using Result = decltype(work(std::vector<std::string>()));
    std::vector<Result> results(size_t(4 * worker_threads()));
    for (bool more = true; more; first += int64_t(results.size()) * at_once_) {
      on_threads(results.size(), [&](size_t r) {
        std::vector<std::string> stories;
        for (int64_t i = 0; i < at_once_; ++i) stories.push_back(stories_.story(options_.seed, first + int64_t(r) * at_once_ + i));
        results[r] = work(stories);
      });
      for (size_t r = 0; r < results.size() && more; ++r) more = take(results[r]);
    }
  }

  static std::string joined(const std::vector<std::string>& stories) { return std::accumulate(stories.begin(), stories.end(), std::string()); }

  void choose_tokenizer() {
    tokenizer_ = ready_tokenizer(options_);
    if (tokenizer_) return;
    if (options_.tokenizer == "byte") {
      tokenizer_ = std::make_shared<ByteTokenizer>();
    } else if (options_.tokenizer == "bpe") {
      const std::string text = text_of(0, kBytesToLearnFrom);
      const std::string_view view = text;
      tokenizer_ = learn_bpe(std::span(&view, 1), options_.vocab, kTrainBytes);
    } else {
      // A window needs at most its block plus one more story of the validation text.
      const int64_t most = int64_t(kWindows + 1) * 2 * std::max(block_, kShortestBlock);
      tokenizer_ =
          std::make_shared<CharTokenizer>(CharTokenizer::of_text(Stories::kEnd + characters_of(0, kTrainBytes) + characters_of(kValidationStories, most)));
    }
  }

  std::string text_of(int64_t first, int64_t bytes) const {
    std::string text;
    generate(first, joined, [&](const std::string& more) { return int64_t((text += more).size()) < bytes; });
    return text;
  }

  // Characters that occur in this many bytes, once or a few times each.
  std::string characters_of(int64_t first, int64_t bytes) const {
    struct Seen {
      std::string characters;
      int64_t bytes = 0;
    };
    std::string all;
    const auto scan = [](const std::vector<std::string>& stories) {
      Seen seen;
      std::array<bool, 256> known = {};
      for (const std::string& story : stories)
        for (char c : story)
          if (++seen.bytes; !std::exchange(known[uint8_t(c)], true)) seen.characters += c;
      return seen;
    };
    generate(first, scan, [&](const Seen& seen) {
      for (char c : seen.characters)
        if (all.find(c) == all.npos) all += c;
      return (bytes -= seen.bytes) > 0;
    });
    return all;
  }

  std::vector<Token> encode(std::string_view text) const {
    try {
      return tokenizer_->encode(text);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::value) throw;
      fail(ErrorCode::io, "[data] builtin: {}", error.what());
    }
  }

  StoredPart write_training_part(const std::filesystem::path& folder) {
    struct Encoded {
      std::vector<Token> tokens;
      int64_t bytes = 0;
    };
    TokenWriter writer(folder, "train", data_.vocab);
    writer.add(encode(std::string(1, Stories::kEnd)));
    int64_t bytes = 1;
    const auto work = [&](const std::vector<std::string>& stories) {
      const std::string text = joined(stories);
      return Encoded{encode(text), int64_t(text.size())};
    };
    generate(0, work, [&](const Encoded& some) {
      writer.add(some.tokens);
      stories_written_ += at_once_;
      return (bytes += some.bytes) < kTrainBytes;
    });
    data_.train_characters = data_.train_bytes = double(bytes);  // the stories are ASCII
    return writer.finish();
  }

  // A window's first token is the end of the previous story, so that its first target begins a story. The next window begins with the first story after its
  // targets.
  StoredPart write_validation_part(const std::filesystem::path& folder) {
    struct EncodedStory {
      std::vector<Token> tokens;
      std::vector<double> nats;  // of each character
    };
    const auto work = [&](const std::vector<std::string>& stories) {
      std::vector<EncodedStory> encoded;
      for (const std::string& story : stories) encoded.push_back({encode(story), stories_.nats(story)});
      return encoded;
    };
    TokenWriter writer(folder, "validation", data_.vocab);
    writer.add(encode(std::string(1, Stories::kEnd)));
    int64_t written = 1;
    generate(kValidationStories, work, [&](const std::vector<EncodedStory>& encoded) {
      for (const EncodedStory& story : encoded) {
        if (data_.window_starts.empty() || written > data_.window_starts.back() + block_) {
          if (data_.window_starts.size() == kWindows) return false;
          data_.window_starts.push_back(written - 1);
          data_.window_nats.push_back(0);
          data_.window_characters.push_back(0);
        }
        weigh(story.tokens, story.nats, data_.window_starts.back() + block_ + 1 - written);
        writer.add(story.tokens);
        written += int64_t(story.tokens.size());
      }
      return true;
    });
    // Uses the windows' own ratio, since losses are computed on windows: text between them does not count.
    const double characters = std::accumulate(data_.window_characters.begin(), data_.window_characters.end(), 0.0);
    data_.validation_characters = data_.validation_bytes = characters / (double(kWindows) * double(block_)) * double(written);
    return writer.finish();
  }

  // Adds the first `most` tokens of a story to the last window.
  void weigh(const std::vector<Token>& tokens, const std::vector<double>& nats, int64_t most) {
    size_t characters = 0;
    for (size_t i = 0; i < tokens.size() && int64_t(i) < most; ++i) characters += tokenizer_->bytes_of(tokens[i]).size();
    data_.window_nats.back() += std::accumulate(nats.begin(), nats.begin() + std::ptrdiff_t(characters), 0.0);
    data_.window_characters.back() += double(characters);
  }

  DatasetOptions options_;
  int64_t block_;
  Stories stories_;
  int64_t at_once_;  // stories that a thread generates at a time
  int64_t stories_written_ = 0;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Dataset data_;
};

}  // namespace

TokenRecipe builtin_recipe(const DatasetOptions& options) {
  // A few stories represent the grammar: they change whenever it does.
  const int64_t block = block_of(options);
  const Stories stories(std::max(block, kShortestBlock));
  std::string content = fmt::format("builtin 1 {} {} {} {} {}", options.seed, block, kTrainBytes, kWindows, tokenizer_identity(options));
  for (int64_t i = 0; i < 64; ++i) content += stories.story(options.seed, i);
  const std::string key = checksum_of(content);
  return {key, [=](const std::filesystem::path& folder) { Corpus(options).make(folder, key); }};
}

}  // namespace ridge
