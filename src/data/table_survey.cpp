#include "data/table_survey.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "config/words.h"
#include "data/csv.h"

namespace ridge {
namespace {

bool among(const std::vector<std::string>& names, const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); }

// Notes a field at the first of the places that it is an example of.
void note_field(FieldPlace& place, const CsvReader& table, const std::string& file, size_t column) {
  if (!place.found()) place = {file, table.names()[column], table.field(column), table.line(), column};
}

std::string mark_word(DecimalMark mark) { return mark == DecimalMark::comma ? "comma" : "point"; }

std::string read_as(const FieldPlace& place, DecimalMark mark) { return fmt::format("{:.10g}", parse_number(place.text, mark).value); }

}  // namespace

std::string FieldPlace::at() const { return fmt::format("{}:{}: column {} ({}): {}", file, line, column + 1, name, config::shown(text)); }

void FieldPlace::reject(const std::string& why) const { fail(ErrorCode::io, "[data] {} {}", at(), why); }

TableSurvey::TableSurvey(const std::vector<std::string>& files, const std::vector<std::string>& used, const std::string& times) {
  for (const std::string& file : files) {
    CsvReader table(file);
    std::vector<std::pair<size_t, size_t>> places;  // column of this table, and of all
    for (size_t c = 0; c < table.names().size(); ++c) {
      const std::string& name = table.names()[c];
      if (!used.empty() && !among(used, name)) continue;
      const auto known = std::find_if(columns_.begin(), columns_.end(), [&](const ColumnSurvey& s) { return s.name == name; });
      places.emplace_back(c, size_t(known - columns_.begin()));
      if (known == columns_.end()) columns_.emplace_back().name = name;
    }
    if (table.is_headless() && headless_.empty()) headless_ = file;
    for (; table.next(); ++rows_)
      for (const auto& [c, at] : places) {
        ColumnSurvey& s = columns_[at];
        auto note = [&](FieldPlace& place) { note_field(place, table, file, c); };
        const MarkShown shown = shown_mark(table.field(c));
        if (shown == MarkShown::missing) continue;
        if (shown == MarkShown::not_a_number) {
          ++s.others, note(s.other);
          if (s.name != times && s.date.found()) continue;
          const TableTime time = parse_time(table.field(c));
          if (!time.valid) continue;
          note(s.date), note(time.has_zone ? s.zoned : s.local);
          if (time.open) note(s.open_order);
          if (time.shown) note(*time.shown == DateOrder::day_first ? s.day_first : s.month_first);
          s.format.dates = true, s.format.time_of_day |= time.has_time, s.format.zone |= time.has_zone, s.format.fraction |= time.has_fraction;
          continue;
        }
        ++s.numbers, note(s.number);
        if (shown == MarkShown::point) note(s.point);
        if (shown == MarkShown::comma) note(s.comma);
        if (shown == MarkShown::open_point) note(s.open_point);
        if (shown == MarkShown::open_comma) note(s.open_comma);
      }
  }
}

const ColumnSurvey& TableSurvey::column(const std::string& name) const {
  static const ColumnSurvey kNone;  // reading the table reports that it has no such column
  const auto found = std::find_if(columns_.begin(), columns_.end(), [&](const ColumnSurvey& s) { return s.name == name; });
  return found == columns_.end() ? kNone : *found;
}

std::vector<std::string> TableSurvey::numbers(const std::vector<std::string>& reserved, std::vector<std::string>& notices) const {
  std::vector<std::string> names, left_out;
  for (const ColumnSurvey& s : columns_) {
    if (among(reserved, s.name)) continue;
    if (s.others > 0 && s.mostly_numbers())
      s.other.reject(
          fmt::format("is not a number, but {} of the column's {} values are; correct it, leave it empty if it is missing, or name other columns with "
                      "inputs=A,B",
                      s.numbers, s.numbers + s.others));
    if (s.mostly_numbers())
      names.push_back(s.name);
    else if (s.date.found() && s.date.line == s.other.line)
      left_out.push_back(fmt::format("{} (dates; time_column={} uses them as times)", s.name, s.name));
    else
      left_out.push_back(s.others == 0 ? fmt::format("{} (empty)", s.name)
                                       : fmt::format("{} ({} in line {})", s.name, config::shown(s.other.text), s.other.line));
  }
  if (!left_out.empty() && !names.empty())
    notices.push_back(fmt::format("columns that are not numbers are left out: {}", cut(config::join(left_out, ", "), 400)));
  return names;
}

DecimalMark TableSurvey::mark(const std::string& name, std::optional<DecimalMark> set, std::optional<DecimalMark> earlier,
                              std::vector<std::string>& notices) const {
  if (set) return *set;
  const ColumnSurvey& s = column(name);
  const FieldPlace& comma = s.comma.found() ? s.comma : s.open_comma;
  const FieldPlace& point = s.point.found() ? s.point : s.open_point;
  if (s.point.found() && s.comma.found())
    s.comma.reject(fmt::format("has a decimal comma, but {} in line {} has a decimal point; write all numbers of a column alike", config::shown(s.point.text),
                               s.point.line));
  if (s.point.found()) return DecimalMark::point;
  if (s.comma.found()) return DecimalMark::comma;
  if (!s.open_point.found() && !s.open_comma.found()) return earlier.value_or(DecimalMark::point);
  if (earlier) return *earlier;
  if (point.found() && comma.found())
    comma.reject(fmt::format("and {} in line {} do not show which mark is decimal; set decimal=point or decimal=comma", config::shown(point.text), point.line));
  // Other columns of the same tables show how numbers are written.
  const FieldPlace *points = nullptr, *commas = nullptr;
  for (const ColumnSurvey& other : columns_) {
    if (!other.mostly_numbers()) continue;
    if (other.point.found() && !points) points = &other.point;
    if (other.comma.found() && !commas) commas = &other.comma;
  }
  const FieldPlace& open = s.open_point.found() ? s.open_point : s.open_comma;
  if (!points != !commas) {
    const FieldPlace& shows = points ? *points : *commas;
    const DecimalMark mark = points ? DecimalMark::point : DecimalMark::comma;
    if ((mark == DecimalMark::point) != s.open_point.found())
      notices.push_back(fmt::format("{} is read as {}, since {} (line {}) has a decimal {}; decimal={} reads it as {}", open.at(), read_as(open, mark),
                                    config::shown(shows.text), shows.line, mark_word(mark), points ? "comma" : "point",
                                    read_as(open, points ? DecimalMark::comma : DecimalMark::point)));
    return mark;
  }
  if (s.open_point.found()) return DecimalMark::point;  // as programs write numbers unless told otherwise
  open.reject(fmt::format("may be {} or {}, and no other number shows which mark is decimal; set decimal=comma or decimal=point",
                          read_as(open, DecimalMark::comma), read_as(open, DecimalMark::point)));
}

std::optional<DateOrder> TableSurvey::order(const std::string& name, std::optional<DateOrder> set, std::optional<DateOrder> earlier) const {
  const ColumnSurvey& s = column(name);
  if (s.date.found() && s.number.found())
    (s.numbers < s.others ? s.number : s.date)
        .reject(fmt::format("is a {}, but {} in line {} is a {}; write all times of a column alike", s.numbers < s.others ? "number" : "date",
                            config::shown(s.numbers < s.others ? s.date.text : s.number.text), s.numbers < s.others ? s.date.line : s.number.line,
                            s.numbers < s.others ? "date" : "number"));
  if (s.zoned.found() && s.local.found())
    s.local.reject(fmt::format("has no time zone, but {} in line {} has one; write all times of a column alike", config::shown(s.zoned.text), s.zoned.line));
  const FieldPlace& against = set == DateOrder::day_first ? s.month_first : s.day_first;
  if (set && against.found()) against.reject(fmt::format("contradicts date_order={}", *set == DateOrder::day_first ? "dmy" : "mdy"));
  if (set) return set;
  if (s.day_first.found() && s.month_first.found())
    s.month_first.reject(
        fmt::format("has the month first, but {} in line {} the day; write dates as 2026-12-31", config::shown(s.day_first.text), s.day_first.line));
  if (s.day_first.found()) return DateOrder::day_first;
  if (s.month_first.found()) return DateOrder::month_first;
  if (earlier || !s.open_order.found()) return earlier;
  s.open_order.reject("may have the day or the month first, and no date of the column has a day above 12; set date_order=dmy or date_order=mdy");
}

}  // namespace ridge
