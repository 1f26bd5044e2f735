// Human-readable words, numbers and sizes.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ridge {

std::string expand_home(const std::string& path);  // expands ~ and ~/… with $HOME; anything else is unchanged
std::string lower_case(std::string_view text);     // ASCII letters only
std::string size_text(int64_t bytes);              // "14.8 GiB", "1.5 MiB", "512 KiB": at most three digits

std::string grouped(int64_t count);                         // "1,234,567"
std::string counted(int64_t count, std::string_view noun);  // "1 step", "2 steps", "1,000 steps"

// A loss or score: "2.3456", below 0.01 with three significant digits ("0.00432", "4.30e-06"), from 10,000 as "1.235e+04"; "nan", "inf", "-inf".
std::string figure_text(double value);

// "a, b, c"; of names that take more than `width` columns, the first ones and how many more there are: "a, b and 48 more".
std::string listed(std::span<const std::string> names, int width = 100);

// For printed numbers: drops the meaningless sign of a NaN, which would print as "-nan".
double without_nan_sign(double value);

int display_width(std::string_view text);  // columns that UTF-8 text takes in a terminal

size_t fitting(std::string_view text, int width);  // bytes of the longest prefix that takes at most `width` columns

// At most `width` columns, ending in … if truncated.
std::string cut(std::string_view text, int width);

std::string shell_word(const std::string& text);  // quoted for a shell, if it has to be

// Makes text safe for a terminal: replaces control characters by ·, invalid UTF-8 by �, tabs by spaces. Newlines stay.
std::string printable(std::string_view text);

// Wrapped at spaces to lines of at most `width` columns; continuation lines are indented by `indent` spaces.
std::string wrap(std::string_view text, int width, int indent);

std::string_view level_bar(double share);  // from ▁ for 0 to █ for 1

// One bar per value, scaled from the lowest to the highest; a space for a value that is not finite. With more values than `most`, neighbours are averaged.
std::string sparkline(std::span<const double> values, int most = 1000);

}  // namespace ridge
