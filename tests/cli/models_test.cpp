// Using trained models: they generate text, are evaluated and exported; anything that is not a model, or not a text for it, is reported.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

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

TEST(ModelCommands, FindDataByNameAndExportModels) {
  RidgeProgram ridge;
  fs::create_directories(ridge / "data/shakespeare_char");
  std::string text;
  for (int i = 0; i < 20; ++i) text += kText;
  write_text(ridge / "data/shakespeare_char/input.txt", text);
  Answer answer = ridge(training({"data=shakespere_char"}));
  EXPECT_EQ(answer.code, 4) << answer.all();
  EXPECT_TRUE(answer.says("no such file or folder in ., data, ")) << answer.all();
  EXPECT_TRUE(answer.says("similar: data/shakespeare_char")) << answer.all();

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
  answer = ridge(training({"data=shakespeare_char", "init_from=llama", "--out", "again"}));  // training continues from the export
  EXPECT_EQ(answer.code, 0) << answer.all();

  // A run knows its text; an exported model does not, and is evaluated only on a text that the user names.
  EXPECT_EQ(ridge({"eval", "modern/model", "--windows", "1"}).code, 0);
  answer = ridge({"eval", "llama"});
  EXPECT_EQ(answer.code, 2) << answer.all();
  EXPECT_TRUE(answer.says("llama does not say what text it was trained on; name one: data=FILE, or data=builtin")) << answer.all();
  EXPECT_EQ(ridge({"eval", "llama", "data=shakespeare_char", "--windows", "1"}).code, 0);

  // Its own tokenizer, or the named one if it has none.
  answer = ridge({"sample", "llama", "tokenizer=byte", "--tokens", "2"});
  EXPECT_EQ(answer.code, 2) << answer.all();
  EXPECT_TRUE(answer.says("which is not tokenizer=byte; leave tokenizer out")) << answer.all();
  fs::rename(ridge / "llama/tokenizer.json", ridge / "its_tokenizer.json");
  answer = ridge({"sample", "llama", "--tokens", "2"});
  EXPECT_EQ(answer.code, 4) << answer.all();
  EXPECT_TRUE(answer.says("copy the model's there, or name it with tokenizer=FILE")) << answer.all();
  answer = ridge({"sample", "llama", "tokenizer=its_tokenizer.json", "--tokens", "2"});
  EXPECT_EQ(answer.code, 0) << answer.all();
  EXPECT_FALSE(answer.says("no effect")) << answer.all();
  answer = ridge({"sample", "llama", "tokenizer=byte", "--tokens", "2"});
  EXPECT_EQ(answer.code, 4) << answer.all();
  EXPECT_TRUE(answer.says("byte has 257 tokens, the model knows ")) << answer.all();
}

TEST(ModelCommands, SampleWithTheGivenSettings) {
  RidgeProgram ridge;
  const std::string sample = "sample " + fixture("gpt2") + " ";
  expect_words(ridge, 0, "abc", sample + "--prompt abc --tokens 5 temperature=0 threads=1");
  expect_words(ridge, 0, "\"tokens\":7", sample + "--tokens 7 --json seed=3 top_k=4 top_p=0.9 precision=bf16");
  expect_words(ridge, 0, "\"tokens\":7", sample + "tokens=7 --json");
  const Answer half = expect_words(ridge, 0, "\"device\":\"cpu\",\"precision\":\"fp16\"", sample + "--tokens 2 --json device=cpu precision=fp16");
  EXPECT_FALSE(half.says("gradient")) << "a sample has none" << half.all();
  expect_words(ridge, 0, "\"kv_precision\":\"bf16\"", sample + "tokens=2 precision=fp32 kv_precision=bf16 --json");
  expect_words(ridge, 0, "\"kv_precision\":\"fp32\"", sample + "max_new_tokens=2 kv_precision=fp32 --json");
  expect_words(ridge, 2, "tokens is '0', but must be a whole number from 1 to", sample + "--tokens 0");
  expect_words(ridge, 2, "tokens is 'abc', but must be a whole number", sample + "--tokens abc");
  expect_words(ridge, 2, "tokens is '99999999999999999999', but must be a whole number", sample + "--tokens 99999999999999999999");
  expect_words(ridge, 2, "device is 'tpu'", sample + "device=tpu");
  expect_words(ridge, 2, "top_p is '2'", sample + "top_p=2");
  expect_words(ridge, 2, "did you mean 'temperature'", sample + "temperatur=1");
  expect_words(ridge, 2, "cannot read the prompt", sample + "--prompt Query");
  const Answer unused = expect_words(ridge, 0, "", sample + "--tokens 2 batch=3");
  EXPECT_NE(unused.err.find("batch=3 has no effect on ridge sample"), std::string::npos) << unused.all();
  ridge.set("RIDGE_CUDA_LIBRARY", "libno_such_driver.so");
  expect_words(ridge, 1, "libno_such_driver.so", sample + "device=cuda no_fallback=true");
  const Answer fallback = expect_words(ridge, 0, "", sample + "--tokens 2 device=cuda");
  EXPECT_NE(fallback.err.find("cpu runs instead of cuda"), std::string::npos) << fallback.all();
}

TEST(ModelCommands, ReportWhatIsNotAModel) {
  RidgeProgram ridge;
  expect_words(ridge, 4, "does not exist; ridge train gpt --out nothing makes a run there", "sample nothing");
  expect_words(ridge, 4, "is neither a run", "eval .");
  for (const char* name : {"bells", "balls", "tables", "chairs"}) fs::create_directories(ridge / (std::string(name) + "/checkpoints"));
  expect_words(ridge, 4, "does not exist; there are balls, bells, tables and 1 more", "eval ./ball");
  expect_words(ridge, 4, "bells has no intact checkpoint; there are", "export bells");
  expect_words(ridge, 0, "GPT-2's form", "export " + fixture("gpt2") + " --out model");
  const std::string weights = ridge / "model/model.safetensors";
  write_text(weights, read_text(weights).substr(0, 3000));
  expect_words(ridge, 4, "model.safetensors", "sample model --prompt abc");
}

TEST(ModelCommands, EvaluateATextFile) {
  RidgeProgram ridge;
  std::string text;
  for (int i = 0; i < 40; ++i) text += "some words and some more words for a model that was never trained!\n";
  write_text(ridge / "words.txt", text);
  const std::string eval = "eval " + fixture("gpt2") + " data=words.txt ";
  expect_words(ridge, 0, "\"bits_per_byte\":", eval + "--json");
  expect_words(ridge, 0, "cpu, fp32: asked for by name", eval + "device=cpu");
  expect_words(ridge, 2, "valid: validation, train", eval + "--split all");
}

// A seed determines the generated text, and the numbers that eval prints are consistent.
TEST(ModelCommands, ReportWhatARunLearned) {
  RidgeProgram ridge;
  write_plays(ridge);
  expect_words(ridge, 0, "all 4 steps done", "train gpt" + kSmall + "steps=4 data=plays.txt --out run");
  auto sampled = [&](const std::string& more) { return expect_words(ridge, 0, "", "sample run --prompt to --tokens 60 " + more).out; };
  EXPECT_EQ(sampled("seed=1"), sampled("seed=1"));
  EXPECT_NE(sampled("seed=1"), sampled("seed=2"));
  EXPECT_EQ(sampled("temperature=0 seed=1"), sampled("top_k=1 seed=2"));
  const auto result = nlohmann::json::parse(expect_words(ridge, 0, "perplexity", "eval run data=plays.txt --json").out);
  const double loss = result.at("loss");
  EXPECT_NEAR(double(result.at("perplexity")) / std::exp(loss), 1, 1e-4);
  EXPECT_NEAR(double(result.at("bits_per_byte")) / (loss / std::log(2.0)), 1, 1e-4);
  EXPECT_NEAR(loss, double(nlohmann::json::parse(read_text(ridge / "run/summary.json")).at("final_val_loss")), 1e-3);
}

}  // namespace
}  // namespace ridge::test
