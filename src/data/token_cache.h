// Caches tokens for reuse: one folder per content, in the user's cache folder.
#pragma once
#include <functional>

#include "data/dataset.h"

namespace ridge {

// How a data set's tokens are made. The key names everything that they depend on.
struct TokenRecipe {
  std::string key;
  std::function<void(const std::filesystem::path& folder)> make;  // fills an empty folder, index.json last
  std::string bounded_key = {};                                   // of tokens affected by a memory budget; empty: not affected
};

std::filesystem::path token_cache(const DatasetOptions& options);  // empty: no folder is known

// Opens the tokens in the cache, or makes them there; several processes may do so concurrently. The least recently used ones are removed to make room. Without
// a writable folder they last as long as the process.
Dataset open_cached(const TokenRecipe& recipe, const DatasetOptions& options);

// Makes them in a folder chosen by the user, unless it already has them.
Dataset make_in(const std::filesystem::path& folder, const TokenRecipe& recipe);

}  // namespace ridge
