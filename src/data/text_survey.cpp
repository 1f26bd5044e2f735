#include "data/text_survey.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/utf8.h"

namespace ridge {
namespace {

constexpr size_t kCodePoints = 0x110000;

struct PieceSurvey {
  int64_t characters = 0;
  std::optional<size_t> not_utf8;
  std::array<bool, 128> ascii = {};
  std::vector<uint64_t> others;  // one bit per code point; empty: only ASCII
};

PieceSurvey survey(const TextPiece& piece) {
  PieceSurvey out;
  for (size_t at = 0; at < piece.text.size(); ++out.characters) {
    const CodePoint point = code_point_at(piece.text, at);
    if (point.value < 128) {
      out.ascii[point.value] = true;
    } else if (point.value == kNotUtf8) {
      if (!out.not_utf8) out.not_utf8 = at;
    } else {
      if (out.others.empty()) out.others.resize(kCodePoints / 64);
      out.others[point.value / 64] |= uint64_t(1) << (point.value % 64);
    }
    at += point.bytes;
  }
  return out;
}

}  // namespace

TextSurvey survey_texts(const TextFiles& texts, const TextCut& cut, const TextProgress& progress) {
  TextSurvey out;
  std::vector<bool> seen(kCodePoints);
  int64_t bytes = 0;
  for_pieces(PieceReader(texts, cut), survey, [&](const TextPiece& piece, const PieceSurvey& found) {
    if (found.not_utf8 && !out.not_utf8) {
      out.not_utf8 = {piece.place.file, piece.place.offset + int64_t(*found.not_utf8)};
      out.invalid_byte = uint8_t(piece.text[*found.not_utf8]);
    }
    for (size_t c = 0; c < found.ascii.size(); ++c)
      if (found.ascii[c]) seen[c] = true;
    for (size_t i = 0; i < found.others.size(); ++i)
      for (uint64_t bits = found.others[i]; bits; bits &= bits - 1) seen[i * 64 + size_t(std::countr_zero(bits))] = true;
    out.pieces.push_back({piece.place, out.characters});
    out.characters += found.characters;
    bytes += int64_t(piece.text.size());
    if (progress) progress(double(bytes) / double(texts.bytes));
  });
  for (char32_t value = 0; value < kCodePoints; ++value)
    if (seen[value]) out.different.push_back(value);
  return out;
}

TextPlace find_character(const TextFiles& texts, const TextCut& cut, const TextSurvey& survey, int64_t character) {
  const TextPlace end = {texts.files.size(), 0};
  if (character >= survey.characters) return end;
  const auto after = std::upper_bound(survey.pieces.begin(), survey.pieces.end(), character, [](int64_t c, const auto& piece) { return c < piece.characters; });
  const TextSurvey::Piece& found = *std::prev(after);
  TextPiece piece;
  PieceReader(texts, cut, found.place, end).next(piece);
  size_t at = 0;
  for (int64_t c = found.characters; c < character; ++c) at += code_point_at(piece.text, at).bytes;
  return {found.place.file, found.place.offset + int64_t(at)};
}

}  // namespace ridge
