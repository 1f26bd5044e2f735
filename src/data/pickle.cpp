#include "data/pickle.h"

#include <charconv>
#include <cstring>
#include <unordered_map>

#include "base/error.h"
#include "base/utf8.h"

namespace ridge {
namespace {

constexpr size_t kMaxValues = 1 << 22;

class Reader {
 public:
  Reader(std::span<const std::byte> file, const std::string& name) : file_(file), name_(name) {}

  Pickle read() {
    while (!done_) step(take_byte());
    return std::move(out_);
  }

 private:
  using Kind = PickleValue::Kind;
  static constexpr uint32_t kMark = 0xffffffff;

  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorCode::io, "[data] {}: {} at byte {} of {}; Ridge reads plain dictionaries of strings and whole numbers", name_, what, op_at_, file_.size());
  }

  std::span<const std::byte> take(uint64_t bytes) {
    if (bytes > file_.size() - at_) refuse("it is truncated");
    const auto taken = file_.subspan(at_, size_t(bytes));
    at_ += size_t(bytes);
    return taken;
  }
  uint8_t take_byte() {
    op_at_ = at_;
    return uint8_t(take(1)[0]);
  }
  template <class T>
  T take_number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string take_text(uint64_t bytes) {
    const auto raw = take(bytes);
    std::string text(reinterpret_cast<const char*>(raw.data()), raw.size());
    for (size_t i = 0; i < text.size();) {
      const CodePoint point = code_point_at(text, i);
      if (point.value == kNotUtf8) refuse("a string that is not UTF-8");
      i += point.bytes;
    }
    return text;
  }
  std::string_view take_line() {
    const auto* const begin = reinterpret_cast<const char*>(file_.data()) + at_;
    const std::string_view rest(begin, file_.size() - at_);
    const size_t end = rest.find('\n');
    if (end == rest.npos) refuse("it is truncated");
    at_ += end + 1;
    return rest.substr(0, end);
  }
  int64_t whole_of(std::string_view digits) const {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) refuse("an invalid number");
    return value;
  }
  // Little-endian, two's complement, in as few bytes as possible.
  int64_t take_long(uint32_t bytes) {
    if (bytes > 8) refuse(fmt::format("a number of {} bytes", bytes));
    uint64_t value = 0;
    const auto raw = take(bytes);
    for (uint32_t i = 0; i < bytes; ++i) value |= uint64_t(uint8_t(raw[i])) << 8 * i;
    const bool negative = bytes > 0 && (uint8_t(raw[bytes - 1]) & 0x80);
    if (negative && bytes < 8) value |= ~uint64_t(0) << 8 * bytes;
    return int64_t(value);
  }
  // \uXXXX and \UXXXXXXXX; every other byte is the Latin-1 character of that code.
  std::string unescaped(std::string_view raw) const {
    std::string out;
    for (size_t i = 0; i < raw.size();) {
      const size_t digits = raw[i] != '\\' || i + 1 == raw.size() ? 0 : raw[i + 1] == 'u' ? 4 : raw[i + 1] == 'U' ? 8 : 0;
      if (digits == 0) {
        append_utf8(out, uint8_t(raw[i++]));
        continue;
      }
      uint32_t value = 0;
      const std::string_view hex = raw.substr(i + 2, digits);
      const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
      if (hex.size() != digits || error != std::errc() || end != hex.data() + hex.size() || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
        refuse("an invalid escape in a string");
      append_utf8(out, value);
      i += 2 + digits;
    }
    return out;
  }

  void push(PickleValue value) {
    if (out_.values.size() >= kMaxValues) refuse("too many values");
    out_.values.push_back(std::move(value));
    push_known(uint32_t(out_.values.size() - 1));
  }
  void push_known(uint32_t value) {
    if (stack_.size() >= kMaxValues) refuse("too many values");
    stack_.push_back(value);
  }
  void push_whole(int64_t value) { push({Kind::whole, value, {}, {}}); }
  void push_text(std::string text) { push({Kind::text, 0, std::move(text), {}}); }

  uint32_t top() const {
    if (stack_.empty() || stack_.back() == kMark) refuse("a value is missing");
    return stack_.back();
  }
  void remember(uint64_t as) {
    if (memo_.size() >= kMaxValues) refuse("too many values");
    memo_[as] = top();
  }
  void recall(uint64_t what) {
    const auto found = memo_.find(what);
    if (found == memo_.end()) refuse("a value that was not memoized");
    push_known(found->second);
  }

  // The values above the last mark; removes the mark too.
  std::vector<uint32_t> take_to_mark() {
    size_t at = stack_.size();
    while (at > 0 && stack_[at - 1] != kMark) --at;
    if (at == 0) refuse("a mark is missing");
    std::vector<uint32_t> taken(stack_.begin() + std::ptrdiff_t(at), stack_.end());
    stack_.resize(at - 1);
    return taken;
  }
  void set_items(const std::vector<uint32_t>& items) {
    PickleValue& dictionary = out_.values[top()];
    if (dictionary.kind != Kind::dictionary || items.size() % 2 != 0) refuse("items outside a dictionary");
    item_count_ += items.size() / 2;
    if (item_count_ > kMaxValues) refuse("too many values");
    for (size_t i = 0; i < items.size(); i += 2) {
      if (out_.values[items[i]].kind == Kind::dictionary) refuse("a dictionary as a key");
      dictionary.items.emplace_back(items[i], items[i + 1]);
    }
  }
  void set_one() {
    const uint32_t value = top();
    stack_.pop_back();
    const uint32_t key = top();
    stack_.pop_back();
    set_items({key, value});
  }
  void stop() {
    out_.top = top();
    if (stack_.size() != 1) refuse("more than one value");
    if (at_ != file_.size()) refuse("more bytes after the end");
    done_ = true;
  }

  void step(uint8_t op) {
    switch (op) {
      case 0x80:  // PROTO
        if (const uint8_t protocol = uint8_t(take(1)[0]); protocol > 5) refuse(fmt::format("protocol {}", protocol));
        return;
      case 0x95: take(8); return;  // FRAME: how much to read at a time
      case '(': return push_known(kMark);
      case '}': return push({Kind::dictionary, 0, {}, {}});  // EMPTY_DICT
      case 'd': {                                            // DICT
        const std::vector<uint32_t> items = take_to_mark();
        push({Kind::dictionary, 0, {}, {}});
        return set_items(items);
      }
      case 's': return set_one();                  // SETITEM
      case 'u': return set_items(take_to_mark());  // SETITEMS
      case 'K': return push_whole(take_number<uint8_t>());
      case 'M': return push_whole(take_number<uint16_t>());
      case 'J': return push_whole(take_number<int32_t>());
      case 'I': {  // INT, which also encodes booleans
        const std::string_view line = take_line();
        if (line == "00" || line == "01") refuse("a boolean");
        return push_whole(whole_of(line));
      }
      case 'L': {  // LONG
        std::string_view line = take_line();
        if (line.ends_with('L')) line.remove_suffix(1);
        return push_whole(whole_of(line));
      }
      case 0x8a: return push_whole(take_long(take_number<uint8_t>()));   // LONG1
      case 0x8b: return push_whole(take_long(take_number<uint32_t>()));  // LONG4
      case 'V': return push_text(unescaped(take_line()));                // UNICODE
      case 'X': return push_text(take_text(take_number<uint32_t>()));    // BINUNICODE
      case 0x8c: return push_text(take_text(take_number<uint8_t>()));    // SHORT_BINUNICODE
      case 0x8d: return push_text(take_text(take_number<uint64_t>()));   // BINUNICODE8
      case 0x94: return remember(memo_.size());                          // MEMOIZE
      case 'p': return remember(uint64_t(whole_of(take_line())));        // PUT
      case 'q': return remember(take_number<uint8_t>());                 // BINPUT
      case 'r': return remember(take_number<uint32_t>());                // LONG_BINPUT
      case 'g': return recall(uint64_t(whole_of(take_line())));          // GET
      case 'h': return recall(take_number<uint8_t>());                   // BINGET
      case 'j': return recall(take_number<uint32_t>());                  // LONG_BINGET
      case '.': return stop();
      default: refuse(fmt::format("the instruction 0x{:02x}", op));
    }
  }

  std::span<const std::byte> file_;
  const std::string& name_;
  size_t at_ = 0, op_at_ = 0, item_count_ = 0;
  bool done_ = false;
  Pickle out_;
  std::vector<uint32_t> stack_;
  std::unordered_map<uint64_t, uint32_t> memo_;
};

}  // namespace

const PickleValue* Pickle::find(const PickleValue& dictionary, std::string_view key) const {
  const PickleValue* found = nullptr;  // if a key was set twice, the last one counts
  for (const auto& [k, v] : dictionary.items)
    if (values[k].kind == PickleValue::Kind::text && values[k].text == key) found = &values[v];
  return found;
}

Pickle parse_pickle(std::span<const std::byte> file, const std::string& name) { return Reader(file, name).read(); }

}  // namespace ridge
