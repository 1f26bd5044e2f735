#include "io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/nearest.h"
#include "io/mapped_file.h"

namespace ridge {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr size_t kLengthBytes = 8;
constexpr std::string_view kMetadata = "__metadata__";

// In the order in which data is written: widest first.
struct Code {
  std::string_view name;
  DType dtype;
};
constexpr Code kCodes[] = {{"I64", DType::i64}, {"F32", DType::f32}, {"I32", DType::i32},     {"BF16", DType::bf16},
                           {"F16", DType::f16}, {"U8", DType::u8},   {"BOOL", DType::boolean}};

int code_index(DType dtype) {
  for (size_t i = 0; i < std::size(kCodes); ++i)
    if (kCodes[i].dtype == dtype) return int(i);
  return -1;
}

// A name from a file, shortened to one line for messages.
std::string shown(std::string_view text) {
  constexpr size_t kMax = 80;
  const bool cut = text.size() > kMax;
  size_t length = std::min(text.size(), kMax);
  while (cut && length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;  // not inside a character
  std::string out;
  for (unsigned char c : text.substr(0, length)) out += c < 0x20 || c == 0x7f ? '?' : char(c);
  return cut ? out + "…" : out;
}

// Empty on overflow of 63 bits. An empty tensor's other dimensions must fit too, since strides are computed from them.
std::optional<int64_t> span_bytes(DType dtype, const Shape& shape) {
  int64_t bytes = size_of(dtype);
  bool empty = false;
  for (int64_t d : shape) {
    empty |= d == 0;
    if (d != 0 && __builtin_mul_overflow(bytes, d, &bytes)) return {};
  }
  return empty ? 0 : bytes;
}

struct Entry : SafetensorSpec {
  int64_t begin = 0, end = 0;  // offsets into the data, which follows the header
};

// Parses the header event by event: a tree would keep only the last of duplicate keys.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  std::vector<Entry> entries;
  SafetensorsMetadata metadata;

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("true or false"); }
  bool number_integer(int64_t) override { unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { unexpected("a number that is not a 64-bit integer"); }
  bool binary(Json::binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::shape && place_ != Place::offsets) unexpected("a number");
    if (value > uint64_t(std::numeric_limits<int64_t>::max())) bad(fmt::format("{} in {} does not fit into 63 bits", value, key_));
    if (place_ == Place::offsets) {
      if (offsets_ == 2) bad("data_offsets has more than two numbers");
      (offsets_++ == 0 ? entry_.begin : entry_.end) = int64_t(value);
    } else {
      if (entry_.shape.rank() == kMaxRank) bad(fmt::format("more than {} dimensions, which reshape can merge", kMaxRank));
      entry_.shape.push_back(int64_t(value));
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::metadata) {
      metadata[key_] = std::move(text);
    } else if (place_ == Place::tensor && key_ == "dtype") {
      entry_.dtype = dtype_of(text);
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::file: place_ = Place::root; break;
      case Place::root: place_ = key_ == kMetadata ? Place::metadata : Place::tensor; break;
      default: unexpected("an object");
    }
    if (place_ == Place::tensor) {
      entry_ = {};
      entry_.name = key_;
      offsets_ = 0;
      seen_.clear();
    }
    return true;
  }

  bool key(std::string& text) override {
    if (place_ == Place::root) {
      entry_.name.clear();
      if (!names_.insert(text).second) bad(fmt::format("the name '{}' appears twice", shown(text)));
    } else if (place_ == Place::metadata) {
      if (metadata.contains(text)) bad(fmt::format("the key '{}' of {} appears twice", shown(text), kMetadata));
    } else {
      if (text != "dtype" && text != "shape" && text != "data_offsets") bad(fmt::format("unknown key '{}'; valid: dtype, shape and data_offsets", shown(text)));
      if (!seen_.insert(text).second) bad(fmt::format("{} appears twice", text));
    }
    key_ = std::move(text);
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      for (const char* key : {"dtype", "shape", "data_offsets"})
        if (!seen_.contains(key)) bad(fmt::format("{} is missing", key));
      entries.push_back(std::move(entry_));
      entry_ = {};
    }
    place_ = place_ == Place::root ? Place::file : Place::root;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::tensor || key_ == "dtype") unexpected("a list");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2) bad(fmt::format("data_offsets has {} numbers, not two", offsets_));
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    fail(ErrorCode::io, "[safetensors] {}: the header is not valid JSON at byte {}; the file is damaged or not in this format", file_, at);
  }

 private:
  enum class Place { file, root, metadata, tensor, shape, offsets };

  [[noreturn]] void bad(const std::string& what) const {
    if (place_ == Place::root || place_ == Place::metadata || place_ == Place::file)
      fail(ErrorCode::io, "[safetensors] {}: bad header: {}; save the file again", file_, what);
    fail(ErrorCode::io, "[safetensors] {}: tensor '{}': {}; save the file again", file_, shown(entry_.name), what);
  }

  [[noreturn]] void unexpected(const char* what) const {
    switch (place_) {
      case Place::file: bad(fmt::format("{} where an object is expected", what));
      case Place::root: bad(fmt::format("'{}' is {}, not an object", shown(key_), what));
      case Place::metadata: bad(fmt::format("'{}' of {} is {}, not a string", shown(key_), kMetadata, what));
      case Place::tensor: bad(fmt::format("{} is {}, not {}", key_, what, key_ == "dtype" ? "a string" : "a list of numbers"));
      default: bad(fmt::format("{} in {}, where only integers of at least 0 are allowed", what, key_));
    }
  }

  DType dtype_of(std::string_view text) const {
    for (const Code& c : kCodes)
      if (c.name == text) return c.dtype;
    if (text == "F64") fail(ErrorCode::io, "[safetensors] {}: tensor '{}': F64 is not supported; convert it to F32 before saving", file_, shown(entry_.name));
    fail(ErrorCode::io, "[safetensors] {}: tensor '{}': type '{}' cannot be read; convert it to one of F32 F16 BF16 I32 I64 U8 BOOL", file_, shown(entry_.name),
         shown(text));
  }

  const std::string& file_;
  Place place_ = Place::file;
  std::string key_;  // the last one
  std::set<std::string> names_;
  Entry entry_;  // the tensor being read
  std::set<std::string> seen_;
  int offsets_ = 0;
};

// Each tensor's span must match its shape, and the spans must be contiguous from 0 to the end of the file.
void check_layout(std::vector<Entry>& entries, int64_t data_bytes, const std::string& file) {
  for (const Entry& e : entries) {
    const std::optional<int64_t> bytes = span_bytes(e.dtype, e.shape);
    if (!bytes)
      fail(ErrorCode::io, "[safetensors] {}: tensor '{}': shape {} of {} does not fit into 63 bits; the file is damaged", file, shown(e.name),
           to_string(e.shape), name(e.dtype));
    if (e.begin > e.end)
      fail(ErrorCode::io, "[safetensors] {}: tensor '{}': data_offsets [{}, {}] run backwards; the file is damaged", file, shown(e.name), e.begin, e.end);
    if (e.end - e.begin != *bytes)
      fail(ErrorCode::io, "[safetensors] {}: tensor '{}': shape {} of {} needs {} bytes but data_offsets [{}, {}] span {}; the file is damaged", file,
           shown(e.name), to_string(e.shape), name(e.dtype), *bytes, e.begin, e.end, e.end - e.begin);
    if (e.end > data_bytes)
      fail(ErrorCode::io, "[safetensors] {}: tensor '{}': ends at byte {} of the data but the file has only {}; it is truncated, copy it again", file,
           shown(e.name), e.end, data_bytes);
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name); });
  int64_t at = 0;
  const Entry* before = nullptr;
  for (const Entry& e : entries) {
    if (e.begin < at)
      fail(ErrorCode::io,
           "[safetensors] {}: tensors '{}' and '{}' overlap: the first ends at byte {} of the data, the second begins at {}; save the file again", file,
           shown(before->name), shown(e.name), at, e.begin);
    if (e.begin > at)
      fail(ErrorCode::io, "[safetensors] {}: a gap of {} bytes before tensor '{}', from byte {} of the data to {}; save the file again", file, e.begin - at,
           shown(e.name), at, e.begin);
    at = e.end;
    before = &e;
  }
  if (at != data_bytes)
    fail(ErrorCode::io, "[safetensors] {}: {} bytes after the last tensor, which ends at byte {} of the data; save the file again", file, data_bytes - at, at);
}

void check_header_size(size_t bytes) {
  if (bytes > kMaxHeader)
    fail(ErrorCode::value, "[safetensors] the header has {} bytes, the format allows {}; shorten the metadata or use several files", bytes, kMaxHeader);
}

std::string quoted(const std::string& text) {
  check_header_size(text.size() + 2);
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    fail(ErrorCode::value, "[safetensors] '{}' is not valid UTF-8; names and metadata must be", shown(text));
  }
}

std::vector<SafetensorSpec> in_order(std::vector<SafetensorSpec> tensors) {
  for (const SafetensorSpec& t : tensors) {
    if (code_index(t.dtype) < 0)
      fail(ErrorCode::dtype, "[safetensors] tensor '{}': {} cannot be written; convert it to f32 first", shown(t.name), name(t.dtype));
    if (t.name == kMetadata) fail(ErrorCode::value, "[safetensors] the name {} is reserved by the format; choose another", kMetadata);
    if (std::any_of(t.shape.begin(), t.shape.end(), [](int64_t d) { return d < 0; }))
      fail(ErrorCode::value, "[safetensors] tensor '{}': shape {} has a negative size", shown(t.name), to_string(t.shape));
  }
  std::sort(tensors.begin(), tensors.end(), [](const SafetensorSpec& a, const SafetensorSpec& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(tensors.begin(), tensors.end(), [](const SafetensorSpec& a, const SafetensorSpec& b) { return a.name == b.name; });
  if (twice != tensors.end()) fail(ErrorCode::value, "[safetensors] two tensors have the name '{}'; names must differ", shown(twice->name));
  std::stable_sort(tensors.begin(), tensors.end(), [](const SafetensorSpec& a, const SafetensorSpec& b) { return code_index(a.dtype) < code_index(b.dtype); });
  return tensors;
}

struct Head {
  std::string bytes;  // length and header
  int64_t data = 0;   // size of the data after it
};

Head format_head(std::span<const SafetensorSpec> order, const SafetensorsMetadata& metadata) {
  std::string json = "{";
  auto separate = [&] { json += json.back() == '{' ? "" : ","; };
  if (!metadata.empty()) {
    json += fmt::format("\"{}\":{{", kMetadata);
    for (const auto& [key, value] : metadata) separate(), json += quoted(key) + ":" + quoted(value);
    json += "}";
  }
  Head head;
  for (const SafetensorSpec& t : order) {
    const std::optional<int64_t> bytes = span_bytes(t.dtype, t.shape);
    const int64_t begin = head.data;
    if (!bytes || __builtin_add_overflow(head.data, *bytes, &head.data))
      fail(ErrorCode::value, "[safetensors] tensor '{}': with shape {} the file exceeds 63 bits", shown(t.name), to_string(t.shape));
    std::string dims;
    for (int64_t d : t.shape) dims += (dims.empty() ? "" : ",") + std::to_string(d);
    separate();
    json += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", quoted(t.name), kCodes[code_index(t.dtype)].name, dims, begin,
                        head.data);
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  check_header_size(json.size());
  for (size_t i = 0; i < kLengthBytes; ++i) head.bytes += char(json.size() >> (8 * i) & 0xff);
  head.bytes += json;
  return head;
}

}  // namespace

Safetensors parse_safetensors(std::span<const std::byte> file, const std::string& name) {
  if (file.size() < kLengthBytes + 2)
    fail(ErrorCode::io, "[safetensors] {}: {} bytes, too few for the format; the file is truncated or not in this format", name, file.size());
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  if (length > kMaxHeader)
    fail(ErrorCode::io, "[safetensors] {}: a header of {} bytes, the format allows {}; the file is damaged or not in this format", name, length, kMaxHeader);
  std::span<const std::byte> rest = file.subspan(kLengthBytes);
  if (length > rest.size())
    fail(ErrorCode::io, "[safetensors] {}: the header has {} bytes but only {} follow; the file is truncated, copy it again", name, length, rest.size());
  const std::string_view header(reinterpret_cast<const char*>(rest.data()), size_t(length));
  if (!header.starts_with('{'))
    fail(ErrorCode::io, "[safetensors] {}: the header of {} bytes does not begin with '{{'; the file is damaged or not in this format", name, length);
  // The JSON parser treats a zero byte as the end and would ignore what follows.
  if (const size_t zero = header.find('\0'); zero != std::string_view::npos)
    fail(ErrorCode::io, "[safetensors] {}: a zero at byte {} of the header; the file is damaged", name, zero);

  HeaderReader reader(name);
  Json::sax_parse(header.begin(), header.end(), &reader);
  const std::span<const std::byte> data = rest.subspan(size_t(length));
  check_layout(reader.entries, int64_t(data.size()), name);

  Safetensors result;
  result.metadata = std::move(reader.metadata);
  result.tensors.reserve(reader.entries.size());
  for (Entry& e : reader.entries) {
    const auto bytes = data.subspan(size_t(e.begin), size_t(e.end - e.begin));
    result.tensors.push_back({std::move(static_cast<SafetensorSpec&>(e)), bytes});
  }
  return result;
}

struct SafetensorsFile::Mapped {
  std::string path;
  MappedFile file;
  Safetensors content;
  std::map<std::string_view, const SafetensorView*> by_name;
};

SafetensorsFile::SafetensorsFile(const std::string& path) {
  auto mapped = std::make_shared<Mapped>(Mapped{path, MappedFile(path), {}, {}});
  mapped->content = parse_safetensors(mapped->file.bytes(), path);
  for (const SafetensorView& t : mapped->content.tensors) mapped->by_name.emplace(t.name, &t);
  mapped_ = std::move(mapped);
}

const std::vector<SafetensorView>& SafetensorsFile::tensors() const { return mapped_->content.tensors; }
const SafetensorsMetadata& SafetensorsFile::metadata() const { return mapped_->content.metadata; }

const SafetensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = mapped_->by_name.find(name);
  return found == mapped_->by_name.end() ? nullptr : found->second;
}

const SafetensorView& SafetensorsFile::at(std::string_view name) const {
  if (const SafetensorView* found = find(name)) return *found;
  std::vector<std::string_view> names;
  for (const auto& [known, tensor] : mapped_->by_name) names.push_back(known);
  fail(ErrorCode::io, "[safetensors] {}: no tensor '{}' among {}; {}", mapped_->path, shown(name), names.size(),
       names.empty() ? "the file is empty" : shown(nearest_hint(name, names)));
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorSpec> tensors, const SafetensorsMetadata& metadata,
                                     const FileOptions& options)
    : order_(in_order(std::move(tensors))), file_(path, options) {
  const Head head = format_head(order_, metadata);
  end_ = int64_t(head.bytes.size()) + head.data;
  file_.write(std::as_bytes(std::span(head.bytes)));
}

void SafetensorsWriter::write(std::span<const std::byte> piece) {
  if (int64_t(piece.size()) > end_ - file_.written())
    fail(ErrorCode::value, "[safetensors] {}: {} bytes given where {} are left; write each tensor of order() once", file_.path(), piece.size(),
         end_ - file_.written());
  file_.write(piece);
}

void SafetensorsWriter::commit() {
  if (file_.written() != end_)
    fail(ErrorCode::value, "[safetensors] {}: {} bytes are missing; write each tensor of order() once", file_.path(), end_ - file_.written());
  file_.commit();
}

void write_safetensors(const std::string& path, std::span<const SafetensorView> tensors, const SafetensorsMetadata& metadata, const FileOptions& options) {
  std::map<std::string_view, std::span<const std::byte>> data;
  for (const SafetensorView& t : tensors) {
    const std::optional<int64_t> bytes = span_bytes(t.dtype, t.shape);
    if (!bytes || *bytes != int64_t(t.data.size()))
      fail(ErrorCode::value, "[safetensors] tensor '{}': {} bytes given for shape {} of {}", shown(t.name), t.data.size(), to_string(t.shape), name(t.dtype));
    data.emplace(t.name, t.data);
  }
  SafetensorsWriter writer(path, {tensors.begin(), tensors.end()}, metadata, options);
  for (const SafetensorSpec& t : writer.order()) writer.write(data.at(t.name));
  writer.commit();
}

}  // namespace ridge
