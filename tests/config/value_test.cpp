#include "config/value.h"

#include <gtest/gtest.h>

#include <cmath>

#include "config/samples.h"
#include "config/words.h"
#include "support/temp_folder.h"

namespace ridge::config {
namespace {

std::string text_of(std::string_view key, std::string_view written) {
  const Key& k = *find_key(key);
  const Parsed parsed = parse_value(k, written);
  return parsed.value ? to_text(k, *parsed.value) : "refused: " + parsed.problem;
}

TEST(Value, ParsesIntegersInEveryNotation) {
  for (auto [written, number] : {std::pair("64", "64"),
                                 {"+64", "64"},
                                 {"8k", "8000"},
                                 {"8K", "8000"},
                                 {"8Ki", "8192"},
                                 {"1e6", "1000000"},
                                 {"2.5M", "2500000"},
                                 {"1_000", "1000"},
                                 {"64.0", "64"},
                                 {" 64\t", "64"},
                                 {"0.5k", "500"}})
    EXPECT_EQ(text_of("batch", written), number) << written;
  for (std::string_view bad :
       {"", "x", "2.5", "0", "-1", "1e10", "1e400", "inf", "nan", "0x10", "64 64", "1__0", "_1", "1_", "k", "8kk", "8 k", "1,000", "--64"})
    EXPECT_TRUE(text_of("batch", bad).starts_with("refused")) << bad;
  EXPECT_EQ(text_of("seed", "9007199254740992"), "9007199254740992");
  EXPECT_TRUE(text_of("seed", "9007199254740994").starts_with("refused"));
}

TEST(Value, NumbersKeepTheirLimits) {
  EXPECT_EQ(text_of("lr", "6e-4"), "0.0006");
  EXPECT_EQ(text_of("lr", ".1"), "0.1");
  EXPECT_EQ(text_of("lr", "0"), "0");
  EXPECT_EQ(text_of("memory_fraction", "1"), "1");
  EXPECT_TRUE(text_of("memory_fraction", "0").starts_with("refused"));
  EXPECT_TRUE(text_of("memory_fraction", "1.0000001").starts_with("refused"));
  EXPECT_EQ(text_of("dropout", "0"), "0");
  EXPECT_TRUE(text_of("dropout", "1").starts_with("refused"));
  EXPECT_EQ(text_of("pin_memory_ratio", "0"), "0");
  EXPECT_EQ(text_of("pin_memory_ratio", "1"), "1");
  for (std::string_view bad : {"nan", "inf", "-inf", "1e-3x", "", "0,5"}) EXPECT_TRUE(text_of("lr", bad).starts_with("refused")) << bad;
}

TEST(Value, RealsRoundTripExactly) {
  const Key& lr = *find_key("lr");
  for (double x : {1.0 / 3, 0.1 + 0.2, std::nextafter(1.0, 2.0), 1e-300, 5e-324}) {
    const Parsed again = parse_value(lr, to_text(lr, Value(x)));
    ASSERT_TRUE(again.value);
    EXPECT_EQ(*again.value->as<double>(), x);
  }
}

TEST(Value, ParsesBooleansInEverySpelling) {
  for (std::string_view yes : {"true", "True", "YES", "on", "1"}) EXPECT_EQ(text_of("bias", yes), "true");
  for (std::string_view no : {"false", "no", "Off", "0"}) EXPECT_EQ(text_of("bias", no), "false");
  for (std::string_view bad : {"", "2", "y", "truee", "auto", "null"}) EXPECT_TRUE(text_of("bias", bad).starts_with("refused")) << bad;
}

TEST(Value, AcceptsWordsForNumbersOnlyIfListed) {
  EXPECT_EQ(text_of("threads", "performance"), "performance");
  EXPECT_EQ(text_of("threads", "AUTO"), "auto");
  EXPECT_TRUE(text_of("threads", "none").starts_with("refused"));
  EXPECT_EQ(text_of("max_minutes", "none"), "none");
  EXPECT_TRUE(text_of("seed", "auto").starts_with("refused"));
}

TEST(Value, ParsesBinaryAndDecimalSizes) {
  for (auto [written, text] :
       {std::pair("512MiB", "512MiB"), {"2GB", "2GB"}, {"2 gb", "2GB"}, {"1.5GiB", "1536MiB"}, {"1024", "1KiB"}, {"1000001", "1000001"}, {"2g", "2GiB"}})
    EXPECT_EQ(text_of("memory", written), text) << written;
  for (std::string_view bad : {"", "0", "-1GB", "12XB", "1e30GB", "GB", "1GBB", "inf", "nanGB"})
    EXPECT_TRUE(text_of("memory", bad).starts_with("refused")) << bad;
}

TEST(Value, AcceptsOtherProgramsWordsForChoices) {
  for (auto [written, word] : {std::pair("float32", "fp32"), {"FP32", "fp32"}, {"bfloat16", "bf16"}, {"float16", "fp16"}, {"amp", "auto"}, {"tf32", "tf32"}})
    EXPECT_EQ(text_of("precision", written), word);
  EXPECT_EQ(text_of("device", "mps"), "metal");
  EXPECT_EQ(text_of("device", "gpu"), "cuda");
  EXPECT_EQ(text_of("device", "cuda:0"), "cuda:0");
  EXPECT_EQ(text_of("device", "CUDA:15"), "cuda:15");
  for (std::string_view bad : {"cuda:", "cuda:x", "cuda:-1", "cuda:N", "cuda:12345", "cuda0", "gpux"})
    EXPECT_TRUE(text_of("device", bad).starts_with("refused")) << bad;
  EXPECT_NE(text_of("precision", "bf61").find("did you mean 'bf16'?"), std::string::npos);
  EXPECT_EQ(text_of("affinity", "true"), "compact");
}

TEST(Value, TextIsUtf8WithoutControlCharactersAndNotTooLong) {
  EXPECT_EQ(text_of("out", "läufe/ü"), "läufe/ü");
  EXPECT_EQ(text_of("out", ""), "");
  EXPECT_TRUE(text_of("runs_dir", "").starts_with("refused"));
  EXPECT_TRUE(text_of("out", "a\nb").starts_with("refused"));
  EXPECT_TRUE(text_of("out", "a\xff").starts_with("refused"));
  const std::string huge(100'000, 'x'), refusal = text_of("out", huge);
  EXPECT_TRUE(refusal.starts_with("refused"));
  EXPECT_LT(refusal.size(), 300u);
}

// Parts that together name something existing are one item, anywhere in the list.
TEST(Value, NamesInListsMayHaveCommas) {
  using Items = std::vector<std::string>;
  const test::TempFolder folder;
  for (const char* name : {"a.txt", "b, c.txt", "d,e,f.txt", "d"}) test::write_text(folder / name, "text");
  const std::string a = folder / "a.txt", bc = folder / "b, c.txt", def = folder / "d,e,f.txt", d = folder / "d";
  auto items = [](const std::string& text) { return *parse_value(*find_key("data"), text).value->as<Items>(); };
  EXPECT_EQ(items(bc), Items{bc});
  EXPECT_EQ(items(bc + "," + a), (Items{bc, a}));
  EXPECT_EQ(items(a + " , " + bc + " ,builtin"), (Items{a, bc, "builtin"}));
  EXPECT_EQ(items(a + "," + def + "," + bc), (Items{a, def, bc}));
  EXPECT_EQ(items(d + "," + a), (Items{d, a}));
  EXPECT_EQ(items(d + ",e," + a), (Items{d, "e", a})) << "no file is called d,e";
  EXPECT_EQ(items(folder / "x, c.txt"), (Items{folder / "x", "c.txt"})) << "what is not there is split";
}

TEST(Value, ListsSplitAtCommas) {
  EXPECT_EQ(text_of("data", "a.txt,b.txt , c d.txt"), "a.txt, b.txt, c d.txt");
  for (std::string_view bad : {"", ",", "a,,b", "a,"}) EXPECT_TRUE(text_of("data", bad).starts_with("refused")) << bad;
}

TEST(Value, SamplesDifferAndRoundTrip) {
  for (const Key& key : keys()) {
    auto [a, b] = samples(key);
    const Parsed first = parse_value(key, a), second = parse_value(key, b);
    ASSERT_TRUE(first.value && second.value) << key.name << ": " << first.problem << second.problem;
    EXPECT_FALSE(*first.value == *second.value) << key.name;
    EXPECT_FALSE(*first.value == *parse_value(key, key.initial).value) << key.name;
    EXPECT_EQ(*parse_value(key, to_text(key, *first.value)).value, *first.value) << key.name;
  }
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(first_non_utf8("plain, ä, €, 😀"), kAllUtf8);
  for (auto [text, at] :
       {std::pair("a\x80", 1), {"\xc0\xaf", 0}, {"ab\xe2\x82", 2}, {"\xed\xa0\x80", 0}, {"\xf4\x90\x80\x80", 0}, {"\xf0\x80\x80\x80", 0}, {"ä\xff", 2}})
    EXPECT_EQ(first_non_utf8(text), size_t(at)) << text;
}

TEST(Shown, IsShortAndPrintable) {
  EXPECT_EQ(shown("abc"), "'abc'");
  EXPECT_EQ(shown("a\nb"), "'a?b'");
  EXPECT_EQ(shown("a\xff"), "'a…' (2 bytes)");
  EXPECT_LT(shown(std::string(1'000'000, 'x')).size(), 100u);
  EXPECT_EQ(first_non_utf8(shown(std::string(59, 'x') + "ä")), kAllUtf8);
}

}  // namespace
}  // namespace ridge::config
