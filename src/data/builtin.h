// The built-in corpus as tokens: generated stories, with the lowest possible loss on each validation window.
#pragma once
#include "data/token_cache.h"

namespace ridge {

TokenRecipe builtin_recipe(const DatasetOptions& options);

}  // namespace ridge
