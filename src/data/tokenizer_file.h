// The texts of tokenizer.json files.
#pragma once
#include <string>
#include <vector>

#include "data/bpe.h"

namespace ridge {

std::string bpe_json(const BpeVocabulary& vocabulary);
std::string characters_json(const std::vector<std::string>& characters);

}  // namespace ridge
