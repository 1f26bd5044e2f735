#include "backend/gpu/dialect.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace ridge::gpu {
namespace {

constexpr std::string_view kEntry = "entry(";

// Removes the part of `text` up to and including `end`; returns it without `end` and leading blanks.
std::string_view take_until(std::string_view& text, char end) {
  const size_t at = text.find(end);
  if (at == text.npos) fail(ErrorCode::internal, "[dialect] no '{}' after @entry(", end);
  std::string_view part = text.substr(0, at);
  text.remove_prefix(at + 1);
  while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
  return part;
}

}  // namespace

std::string KernelDialect::write(std::string_view text) const {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (size_t at; (at = text.find('@')) != text.npos;) {
    out += text.substr(0, at);
    text.remove_prefix(at + 1);
    size_t size = 0;
    while (size < text.size() && (std::isalnum(static_cast<unsigned char>(text[size])) || text[size] == '_')) ++size;
    const bool call = size < text.size() && text[size] == '(';
    const std::string_view name = text.substr(0, size + call);
    text.remove_prefix(name.size());
    if (name == kEntry) {
      const std::string_view threads = take_until(text, ';'), function = take_until(text, ';'), arguments = take_until(text, ')');
      out += entry(threads, function, arguments);
      continue;
    }
    const auto word = std::find_if(words.begin(), words.end(), [&](const Word& w) { return w.name == name; });
    if (word == words.end()) fail(ErrorCode::internal, "[dialect] @{} is not a word that this GPU's language has", name);
    out += word->text;
    if (word->text.empty() && text.starts_with(' ')) text.remove_prefix(1);
  }
  return out += text;
}

}  // namespace ridge::gpu
