#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>

#include "base/error.h"
#include "support/file_faults.h"
#include "support/mutate.h"
#include "support/temp_folder.h"

namespace ridge {
namespace {

using test::Fault;
using test::FileFaults;
using test::read_text;
using test::TempFolder;
using test::write_text;

constexpr DType kWritten[] = {DType::i64, DType::f32, DType::i32, DType::bf16, DType::f16, DType::u8, DType::boolean};

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }
std::string text_of(std::span<const std::byte> data) { return {reinterpret_cast<const char*>(data.data()), data.size()}; }

std::string file_of(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += char(uint64_t(header.size()) >> (8 * i) & 0xff);
  return file + header + data;
}

// One tensor's entry in a header.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

template <class Act>
void expect_error(Act act, ErrorCode code, std::initializer_list<std::string_view> parts) {
  try {
    act();
    ADD_FAILURE() << "accepted; expected: " << *parts.begin();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    for (std::string_view part : parts) EXPECT_NE(std::string_view(e.what()).find(part), std::string_view::npos) << e.what() << "\nlacks: " << part;
  }
}

void expect_refused(const std::string& file, std::initializer_list<std::string_view> parts) {
  SCOPED_TRACE(file.substr(0, 200));
  expect_error([&] { parse_safetensors(bytes(file), "weights.st"); }, ErrorCode::io, parts);
  expect_error([&] { parse_safetensors(bytes(file), "weights.st"); }, ErrorCode::io, {"[safetensors] weights.st: "});
}

struct Sample {
  std::vector<std::string> data;  // what the views point to
  std::vector<SafetensorView> tensors;
  SafetensorsMetadata metadata;
};

Sample random_sample(std::mt19937& random) {
  Sample s;
  s.data.resize(random() % 6);
  for (size_t i = 0; i < s.data.size(); ++i) {
    SafetensorView t;
    t.name = "layer." + std::to_string(random() % 10) + ".w" + std::to_string(i) + (random() % 4 ? "" : "\"\\\n\x01ж");
    t.dtype = kWritten[random() % std::size(kWritten)];
    for (int axes = int(random() % 5); axes > 0; --axes) t.shape.push_back(int64_t(random() % 5));
    for (int64_t n = t.shape.numel() * size_of(t.dtype); n > 0; --n) s.data[i] += char(random());
    t.data = bytes(s.data[i]);
    s.tensors.push_back(t);
  }
  for (int n = int(random() % 3); n > 0; --n) s.metadata["key" + std::to_string(n)] = std::string(random() % 9, 'v') + "\"\n";
  return s;
}

void expect_same(const std::vector<SafetensorView>& read, const Sample& sample) {
  ASSERT_EQ(read.size(), sample.tensors.size());
  for (const SafetensorView& t : sample.tensors) {
    const auto same = std::find_if(read.begin(), read.end(), [&](const SafetensorView& r) { return r.name == t.name; });
    ASSERT_NE(same, read.end()) << t.name;
    EXPECT_EQ(same->dtype, t.dtype);
    EXPECT_EQ(same->shape, t.shape);
    EXPECT_EQ(text_of(same->data), text_of(t.data));
  }
}

TEST(Safetensors, ReadsWhatItWrites) {
  TempFolder folder;
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    const Sample s = random_sample(random);
    write_safetensors(folder / "a", s.tensors, s.metadata);
    const SafetensorsFile file(folder / "a");
    expect_same(file.tensors(), s);
    EXPECT_EQ(file.metadata(), s.metadata);
    for (const SafetensorView& t : file.tensors()) EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data.data()) % uintptr_t(size_of(t.dtype)), 0u) << t.name;
  }
}

TEST(Safetensors, ReadsEveryTypeAndOddShapes) {
  TempFolder folder;
  for (DType dtype : kWritten)
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{7}, Shape{3, 0, 5}, Shape{31, 3}, Shape{1, 1, 1, 1, 1, 1, 1, 2}}) {
      Sample s;
      s.data.push_back(std::string(size_t(shape.numel() * size_of(dtype)), 'x'));
      s.tensors.push_back({{"t", dtype, shape}, bytes(s.data[0])});
      write_safetensors(folder / "a", s.tensors);
      expect_same(SafetensorsFile(folder / "a").tensors(), s);
    }
  write_safetensors(folder / "a", {});
  EXPECT_TRUE(SafetensorsFile(folder / "a").tensors().empty());
  EXPECT_EQ(read_text(folder / "a"), file_of("{}      ", ""));
}

// A file by hand, byte for byte: {"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"U8",…}}
TEST(Safetensors, WritesTheBytesOfTheFormat) {
  constexpr unsigned char kFile[] = {0x88, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,                                                  // 136 bytes of header
                                     0x7b, 0x22, 0x5f, 0x5f, 0x6d, 0x65, 0x74, 0x61, 0x64, 0x61, 0x74, 0x61, 0x5f, 0x5f, 0x22, 0x3a,  // {"__metadata__":
                                     0x7b, 0x22, 0x66, 0x6f, 0x72, 0x6d, 0x61, 0x74, 0x22, 0x3a, 0x22, 0x70, 0x74, 0x22, 0x7d, 0x2c,  // {"format":"pt"},
                                     0x22, 0x62, 0x22, 0x3a, 0x7b, 0x22, 0x64, 0x74, 0x79, 0x70, 0x65, 0x22, 0x3a, 0x22, 0x46, 0x33, 0x32,
                                     0x22,                                                                                            // "b":{"dtype":"F32"
                                     0x2c, 0x22, 0x73, 0x68, 0x61, 0x70, 0x65, 0x22, 0x3a, 0x5b, 0x32, 0x5d,                          // ,"shape":[2]
                                     0x2c, 0x22, 0x64, 0x61, 0x74, 0x61, 0x5f, 0x6f, 0x66, 0x66, 0x73, 0x65, 0x74, 0x73, 0x22, 0x3a,  // ,"data_offsets":
                                     0x5b, 0x30, 0x2c, 0x38, 0x5d, 0x7d, 0x2c,                                                        // [0,8]},
                                     0x22, 0x61, 0x22, 0x3a, 0x7b, 0x22, 0x64, 0x74, 0x79, 0x70, 0x65, 0x22, 0x3a, 0x22, 0x55, 0x38, 0x22,  // "a":{"dtype":"U8"
                                     0x2c, 0x22, 0x73, 0x68, 0x61, 0x70, 0x65, 0x22, 0x3a, 0x5b, 0x5d,                                      // ,"shape":[]
                                     0x2c, 0x22, 0x64, 0x61, 0x74, 0x61, 0x5f, 0x6f, 0x66, 0x66, 0x73, 0x65, 0x74, 0x73, 0x22, 0x3a,        // ,"data_offsets":
                                     0x5b, 0x38, 0x2c, 0x39, 0x5d, 0x7d, 0x7d,                                                              // [8,9]}}
                                     0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x00, 0xc0,                                                        // 1.0f, -2.0f
                                     0x07};
  static_assert(sizeof(kFile) == 8 + 136 + 9);
  const std::string file(reinterpret_cast<const char*>(kFile), sizeof(kFile));

  const Safetensors read = parse_safetensors(bytes(file));
  ASSERT_EQ(read.tensors.size(), 2u);
  EXPECT_EQ(read.metadata, (SafetensorsMetadata{{"format", "pt"}}));
  EXPECT_EQ(read.tensors[0].name, "b");
  EXPECT_EQ(read.tensors[0].dtype, DType::f32);
  EXPECT_EQ(read.tensors[0].shape, Shape{2});
  float values[2];
  std::memcpy(values, read.tensors[0].data.data(), 8);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], -2.0f);
  EXPECT_EQ(read.tensors[1].name, "a");
  EXPECT_EQ(read.tensors[1].shape, Shape{});
  EXPECT_EQ(text_of(read.tensors[1].data), "\x07");
  EXPECT_EQ(static_cast<const void*>(read.tensors[1].data.data()), file.data() + sizeof(kFile) - 1);  // no copy

  TempFolder folder;
  for (bool reversed : {false, true}) {
    std::vector<SafetensorView> tensors = read.tensors;
    if (reversed) std::swap(tensors[0], tensors[1]);
    write_safetensors(folder / "a", tensors, read.metadata);
    EXPECT_EQ(read_text(folder / "a"), file);
  }
}

TEST(Safetensors, ReadsHeadersInAnyOrderAndSpacing) {
  const std::string b = entry("b", "U8", "[2]", "[1,3]"), a = " \"a\" : { \"data_offsets\" : [ 0 , 1 ] ,\n\"shape\":[ ] , \"dtype\" : \"BOOL\" } ";
  const std::string file = file_of("{" + b + "," + entry("e", "F32", "[0]", "[1,1]") + "," + a + "}  ", "xyz");
  const Safetensors read = parse_safetensors(bytes(file));
  ASSERT_EQ(read.tensors.size(), 3u);
  EXPECT_EQ(read.tensors[0].name, "a");
  EXPECT_EQ(read.tensors[1].name, "e");
  EXPECT_EQ(text_of(read.tensors[2].data), "yz");
  EXPECT_EQ(parse_safetensors(bytes(file_of("{\"\\u0436\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", ""))).tensors[0].name, "ж");
}

TEST(Safetensors, ReportsHeaderErrors) {
  const std::string good = entry("w", "U8", "[2]", "[0,2]");
  expect_refused("", {"0 bytes"});
  expect_refused("short", {"5 bytes, too few"});
  expect_refused(std::string(9, '\0'), {"9 bytes, too few"});
  expect_refused(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10), {"18446744073709551615 bytes", "allows 100000000"});
  expect_refused(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), {"a header of 100000001 bytes"});
  expect_refused(std::string("\0\xe1\xf5\x05\0\0\0\0{}", 10), {"100000000 bytes but only 2 follow", "copy it again"});
  expect_refused(file_of("", "{}"), {"does not begin with '{'"});
  expect_refused(file_of("[]", ""), {"does not begin with '{'"});
  expect_refused(file_of(" {}", ""), {"does not begin with '{'"});
  expect_refused(file_of("{" + good, "xy"), {"not valid JSON"});
  expect_refused(file_of("{" + good + "} x", "xy"), {"not valid JSON"});
  expect_refused(file_of("{" + good + ",}", "xy"), {"not valid JSON"});
  expect_refused(file_of("{/**/" + good + "}", "xy"), {"not valid JSON"});
  expect_refused(file_of("{" + entry("\xff", "U8", "[2]", "[0,2]") + "}", "xy"), {"not valid JSON"});
  expect_refused(file_of("{" + good + "}" + std::string(3, '\0'), "xy"), {"a zero at byte"});
  expect_refused(file_of("{\"a\":{\"dtype\":1e999}}", ""), {"not valid JSON"});
  expect_refused(file_of("{" + good + "," + good + "}", "xy"), {"'w' appears twice"});
  expect_refused(file_of("{" + good + ",\"\\u0077\":3}", "xy"), {"'w' appears twice"});
  expect_refused(file_of("{\"__metadata__\":{},\"__metadata__\":{}}", ""), {"'__metadata__' appears twice"});
  expect_refused(file_of("{\"__metadata__\":{\"k\":\"1\",\"k\":\"1\"}}", ""), {"key 'k' of __metadata__ appears twice"});
  expect_refused(file_of("{\"__metadata__\":{\"k\":1}}", ""), {"'k' of __metadata__ is a number, not a string"});
  expect_refused(file_of("{\"__metadata__\":{\"k\":{}}}", ""), {"'k' of __metadata__ is an object, not a string"});
  expect_refused(file_of("{\"__metadata__\":null}", ""), {"'__metadata__' is null, not an object"});
  expect_refused(file_of("{\"w\":[1]}", ""), {"'w' is a list, not an object"});
  expect_refused(file_of("{\"" + std::string(200, 'w') + "\\n\":true}", ""), {std::string(80, 'w') + "…'", "true or false, not an object"});
}

TEST(Safetensors, ReportsTensorErrors) {
  auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets, const std::string& data = "xy") {
    return file_of("{" + entry("w", dtype, shape, offsets) + "}", data);
  };
  expect_refused(one("F64", "[1]", "[0,8]", "12345678"), {"tensor 'w': F64", "convert it to F32"});
  for (const char* other : {"F8_E4M3", "U16", "I8", "I16", "U32", "U64", "C64", "f32", "", "F32\\u0000"})
    expect_refused(one(other, "[1]", "[0,2]"), {"tensor 'w': type '", "F32 F16 BF16 I32 I64 U8 BOOL"});
  expect_refused(one("U8", "[3]", "[0,2]"), {"'w': shape [3] of u8 needs 3 bytes but data_offsets [0, 2] span 2"});
  expect_refused(one("U8", "[]", "[0,2]"), {"shape [] of u8 needs 1 bytes"});
  expect_refused(one("U8", "[2]", "[2,0]"), {"'w': data_offsets [2, 0] run backwards"});
  expect_refused(one("U8", "[2]", "[0]"), {"'w': data_offsets has 1 numbers"});
  expect_refused(one("U8", "[2]", "[0,1,2]"), {"'w': data_offsets has more than two"});
  expect_refused(one("U8", "[2]", "\"0\""), {"'w': data_offsets is a string, not a list"});
  expect_refused(one("U8", "2", "[0,2]"), {"'w': shape is a number, not a list"});
  expect_refused(one("U8", "[-2]", "[0,2]"), {"'w': a negative number in shape"});
  expect_refused(one("U8", "[2.0]", "[0,2]"), {"'w': a number that is not a 64-bit integer in shape"});
  expect_refused(one("U8", "[99999999999999999999]", "[0,2]"), {"not a 64-bit integer"});
  expect_refused(one("U8", "[9223372036854775808]", "[0,2]"), {"9223372036854775808 in shape does not fit into 63 bits"});
  expect_refused(one("U8", "[[2]]", "[0,2]"), {"'w': a list in shape"});
  expect_refused(one("U8", "[1,1,1,1,1,1,1,1,2]", "[0,2]"), {"'w': more than 8 dimensions"});
  expect_refused(one("F32", "[4611686018427387904]", "[0,0]", ""), {"'w': shape [4611686018427387904] of f32 does not fit into 63 bits"});
  expect_refused(one("U8", "[4294967296,4294967296]", "[0,0]", ""), {"does not fit into 63 bits"});
  expect_refused(one("U8", "[0,4294967296,4294967296]", "[0,0]", ""), {"does not fit into 63 bits"});
  expect_refused(one("U8", "[5000000000]", "[0,5000000000]"), {"'w': ends at byte 5000000000 of the data but the file has only 2"});
  expect_refused(file_of("{\"w\":{\"dtype\":\"U8\",\"shape\":[2]}}", "xy"), {"'w': data_offsets is missing"});
  expect_refused(file_of("{\"w\":{\"shape\":[2],\"data_offsets\":[0,2]}}", "xy"), {"'w': dtype is missing"});
  expect_refused(file_of("{\"w\":{}}", "xy"), {"is missing"});
  expect_refused(file_of("{\"w\":{\"dtype\":3}}", "xy"), {"'w': dtype is a number, not a string"});
  expect_refused(file_of("{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", "xy"), {"'w': dtype appears twice"});
  expect_refused(file_of("{\"w\":{\"strides\":[1]}}", "xy"), {"'w': unknown key 'strides'"});
}

TEST(Safetensors, ReportsLayoutErrors) {
  auto two = [](const std::string& first, const std::string& second, const std::string& data) {
    return file_of("{" + entry("p", "U8", "[2]", first) + "," + entry("q", "U8", "[2]", second) + "}", data);
  };
  EXPECT_NO_THROW(parse_safetensors(bytes(two("[2,4]", "[0,2]", "wxyz"))));
  expect_refused(two("[0,2]", "[1,3]", "xyz"), {"'p' and 'q' overlap", "ends at byte 2", "begins at 1"});
  expect_refused(two("[0,2]", "[0,2]", "xy"), {"'p' and 'q' overlap"});
  expect_refused(two("[0,2]", "[3,5]", "vwxyz"), {"a gap of 1 bytes before tensor 'q'"});
  expect_refused(two("[1,3]", "[3,5]", "vwxyz"), {"a gap of 1 bytes before tensor 'p'"});
  expect_refused(two("[0,2]", "[2,4]", "wxyz!"), {"1 bytes after the last tensor", "byte 4"});
  expect_refused(two("[0,2]", "[2,4]", "wxy"), {"'q': ends at byte 4 of the data but the file has only 3", "copy it again"});
  expect_refused(file_of("{}", "x"), {"1 bytes after the last tensor"});
}

// Anything accepted obeys the format's laws; anything else is an ErrorCode::io. The buffer ends with the file, so that sanitizers catch overruns.
TEST(Safetensors, SurvivesMutatedFiles) {
  TempFolder folder;
  std::mt19937 random(2);
  int refused = 0, accepted = 0;
  for (int base = 0; base < 20; ++base) {
    const Sample s = random_sample(random);
    write_safetensors(folder / "a", s.tensors, s.metadata);
    const std::string whole = read_text(folder / "a");
    uint64_t length = 0;
    std::memcpy(&length, whole.data(), 8);
    for (int round = 0; round < 1000; ++round) {
      // Half of the time only the header is edited and its length corrected, so that edits get past the first checks.
      const bool inside = random() % 2;
      std::string text = test::mutated(inside ? whole.substr(8, length) : whole, random);
      if (inside) text = file_of(text, whole.substr(8 + length));
      const std::vector<char> exact(text.begin(), text.end());
      const std::span<const std::byte> file = std::as_bytes(std::span(exact));
      try {
        const Safetensors read = parse_safetensors(file);
        ++accepted;
        std::memcpy(&length, exact.data(), 8);
        const std::byte* next = file.data() + 8 + length;
        for (const SafetensorView& t : read.tensors) {
          ASSERT_EQ(t.data.data(), next);
          ASSERT_EQ(int64_t(t.data.size()), t.shape.numel() * size_of(t.dtype));
          next += t.data.size();
        }
        ASSERT_EQ(next, file.data() + file.size());
      } catch (const Error& e) {
        ASSERT_EQ(e.code(), ErrorCode::io) << e.what();
        ++refused;
      }
      std::memcpy(&length, whole.data(), 8);
    }
  }
  EXPECT_GT(refused, 10'000);
  EXPECT_GT(accepted, 100);
}

TEST(Safetensors, KeepsViewsWhenTheFileIsReplaced) {
  TempFolder folder;
  const std::string old(100'000, 'o'), fresh(100'000, 'f');
  auto view = [](const std::string& data) { return std::vector<SafetensorView>{{{"w", DType::u8, Shape{100'000}}, bytes(data)}}; };
  write_safetensors(folder / "a", view(old));
  std::optional<SafetensorsFile> first(folder / "a");
  const SafetensorsFile copy = *first;
  first.reset();
  write_safetensors(folder / "a", view(fresh));
  EXPECT_EQ(text_of(copy.at("w").data), old);
  EXPECT_EQ(text_of(SafetensorsFile(folder / "a").at("w").data), fresh);
  std::filesystem::remove(folder / "a");
  EXPECT_EQ(text_of(copy.at("w").data), old);
}

TEST(Safetensors, FindsTensorsByName) {
  TempFolder folder;
  write_safetensors(folder / "a",
                    std::vector<SafetensorView>{{{"wte.weight", DType::u8, Shape{2}}, bytes("xy")}, {{"h.0.bias", DType::u8, Shape{}}, bytes("z")}});
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(text_of(file.at("wte.weight").data), "xy");
  EXPECT_EQ(file.find("wpe.weight"), nullptr);
  expect_error([&] { file.at("wpe.weight"); }, ErrorCode::io, {folder / "a", "no tensor 'wpe.weight' among 2", "wte.weight"});
  write_safetensors(folder / "a", {});
  expect_error([&] { SafetensorsFile(folder / "a").at("w"); }, ErrorCode::io, {"the file is empty"});
}

TEST(Safetensors, ReportsOpenErrors) {
  TempFolder folder;
  expect_error([&] { SafetensorsFile(folder / "none"); }, ErrorCode::io, {folder / "none", "No such file", "check the path"});
  expect_error([&] { SafetensorsFile(folder.path()); }, ErrorCode::io, {"is a folder"});
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error([&] { SafetensorsFile(folder / "pipe"); }, ErrorCode::io, {"not a regular file"});
  write_text(folder / "empty", "");
  expect_error([&] { SafetensorsFile(folder / "empty"); }, ErrorCode::io, {"0 bytes"});
}

TEST(Safetensors, RejectsWritesItCouldNotRead) {
  TempFolder folder;
  auto write = [&](SafetensorSpec spec, std::string_view data, const SafetensorsMetadata& metadata = {}) {
    return [=, &folder] { write_safetensors(folder / "a", std::vector<SafetensorView>{{spec, bytes(data)}}, metadata); };
  };
  expect_error(write({"w", DType::f64, Shape{1}}, "12345678"), ErrorCode::dtype, {"'w'", "convert it to f32"});
  expect_error(write({"w", DType::u8, Shape{3}}, "xy"), ErrorCode::value, {"'w': 2 bytes given for shape [3] of u8"});
  expect_error(write({"__metadata__", DType::u8, Shape{2}}, "xy"), ErrorCode::value, {"reserved by the format"});
  expect_error(write({"\xff", DType::u8, Shape{2}}, "xy"), ErrorCode::value, {"UTF-8"});
  expect_error(write({"w", DType::u8, Shape{2}}, "xy", {{"k", "\xc3"}}), ErrorCode::value, {"UTF-8"});
  expect_error([&] { SafetensorsWriter(folder / "a", {{"w", DType::u8, Shape{-1}}}); }, ErrorCode::value, {"negative"});
  expect_error([&] { SafetensorsWriter(folder / "a", {{"w", DType::u8, Shape{1}}, {"w", DType::f32, Shape{1}}}); }, ErrorCode::value, {"name 'w'"});
  expect_error([&] { SafetensorsWriter(folder / "a", {{"w", DType::f32, Shape{int64_t(1) << 40, int64_t(1) << 40}}}); }, ErrorCode::value, {"63 bits"});
  expect_error([&] { SafetensorsWriter(folder / "a", {}, {{"k", std::string(100'000'000, 'v')}}); }, ErrorCode::value, {"shorten the metadata"});
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Safetensors, StreamsPiecesOfAnySize) {
  TempFolder folder;
  std::string data;
  for (int i = 0; i < 4 * 33 + 3; ++i) data += char(i);
  {
    SafetensorsWriter writer(folder / "a", {{"last", DType::boolean, Shape{3}}, {"first", DType::f32, Shape{33}}});
    EXPECT_EQ(writer.order()[0].name, "first");
    for (size_t at = 0, size = 1; at < data.size(); at += size++) writer.write(bytes(data).subspan(at, std::min(size, data.size() - at)));
    expect_error([&] { writer.write(bytes("x")); }, ErrorCode::value, {"1 bytes given where 0 are left"});
    EXPECT_FALSE(std::filesystem::exists(folder / "a"));
    writer.commit();
  }
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(text_of(file.at("first").data) + text_of(file.at("last").data), data);

  SafetensorsWriter writer(folder / "b", {{"w", DType::u8, Shape{3}}});
  writer.write(bytes("xy"));
  expect_error([&] { writer.commit(); }, ErrorCode::value, {"1 bytes are missing"});
  EXPECT_FALSE(std::filesystem::exists(folder / "b"));
}

// 5 GiB of zeros in a sparse file: offsets beyond 32 bits, and the last tensor is read from the right place.
TEST(Safetensors, ReadsOffsetsBeyondFourGigabytes) {
  TempFolder folder;
  constexpr int64_t kLarge = int64_t(5) << 30;
  const std::string size = std::to_string(kLarge), end = std::to_string(kLarge + 4);
  const std::string header =
      "{" + entry("large", "U8", "[" + size + "]", "[0," + size + "]") + "," + entry("tail", "U8", "[4]", "[" + size + "," + end + "]") + "}";
  write_text(folder / "a", file_of(header, ""));
  std::error_code error;
  std::filesystem::resize_file(folder / "a", 8 + header.size() + size_t(kLarge), error);
  ASSERT_FALSE(error) << "no sparse file of 5 GiB: " << error.message();
  std::ofstream(folder / "a", std::ios::binary | std::ios::app) << "tail";
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(int64_t(file.at("large").data.size()), kLarge);
  EXPECT_EQ(file.at("large").data[size_t(kLarge) - 1], std::byte(0));
  EXPECT_EQ(text_of(file.at("tail").data), "tail");
}

TEST(Safetensors, KeepsThePreviousFileThroughEveryFault) {
  TempFolder folder;
  const std::string old = "old!", fresh = "new!";
  auto view = [](const std::string& data) {
    return std::vector<SafetensorView>{{{"a", DType::u8, Shape{4}}, bytes(data)}, {{"b", DType::f32, Shape{1}}, bytes(data)}};
  };
  constexpr int kCalls = 6;  // header, two tensors, fsync, rename, fsync
  for (Fault fault : {Fault::enospc, Fault::eio, Fault::short_then_full, Fault::short_write})
    for (int at = 0; at < kCalls; ++at) {
      write_safetensors(folder / "a", view(old));
      bool failed = false;
      FileFaults faults(fault, at);
      try {
        write_safetensors(folder / "a", view(fresh), {}, FileFaults::calls());
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::io) << e.what();
        failed = true;
      }
      const bool renamed = FileFaults::sequence().find("rf") != std::string::npos;
      EXPECT_TRUE(failed || renamed);
      EXPECT_EQ(FileFaults::sequence().substr(0, 1), "w");
      const SafetensorsFile file(folder / "a");
      for (const char* name : {"a", "b"}) EXPECT_EQ(text_of(file.at(name).data), renamed ? fresh : old) << int(fault) << " at " << at;
      EXPECT_FALSE(std::filesystem::exists(folder / "a.part"));
    }
}

}  // namespace
}  // namespace ridge
