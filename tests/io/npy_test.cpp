#include "io/npy.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/error.h"

namespace ridge {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DType kAll[] = {DType::boolean, DType::u8, DType::i32, DType::i64, DType::f16, DType::bf16, DType::f32, DType::f64};

Bytes bytes_of(std::string_view text) {
  Bytes out(text.size());
  if (!text.empty()) std::memcpy(out.data(), text.data(), text.size());
  return out;
}

// A file as NumPy would write it, with any header and version.
Bytes file_of(const std::string& header, const Bytes& data, int version = 1) {
  std::string head = "\x93NUMPY";
  head += char(version);
  head += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) head += char(header.size() >> (8 * i) & 0xff);
  Bytes file = bytes_of(head + header);
  file.insert(file.end(), data.begin(), data.end());
  return file;
}

NpyArray random_array(std::mt19937& random) {
  NpyArray a;
  a.dtype = kAll[random() % std::size(kAll)];
  for (int axes = int(random() % 5); axes > 0; --axes) a.shape.push_back(int64_t(random() % 5));
  a.data.resize(size_t(a.shape.numel() * size_of(a.dtype)));
  for (std::byte& b : a.data) b = std::byte(random());
  return a;
}

void expect_error(const Bytes& file, ErrorCode code, const std::string& part) {
  try {
    parse_npy(file, "test");
    ADD_FAILURE() << "accepted; expected: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(Npy, ReadsWhatItWrites) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    NpyArray a = random_array(random);
    Bytes file = format_npy(a.dtype, a.shape, a.data);
    NpyArray b = parse_npy(file);
    EXPECT_EQ(a.dtype, b.dtype);
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_EQ(a.data, b.data);
    EXPECT_EQ((file.size() - a.data.size()) % 64, 0u);
  }
}

TEST(Npy, MatchesNumPysBytes) {
  Bytes file = format_npy(DType::f32, Shape{2, 3}, Bytes(24));
  std::string text(reinterpret_cast<const char*>(file.data()) + 10, 118);
  EXPECT_EQ(text.substr(0, text.find_last_not_of(" \n") + 1), "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }");
  EXPECT_EQ(text.back(), '\n');
  file = format_npy(DType::i64, Shape{5}, Bytes(40));
  EXPECT_NE(std::string(reinterpret_cast<const char*>(file.data()) + 10, 118).find("'shape': (5,), }"), std::string::npos);
  file = format_npy(DType::i64, Shape{}, Bytes(8));
  EXPECT_NE(std::string(reinterpret_cast<const char*>(file.data()) + 10, 118).find("'shape': (), }"), std::string::npos);
}

TEST(Npy, ReadsAllVersionsAndSpellings) {
  for (int version : {1, 2, 3})
    for (const char* header : {"{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }\n", "{\"shape\":(3,),\"fortran_order\":False,\"descr\":\"<i4\"}",
                               "  { 'descr' : '<i4' , 'shape' : ( 3L , ) , 'fortran_order' : True }   \n"}) {
      NpyArray a = parse_npy(file_of(header, Bytes(12, std::byte(1)), version));
      EXPECT_EQ(a.dtype, DType::i32);
      EXPECT_EQ(a.shape, Shape{3});
    }
  EXPECT_EQ(parse_npy(file_of("{'descr': '|V2', 'fortran_order': False, 'shape': (1,), }", Bytes(2))).dtype, DType::bf16);
  EXPECT_EQ(parse_npy(file_of("{'descr': '|b1', 'fortran_order': False, 'shape': (), }", Bytes(1))).dtype, DType::boolean);
}

TEST(Npy, TransposesFortranOrder) {
  // value[i, j, k] = 100 i + 10 j + k, stored with the first index fastest.
  Bytes data(2 * 3 * 4 * 4);
  auto put = [&](int64_t at, int32_t v) { std::memcpy(data.data() + 4 * at, &v, 4); };
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k) put(i + 2 * (j + 3 * k), 100 * i + 10 * j + k);
  NpyArray a = parse_npy(file_of("{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3, 4), }", data));
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k) {
        int32_t v;
        std::memcpy(&v, a.data.data() + 4 * ((i * 3 + j) * 4 + k), 4);
        EXPECT_EQ(v, 100 * i + 10 * j + k);
      }
  EXPECT_TRUE(parse_npy(file_of("{'descr': '<i4', 'fortran_order': True, 'shape': (2, 0, 4), }", {})).data.empty());
}

TEST(Npy, ReportsErrors) {
  auto header = [](const std::string& descr, const std::string& shape) {
    return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  };
  expect_error({}, ErrorCode::io, "numpy.save");
  expect_error(bytes_of("PK\x03\x04 a zip file, not an array"), ErrorCode::io, "numpy.save");
  expect_error(file_of(header("<f4", "(3,)"), Bytes(12), 4), ErrorCode::io, "version 4.0");
  expect_error(file_of(header("<f4", "(3,)"), Bytes(11)), ErrorCode::io, "needs 12 bytes but 11 follow");
  expect_error(file_of(header("<f4", "(3,)"), Bytes(13)), ErrorCode::io, "longer");
  expect_error(file_of(header(">f4", "(3,)"), Bytes(12)), ErrorCode::dtype, "big-endian");
  expect_error(file_of(header("<c8", "(3,)"), Bytes(24)), ErrorCode::dtype, "<c8");
  expect_error(file_of(header("|O", "(3,)"), Bytes(24)), ErrorCode::dtype, "objects");
  expect_error(file_of("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }", Bytes(12)), ErrorCode::dtype, "structured");
  expect_error(file_of(header("<f4", "(-3,)"), Bytes(12)), ErrorCode::io, "dimension is missing");
  expect_error(file_of(header("<f4", "(3 4)"), Bytes(48)), ErrorCode::io, "comma");
  expect_error(file_of(header("<f4", "(1,1,1,1,1,1,1,1,1)"), Bytes(4)), ErrorCode::shape, "dimensions");
  expect_error(file_of(header("<f4", "(99999999999999999999,)"), Bytes(4)), ErrorCode::io, "63 bits");
  expect_error(file_of("{'descr': '<f4', 'shape': (3,), }", Bytes(12)), ErrorCode::io, "missing");
  expect_error(file_of("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}", Bytes(12)), ErrorCode::io, "'more'");
  expect_error(file_of("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", Bytes(12)), ErrorCode::io, "twice");
  expect_error(file_of(header("<f4", "(3,)") + " import os", Bytes(12)), ErrorCode::io, "after the closing brace");
  expect_error(file_of(std::string(70000, ' '), {}, 2), ErrorCode::io, "70000");
  EXPECT_THROW(parse_npy(file_of(header("<f8", "(3037000500, 3037000500)"), Bytes(8))), Error);
  EXPECT_THROW(format_npy(DType::f32, Shape{3}, Bytes(11)), Error);
}

TEST(Npy, SurvivesMutatedFiles) {
  std::mt19937 random(2);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  int refused = 0, accepted = 0;
  for (int round = 0; round < 20000 && std::chrono::steady_clock::now() < until; ++round) {
    NpyArray a = random_array(random);
    Bytes file = format_npy(a.dtype, a.shape, a.data);
    for (int edits = 1 + int(random() % 4); edits > 0; --edits) {
      const size_t at = file.empty() ? 0 : random() % std::min<size_t>(file.size(), random() % 4 ? 80 : file.size());
      constexpr std::string_view tokens = "{}(),:'\"TFL0123456789<>|fiubV \n";
      switch (random() % 5) {
        case 0:
          if (!file.empty()) file[at] = std::byte(random());
          break;
        case 1:
          if (!file.empty()) file[at] = std::byte(tokens[random() % tokens.size()]);
          break;
        case 2: file.resize(at); break;
        case 3: file.insert(file.begin() + int64_t(at), std::byte(tokens[random() % tokens.size()])); break;
        case 4:
          if (!file.empty()) file.erase(file.begin() + int64_t(at));
          break;
      }
    }
    try {
      NpyArray b = parse_npy(file);
      ASSERT_EQ(int64_t(b.data.size()), b.shape.numel() * size_of(b.dtype));
      ++accepted;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, accepted);
}

TEST(Npy, WritesFilesCompleteOrNotAtAll) {
  const std::string path = (std::filesystem::temp_directory_path() / ("ridge_npy_test_" + std::to_string(std::random_device()()) + ".npy")).string();
  std::mt19937 random(3);
  NpyArray a = random_array(random);
  a.shape = Shape{300, 70}, a.dtype = DType::f32, a.data.assign(300 * 70 * 4, std::byte(7));
  write_npy(path, a);
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  NpyArray b = read_npy(path);
  EXPECT_EQ(a.data, b.data);
  EXPECT_EQ(a.shape, b.shape);
  std::filesystem::remove(path);
  for (auto act : {+[](const std::string& p) { read_npy(p); }, +[](const std::string& p) { write_npy(p, {DType::f32, Shape{0}, {}}); }}) {
    try {
      act(path + ".no/such/folder");
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io) << e.what();
    }
  }
}

}  // namespace
}  // namespace ridge
