// Data from the command line: tokens are made once, every kind of source can be trained on, and a bad one is reported in one line with no files left behind.
// The messages for each kind of file are tested in tests/data.
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

namespace fs = std::filesystem;

std::string repeated(std::string_view part, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += part;
  return all;
}

std::string tokens16(std::initializer_list<int> tokens, int times) {
  std::string one;
  for (int token : tokens) one += {char(token & 255), char(token >> 8)};
  return repeated(one, times);
}

// {'itos': {0: 'a', 1: 'b', 2: '\n'}} as a pickle.
constexpr std::string_view kThreeCharacters = "(dVitos\n(dI0\nVa\nsI1\nVb\nsI2\nV\\u000a\nss.";

class DataCommands : public ::testing::Test {
 protected:
  DataCommands() { write_plays(ridge); }
  void refused(int code, std::string_view words, const std::string& line) const {
    expect_refusal(ridge, code, words, "train gpt" + kSmall + "steps=1 --out bad " + line);
    EXPECT_FALSE(fs::exists(ridge / "bad")) << line;
  }
  void trained(const std::string& data, const std::string& out) const {
    expect_words(ridge, 0, "its only step is done", "train gpt" + kSmall + "steps=1 eval_interval=none data=" + data + " --out " + out);
  }
  RidgeProgram ridge;
};

TEST_F(DataCommands, PrepareTokenizesOnce) {
  write_text(ridge / "text.txt", repeated("to be or not to be, that is the question\n", 9));
  expect_words(ridge, 0, "char tokenizer, 15 tokens", "data prepare text.txt");
  expect_words(ridge, 0, "it was already there", "data prepare text.txt");
  expect_words(ridge, 0, "\"vocab\": 260", "data prepare text.txt tokenizer=bpe vocab=260 --out tokens --json");
  expect_words(ridge, 2, "already tokens", "data prepare tokens --out other");
  expect_words(ridge, 0, "Train on it", "data prepare text.txt tokenizer=byte --out twice");
  expect_words(ridge, 0, "(byte, 257 different ones)", "data prepare text.txt tokenizer=char --out twice");
  expect_words(ridge, 0, "2 batches of 2 x 4 tokens", "data batches text.txt --out batches.bin --batches 2 batch=2 block=4");
  expect_words(ridge, 2, "--out is missing", "data batches text.txt batch=2 block=4");
  expect_words(ridge, 2, "unknown command 'batch'", "data batch text.txt");
  expect_words(ridge, 2, "did you mean 'prepare'", "data prepar");
}

TEST_F(DataCommands, PrepareReportsErrors) {
  write_text(ridge / "text.txt", repeated("to be or not to be, that is the question\n", 9));
  write_text(ridge / "latin.txt", "caf\xe9\n");
  expect_words(ridge, 2, "257 to", "data prepare text.txt vocab=3");
  expect_words(ridge, 2, "--vocab is for tokenizer=bpe", "data prepare text.txt --vocab 300");
  expect_words(ridge, 2, "is not auto, char, byte or bpe", "data prepare text.txt tokenizer=bep");
  expect_words(ridge, 4, "no such file", "data prepare none.txt");
  expect_words(ridge, 4, "tokenizer=byte", "data prepare latin.txt");
  expect_words(ridge, 4, "needs 65", "data prepare text.txt block=64");
  expect_words(ridge, 4, "not empty", "data prepare text.txt --out " + ridge.folder());
}

// Training uses the stories that were prepared; different ones need a separate folder.
TEST_F(DataCommands, GeneratesBuiltInStoriesOnce) {
  expect_words(ridge, 0, "data=builtin", "data prepare builtin" + kSmall);
  expect_words(ridge, 0, "builtin", "plan gpt" + kSmall);
  EXPECT_EQ(std::distance(fs::directory_iterator(ridge / ".cache/data"), {}), 1) << "a training makes other stories than data prepare";
  expect_words(ridge, 2, "add --out FOLDER", "data prepare builtin seed=5");
  expect_words(ridge, 0, "data=others", "data prepare builtin seed=5" + kSmall + "--out others");
}

TEST_F(DataCommands, TrainsOnEveryKindOfSource) {
  fs::create_directories(ridge / "texts/more");
  fs::create_directories(ridge / "bins"), fs::create_directories(ridge / "shards");
  write_plays(ridge, "texts/a.txt");
  write_text(ridge / "texts/more/b.md", repeated("to see or not to see\n", 60));
  trained("texts", "from_texts");
  write_text(ridge / "bins/train.bin", tokens16({0, 1, 2, 1}, 200));
  write_text(ridge / "bins/val.bin", tokens16({2, 1, 0}, 40));
  write_text(ridge / "bins/meta.pkl", kThreeCharacters);
  trained("bins", "from_bins");
  EXPECT_NE(read_text(ridge / "from_bins/model/config.json").find("\"vocab_size\": 3"), std::string::npos);
  expect_words(ridge, 0, "a", "sample from_bins --prompt ab --tokens 5");
  fs::remove(ridge / "bins/meta.pkl");
  trained("bins", "from_gpt2s");
  EXPECT_NE(read_text(ridge / "from_gpt2s/model/config.json").find("\"vocab_size\": 50257"), std::string::npos) << "tokens without a vocabulary are GPT-2's";
  std::string header("\x88\xd8\x34\x01\1\0\0\0\x20\3\0\0", 12);  // 20240520, version 1, 800 tokens
  header.resize(1024);
  for (const char* part : {"train", "val"}) write_text(ridge / ("shards/tiny_" + std::string(part) + "_0001.bin"), header + tokens16({1, 2, 3, 255}, 200));
  trained("shards", "from_shards");
  write_text(ridge / "shards/tiny_val_0001.bin", (header + tokens16({1, 2, 3, 255}, 200)).substr(0, 1500));
  refused(4, "truncated", "data=shards");
}

TEST_F(DataCommands, TrainsOnLongLines) {
  write_text(ridge / "long.txt", std::string(1000000, 'a') + "bcd");
  trained("long.txt tokenizer=char", "characters");
  write_text(ridge / "line.txt", repeated("to be or not to be, that is the question: whether it is nobler in the mind to suffer ", 2000));
  trained("line.txt tokenizer=bpe", "pairs");
  write_text(ridge / "one_word.txt", std::string(300000, 'a'));
  trained("one_word.txt", "one_word");
}

TEST_F(DataCommands, RejectsBadSourcesBeforeCreatingAFolder) {
  write_text(ridge / "empty.txt", "");
  write_text(ridge / "short.txt", "short");
  write_text(ridge / "latin.txt", repeated("caf\xe9 ", 500));
  write_text(ridge / "noise.bin", repeated("\x80\xff\xc3\x28\xfe", 800));
  write_text(ridge / "unigram.json", R"({"model": {"type": "Unigram"}})");
  fs::create_directory(ridge / "nothing");
  refused(4, "no such file", "data=none.txt");
  refused(4, "is empty", "data=empty.txt");
  refused(4, "short.txt", "data=short.txt");
  refused(4, "a window of block 32 needs 33", "data=short.txt");
  refused(4, "tokenizer=byte", "data=latin.txt");
  refused(4, "no text files", "data=nothing");
  refused(4, "Unigram", "data=plays.txt tokenizer=unigram.json");
  refused(4, "does not exist", "data=plays.txt tokenizer=none.json");
  refused(4, "noise.bin", "data=noise.bin tokenizer=char");
  refused(2, "is not auto, char, byte or bpe", "data=plays.txt tokenizer=cahr");

  fs::create_directory(ridge / "bins");
  write_text(ridge / "bins/train.bin", tokens16({0, 1, 2, 1}, 200));
  write_text(ridge / "bins/val.bin", tokens16({7}, 200));
  write_text(ridge / "bins/meta.pkl", kThreeCharacters);
  refused(4, "is not in the vocabulary of 3", "data=bins");
  write_text(ridge / "bins/meta.pkl", "cos\nsystem\n(S'touch owned'\ntR.");
  refused(4, "meta.pkl", "data=bins");
  EXPECT_FALSE(fs::exists(ridge / "owned")) << "a pickle was obeyed";
}

TEST_F(DataCommands, RejectsInvalidSettingsBeforeCreatingAFolder) {
  refused(2, "width 16 is not a multiple of heads 3", "heads=3 data=plays.txt");
  refused(3, "the smallest budget that works is memory=", "preset=gpt2 layers=12 heads=12 width=768 block=64 data=plays.txt tokenizer=byte memory=64MiB");
  refused(4, "nowhere", "data=plays.txt init_from=nowhere");
  fs::create_directory(ridge / "texts");
  refused(4, "texts", "data=plays.txt init_from=texts");
  expect_refusal(ridge, 4, "Not a directory", "train gpt" + kSmall + "steps=1 data=plays.txt --out plays.txt/run");
  expect_refusal(ridge, 4, "/dev/null/bad", "train gpt" + kSmall + "steps=1 data=plays.txt --out /dev/null/bad");

  // A problem with the last of several data sets is reported before training on the first.
  refused(4, "missing.txt", "data=plays.txt,missing.txt");
  refused(3, "smallest budget", "seeds=2 data=plays.txt memory=1MiB");
  expect_refusal(ridge, 4, "missing.txt", "train gpt" + kSmall + "data=missing.txt runs_dir=runs");
  expect_refusal(ridge, 3, "smallest budget", "train gpt" + kSmall + "seeds=2 data=plays.txt memory=1MiB runs_dir=runs");
  EXPECT_FALSE(fs::exists(ridge / "runs")) << "a refused training left a folder";
}

}  // namespace
}  // namespace ridge::test
