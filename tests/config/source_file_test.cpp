#include "config/source_file.h"

#include <gtest/gtest.h>

#include <random>

#include "config/samples.h"

namespace ridge::config {
namespace {

// "section.name=value;value@line", so that a whole file is one line in an expectation.
std::string flat(const FileContent& content) {
  std::string out;
  for (const Entry& e : content.entries)
    out += fmt::format("{}{}.{}={}@{}", out.empty() ? "" : " ", e.section, e.name,
                       e.null       ? "null"
                       : e.sequence ? "[" + join(e.values, ";") + "]"
                                    : e.values.at(0),
                       e.line);
  for (const Problem& p : content.problems) out += fmt::format("{}!{}@{}", out.empty() ? "" : " ", p.what, p.line);
  return out;
}

std::string ini(std::string_view text) { return flat(parse_text(text, true)); }
std::string yaml(std::string_view text) { return flat(parse_text(text, false)); }

TEST(Ini, SectionsQuotesAndComments) {
  EXPECT_EQ(ini("# top\n; top\na=1\n[gpu]\n  device = \"mps\"  # \"cuda\"\nx: 'y z' ; old\n\t[ b ] # c\nk =  v w  \nz = a#b;c #d\n"),
            ".a=1@3 gpu.device=mps@5 gpu.x=y z@6 b.k=v w@8 b.z=a#b;c@9");
  EXPECT_EQ(ini("device = cuda:0\npath = a=b\nq = \"a # b\"\ne =\nf = # nothing\n"), ".device=cuda:0@1 .path=a=b@2 .q=a # b@3 .e=@4 .f=@5");
}

TEST(Ini, LineEndingsByteOrderMarkAndTabs) {
  EXPECT_EQ(ini("\xef\xbb\xbf[gpu]\r\n\tdevice\t=\t\"mps\"\t\r\n\r\nx=1"), "gpu.device=mps@2 gpu.x=1@4");
  EXPECT_EQ(ini("a=1\rb=2\r"), ".a=1@1 .b=2@2");
  EXPECT_EQ(ini(""), "");
  EXPECT_EQ(ini("\n\n"), "");
}

TEST(Ini, ReportsEveryProblemWithItsLine) {
  const FileContent content = parse_text("[gpu\nnonsense\n= 3\na = \"open\nb = \"x\" y\n[x] y\nc = 1\n", true);
  std::vector<int> lines;
  for (const Problem& p : content.problems) lines.push_back(p.line);
  EXPECT_EQ(lines, (std::vector<int>{1, 2, 3, 4, 5, 6}));
  ASSERT_EQ(content.entries.size(), 1u);
  EXPECT_EQ(content.entries[0].line, 7);
}

TEST(Yaml, NestedKeysListsAndNull) {
  EXPECT_EQ(yaml("seed: 42\nmodel:\n  dropout: .1\n  more: {a: \"x y\", b: [1, 'z']}\nlist:\n  - a\n  - b\nn: ~\n"),
            ".seed=42@1 model.dropout=.1@3 model.more.a=x y@4 model.more.b=[1;z]@4 .list=[a;b]@5 .n=null@8");
  EXPECT_EQ(yaml(""), "");
  EXPECT_EQ(yaml("# nothing\n"), "");
  EXPECT_EQ(yaml("---\na: 1\n...\n"), ".a=1@2");
}

TEST(Yaml, JsonIsYaml) {
  EXPECT_EQ(yaml("{\n\t\"seed\":42,\n\t\"model\":{\"dropout\":0.1,\"bias\":true},\n\t\"list\":[1,2],\n\t\"n\":null\n}\n"),
            ".seed=42@2 model.dropout=0.1@3 model.bias=true@3 .list=[1;2]@4 .n=null@5");
}

TEST(Yaml, LineEndingsByteOrderMarkAndAnchors) {
  EXPECT_EQ(yaml("\xef\xbb\xbf"
                 "a: 1\r\nb: 2\r\n"),
            ".a=1@1 .b=2@2");
  EXPECT_EQ(yaml("a: &x 3\nb: *x\n"), ".a=3@1 .b=3@2");
}

TEST(Yaml, ReportsEveryKindOfProblem) {
  for (auto [text, what, line] : {std::tuple("a: 1\n\tb: 2\n", "tab", 2),
                                  {"a: 1\n---\nb: 2\n", "second document", 2},
                                  {"just words\n", "key: value", 1},
                                  {"- a\n- b\n", "key: value", 1},
                                  {"a: [1, {b: 2}]\n", "not a plain value", 1},
                                  {"? [a, b]\n: 3\n", "plain word", 1},
                                  {"a: {b: 1\n", "end of map", 2},
                                  {"<<: {a: 1}\n", "merge", 1},
                                  {"x:\n a:\n  b:\n   c:\n    d: 1\n", "nested more than 4", 4},
                                  {"a: *nobody\n", "anchor", 1}}) {
    const FileContent content = parse_text(text, false);
    ASSERT_EQ(content.problems.size(), 1u) << text;
    EXPECT_NE(content.problems[0].what.find(what), std::string::npos) << content.problems[0].what;
    EXPECT_EQ(content.problems[0].line, line) << text;
  }
}

TEST(Yaml, BoundsExpansionBombs) {
  std::string lists = "a0: &a0 [x, x]\n", maps = "m0: &m0 {x: 1, y: 1}\n", cycle = "a: &a {b: *a, c: *a}\n";
  for (int i = 1; i < 60; ++i) {
    lists += fmt::format("a{0}: &a{0} [*a{1}, *a{1}]\n", i, i - 1);
    maps += fmt::format("m{0}: &m{0} {{x: *m{1}, y: *m{1}}}\n", i, i - 1);
  }
  std::string wide = "w: &w [";
  for (int i = 0; i < 2000; ++i) wide += "x,";
  wide += "]\n";
  for (int i = 0; i < 2000; ++i) wide += fmt::format("k{}: *w\n", i);
  const std::string deep_flow = "a: " + std::string(100'000, '['), deep_map = std::string(100'000, '{');
  std::string deep_block;
  for (int i = 0; i < 700; ++i) deep_block += std::string(size_t(i), ' ') + "a:\n";
  for (const std::string& bomb : {lists, maps, cycle, wide, deep_flow, deep_map, deep_block}) {
    const FileContent content = parse_text(bomb, false);
    EXPECT_FALSE(content.problems.empty()) << bomb.substr(0, 40);
    EXPECT_LE(content.problems.size(), 200u);
    size_t values = 0;
    for (const Entry& e : content.entries) values += e.values.size();
    EXPECT_LE(values, 10'000u);
  }
}

// yaml-cpp reads endless documents from the first of these.
TEST(Yaml, TerminatesOnBrokenText) {
  for (std::string_view text : {"%Y' '{'\n,&ee4, '\n{:e '\n{ee4,'{'\n,&ee4, '{: '\n{ee4,", "%", "%Y", "---\n}", "]", "a: ]\n]", "--- ]\n--- }"}) {
    const FileContent content = parse_text(text, false);
    EXPECT_TRUE(content.entries.empty()) << text;
  }
}

TEST(Text, RejectsNonTextWithItsLine) {
  for (const bool as_ini : {true, false})
    for (auto [text, what, line] : {std::tuple(std::string("a=1\nb=\xff\n"), "0xff is not UTF-8", 2),
                                    {std::string("a\0b", 3), "control character", 1},
                                    {"\xff\xfe"
                                     "a",
                                     "UTF-16", 0},
                                    {"x: 1\n\x01", "control character", 2},
                                    {std::string(2 << 20, 'x'), "bytes, more than", 0}}) {
      const FileContent content = parse_text(text, as_ini);
      ASSERT_EQ(content.problems.size(), 1u);
      EXPECT_NE(content.problems[0].what.find(what), std::string::npos) << content.problems[0].what;
      EXPECT_EQ(content.problems[0].line, line);
      EXPECT_TRUE(content.entries.empty());
    }
}

TEST(Text, TruncatesHugeLinesInMessages) {
  const std::string huge(500'000, 'x');
  EXPECT_EQ(parse_text("a = " + huge, true).entries.at(0).values.at(0).size(), huge.size());
  EXPECT_EQ(parse_text("a: " + huge, false).entries.at(0).values.at(0).size(), huge.size());
  const FileContent content = parse_text(huge, true);
  ASSERT_EQ(content.problems.size(), 1u);
  EXPECT_LT(content.problems[0].what.size(), 200u);
}

using FileKinds = InFolder;

TEST_F(FileKinds, AreChosenByExtension) {
  EXPECT_EQ(flat(read_file(write("a.INI", "a = 1"))), ".a=1@1");
  for (const char* name : {"a.yaml", "a.yml", "a.json", "a.YAML"}) EXPECT_EQ(flat(read_file(write(name, "a: 1"))), ".a=1@1");
  for (auto [path, what] :
       {std::pair(write("a.toml", "a = 1"), "unknown type"), {folder_ / "none.yaml", "does not exist"}, {folder_ / "none", "unknown type"}}) {
    const FileContent content = read_file(path);
    ASSERT_EQ(content.problems.size(), 1u);
    EXPECT_NE(content.problems[0].what.find(what), std::string::npos) << content.problems[0].what;
  }
  std::filesystem::create_directory(folder_ / "folder.ini");
  EXPECT_EQ(flat(read_file(folder_ / "folder.ini")), "!is a folder@0");
}

constexpr std::string_view kIniSeed =
    "# c\n[gpu]\ndevice = \"mps\"  # \"cuda\"\nmemory_fraction = 0.99\nempty_cache_frequency = 10 ; 100\n[memory_management]\nenable_pinned_memory = true\n"
    "pin_memory_ratio: 0.25\n[precision]\ndefault_dtype = 'float32'\n[threads]\nnum_threads = 12\n";
constexpr std::string_view kYamlSeed =
    "seed: 42\ndataset: {name: dummy, path: ./data, split: [.8, .1, .1]}\ntraining:\n  epochs: 10\n  batch_size: &b 32\n  learning_rate: 1e-3\nmodel:\n"
    "  hidden_size: *b\n  dropout: \"0.1\"\ndevice: mps # here\nlogging:\n  - a\n  - {b: c}\nx: |\n  text\n  more\n? k\n: v\n";

// Flips, cuts, repeats and swaps pieces, mostly of characters significant to a parser.
std::string mutated(std::string text, std::mt19937& random) {
  constexpr std::string_view kSteering = "[]{}:,#&*!|>'\"%@`-?=;\n\t \\.~<0\xff\xc3";
  for (int n = 1 + int(random() % 8); n > 0; --n) {
    const size_t at = random() % (text.size() + 1), length = std::min<size_t>(random() % 20, text.size() - at);
    switch (random() % 5) {
      case 0: text.insert(at, 1, kSteering[random() % kSteering.size()]); break;
      case 1: text.erase(at, length); break;
      case 2: text.insert(random() % (text.size() + 1), text.substr(at, length)); break;
      case 3:
        if (at < text.size()) text[at] = kSteering[random() % kSteering.size()];
        break;
      default:
        if (at < text.size()) text[at] = char(random());
    }
  }
  return text;
}

TEST(Fuzz, MutatedFilesGiveEntriesOrProblems) {
  std::mt19937 random(20);
  size_t good = 0, bad = 0;
  for (int i = 0; i < 6000; ++i) {
    const bool as_ini = i % 2 == 0;
    std::string text(as_ini ? kIniSeed : kYamlSeed);
    text = mutated(text, random);
    const FileContent content = parse_text(text, as_ini);
    const int lines = 2 + int(std::count_if(text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }));
    for (const Entry& e : content.entries) {
      EXPECT_TRUE(e.line >= 1 && e.line <= lines) << text;
      EXPECT_TRUE(e.sequence || e.null || e.values.size() == 1) << text;
    }
    for (const Problem& p : content.problems) {
      EXPECT_TRUE(p.line >= 0 && p.line <= lines) << p.line << " of " << text;
      EXPECT_FALSE(p.what.empty());
    }
    (content.problems.empty() ? good : bad) += 1;
  }
  EXPECT_GT(good, 500u);
  EXPECT_GT(bad, 500u);
}

}  // namespace
}  // namespace ridge::config
