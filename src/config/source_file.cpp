#include "config/source_file.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include <fmt/core.h>

#include "base/text.h"
#include "config/words.h"

namespace ridge::config {
namespace {

constexpr size_t kLargestFile = 1 << 20;

int line_at(std::string_view text, size_t index) { return 1 + int(std::count(text.begin(), text.begin() + int64_t(index), '\n')); }

FileContent refused(std::string what, int line = 0) { return {{}, {{line, std::move(what)}}}; }

std::string with_unix_line_ends(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    out += text[i] == '\r' ? '\n' : text[i];
  }
  return out;
}

}  // namespace

FileContent parse_text(std::string_view raw, bool ini) {
  if (raw.size() > kLargestFile) return refused(fmt::format("has {} bytes, more than the {} that a configuration file may have", raw.size(), kLargestFile));
  if (raw.starts_with("\xff\xfe") || raw.starts_with("\xfe\xff")) return refused("is UTF-16; save it as UTF-8");
  if (raw.starts_with("\xef\xbb\xbf")) raw.remove_prefix(3);
  const std::string text = with_unix_line_ends(raw);
  if (const size_t bad = first_non_utf8(text); bad != kAllUtf8)
    return refused(fmt::format("byte 0x{:02x} is not UTF-8; save the file as UTF-8", uint8_t(text[bad])), line_at(text, bad));
  auto control = std::find_if(text.begin(), text.end(), [](char c) { return (uint8_t(c) < 32 && c != '\n' && c != '\t') || c == 127; });
  if (control != text.end())
    return refused(fmt::format("contains the control character 0x{:02x}; is this a text file?", uint8_t(*control)),
                   line_at(text, size_t(control - text.begin())));
  return ini ? parse_ini(text) : parse_yaml(text);
}

FileContent read_file(const std::filesystem::path& path) {
  const std::string ending = lower_case(path.extension().string());
  const bool ini = ending == ".ini";
  if (!ini && ending != ".yaml" && ending != ".yml" && ending != ".json") return refused("is of unknown type; its name must end in .ini, .yaml, .yml or .json");
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return refused("does not exist");
  if (std::filesystem::is_directory(status)) return refused("is a folder");
  std::ifstream in(path, std::ios::binary);
  std::string text(kLargestFile + 1, '\0');
  in.read(text.data(), int64_t(text.size()));
  if (!in.is_open() || in.bad()) return refused("cannot be read; check its permissions");
  text.resize(size_t(in.gcount()));
  return parse_text(text, ini);
}

}  // namespace ridge::config
