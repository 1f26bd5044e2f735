// Existing files are kept: a run or an export overwrites only files that an earlier one of the same kind wrote.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <thread>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

namespace fs = std::filesystem;

class UserFiles : public ::testing::Test {
 protected:
  UserFiles() {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "a line of text, number " + std::to_string(i) + ".\n";
    write_text(ridge / "t.txt", text);
    ridge.set("RIDGE_CUDA_LIBRARY", "libno_such_driver.so");
  }
  static std::vector<std::string> training(std::vector<std::string> more) {
    std::vector<std::string> words = {"train",
                                      "gpt",
                                      "data=t.txt",
                                      "layers=1",
                                      "heads=1",
                                      "width=8",
                                      "block=8",
                                      "batch=2",
                                      "warmup=0",
                                      "steps=1",
                                      "threads=1",
                                      "optimize_perf=false",
                                      "eval_interval=none",
                                      "sample_interval=none"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  void expect(int code, std::string_view text, const std::vector<std::string>& words) const {
    const Answer answer = ridge(words);
    EXPECT_EQ(answer.code, code) << answer.all();
    EXPECT_TRUE(answer.says(text)) << text << answer.all();
  }

  RidgeProgram ridge;
};

TEST_F(UserFiles, ExportDoesNotWriteIntoCheckpoints) {
  fs::copy(fixture("run_folders/gpt_f32"), ridge / "run", fs::copy_options::recursive);
  const std::string newest = read_text(ridge / "run/checkpoints/LATEST"), step = "run/checkpoints/" + newest.substr(0, newest.find('\n'));
  const std::string before = read_text(ridge / (step + "/config.json"));
  fs::create_directory_symlink(ridge / "run/checkpoints", ridge / "link");
  for (const std::string& out : {step, step + "/", std::string("run/checkpoints"), std::string("run/checkpoints/new/model"), std::string("link/new")})
    expect(2, "is among the checkpoints of the run", {"export", fixture("gpt2"), "--out", out});
  expect(2, "is among the checkpoints of the run", {"export", "run", "--out", step});
  fs::copy(ridge / step, ridge / "copy", fs::copy_options::recursive);
  expect(2, "copy is a checkpoint (it contains manifest.json)", {"export", "run", "--out", "copy"});
  EXPECT_EQ(read_text(ridge / (step + "/config.json")), before);
  EXPECT_FALSE(fs::exists(ridge / "run/checkpoints/new"));
  fs::create_directory(ridge / "checkpoints");  // not from a run
  expect(0, "checkpoints/gpt2 contains the model", {"export", fixture("gpt2"), "--out", "checkpoints/gpt2"});
}

TEST_F(UserFiles, ExportReplacesOnlyAnEarlierExport) {
  const std::string model = fixture("gpt2");
  for (int i = 0; i < 2; ++i) expect(0, "m contains the model in GPT-2's form", {"export", model, "--out", "m"});
  expect(2, "m contains another model; remove it, or choose an empty folder", {"export", model, "--out", "m", "--form", "ridge"});
  expect(2, "m contains another model", {"export", fixture("llama"), "--out", "m"});
  write_text(ridge / "m/notes.txt", "mine");
  expect(2, "m contains notes.txt, which no export writes", {"export", model, "--out", "m"});
  fs::copy(model, ridge / "theirs", fs::copy_options::recursive);
  fs::remove(ridge / "theirs/logits.npy"), fs::remove(ridge / "theirs/tokens.npy");
  expect(2, "theirs contains another model", {"export", "theirs", "--out", "theirs"});
  expect(2, "t.txt is not a folder", {"export", model, "--out", "t.txt"});
  // A run's own model/ can be written in any form.
  ASSERT_EQ(ridge(training({"--out", "run"})).code, 0);
  expect(0, "Ridge's own form", {"export", "run", "--form", "ridge"});
  expect(0, "GPT-2's form", {"export", "run"});
}

TEST_F(UserFiles, DistinguishesReadErrorsFromWriteErrors) {
  expect(2, "Llama's form cannot express norm=layer", {"export", fixture("gpt2"), "--form", "llama", "--out", "other"});
  EXPECT_FALSE(fs::exists(ridge / "other"));
  fs::copy(fixture("gpt2"), ridge / "model", fs::copy_options::recursive);
  fs::permissions(ridge / "model/config.json", fs::perms::owner_write, fs::perm_options::add);
  std::string config = read_text(ridge / "model/config.json");
  const size_t at = config.find("\"gelu_new\"");
  ASSERT_NE(at, config.npos);
  write_text(ridge / "model/config.json", config.replace(at, 10, "\"relu\""));
  expect(4, "activation_function is relu", {"export", "model", "--out", "other"});
  write_text(ridge / "model/config.json", R"({"model_type": "bert"})");
  expect(4, "model_type is bert", {"sample", "model"});
}

TEST_F(UserFiles, ARunResumesInItsOwnFolder) {
  ASSERT_EQ(ridge(training({"--out", "a"})).code, 0);
  auto settings = [&] {
    std::vector<std::string> lines;
    std::istringstream in(read_text(ridge / "a/config.yaml"));
    for (std::string line; std::getline(in, line);)
      if (!line.starts_with("steps: ") && !line.starts_with("out: ")) lines.push_back(line);
    return lines;
  };
  const std::vector<std::string> before = settings();
  const char* const refusal = "--resume a and out=b name two folders";
  expect(2, refusal, {"train", "gpt", "--resume", "a", "--out", "b"});
  expect(2, refusal, {"train", "gpt", "--out=b", "--resume=a"});
  expect(2, refusal, {"train", "gpt", "out_dir=b", "--resume", "a"});
  expect(2, refusal, {"--resume", "a", "train", "gpt", "--out", "b"});
  EXPECT_FALSE(fs::exists(ridge / "b"));
  expect(0, "", {"train", "gpt", "--resume", "a", "--out", "./a/", "steps=2"});
  expect(0, "", {"--resume", "a", "train", "gpt", "steps=3"});
  expect(0, "", {"train", "gpt", "--resume=true", "--out", "a", "steps=4"});
  EXPECT_EQ(settings(), before) << "where each setting came from, and no wish to resume";
  EXPECT_NE(read_text(ridge / "a/config.yaml").find("\nsteps: 4  # command line\n"), std::string::npos);
}

TEST_F(UserFiles, ARunDoesNotOverwriteUserFiles) {
  for (const char* name : {"config.yaml", "log.txt", "summary.json", "model/notes.txt"}) {
    fs::remove_all(ridge / "mine");
    fs::create_directories(fs::path(ridge / (std::string("mine/") + name)).parent_path());
    write_text(ridge / (std::string("mine/") + name), "lr: 0.5\n");
    const std::string_view shown = std::string_view(name).substr(0, std::string_view(name).find('/'));
    expect(2, "mine contains files that a run would overwrite: " + std::string(shown), training({"--out", "mine"}));
    EXPECT_EQ(read_text(ridge / (std::string("mine/") + name)), "lr: 0.5\n");
    EXPECT_EQ(std::distance(fs::directory_iterator(ridge / "mine"), {}), 1);
  }
  write_text(ridge / "config.yaml", "lr: 0.5\n");
  expect(2, "would overwrite: config.yaml", training({"seeds=2", "--out", "."}));
  // Left by a run that ended before its first step; notes are not Ridge's files.
  ASSERT_EQ(ridge(training({"--out", "begun"})).code, 0);
  fs::remove_all(ridge / "begun/checkpoints"), fs::remove(ridge / "begun/metrics.jsonl"), fs::remove(ridge / "begun/summary.json");
  write_text(ridge / "begun/notes.txt", "mine");
  expect(0, "", training({"--out", "begun"}));
}

// A new run among a user's own files could not be told from them later.
TEST_F(UserFiles, ARunIsNotPlacedAmongOtherFiles) {
  fs::create_directories(ridge / "mine/photos");
  write_text(ridge / "mine/photos/a.jpg", "a picture");
  expect(2, "mine is not empty and not a run: it contains photos; choose a new folder with --out DIR, such as mine/run", training({"--out", "mine"}));
  expect(2, "mine is not empty and not a run", training({"seeds=2", "--out", "mine"}));
  EXPECT_EQ(std::distance(fs::recursive_directory_iterator(ridge / "mine"), {}), 2);
  fs::create_directory(ridge / "set");
  write_text(ridge / "set/train.yaml", "lr: 0.001\n");
  write_text(ridge / "set/.hidden", "");
  expect(0, "its only step is done", training({"--out", "set"}));
}

// A run killed before its first step still counts as a run: it blocks on opening its log, which is a pipe without a reader.
TEST_F(UserFiles, ARunKilledBeforeItsFirstStepRestarts) {
  constexpr std::string_view kFirst = "# Every setting of this run, and where it came from.\n";  // all that an earlier attempt has left
  fs::create_directory(ridge / "a");
  write_text(ridge / "a/config.yaml", kFirst);
  ASSERT_EQ(mkfifo((ridge / "a/log.txt").c_str(), 0600), 0);
  const RidgeProgram::Running run = ridge.start(training({"--out", "a"}));
  auto is_written = [&] { return fs::file_size(ridge / "a/config.yaml") > kFirst.size(); };
  for (int i = 0; i < 1000 && !is_written(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(is_written());
  run.send(SIGTERM);
  EXPECT_EQ(run.wait().code, 128 + SIGTERM);
  fs::remove(ridge / "a/log.txt");
  write_text(ridge / "a/log.txt", "what it had said by then\n");
  expect(0, "its only step is done", training({"--out", "a"}));
}

TEST_F(UserFiles, UnwrittenJsonIsAnErrorAtTheEnd) {
  RidgeProgram shell("/bin/sh");
  fs::copy(ridge / "t.txt", shell / "t.txt");
  auto run = [&](const std::string& more) {
    std::string line = "exec \"$0\"";
    for (const std::string& word : training({"steps=3"})) line += " " + word;
    return shell({"-c", line + " " + more, ridge_program()});
  };
  for (const char* words : {"--json --out full >/dev/full", "--json --out closed >&-"}) {
    const Answer answer = run(words);
    EXPECT_EQ(answer.code, 4) << words << answer.all();
    EXPECT_TRUE(answer.err.ends_with("ridge: the output could not be written\n")) << words << answer.all();
  }
  for (const char* name : {"full", "closed"}) EXPECT_NE(read_text(shell / (std::string(name) + "/summary.json")).find("\"steps\": 3"), std::string::npos);
  EXPECT_EQ(run("--out text >/dev/full").code, 0) << "log.txt holds it";
  EXPECT_EQ(run("--json --out json").code, 0);
}

}  // namespace
}  // namespace ridge::test
