// What a tokenizer needs to know about texts in advance.
#pragma once
#include <optional>
#include <vector>

#include "data/text_files.h"

namespace ridge {

struct TextSurvey {
  int64_t characters = 0;             // each invalid UTF-8 byte counts as one
  std::vector<char32_t> different;    // ascending
  std::optional<TextPlace> not_utf8;  // the first such byte
  uint8_t invalid_byte = 0;
  struct Piece {
    TextPlace place;
    int64_t characters = 0;  // before it
  };
  std::vector<Piece> pieces;
};

using TextProgress = std::function<void(double done)>;
TextSurvey survey_texts(const TextFiles& texts, const TextCut& cut, const TextProgress& progress = {});

// The position of character number `character`, using the survey's splitting rule; the end of all texts if it equals their number of characters.
TextPlace find_character(const TextFiles& texts, const TextCut& cut, const TextSurvey& survey, int64_t character);

}  // namespace ridge
