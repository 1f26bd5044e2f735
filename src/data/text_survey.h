// What a tokenizer must know about texts before it sees them.
#pragma once
#include <optional>
#include <vector>

#include "data/text_files.h"

namespace ridge {

struct TextSurvey {
  int64_t characters = 0;             // bytes that are not UTF-8 count as one each
  std::vector<char32_t> different;    // ascending
  std::optional<TextPlace> not_utf8;  // the first such byte
  uint8_t wrong_byte = 0;
  struct Piece {
    TextPlace place;
    int64_t characters = 0;  // before it
  };
  std::vector<Piece> pieces;
};

using TextProgress = std::function<void(double done)>;
TextSurvey survey_texts(const TextFiles& texts, const TextCut& cut, const TextProgress& progress = {});

// With the cut that the survey was made with: where character number `character` begins; the end of all texts for their number of characters.
TextPlace find_character(const TextFiles& texts, const TextCut& cut, const TextSurvey& survey, int64_t character);

}  // namespace ridge
