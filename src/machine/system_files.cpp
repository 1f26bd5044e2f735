#include "machine/system_files.h"

#include <algorithm>
#include <charconv>
#include <fstream>

namespace ridge {
namespace {

constexpr std::string_view kBlank = " \t\r\n";
constexpr int64_t kMaxCpus = 1 << 14;  // more than any kernel supports

}  // namespace

std::string read_system_file(const std::filesystem::path& path) {
  constexpr std::streamsize kMax = 1 << 20;
  std::string text;
  std::ifstream file(path, std::ios::binary);
  char part[4096];
  while (file && std::streamsize(text.size()) < kMax) {
    file.read(part, sizeof part);
    text.append(part, size_t(file.gcount()));
  }
  return text;
}

std::string_view take_word(std::string_view& text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(kBlank)));
  const std::string_view word = text.substr(0, text.find_first_of(kBlank));
  text.remove_prefix(word.size());
  return word;
}

std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

std::optional<int64_t> parse_number(std::string_view text) {
  const std::string_view word = take_word(text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || error != std::errc() || end != word.data() + word.size() || value < 0 || !take_word(text).empty()) return std::nullopt;
  return value;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  const std::string_view list = take_word(text);
  std::vector<int> cpus;
  for (size_t at = 0; at < list.size();) {
    const std::string_view range = list.substr(at, list.find(',', at) - at);
    at += range.size() + 1;
    const size_t dash = range.find('-');
    const auto first = parse_number(range.substr(0, dash)), last = dash == range.npos ? first : parse_number(range.substr(dash + 1));
    if (!first || !last || *first > *last || *last >= kMaxCpus) return {};
    for (int64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(int(cpu));
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string format_cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (size_t i = 0, j; i < cpus.size(); i = j) {
    for (j = i + 1; j < cpus.size() && cpus[j] == cpus[j - 1] + 1;) ++j;
    if (i) text += ',';
    text += std::to_string(cpus[i]);
    if (j - i > 1) text += '-' + std::to_string(cpus[j - 1]);
  }
  return text;
}

}  // namespace ridge
