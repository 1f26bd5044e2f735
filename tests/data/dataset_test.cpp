// Data sets: texts of any size are split and tokenised as if they were read whole; tokens are reused; bad input is named.
#include "data/dataset.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <random>

#include "base/utf8.h"
#include "data/bpe_training.h"
#include "data/byte_tokenizer.h"
#include "data/char_tokenizer.h"
#include "data/find_source.h"
#include "data/stories.h"
#include "data/text_files.h"
#include "data/texts.h"
#include "data/token_store.h"
#include "machine/expect_error.h"
#include "machine/memory_budget.h"
#include "support/mutate.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"
#include "support/variable.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::write_text;

std::vector<Token> all_of(const TokenArray& tokens) {
  std::vector<int64_t> wide(size_t(tokens.size()));
  tokens.copy(0, wide);
  return {wide.begin(), wide.end()};
}

class DatasetTest : public testing::Test {
 protected:
  DatasetOptions options(const std::string& tokenizer = "auto") const {
    DatasetOptions out;
    out.tokenizer = tokenizer;
    out.cache = folder_ / "cache";
    return out;
  }
  std::string file(std::string_view name, std::string_view text) const {
    const std::string path = folder_ / name;
    fs::create_directories(fs::path(path).parent_path());
    write_text(path, text);
    return path;
  }
  Error refusal(const std::string& source, const DatasetOptions& with) const {
    return error_of([&] { open_dataset(source, with); });
  }
  void expect_refusal(const std::string& source, const DatasetOptions& with, std::initializer_list<std::string_view> parts) const {
    const Error error = refusal(source, with);
    EXPECT_EQ(error.code(), ErrorCode::io) << error.what();
    for (std::string_view part : parts) EXPECT_TRUE(mentions(error.what(), part)) << error.what() << "\n  lacks: " << part;
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
  }
  TempFolder folder_;
};

TEST_F(DatasetTest, SplitsATextByCharactersLikeNanoGpt) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += i % 3 == 0 ? "é" : i % 7 == 0 ? "\n" : "ab";
  const Dataset data = open_dataset(file("my.txt", text), options());
  EXPECT_EQ(data.name, "my.txt");
  EXPECT_EQ(data.tokenizer->name(), "char");
  EXPECT_EQ(data.vocab, 4);
  const std::vector<Token> whole = data.tokenizer->encode(text);
  const size_t train = size_t(double(whole.size()) * 0.9);
  EXPECT_EQ(all_of(data.train), std::vector<Token>(whole.begin(), whole.begin() + std::ptrdiff_t(train)));
  EXPECT_EQ(all_of(data.validation), std::vector<Token>(whole.begin() + std::ptrdiff_t(train), whole.end()));
  EXPECT_EQ(data.train_characters + data.validation_characters, double(whole.size()));
  EXPECT_EQ(data.train_bytes + data.validation_bytes, double(text.size()));
  EXPECT_EQ(data.validation_characters, double(data.validation.size()));
}

TEST_F(DatasetTest, AFolderIsItsFilesInOrderWithSeparators) {
  const std::string source = folder_ / "texts";
  file("texts/b.txt", "second");
  file("texts/a/z.md", "first");
  file("texts/c", "third, and longer than the others together");
  file("texts/empty.txt", "");
  file("texts/.hidden", "never");
  file("texts/.git/config", "never");
  file("texts/picture.png", std::string_view("\x89PNG\0\0\0", 7));
  const Dataset data = open_dataset(source, options("byte"));
  EXPECT_EQ(data.name, "texts");
  std::vector<Token> expected = ByteTokenizer().encode("first<|endoftext|>second<|endoftext|>third, and longer than the others together");
  std::vector<Token> got = all_of(data.train);
  const std::vector<Token> rest = all_of(data.validation);
  got.insert(got.end(), rest.begin(), rest.end());
  EXPECT_EQ(got, expected);
  EXPECT_EQ(rest.size(), 6u);  // the last tenth of 53 characters, rounded up
  EXPECT_EQ(data.train_bytes + data.validation_bytes, 53);
}

TEST_F(DatasetTest, AFolderHasOneNameInAnyNotation) {
  file("texts/a.txt", "a text that is long enough for a window");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_ / "texts");
  std::vector<std::string> names;
  for (const char* source : {".", "./", "../texts", "../texts/", "../texts/."}) names.push_back(open_dataset(source, options("byte")).name);
  std::filesystem::current_path(before);
  EXPECT_EQ(names, std::vector<std::string>(5, "texts"));
}

// A name is looked up in the working folder, in its data folder and in the home folder; a path is used as it is.
TEST_F(DatasetTest, FindsSourcesByName) {
  const std::string text = "a text that is long enough for a window";
  file("work/here.txt", text), file("work/data/shakespeare_char/input.txt", text), file("work/data/tiny_train.bin", "no tokens");
  file("home/texts/mine.txt", text), file("home/here.txt", "another");
  const test::Variable home("HOME", folder_ / "home");
  const fs::path before = fs::current_path();
  fs::current_path(folder_ / "work");
  EXPECT_EQ(find_source("here.txt"), "here.txt");
  EXPECT_EQ(find_source("shakespeare_char"), "data/shakespeare_char");
  EXPECT_EQ(find_source("tiny_*.bin"), "data/tiny_*.bin");
  for (const char* name : {"texts", "~/texts", "texts/mine.txt", "~/texts/mine.txt"})
    EXPECT_EQ(find_source(name), fs::path(folder_ / "home") / (std::string_view(name).starts_with('~') ? name + 2 : name)) << name;
  EXPECT_EQ(open_dataset("shakespeare_char", options("byte")).name, "shakespeare_char");
  EXPECT_EQ(open_dataset("~/texts/mine.txt", options("byte")).train.size(), open_dataset("here.txt", options("byte")).train.size());
  expect_refusal("shakespere", options(), {"no such file or folder in ., data, " + folder_.path() + "/home", "similar: data/shakespeare_char"});
  expect_refusal("qqqqqqqq", options(), {"nothing there has a similar name"});
  expect_refusal("./shakespeare_char", options(), {"no such file or folder in .;"});
  expect_refusal("~/text", options(), {"similar: " + folder_.path() + "/home/texts"});
  fs::current_path(before);
}

// Files written by an experiment among the texts are never taken as texts.
TEST_F(DatasetTest, SkipsExperimentsAmongTexts) {
  file("texts/a.txt", "a text that is long enough for a window");
  file("texts/config.yaml", "a text as well, with no run beside it");
  const int64_t bytes = find_texts(folder_ / "texts").bytes;
  for (const char* run : {"seeds/seed_1337", "both/a.txt/seed_1337"}) {
    const std::string place = std::string("texts/") + run;
    file(place + "/metrics.jsonl", "{}");
    file(place + "/checkpoints/LATEST", "step_00000000");
  }
  file("texts/seeds/config.yaml", "steps: 2");
  file("texts/both/config.yaml", "steps: 2");
  file("texts/ended/final_info.json", "{}");
  file("texts/ended/val_loss.svg", "<svg/>");
  file("texts/unkept/metrics.jsonl", "{}");  // its checkpoints were not kept
  file("texts/unkept/config.yaml", "steps: 2");
  const TextFiles texts = find_texts(folder_ / "texts");
  EXPECT_EQ(texts.bytes, bytes);
  EXPECT_EQ(texts.files.size(), 2u);
  EXPECT_EQ(texts.runs, 4);
}

TEST_F(DatasetTest, PiecesOfLongTextsTokenizeLikeTheWhole) {
  std::mt19937 random(3);
  std::string text;
  while (text.size() < 3 << 20) text += random_text(random, 1000);
  text += std::string(1 << 20, 'x') + " end";  // a long stretch without a word boundary
  std::string utf8;
  for (int i = 0; i < 600000; ++i) utf8 += i % 5 == 0 ? "。" : "你";
  const std::string source = file("long.txt", text), chinese = file("chinese.txt", utf8);

  const Dataset data = open_dataset(source, options("byte"));
  std::vector<Token> got = all_of(data.train), rest = all_of(data.validation);
  got.insert(got.end(), rest.begin(), rest.end());
  EXPECT_EQ(data.tokenizer->decode(got), text);

  const Dataset characters = open_dataset(chinese, options("char"));
  EXPECT_EQ(characters.train.size(), 540000);
  EXPECT_EQ(characters.validation.size(), 60000);
  EXPECT_EQ(characters.vocab, 2);

  DatasetOptions small = options("bpe");
  small.vocab = 400;
  const Dataset words = open_dataset(source, small);
  EXPECT_EQ(words.vocab, 400);
  got = all_of(words.train), rest = all_of(words.validation);
  const std::string train_text = words.tokenizer->decode(got);
  EXPECT_EQ(train_text + words.tokenizer->decode(rest), text);
  // Up to the stretch without blanks every cut is between words, so the tokens match those of the whole text.
  const size_t plain = 2 << 20;
  const std::vector<Token> whole = words.tokenizer->encode(std::string_view(train_text).substr(0, plain));
  EXPECT_TRUE(std::equal(whole.begin(), whole.end() - 16, got.begin()));
}

// Pieces much smaller than for a corpus, so that every script is cut in many places.
TEST_F(DatasetTest, PiecesOfEveryScriptTokenizeLikeTheWhole) {
  std::mt19937 random(7);
  for (std::vector<std::string> script : foreign_scripts()) {
    script.push_back("<|new line|>");
    const std::string text = text_in(script, random, 20000);
    BpeVocabulary vocabulary = train_bpe(std::vector<std::string_view>{text}, {.vocab_size = 400});
    const std::string blanks[] = {"<|new line|>", script[0] + " " + script[1]};
    for (const std::string& added : blanks) {
      vocabulary.special.push_back({Token(vocabulary.tokens.size()), added});
      vocabulary.tokens.push_back(added);
    }
    const BpeTokenizer tokenizer(vocabulary);
    const TextFiles texts = find_texts(file("script.txt", text));
    for (size_t most : {1000, 1501, 3000}) {
      const TextCut cut = {kTextCut, tokenizer.special()};
      std::vector<Token> got;
      int pieces = 0;
      PieceReader reader(texts, cut, {}, {1, 0}, most);
      for (TextPiece piece; reader.next(piece); ++pieces) {
        EXPECT_LE(piece.text.size(), most);
        tokenizer.encode_to(got, piece.text);
      }
      EXPECT_GE(pieces, int(text.size() / most));
      EXPECT_EQ(got, tokenizer.encode(text)) << script[0] << " " << most;
    }
  }
}

// Version 1 looked for blanks after ASCII characters and cut such a text inside a word.
TEST_F(DatasetTest, SplittingRulesHaveVersionsWithSeparateTokens) {
  std::string text;
  for (int i = 0; text.size() < 700 << 10; ++i) text += i % 7 ? "你好世界中文" : " 。";
  const std::string source = file("chinese.txt", text);
  DatasetOptions with = options();
  with.given = std::make_shared<BpeTokenizer>(train_bpe(std::vector<std::string_view>{std::string_view(text).substr(0, 4000)}, {.vocab_size = 290}));
  const auto tokens_of = [&](int version) {
    with.cut = version;
    const Dataset data = open_dataset(source, with);
    EXPECT_FALSE(data.cached) << version;
    EXPECT_TRUE(open_dataset(source, with).cached) << version;
    std::vector<Token> all = all_of(data.train);
    return std::pair(all, with.given->encode(with.given->decode(all)));
  };
  const auto [now, whole] = tokens_of(2);
  EXPECT_EQ(now, whole);
  const auto [before, same] = tokens_of(1);
  EXPECT_EQ(same, whole);
  EXPECT_NE(before, whole);
}

TEST_F(DatasetTest, AutoUsesBpeForLargeAlphabets) {
  std::string many;
  for (int round = 0; round < 3; ++round)
    for (char32_t c = 0x4e00; c < 0x4e00 + 300; ++c) append_utf8(many, c);
  EXPECT_EQ(open_dataset(file("many.txt", many), options()).tokenizer->name(), "bpe");
}

TEST_F(DatasetTest, ATextWithoutRepeatedPairsIsItsBytes) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "a\n";
  const std::string source = file("lines.txt", text);
  for (int again = 0; again < 2; ++again) EXPECT_EQ(open_dataset(source, options("bpe")).vocab, 257);
}

TEST_F(DatasetTest, CachedTokensAreFoundByContent) {
  const std::string text = "the quick brown fox jumps over the lazy dog\n";
  const Dataset first = open_dataset(file("a.txt", text), options());
  EXPECT_FALSE(first.cached);
  const Dataset again = open_dataset(folder_ / "a.txt", options());
  EXPECT_TRUE(again.cached);
  EXPECT_EQ(again.fingerprint, first.fingerprint);
  EXPECT_EQ(all_of(again.train), all_of(first.train));
  EXPECT_EQ(again.train_characters, first.train_characters);
  const Dataset same = open_dataset(file("b.txt", text), options());
  EXPECT_TRUE(same.cached);
  EXPECT_EQ(same.name, "b.txt");
  const Dataset bytes = open_dataset(folder_ / "a.txt", options("byte"));
  EXPECT_FALSE(bytes.cached);
  EXPECT_NE(bytes.fingerprint, first.fingerprint);
  const Dataset changed = open_dataset(file("a.txt", text + "!"), options());
  EXPECT_FALSE(changed.cached);
  EXPECT_NE(changed.fingerprint, first.fingerprint);
  const Dataset of_equal_size = open_dataset(file("c.txt", std::string(text.rbegin(), text.rend())), options());
  EXPECT_FALSE(of_equal_size.cached);
  EXPECT_NE(all_of(of_equal_size.train), all_of(first.train));
}

TEST_F(DatasetTest, RecreatesDamagedTokens) {
  const std::string source = file("a.txt", "the quick brown fox jumps over the lazy dog\n");
  const Dataset first = open_dataset(source, options());
  for (const char* name : {"index.json", "train_00000.bin", "validation_00000.bin", "tokenizer.json"}) {
    const std::string path = (first.folder / name).string(), good = test::read_text(path);
    for (const std::string& bad : {std::string(), good.substr(0, good.size() / 2), std::string(1, char(good[0] ^ 1)) + good.substr(1)}) {
      write_text(path, bad);
      const Dataset again = open_dataset(source, options());
      EXPECT_FALSE(again.cached) << name;
      EXPECT_EQ(again.fingerprint, first.fingerprint);
      EXPECT_EQ(all_of(again.train), all_of(first.train));
    }
    fs::remove(path);
    EXPECT_FALSE(open_dataset(source, options()).cached);
  }
  EXPECT_TRUE(open_dataset(source, options()).cached);
}

TEST_F(DatasetTest, WithoutACacheTokensLastAsLongAsTheProcess) {
  const std::string source = file("a.txt", "the quick brown fox");
  DatasetOptions nowhere = options();
  nowhere.cache = file("no_folder", "x");
  const Dataset data = open_dataset(source, nowhere);
  EXPECT_TRUE(data.folder.empty());
  EXPECT_EQ(data.tokenizer->decode(all_of(data.train)), "the quick brown f");
  EXPECT_TRUE(mentions(data.notes.front(), "RIDGE_CACHE")) << "the note that a training tells";
}

TEST_F(DatasetTest, RecreatesTokensThatOthersCouldWrite) {
  const std::string source = file("a.txt", "the quick brown fox");
  const Dataset first = open_dataset(source, options());
  ASSERT_TRUE(open_dataset(source, options()).cached);
  const fs::path shard = first.folder / "train_00000.bin";
  for (const fs::path& path : {shard, first.folder}) {
    fs::permissions(path, fs::perms::others_write, fs::perm_options::add);
    EXPECT_FALSE(open_dataset(source, options()).cached) << path;
    EXPECT_TRUE(open_dataset(source, options()).cached) << "made again, for the user alone";
  }
  fs::permissions(folder_ / "cache", fs::perms::all);
  const Dataset data = open_dataset(source, options());
  EXPECT_FALSE(data.cached);
  EXPECT_TRUE(data.folder.empty()) << "nothing is kept there";
  EXPECT_TRUE(mentions(data.notes.front(), "others may have written to it")) << data.notes.front();
  EXPECT_EQ(all_of(data.train), all_of(first.train));
}

TEST_F(DatasetTest, RemovesOldCacheFolders) {
  for (int i = 0; i < 40; ++i) open_dataset(file("a.txt", "text number " + std::to_string(i)), options());
  size_t folders = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_ / "cache")) folders += entry.is_directory();
  EXPECT_LE(folders, 32u);
  EXPECT_TRUE(open_dataset(folder_ / "a.txt", options()).cached);
}

TEST_F(DatasetTest, APreparedFolderIsASource) {
  const std::string source = file("a.txt", "the quick brown fox jumps over the lazy dog\n"), out = folder_ / "tokens";
  const Dataset made = prepare_dataset(source, out, options("byte"));
  EXPECT_FALSE(made.cached);
  EXPECT_EQ(made.folder, out);
  EXPECT_TRUE(prepare_dataset(source, out, options("byte")).cached);
  const Dataset opened = open_dataset(out, options());
  EXPECT_EQ(opened.fingerprint, made.fingerprint);
  EXPECT_EQ(opened.fingerprint, open_dataset(source, options("byte")).fingerprint);
  EXPECT_EQ(all_of(opened.validation), all_of(made.validation));
  expect_refusal(out, options("char"), {"byte tokenizer with 257", "char"});
  // Made again for another tokenizer; never in a folder with other people's files.
  const Dataset anew = prepare_dataset(source, out, options("char"));
  EXPECT_EQ(anew.vocab, 28);
  ASSERT_FALSE(anew.notes.empty());
  EXPECT_TRUE(mentions(anew.notes.back(), "replaced the")) << anew.notes.back();
  EXPECT_TRUE(mentions(anew.notes.back(), "byte, 257")) << anew.notes.back();
  file("mine/precious.txt", "x");
  EXPECT_TRUE(mentions(error_of([&] { prepare_dataset(source, folder_ / "mine", options()); }).what(), "not empty"));
  write_text(out + "/train_00000.bin", "short");
  expect_refusal(out, options(), {"train_00000.bin", "truncated"});
  // Files left by an interrupted preparation cause no problems.
  fs::remove(out + "/index.json");
  write_text(out + "/validation_00001.bin.part", "x");
  EXPECT_EQ(all_of(prepare_dataset(source, out, options("byte")).train), all_of(made.train));
  EXPECT_FALSE(fs::exists(out + "/validation_00001.bin.part"));
}

// However long a text is, only a few pieces of it are in memory at a time, and its tokens are written as they are produced.
TEST_F(DatasetTest, TextsMayBeLargerThanMemory) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  const std::string source = folder_ / "large.txt";
  {
    std::mt19937 random(9);
    std::vector<std::string> words;
    for (int i = 0; i < 3000; ++i) words.push_back(std::string(1 + random() % 9, char('a' + random() % 26)) + char('a' + random() % 26));
    std::ofstream file(source);
    std::string piece;
    while (piece.size() < size_t(1) << 20) piece += words[random() % words.size()] + ' ';
    for (int64_t written = 0; written < int64_t(48) << 20; written += int64_t(piece.size())) file << piece;
  }
  DatasetOptions with = options("char");
  const int64_t before = resident_bytes();
  int64_t most = before, looks = 0;
  with.progress = [&](const std::string&, double) { most = std::max(most, resident_bytes()), ++looks; };
  const Dataset data = prepare_dataset(source, folder_ / "tokens", with);
  EXPECT_GE(data.train.size() + data.validation.size(), int64_t(48) << 20);
  EXPECT_GT(looks, 100);
  EXPECT_LT(most - before, int64_t(24) << 20);
}

std::string random_text_of_letters(std::mt19937_64& random, size_t letters) {
  std::string word;
  while (word.size() < letters) word += char('a' + random() % 26);
  return word;
}

// A budget too small for the distinct words limits how much text the vocabulary is learnt from; this is reported, and a vocabulary learnt with more memory is
// stored separately.
TEST_F(DatasetTest, LearnsVocabulariesWithinMemory) {
  if (test::sanitized()) GTEST_SKIP() << "a sanitizer holds memory of its own";
  std::mt19937_64 random(13);
  std::string text;
  while (text.size() < (6u << 20)) text += random_text_of_letters(random, 4 + random() % 6) + ' ';
  const std::string source = file("many_words.txt", text);
  DatasetOptions free = options("bpe");
  free.vocab = 300;  // the words are the limit, not the pairs
  DatasetOptions tight = free, ample = free, none = free;
  free.cache = folder_ / "cache of its own";
  constexpr int64_t kMiB = 1 << 20;
  tight.memory = resident_bytes() + 80 * kMiB, ample.memory = int64_t(16) << 30, none.memory = kMiB;
  refusal(source, none);  // a process that has tried once holds more memory than before
  const Error error = refusal(source, none);
  EXPECT_EQ(error.code(), ErrorCode::memory) << error.what();
  const std::string said = error.what();
  const size_t quoted = said.find(" MiB are enough");
  ASSERT_NE(quoted, said.npos) << said;
  DatasetOptions enough_for_a_piece = none, less = none;
  enough_for_a_piece.memory = std::stoll(said.substr(said.rfind(' ', quoted - 1))) * kMiB;
  less.memory = enough_for_a_piece.memory - 20 * kMiB;  // the process is counted in steps of 16 MiB
  EXPECT_EQ(refusal(source, less).code(), ErrorCode::memory) << said;
  EXPECT_TRUE(mentions(open_dataset(source, enough_for_a_piece).learnt_from, "learned from")) << said;
  const Dataset unbounded = open_dataset(source, free), bounded = open_dataset(source, tight);
  EXPECT_EQ(unbounded.learnt_from, "");
  EXPECT_TRUE(mentions(bounded.learnt_from, "learned from")) << bounded.learnt_from;
  EXPECT_TRUE(mentions(bounded.notes[1], bounded.learnt_from)) << bounded.notes[1];
  EXPECT_NE(bounded.fingerprint, unbounded.fingerprint);
  EXPECT_EQ(bounded.vocab, unbounded.vocab);
  const Dataset again = open_dataset(source, tight);
  EXPECT_TRUE(again.cached);
  EXPECT_EQ(again.fingerprint, bounded.fingerprint);
  EXPECT_EQ(again.learnt_from, bounded.learnt_from);
  const Dataset enough = open_dataset(source, ample);
  EXPECT_FALSE(enough.cached);
  EXPECT_EQ(enough.fingerprint, unbounded.fingerprint);
  EXPECT_EQ(open_dataset(source, tight).fingerprint, unbounded.fingerprint) << "what was learnt from more is there, so it is taken";
}

TEST_F(DatasetTest, JoinsManyShards) {
  const CharTokenizer tokenizer = CharTokenizer::of_text("abc");
  std::vector<Token> tokens;
  for (int i = 0; i < 1000; ++i) tokens.push_back(Token(i * i % 3));
  fs::create_directories(folder_ / "store");
  TokenWriter train(folder_ / "store", "train", 3, 64), validation(folder_ / "store", "validation", 3, 64);
  for (size_t at = 0, n = 1; at < tokens.size(); at += n, n = n * 2 + 1) train.add(std::span(tokens).subspan(at, std::min(n, tokens.size() - at)));
  validation.add(tokens);
  Dataset data;
  data.vocab = 3;
  data.tokenizer = std::make_shared<CharTokenizer>(tokenizer);
  const StoredPart part = train.finish();
  EXPECT_EQ(part.shards.size(), 16u);
  write_index(folder_ / "store", "key", data, part, validation.finish());
  EXPECT_EQ(all_of(open_store(folder_ / "store").train), tokens);
}

TEST_F(DatasetTest, ReadsOrRejectsAnyIndexFile) {
  const std::string source = file("a.txt", "the quick brown fox jumps over the lazy dog\n");
  const fs::path store = open_dataset(source, options()).folder;
  const std::string path = (store / "index.json").string(), good = test::read_text(path);
  std::mt19937 random(11);
  for (int i = 0; i < 1000; ++i) {
    write_text(path, test::mutated(good, random));
    try {
      open_store(store);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::io || error.code() == ErrorCode::value) << error.what();
    }
  }
}

TEST_F(DatasetTest, UsesAGivenTokenizer) {
  DatasetOptions with = options("bpe");
  with.given = std::make_shared<CharTokenizer>(CharTokenizer::of_text("abcdefgh "));
  EXPECT_EQ(open_dataset(file("a.txt", "bad cab fed a decade"), with).vocab, 9);
  expect_refusal(file("b.txt", "bad cab\nfed"), with, {"b.txt", "byte 7: U+000A is not among the 9 characters"});
  save_tokenizer(*with.given, folder_ / "tokenizer.json");
  EXPECT_EQ(open_dataset(folder_ / "a.txt", options(folder_ / "tokenizer.json")).vocab, 9);
  EXPECT_EQ(refusal(folder_ / "a.txt", options("chars")).code(), ErrorCode::usage);
}

TEST_F(DatasetTest, NamesBadInput) {
  DatasetOptions with = options();
  expect_refusal(folder_ / "none.txt", with, {"none.txt", "no such file", "builtin"});
  expect_refusal(file("empty.txt", ""), with, {"empty.txt", "empty"});
  fs::create_directories(folder_ / "bare");
  expect_refusal(folder_ / "bare", with, {"bare", "no text files"});
  file("binary/a.png", std::string_view("\0\1", 2));
  expect_refusal(folder_ / "binary", with, {"no text files", "1 with zero bytes"});
  expect_refusal(file("latin.txt", std::string(700000, 'a') + "caf\xe9"), with, {"latin.txt", "byte 700003, 0xe9", "UTF-8", "tokenizer=byte"});
  expect_refusal(file("plays.txt.gz", "\x1f\x8b\x08 and so on"), with, {"plays.txt.gz", "byte 1, 0x8b", "unpack it with gunzip", "tokenizer=byte"});
  expect_refusal(file("wide.txt", std::string("\xff\xfeT\0o\0", 6)), with, {"wide.txt", "byte 0, 0xff", "iconv -f UTF-16 -t UTF-8"});
  EXPECT_EQ(open_dataset(folder_ / "latin.txt", options("byte")).vocab, 257);
  EXPECT_EQ(open_dataset(folder_ / "latin.txt", options("bpe")).tokenizer->name(), "bpe");
  with.block = 64;
  expect_refusal(file("short.txt", std::string(300, 'a')), with, {"short.txt", "validation part has 30 tokens", "needs 65"});
  expect_refusal("/dev/null", with, {"not a regular file"});
  expect_refusal(folder_ / "none_*.bin", with, {"pattern"});
}

TEST_F(DatasetTest, TheBuiltInCorpusKnowsItsBestLoss) {
  DatasetOptions with = options();
  with.block = 64;
  const Dataset data = open_dataset("builtin", with);
  EXPECT_EQ(data.name, "builtin");
  ASSERT_GE(data.window_starts.size(), 2000u);
  EXPECT_GE(data.train.size(), 1 << 20);
  EXPECT_LE(data.vocab, 128);
  const std::string text = data.tokenizer->decode(all_of(data.validation));
  const Stories stories(64);
  double nats = 0;
  for (int64_t start : data.window_starts) {
    ASSERT_EQ(text[size_t(start)], Stories::kEnd);
    ASSERT_LT(size_t(start + 64), text.size());
    const std::vector<double> each = stories.nats(std::string_view(text).substr(size_t(start + 1), 64));
    nats += std::accumulate(each.begin(), each.end(), 0.0);
  }
  const double expected = nats / double(64 * data.window_starts.size());
  EXPECT_NEAR(*data.possible, expected, 1e-12);
  EXPECT_EQ(data.validation_characters, double(data.validation.size()));
  EXPECT_EQ(validation_windows(data, 1, 64)->batches(), int64_t(data.window_starts.size()));
  const std::string train = data.tokenizer->decode(all_of(data.train));
  EXPECT_EQ(train.find(text.substr(size_t(data.window_starts[5]) + 1, 64)), train.npos);  // another story
  EXPECT_TRUE(open_dataset("builtin", with).cached);
  with.seed = 2;
  EXPECT_NE(open_dataset("builtin", with).fingerprint, data.fingerprint);
}

TEST_F(DatasetTest, TheBestLossIsExactForStoriesLongerThanTheBlock) {
  for (const int64_t block : {16, 31}) {
    DatasetOptions with = options();
    with.block = block;
    const Dataset data = open_dataset("builtin", with);
    const Stories stories(64);
    std::vector<int64_t> window(size_t(block + 1));
    double nats = 0;
    for (int64_t start : data.window_starts) {
      data.validation.copy(start, window);
      const std::vector<Token> targets(window.begin() + 1, window.end());
      const std::vector<double> each = stories.nats(data.tokenizer->decode(targets));
      nats += std::accumulate(each.begin(), each.end(), 0.0);
    }
    EXPECT_NEAR(*data.possible, nats / double(block * int64_t(data.window_starts.size())), 1e-12) << block;
  }
}

TEST_F(DatasetTest, AMissingTokenizerFileIsNotAMisspeltWord) { expect_refusal("builtin", options("none/tokenizer.json"), {"does not exist"}); }

TEST_F(DatasetTest, TheBestLossIsPerCharacterForEveryTokenizer) {
  DatasetOptions with = options("bpe");
  with.block = 64;
  with.vocab = 300;
  const Dataset data = open_dataset("builtin", with);
  const Stories stories(64);
  std::vector<int64_t> window(65);
  double nats = 0, characters = 0;
  for (int64_t start : data.window_starts) {
    data.validation.copy(start, window);
    const std::vector<Token> targets(window.begin() + 1, window.end());
    const std::string text = data.tokenizer->decode(targets);
    const std::vector<double> each = stories.nats(text);
    nats += std::accumulate(each.begin(), each.end(), 0.0);
    characters += double(text.size());
  }
  EXPECT_NEAR(*data.possible, nats / characters, 1e-12);
  EXPECT_GT(characters / double(64 * data.window_starts.size()), 1.2);
  EXPECT_NEAR(data.validation_characters / double(data.validation.size()), characters / double(64 * data.window_starts.size()), 1e-9);
}

}  // namespace
}  // namespace ridge
