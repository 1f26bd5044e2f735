// Numbers and times in tables, as programs and spreadsheets write them. What a text alone leaves open (1,234 or 03/04/2026), the rest of its column decides.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace ridge {

enum class DecimalMark : char { point = '.', comma = ',' };

// "1.5", " -2e3 ", "1,234.5"; with a decimal comma "1,5" and "1.234,5". Missing: "", NA, NaN, null, none, ?, -.
struct TableNumber {
  bool valid = false, missing = false;
  double value = 0;
};
TableNumber parse_number(std::string_view text, DecimalMark mark);

// What a text shows about the decimal mark: "1,5" comma, "1.5" and "1,234.5" point, "12" nothing. "1,234" and "1.234" may be about one or over a thousand.
enum class MarkShown { not_a_number, missing, nothing, point, comma, open_point, open_comma };
MarkShown shown_mark(std::string_view text);

enum class DateOrder { day_first, month_first };

// "2024-01-31", "31.1.2024", "1/31/2024", each also with a time of day: "12:30[:05.25][ PM][Z|+02:00]", after a space or T. Others are not valid.
struct TableTime {
  bool valid = false;
  double seconds = 0;              // since 1970
  bool has_time = false;           // of day
  bool has_zone = false;           // seconds are then those of UTC
  bool has_fraction = false;       // of a second
  std::optional<DateOrder> shown;  // by a date with slashes or dashes that ends with the year and has a day above 12
  bool open = false;               // such a date with no day above 12: without an order it is not known which number is the day
};
TableTime parse_time(std::string_view text, std::optional<DateOrder> order = {});

// How times of a table are written: numbers as they are, dates as ISO 8601 with as much of a time of day as the table has.
struct TimeFormat {
  bool dates = false, time_of_day = false, zone = false, fraction = false;
  std::string text(double time) const;
  bool operator==(const TimeFormat&) const = default;
};

}  // namespace ridge
