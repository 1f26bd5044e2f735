// Learns a byte-level vocabulary: the most frequent pair of neighbours repeatedly becomes a token.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "data/bpe.h"

namespace ridge {

struct BpeTraining {
  int64_t vocab_size = 4096;  // including bytes and end of text; smaller if the texts have too few pairs
  int64_t least_count = 2;    // rarer pairs are not worth a token
  int threads = 1;            // for counting words; the result does not depend on it
  int64_t room = 0;           // memory limit for words and pairs, in bytes; 0: none
};

// Of equally frequent pairs, the smallest (left, right) wins. Tokens are the bytes as 0 .. 255, then the learnt ones in order, then the end of text, whose name
// in the texts separates documents. Texts need not be UTF-8, and may be mapped files.
BpeVocabulary train_bpe(std::span<const std::string_view> texts, const BpeTraining& how);

// The same from parts that are read on demand, by several threads concurrently, each into its own buffer. Empty: the room is not enough.
using ReadPart = std::function<std::string_view(size_t part, std::string& buffer)>;
std::optional<BpeVocabulary> train_bpe(size_t parts, const ReadPart& read, const BpeTraining& how);

}  // namespace ridge
