// The command line's answers to mistakes and questions, and its exit codes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "cli/ridge_program.h"
#include "support/source_dir.h"
#include "tasks/registry.h"

namespace ridge::test {
namespace {

namespace fs = std::filesystem;

TEST(CommandLine, PrintsErrorsToStderrOnly) {
  const Answer answer = RidgeProgram()({"no-such-command"});
  EXPECT_EQ(answer.code, 2) << answer.all();
  EXPECT_EQ(answer.out, "");
  EXPECT_TRUE(answer.says("unknown command 'no-such-command'")) << answer.all();
}

TEST(CommandLine, PrintsHelp) {
  const RidgeProgram ridge;
  expect_words(ridge, 0, "ridge 0.", "--version");
  for (const char* line : {"--help", "", "help"}) expect_words(ridge, 0, "Usage", line);
  for (const char* option : {"--out", "--resume", "--no-fallback"}) expect_words(ridge, 0, option, "train --help");
  expect_words(ridge, 0, "--resume", "plan --help");
  expect_words(ridge, 2, "ridge: task is required; see ridge train --help", "train");
  expect_words(ridge, 2, "ridge: source is required; see ridge data prepare --help", "data prepare");
  expect_words(ridge, 2, "model is required", "sample");
  expect_words(ridge, 2, "--no-such-flag", "--no-such-flag");
  expect_words(ridge, 2, "did you mean 'bench'", "bnech");
  expect_words(ridge, 2, "did you mean 'gpt'", "train gtp");
  expect_words(ridge, 2, "did you mean 'threads'", "bench ops thread=3");
  expect_words(ridge, 2, "valid: hot, cold", "bench ops state=warm");
  expect_words(ridge, 2, "did you mean 'tiny'", "bench devices tiyn");
  expect_words(ridge, 2, "leave out device=cpu", "bench devices tiny device=cpu");
  expect_words(ridge, 2, "--svg draws the suites devices and configs", "bench ops --svg x.svg");
  RidgeProgram other;
  other.set("RIDGE_ISA", "avx3");
  expect_words(other, 2, "valid: ", "--version");
}

TEST(CommandLine, ShowsAndChecksConfigurations) {
  const RidgeProgram ridge;
  write_text(ridge / "good.yaml", "batch: 8\n");
  write_text(ridge / "more.yaml", "steps: 5\n");
  write_text(ridge / "bad.ini", "[gpu]\ndevic = cpu\nmemory_fraction = 2\n");
  write_text(ridge / "section.ini", "[gpu]\ndevice = cpu\n\n[trainig]\n\nbatch = 3\n");
  expect_words(ridge, 0, "batch", "config keys");
  expect_words(ridge, 0, "\"key\": \"batch\"", "config keys --json");
  expect_words(ridge, 0, "# Configuration", "config keys --md");
  expect_words(ridge, 0, "good.yaml:1", "config show --config good.yaml");
  expect_words(ridge, 0, "\"source\": \"command line\"", "config show gpt --json lr=1e-3");
  expect_words(ridge, 0, "\"value\": 7", "config show gpt --json --config good.yaml steps=7 --config more.yaml");
  expect_words(ridge, 0, "\"value\": 5", "config show gpt --json --config good.yaml --config more.yaml");
  expect_words(ridge, 0, "1 key, all valid", "config check good.yaml");
  const Answer bad = expect_words(ridge, 2, "bad.ini:2: unknown key 'devic'; did you mean 'device'?", "config check bad.ini");
  EXPECT_TRUE(bad.says("bad.ini:3: memory_fraction is '2'")) << bad.all();
  EXPECT_EQ(bad.out, "");
  expect_words(ridge, 2, "section.ini:4: unknown section 'trainig'; did you mean 'training'?", "config check section.ini");
  expect_words(ridge, 2, "does not exist", "config check none.yaml");
  expect_words(ridge, 2, "did you mean 'batch'", "config show bacth=3");
  expect_words(ridge, 2, "did you mean 'batch'", "train gpt bach=3");
  expect_words(ridge, 2, "a whole number from 1", "config show --batch -3");
  expect_words(ridge, 2, "did you mean 'show'", "config shw");
  expect_words(ridge, 2, "ridge config check FILE", "config");
  RidgeProgram other;
  other.set(std::string("RIDGE_") + "THREDS", "1");
  expect_words(other, 2, "did you mean 'RIDGE_THREADS'", "config show");
}

TEST(CommandLine, NamesUnusableFolders) {
  const RidgeProgram ridge;
  write_text(ridge / "file", "");
  expect_words(ridge, 4, "file is not a folder; choose another with --out DIR", "train gpt --out file");
  expect_words(ridge, 4, "cannot create the run folder /proc/", "train gpt runs_dir=/proc");
  expect_words(ridge, 4, "there is no such file or folder", "train gpt runs_dir=runs data=" + std::string(250, 'x'));
  expect_words(ridge, 4, "xxx: File name too long", "report " + std::string(300, 'x'));
  expect_words(ridge, 4, "there is no folder nosuch", "runs nosuch");
  expect_words(ridge, 0, "No runs in runs", "runs");
  expect_words(ridge, 2, "which run? Name its folder with --out DIR", "plan gpt --resume");
  for (const char* command : {"plan", "train"}) expect_words(ridge, 2, "there is no run folder no/run", command + std::string(" gpt --resume no/run"));
}

TEST(CommandLine, ReportsSettingsWithoutEffect) {
  RidgeProgram ridge;
  write_plays(ridge);
  write_text(ridge / "epochs.yaml", "training:\n  epochs: 3\n");
  for (const char* command : {"train gpt --out run", "plan gpt"}) {
    const Answer answer =
        expect_words(ridge, 0, "epochs.yaml:2: epochs has no effect", command + kSmall + "steps=1 data=plays.txt tokens=9 --config epochs.yaml");
    EXPECT_NE(answer.err.find("tokens=9 has no effect on ridge "), std::string::npos) << answer.all();
  }
  const Answer named = expect_words(ridge, 0, "", "plan gpt" + kSmall + "data=plays.txt out=nowhere");
  EXPECT_NE(named.err.find("out=nowhere has no effect on ridge plan"), std::string::npos) << named.all();
  EXPECT_FALSE(fs::exists(ridge / "nowhere"));
  const long processors = ::sysconf(_SC_NPROCESSORS_CONF);
  expect_words(ridge, 0, "they take turns and sleep while they wait", "plan gpt" + kSmall + "data=plays.txt threads=" + std::to_string(processors + 1));
}

// Neither tokens nor measurements can be stored.
TEST(CommandLine, ReportsAnUnwritableCache) {
  RidgeProgram ridge;
  write_plays(ridge);
  ridge.set("COLUMNS", "300");
  ridge.set("RIDGE_CACHE", "/dev/null/cache");
  for (const char* command : {"train gpt --out run", "plan gpt"}) {
    const Answer answer = expect_words(ridge, 0, "/dev/null/cache/data cannot be written", command + kSmall + "optimize_perf=true steps=1 data=plays.txt");
    EXPECT_TRUE(answer.says("measurements are kept in memory only")) << answer.all();
  }
}

TEST(Demo, AcceptsSettingsInEveryForm) {
  RidgeProgram ridge;
  expect_words(ridge, 0, "1 asked for by command line", "demo --steps 2 --batch 64 --threads=1 --optimize-perf=false");
  expect_words(ridge, 0, "; CPU ", "demo --steps 2 --batch 64");
  ridge.set("RIDGE_CUDA_LIBRARY", "/nowhere/libcuda.so.1");
  expect_words(ridge, 1, "cuda", "demo --steps 2 --device=cuda --no-fallback");
}

// Tasks can be added and removed without changing the command line. "gpt", "Gpt" and "GPT" are names of a task; "ppo" within "support" is not.
TEST(CommandLine, NamesNoTask) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/src/cli")) {
    ++files;
    std::ifstream file(entry.path());
    const std::string text(std::istreambuf_iterator<char>(file), {});
    for (const Task& task : tasks()) {
      std::string capital = task.name, capitals = task.name;
      capital[0] = char(std::toupper(capital[0]));
      for (char& c : capitals) c = char(std::toupper(c));
      EXPECT_FALSE(std::regex_search(text, std::regex("(^|[^a-z])" + std::string(task.name) + "|" + capital + "|" + capitals)))
          << entry.path() << " contains the name of the task " << task.name;
    }
  }
  EXPECT_GT(files, 10u);
}

// A command that only one task has is still a command of the command line.
TEST(CommandLine, IncludesTheCommandsOfTasks) {
  const RidgeProgram ridge;
  const std::string help = ridge({"--help"}).out;
  for (const Task& task : tasks())
    for (const Verb& verb : task.verbs()) EXPECT_NE(help.find(verb.summary), std::string::npos) << verb.name;
  EXPECT_TRUE(ridge({"data", "prepair"}).says("[data] unknown command 'prepair'; did you mean 'prepare'?"));
  EXPECT_EQ(ridge({"train", "gtp"}).code, 2);
}

}  // namespace
}  // namespace ridge::test
