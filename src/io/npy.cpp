#include "io/npy.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "io/atomic_file.h"

namespace ridge {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxNpyHeader = 1 << 16;  // eight dimensions need 200 bytes; no valid header is longer than this

struct NpyCode {
  std::string_view descr;
  DType dtype;
};
constexpr NpyCode kNpyCodes[] = {{"<f4", DType::f32}, {"<f2", DType::f16}, {"<f8", DType::f64},     {"<i4", DType::i32},
                                 {"<i8", DType::i64}, {"|u1", DType::u8},  {"|b1", DType::boolean}, {"<V2", DType::bf16}};
// Byte order is meaningless for single and raw bytes, so every spelling of it means the same type.
constexpr NpyCode kOtherCodes[] = {{"<u1", DType::u8}, {"<b1", DType::boolean}, {"|V2", DType::bf16}, {"?", DType::boolean}, {"bool", DType::boolean}};

DType dtype_of(std::string_view descr, const std::string& name) {
  for (const NpyCode& c : kNpyCodes)
    if (c.descr == descr) return c.dtype;
  for (const NpyCode& c : kOtherCodes)
    if (c.descr == descr) return c.dtype;
  const char* remedy = descr.starts_with('>')                      ? "big-endian: convert with a.astype(a.dtype.newbyteorder('<'))"
                       : descr.starts_with('[')                    ? "a structured array: save one field at a time"
                       : descr.find('O') != std::string_view::npos ? "Python objects are never loaded; save numbers"
                                                                   : "convert to one of f2 f4 f8 i4 i8 u1 b1 (little-endian) or bf16 as V2";
  fail(ErrorCode::dtype, "[npy] {}: element type '{}' cannot be read; {}", name, descr.substr(0, 40), remedy);
}

// The header is a Python dictionary with three known keys; no other Python syntax is accepted.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  struct Header {
    std::string descr;
    bool fortran = false;
    Shape shape;
  };

  Header parse() {
    std::optional<std::string> descr;
    std::optional<bool> fortran;
    std::optional<Shape> shape;
    expect('{');
    while (!accept('}')) {
      std::string key = quoted();
      expect(':');
      if (key == "descr" && !descr)
        descr = description();
      else if (key == "fortran_order" && !fortran)
        fortran = truth();
      else if (key == "shape" && !shape)
        shape = dimensions();
      else
        bad("key '" + key.substr(0, 40) + "' is unknown or given twice");
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) bad("text after the closing brace");
    if (!descr || !fortran || !shape) bad("one of descr, fortran_order and shape is missing");
    return {*descr, *fortran, *shape};
  }

 private:
  [[noreturn]] void bad(const std::string& what) {
    fail(ErrorCode::io, "[npy] {}: bad header at byte {}: {}; the file is damaged or not an array file", name_, at_, what);
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) bad(std::string("'") + c + "' is missing");
  }
  std::string quoted() {
    skip_space();
    char quote = at_ < text_.size() ? text_[at_] : 0;
    if (quote != '\'' && quote != '"') bad("a quoted string is missing");
    size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) bad("a quote is not closed");
    std::string word(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return word;
  }
  std::string description() {
    skip_space();
    // A list describes fields, which are unsupported; its text is kept only for the message.
    if (at_ < text_.size() && text_[at_] == '[') dtype_of(text_.substr(at_), name_);
    return quoted();
  }
  bool truth() {
    skip_space();
    for (bool value : {false, true}) {
      std::string_view word = value ? "True" : "False";
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return value;
      }
    }
    bad("True or False is missing");
  }
  Shape dimensions() {
    Shape shape;
    expect('(');
    for (bool comma = true; !accept(')');) {
      if (!comma) bad("a comma is missing");
      skip_space();
      int64_t dim = 0;
      const size_t start = at_;
      for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
        if (__builtin_mul_overflow(dim, 10, &dim) || __builtin_add_overflow(dim, text_[at_] - '0', &dim)) bad("a dimension does not fit into 63 bits");
      if (at_ == start) bad("a dimension is missing");
      if (shape.rank() == kMaxRank) fail(ErrorCode::shape, "[npy] {}: more than {} dimensions; reshape before saving", name_, kMaxRank);
      shape.push_back(dim);
      accept('L');  // Python 2's suffix for long integers
      comma = accept(',');
    }
    return shape;
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
};

// Fortran order is the C order of the reversed shape; writes the result in order, gathering from the source.
std::vector<std::byte> from_fortran(std::span<const std::byte> data, const Shape& shape, int64_t element) {
  std::vector<std::byte> out(data.size());
  const int rank = shape.rank();
  Shape stride = Shape::filled(rank, 0), index = Shape::filled(rank, 0);
  int64_t step = element;
  for (int a = 0; a < rank; ++a) stride[a] = step, step *= shape[a];
  int64_t from = 0;
  for (size_t to = 0; to < out.size(); to += size_t(element)) {
    std::memcpy(out.data() + to, data.data() + from, size_t(element));
    for (int a = rank - 1; a >= 0; --a) {
      from += stride[a];
      if (++index[a] < shape[a]) break;
      from -= stride[a] * shape[a];
      index[a] = 0;
    }
  }
  return out;
}

struct CloseFile {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

}  // namespace

NpyArray parse_npy(std::span<const std::byte> file, const std::string& name) {
  auto byte = [&](size_t i) { return size_t(std::to_integer<unsigned>(file[i])); };
  if (file.size() < 10 || std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0)
    fail(ErrorCode::io, "[npy] {}: {} bytes that do not start like an array file; save it with numpy.save", name, file.size());
  const size_t version = byte(6), minor = byte(7);
  if (version < 1 || version > 3 || minor != 0) fail(ErrorCode::io, "[npy] {}: version {}.{} is not supported; valid: 1.0, 2.0 and 3.0", name, version, minor);
  const size_t begin = version == 1 ? 10 : 12;
  if (file.size() < begin) fail(ErrorCode::io, "[npy] {}: the file ends inside its header", name);
  const size_t length = version == 1 ? byte(8) | byte(9) << 8 : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
  if (length > kMaxNpyHeader) fail(ErrorCode::io, "[npy] {}: a header of {} bytes; the limit is {}", name, length, kMaxNpyHeader);
  if (length > file.size() - begin)
    fail(ErrorCode::io, "[npy] {}: the header has {} bytes but only {} follow; the file is truncated, copy it again", name, length, file.size() - begin);

  HeaderParser::Header header = HeaderParser({reinterpret_cast<const char*>(file.data()) + begin, length}, name).parse();
  NpyArray array;
  array.dtype = dtype_of(header.descr, name);
  array.shape = header.shape;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(array.shape.numel(), size_of(array.dtype), &bytes))
    fail(ErrorCode::io, "[npy] {}: shape {} of {} is too large for any memory", name, to_string(array.shape), ridge::name(array.dtype));
  std::span<const std::byte> data = file.subspan(begin + length);
  if (int64_t(data.size()) != bytes)
    fail(ErrorCode::io, "[npy] {}: shape {} of {} needs {} bytes but {} follow the header; the file is {}", name, to_string(array.shape),
         ridge::name(array.dtype), bytes, data.size(), int64_t(data.size()) < bytes ? "truncated" : "longer than its array");
  if (header.fortran && array.shape.rank() > 1)
    array.data = from_fortran(data, array.shape, size_of(array.dtype));
  else
    array.data.assign(data.begin(), data.end());
  return array;
}

NpyArray read_npy(const std::string& path) {
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) fail(ErrorCode::io, "[npy] {}: {}", path, std::strerror(errno));
  std::vector<std::byte> bytes;
  for (size_t size = 1 << 16;; size *= 2) {
    const size_t have = bytes.size();
    bytes.resize(have + size);
    const size_t got = std::fread(bytes.data() + have, 1, size, file.get());
    bytes.resize(have + got);
    if (got < size) break;
  }
  if (std::ferror(file.get())) fail(ErrorCode::io, "[npy] {}: reading failed: {}", path, std::strerror(errno));
  return parse_npy(bytes, path);
}

std::vector<std::byte> format_npy(DType dtype, const Shape& shape, std::span<const std::byte> data) {
  const int64_t bytes = shape.numel() * size_of(dtype);
  if (int64_t(data.size()) != bytes)
    fail(ErrorCode::value, "[npy] {} bytes of data for shape {} of {}, which needs {}", data.size(), to_string(shape), name(dtype), bytes);
  std::string_view descr;
  for (const NpyCode& c : kNpyCodes)
    if (c.dtype == dtype) descr = c.descr;
  std::string dims;
  for (int64_t d : shape) dims += fmt::format("{},{}", d, shape.rank() == 1 ? "" : " ");
  if (shape.rank() > 1) dims.resize(dims.size() - 2);
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, dims);
  // The data begins at a multiple of 64, as in NumPy. Eight dimensions stay far below version 1's limit of 65,535.
  header.append((64 - (10 + header.size() + 1) % 64) % 64, ' ');
  header += '\n';
  std::string head(kMagic);
  head += {'\x01', '\x00', char(header.size() & 0xff), char(header.size() >> 8)};
  head += header;
  std::vector<std::byte> file(head.size() + data.size());
  std::memcpy(file.data(), head.data(), head.size());
  if (!data.empty()) std::memcpy(file.data() + head.size(), data.data(), data.size());
  return file;
}

void write_npy(const std::string& path, const NpyArray& array) {
  const std::vector<std::byte> bytes = format_npy(array.dtype, array.shape, array.data);
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace ridge
