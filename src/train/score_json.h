// A score as JSON: {"name": "accuracy", "unit": "", "higher_is_better": true}.
#pragma once
#include <nlohmann/json.hpp>

#include "ridge/score.h"

namespace ridge {

inline nlohmann::ordered_json to_json(const Score& s) { return {{"name", s.name}, {"unit", s.unit}, {"higher_is_better", s.higher_is_better}}; }

// Throws nlohmann::json's exceptions if an entry is missing.
template <class Document>
Score score_from(const Document& j) {
  return {j.at("name").template get<std::string>(), j.at("unit").template get<std::string>(), j.at("higher_is_better").template get<bool>()};
}

}  // namespace ridge
