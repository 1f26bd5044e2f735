#include "tasks/ppo/screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

#include <fmt/core.h>

#include "base/error.h"

namespace ridge {
namespace {

using Pixel = std::array<uint8_t, 3>;

// The mean colours of the picture's pixels under each pixel of a smaller one.
std::vector<Pixel> shrunk(const PictureView& p, int height, int width) {
  std::vector<Pixel> small;
  small.reserve(size_t(height) * size_t(width));
  const double down = double(p.height) / height, across = double(p.width) / width;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      double sum[3] = {}, area = 0;
      const double top = y * down, bottom = (y + 1) * down, left = x * across, right = (x + 1) * across;
      for (int v = int(top); v < std::min(p.height, int(std::ceil(bottom))); ++v)
        for (int u = int(left); u < std::min(p.width, int(std::ceil(right))); ++u) {
          const double share = (std::min(bottom, v + 1.0) - std::max(top, double(v))) * (std::min(right, u + 1.0) - std::max(left, double(u)));
          const uint8_t* from = &p.rgb[3 * (size_t(v) * size_t(p.width) + size_t(u))];
          for (size_t k = 0; k < 3; ++k) sum[k] += share * from[k];
          area += share;
        }
      Pixel pixel;
      for (size_t k = 0; k < 3; ++k) pixel[k] = uint8_t(std::clamp(std::lround(sum[k] / area), 0L, 255L));
      small.push_back(pixel);
    }
  return small;
}

double brightness(const Pixel& p) { return (0.3 * p[0] + 0.59 * p[1] + 0.11 * p[2]) / 255; }

char sign_for(double light) {
  constexpr std::string_view kSigns = " .:-=+*#%@";
  constexpr double kDark = 0.12;  // a dark background is left empty
  return kSigns[std::min(size_t(std::max(light - kDark, 0.0) / (1 - kDark) * double(kSigns.size())), kSigns.size() - 1)];
}

volatile std::sig_atomic_t noted_signal = 0;
void note_signal(int signal) { noted_signal = signal; }
constexpr int kNotedSignals[] = {SIGINT, SIGTERM, SIGHUP};

constexpr std::string_view kEnter = "\033[?1049h\033[?25l\033[2J", kLeave = "\033[0m\033[?25h\033[?1049l";  // other screen, hidden cursor

}  // namespace

Colours terminal_colours(std::string_view term, std::string_view colorterm, std::string_view no_color) {
  if (!no_color.empty()) return Colours::none;
  if (colorterm == "truecolor" || colorterm == "24bit" || term.ends_with("-direct")) return Colours::full;
  return term.find("256color") != term.npos ? Colours::indexed : Colours::none;
}

int colour_index(const uint8_t* rgb) {
  constexpr int kLevels[] = {0, 95, 135, 175, 215, 255};
  auto distance = [&](int r, int g, int b) { return (r - rgb[0]) * (r - rgb[0]) + (g - rgb[1]) * (g - rgb[1]) + (b - rgb[2]) * (b - rgb[2]); };
  int level[3];
  for (int k = 0; k < 3; ++k) {
    level[k] = 0;
    for (int i = 1; i < 6; ++i)
      if (std::abs(kLevels[i] - rgb[k]) < std::abs(kLevels[level[k]] - rgb[k])) level[k] = i;
  }
  const int gray = std::clamp(((rgb[0] + rgb[1] + rgb[2]) / 3 - 3) / 10, 0, 23), light = 8 + 10 * gray;
  if (distance(light, light, light) < distance(kLevels[level[0]], kLevels[level[1]], kLevels[level[2]])) return 232 + gray;
  return 16 + 36 * level[0] + 6 * level[1] + level[2];
}

std::string picture_text(const PictureView& p, int columns, int rows, Colours colours) {
  if (p.height < 1 || p.width < 1 || columns < 1 || rows < 1) return {};
  const double scale = std::min({1.0, double(columns) / p.width, 2.0 * rows / p.height});
  const int width = std::max(1, int(p.width * scale)), height = std::max(1, int(p.height * scale));
  const std::vector<Pixel> pixels = shrunk(p, height, width);
  std::string text;
  for (int y = 0; y < height; y += 2) {
    const Pixel *fore = nullptr, *back = nullptr;  // the colours in effect
    for (int x = 0; x < width; ++x) {
      const Pixel& upper = pixels[size_t(y) * size_t(width) + size_t(x)];
      const Pixel* lower = y + 1 < height ? &pixels[size_t(y + 1) * size_t(width) + size_t(x)] : nullptr;
      if (colours == Colours::none) {
        text += sign_for(lower ? (brightness(upper) + brightness(*lower)) / 2 : brightness(upper));
        continue;
      }
      auto use = [&](int code, const Pixel& c) {
        text +=
            colours == Colours::full ? fmt::format("\033[{};2;{};{};{}m", code, c[0], c[1], c[2]) : fmt::format("\033[{};5;{}m", code, colour_index(c.data()));
      };
      if (!fore || *fore != upper) use(38, upper), fore = &upper;
      if (lower && (!back || *back != *lower)) use(48, *lower), back = lower;
      text += "▀";
    }
    text += colours == Colours::none ? "\n" : "\033[0m\n";
  }
  return text;
}

std::vector<Key> take_keys(std::string& bytes) {
  std::vector<Key> keys;
  size_t at = 0;
  while (at < bytes.size()) {
    if (bytes[at] != '\033') {
      switch (bytes[at++]) {
        case ' ': keys.push_back(Key::pause); break;
        case 'q':
        case 'Q': keys.push_back(Key::quit); break;
        case '+': keys.push_back(Key::faster); break;
        case '-': keys.push_back(Key::slower); break;
        case 'c': keys.push_back(Key::automatic); break;
        default: break;
      }
      continue;
    }
    if (at + 1 == bytes.size()) break;
    if (bytes[at + 1] != '[' && bytes[at + 1] != 'O') {  // the escape key itself
      ++at;
      continue;
    }
    size_t end = at + 2;  // parameters, then a letter
    while (end < bytes.size() && (std::isdigit(static_cast<unsigned char>(bytes[end])) || bytes[end] == ';')) ++end;
    if (end == bytes.size()) break;
    switch (bytes[end]) {
      case 'A': keys.push_back(Key::up); break;
      case 'B': keys.push_back(Key::down); break;
      case 'C': keys.push_back(Key::right); break;
      case 'D': keys.push_back(Key::left); break;
      default: break;
    }
    at = end + 1;
  }
  bytes.erase(0, at);
  return keys;
}

RawTerminal::RawTerminal(int in, int out) : in_(in), out_(out) {
  if (tcgetattr(in_, &before_) != 0) fail(ErrorCode::io, "[watch] the terminal cannot be read: {}", std::strerror(errno));
  noted_signal = 0;
  struct sigaction action = {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = note_signal;
  for (size_t i = 0; i < std::size(kNotedSignals); ++i) sigaction(kNotedSignals[i], &action, &actions_[i]);
  termios raw = before_;
  raw.c_lflag &= ~tcflag_t(ICANON | ECHO);
  raw.c_cc[VMIN] = 0, raw.c_cc[VTIME] = 0;
  raw.c_cc[VSUSP] = raw.c_cc[VQUIT] = _POSIX_VDISABLE;  // these would leave the terminal as it is now
  tcsetattr(in_, TCSANOW, &raw);
  try {
    write(kEnter);
  } catch (...) {
    tcsetattr(in_, TCSANOW, &before_);
    for (size_t i = 0; i < std::size(kNotedSignals); ++i) sigaction(kNotedSignals[i], &actions_[i], nullptr);
    throw;
  }
}

RawTerminal::~RawTerminal() {
  [[maybe_unused]] const ssize_t ignored = ::write(out_, kLeave.data(), kLeave.size());
  tcsetattr(in_, TCSAFLUSH, &before_);
  for (size_t i = 0; i < std::size(kNotedSignals); ++i) sigaction(kNotedSignals[i], &actions_[i], nullptr);
}

void RawTerminal::write(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t taken = ::write(out_, text.data(), text.size());
    if (taken < 0 && errno == EINTR) {
      if (noted_signal) return;
      continue;
    }
    if (taken < 0) fail(ErrorCode::io, "[watch] the terminal cannot be written: {}", std::strerror(errno));
    text.remove_prefix(size_t(taken));
  }
}

std::vector<Key> RawTerminal::keys(double seconds) {
  pollfd terminal = {in_, POLLIN, 0};
  if (poll(&terminal, 1, int(std::ceil(1e3 * std::max(seconds, 0.0)))) <= 0) return {};
  char bytes[64];
  const ssize_t count = ::read(in_, bytes, sizeof bytes);
  if (count < 0 && errno == EINTR) return {};
  if (count <= 0) return {Key::quit};
  pending_.append(bytes, size_t(count));
  return take_keys(pending_);
}

int RawTerminal::caught() const { return noted_signal; }

RawTerminal::Size RawTerminal::size() const {
  winsize now = {};
  Size s;
  if (ioctl(out_, TIOCGWINSZ, &now) == 0 && now.ws_col > 0 && now.ws_row > 0) s = {now.ws_col, now.ws_row};
  return s;
}

}  // namespace ridge
