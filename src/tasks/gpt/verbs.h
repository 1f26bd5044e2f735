// The commands that only GPT has.
#pragma once
#include "train/task.h"

namespace ridge {

Verb sample_verb();
Verb eval_verb();
Verb export_verb();
Verb data_verb();

}  // namespace ridge
