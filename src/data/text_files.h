// Reads text files of any size in order, in pieces that can be tokenised separately.
#pragma once
#include <cstdint>
#include <exception>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/special_tokens.h"

namespace ridge {

struct TextFile {
  std::string path;
  int64_t bytes = 0;
  int64_t before = 0;  // total bytes of the preceding files
};

struct TextFiles {
  std::vector<TextFile> files;  // in the order of their paths, none empty
  int64_t bytes = 0;
  std::vector<std::string> skipped;  // files in a folder that are not text: they contain zero bytes
  int64_t runs = 0;                  // run folders in it, skipped too
};

// A file, or all files below a folder except hidden ones and run folders. ErrorCode::io: does not exist, or is empty.
TextFiles find_texts(const std::string& source);

struct TextPlace {
  size_t file = 0;
  int64_t offset = 0;  // in bytes
};

// What to do with a file that is not UTF-8, judged by its first bytes: unpack it, or convert it from UTF-16.
std::string how_to_convert(const std::string& path);

int64_t bytes_before(const TextFiles& texts, TextPlace place);

struct TextPiece {
  TextPlace place;
  std::string text;
  bool between_documents = false;  // another file follows
};

struct TextCut {
  int version = kTextCut;
  SpecialTokens special = SpecialTokens();  // that no boundary splits, from version 2 on
};

// Boundaries are between words, or between characters if no word ends for long. They depend on the text, on where reading begins, and on the rule.
class PieceReader {
 public:
  static constexpr size_t kPiece = size_t(1) << 19;
  PieceReader(const TextFiles& texts, const TextCut& cut, TextPlace from, TextPlace to, size_t most = kPiece)
      : texts_(texts), cut_(cut), at_(from), to_(to), most_(most) {}
  PieceReader(const TextFiles& texts, const TextCut& cut) : PieceReader(texts, cut, {}, {texts.files.size(), 0}) {}

  bool next(TextPiece& piece);  // false: no more pieces. ErrorCode::io: reading failed

 private:
  int64_t end_of_file() const;
  void fill(std::string& text);
  size_t piece_end(std::string_view text) const;

  const TextFiles& texts_;
  const TextCut& cut_;
  TextPlace at_, to_;
  size_t most_;
  std::ifstream file_;
  std::string rest_;  // already read, for the next piece
};

int worker_threads();  // as many as the machine can run at a time, capped to bound memory

// Runs work(0) … work(n - 1) on several threads. If several throw, the error of the lowest index is rethrown.
void on_threads(size_t n, const std::function<void(size_t)>& work);

// Runs work(piece) on several threads and take(piece, its result) here, in order. Only a few pieces are in memory at a time.
template <class Work, class Take>
void for_pieces(PieceReader reader, const Work& work, const Take& take) {
  const size_t at_once = size_t(2 * worker_threads());
  std::vector<TextPiece> pieces(at_once);
  std::vector<decltype(work(pieces[0]))> results(at_once);
  for (bool more = true; more;) {
    size_t n = 0;
    while (n < at_once && (more = reader.next(pieces[n]))) ++n;
    on_threads(n, [&](size_t i) { results[i] = work(pieces[i]); });
    for (size_t i = 0; i < n; ++i) take(pieces[i], results[i]);
  }
}

}  // namespace ridge
