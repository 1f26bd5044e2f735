// Pickles: files from every Python protocol can be read, and malicious content can do nothing worse than be rejected.
#include "data/pickle.h"

#include <gtest/gtest.h>

#include <random>

#include "machine/expect_error.h"
#include "support/mutate.h"

namespace ridge {
namespace {

std::string bytes_of_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) out += char(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

Pickle parse(std::string_view bytes) { return parse_pickle(std::as_bytes(std::span(bytes)), "meta.pkl"); }

// {'vocab_size': 4, 'itos': {0: '\n', 1: 'a', 2: 'é', 3: '你'}, 'stoi': the inverse} as Python 3.11 writes it.
const char* const kByProtocol[] = {
    "286470300a56766f6361625f73697a650a70310a49340a735669746f730a70320a286470330a49300a565c75303030610a70340a7349310a56610a70350a7349320a56e90a70360a7349330a56"
    "5c75346636300a70370a73735673746f690a70380a286470390a67340a49300a7367350a49310a7367360a49320a7367370a49330a73732e",
    "7d710028580a000000766f6361625f73697a6571014b04580400000069746f7371027d7103284b0058010000000a71044b0158010000006171054b025802000000c3a971064b035803000000e4"
    "bda0710775580400000073746f6971087d71092868044b0068054b0168064b0268074b0375752e",
    "80027d710028580a000000766f6361625f73697a6571014b04580400000069746f7371027d7103284b0058010000000a71044b0158010000006171054b025802000000c3a971064b0358030000"
    "00e4bda0710775580400000073746f6971087d71092868044b0068054b0168064b0268074b0375752e",
    "80037d710028580a000000766f6361625f73697a6571014b04580400000069746f7371027d7103284b0058010000000a71044b0158010000006171054b025802000000c3a971064b0358030000"
    "00e4bda0710775580400000073746f6971087d71092868044b0068054b0168064b0268074b0375752e",
    "80049555000000000000007d94288c0a766f6361625f73697a65944b048c0469746f73947d94284b008c010a944b018c0161944b028c02c3a9944b038c03e4bda094758c0473746f69947d9428"
    "68044b0068054b0168064b0268074b0375752e",
    "80059555000000000000007d94288c0a766f6361625f73697a65944b048c0469746f73947d94284b008c010a944b018c0161944b028c02c3a9944b038c03e4bda094758c0473746f69947d9428"
    "68044b0068054b0168064b0268074b0375752e"};

TEST(Pickle, ReadsEveryProtocol) {
  for (const char* hex : kByProtocol) {
    const Pickle pickle = parse(bytes_of_hex(hex));
    ASSERT_EQ(pickle.root().items.size(), 3u);
    EXPECT_EQ(pickle.find(pickle.root(), "vocab_size")->whole, 4);
    const PickleValue* itos = pickle.find(pickle.root(), "itos");
    ASSERT_TRUE(itos);
    std::string all;
    for (const auto& [key, value] : itos->items) all += std::to_string(pickle.values[key].whole) + pickle.values[value].text;
    EXPECT_EQ(all, "0\n1a2é3你");
    EXPECT_EQ(pickle.find(*pickle.find(pickle.root(), "stoi"), "你")->whole, 3);
    EXPECT_EQ(pickle.find(pickle.root(), "none"), nullptr);
  }
}

TEST(Pickle, ReadsNumbersOfEverySize) {
  EXPECT_EQ(parse("I-12\n.").root().whole, -12);
  EXPECT_EQ(parse("L9223372036854775807L\n.").root().whole, INT64_MAX);
  EXPECT_EQ(parse("\x8a\x01\xff.").root().whole, -1);
  EXPECT_EQ(parse("\x8a\x02\xff\x7f.").root().whole, 32767);
  EXPECT_EQ(parse(std::string_view("\x8a\x00.", 3)).root().whole, 0);
  EXPECT_EQ(parse(std::string_view("J\xff\xff\xff\xff.", 6)).root().whole, -1);
  EXPECT_EQ(parse(std::string_view("M\xff\xff.", 4)).root().whole, 65535);
}

TEST(Pickle, RejectsObjects) {
  // A call of os.system, a list, a boolean, bytes, a float, two values, data after the end, a missing memo, a cycle's key.
  for (std::string_view bytes : {"cos\nsystem\n(S'true'\ntR.", "].", "\x88.", "I01\n.", "C\x01x.", "G12345678.", "K\x01K\x02.", "K\x01.x", "h\x07.", ".", "",
                                 "(", "s.", "K\x01(.", "V\\uD800\n.", "X\x01\x00\x00\x00\xff.", "\x80\x06K\x01.", "}q\x00(h\x00h\x00u.", "K\x01(u."}) {
    const Error error = error_of([&] { parse(bytes); });
    EXPECT_EQ(error.code(), ErrorCode::io) << bytes;
    EXPECT_TRUE(mentions(error.what(), "meta.pkl")) << error.what();
  }
}

TEST(Pickle, ReadsOrRejectsAnyBytes) {
  std::mt19937 random(5);
  for (const char* hex : kByProtocol) {
    const std::string good = bytes_of_hex(hex);
    for (size_t cut = 0; cut < good.size(); ++cut) EXPECT_THROW(parse(std::string_view(good).substr(0, cut)), Error);
    for (int i = 0; i < 3000; ++i) {
      const std::string bad = test::mutated(good, random);
      try {
        parse(bad);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
      }
    }
  }
}

}  // namespace
}  // namespace ridge
