#include "data/text_files.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>

#include "base/error.h"
#include "data/pre_tokenize.h"
#include "machine/limits.h"

namespace ridge {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSampleBytes = 4096;

bool contains_zero_bytes(const std::string& path) {
  char head[kSampleBytes];
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::io, "[data] {}: cannot be opened: {}; check its permissions", path, std::strerror(errno));
  file.read(head, sizeof head);
  return std::find(head, head + file.gcount(), '\0') != head + file.gcount();
}

bool hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

// Run folders in a folder of texts are not texts. Not all runs have checkpoints, and not all have a settings file.
bool is_run(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "metrics.jsonl", ignored) && (fs::is_directory(folder / "checkpoints", ignored) || fs::exists(folder / "config.yaml", ignored));
}

// Neither are the settings and results of several runs, once the first of them exists.
bool is_experiment(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "final_info.json", error)) return true;
  if (!fs::exists(folder / "config.yaml", error)) return false;
  constexpr int kDeepest = 1;  // DATA/SEED
  fs::recursive_directory_iterator at(folder, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    if (is_run(at->path())) return true;
    if (at.depth() == kDeepest) at.disable_recursion_pending();
  }
  return false;
}

std::vector<std::string> files_below(const fs::path& folder, int64_t& runs) {
  std::vector<std::string> out;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    std::error_code ignored;  // ignores broken links
    if (hidden(at->path()))
      at.disable_recursion_pending();
    else if (at->is_directory(ignored) && (is_run(at->path()) || is_experiment(at->path())))
      at.disable_recursion_pending(), ++runs;
    else if (at->is_regular_file(ignored))
      out.push_back(at->path().string());
  }
  if (error) fail(ErrorCode::io, "[data] {}: cannot be listed: {}; check the permissions of all folders in it", folder.string(), error.message());
  std::sort(out.begin(), out.end());
  return out;
}

// Position before the last character, which may be incomplete.
size_t character_border(std::string_view text) {
  for (size_t at = text.size(); at-- > text.size() - std::min<size_t>(text.size(), 4);)
    if ((uint8_t(text[at]) & 0xc0) != 0x80 && at > 0) return at;
  return text.size();
}

}  // namespace

TextFiles find_texts(const std::string& source) {
  std::error_code error;
  const fs::file_status status = fs::status(source, error);
  if (status.type() == fs::file_type::not_found)
    fail(ErrorCode::io, "[data] {}: there is no such file or folder; check the path, or train on data=builtin", source);
  if (error) fail(ErrorCode::io, "[data] {}: {}; check its permissions", source, error.message());
  if (!fs::is_directory(status) && !fs::is_regular_file(status)) fail(ErrorCode::io, "[data] {}: is not a regular file; name a text file or a folder", source);

  TextFiles out;
  const bool folder = fs::is_directory(status);
  if (folder && is_run(source)) fail(ErrorCode::io, "[data] {}: is a run, not a text; init_from={} starts from its weights", source, source);
  if (folder && fs::exists(fs::path(source) / "final_info.json", error))
    fail(ErrorCode::io, "[data] {}: is an experiment, not a text; init_from=RUN starts from the weights of one of its runs", source);
  for (const std::string& path : folder ? files_below(source, out.runs) : std::vector{source}) {
    const int64_t bytes = int64_t(fs::file_size(path, error));
    if (error) fail(ErrorCode::io, "[data] {}: {}; check its permissions", path, error.message());
    if (bytes == 0) continue;
    if (folder && contains_zero_bytes(path)) {
      out.skipped.push_back(path);
      continue;
    }
    out.files.push_back({path, bytes, out.bytes});
    out.bytes += bytes;
  }
  if (!out.files.empty()) return out;
  if (!folder) fail(ErrorCode::io, "[data] {}: the file is empty; name a text to train on", source);
  fail(ErrorCode::io, "[data] {}: no text files in this folder{}; name one with texts, train.bin and val.bin, or shards of tokens", source,
       out.skipped.empty() ? "" : fmt::format(", and {} with zero bytes, which texts do not have", out.skipped.size()));
}

std::string how_to_convert(const std::string& path) {
  struct Kind {
    std::string_view first, remedy;
  };
  using namespace std::string_view_literals;
  constexpr Kind kinds[] = {{"\x1f\x8b"sv, "it is compressed: unpack it with gunzip"},
                            {"\x28\xb5\x2f\xfd"sv, "it is compressed: unpack it with unzstd"},
                            {"\xfd\x37\x7a\x58"sv, "it is compressed: unpack it with unxz"},
                            {"PK\x03\x04"sv, "it is compressed: unpack it with unzip"},
                            {"\xff\xfe"sv, "it is UTF-16: convert it with iconv -f UTF-16 -t UTF-8"},
                            {"\xfe\xff"sv, "it is UTF-16: convert it with iconv -f UTF-16 -t UTF-8"}};
  std::string first(4, '\0');
  std::ifstream(path, std::ios::binary).read(first.data(), std::streamsize(first.size()));
  for (const Kind& kind : kinds)
    if (first.starts_with(kind.first)) return std::string(kind.remedy);
  return "convert the file";
}

int64_t bytes_before(const TextFiles& texts, TextPlace place) {
  return place.file < texts.files.size() ? texts.files[place.file].before + place.offset : texts.bytes;
}

int64_t PieceReader::end_of_file() const { return at_.file == to_.file ? to_.offset : texts_.files[at_.file].bytes; }

void PieceReader::fill(std::string& text) {
  const TextFile& source = texts_.files[at_.file];
  if (!file_.is_open()) {
    file_.open(source.path, std::ios::binary);
    file_.seekg(at_.offset);
    if (!file_) fail(ErrorCode::io, "[data] {}: cannot be opened: {}; check its permissions", source.path, std::strerror(errno));
  }
  text.swap(rest_);
  rest_.clear();
  const size_t have = text.size();
  text.resize(std::min(most_, size_t(end_of_file() - at_.offset)));
  file_.read(text.data() + have, std::streamsize(text.size() - have));
  if (size_t(file_.gcount()) != text.size() - have)
    fail(ErrorCode::io, "[data] {}: ends at byte {} of {}; it was changed while it was read: try again", source.path,
         at_.offset + int64_t(have) + int64_t(file_.gcount()), source.bytes);
}

// For a text that continues after its end, so that the last character and the last special token may be incomplete.
size_t PieceReader::piece_end(std::string_view text) const {
  constexpr size_t kLongestCharacter = 4;
  if (cut_.version == 1) {
    const size_t end = first_ascii_word_end(text, most_ / 2);
    return end < text.size() ? end : character_border(text);
  }
  const size_t end = cut_between_words(text, most_ / 2, cut_.special)[0].size();
  return end + std::max(kLongestCharacter, cut_.special.longest()) <= text.size() ? end : character_border(text);
}

bool PieceReader::next(TextPiece& piece) {
  while (at_.file < texts_.files.size() && (at_.file < to_.file || (at_.file == to_.file && at_.offset < to_.offset))) {
    if (at_.offset < end_of_file()) {
      fill(piece.text);
      if (at_.offset + int64_t(piece.text.size()) < end_of_file()) {
        const size_t end = piece_end(piece.text);
        rest_ = piece.text.substr(end);
        piece.text.resize(end);
      }
      piece.place = at_;
      at_.offset += int64_t(piece.text.size());
      piece.between_documents = at_.offset == texts_.files[at_.file].bytes && at_.file + 1 < texts_.files.size();
      return true;
    }
    if (at_.file == to_.file) return false;
    at_ = {at_.file + 1, 0};
    file_.close();
    file_.clear();
  }
  return false;
}

int worker_threads() {
  constexpr int kMax = 16;  // more would only wait for the disk
  static const int threads = std::clamp(read_limits().threads(), 1, kMax);
  return threads;
}

void on_threads(size_t n, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::vector<std::exception_ptr> errors(n);
  const auto run = [&] {
    for (size_t i; (i = next++) < n;) try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
  };
  {
    std::vector<std::future<void>> others;  // joined at the end of the block
    for (size_t i = 1; i < std::min(n, size_t(worker_threads())); ++i) others.push_back(std::async(std::launch::async, run));
    run();
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace ridge
