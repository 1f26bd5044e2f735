#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/bpe_training.h"
#include "data/byte_tokenizer.h"
#include "data/char_tokenizer.h"
#include "data/texts.h"
#include "support/mutate.h"
#include "support/source_dir.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

using Tokens = std::vector<Token>;

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string sample_json() {
  std::mt19937 random(11);
  const std::string text = random_text(random, 500);
  const std::string_view texts[] = {text};
  return BpeTokenizer(train_bpe(texts, {280, 2, 1})).json();
}

void expect_refusal(const std::string& json, ErrorCode code, const std::string& part) {
  try {
    parse_tokenizer(json, "some.json");
    ADD_FAILURE() << "accepted; expected: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("some.json"), std::string::npos) << e.what();
  }
}

// Variants of the file format from other programs: no model type, merges as arrays, added tokens outside the vocabulary.
std::string foreign_json(const std::string& merges, const std::string& added) {
  const std::string bytes = ByteTokenizer().json(), head = "\"vocab\": {";
  const size_t begin = bytes.find(head) + head.size(), end = bytes.find("\"<|endoftext|>\": 256");
  const std::string vocabulary = bytes.substr(begin, end - begin);
  return R"({"added_tokens": [)" + added + R"(], "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},
    "model": {"unk_token": "", "dropout": null, "fuse_unk": false, "vocab": {)" +
         vocabulary + R"("Ġt": 256, "Ġth": 257}, "merges": [)" + merges + "]}}";
}

TEST(ByteTokenizer, TokensAreTheBytes) {
  const ByteTokenizer tokenizer;
  std::mt19937 random(12);
  for (size_t size : {0, 1, 2, 1000}) {
    const std::string text = random_bytes(random, size);
    const Tokens tokens = tokenizer.encode(text);
    ASSERT_EQ(tokens.size(), size);
    for (size_t i = 0; i < size; ++i) EXPECT_EQ(tokens[i], uint8_t(text[i]));
    EXPECT_EQ(tokenizer.decode(tokens), text);
  }
  EXPECT_EQ(tokenizer.encode("a<|endoftext|>b"), (Tokens{'a', 256, 'b'}));
  EXPECT_EQ(tokenizer.decode(Tokens{'a', 256}), "a<|endoftext|>");
  EXPECT_THROW(tokenizer.bytes_of(257), Error);
  EXPECT_THROW(tokenizer.bytes_of(-1), Error);
}

TEST(CharTokenizer, TokensAreOrderedByCodePoint) {
  const CharTokenizer tokenizer = CharTokenizer::of_text("hé你 h\n🙂é");
  EXPECT_EQ(tokenizer.vocab_size(), 6);
  EXPECT_EQ(tokenizer.encode("\n hé你🙂"), (Tokens{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(tokenizer.decode(Tokens{5, 4, 3}), "🙂你é");
  EXPECT_FALSE(tokenizer.end_of_text());
  EXPECT_EQ(CharTokenizer::of_text("").vocab_size(), 0);
  EXPECT_TRUE(tokenizer.encode("").empty());
  EXPECT_THROW(tokenizer.bytes_of(6), Error);
}

TEST(CharTokenizer, NamesUnknownCharacters) {
  const CharTokenizer tokenizer = CharTokenizer::of_text("ab");
  const auto refusal = [](auto call) {
    try {
      call();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::value);
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal([&] { tokenizer.encode("abc"); }).find("byte 2 of the text: 'c' (U+0063)"), std::string::npos);
  EXPECT_NE(refusal([&] { tokenizer.encode("a\xff"); }).find("byte 1 of the text, 0xff"), std::string::npos);
  EXPECT_NE(refusal([&] { CharTokenizer::of_text("\xe4\xbd"); }).find("not UTF-8"), std::string::npos);
  EXPECT_NE(refusal([&] { CharTokenizer({"a", "bc"}); }).find("not one character"), std::string::npos);
  EXPECT_NE(refusal([&] { CharTokenizer({"a", ""}); }).find("not one character"), std::string::npos);
  EXPECT_NE(refusal([&] { CharTokenizer({"a", "a"}); }).find("twice"), std::string::npos);
}

TEST(TokenizerFile, RoundTrips) {
  std::mt19937 random(13);
  const std::string text = random_text(random, 2000), utf8 = "To be, \"or\" \\ not\n\t\x01 to be: é你🙂";
  const std::string_view texts[] = {text};
  const std::unique_ptr<Tokenizer> all[] = {std::make_unique<ByteTokenizer>(), std::make_unique<CharTokenizer>(CharTokenizer::of_text(utf8)),
                                            std::make_unique<BpeTokenizer>(train_bpe(texts, {350, 2, 2}))};
  const std::string path = testing::TempDir() + "ridge_tokenizer_test.json";
  for (const auto& saved : all) {
    save_tokenizer(*saved, path);
    EXPECT_FALSE(std::filesystem::exists(path + ".part"));
    const auto loaded = load_tokenizer(path);
    EXPECT_EQ(loaded->name(), saved->name());
    EXPECT_EQ(loaded->vocab_size(), saved->vocab_size());
    EXPECT_EQ(loaded->end_of_text(), saved->end_of_text());
    EXPECT_EQ(loaded->json(), saved->json());
    EXPECT_EQ(loaded->encode(utf8), saved->encode(utf8));
    for (Token token = 0; token < saved->vocab_size(); ++token) EXPECT_EQ(loaded->bytes_of(token), saved->bytes_of(token));
    const auto* bpe = dynamic_cast<const BpeTokenizer*>(saved.get());
    EXPECT_TRUE(!bpe || dynamic_cast<BpeTokenizer&>(*loaded).vocabulary() == bpe->vocabulary());
  }
  std::filesystem::remove(path);
}

TEST(TokenizerFile, ReadsMergesInBothFormats) {
  const std::string end = R"({"id": 258, "content": "<|endoftext|>", "special": true})";
  for (const char* merges : {R"("Ġ t", "Ġt h")", R"(["Ġ", "t"], ["Ġt", "h"])"}) {
    const auto tokenizer = parse_tokenizer(foreign_json(merges, end));
    EXPECT_EQ(tokenizer->name(), "bpe");
    EXPECT_EQ(tokenizer->vocab_size(), 259);
    EXPECT_EQ(tokenizer->end_of_text(), 258);
    EXPECT_EQ(tokenizer->encode("a the<|endoftext|> t"), (Tokens{'a', 257, 'e', 258, 256}));
  }
  EXPECT_FALSE(parse_tokenizer(foreign_json("", ""))->end_of_text());
}

// tests/fixtures/tokenizer was trained and written by Hugging Face's tokenizers (tools/tokenizer_exchange.py), with its tokens for odd texts.
TEST(TokenizerFile, MatchesOtherImplementations) {
  const std::filesystem::path folder = std::filesystem::path(source_dir()) / "tests/fixtures/tokenizer";
  const auto tokenizer = load_tokenizer((folder / "tokenizer.json").string());
  EXPECT_EQ(tokenizer->vocab_size(), 360);
  EXPECT_EQ(tokenizer->end_of_text(), 0);
  std::ifstream file(folder / "encodings.json");
  const nlohmann::json rows = nlohmann::json::parse(file);
  ASSERT_GT(rows.size(), 20u);
  for (const auto& row : rows) {
    const std::string text = row["text"];
    EXPECT_EQ(tokenizer->encode(text), row["ids"].get<Tokens>()) << text;
    EXPECT_EQ(tokenizer->decode(row["ids"].get<Tokens>()), text);
  }
  // Saving it gives the same tokenizer.
  EXPECT_EQ(parse_tokenizer(tokenizer->json())->encode("don't naïve 你好<|endoftext|>"), tokenizer->encode("don't naïve 你好<|endoftext|>"));
}

// GPT-2's two files and its form of tokenizer.json, with the tokens from transformers' GPT2Tokenizer.
TEST(TokenizerFile, ReadsGpt2Formats) {
  const std::filesystem::path folder = std::filesystem::path(source_dir()) / "tests/fixtures/gpt2_tokenizer";
  std::ifstream file(folder / "encodings.json");
  const nlohmann::json rows = nlohmann::json::parse(file);
  ASSERT_GT(rows.size(), 20u);
  std::string json;
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer.json", ""}) {
    const auto tokenizer = load_tokenizer((folder / name).string());
    EXPECT_EQ(tokenizer->vocab_size(), 360) << name;
    EXPECT_EQ(tokenizer->end_of_text(), 359) << name;
    for (const auto& row : rows) EXPECT_EQ(tokenizer->encode(row["text"].get<std::string>()), row["ids"].get<Tokens>()) << name << " " << row["text"];
    EXPECT_EQ(tokenizer->json(), json.empty() ? tokenizer->json() : json) << name;
    json = tokenizer->json();
  }
  test::TempFolder other;  // the names that some programs use
  std::filesystem::copy_file(folder / "vocab.json", other / "gpt2-vocab.json");
  EXPECT_FALSE(has_tokenizer(other.path()));
  EXPECT_THROW(load_tokenizer(other / "gpt2-vocab.json"), Error);
  EXPECT_THROW(load_tokenizer(other.path()), Error);
  std::filesystem::copy_file(folder / "merges.txt", other / "gpt2-merges.txt");
  EXPECT_EQ(load_tokenizer(other / "gpt2-merges.txt")->json(), json);
}

// However the two files are corrupted, they are rejected with an error or give a tokenizer that round-trips every text.
TEST(TokenizerFile, DamagedVocabulariesAreRejectedOrCorrect) {
  const std::filesystem::path folder = std::filesystem::path(source_dir()) / "tests/fixtures/gpt2_tokenizer";
  const auto text_of = [&](const char* name) {
    std::ifstream file(folder / name);
    return std::string((std::istreambuf_iterator<char>(file)), {});
  };
  const std::string vocab = text_of("vocab.json"), merges = text_of("merges.txt");
  std::mt19937 random(15);
  const std::string text = random_text(random, 60);
  int refused = 0, accepted = 0;
  for (int round = 0; round < 400; ++round) try {
      const auto tokenizer =
          parse_vocab_and_merges(round % 2 ? test::mutated(vocab, random) : vocab, round % 2 ? merges : test::mutated(merges, random), "vocab.json");
      const Tokens tokens = tokenizer->encode(text);
      for (Token token : tokens) ASSERT_LT(token, tokenizer->vocab_size());
      ASSERT_EQ(tokenizer->decode(tokens), text);
      ++accepted;
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::io) << e.what();
      ++refused;
    }
  EXPECT_GT(refused, 100);
  EXPECT_GT(accepted, 10);
  // If merges.txt is at fault, the error names it and the line.
  const auto problem = [&](const std::string& bad_line) {
    const size_t third = merges.find('\n', merges.find('\n') + 1) + 1;
    std::string damaged = merges;
    try {
      parse_vocab_and_merges(vocab, damaged.insert(third, bad_line + "\n"), "vocab.json", "some/merges.txt");
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(problem("alone"), "[tokenizer] some/merges.txt:3: 'alone' is not a merge of two tokens");
  EXPECT_EQ(problem("zq qz"), "[tokenizer] some/merges.txt:3: a merge names 'zq', which is not in the vocabulary");
  EXPECT_EQ(problem("\xff\xfe").find("[tokenizer] some/merges.txt:3: "), 0u) << problem("\xff\xfe");
  const size_t second = merges.find('\n') + 1;
  EXPECT_EQ(problem(merges.substr(second, merges.find('\n', second) - second)), "[tokenizer] some/merges.txt:3: the same merge as in line 2");
  EXPECT_THROW(parse_vocab_and_merges("[]", ""), Error);
  EXPECT_THROW(parse_vocab_and_merges(R"({"<|endoftext|>": )" + std::string(200000, '[') + std::string(200000, ']') + "}", ""), Error);
}

TEST(TokenizerFile, ReportsErrors) {
  const auto end = [](const std::string& rest) { return R"({"content": "<|endoftext|>", "id": )" + rest + "}"; };
  expect_refusal("", ErrorCode::io, "not JSON");
  expect_refusal("[1, 2]", ErrorCode::io, "model");
  expect_refusal(R"({"model": 3})", ErrorCode::io, "model");
  expect_refusal(R"({"model": {"type": "Unigram"}})", ErrorCode::io, "Unigram");
  expect_refusal(R"({"model": {"type": "WordLevel", "vocab": {"word": 0}}})", ErrorCode::io, "WordLevel");
  expect_refusal(R"({"pre_tokenizer": {"type": "Split"}, "model": {"type": "WordLevel", "vocab": {"word": 0}}})", ErrorCode::io, "one character");
  expect_refusal(foreign_json(R"("Ġ t x")", ""), ErrorCode::io, "merge of two");
  expect_refusal(foreign_json(R"("Ġt")", ""), ErrorCode::io, "merge of two");
  expect_refusal(foreign_json(R"(["Ġ", 3])", ""), ErrorCode::io, "merge of two");
  expect_refusal(foreign_json(R"("Ġ q")", ""), ErrorCode::io, "Ġq");
  expect_refusal(foreign_json(R"("Ġ t", "Ġ t")", ""), ErrorCode::io, "same pair");
  expect_refusal(foreign_json("", end("300")), ErrorCode::io, "gaps");
  expect_refusal(foreign_json("", end("-1")), ErrorCode::io, "id");
  expect_refusal(foreign_json("", end("1e9")), ErrorCode::io, "id");
  expect_refusal(foreign_json("", end("99999999999999999999")), ErrorCode::io, "id");
  expect_refusal(foreign_json("", end("7")), ErrorCode::io, "");
  expect_refusal(foreign_json("", end("258, \"lstrip\": true")), ErrorCode::io, "lstrip");
  expect_refusal(foreign_json("", R"({"id": 258, "content": ""})"), ErrorCode::io, "content");
  const std::string good = sample_json();
  expect_refusal(replaced(good, R"("add_prefix_space": false)", R"("add_prefix_space": true)"), ErrorCode::io, "add_prefix_space");
  expect_refusal(replaced(good, R"("use_regex": true)", R"("use_regex": false)"), ErrorCode::io, "use_regex");
  expect_refusal(replaced(good, R"("dropout": null)", R"("dropout": 0.1)"), ErrorCode::io, "dropout");
  expect_refusal(replaced(good, R"("normalizer": null)", R"("normalizer": {"type": "NFC"})"), ErrorCode::io, "NFC");
  expect_refusal(replaced(good, R"("ByteLevel")", R"("Metaspace")"), ErrorCode::io, "Metaspace");
  expect_refusal(replaced(good, R"("a": 97)", R"("a": 98)"), ErrorCode::io, "98");
  std::string deep = R"({"model": {"type": "BPE"}, "pre_tokenizer": )" + std::string(300000, '[') + std::string(300000, ']') + "}";
  expect_refusal(deep, ErrorCode::io, "array");
}

TEST(TokenizerFile, NamesUnreadableAndUnwritableFiles) {
  EXPECT_THROW(load_tokenizer("no/such/tokenizer.json"), Error);
  EXPECT_THROW(load_tokenizer(testing::TempDir()), Error);
  EXPECT_THROW(save_tokenizer(ByteTokenizer(), "no/such/folder/tokenizer.json"), Error);
}

// However a file is corrupted, it is rejected with an error or gives a tokenizer that round-trips every text.
TEST(TokenizerFile, DamagedFilesAreRejectedOrCorrect) {
  std::mt19937 random(14);
  const std::string good = sample_json(), text = random_text(random, 100);
  const std::vector<std::string> pieces = {"\"", "{", "}", "[", "]", ",", ":", "null", "-1", "1e99", "\"a\"", "0", "Ġ", "\\u0000", "true", "\xff", "256"};
  int refused = 0, accepted = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string damaged = good;
    for (int edits = 1 + int(random() % 2); edits > 0; --edits) {
      const size_t at = random() % damaged.size();
      switch (random() % 4) {
        case 0: damaged[at] = char(random()); break;
        case 1: damaged.erase(at, 1 + random() % 20); break;
        case 2: damaged.insert(at, pieces[random() % pieces.size()]); break;
        case 3: damaged.replace(at, 1, 1, good[random() % good.size()]); break;
      }
    }
    try {
      const auto tokenizer = parse_tokenizer(damaged);
      const Tokens tokens = tokenizer->encode(text);
      for (Token token : tokens) ASSERT_LT(token, tokenizer->vocab_size());
      ASSERT_EQ(tokenizer->decode(tokens), text);
      ++accepted;
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::io) << e.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(accepted, 10);
}

}  // namespace
}  // namespace ridge
