// Tokens that were made once are found again: one folder for each content, in the user's cache folder.
#pragma once
#include <functional>

#include "data/dataset.h"

namespace ridge {

// How a data set's tokens are made. The key names all that they depend on.
struct TokenRecipe {
  std::string key;
  std::function<void(const std::filesystem::path& folder)> make;  // fills an empty folder, index.json last
  std::string bounded_key = {};                                   // of tokens that a budget of memory has changed; empty: none can
};

std::filesystem::path token_cache(const DatasetOptions& options);  // empty: no folder is known

// Opens the tokens of the cache, or makes them there; several processes may do so at once. What was not used for longest makes room for
// new ones. Without a folder that can be written they last as long as the process.
Dataset open_cached(const TokenRecipe& recipe, const DatasetOptions& options);

// Makes them in a folder of the user's, unless it has them.
Dataset make_in(const std::filesystem::path& folder, const TokenRecipe& recipe);

}  // namespace ridge
