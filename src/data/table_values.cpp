#include "data/table_values.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "config/words.h"

namespace ridge {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_missing(std::string_view text) {
  const std::string word = text.size() <= 4 ? lower_case(text) : std::string();
  return text.empty() || word == "na" || word == "nan" || word == "n/a" || word == "null" || word == "none" || text == "?" || text == "-";
}

std::string_view without_sign(std::string_view text) {
  if (!text.empty() && (text.front() == '+' || text.front() == '-')) text.remove_prefix(1);
  return text;
}

// Digits before the decimal mark, without the marks between thousands. Empty: these are not between groups of three digits.
std::optional<std::string> without_groups(std::string_view whole, char group) {
  std::string out;
  for (size_t part = 0;; ++part) {
    const size_t end = std::min(whole.find(group), whole.size());
    if (part > 0 ? end != 3 : end < whole.size() && (end < 1 || end > 3)) return {};
    if ((part > 0 || end < whole.size()) && !std::all_of(whole.begin(), whole.begin() + int64_t(end), is_digit)) return {};
    out += whole.substr(0, end);
    if (end == whole.size()) return out;
    whole.remove_prefix(end + 1);
  }
}

// Takes a date or a time of day apart.
struct TimeText {
  std::string_view text;
  std::optional<int> digits(size_t least, size_t most, int low, int high) {
    size_t count = 0;
    while (count < most && count < text.size() && is_digit(text[count])) ++count;
    int value = 0;
    if (count < least) return {};
    std::from_chars(text.data(), text.data() + count, value);
    if (value < low || value > high) return {};
    text.remove_prefix(count);
    return value;
  }
  char skip(std::string_view any) {
    if (text.empty() || any.find(text.front()) == any.npos) return 0;
    const char found = text.front();
    text.remove_prefix(1);
    return found;
  }
};

struct DateParts {
  int year = 0, month = 0, day = 0;
};

// The date at the beginning. Two numbers before the year are in the order that dots, the numbers themselves or `order` say.
std::optional<DateParts> take_date(TimeText& t, std::optional<DateOrder> order, TableTime& out) {
  constexpr std::string_view kMarks = "-/.";
  const bool year_first = t.text.size() > 4 && std::all_of(t.text.begin(), t.text.begin() + 4, is_digit);
  const std::optional<int> first = year_first ? t.digits(4, 4, 0, 9999) : t.digits(1, 2, 1, 31);
  const char mark = t.skip(kMarks);
  if (!first || !mark) return {};
  const std::optional<int> second = year_first ? t.digits(1, 2, 1, 12) : t.digits(1, 2, 1, 31);
  if (!second || !t.skip({&mark, 1})) return {};
  const std::optional<int> third = year_first ? t.digits(1, 2, 1, 31) : t.digits(4, 4, 0, 9999);
  if (!third) return {};
  if (year_first) return DateParts{*first, *second, *third};
  if (mark == '.') return DateParts{*third, *second, *first};
  if (*first > 12) out.shown = DateOrder::day_first;
  if (*second > 12) out.shown = DateOrder::month_first;
  out.open = !out.shown && *first != *second;
  const bool day_first = out.shown.value_or(order.value_or(DateOrder::day_first)) == DateOrder::day_first;
  return day_first ? DateParts{*third, *second, *first} : DateParts{*third, *first, *second};
}

// "T12:30:05.25Z", " 2:05 PM"; false: it is not a time of day.
bool take_time_of_day(TimeText& t, TableTime& out) {
  if (!t.skip(" Tt")) return false;
  const std::optional<int> hour = t.digits(1, 2, 0, 24);
  if (!hour || !t.skip(":")) return false;
  const std::optional<int> minute = t.digits(2, 2, 0, 59);
  if (!minute) return false;
  out.has_time = true;
  double seconds = 3600.0 * *hour + 60.0 * *minute;
  if (t.skip(":")) {
    const std::optional<int> second = t.digits(2, 2, 0, 60);
    if (!second) return false;
    seconds += *second;
    if (t.skip(".,"))
      for (double place = 0.1; !t.text.empty() && is_digit(t.text.front()); place /= 10)
        seconds += place * (t.text.front() - '0'), out.has_fraction |= t.text.front() != '0', t.text.remove_prefix(1);
  }
  if (const std::string rest = lower_case(config::trim(t.text)); rest == "am" || rest == "pm") {
    if (*hour < 1 || *hour > 12) return false;
    seconds += (*hour == 12 ? -12 : 0) * 3600.0 + (rest == "pm" ? 12 : 0) * 3600.0;
    t.text = {};
  }
  if (seconds > 86400) return false;
  out.seconds += seconds;
  if (t.skip("Zz")) {
    out.has_zone = true;
  } else if (const char sign = t.skip("+-")) {
    const std::optional<int> hours = t.digits(2, 2, 0, 18);
    t.skip(":");
    const std::optional<int> minutes = t.text.empty() ? std::optional(0) : t.digits(2, 2, 0, 59);
    if (!hours || !minutes) return false;
    out.has_zone = true, out.seconds -= (sign == '+' ? 1 : -1) * (3600.0 * *hours + 60.0 * *minutes);
  }
  return true;
}

}  // namespace

TableNumber parse_number(std::string_view text, DecimalMark mark) {
  text = config::trim(text);
  if (is_missing(text)) return {true, true, 0};
  const std::string_view digits = without_sign(text);
  const size_t decimal = std::min(digits.find(char(mark)), digits.size());
  std::string plain;
  if (digits.find(',') != digits.npos || mark == DecimalMark::comma) {  // else the text is as the library reads it
    const std::optional<std::string> whole = without_groups(digits.substr(0, decimal), mark == DecimalMark::point ? ',' : '.');
    if (!whole) return {};
    plain = std::string(text.front() == '-' ? "-" : "") + *whole + (decimal < digits.size() ? "." : "");
    if (decimal < digits.size()) plain += digits.substr(decimal + 1);
    if (std::count_if(plain.begin(), plain.end(), [](char c) { return c == '.' || c == ','; }) > 1) return {};
    text = plain;
  } else if (text.front() == '+') {
    text = digits;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool signs = !digits.empty() && (digits.front() == '+' || digits.front() == '-');  // a second one
  return {error == std::errc() && end == text.data() + text.size() && std::isfinite(float(value)) && !signs, false, value};
}

MarkShown shown_mark(std::string_view text) {
  text = config::trim(text);
  if (is_missing(text)) return MarkShown::missing;
  const std::string_view digits = without_sign(text);
  const bool as_point = parse_number(text, DecimalMark::point).valid, as_comma = parse_number(text, DecimalMark::comma).valid;
  if (!as_point && !as_comma) return MarkShown::not_a_number;
  const size_t mark = digits.find_first_of(".,");
  if (mark == digits.npos) return MarkShown::nothing;
  if (as_point != as_comma) return as_point ? MarkShown::point : MarkShown::comma;
  if (digits.front() == '0') return digits[mark] == '.' ? MarkShown::point : MarkShown::comma;  // nobody writes thousands as 0,123
  return digits[mark] == '.' ? MarkShown::open_point : MarkShown::open_comma;
}

TableTime parse_time(std::string_view text, std::optional<DateOrder> order) {
  TimeText t{config::trim(text)};
  TableTime out;
  const std::optional<DateParts> parts = take_date(t, order, out);
  if (!parts) return {};
  const std::chrono::year_month_day date{std::chrono::year(parts->year), std::chrono::month(unsigned(parts->month)), std::chrono::day(unsigned(parts->day))};
  if (!date.ok()) return {};
  out.seconds = 86400.0 * double(std::chrono::sys_days(date).time_since_epoch().count());
  if (!t.text.empty() && !take_time_of_day(t, out)) return {};
  out.valid = t.text.empty();
  return out.valid ? out : TableTime{};
}

std::string TimeFormat::text(double time) const {
  if (!std::isfinite(time)) return "";
  if (!dates) return fmt::format("{:.15g}", time);
  constexpr double kDay = 86400;
  if (!time_of_day) time = kDay * std::round(time / kDay);
  time = fraction ? std::round(1e3 * time) / 1e3 : std::round(time);
  const double day = std::floor(time / kDay), rest = time - kDay * day;
  const std::chrono::year_month_day date{std::chrono::sys_days(std::chrono::days(int64_t(day)))};
  std::string out = fmt::format("{:04}-{:02}-{:02}", int(date.year()), unsigned(date.month()), unsigned(date.day()));
  if (!time_of_day) return out;
  const auto seconds = int64_t(rest);
  out += fmt::format(" {:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
  if (fraction) out += fmt::format(".{:03}", std::min<int64_t>(999, std::llround(1e3 * (rest - double(seconds)))));
  return out + (zone ? "Z" : "");
}

}  // namespace ridge
