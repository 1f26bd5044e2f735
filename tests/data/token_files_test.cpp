// Token files of other programs: nanoGPT's and llm.c's are read directly, and problems are reported.
#include "data/token_files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "data/char_tokenizer.h"
#include "machine/expect_error.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

using test::TempFolder;
using test::write_text;

template <class T>
std::string packed(const std::vector<int>& tokens) {
  std::string out;
  for (int token : tokens) {
    const T t = T(token);
    out.append(reinterpret_cast<const char*>(&t), sizeof t);
  }
  return out;
}

template <class T>
std::string shard(int magic, int version, const std::vector<int>& tokens) {
  std::vector<int> header(256);
  header[0] = magic, header[1] = version, header[2] = int(tokens.size());
  return packed<int32_t>(header) + packed<T>(tokens);
}

std::vector<int64_t> ids_of(const TokenArray& tokens) {
  std::vector<int64_t> out(size_t(tokens.size()));
  tokens.copy(0, out);
  return out;
}

// {'itos': {0: 'a', 1: 'b', 2: '\n'}} in the text form of protocol 0.
constexpr std::string_view kMeta = "(dVitos\n(dI0\nVa\nsI1\nVb\nsI2\nV\\u000a\nss.";

class TokenFiles : public testing::Test {
 protected:
  TokenFiles() { options_.cache = folder_ / "cache"; }
  Dataset open(const std::string& source) const { return open_dataset(source, options_); }
  void expect_refusal(const std::string& source, std::initializer_list<std::string_view> parts, ErrorCode code = ErrorCode::io) const {
    const Error error = error_of([&] { open(source); });
    EXPECT_EQ(error.code(), code) << error.what();
    for (std::string_view part : parts) EXPECT_TRUE(mentions(error.what(), part)) << error.what() << "\n  lacks: " << part;
  }
  TempFolder folder_;
  DatasetOptions options_;
};

TEST_F(TokenFiles, ReadNanoGptFilesWithCharacters) {
  write_text(folder_ / "train.bin", packed<uint16_t>({0, 1, 2, 1, 0}));
  write_text(folder_ / "val.bin", packed<uint16_t>({2, 2, 1}));
  write_text(folder_ / "meta.pkl", kMeta);
  const Dataset data = open(folder_.path());
  EXPECT_EQ(data.vocab, 3);
  EXPECT_EQ(data.tokenizer->decode(std::vector<Token>{0, 1, 2}), "ab\n");
  EXPECT_EQ(ids_of(data.train), (std::vector<int64_t>{0, 1, 2, 1, 0}));
  EXPECT_EQ(ids_of(data.validation), (std::vector<int64_t>{2, 2, 1}));
  EXPECT_EQ(data.validation_characters, 3);
  EXPECT_EQ(open(folder_ / "train.bin").fingerprint, data.fingerprint);
  write_text(folder_ / "val.bin", packed<uint16_t>({2, 2, 0}));
  EXPECT_NE(open(folder_.path()).fingerprint, data.fingerprint);
}

TEST_F(TokenFiles, NanoGptFilesWithoutAVocabularyAreGpt2s) {
  write_text(folder_ / "train.bin", packed<uint16_t>({50256, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  const Dataset data = open(folder_.path());
  EXPECT_EQ(data.vocab, 50257);
  EXPECT_EQ(data.tokenizer, nullptr);
  EXPECT_EQ(data.train.size(), 9);
  EXPECT_EQ(ids_of(data.validation), std::vector<int64_t>{9});
}

TEST_F(TokenFiles, ReadBothLlmcFormats) {
  for (const auto& [magic, version, wide] : {std::tuple(20240520, 1, false), std::tuple(20240801, 7, true)}) {
    const auto write = [&, m = magic, v = version, w = wide](const char* name, const std::vector<int>& tokens) {
      write_text(folder_ / name, w ? shard<uint32_t>(m, v, tokens) : shard<uint16_t>(m, v, tokens));
    };
    write("x_train_000002.bin", {4, 5});
    write("x_train_000001.bin", {1, 2, 3});
    write("x_val_000000.bin", {7, 50256});
    for (const std::string& source : {folder_.path(), folder_ / "x_*.bin"}) {
      const Dataset data = open(source);
      EXPECT_EQ(ids_of(data.train), (std::vector<int64_t>{1, 2, 3, 4, 5}));
      EXPECT_EQ(ids_of(data.validation), (std::vector<int64_t>{7, 50256}));
      EXPECT_EQ(data.vocab, wide ? 128256 : 50257);
    }
  }
}

TEST_F(TokenFiles, ReportErrors) {
  write_text(folder_ / "x_train.bin", shard<uint16_t>(20240521, 1, {1, 2}));
  expect_refusal(folder_.path(), {"x_train.bin", "begins with 20240521 1", "20240520"});
  write_text(folder_ / "x_train.bin", shard<uint16_t>(20240520, 1, {1, 2}).substr(0, 1026));
  expect_refusal(folder_.path(), {"x_train.bin: 1026 bytes", "truncated"});
  write_text(folder_ / "x_train.bin", "short");
  expect_refusal(folder_.path(), {"x_train.bin: 5 bytes", "header"});
  write_text(folder_ / "x_train.bin", shard<uint16_t>(20240520, 1, {1, 60000}));
  expect_refusal(folder_.path(), {"x_train.bin", "token 60000", "GPT-2's vocabulary of 50257"});
  write_text(folder_ / "x_train.bin", shard<uint16_t>(20240520, 1, {1, 2}));
  write_text(folder_ / "x_val.bin", shard<uint32_t>(20240801, 7, {1, 2}));
  expect_refusal(folder_.path(), {"x_val.bin", "one vocabulary"});
  expect_refusal(folder_ / "*_val.bin", {"x_val.bin", "training"});

  write_text(folder_ / "train.bin", "odd");
  expect_refusal(folder_.path(), {"train.bin: 3 bytes", "2 bytes"});
  write_text(folder_ / "train.bin", packed<uint16_t>({0, 3}));
  write_text(folder_ / "val.bin", "");
  expect_refusal(folder_.path(), {"val.bin", "empty"});
  write_text(folder_ / "val.bin", packed<uint16_t>({0, 1}));
  write_text(folder_ / "meta.pkl", kMeta);
  expect_refusal(folder_.path(), {"train.bin", "token 3 is not in the vocabulary of 3"});
  write_text(folder_ / "meta.pkl", "(dVstoi\n(dVa\nI0\nss.");
  expect_refusal(folder_.path(), {"meta.pkl", "itos"});
  write_text(folder_ / "meta.pkl", "(dVitos\n(dI0\nVab\nss.");
  expect_refusal(folder_.path(), {"meta.pkl", "not one character"});
  write_text(folder_ / "meta.pkl", "(dVitos\n(dI1\nVa\nss.");
  expect_refusal(folder_.path(), {"meta.pkl", "0 .. 0"});
  write_text(folder_ / "meta.pkl", "cos\nsystem\n.");
  expect_refusal(folder_.path(), {"meta.pkl", "0x63"});
}

TEST_F(TokenFiles, RejectAnotherTokenizer) {
  write_text(folder_ / "train.bin", packed<uint16_t>({0, 1, 2, 1, 0}));
  write_text(folder_ / "val.bin", packed<uint16_t>({2, 2, 1}));
  write_text(folder_ / "meta.pkl", kMeta);
  options_.tokenizer = "bpe";
  expect_refusal(folder_.path(), {"already tokens"}, ErrorCode::usage);
  options_.given = std::make_shared<CharTokenizer>(CharTokenizer::of_text("xyz"));
  expect_refusal(folder_.path(), {"differs"});
  options_.given = std::make_shared<CharTokenizer>(std::vector<std::string>{"a", "b", "\n"});
  EXPECT_EQ(open(folder_.path()).vocab, 3);
}

}  // namespace
}  // namespace ridge
