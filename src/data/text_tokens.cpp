#include "data/text_tokens.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/bpe_training.h"
#include "data/byte_tokenizer.h"
#include "data/char_tokenizer.h"
#include "data/file_facts.h"
#include "data/find_source.h"
#include "data/text_survey.h"
#include "data/token_store.h"
#include "machine/memory_budget.h"

namespace ridge {
namespace {

constexpr std::string_view kWords[] = {"auto", "char", "byte", "bpe"};
constexpr double kTrainShare = 0.9;                     // the same split as nanoGPT
constexpr int64_t kMaxForChars = int64_t(16) << 20;     // longer texts are worth a larger vocabulary
constexpr size_t kMaxChars = 256;                       // more is not an alphabet
constexpr int64_t kMaxToLearnFrom = int64_t(32) << 20;  // beyond this a vocabulary hardly changes

// Memory not available for learning: pieces being read and counted, and other heap memory.
constexpr int64_t kAtWork = int64_t(32) << 20, kCoarse = int64_t(16) << 20;
constexpr int64_t kMinRoom = int64_t(32) << 20;  // enough to learn from one piece of any text

// The budget rounded to an eighth of its power of two, so that a budget based on free memory usually gives the same vocabulary.
int64_t bounded_memory(int64_t memory) { return memory <= 0 ? 0 : memory & ~int64_t((std::bit_floor(uint64_t(memory)) >> 3) - 1); }

// The smallest budget in whole MiB that leaves this many bytes.
int64_t enough_memory(int64_t bytes) {
  int64_t memory = (bytes + (1 << 20) - 1) >> 20 << 20;
  while (bounded_memory(memory) < bytes) memory += 1 << 20;
  return memory;
}

// The square root of the text's size, rounded to a power of two: 1024 for 1 MB, 32768 for 1 GB.
int64_t vocabulary_size(int64_t asked, int64_t text_bytes) {
  if (asked > 0) return asked;
  return int64_t(1) << std::clamp<int64_t>(std::lround(std::log2(double(std::max<int64_t>(text_bytes, 1))) / 2), 9, 15);
}

std::string count(int64_t n, std::string_view what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }

// The texts of one source while they are tokenised.
class Tokenisation {
 public:
  Tokenisation(TextFiles texts, const DatasetOptions& options) : texts_(std::move(texts)), options_(options) {}

  void run(const std::filesystem::path& folder, const TokenRecipe& recipe) {
    const std::shared_ptr<const Tokenizer> ready = ready_tokenizer(options_);
    const TextCut cut = {options_.cut, ready ? ready->special() : SpecialTokens(byte_vocabulary().special)};
    survey_ = survey_texts(texts_, cut, progress("reading"));
    const int64_t train_characters = int64_t(double(survey_.characters) * kTrainShare);
    split_ = find_character(texts_, cut, survey_, train_characters);
    choose_tokenizer(ready, cut);

    Dataset data;
    data.tokenizer = tokenizer_;
    data.vocab = tokenizer_->vocab_size();
    data.learnt_from = learnt_from_;
    data.train_characters = double(train_characters);
    data.train_bytes = double(bytes_before(texts_, split_));
    data.validation_characters = double(survey_.characters - train_characters);
    data.validation_bytes = double(texts_.bytes) - data.train_bytes;
    data.notes = notes();
    const StoredPart train = write_part(folder, "train", {}, split_);
    const StoredPart validation = write_part(folder, "validation", split_, end());
    write_index(folder, learnt_from_.empty() ? recipe.key : recipe.bounded_key, data, train, validation);
  }

 private:
  TextPlace end() const { return {texts_.files.size(), 0}; }

  TextProgress progress(const char* what) const {
    if (!options_.progress) return {};
    return [this, what](double done) { options_.progress(what, done); };
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> out = {fmt::format("{}, {}, {} characters; the last 10 % are for validation", count(int64_t(texts_.files.size()), "text"),
                                                size_text(texts_.bytes), survey_.characters)};
    if (!texts_.skipped.empty()) out[0] += fmt::format("; {} skipped because of zero bytes", count(int64_t(texts_.skipped.size()), "file"));
    if (texts_.runs > 0) out[0] += fmt::format("; {} skipped", count(texts_.runs, "run folder"));
    out.push_back(fmt::format("{} tokenizer, {} tokens", tokenizer_->name(), tokenizer_->vocab_size()));
    if (!learnt_from_.empty()) out.back() += ", " + learnt_from_;
    return out;
  }

  void require_utf8() const {
    if (!survey_.not_utf8) return;
    const std::string& path = texts_.files[survey_.not_utf8->file].path;
    fail(ErrorCode::io, "[data] {}: byte {}, 0x{:02x}, is not UTF-8; {}, or use its raw bytes with tokenizer=byte", path, survey_.not_utf8->offset,
         survey_.invalid_byte, how_to_convert(path));
  }

  void choose_tokenizer(const std::shared_ptr<const Tokenizer>& ready, const TextCut& cut) {
    tokenizer_ = ready;
    if (tokenizer_) {
      if (tokenizer_->name() == "char") require_utf8();
      return;
    }
    const bool automatic = options_.tokenizer == "auto";
    if (automatic || options_.tokenizer == "char") require_utf8();
    const bool alphabet = texts_.bytes <= kMaxForChars && survey_.different.size() <= kMaxChars;
    if (options_.tokenizer == "char" || (automatic && alphabet)) {
      std::vector<std::string> characters;
      for (char32_t value : survey_.different) append_utf8(characters.emplace_back(), value);
      tokenizer_ = std::make_shared<CharTokenizer>(std::move(characters));
    } else if (options_.tokenizer == "byte") {
      tokenizer_ = std::make_shared<ByteTokenizer>();
    } else {
      learn_tokenizer(cut);
    }
  }

  // From the training part only, sampled evenly if it is too long or its distinct words take too much memory.
  void learn_tokenizer(const TextCut& cut) {
    const int64_t bytes = bytes_before(texts_, split_);
    const auto in_training = [&](const TextSurvey::Piece& p) { return bytes_before(texts_, p.place) < bytes; };
    const size_t pieces = size_t(std::partition_point(survey_.pieces.begin(), survey_.pieces.end(), in_training) - survey_.pieces.begin());
    const size_t wanted = bytes <= kMaxToLearnFrom ? pieces : std::max<size_t>(size_t(double(pieces) * double(kMaxToLearnFrom) / double(bytes)), 1);
    if (options_.progress) options_.progress("learning a vocabulary", 0);
    release_heap_memory();
    // The process's memory is rounded coarsely, so that the same budget gives the same vocabulary.
    const int64_t held = (resident_bytes() + kCoarse - 1) / kCoarse * kCoarse, budget = bounded_memory(options_.memory);
    auto room_of = [&](int64_t memory) { return std::max<int64_t>(1, (memory - held - kAtWork) / 16 * 15); };  // allows for heap fragmentation
    std::atomic<int64_t> read = 0;
    auto learn = [&](size_t share, int64_t room) {
      read = 0;
      std::optional<BpeVocabulary> learnt = train_bpe(share,
                                                      [&](size_t i, std::string& buffer) -> std::string_view {
                                                        TextPiece piece;
                                                        PieceReader(texts_, cut, survey_.pieces[i * pieces / share].place, split_).next(piece);
                                                        read += int64_t(piece.text.size());
                                                        return buffer = std::move(piece.text);
                                                      },
                                                      {.vocab_size = vocabulary_size(options_.vocab, bytes), .threads = worker_threads(), .room = room});
      release_heap_memory();
      return learnt;
    };
    size_t share = wanted;
    std::optional<BpeVocabulary> learnt;
    while (!(learnt = learn(share, budget > 0 ? room_of(budget) : 0)))
      if (share /= 2; share == 0) {
        const int64_t most = enough_memory(held + kAtWork + kMinRoom);
        int64_t enough = enough_memory(held + kAtWork + 1);
        while (enough < most && !learn(1, room_of(bounded_memory(enough)))) enough = enough_memory(bounded_memory(enough) + 1);
        fail(ErrorCode::memory,
             "[data] {} of memory is not enough to learn a vocabulary: the process takes {}, and {} of text the rest; {} MiB are enough, and byte tokens need "
             "none",
             size_text(options_.memory), size_text(held + kAtWork), size_text(read), enough >> 20);
      }
    if (share < wanted)
      learnt_from_ = fmt::format("learned from {} of {} of text, evenly spread: {} of memory has no room for more distinct words", size_text(read),
                                 size_text(std::min(bytes, kMaxToLearnFrom)), size_text(options_.memory));
    tokenizer_ = std::make_shared<BpeTokenizer>(*std::move(learnt));
  }

  std::vector<Token> encode(const TextPiece& piece) const {
    std::vector<Token> tokens;
    tokens.reserve(piece.text.size() / 2);
    try {
      tokenizer_->encode_to(tokens, piece.text);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::value) throw;
      refuse_character(piece);
    }
    if (const std::optional<Token> end = tokenizer_->end_of_text(); end && piece.between_documents) tokens.push_back(*end);
    return tokens;
  }

  // The tokenizer counts from the piece's start; users count from the file's.
  [[noreturn]] void refuse_character(const TextPiece& piece) const {
    std::vector<Token> ignored;
    for (size_t at = 0; at < piece.text.size();) {
      const CodePoint point = code_point_at(piece.text, at);
      try {
        tokenizer_->encode_to(ignored, std::string_view(piece.text).substr(at, point.bytes));
      } catch (const Error&) {
        fail(ErrorCode::io, "[data] {}: byte {}: {} is not among the {} characters of the vocabulary; remove it, or use a byte or bpe tokenizer",
             texts_.files[piece.place.file].path, piece.place.offset + int64_t(at), character_text(point.value), tokenizer_->vocab_size());
      }
      at += point.bytes;
    }
    fail(ErrorCode::internal, "[data] {}: the tokenizer rejected a text although it knows every character", texts_.files[piece.place.file].path);
  }

  StoredPart write_part(const std::filesystem::path& folder, const char* name, TextPlace from, TextPlace to) const {
    TokenWriter writer(folder, name, tokenizer_->vocab_size());
    const TextProgress report_progress = progress("tokenising");
    const TextCut cut = {options_.cut, tokenizer_->special()};
    for_pieces(
        PieceReader(texts_, cut, from, to), [&](const TextPiece& piece) { return encode(piece); },
        [&](const TextPiece& piece, const std::vector<Token>& tokens) {
          writer.add(tokens);
          if (report_progress) report_progress(double(bytes_before(texts_, piece.place) + int64_t(piece.text.size())) / double(texts_.bytes));
        });
    return writer.finish();
  }

  TextFiles texts_;
  DatasetOptions options_;
  TextSurvey survey_;
  TextPlace split_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string learnt_from_;  // less than with more memory; empty: it made no difference
};

}  // namespace

std::shared_ptr<const Tokenizer> ready_tokenizer(const DatasetOptions& options) {
  if (options.given) return options.given;
  if (std::find(std::begin(kWords), std::end(kWords), options.tokenizer) != std::end(kWords)) return nullptr;
  std::error_code error;
  const std::string path = expand_home(options.tokenizer);
  const bool exists = std::filesystem::exists(path, error);
  if (!exists && options.tokenizer.find_first_of("/.") != std::string::npos)
    fail(ErrorCode::io, "[data] the tokenizer {} does not exist; name a tokenizer.json, a vocab.json, a folder with one, or auto, char, byte or bpe",
         options.tokenizer);
  if (!exists)
    fail(ErrorCode::usage, "[data] tokenizer '{}' is not auto, char, byte or bpe, and there is no such file; {}", options.tokenizer,
         nearest_hint(options.tokenizer, kWords));
  return load_tokenizer(path);
}

std::string tokenizer_identity(const DatasetOptions& options) {
  const std::shared_ptr<const Tokenizer> ready = ready_tokenizer(options);
  return ready ? ready->json() : fmt::format("{} {}", options.tokenizer, options.vocab);
}

std::shared_ptr<const Tokenizer> learn_bpe(std::span<const std::string_view> texts, int64_t vocab, int64_t text_bytes) {
  return std::make_shared<BpeTokenizer>(train_bpe(texts, {.vocab_size = vocabulary_size(vocab, text_bytes), .threads = worker_threads()}));
}

TokenRecipe text_recipe(const std::string& source, const DatasetOptions& options) {
  TextFiles texts = find_texts(source);
  const std::filesystem::path cache = token_cache(options);
  std::string content = fmt::format("texts {} ", options.cut) + tokenizer_identity(options);
  for (const TextFile& file : texts.files) {
    const FileFacts facts = facts_of(file.path, 0, 0, cache.empty() ? cache : cache / "known");
    content += fmt::format(" {} {}", file.bytes, facts.checksum);
  }
  TokenRecipe recipe{checksum_of(content), {}, {}};
  if (options.memory > 0 && !ready_tokenizer(options)) recipe.bounded_key = checksum_of(content + fmt::format(" within {}", bounded_memory(options.memory)));
  recipe.make = [=, keys = recipe](const std::filesystem::path& folder) { Tokenisation(texts, options).run(folder, keys); };
  return recipe;
}

}  // namespace ridge
