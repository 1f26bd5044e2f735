// Pictures as text and keys from bytes; a terminal is put back as it was, whatever happens.
#include "tasks/ppo/screen.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <random>
#include <stdexcept>

#include "base/text.h"

namespace ridge {
namespace {

std::string without_codes(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] == '\033')
      i = text.find_first_of("mhlJKH", i);
    else
      plain += text[i];
  return plain;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

TEST(PictureText, FitsEveryScreen) {
  std::mt19937 random(1);
  for (const auto& [height, width] : {std::pair{1, 1}, {2, 1}, {3, 7}, {160, 160}, {84, 31}, {31, 84}}) {
    std::vector<uint8_t> rgb(size_t(3 * height * width));
    for (uint8_t& c : rgb) c = uint8_t(random());
    for (const auto& [columns, rows] : {std::pair{1, 1}, {2, 3}, {33, 17}, {80, 24}, {400, 200}})
      for (const Colours colours : {Colours::none, Colours::indexed, Colours::full}) {
        const std::vector<std::string> lines = lines_of(without_codes(picture_text({height, width, rgb}, columns, rows, colours)));
        ASSERT_FALSE(lines.empty());
        EXPECT_LE(lines.size(), size_t(rows));
        for (const std::string& line : lines) {
          EXPECT_LE(display_width(line), columns);
          EXPECT_EQ(display_width(line), display_width(lines[0]));
        }
        if (columns >= width && 2 * rows >= height) {
          EXPECT_EQ(display_width(lines[0]), width) << "never larger, and only smaller if it must be";
          EXPECT_EQ(lines.size(), size_t((height + 1) / 2));
        }
      }
  }
  EXPECT_EQ(picture_text({0, 0, {}}, 80, 24, Colours::full), "");
}

TEST(PictureText, ShowsTheUpperPixelInFrontOfTheLower) {
  const uint8_t rgb[] = {255, 0, 0, 255, 0, 0, 1, 2, 3, 4, 5, 6};  // two reds above two others
  EXPECT_EQ(picture_text({2, 2, rgb}, 80, 24, Colours::full), "\033[38;2;255;0;0m\033[48;2;1;2;3m▀\033[48;2;4;5;6m▀\033[0m\n");
  EXPECT_EQ(picture_text({2, 2, rgb}, 80, 24, Colours::indexed), "\033[38;5;196m\033[48;5;16m▀\033[48;5;232m▀\033[0m\n");
  const uint8_t gray[] = {255, 255, 255, 0, 0, 0, 255, 255, 255, 0, 0, 0};
  EXPECT_EQ(picture_text({2, 2, gray}, 80, 24, Colours::none), "@ \n");
}

TEST(PictureText, KeepsTheMeanWhenItShrinks) {
  std::vector<uint8_t> rgb(size_t(3 * 9 * 6), 10);
  for (size_t i = 0; i < rgb.size(); i += 6) rgb[i] = 200;  // every other pixel's red
  const std::string text = picture_text({9, 6, rgb}, 2, 1, Colours::full);
  EXPECT_NE(text.find(";105;10;10m"), std::string::npos) << text;
}

TEST(TerminalColours, AreWhatTheVariablesSay) {
  EXPECT_EQ(terminal_colours("xterm-256color", "truecolor", ""), Colours::full);
  EXPECT_EQ(terminal_colours("xterm-direct", "", ""), Colours::full);
  EXPECT_EQ(terminal_colours("screen-256color", "", ""), Colours::indexed);
  EXPECT_EQ(terminal_colours("vt100", "", ""), Colours::none);
  EXPECT_EQ(terminal_colours("xterm-256color", "truecolor", "1"), Colours::none);
}

TEST(TerminalColours, AreTheNearest) {
  auto rgb_of = [](int index, int* rgb) {
    constexpr int kLevels[] = {0, 95, 135, 175, 215, 255};
    for (int k = 0; k < 3; ++k) rgb[k] = index >= 232 ? 8 + 10 * (index - 232) : kLevels[(index - 16) / (k == 0 ? 36 : k == 1 ? 6 : 1) % 6];
  };
  std::mt19937 random(3);
  for (int n = 0; n < 2000; ++n) {
    const uint8_t rgb[] = {uint8_t(random()), uint8_t(random()), uint8_t(random())};
    auto distance = [&](int index) {
      int other[3];
      rgb_of(index, other);
      return (other[0] - rgb[0]) * (other[0] - rgb[0]) + (other[1] - rgb[1]) * (other[1] - rgb[1]) + (other[2] - rgb[2]) * (other[2] - rgb[2]);
    };
    int best = 16;
    for (int i = 16; i < 256; ++i)
      if (distance(i) < distance(best)) best = i;
    EXPECT_EQ(distance(colour_index(rgb)), distance(best)) << int(rgb[0]) << " " << int(rgb[1]) << " " << int(rgb[2]);
  }
}

TEST(TakeKeys, ReadsThemHoweverTheBytesAreCut) {
  const std::string bytes = " q\033[A\033OB\033[1;5C\033[Dx\033[3~+\033\033[A-cQ";
  const std::vector<Key> expected = {Key::pause,  Key::quit, Key::up,     Key::down,      Key::right, Key::left,
                                     Key::faster, Key::up,   Key::slower, Key::automatic, Key::quit};
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    std::string pending = bytes.substr(0, cut);
    std::vector<Key> keys = take_keys(pending);
    pending += bytes.substr(cut);
    for (const Key key : take_keys(pending)) keys.push_back(key);
    EXPECT_EQ(keys, expected) << cut;
    EXPECT_EQ(pending, "");
  }
  std::string noise;
  std::mt19937 random(5);
  for (int i = 0; i < 10000; ++i) noise += char(random());
  take_keys(noise);
  EXPECT_LT(noise.size(), 100u) << "only the beginning of a sequence stays";
}

class RawTerminalTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(openpty(&master_, &slave_, nullptr, nullptr, nullptr), 0); }
  void TearDown() override { ::close(master_), ::close(slave_); }
  std::string settings() const {
    termios t = {};
    tcgetattr(slave_, &t);
    return std::string(reinterpret_cast<const char*>(&t.c_lflag), sizeof t.c_lflag) + std::string(reinterpret_cast<const char*>(t.c_cc), sizeof t.c_cc);
  }
  std::string shown() const {
    std::string all;
    char text[4096];
    pollfd ready = {master_, POLLIN, 0};
    while (poll(&ready, 1, 0) == 1) all.append(text, size_t(std::max<ssize_t>(::read(master_, text, sizeof text), 0)));
    return all;
  }
  int master_ = -1, slave_ = -1;
};

TEST_F(RawTerminalTest, IsRestoredAfterExceptionsAndSignals) {
  const std::string before = settings();
  struct sigaction earlier = {};
  sigaction(SIGINT, nullptr, &earlier);  // ignored in some background jobs
  for (const bool fails : {false, true}) {
    try {
      RawTerminal terminal(slave_, slave_);
      EXPECT_NE(settings(), before);
      ASSERT_EQ(::write(master_, "\033[A ", 4), 4);
      EXPECT_EQ(terminal.keys(5), (std::vector<Key>{Key::up, Key::pause})) << "at once, without a newline";
      EXPECT_EQ(terminal.caught(), 0);
      std::raise(SIGINT);
      EXPECT_EQ(terminal.caught(), SIGINT);
      if (fails) throw std::runtime_error("no picture");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(settings(), before);
    struct sigaction now = {};
    sigaction(SIGINT, nullptr, &now);
    EXPECT_EQ(now.sa_handler, earlier.sa_handler);
    const std::string text = shown();
    EXPECT_TRUE(text.find("\033[?25l") < text.find("\033[?25h") && text.find("\033[?1049h") < text.find("\033[?1049l")) << "the cursor and the screen are back";
  }
}

}  // namespace
}  // namespace ridge
