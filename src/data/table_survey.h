// A first look at all rows of some tables: which columns are numbers, how these are written, and where that is in doubt.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/table_values.h"

namespace ridge {

// A field, for messages.
struct FieldPlace {
  std::string file, name, text;
  int64_t line = 0;
  size_t column = 0;  // from 0
  bool found() const { return line > 0; }
  std::string at() const;                                  // "t.csv:17: column 3 (temp): 'warm'"
  [[noreturn]] void reject(const std::string& why) const;  // ErrorCode::io
};

// The first field of each kind. Columns of several files with one name are one column.
struct ColumnSurvey {
  std::string name;
  int64_t numbers = 0, others = 0;                      // missing values are neither
  FieldPlace number, other;                             // other: not a number
  FieldPlace point, comma, open_point, open_comma;      // see MarkShown
  FieldPlace date, day_first, month_first, open_order;  // see TableTime; only of columns that are surveyed as times
  FieldPlace zoned, local;
  TimeFormat format;
  bool mostly_numbers() const { return numbers > others; }
};

class TableSurvey {
 public:
  // `used`: the columns that matter; empty: all. `times`: one that may have dates; empty: none.
  TableSurvey(const std::vector<std::string>& files, const std::vector<std::string>& used, const std::string& times);

  const ColumnSurvey& column(const std::string& name) const;
  // All columns of numbers except `reserved`. Reports in `notices` which others there are. ErrorCode::io: a column of numbers has a value that is not one.
  std::vector<std::string> numbers(const std::vector<std::string>& reserved, std::vector<std::string>& notices) const;
  // `set`: by the user. `earlier`: of the data that a model was trained on. ErrorCode::io: the column contradicts itself, or nothing decides.
  DecimalMark mark(const std::string& name, std::optional<DecimalMark> set, std::optional<DecimalMark> earlier, std::vector<std::string>& notices) const;
  std::optional<DateOrder> order(const std::string& name, std::optional<DateOrder> set, std::optional<DateOrder> earlier) const;

  int64_t rows() const { return rows_; }
  const std::vector<ColumnSurvey>& columns() const { return columns_; }  // those that matter, of all tables
  const std::string& headless() const { return headless_; }              // the first table without a line of column names; empty: none

 private:
  std::vector<ColumnSurvey> columns_;
  int64_t rows_ = 0;
  std::string headless_;
};

}  // namespace ridge
