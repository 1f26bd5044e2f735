// Data by name, and models for other programs, as a user asks for them.
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kText = "To be, or not to be, that is the question.\n";

std::vector<std::string> training(std::vector<std::string> more) {
  std::vector<std::string> words = {"train", "gpt", "layers=1", "heads=2", "width=16", "block=8", "batch=2", "steps=1", "threads=1", "sample_interval=none"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(ModelCommands, DataIsFoundByNameAndModelsAreExported) {
  RidgeProgram ridge;
  fs::create_directories(ridge / "data/shakespeare_char");
  std::string text;
  for (int i = 0; i < 20; ++i) text += kText;
  write_text(ridge / "data/shakespeare_char/input.txt", text);
  Answer answer = ridge(training({"data=shakespere_char"}));
  EXPECT_EQ(answer.code, 4) << answer.all();
  EXPECT_TRUE(answer.says("no such file or folder in ., data, ")) << answer.all();
  EXPECT_TRUE(answer.says("near it is data/shakespeare_char")) << answer.all();

  answer = ridge(training({"data=shakespeare_char", "norm=rms", "pos=rope", "mlp=swiglu", "--out", "modern"}));
  ASSERT_EQ(answer.code, 0) << answer.all();
  answer = ridge({"export", "modern", "--out", "llama"});
  EXPECT_EQ(answer.code, 0) << answer.all();
  EXPECT_TRUE(answer.says("LlamaForCausalLM.from_pretrained")) << answer.all();
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_TRUE(fs::exists(fs::path(ridge / "llama") / name)) << name;
    EXPECT_TRUE(fs::exists(fs::path(ridge / "modern/model") / name)) << name;
  }
  EXPECT_NE(read_text(ridge / "llama/tokenizer_config.json").find("PreTrainedTokenizerFast"), std::string::npos);
  answer = ridge({"export", "modern", "--form", "gpt2", "--out", "other"});
  EXPECT_EQ(answer.code, 2) << answer.all();
  EXPECT_TRUE(answer.says("GPT-2's form cannot express norm=rms, pos=rope, mlp=swiglu")) << answer.all();
  EXPECT_EQ(ridge({"export", "modern", "--form", "lama", "--out", "other"}).code, 2);
  answer = ridge(training({"data=shakespeare_char", "init_from=llama", "--out", "again"}));  // and goes on from there
  EXPECT_EQ(answer.code, 0) << answer.all();
}

}  // namespace
}  // namespace ridge::test
