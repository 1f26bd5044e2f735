// ridge wiring: its tables, pictures and files, and its answers to mistakes.
#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include <fmt/core.h>

#include "cli/ridge_program.h"

namespace ridge::test {
namespace {

size_t occurrences(const std::string& text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(WiringCommand, PrintsConnectivity) {
  const RidgeProgram ridge;
  expect_words(ridge, 0, "wiring", "help");
  const Answer answer = expect_words(ridge, 0, "32 neurons in 3 layers (17, 11, 4), 4 outputs, 8 inputs", "wiring auto:32,4 --inputs 8");
  for (const char* words : {"inputs    inter             64", "command   command           11", "unreachable     none", "path length"})
    EXPECT_TRUE(answer.says(words)) << words << answer.all();
  expect_words(ridge, 0, "4 inputs (--inputs N for another number)", "wiring full:3");
  const auto document = nlohmann::json::parse(ridge({"wiring", "full:6,2", "--inputs", "3", "--json"}).out);
  EXPECT_EQ(document["synapses"], 36);
  EXPECT_EQ(document["sensory_synapses"], 18);
  EXPECT_EQ(document["components"], std::vector<int>{6});
  EXPECT_EQ(document["in_degrees"], std::vector<int>(6, 9));
  EXPECT_EQ(document["blocks"].size(), 6u);
}

TEST(WiringCommand, SavesAndDraws) {
  const RidgeProgram ridge;
  expect_words(ridge, 0, "The picture is in w.svg\nThe wiring is in w.json", "wiring ncp:6,5,2 --inputs 3 --seed 7 --svg w.svg --out w.json");
  const Answer file = expect_words(ridge, 0, "\"layers\":[6,5,2]", "wiring w.json --json --inputs 3");
  EXPECT_EQ(file.out, ridge({"wiring", "ncp:6,5,2,seed=7", "--inputs", "3", "--json"}).out);
  const auto document = nlohmann::json::parse(file.out);
  const std::string picture = read_text(ridge / "w.svg");
  EXPECT_EQ(occurrences(picture, "<circle"), 13u);
  int64_t inhibitory = 0, excitatory = 0;
  for (const auto& block : document["blocks"]) inhibitory += block["inhibitory"].get<int64_t>(), excitatory += block["excitatory"].get<int64_t>();
  EXPECT_EQ(int64_t(occurrences(picture, "C")), inhibitory + excitatory) << "one curve per synapse";
  EXPECT_EQ(int64_t(occurrences(picture, "f-none s-red\" stroke-width=\"2\"")), inhibitory + 1) << "bars, and one in the legend";
  EXPECT_EQ(int64_t(occurrences(picture, "f-blue\"")), 2 * excitatory + 1) << "arrows, squares of the matrix, and the legend";
  for (const char* word : {">inter<", ">command<", ">motor<", ">inputs<"})
    EXPECT_EQ(occurrences(picture, word), word[1] == 'i' && word[2] == 'n' && word[3] == 'p' ? 2u : 3u) << word;
  expect_words(ridge, 0, "The picture is in w.svg", "wiring w.json --svg w.svg");   // replaces a picture
  expect_words(ridge, 0, "The wiring is in w.json", "wiring full:2 --out w.json");  // replaces a wiring
  for (const char* words : {"full:1", "full:2,1", "random:3,3,0.5", "auto:4,1"})
    expect_words(ridge, 0, "The picture", std::string("wiring ") + words + " --inputs 1 --svg w.svg");
}

// A curve lies between its four points.
TEST(WiringCommand, DrawsInsideThePage) {
  const RidgeProgram ridge;
  std::string layers, synapses;
  for (int i = 39; i >= 0; --i) layers += fmt::format("{}[{}]", layers.empty() ? "" : ",", i);
  for (int i = 0; i < 40; ++i) synapses += fmt::format("{}[{},{},1],[{},{},-1]", synapses.empty() ? "" : ",", i, (i + 1) % 40, i, (i + 11) % 40);
  write_text(ridge / "deep.json",
             fmt::format(R"({{"format":"ridge wiring 1","units":40,"inputs":2,"outputs":1,"layers":[{}],"sensory":[[0,39,1],[1,0,-1]],"synapses":[{}]}})",
                         layers, synapses));
  for (const char* words : {"deep.json", "full:12,3", "full:60,6", "random:150,2,0.9", "auto:60,6,0.75", "full:2", "ncp:1,1,1"}) {
    expect_words(ridge, 0, "The picture", {"wiring", words, "--svg", "w.svg"});
    const std::string picture = read_text(ridge / "w.svg");
    double width = 0, height = 0;
    ASSERT_EQ(std::sscanf(picture.c_str() + picture.find("width"), "width=\"%lf\" height=\"%lf\"", &width, &height), 2);
    int curves = 0;
    for (size_t at = picture.find("<path d=\"M"); at != std::string::npos; at = picture.find("<path d=\"M", at + 1)) {
      double p[8];
      if (std::sscanf(picture.c_str() + at, "<path d=\"M%lf %lfC%lf %lf %lf %lf %lf %lf", p, p + 1, p + 2, p + 3, p + 4, p + 5, p + 6, p + 7) != 8)
        continue;  // an arrow
      ++curves;
      for (int i = 0; i < 8; ++i) ASSERT_TRUE(p[i] > 0 && p[i] < (i % 2 ? height : width)) << words << " " << p[i];
    }
    EXPECT_GT(curves, 0) << words;
  }
}

TEST(WiringCommand, RefusesMistakes) {
  const RidgeProgram ridge;
  write_text(ridge / "notes.txt", "my notes");
  write_text(ridge / "bad.json", "{\"units\": 3}");
  expect_refusal(ridge, 2, "WIRING is required; see ridge wiring --help", "wiring");
  expect_refusal(ridge, 2, "outputs=30 is not a number from 1 to 29", "wiring auto:32,30");
  expect_refusal(ridge, 2, "units=1000000 is not a number from 1 to 8192", "wiring full:1000000");
  expect_refusal(ridge, 2, "did you mean 'auto'?", "wiring atuo:32,4");
  expect_refusal(ridge, 4, "there is no file 'none.json'", "wiring none.json");
  expect_refusal(ridge, 4, "is a folder", "wiring .");
  expect_refusal(ridge, 4, "bad.json: [wiring] the field 'format' is missing", "wiring bad.json");
  expect_refusal(ridge, 4, "notes.txt: [wiring] this is not JSON", "wiring notes.txt");
  expect_refusal(ridge, 2, "--inputs: '0' is not a whole number from 1 to 8192", "wiring full:3 --inputs 0");
  expect_refusal(ridge, 2, "seed is given twice", "wiring full:3,seed=1 --seed 2");
  expect_refusal(ridge, 2, "sparsity=0.9 leaves none of the 4 synapses from inputs", "wiring random:4,1,0.9 --inputs 1");
  expect_refusal(ridge, 2, "notes.txt exists and is not a picture", "wiring full:3 --svg notes.txt");
  expect_refusal(ridge, 2, "notes.txt exists and is not a wiring", "wiring full:3 --out notes.txt");
  expect_refusal(ridge, 2, "name the same file", "wiring full:3 --out a --svg a");
  expect_refusal(ridge, 4, "no/such/w.svg", "wiring full:3 --svg no/such/w.svg");
  expect_refusal(ridge, 4, "no/such/w.json", "wiring full:3 --out no/such/w.json");
  expect_refusal(ridge, 2, "304 neurons and inputs with 91200 synapses cannot be drawn readably", "wiring full:300 --svg w.svg");
  expect_words(ridge, 0, "The wiring", "wiring full:3 --out good.json");
  expect_refusal(ridge, 2, "built for 4 inputs and cannot be used with 5", "wiring good.json --inputs 5");
  expect_refusal(ridge, 2, "--seed 5 cannot change them", "wiring good.json --seed 5");
  EXPECT_EQ(read_text(ridge / "notes.txt"), "my notes");
}

}  // namespace
}  // namespace ridge::test
