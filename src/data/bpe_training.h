// Learning a byte-level vocabulary: the most frequent pair of neighbours becomes a token, again and again.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "data/bpe.h"

namespace ridge {

struct BpeTraining {
  int64_t vocab_size = 4096;  // bytes and end of text included; reached as far as the texts hold pairs for it
  int64_t least_count = 2;    // pairs that are rarer are not worth a token
  int threads = 1;            // count words; the result is the same for any number
  int64_t room = 0;           // bytes that words and pairs may take; 0: any number
};

// Of pairs that are equally frequent, the smallest (left, right) wins. Tokens are the bytes as 0 .. 255, then those that were learnt in
// their order, then the end of text, whose name in the texts separates documents. Texts need not be UTF-8, and may be mapped files.
BpeVocabulary train_bpe(std::span<const std::string_view> texts, const BpeTraining& how);

// The same from parts that are read when they are wanted, by several threads at once, each into a buffer of its own. None: it takes more than the room.
using ReadPart = std::function<std::string_view(size_t part, std::string& buffer)>;
std::optional<BpeVocabulary> train_bpe(size_t parts, const ReadPart& read, const BpeTraining& how);

}  // namespace ridge
