// Words and sizes for people.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ridge {

std::string lower_case(std::string_view text);  // of ASCII letters
std::string size_text(int64_t bytes);           // "14.8 GiB", "1.5 MiB", "512 KiB": at most three digits

std::string grouped(int64_t count);                         // "1,234,567"
std::string counted(int64_t count, std::string_view noun);  // "1 step", "2 steps", "1,000 steps"

// For numbers that are printed: a NaN loses its sign, which says nothing and is shown as "-nan".
double without_nan_sign(double value);

int display_width(std::string_view text);  // columns of UTF-8 text in a terminal

size_t fitting(std::string_view text, int width);  // bytes of the longest beginning that takes at most `width` columns

// At most `width` columns, with … at the end where something is missing.
std::string cut(std::string_view text, int width);

// What a terminal would obey or cannot show is replaced: control characters by ·, bytes that are no UTF-8 by �, tabs by blanks. Line ends stay.
std::string printable(std::string_view text);

// Broken at blanks to lines of at most `width` columns; the lines after the first begin with `indent` blanks.
std::string wrap(std::string_view text, int width, int indent);

std::string_view level_bar(double share);  // from ▁ for 0 to █ for 1

// One bar for each value, from the lowest to the highest; a blank where one is not finite. More values than `most`: means of neighbours.
std::string sparkline(std::span<const double> values, int most = 1000);

}  // namespace ridge
