#include "data/csv.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "base/utf8.h"
#include "config/words.h"

namespace ridge {
namespace {

constexpr size_t kCsvBuffer = size_t(1) << 18, kLongestField = size_t(1) << 16, kMostFields = 100'000;

// The separator that occurs most often in the first line, outside quotes. A | may also be part of names: it separates columns if it separates the second line's
// fields as well, or there is nothing else.
char find_separator(std::string_view text) {
  constexpr std::string_view kSeparators = "\t;,|";
  constexpr size_t kBar = kSeparators.size() - 1;
  int64_t counts[2][kSeparators.size()] = {};
  bool quoted = false;
  for (size_t i = 0, line = 0; i < text.size() && line < 2; ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (const size_t which = kSeparators.find(c); which != kSeparators.npos) ++counts[line][which];
    if (c == '\n' || c == '\r') line += i > 0 && text[i - 1] != '\n' && text[i - 1] != '\r';  // not after an empty line, nor between \r and \n
  }
  auto& first = counts[0];
  if (counts[1][kBar] == 0 && *std::max_element(first, first + kBar) > 0) first[kBar] = 0;
  const auto most = std::max_element(std::begin(first), std::end(first));
  return *most > 0 ? kSeparators[size_t(most - first)] : ',';
}

}  // namespace

CsvReader::CsvReader(const std::string& path) : path_(path), buffer_(kCsvBuffer) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) fail(ErrorCode::io, "[data] {} is a folder, not a table", path);
  file_.open(path, std::ios::binary);
  if (!file_) fail(ErrorCode::io, "[data] cannot read {}: {}", path, std::strerror(errno));
  if (peek() < 0) fail(ErrorCode::io, "[data] {} is empty; its first line names the columns", path);
  const std::string_view head(buffer_.data(), end_);
  if (head.starts_with("\xff\xfe") || head.starts_with("\xfe\xff"))
    fail(ErrorCode::io, "[data] {} is UTF-16; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)", path);
  for (const auto& [begin, what, remedy] : {std::tuple("PK\x03\x04", "an Excel workbook, or another zip file", "export its sheet as CSV (UTF-8)"),
                                            {"PAR1\x15", "a Parquet file", "write it as CSV"},
                                            {"\x1f\x8b", "compressed", "unpack it (gunzip)"}})
    if (head.starts_with(begin)) fail(ErrorCode::io, "[data] {} is {}; {}", path, what, remedy);
  if (head.starts_with("\xef\xbb\xbf")) at_ = 3;
  if (head.substr(0, 4096).find('\0') != head.npos)
    fail(ErrorCode::io, "[data] {} contains zero bytes: it is not a text, or it is UTF-16 without a byte-order mark; save it as UTF-8", path);
  separator_ = find_separator(head.substr(at_));
  if (!read_row()) fail(ErrorCode::io, "[data] {} has no line with column names", path);
  const bool numbers = std::all_of(row_.begin(), row_.begin() + int64_t(fields_), [&](const std::string& text) {
    const MarkShown shown = shown_mark(text);
    return shown != MarkShown::not_a_number && shown != MarkShown::missing;
  });
  for (size_t i = 0; i < fields_; ++i) {
    std::string name = numbers ? "" : std::string(config::trim(row_[i]));
    if (name.empty()) name = std::to_string(i + 1);  // without a header, columns are named 1, 2, …
    if (const auto same = std::find(names_.begin(), names_.end(), name); same != names_.end())
      broken(row_line_, fmt::format("columns {} and {} are both named {}; rename one", same - names_.begin() + 1, i + 1, config::shown(name)));
    names_.push_back(std::move(name));
  }
  read_ahead_ = headless_ = numbers;
}

size_t CsvReader::column(std::string_view name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found != names_.end()) return size_t(found - names_.begin());
  const std::vector<std::string_view> all(names_.begin(), names_.end());
  fail(ErrorCode::io, "[data] {} has no column {}; {}", path_, config::shown(name),
       nearest_hint(name, all, fmt::format("it has {}", cut(config::join(all, ", "), 200))));
}

bool CsvReader::next() {
  if (std::exchange(read_ahead_, false)) return true;
  if (!read_row()) return false;
  if (fields_ != names_.size())
    broken(row_line_, fmt::format("{}, but the first line has {} (the separator is {}){}", counted(int64_t(fields_), "field"), names_.size(),
                                  separator_ == '\t' ? std::string("a tab") : fmt::format("'{}'", separator_), likely_cause()));
  return true;
}

// Why a row has more fields than there are columns; empty: unknown.
std::string CsvReader::likely_cause() const {
  if (fields_ < names_.size()) return {};
  if (names_.size() == 1 || names_[0].starts_with('#')) return fmt::format("; the first line must name the columns, and is {}", config::shown(names_[0]));
  const auto whole = [](const std::string& text) { return shown_mark(text) == MarkShown::nothing; };
  if (separator_ != ',' || !std::all_of(row_.begin(), row_.begin() + int64_t(fields_), whole)) return {};
  return "; if these are numbers with a decimal comma, separate columns with ; or put the numbers in quotes";
}

std::optional<double> CsvReader::number(size_t column, DecimalMark mark) const {
  const TableNumber n = parse_number(row_[column], mark);
  if (n.valid) return n.missing ? std::nullopt : std::optional(n.value);
  if (shown_mark(row_[column]) == MarkShown::not_a_number) reject(column, "is not a number; leave it empty if it is missing");
  reject(column, fmt::format("is not a number with a decimal {}; correct it, or set decimal={}", mark == DecimalMark::comma ? "comma" : "point",
                             mark == DecimalMark::comma ? "point" : "comma"));
}

void CsvReader::reject(size_t column, const std::string& why) const {
  broken(row_line_, fmt::format("column {} ({}): {} {}", column + 1, names_[column], config::shown(row_[column]), why));
}

void CsvReader::broken(int64_t line, const std::string& why) const { fail(ErrorCode::io, "[data] {}:{}: {}", path_, line, why); }

int CsvReader::peek() {
  if (at_ == end_) {
    file_.read(buffer_.data(), std::streamsize(buffer_.size()));
    at_ = 0, end_ = size_t(file_.gcount());
    if (file_.bad()) fail(ErrorCode::io, "[data] reading {} failed in line {}: {}", path_, line_, std::strerror(errno));
    if (end_ == 0) return -1;
  }
  return static_cast<unsigned char>(buffer_[at_]);
}

int CsvReader::get() {
  const int c = peek();
  if (c >= 0) ++at_;
  return c;
}

// Skips empty lines, except between values of a single column. The strings of the last row are used again, so that a row allocates nothing.
bool CsvReader::read_row() {
  auto end_of_line = [&](int c) {
    if (c == '\r' && peek() == '\n') get();
    if (c == '\r' || c == '\n') ++line_;
    return c == '\r' || c == '\n' || c < 0;
  };
  int64_t empty = std::exchange(empty_rows_, 0);
  while (peek() == '\n' || peek() == '\r') end_of_line(get()), ++empty;
  if (peek() < 0) return false;
  if (names_.size() == 1 && empty > 0) {  // values of the only column are missing there
    empty_rows_ = empty - 1, row_line_ = line_ - empty, fields_ = 1;
    row_[0].clear();
    return true;
  }
  row_line_ = line_, fields_ = 0;
  for (bool more = true; more;) {
    if (fields_ == row_.size()) {
      if (fields_ >= kMostFields) broken(row_line_, fmt::format("more than {} fields; is this a table with , ; | or tab between them?", kMostFields));
      row_.emplace_back();
    }
    std::string& field = row_[fields_++];
    field.clear();
    int64_t quote = 0;  // the line in which it opens
    if (peek() == '"') quote = line_, get();
    for (;;) {
      const int c = get();
      if (c == 0) broken(line_, "a zero byte; the file is damaged or not a text");
      if (quote > 0) {
        if (c < 0) broken(quote, "a quoted field is not closed before the end of the file");
        if (c == '"' && peek() != '"') {
          const int after = get();
          if (after != separator_ && !end_of_line(after))
            broken(line_, fmt::format("field {}: text follows the closing quote; write \"\" for a quote within a field", fields_));
          more = after == separator_;
          break;
        }
        if (c == '"') get();
        if (c == '\n') ++line_;
      } else if (c == separator_ || end_of_line(c)) {
        more = c == separator_;
        break;
      }
      if (field.size() >= kLongestField)
        broken(quote > 0 ? quote : row_line_, fmt::format("field {} is longer than {}; is a quote not closed?", fields_, size_text(kLongestField)));
      field += char(c);
    }
    for (size_t at = 0; at < field.size();) {
      const CodePoint point = code_point_at(field, at);
      if (point.value == kNotUtf8) broken(row_line_, fmt::format("field {}: byte 0x{:02x} is not UTF-8; save the table as UTF-8", fields_, uint8_t(field[at])));
      at += point.bytes;
    }
  }
  return true;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace ridge
