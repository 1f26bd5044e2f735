#include "base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <fmt/core.h>

namespace ridge {

int terminal_width() {
  constexpr int kNarrowest = 40, kUnknown = 100;
  winsize size{};
  int width = isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
  if (const char* columns = std::getenv("COLUMNS"); width == 0 && columns) width = std::atoi(columns);
  return width > 0 ? std::max(width, kNarrowest) : kUnknown;
}

bool on_terminal() {
  const char* kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) && !(kind && std::string_view(kind) == "dumb");
}

bool use_colour() {
  const char* refused = std::getenv("NO_COLOR");
  return on_terminal() && !(refused && *refused);
}

std::string bold(std::string_view text) { return use_colour() ? fmt::format("\033[1m{}\033[0m", text) : std::string(text); }
std::string dim(std::string_view text) { return use_colour() ? fmt::format("\033[2m{}\033[0m", text) : std::string(text); }

}  // namespace ridge
