// Reads tables of text as programs really write them: separators , ; | and tab, quoted fields, any line ends, a byte-order mark.
#pragma once
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/table_values.h"

namespace ridge {

std::string csv_field(const std::string& text);  // as a field of a table: quoted if it has to be

class CsvReader {
 public:
  explicit CsvReader(const std::string& path);  // reads the header. ErrorCode::io: not readable, empty, or not such a table

  const std::vector<std::string>& names() const { return names_; }  // unique
  bool is_headless() const { return headless_; }                    // the first line is a row of numbers: columns are named 1, 2, …
  size_t column(std::string_view name) const;                       // ErrorCode::io lists the closest name
  bool next();                                                      // reads the next row; false: there is none
  const std::string& field(size_t column) const { return row_[column]; }
  std::optional<double> number(size_t column, DecimalMark mark = DecimalMark::point) const;  // empty: missing. ErrorCode::io: not a number
  [[noreturn]] void reject(size_t column, const std::string& why) const;                     // file, line, column, value
  int64_t line() const { return row_line_; }                                                 // where the row begins, from 1

 private:
  bool read_row();
  int get();
  int peek();
  std::string likely_cause() const;
  [[noreturn]] void broken(int64_t line, const std::string& why) const;

  std::string path_;
  std::ifstream file_;
  std::vector<char> buffer_;
  size_t at_ = 0, end_ = 0;
  char separator_ = ',';
  int64_t line_ = 1, row_line_ = 1;
  std::vector<std::string> names_, row_;
  size_t fields_ = 0;       // of the row
  int64_t empty_rows_ = 0;  // before the next one, in a table of one column
  bool headless_ = false;
  bool read_ahead_ = false;  // the first row is data, since it has only numbers
};

}  // namespace ridge
