#include "train/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "io/checksum.h"

namespace ridge {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "ridge checkpoint 1";
constexpr size_t kMaxName = 100, kMaxFiles = 1000, kDigits = 32;

bool is_letter_or_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool is_checksum(std::string_view text) {
  return text.size() == kDigits && std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// Empty: no number under this key.
std::optional<int64_t> number_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned() || found->get<uint64_t>() > uint64_t(INT64_MAX)) return {};
  return found->get<int64_t>();
}

// Empty if a field is missing or has the wrong type. Extra fields are detected when the text is compared.
std::optional<Manifest> read(const Json& document) {
  Manifest manifest;
  if (!document.is_object()) return {};
  const std::optional<int64_t> step = number_at(document, "step");
  const auto files = document.find("files");
  if (!step || files == document.end() || !files->is_object() || files->size() > kMaxFiles) return {};
  manifest.step = *step;
  for (const auto& [name, file] : files->items()) {
    if (!is_checkpoint_file_name(name) || !file.is_object()) return {};
    const std::optional<int64_t> bytes = number_at(file, "bytes");
    const auto sum = file.find("xxh3_128");
    if (!bytes || sum == file.end() || !sum->is_string() || !is_checksum(sum->get_ref<const std::string&>())) return {};
    manifest.files[name] = {*bytes, sum->get<std::string>()};
  }
  return manifest;
}

}  // namespace

bool is_checkpoint_file_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName && is_letter_or_digit(name[0]) && name != "manifest.json" &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-'; });
}

std::string format_manifest(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files) files[name] = {{"bytes", file.bytes}, {"xxh3_128", file.checksum}};
  Json document = {{"format", kFormat}, {"step", manifest.step}, {"files", std::move(files)}};
  const std::string own = checksum_of(document.dump());
  document["checksum"] = own;
  return document.dump(2) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& name) {
  if (text.size() > kMaxManifestBytes)
    fail(ErrorCode::io, "[checkpoint] {}: {} bytes, more than {}; the file is damaged", name, text.size(), kMaxManifestBytes);
  const Json document = Json::parse(text, nullptr, false);
  const std::optional<Manifest> manifest = read(document);
  if (!manifest || format_manifest(*manifest) != text)
    fail(ErrorCode::io, "[checkpoint] {}: is not as Ridge wrote it; the file is damaged or not a manifest", name);
  return *manifest;
}

}  // namespace ridge
