// Pictures as text for a terminal, and keys from its bytes: pure functions. And a terminal that gives single keys while it exists.
#pragma once
#include <termios.h>

#include <csignal>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ridge {

enum class Colours { none, indexed, full };  // plain characters, 256 colours, 24 bits
// From TERM, COLORTERM and NO_COLOR, each empty if it is not set.
Colours terminal_colours(std::string_view term, std::string_view colorterm, std::string_view no_color);
int colour_index(const uint8_t* rgb);  // the nearest of the terminal's fixed 240 of 256 colours

struct PictureView {
  int height = 0, width = 0;
  std::span<const uint8_t> rgb;  // height × width × 3
};
// Lines of text, each ended by a newline, of at most `columns` columns and `rows` lines. A character shows two pixels, one above the other. The picture keeps
// its proportions; it is made smaller if it does not fit, and never larger.
std::string picture_text(const PictureView& picture, int columns, int rows, Colours colours);

enum class Key { pause, quit, up, down, left, right, faster, slower, automatic };
// Takes the keys from the front of `bytes`; the beginning of an unfinished sequence stays there. Bytes without a meaning are left out.
std::vector<Key> take_keys(std::string& bytes);

// During its lifetime, keys come at once and without echo, the picture has a screen of its own, and SIGINT, SIGTERM and SIGHUP are noted instead of ending the
// process. The destructor puts everything back as it was. Only one may exist at a time.
class RawTerminal {
 public:
  RawTerminal(int in, int out);
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;

  void write(std::string_view text) const;  // ErrorCode::io if the terminal is gone
  // Keys pressed until now, or within so many seconds if there are none yet. A terminal that is gone counts as `quit`.
  std::vector<Key> keys(double seconds);
  int caught() const;  // the signal number; 0: none
  struct Size {
    int columns = 80, rows = 24;
  };
  Size size() const;

 private:
  int in_, out_;
  std::string pending_;
  termios before_ = {};
  struct sigaction actions_[3] = {};
};

}  // namespace ridge
